"""Where a step of ResNet-20 goes, and what would make it shorter: batch 10, CIFAR's images, one thread.

    .venv/bin/python benchmarks/resnet.py [--repetitions 15] [--out results/models]

Each way to compute loss and gradients has a process of its own; they take turns, a block of ten steps at a time.
Milliseconds are of the processor, so that other work on the machine counts little. A ratio says how many times as fast
as fedlga's own step a way is: the median over the turns, the lowest and the highest. `resnet20.csv` has the ways,
`resnet20-parts.csv` fedlga's step by operation (torch's profiler). The two ways with bfloat16 compute other numbers:
they are here to know what they would gain. Compiling the whole step takes minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.process import keep_freed_memory
from fedlga.experiments.measures import describe_machine
from fedlga.learning import models

OUT = Path(__file__).parents[1] / "results" / "models"
BATCH, STEPS, WARM_UP, PROFILED = 10, 10, 3, 30
WAYS = {  # name -> what it is
    "fedlga": "channels last, freed memory is kept: as devices train",
    "default layout": "weights and images in torch's default order",
    "fused": "GroupNorm and the ReLU after it compiled into one pass, forward and backward",
    "compiled": "loss and gradients compiled as one graph (`compile=on`)",
    "AVX2": "oneDNN held to AVX2 (`ONEDNN_MAX_CPU_ISA`)",
    "bfloat16 products": "oneDNN may round inside of convolutions (`fp32_precision`)",
    "autocast": "under `torch.autocast` to bfloat16",
}
ENVIRONMENT = {"AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
Step = Callable[[], Any]


def make_step(way: str) -> Step:
    """Return a function that computes loss and gradients of a batch."""
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    model = models.resnet20((3, 32, 32), 10)
    if way != "default layout":
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    if way == "fused":
        fuse(model)
    if way == "bfloat16 products":
        torch.backends.mkldnn.conv.fp32_precision = "bf16"  # pyright: ignore[reportAttributeAccessIssue]
    if way == "compiled":
        return compile_step(model, images, labels)
    parameters = list(model.parameters())

    def step() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            outputs = model(images)
        loss = functional.cross_entropy(outputs.float(), labels)
        return torch.autograd.grad(loss, parameters)

    return step


def fuse(model: nn.Module) -> None:
    """Let every GroupNorm that a ReLU follows compute both at once, by compiled code."""
    both = torch.compile(
        lambda x, weight, bias: torch.relu(functional.group_norm(x, 2, weight, bias)),
        dynamic=False,
        options={"cpp.threads": 1},
    )
    for block in model.modules():
        if isinstance(block, models.Block):
            vars(block)["forward"] = lambda x, b=block: run_fused(b, x, both)


def run_fused(block: models.Block, x: torch.Tensor, both: Any) -> torch.Tensor:
    """Compute a block with the fused function in its middle."""
    y = block.norm_second(block.second(both(block.first(x), block.norm_first.weight, block.norm_first.bias)))
    if block.extra:
        x = functional.pad(x[:, :, :: block.stride, :: block.stride], (0, 0, 0, 0, 0, block.extra))
    return torch.relu(x + y)


def compile_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Step:
    """Return the step that fedlga uses with compile=on."""
    from fedlga.learning.compiled_step import CompiledStep
    from fedlga.learning.flat_model import FlatModel

    step = CompiledStep(FlatModel(model, functional.cross_entropy), (images, labels))
    return lambda: step.compute(images, labels)


def serve(way: str) -> None:
    """Compute a block of steps for each line of the input, and answer with milliseconds a step."""
    keep_freed_memory()
    torch.set_num_threads(1)
    step = make_step(way)
    for _ in range(WARM_UP):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        for _ in range(STEPS):
            step()
        print(1000 * (time.process_time() - began) / STEPS, flush=True)


def measure(repetitions: int) -> list[dict[str, Any]]:
    """Return milliseconds of each way, and how many times as fast as fedlga's own it is."""
    with ExitStack() as stack:
        children = {way: stack.enter_context(start(way)) for way in WAYS}
        for child in children.values():
            if read(child) != "ready":
                raise SystemExit("a process ended before its first step")
        turns = [{way: ask(child) for way, child in children.items()} for _ in range(repetitions)]
        for child in children.values():
            assert child.stdin is not None
            child.stdin.close()
    rows: list[dict[str, Any]] = []
    for way, meaning in WAYS.items():
        ratios = [turn["fedlga"] / turn[way] for turn in turns]
        rows.append(
            {
                "way": way,
                "meaning": meaning,
                "milliseconds": round(statistics.median(turn[way] for turn in turns), 2),
                "ratio": round(statistics.median(ratios), 3),
                "low": round(min(ratios), 3),
                "high": round(max(ratios), 3),
            }
        )
    return rows


def start(way: str) -> subprocess.Popen[str]:
    """Start the process of one way."""
    command = [sys.executable, __file__, "--serve", way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **ENVIRONMENT.get(way, {})}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603


def read(child: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def ask(child: subprocess.Popen[str]) -> float:
    """Let a process compute a block of steps; return its milliseconds a step."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return float(read(child))


def profile() -> list[dict[str, Any]]:
    """Return fedlga's step by operation: milliseconds and share, the largest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    torch.set_num_threads(1)
    step = make_step("fedlga")
    for _ in range(WARM_UP):
        step()
    with record(activities=[ProfilerActivity.CPU]) as result:
        for _ in range(PROFILED):
            step()
    events = [(e.key, e.self_cpu_time_total / PROFILED / 1000, e.count / PROFILED) for e in result.key_averages()]
    total = sum(milliseconds for _, milliseconds, _ in events)
    return [
        {"operation": key, "calls": round(calls), "milliseconds": round(ms, 2), "share": round(ms / total, 4)}
        for key, ms, calls in sorted(events, key=lambda event: -event[1])
        if ms >= 0.01 * total
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--serve", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    parts, ways = profile(), measure(arguments.repetitions)
    for rows, name in ((ways, "resnet20"), (parts, "resnet20-parts")):
        write_atomically(arguments.out / f"{name}.csv", format_csv(rows))
    for row in ways:
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        print(f"{row['way']:<18} {row['milliseconds']:7.2f} ms  {ratio}")
    for row in parts:
        print(f"{row['operation']:<45} {row['milliseconds']:7.2f} ms {row['share']:6.1%}")
    print(describe_machine())


if __name__ == "__main__":
    main()
