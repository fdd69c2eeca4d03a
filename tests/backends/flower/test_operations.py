"""An operator's walk, with real processes: init, up behind nginx, train, stop, add, revoke, renew, upgrade, resume.

One fleet for all tests, in the order of the file. Nodes reach the SuperLink through the proxy only.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from fedlga.backends.flower.control import open_control
from fedlga.backends.flower.fleet_settings import FleetSettings
from fedlga.backends.flower.registry import list_devices
from fedlga.core.settings import BadInput, Stopped
from fedlga.experiments.monitor import Monitor
from trials import (
    LONGEST,
    QuickTrial,
    find_processes,
    free_ports,
    log_of,
    read_logs,
    read_rounds,
    start_app,
    stop_run,
    wait_until,
)

pytestmark = pytest.mark.slow(seconds=90)
PROTOBUF = "application/protobuf"
SETTINGS = {"devices": 2, "cohort": 2, "deadline": 600.0, "grace": 600.0, "method": "fedavg"}


def run_command(trial, *words, code=0):
    command = [sys.executable, "-m", "fedlga", "fleet", *words]
    done = subprocess.run(
        command, env=trial.environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr + read_logs(trial)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    assert shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin"), "nginx is missing: `make nginx` installs it"
    folder = tmp_path_factory.mktemp("walk") / "fleet"
    trial = QuickTrial(folder)
    folder.parent.mkdir(exist_ok=True)
    run_command(trial, "init", str(folder), "--nodes", "2", "--port", str(free_ports()))
    try:
        out = run_command(trial, "up", str(folder), "--nodes", "2", "--proxy")
        assert "for the fleet API only" in out
        yield trial
    finally:
        trial.down()


@pytest.fixture(scope="module")
def trained(trial, tmp_path_factory):
    """A run of two rounds through the proxy."""
    out = tmp_path_factory.mktemp("runs") / "first"
    process = start_app(trial, trial.folder / "app", out, rounds=2, **SETTINGS)
    assert process.wait(timeout=LONGEST) == 0, log_of(trial, out).read_text() + read_logs(trial)
    return out


def test_nodes_train_through_the_proxy(trial, trained):
    records = read_rounds(trained)
    assert [sorted(record["used"]) for record in records] == [[0, 1], [0, 1]]
    fleet = FleetSettings.load(trial.folder)
    assert fleet.has_proxy
    with open_control(trial.folder) as control:
        assert [node.status for node in control.list_nodes()] == ["online", "online"]
    trial.stop("proxy")  # without it, no node reaches the SuperLink: they had no other way
    log = trial.folder / "logs" / "node-0.log"
    before = len(log.read_text())
    wait_until(lambda: "Connection" in log.read_text()[before:] or "Retry" in log.read_text()[before:], trial)
    trial.start_proxy()


def ask(trial, port, path, **headers):
    """Return the status of a request that anyone with a node's ca.crt could send."""
    context = ssl.create_default_context(cafile=trial.folder / "nodes" / "0" / "ca.crt")
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{path}", data=b"", headers={"Content-Type": PROTOBUF, **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


PATHS = [
    "/v1/control/start-run",
    "/v1/control/stop-run",
    "/v1/control/register-node",
    "/v1/control/list-nodes",
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/..%2fcontrol/list-nodes",
    "//v1/control/list-nodes",
    "/v1/fleet/register-node",
    "/v1/runtime/acquire-task",
    "/v1/runtime/push-messages",
    "/health",
    "/docs",
]


@pytest.mark.parametrize("path", PATHS)
def test_the_proxy_leads_to_the_fleet_api_only(path, trial):
    assert ask(trial, trial.settings.port, path) == 403


def test_the_fleet_api_takes_signed_requests_only(trial):
    assert ask(trial, trial.settings.port, "/v1/fleet/pull-messages") == 401


def test_the_control_api_takes_commands_with_the_secret_only(trial):
    """Also on loopback, from another user of the machine who has a node's ca.crt."""
    assert ask(trial, trial.port, "/v1/control/list-nodes") == 401
    assert ask(trial, trial.port, "/v1/control/list-nodes", Authorization="Bearer guess") == 401
    assert ask(trial, trial.port, "/v1/control/refresh-auth-tokens") >= 400
    assert ask(trial, trial.port, "/v1/runtime/acquire-task") in (401, 403)
    secret = (trial.folder / "superlink" / "control.secret").read_text()
    assert ask(trial, trial.port, "/v1/control/list-nodes", Authorization=f"Bearer {secret}") == 200


def test_the_monitor_says_how_the_fleet_is(trial, trained, tmp_path):
    runs = trial.folder / "superlink" / "runs"
    runs.mkdir(exist_ok=True)
    shutil.copytree(trained, runs / "copied")
    monitor = Monitor(trial.folder)
    text = monitor.render()
    assert "fedlga_superlink_up 1.0" in text
    assert 'fedlga_nodes{state="online"} 2' in text
    assert 'fedlga_rounds_total{run="copied"} 2' in text
    assert monitor.health()["healthy"] is True
    assert Monitor(trial.folder / "superlink").render().count("\n") == text.count("\n")  # as copied to its machine


def test_a_node_that_a_stopped_run_keeps_busy_is_shown_and_told_to_stop(trial, tmp_path):
    """Node 1 would need hours for its round."""
    trial.stop("node-1")
    trial.start_node(1, pace=600.0, proxy=True)
    trial.wait_for_nodes(2)
    process = start_app(trial, trial.folder / "app", tmp_path / "slow", rounds=1, **SETTINGS)
    wait_until(lambda: [d.state for d in list_devices(trial.folder)][1] == "busy" or process.poll() is not None, trial)
    assert process.poll() is None, log_of(trial, tmp_path / "slow").read_text()
    wait_until(lambda: read_log(trial, 1).count("Receiving: train") > read_log(trial, 1).count("Sending: train"), trial)
    [device] = find_processes(trial, "node-1", "fedlga.backends.flower.device_process")
    status = json.loads(run_command(trial, "status", str(trial.folder), "--json"))
    assert [entry["state"] for entry in status["devices"]][1] == "busy"
    stop_run(trial, tmp_path / "slow")
    process.wait(timeout=LONGEST)
    wait_until(lambda: "the run was stopped: its work here is stopped too" in read_log(trial, 1), trial)
    wait_until(lambda: device not in find_processes(trial, "node-1", "fedlga.backends.flower.device_process"), trial)
    wait_until(lambda: [d.state for d in list_devices(trial.folder)][1] == "online", trial)


def read_log(trial, number):
    return (trial.folder / "logs" / f"node-{number}.log").read_text()


def test_a_device_that_is_added_takes_part_and_one_that_is_revoked_does_not(trial, tmp_path):
    folder = str(trial.folder)
    assert "registered: device 2" in run_command(trial, "add", folder)
    trial.start_node(2, proxy=True)
    trial.wait_for_nodes(3)
    out = run_command(trial, "revoke", folder, "1")
    assert "refused from now on" in out
    wait_until(lambda: "node-1" not in trial.running(), trial)  # it is refused, and ends
    states = {device.number: device.state for device in list_devices(trial.folder)}
    assert states == {0: "online", 2: "online"}
    assert "device 1 was revoked" in run_command(trial, "revoke", folder, "1", code=2)
    app = (trial.folder / "app" / "pyproject.toml").read_text()
    assert "devices = 3\n" in app
    settings = {**SETTINGS, "devices": 3, "cohort": 3, "grace": 5.0}  # it does not wait long for device 1
    process = start_app(trial, trial.folder / "app", tmp_path / "r", rounds=1000, **settings)
    both = [0, 2]
    wait_until(lambda: any(sorted(r["used"]) == both for r in read_rounds(tmp_path / "r")) or process.poll(), trial)
    stop_run(trial, tmp_path / "r")
    process.wait(timeout=LONGEST)
    records = read_rounds(tmp_path / "r")
    assert any(sorted(record["used"]) == both for record in records), log_of(trial, tmp_path / "r").read_text()
    assert not any(1 in record["devices"] for record in records)


def test_a_fleet_is_stopped_written_anew_and_continues_its_run(trial, trained):
    """As in an upgrade: everything stops, scripts are written by the new version, the certificate and a key are new."""
    folder = str(trial.folder)
    trial.down()
    assert "is not registered" not in run_command(trial, "write", folder)
    assert "valid until" in run_command(trial, "renew", folder)
    message = run_command(trial, "rekey", folder, "0", code=1)  # it is down: the old key is still let in
    assert message.startswith("fedlga: the old keys are still let in: the SuperLink does not answer")
    assert len(message.strip().splitlines()) == 1
    trial.start_superlink()
    trial.start_proxy()
    out = run_command(trial, "sync", folder)
    assert "registered: device 0" in out
    assert "refused from now on" in out
    for number in (0, 2):
        trial.start_node(number, proxy=True)
    trial.wait_for_nodes(2)
    process = start_app(trial, trial.folder / "app", trained, rounds=3, resume=True, **{**SETTINGS, "grace": 5.0})
    assert process.wait(timeout=LONGEST) == 0, log_of(trial, trained).read_text() + read_logs(trial)
    records = read_rounds(trained)
    assert [record["round"] for record in records] == [1, 2, 3]
    assert records[2]["used"] == [0]


def test_ports_are_checked_before_anything_starts_and_changed_in_one_place(trial):
    trial.stop("node-0")
    names = set(trial.running())
    other = QuickTrial(trial.folder)
    with pytest.raises(BadInput, match=rf"port .*{trial.settings.port} \(port\).* taken; .*fleet.toml"):
        other.check_ports([0], proxy=True)
    assert set(trial.running()) == names
    trial.down()
    file = trial.folder / "fleet.toml"
    moved = trial.settings.control_port + 9
    file.write_text(
        file.read_text().replace(f"control_port = {trial.settings.control_port}", f"control_port = {moved}")
    )
    run_command(trial, "write", str(trial.folder))
    for name in ("superlink/superlink.sh", "superlink/proxy.conf", "flower/config.toml", "docker/compose.yaml"):
        assert str(moved) in (trial.folder / name).read_text()
    with pytest.raises(BadInput, match="does not answer"), open_control(trial.folder) as control:
        control.list_nodes()


def test_an_old_secret_is_refused(trial):
    moved = QuickTrial(trial.folder)
    moved.start_superlink()
    run_command(moved, "renew", str(moved.folder), "--credential")
    with pytest.raises(Stopped, match="the secret is not the one"), open_control(moved.folder) as control:
        control.list_nodes()
    moved.down()
