"""All that crosses between a node and the SuperLink, byte by byte: updates and agreed numbers, never the data."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedlga.flower.deployment import init
from fedlga.flower.trial import Trial
from fedlga.runs import read
from test_flower_fleet import LONGEST, free_ports, logs, start_app, wait

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
    """A wire with a tap: whatever goes through is kept."""

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


def arrays_in(stream: bytes) -> list[np.ndarray]:
    """Every array that stands in it, in the form in which Flower sends arrays."""
    starts = [found.start() for found in re.finditer(re.escape(b"\x93NUMPY"), stream)]
    return [np.load(io.BytesIO(stream[start:]), allow_pickle=False) for start in starts]


def test_only_updates_and_numbers_leave_a_node(tmp_path):
    """Without TLS, or there would be nothing to read."""
    port = free_ports()
    init(tmp_path / "fleet", nodes=1, port=port)
    trial = Trial(tmp_path / "fleet")
    (trial.folder / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "fleet"\n[superlink.fleet]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    (trial.folder / "app" / "fleet_app" / "task.py").write_text(TASK)
    (trial.folder / "logs").mkdir()
    home, wire = Path(sys.executable).parent, Recorder(port + 2, port)
    state = trial.folder / "state"
    superlink = [str(home / "flower-superlink"), "--insecure", "--port", str(port)]
    superlink += ["--disable-runtime-dependency-installation"]
    node = [str(home / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port + 2}"]
    node += ["--port", str(port + 1), "--node-config", f'device=0 state-dir="{state}"']
    processes = []
    try:
        for name, command in (("superlink", superlink), ("node", node)):
            with (trial.folder / "logs" / f"{name}.log").open("wb") as log:
                environment = trial.environment(FLWR_HOME=str(tmp_path / name))
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            wait(lambda: _listens(port), trial)
        wait(lambda: trial.online() == 1, trial)
        settings = {"rounds": 2, "devices": 1, "cohort": 1, "deadline": 60.0, "grace": 60.0, "method": "scaffold"}
        assert start_app(trial, trial.folder / "app", tmp_path / "r", **settings).wait(timeout=LONGEST) == 0, logs(
            trial
        )
    finally:
        for process in processes[::-1]:
            os.killpg(process.pid, 15)
            process.wait(timeout=60)
        wire.close()

    up, down = bytes(wire.up), bytes(wire.down)
    assert [len(record.used) for record in read(tmp_path / "r").records] == [1, 1]
    size = 64 * 64 + 64 + 64 * 10 + 10
    sent = arrays_in(up)
    assert [(array.shape, array.dtype) for array in sent] == [((size,), np.float32)] * 4  # delta and control, twice
    assert len(up) < sum(array.nbytes for array in sent) + 100_000  # and besides them, little
    rng = np.random.default_rng(7)
    images, labels = rng.random((40, 1, 8, 8), np.float32), rng.integers(0, 10, 40)
    for image in images:
        for form in (image, image.astype(np.float64), (255 * image).astype(np.uint8), image.astype(np.float16)):
            assert form.tobytes()[:32] not in up
    for form in (labels, labels.astype(np.int32), labels.astype(np.uint8)):
        assert form.tobytes()[:40] not in up
    assert any(array.tobytes() in down for array in arrays_in(down))  # the search does find what is there
    [memory] = [load_file(file)["control"] for file in state.glob("*/1.safetensors")]
    assert memory.shape == (size,)
    assert memory.tobytes() not in up
    assert sent[1].tobytes() in up


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
