"""All that goes between a node and the SuperLink, byte by byte: updates and agreed numbers, never the data."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_weights

from fedlga.experiments.records import read_run
from trials import BIN, LONGEST, free_ports, listens, make_trial, read_logs, start_app, wait_until

pytestmark = pytest.mark.slow(seconds=25)

TASK = """
import numpy as np
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def train_data(node):
    rng = np.random.default_rng(7)
    return torch.from_numpy(rng.random((40, 1, 8, 8), np.float32)), torch.from_numpy(rng.integers(0, 10, 40))

def test_data():
    rng = np.random.default_rng(8)
    return torch.from_numpy(rng.random((40, 1, 8, 8), np.float32)), torch.from_numpy(rng.integers(0, 10, 40))
"""


class Recorder:
    """A proxy between a node and the SuperLink that keeps all bytes."""

    def __init__(self, port: int, target: int) -> None:
        self.up, self.down = bytearray(), bytearray()
        self._server = socket.create_server(("127.0.0.1", port))
        self._target = target
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for source, sink, kept in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._copy, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with source:
            try:
                while piece := source.recv(1 << 16):
                    kept += piece
                    sink.sendall(piece)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def close(self) -> None:
        self._server.close()


def find_arrays(stream: bytes) -> list[np.ndarray]:
    """Return every array in a stream, in the form in which Flower sends arrays."""
    starts = [match.start() for match in re.finditer(re.escape(b"\x93NUMPY"), stream)]
    return [np.load(io.BytesIO(stream[start:]), allow_pickle=False) for start in starts]


def test_only_updates_and_numbers_leave_a_node(tmp_path):
    """Without TLS, which would hide what is sent. The node is Flower's own, with a process for every message."""
    port = free_ports()
    trial = make_trial(tmp_path / "fleet", 1, port)
    (trial.folder / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "fleet"\n[superlink.fleet]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    (trial.folder / "app" / "fleet_app" / "task.py").write_text(TASK)
    recorder = Recorder(port + 2, port)
    state = trial.folder / "state"
    superlink = [str(BIN / "flower-superlink"), "--insecure", "--port", str(port)]
    superlink += ["--disable-runtime-dependency-installation"]
    node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port + 2}"]
    node += ["--port", str(port + 1), "--node-config", f'device=0 state-dir="{state}"']
    processes = []
    try:
        for name, command in (("superlink", superlink), ("node", node)):
            with (trial.folder / "logs" / f"{name}.log").open("wb") as log:
                environment = trial.environment(FLWR_HOME=str(tmp_path / name))
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            wait_until(lambda: listens(port), trial)
        list_nodes = ("supernode", "list", "fleet", "--format", "json")  # this SuperLink has no TLS, and no secret
        wait_until(lambda: '"status": "online"' in trial.flwr(*list_nodes).stdout, trial)
        settings = {"rounds": 2, "devices": 1, "cohort": 1, "deadline": 60.0, "grace": 600.0, "method": "scaffold"}
        process = start_app(trial, trial.folder / "app", tmp_path / "r", **settings)
        assert process.wait(timeout=LONGEST) == 0, read_logs(trial)
    finally:
        for process in processes[::-1]:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)
        recorder.close()

    up, down = bytes(recorder.up), bytes(recorder.down)
    assert [len(record.used) for record in read_run(tmp_path / "r").records] == [1, 1]
    assert all(torch.isfinite(v).all() for v in load_weights(tmp_path / "r" / "model.safetensors").values())
    size = 64 * 64 + 64 + 64 * 10 + 10
    sent = find_arrays(up)
    assert [(array.shape, array.dtype) for array in sent] == [((size,), np.float32)] * 4  # delta and control, twice
    assert len(up) < sum(array.nbytes for array in sent) + 100_000  # little besides them
    rng = np.random.default_rng(7)
    images, labels = rng.random((40, 1, 8, 8), np.float32), rng.integers(0, 10, 40)
    for image in images:
        for form in (image, image.astype(np.float64), (255 * image).astype(np.uint8), image.astype(np.float16)):
            assert form.tobytes()[:32] not in up
    for form in (labels, labels.astype(np.int32), labels.astype(np.uint8)):
        assert form.tobytes()[:40] not in up
    assert any(array.tobytes() in down for array in find_arrays(down))  # such a search finds what is there
    [memory] = [load_file(file)["control"] for file in state.glob("*/1.safetensors")]
    assert memory.shape == (size,)
    assert memory.tobytes() not in up
    assert sent[1].tobytes() in up
