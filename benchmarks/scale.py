"""What a waiting node costs its SuperLink, and where that goes: with real nodes, and with what they send alone.

    python benchmarks/scale.py --real 12 --out results/scale/scale.csv

`real` are `fedlga-node` processes that wait for work. `signed requests` are threads of one process that send the same
request as a waiting node, signed by keys of their own, as fast as they are answered: they show what the SuperLink can
do at most. Costs are processor seconds of the SuperLink's own process; they grow with what else the machine does.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedlga.backends.flower.control import open_control
from fedlga.backends.flower.deployment import init
from fedlga.backends.flower.trial import Trial, find_family

TICKS = os.sysconf("SC_CLK_TCK")
CURVES = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1}


def find_server(trial: Trial) -> int:
    """Return the process that listens: the one with the most memory, of those that `superlink.sh` became."""
    return max(find_family(trial.running()["superlink"]), key=lambda pid: (is_superlink(pid), read_memory(pid)))


def is_superlink(pid: int) -> bool:
    """Return whether a process is the SuperLink."""
    return b"fedlga-superlink" in Path(f"/proc/{pid}/cmdline").read_bytes()


def read_memory(pid: int) -> int:
    """Return the bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_cpu(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure_share(trial: Trial, seconds: float) -> float:
    """Return which share of a core the SuperLink uses now."""
    pid, started = find_server(trial), time.monotonic()
    cpu = read_cpu(pid)
    time.sleep(seconds)
    return (read_cpu(pid) - cpu) / (time.monotonic() - started)


def measure_real(trial: Trial, nodes: int, seconds: float) -> dict[str, Any]:
    """Return what nodes that wait cost, beyond what the SuperLink costs without them (its executor polls it)."""
    alone = measure_share(trial, seconds)
    for number in range(nodes):
        trial.start_node(number, proxy=True)
    trial.wait_for_nodes(nodes)
    time.sleep(30)  # until they ask every three seconds
    share = measure_share(trial, seconds)
    return {
        "kind": "real",
        "key": "P-256",
        "way": "proxy",
        "nodes": nodes,
        "requests_a_second": None,
        "milliseconds_a_request": None,
        "superlink_core_share": share,
        "milliseconds_a_node_and_second": 1000 * (share - alone) / nodes,
        "node_megabytes": sum(map(read_memory, find_family(trial.running()["node-0"]))) / 1e6,
    }


def measure_requests(trial: Trial, *, way: str, curve: str, nodes: int, seconds: float) -> dict[str, Any]:
    """Return what the SuperLink can answer of the request that a waiting node sends."""
    authority = (trial.folder / "ca" / "ca.crt").read_bytes()
    port = trial.settings.port if way == "proxy" else trial.settings.control_port
    counts, over = [0] * nodes, threading.Event()
    everybody = threading.Barrier(nodes + 1)

    def ask(number: int) -> None:
        key = ec.generate_private_key(CURVES[curve]())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        with open_control(trial.folder) as control:
            control.register(public, f"{way} {curve} {number}")
        signing = NodeAuthHttpInterceptor(key, key.public_key())
        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signing]

        def connect() -> FleetHttpClient:
            return FleetHttpClient.from_server_address(f"127.0.0.1:{port}", False, authority, interceptors=interceptors)

        client = connect()
        node = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=300.0)).node_id
        everybody.wait()
        while not over.is_set():
            if way == "direct, a connection each":
                client.close()
                client = connect()
            client.PullMessages(PullMessagesRequest(node=Node(node_id=node)))
            counts[number] += 1
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(nodes)]
    for thread in threads:
        thread.start()
    everybody.wait()
    pid = find_server(trial)
    cpu, before, started = read_cpu(pid), sum(counts), time.monotonic()
    time.sleep(seconds)
    used, done, lasted = read_cpu(pid) - cpu, sum(counts) - before, time.monotonic() - started
    over.set()
    for thread in threads:
        thread.join()
    return {
        "kind": "signed requests",
        "key": curve,
        "way": way,
        "nodes": nodes,
        "requests_a_second": done / lasted,
        "milliseconds_a_request": 1000 * used / max(1, done),
        "superlink_core_share": used / lasted,
        "milliseconds_a_node_and_second": None,
        "node_megabytes": None,
    }


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=12, help="real nodes")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        init(Path(name) / "fleet", nodes=max(1, options.real), port=24_000)
        trial = Trial(Path(name) / "fleet")
        try:
            trial.check_ports(range(options.real), proxy=True)
            trial.start_superlink()
            trial.start_proxy()
            for way in ("direct", "proxy", "direct, a connection each"):
                for curve in CURVES:
                    rows.append(measure_requests(trial, way=way, curve=curve, nodes=8, seconds=options.seconds))
                    print(json.dumps(rows[-1]), flush=True)
            if options.real:
                trial.register(*range(options.real))
                rows.append(measure_real(trial, options.real, 3 * options.seconds))
                print(json.dumps(rows[-1]), flush=True)
        finally:
            trial.down()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        load = {"load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count(), "machine": platform.machine()}
        writer = csv.DictWriter(file, [*rows[0], *load], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **load} for row in rows)


if __name__ == "__main__":
    main()
