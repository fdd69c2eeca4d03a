"""What Prometheus is told of runs, by hand, and over a real socket. test_operations.py has a real fleet."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from fedlga.backends.flower.deployment import init
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.folder import hold_folder
from fedlga.experiments.monitor import HELP, Monitor, is_going_on, make_server
from trials import free_ports

FIRST = Record(
    round=1,
    metrics={"accuracy": 0.5, "loss": None},
    train_loss=1.0,
    seconds=2.0,
    simulated_seconds=2.0,
    lr=0.1,
    devices=[0, 1, 2],
    steps=[5, 0, 5],
    steps_asked=[5, 5, 5],
    slow=[],
    absent=[1],
    used=[0],
    scales={},
    refused={2: "its numbers are not finite"},
    bytes_down=300,
    bytes_up=200,
)


@pytest.fixture
def fleet(tmp_path):
    init(tmp_path / "fleet", nodes=1, port=free_ports())
    return tmp_path / "fleet"


def add_round(folder, record):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps(record.as_dict()) + "\n")


def read_samples(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_rounds_add_up(fleet):
    run = fleet / "superlink" / "runs" / 'a"run'
    monitor = Monitor(fleet)
    add_round(run, FIRST)
    first = read_samples(monitor.render())
    assert first["fedlga_superlink_up"] == "0.0"
    label = 'run="a\\"run"'
    assert first[f"fedlga_rounds_total{{{label}}}"] == "1"
    second = replace(FIRST, round=2, seconds=3.0, metrics={"accuracy": None}, late=[1], resting=[2], refused={})
    add_round(run, second)
    with (run / "rounds.jsonl").open("a") as lines:
        lines.write('{"round": 3, "half of a li')  # the aggregator writes it just now
    samples = read_samples(monitor.render())
    assert samples[f"fedlga_rounds_total{{{label}}}"] == "2"
    assert samples[f"fedlga_round_seconds{{{label}}}"] == "3.0"
    assert samples[f"fedlga_seconds_total{{{label}}}"] == "5.0"
    assert samples[f'fedlga_metric{{{label},metric="accuracy"}}'] == "0.5"  # of the last evaluation
    assert samples[f'fedlga_devices_total{{{label},state="refused"}}'] == "1"
    assert samples[f'fedlga_round_devices{{{label},state="refused"}}'] == "0"
    assert samples[f'fedlga_round_devices{{{label},state="resting"}}'] == "1"
    assert samples[f'fedlga_devices_total{{{label},state="late"}}'] == "1"
    assert samples[f'fedlga_devices_total{{{label},state="selected"}}'] == "6"
    assert samples[f'fedlga_bytes_total{{{label},direction="down"}}'] == "600"


def test_a_run_that_goes_back_to_a_checkpoint_is_counted_anew(fleet):
    run, monitor = fleet / "superlink" / "runs" / "r", Monitor(fleet)
    for round in (1, 2, 3):
        add_round(run, replace(FIRST, round=round))
    assert 'fedlga_seconds_total{run="r"} 6.0' in monitor.render()
    (run / "rounds.jsonl").write_text("")
    add_round(run, FIRST)
    assert 'fedlga_seconds_total{run="r"} 2.0' in monitor.render()


@pytest.mark.parametrize("change", [{"used": 5}, {"seconds": "1"}, {"round": 10**30}, {"steps": []}])
def test_a_line_that_is_no_record_does_not_count(fleet, change):
    run, monitor = fleet / "superlink" / "runs" / "r", Monitor(fleet)
    add_round(run, FIRST)
    before = monitor.render()
    with (run / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps({**replace(FIRST, round=2).as_dict(), **change}) + "\n" + "[" * 100_000 + "\n")
    after = monitor.render()
    changing = "fedlga_last_round_timestamp_seconds"
    assert [x for x in after.splitlines() if changing not in x] == [x for x in before.splitlines() if changing not in x]


def test_every_sample_has_its_type_and_the_format_is_prometheus(fleet):
    add_round(fleet / "superlink" / "runs" / "r", FIRST)
    text = Monitor(fleet).render()
    described = re.findall(r"^# TYPE fedlga_(\S+) (gauge|counter)$", text, re.MULTILINE)
    named = {line.removeprefix("fedlga_").partition("{")[0].partition(" ")[0] for line in read_samples(text)}
    assert named <= set(HELP)
    assert [name for name, _ in described] == [name for name in HELP if name in named]
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in described)


def test_a_run_goes_on_while_a_process_holds_its_folder(tmp_path):
    assert not is_going_on(tmp_path)
    with hold_folder(tmp_path):
        assert is_going_on(tmp_path)
    assert not is_going_on(tmp_path)
    assert not is_going_on(tmp_path / "nothing")


def test_it_is_served_on_loopback(fleet):
    monitor = Monitor(fleet)
    with make_server(monitor, "127.0.0.1") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{monitor.settings.monitor_port}"
            with urllib.request.urlopen(f"{address}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert b"fedlga_superlink_up 0.0" in answer.read()
            with pytest.raises(urllib.error.HTTPError) as health:
                urllib.request.urlopen(f"{address}/health")
            with health.value as error:
                assert error.code == 503  # there is no SuperLink
                assert json.loads(error.read())["healthy"] is False
            with pytest.raises(urllib.error.HTTPError) as other:
                urllib.request.urlopen(f"{address}/../fleet.toml")
            with other.value as error:
                assert error.code == 404
            with pytest.raises(BadInput, match=r"fleet\.toml is where to change the port"):
                make_server(monitor, "127.0.0.1")
        finally:
            server.shutdown()
            thread.join()
    dashboard = json.loads((fleet / "grafana-dashboard.json").read_text())
    expressions = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert set(re.findall(r"fedlga_([a-z_]+)", expressions)) <= set(HELP)
