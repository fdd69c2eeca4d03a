"""The server: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json

import pytest

from fedlga.core.settings import BadInput
from fedlga.report.watch.feed import Feed
from fedlga.report.watch.server import is_loopback, open_server
from run_folders import append_records, make_record, start_run
from serving import serve


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    append_records(start_run(folder / "run"), make_record())
    (folder / "secret.txt").write_text("secret")
    with serve(folder) as opened:
        yield opened


def ask(server, path: str, *, method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def test_the_page_and_its_parts(server):
    answer, page = ask(server, "/")
    assert answer.status == 200
    for kind, path in (("text/javascript", "/uplot.js"), ("text/javascript", "/watch.js"), ("text/css", "/style.css")):
        part, content = ask(server, path)
        assert part.status == 200 and len(content) > 500
        assert part.getheader("Content-Type") == f"{kind}; charset=utf-8"
        assert path[1:] in page
    assert "http://" not in page and "https://" not in page and "<style" not in page and "<script>" not in page


def test_every_answer_is_locked_up(server):
    """No script but ours, no frame, no guessing of types, nothing for other sites; also where it refuses."""
    for path in ("/", "/updates", "/devices?run=0", "/nowhere", "/updates?position=x"):
        answer, _ = ask(server, path)
        policy = str(answer.getheader("Content-Security-Policy"))
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert answer.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.0.0.1:8765", "[::1]:80"])
def test_its_own_names_are_answered(server, host):
    assert ask(server, "/updates", Host=host)[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "[::1", "a@b:c"])
def test_other_names_are_refused(server, host):
    """A web site whose name is made to point at 127.0.0.1 sends its own name as Host."""
    for path in ("/", "/updates", "/devices?run=0"):
        answer, content = ask(server, path, Host=host)
        assert (answer.status, content) == (403, "this server has another name\n")


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/run/experiment.toml",
        "//run/rounds.jsonl",
        "/devices?run=99",
        "/watch.py",
        "/uplot/LICENSE",
    ],
)
def test_there_is_nothing_else(server, path):
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/devices",
        "/devices?run=-1",
        "/devices?run=../secret.txt",
        "/devices?run=%D9%A1x",
        "/updates?position=1e9",
        "/updates?revision=9999999999999",
        "/updates?a=1&b=2&c=3&d=4&e=5&f=6",
    ],
)
def test_what_is_no_question_is_refused(server, path):
    assert ask(server, path)[0].status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(server, method):
    assert ask(server, "/updates", method=method)[0].status == 501


def test_head_has_no_content(server):
    answer, content = ask(server, "/", method="HEAD")
    assert answer.status == 200 and content == ""


def test_updates_and_devices(server):
    told = json.loads(ask(server, "/updates?position=0&revision=0&epoch=")[1])
    assert [run["state"] for run in told["runs"]] == ["stopped"]
    again = f"/updates?position={told['position']}&revision={told['revision']}&epoch={told['epoch']}"
    assert json.loads(ask(server, again)[1])["rows"] == []
    assert json.loads(ask(server, "/devices?run=0")[1])["count"] == 0


def test_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.evil"))


def test_a_port_that_is_taken(server, tmp_path):
    port = server.server_address[1]
    with pytest.raises(
        BadInput, match=rf"--host, --port: cannot listen at 127\.0\.0\.1:{port} \(Address already in use\)"
    ):
        open_server(Feed([tmp_path]), "127.0.0.1", port)
    with pytest.raises(BadInput, match=r"--host, --port: cannot listen at nowhere\.invalid:8765"):
        open_server(Feed([tmp_path]), "nowhere.invalid", None)
    with (
        open_server(Feed([tmp_path]), "127.0.0.1", None) as one,
        open_server(Feed([tmp_path]), "127.0.0.1", None) as two,
    ):
        assert one.url != two.url, "without a port, any that is free is taken"
