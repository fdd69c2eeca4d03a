"""Keys, certificates, ports and commands of a fleet, without processes. test_operations.py has the real ones."""

from __future__ import annotations

import shlex
import shutil
import ssl
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from fedlga.backends.flower import flower_private, guarded_superlink
from fedlga.backends.flower.certificates import find_expiry, read_public_key
from fedlga.backends.flower.commands import unbox
from fedlga.backends.flower.deployment import (
    add_nodes,
    init,
    node_numbers,
    put_aside,
    renew,
    replace_keys,
    write_scripts,
)
from fedlga.backends.flower.fleet_settings import FleetSettings
from fedlga.cli.fleet import fleet
from fedlga.core.settings import BadInput


@pytest.fixture
def folder(tmp_path):
    init(tmp_path / "fleet", nodes=2, port=9443)
    return tmp_path / "fleet"


def test_all_secrets_are_their_owners(folder):
    secrets = [folder / "superlink" / "control.secret", folder / "flower" / "credentials.yaml"]
    secrets += [folder / "docker" / "flower" / "credentials.yaml"]
    add_nodes(folder, 1)
    replace_keys(folder, [0])
    renew(folder, authority=True, credential=True)
    secrets += [folder / "nodes" / str(number) / "key" for number in range(3)]
    secrets += [folder / "ca" / "ca.key", folder / "superlink" / "superlink.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets} == {0o600}
    assert not list((folder / "nodes").glob("*/*secret*"))


def test_devices_are_added_and_a_revoked_number_is_not_given_out_again(folder):
    (folder / "app" / "fleet_app" / "task.py").write_text("# mine\n")
    assert add_nodes(folder, 2) == [2, 3]
    put_aside(folder, [3])
    assert add_nodes(folder, 1) == [4]
    assert node_numbers(folder) == [0, 1, 2, 4]
    assert (folder / "app" / "fleet_app" / "task.py").read_text() == "# mine\n"
    assert "devices = 5\ncohort = 5\n" in (folder / "app" / "pyproject.toml").read_text()
    assert '--port "${FEDLGA_RUNTIME_PORT:-9450}"' in (folder / "nodes" / "4" / "node.sh").read_text()
    for numbers, message in (([3], "device 3 was revoked; it has 0, 1, 2, 4"), ([9], "device 9 is not in this fleet")):
        with pytest.raises(BadInput, match=message):
            put_aside(folder, numbers)
    with pytest.raises(BadInput, match="--count: got 0"):
        add_nodes(folder, 0)


def test_a_device_is_revoked_once_and_other_folders_are_no_devices(folder):
    """An operator's copy beside the keys does not become a device, and a number may be said twice."""
    shutil.copytree(folder / "nodes" / "0", folder / "nodes" / "7-copy")
    (folder / "nodes" / "8").write_text("")
    assert node_numbers(folder) == [0, 1]
    put_aside(folder, [1, 1])
    assert (node_numbers(folder), node_numbers(folder, "revoked")) == ([0], [1])


@pytest.mark.parametrize("lost", ["nothing there", "of another key"])
def test_an_authority_whose_certificate_is_not_its_own_gets_a_new_one(folder, lost, tmp_path):
    """As after an interruption between the authority's key and its certificate."""
    if lost == "nothing there":
        (folder / "ca" / "ca.crt").unlink()
    else:
        init(tmp_path / "other", nodes=1)
        shutil.copyfile(tmp_path / "other" / "ca" / "ca.crt", folder / "ca" / "ca.crt")
    renew(folder)
    ca, own = folder / "ca" / "ca.crt", folder / "superlink" / "superlink.crt"
    command = ["openssl", "verify", "-CAfile", str(ca), str(own)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert (folder / "nodes" / "1" / "ca.crt").read_bytes() == ca.read_bytes()


@pytest.mark.parametrize("words", [["write"], ["add"], ["rekey", "0"]])
def test_a_half_made_fleet_is_told_in_one_line(folder, words, capsys, monkeypatch):
    """A file lies where a folder should be: no file can be written there, whoever asks."""
    shutil.rmtree(folder / "nodes" / "0")
    shutil.rmtree(folder / "docker")
    (folder / "docker").write_text("")
    if words == ["rekey", "0"]:
        (folder / "nodes" / "0").mkdir()
        (folder / "nodes" / "0" / "key").mkdir()
    with pytest.raises(BadInput, match=r"'.*(docker|key).*': .*; the command stopped there"):
        fleet.main([words[0], str(folder), *words[1:]], standalone_mode=False)


def test_commands_for_a_folder_with_spaces_can_be_copied(tmp_path, capsys):
    fleet.main(["init", str(tmp_path / "my fleet"), "--nodes", "1"], standalone_mode=False)
    line = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]
    assert shlex.split(line) == ["fedlga", "fleet", "up", str(tmp_path / "my fleet"), "--nodes", "1"]


def test_new_keys_are_other_keys(folder):
    before = read_public_key(folder / "nodes" / "0" / "key.pub")
    replace_keys(folder, [0])
    assert read_public_key(folder / "nodes" / "0" / "key.pub") != before
    (folder / "nodes" / "0" / "key.pub").write_text("no key")
    with pytest.raises(BadInput, match="holds no public key; fedlga fleet rekey"):
        read_public_key(folder / "nodes" / "0" / "key.pub")


def check_with_openssl(authority, certificate):
    return subprocess.run(
        ["openssl", "verify", "-CAfile", str(authority), str(certificate)], capture_output=True, check=False
    ).returncode == 0  # fmt: skip


def test_nodes_believe_a_renewed_certificate_and_none_of_another_authority(folder, tmp_path):
    """A node has the ca.crt that it was given at first."""
    ours = shutil.copy(folder / "nodes" / "0" / "ca.crt", tmp_path / "ca.crt")
    old = (folder / "superlink" / "superlink.crt").read_bytes()
    renew(folder)
    certificate = folder / "superlink" / "superlink.crt"
    assert certificate.read_bytes() != old
    assert check_with_openssl(ours, certificate)
    assert find_expiry(certificate) < find_expiry(ours)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, folder / "superlink" / "superlink.key")
    renew(folder, authority=True)
    assert not check_with_openssl(ours, certificate)
    assert check_with_openssl(folder / "nodes" / "1" / "ca.crt", certificate)
    (folder / "ca" / "ca.key").unlink()
    with pytest.raises(BadInput, match="is not the fleet's authority"):
        renew(folder)


def test_a_fleet_of_the_last_version_is_upgraded(folder):
    """It had three lines in fleet.toml, and no secret: nodes reached the SuperLink itself."""
    (folder / "fleet.toml").write_text('host = "127.0.0.1"\nport = 9443\nnodes = 2\n')
    (folder / "superlink" / "control.secret").unlink()
    before = FleetSettings.load(folder)
    assert (before.port, before.control_port, before.runtime_port, before.has_proxy) == (9443, 9443, 9444, False)
    write_scripts(folder)
    assert "--control-secret" in (folder / "superlink" / "superlink.sh").read_text()
    assert len((folder / "superlink" / "control.secret").read_text()) > 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control_port": 9443}, None),
        ({"monitor_port": 9444}, "two of its ports are the same"),
        ({"runtime_port": 9442}, "two of its ports are the same"),
        ({"port": 80}, "port: got 80; it takes 1024 to 65535"),
        ({"runtime_port": 65_535}, "the last node's runtime_port: got 65536"),
        ({"listen": "everywhere"}, "listen: got 'everywhere'"),
        ({"nodes": 0}, "nodes: got 0"),
        ({"host": "a b"}, "host: got 'a b'"),
    ],
)
def test_settings_that_cannot_work_are_refused(folder, changes, message):
    replace(FleetSettings.load(folder), **changes).save(folder)
    if message is None:
        assert not FleetSettings.load(folder).has_proxy
        return
    with pytest.raises(BadInput, match=message):
        FleetSettings.load(folder)


BOXED = """Using SuperLink: fleet
╭─ Error ──────────────────────────────────────────────────────────╮
│ The SuperLink is unavailable.                                    │
│ Please check the address.                                        │
╰──────────────────────────────────────────────────────────────────╯
"""


def test_flowers_boxes_become_one_line():
    assert unbox(BOXED) == "Using SuperLink: fleet The SuperLink is unavailable. Please check the address."
    assert unbox('{"success": false, "error-message": "Error: no\\nrun"}') == "Error: no run"
    assert unbox("2026-11-18T13:25:50.637Z node-0 \x1b[92mINFO \x1b[0m:      ready") == "INFO :      ready"
    assert len(unbox("x" * 10_000)) == 300


def test_a_superlink_that_cannot_be_guarded_is_not_started(tmp_path, monkeypatch):
    started: list[bool] = []
    monkeypatch.setattr(guarded_superlink, "run_superlink", lambda: started.append(True))
    with pytest.raises(SystemExit, match="--control-secret FILE is missing"):
        guarded_superlink.run(["--insecure"])
    with pytest.raises(SystemExit, match="cannot be read"):
        guarded_superlink.run(["--control-secret", str(tmp_path / "nothing")])
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SystemExit, match="less than 16 characters"):
        guarded_superlink.run(["--control-secret", str(tmp_path / "secret")])
    (tmp_path / "secret").write_text("long enough for a secret")
    monkeypatch.setitem(sys.modules, "flwr.superlink.cli.flower_superlink", None)  # a Flower that is another inside
    assert not flower_private.guard_superlink("secret", tmp_path / "secret")
    with pytest.raises(SystemExit, match="nothing was started"):
        guarded_superlink.run(["--control-secret", str(tmp_path / "secret")])
    assert started == []


def test_a_database_of_another_flower_says_nothing(tmp_path):
    assert flower_private.read_work(tmp_path / "nothing.db") is None
    assert flower_private.read_nodes(tmp_path / "nothing.db") is None
    (tmp_path / "other.db").write_bytes(b"no database")
    assert flower_private.read_work(tmp_path / "other.db") is None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_units_are_hardened(folder, tmp_path):
    units = [*(folder / "superlink").glob("*.service"), *(folder / "nodes" / "0").glob("*.service")]
    assert len(units) == 4
    for unit in units:
        copy = shutil.copy(unit, tmp_path)
        words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"MemoryMax", "CPUQuota", "TasksMax"} <= {
            line.partition("=")[0] for line in unit.read_text().split("\n")
        }
