"""The paper's Eq. 5 and 6 in training, under every reading of g that we could think of.

    .venv/bin/python benchmarks/printed.py --out results/printed/printed.csv    # half an hour on one core
    .venv/bin/python benchmarks/printed.py --self-check

Eq. 5 approximates the full update of a straggler by delta + G d, with d = w_hat - w_i: from where the device stopped,
w_i, to where the complete devices of the round ended on average, w_hat. Eq. 6 takes G = g g^T for the Hessian, so the
added term is g (g . d). The paper leaves open what g is:

- Eq. 6 writes the gradient of F_i at w_i. A device sends only delta and tau (Algorithm 1), so the aggregator cannot
  compute this gradient. What it can compute is the mean gradient -delta / (eta_l E_i), if it knows eta_l; its list of
  inputs in Algorithm 2 has no eta_l, so g may also be the mean step delta / E_i, or delta itself.
- The text under Eq. 4 calls (Delta_E - delta) / (E - E_i) "the averaged gradient". As written this is a step: eta_l
  times a gradient. We try it as written (`remaining-step`) and divided by eta_l (`remaining-gradient`). Both need
  Delta_E, which is what is looked for, so both are oracles. The sign of g does not matter in g g^T.
- The text has Delta = w - w_E, Algorithm 1 has delta = w_E - w. With the text's sign, adding G d to Delta is
  subtracting it from delta. Readings that end in `-minus` do that.

What the Taylor expansion of SGD gives. A straggler has m = E - E_i steps left, so by Eq. 2

    Delta_E - delta = -eta_l (sum over k = 0 .. m-1 of grad F(w_{i+k})),
    grad F(w_{i+k}) ~ grad F(w_i) + H (w_{i+k} - w_i).

On a straight path to its end, w_{i+k} - w_i = (k / m) d. The mean of k / m over the m steps is (m - 1) / (2 m), hence

    Delta_E - delta ~ -eta_l m (grad F(w_i) + (m - 1) / (2 m) H d)                                          (`taylor`).

Eq. 5 has the term H d but without -eta_l m, and it has no grad F(w_i), which is the larger term. With d = -eta_l m grad
F(w_i), which is where the device itself would go (`taylor-own`), the formula is exact on a quadratic for m <= 2.

`times-30` is a control that has nothing of Eq. 5 and 6 but the length: with the text's sign and g = the mean gradient,
the formula multiplies a straggler's update by about 30 at the preset's rate.

`fitted-...` is alpha times the printed term. alpha is the least-squares fit to Delta_E - delta over all stragglers of
the run up to and including this round: it keeps the formula's direction and fixes its units. It is an oracle too.

The setting is the preset `paper` (Fashion-MNIST, half of the selected devices slow). Runs are cut to keep them short:
150 rounds at the preset's rate, 45 at 0.01 and 0.1, evaluated every third round. At 30 times the preset's rate only
`keep` and `wait` were run, as another control of length: 150 rounds. F_i at w_i, its gradient and products
with its Hessian are computed on 200 of the device's 1,200 examples, drawn anew for every straggler. In a round without
a complete device w_hat does not exist, and updates are used as sent. No reading but `feedback` limits lengths.

Columns: `accuracy` is the mean of the last 10 evaluations, empty if the weights stopped being finite, which they did in
round `not_finite`. `error` is Eq. 3's: |Delta_E - approximation| summed over all stragglers of the run, divided by the
same sum for the updates as sent. `error_kept` is the same on the updates of every third round of the run with `keep`:
all readings are judged on the same updates. A row is written when its run is done. A run with a row is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import torch
from torch import nn

from fedlga.core.aggregation.mean import mean_of
from fedlga.core.backend import Backend, Scores
from fedlga.core.completion.digest import DigestReader
from fedlga.core.files import format_csv, write_atomically
from fedlga.core.method import WeightedVector
from fedlga.core.policies.complete import Complete
from fedlga.core.round import run_rounds
from fedlga.core.types import Assignment, Local, Record, ServerState, Update
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import load_data, simulate
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.training import Devices

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector
    from fedlga.learning.reading import TaskData

PRESET_RATE = 0.00075
CONTROL_RATE = 0.0225  # 30 times the preset's
ROUNDS = {PRESET_RATE: 150, 0.01: 45, 0.1: 45, CONTROL_RATE: 150}  # of each rate
CONTROLS = ("keep", "wait")  # what is run at the control rate
SEEDS = (0, 1, 2)
EVALUATE_EVERY = 3
MEASURE_EVERY = 3  # rounds between those in which `keep` measures the other readings, which takes most of its time
LAST = 10  # evaluations that make the accuracy at the end
SAMPLE = 200  # examples of a device for its gradient and products with its Hessian
SAMPLE_STREAM = 1000  # no stream of core/randomness.py


# A straggler, and what each reading adds to its update


class Loss(Protocol):
    """The loss of one device, F_i."""

    def gradient(self, w: Vector) -> Vector:
        """Return its gradient at w."""
        ...

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return its Hessian at w times v."""
        ...


@dataclass(frozen=True)
class DeviceLoss:
    """The loss of a model on some examples."""

    model: FlatModel
    images: torch.Tensor
    labels: torch.Tensor

    def gradient(self, w: Vector) -> Vector:
        """Return its gradient at w."""
        return _flatten(torch.autograd.grad(self._loss(w), self.model.parameters))

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return its Hessian at w times v: the gradient of (gradient . v)."""
        pieces = torch.autograd.grad(self._loss(w), self.model.parameters, create_graph=True)
        sizes = [p.numel() for p in pieces]
        along = [part.view_as(p) for part, p in zip(v.split(sizes), pieces, strict=True)]
        return _flatten(torch.autograd.grad(pieces, self.model.parameters, along))

    def _loss(self, w: Vector) -> torch.Tensor:
        self.model.vector.copy_(w)
        return self.model.criterion(self.model.module(self.images), self.labels)


def _flatten(pieces: Iterable[torch.Tensor]) -> Vector:
    return torch.cat([p.reshape(-1) for p in pieces])


@dataclass
class Straggler:
    """An unfinished update, the truth, and what a reading may ask for. Vectors are computed once, on demand."""

    update: Update
    truth: Vector  # Delta_E
    w: Vector  # what the device started from
    expected: Vector  # w_hat - w: the mean update of the complete devices
    loss: Loss
    delta_before: Callable[[], Vector]  # the update without its last step

    @property
    def lr(self) -> float:
        """eta_l."""
        return self.update.lr

    @property
    def delta(self) -> Vector:
        """The update as sent."""
        return self.update.delta

    @property
    def left(self) -> int:
        """m = E - E_i, the steps that were not done."""
        return self.update.steps_asked - self.update.steps

    @property
    def missing(self) -> Vector:
        """Delta_E - delta."""
        return self.truth - self.delta

    @property
    def distance(self) -> Vector:
        """d = w_hat - w_i."""
        return self.expected - self.delta

    @property
    def mean_gradient(self) -> Vector:
        """-delta / (eta_l E_i): all that the aggregator knows of the gradient."""
        return self.delta / (-self.lr * self.update.steps)

    @cached_property
    def last_gradient(self) -> Vector:
        """The gradient of the device's last step."""
        return (self.delta_before() - self.delta) / self.lr

    @cached_property
    def gradient(self) -> Vector:
        """Grad F_i(w_i)."""
        return self.loss.gradient(self.w + self.delta)

    @cached_property
    def hessian_missing(self) -> Vector:
        """H (Delta_E - delta)."""
        return self.hessian_product(self.missing)

    @cached_property
    def hessian_distance(self) -> Vector:
        """H d."""
        return self.hessian_product(self.distance)

    def hessian_product(self, v: Vector) -> Vector:
        """Return the Hessian of F_i at w_i times v."""
        return self.loss.hessian_product(self.w + self.delta, v)


def outer(g: Vector, d: Vector) -> Vector:
    """Return g g^T d."""
    return g * torch.dot(g, d)


def taylor(s: Straggler, hessian_distance: Vector) -> Vector:
    """Return -eta_l m (grad + (m - 1) / (2 m) H d): see the top of this file."""
    return -s.lr * s.left * (s.gradient + (s.left - 1) / (2 * s.left) * hessian_distance)


@dataclass(frozen=True)
class Reading:
    """One way to approximate the full update of a straggler: delta + `term`, or delta + alpha `term` if fitted."""

    definition: str
    needs: str  # what it needs beyond delta, tau and eta_l
    term: Callable[[Straggler], Vector]
    fitted: bool = False


POLICY = "feedback"  # the scale of the policy `complete`: no formula for one straggler, so it has no term
READINGS: dict[str, Reading] = {
    "keep": Reading("delta as sent", "", lambda s: torch.zeros_like(s.delta)),
    "wait": Reading("Delta_E: every device finishes", "truth", lambda s: s.missing),
    "linear": Reading("(E / E_i) delta", "", lambda s: s.delta * (s.left / s.update.steps)),
    POLICY: Reading("(E / E_i)^q delta, q learned: this project's FedLGA", "", lambda s: torch.zeros_like(s.delta)),
    "times-30": Reading("30 delta", "", lambda s: 29 * s.delta),
}
_PRINTED: dict[str, Reading] = {
    "mean-gradient": Reading(
        "delta + g g^T d, g = -delta / (eta_l E_i)", "", lambda s: outer(s.mean_gradient, s.distance)
    ),
    "mean-step": Reading("delta + g g^T d, g = delta / E_i", "", lambda s: outer(s.delta / s.update.steps, s.distance)),
    "update": Reading("delta + g g^T d, g = delta", "", lambda s: outer(s.delta, s.distance)),
    "remaining-step": Reading(
        "delta + g g^T d, g = (Delta_E - delta) / (E - E_i)", "truth", lambda s: outer(s.missing / s.left, s.distance)
    ),
    "remaining-gradient": Reading(
        "delta + g g^T d, g = (Delta_E - delta) / (eta_l (E - E_i))",
        "truth",
        lambda s: outer(s.missing / (s.lr * s.left), s.distance),
    ),
    "last-gradient": Reading(
        "delta + g g^T d, g = the gradient of the device's last step",
        "device",
        lambda s: outer(s.last_gradient, s.distance),
    ),
    "full-gradient": Reading("delta + g g^T d, g = grad F_i(w_i)", "device", lambda s: outer(s.gradient, s.distance)),
    "hessian": Reading("delta + H d, H = the Hessian of F_i at w_i", "device", lambda s: s.hessian_distance),
    "hessian-true-distance": Reading(
        "delta + H (w_E - w_i): Eq. 4 without its remainder", "truth", lambda s: s.hessian_missing
    ),
}
_WITHOUT_MINUS = ("mean-step",)  # so short that its sign does not matter


def _negate(reading: Reading) -> Reading:
    return replace(
        reading, definition=reading.definition.replace("delta + ", "delta - ", 1), term=lambda s: -reading.term(s)
    )


def _fit(reading: Reading) -> Reading:
    return replace(
        reading, definition=reading.definition.replace("delta + ", "delta + alpha ", 1), needs="truth", fitted=True
    )


READINGS |= _PRINTED
for _name in [n for n in _PRINTED if n not in _WITHOUT_MINUS]:
    READINGS[f"{_name}-minus"] = _negate(_PRINTED[_name])
for _name in ("mean-gradient", "full-gradient", "remaining-gradient", "hessian"):
    READINGS[f"fitted-{_name}"] = _fit(_PRINTED[_name])
READINGS |= {
    "hessian-rate": Reading("delta - eta_l m H d", "device", lambda s: -s.lr * s.left * s.hessian_distance),
    "gradient-only": Reading("delta - eta_l m grad F_i(w_i)", "device", lambda s: -s.lr * s.left * s.gradient),
    "taylor": Reading(
        "delta - eta_l m (grad F_i(w_i) + (m - 1) / (2 m) H d)", "device", lambda s: taylor(s, s.hessian_distance)
    ),
    "taylor-own": Reading(
        "the same with d = -eta_l m grad F_i(w_i)",
        "device",
        lambda s: taylor(s, s.hessian_product(-s.lr * s.left * s.gradient)),
    ),
}


# From a round's updates to approximations


class Approximator(Protocol):
    """Approximates the stragglers of one round after the other."""

    def approximate(self, updates: Sequence[Update], stragglers: Sequence[Straggler]) -> list[Vector]:
        """Return an approximation of each straggler's full update."""
        ...


@dataclass
class ReadingApproximator:
    """Applies a reading. It keeps the sums from which alpha is fitted."""

    reading: Reading
    along: float = 0.0  # sum of term . (Delta_E - delta)
    square: float = 0.0  # sum of |term|^2

    def approximate(self, updates: Sequence[Update], stragglers: Sequence[Straggler]) -> list[Vector]:
        """Return an approximation of each straggler's full update."""
        terms = [self.reading.term(s) for s in stragglers]
        alpha = 1.0
        if self.reading.fitted:
            for s, term in zip(stragglers, terms, strict=True):
                self.along += float(torch.dot(term, s.missing))
                self.square += float(torch.dot(term, term))
            alpha = self.along / self.square if self.square > 0 else 0.0
        return [s.delta + alpha * term for s, term in zip(stragglers, terms, strict=True)]


@dataclass
class PolicyApproximator:
    """Applies the policy `complete`, with a memory of its own."""

    policy: Complete
    state: ServerState = field(default_factory=lambda: ServerState(0, torch.empty(0)))

    def approximate(self, updates: Sequence[Update], stragglers: Sequence[Straggler]) -> list[Vector]:
        """Return an approximation of each straggler's full update."""
        with DigestReader(sketches=self.policy.needs_sketches) as reader:
            for u in updates:
                reader.add(u.device, u.delta)
            decision = self.policy.decide(self.state, updates, reader.result())
        self.state = replace(self.state, memory={**self.state.memory, **decision.memory})
        return [s.delta * decision.treatments[s.update.device].scale for s in stragglers]


def make_approximator(name: str) -> Approximator:
    """Return what a reading's name stands for."""
    return PolicyApproximator(Complete(scale=POLICY)) if name == POLICY else ReadingApproximator(READINGS[name])


@dataclass
class ErrorSum:
    """Eq. 3: the distances of approximations and of updates as sent from the truth, each summed over stragglers."""

    approximated: float = 0.0
    sent: float = 0.0

    def add(self, s: Straggler, approximation: Vector) -> None:
        """Add a straggler. One whose distances are not finite is left out."""
        approximated, sent = float((s.truth - approximation).norm()), float(s.missing.norm())
        if math.isfinite(approximated) and math.isfinite(sent):
            self.approximated += approximated
            self.sent += sent

    @property
    def ratio(self) -> float | None:
        """1 is what doing nothing gives, 0 is the truth."""
        return self.approximated / self.sent if self.sent > 0 else None


@final
class ApproximatingBackend(Backend):
    """Runs devices on another backend, and puts approximations in the place of unfinished updates.

    `used` is the reading that trains. The errors of all `measured` readings are summed on the updates of every third
    round of it.
    """

    def __init__(self, inner: Backend, devices: Devices, used: str, measured: Sequence[str]) -> None:
        self._inner, self._devices, self._used = inner, devices, used
        self._approximators = {name: make_approximator(name) for name in {used: None, **dict.fromkeys(measured)}}
        self.errors = {name: ErrorSum() for name in self._approximators}

    def present(self) -> Sequence[int]:  # noqa: D102
        return self._inner.present()

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:  # noqa: D102
        audited = [replace(a, audit=True) for a in assignments]
        updates = list(self._inner.run(audited))
        stragglers = self._stragglers(audited, updates)
        replaced: dict[int, Vector] = {}
        for name, approximator in self._approximators.items():
            measured = name == self._used or not (audited and audited[0].round % MEASURE_EVERY)
            if not measured and name != POLICY:  # which learns from every round
                continue
            approximations = approximator.approximate(updates, stragglers)
            for s, approximation in zip(stragglers, approximations, strict=True):
                if measured:
                    self.errors[name].add(s, approximation)
                if name == self._used:
                    replaced[s.update.device] = approximation
        for u in updates:
            new = replaced.get(u.device)
            yield replace(u, truth=None) if new is None else replace(u, delta=new, steps=u.steps_asked, truth=None)

    def _stragglers(self, assignments: Sequence[Assignment], updates: Sequence[Update]) -> list[Straggler]:
        """Return the unfinished updates; none in a round without a complete device, where w_hat does not exist."""
        complete = [u for u in updates if u.finished]
        if not complete:
            return []
        expected = mean_of([WeightedVector(u.delta, 1.0, 1.0) for u in complete])
        pairs = zip(assignments, updates, strict=True)
        return [
            Straggler(u, u.truth, a.w, expected, self._loss(a), self._delta_before(a, u))
            for a, u in pairs
            if u.truth is not None
        ]

    def _loss(self, a: Assignment) -> DeviceLoss:
        """Return the device's loss on a sample of its examples."""
        rng = np.random.default_rng((a.seed, SAMPLE_STREAM, a.round, a.device))
        part = self._devices.parts[a.device]
        rows = torch.from_numpy(rng.choice(part, size=min(SAMPLE, len(part)), replace=False))
        return DeviceLoss(self._devices.model, *self._devices.examples.batch(rows))

    def _delta_before(self, a: Assignment, u: Update) -> Callable[[], Vector]:
        return lambda: self._devices.train(replace(a, steps=u.steps - 1), Local()).delta

    def score(self, w: Vector, buffers: Vector | None) -> Scores:  # noqa: D102
        return self._inner.score(w, buffers)

    def memories(self) -> Iterable[tuple[int, Memory]]:  # noqa: D102
        return self._inner.memories()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:  # noqa: D102
        self._inner.restore(memories)

    def close(self) -> None:  # noqa: D102
        self._inner.close()


# Runs


@dataclass(frozen=True)
class Outcome:
    """What a run gives."""

    w: Vector
    records: list[Record]
    errors: Mapping[str, ErrorSum]


def train(e: Experiment, reading: str, measured: Sequence[str] = (), data: TaskData | None = None) -> Outcome:
    """Train with a reading, and measure the errors of others on the same updates."""
    e = e.changed({"method": "fedavg", "stragglers": "keep", "backend": "serial", "audit": False})
    records: list[Record] = []
    with simulate(e, data=data) as simulation:
        assert simulation.devices is not None
        inner = simulation.federation.backend
        backend = ApproximatingBackend(inner, simulation.devices, reading, measured)
        w = simulation.start.w
        for state, record in run_rounds(replace(simulation.federation, backend=backend), simulation.start, e.rounds):
            w = state.w
            records.append(record)
    return Outcome(w, records, backend.errors)


def summarise(e: Experiment, outcome: Outcome, reading: str) -> dict[str, Any]:
    """Return the numbers of a run's row."""
    records = outcome.records
    evaluated = [(r.round, r.accuracy) for r in records if r.accuracy is not None and not r.diverged]
    diverged = records[-1].diverged
    last = [accuracy for _, accuracy in evaluated[-LAST:]]
    return {
        "rounds": records[-1].round,
        "rounds_to_target": next((number for number, accuracy in evaluated if accuracy >= e.target), None),
        "accuracy": None if diverged else round(statistics.fmean(last), 5),
        "not_finite": records[-1].round if diverged else None,
        "error": _shorten(outcome.errors[reading].ratio),
    }


def _shorten(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


COLUMNS = (
    "reading",
    "definition",
    "needs",
    "lr",
    "seed",
    "rounds",
    "rounds_to_target",
    "accuracy",
    "not_finite",
    "error",
    "error_kept",
)
Key = tuple[str, float, int]  # reading, rate, seed


def read_rows(path: Path) -> dict[Key, dict[str, str]]:
    """Return the rows of a table by reading, rate and seed; none if there is no table yet."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["reading"], float(row["lr"]), int(row["seed"])): row for row in csv.DictReader(file)}


def write_rows(path: Path, rows: Mapping[Key, Mapping[str, Any]]) -> None:
    """Write the rows in the order of rates, readings and seeds."""
    order = {name: i for i, name in enumerate(READINGS)}
    keys = sorted(rows, key=lambda key: (key[1], order[key[0]], key[2]))
    write_atomically(path, format_csv([{name: rows[key].get(name, "") for name in COLUMNS} for key in keys]))


def run_all(path: Path, readings: Sequence[str], rates: Sequence[float]) -> None:
    """Run what the table does not have yet. `keep` goes first: it measures the errors of all readings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[Key, dict[str, Any]] = dict(read_rows(path))
    data = load_data(preset("paper"))
    for lr in rates:
        wanted = [name for name in readings if lr != CONTROL_RATE or name in CONTROLS]
        for name in dict.fromkeys(["keep", *wanted]):
            for seed in SEEDS:
                others = wanted if name == "keep" else []
                unmeasured = [r for r in others if not _has(rows, (r, lr, seed), "error_kept")]
                if _has(rows, (name, lr, seed), "rounds") and not unmeasured:
                    continue
                started = time.perf_counter()
                changes = {"lr": lr, "seed": seed, "rounds": ROUNDS[lr], "evaluate_every": EVALUATE_EVERY}
                e = preset("paper").changed(changes)
                outcome = train(e, name, unmeasured, data)
                for other in dict.fromkeys([name, *unmeasured]):
                    row = rows.setdefault((other, lr, seed), {})
                    row |= {"reading": other, "lr": lr, "seed": seed}
                    row |= {"definition": READINGS[other].definition, "needs": READINGS[other].needs}
                    if name == "keep":
                        row["error_kept"] = _shorten(outcome.errors[other].ratio)
                rows[name, lr, seed] |= summarise(e, outcome, name)
                write_rows(path, rows)
                seconds = time.perf_counter() - started
                shown = {n: rows[name, lr, seed][n] for n in ("rounds_to_target", "accuracy", "not_finite", "error")}
                print(f"{name} {lr} {seed}: {shown} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _has(rows: Mapping[Key, Mapping[str, Any]], key: Key, column: str) -> bool:
    return rows.get(key, {}).get(column) not in (None, "")


# Checks by hand


def check() -> None:
    """Check every reading on a quadratic of two parameters, worked out by hand, and the backend against policies."""
    check_quadratic()
    check_policies()
    print("all readings agree with the numbers worked out by hand, and the backend with the policies")


def check_quadratic() -> None:
    """F(w) = w^T A w / 2 with A = [[2, 1], [1, 3]], eta_l = 0.1, from w = (1, -1); E = 4 steps, 2 of them done.

        step  gradient A w      w after it
        1     (1, -2)           (0.9, -0.8)
        2     (1, -1.5)         (0.8, -0.65)         delta   = (-0.2, 0.35)
        3     (0.95, -1.15)     (0.705, -0.535)
        4     (0.875, -0.9)     (0.6175, -0.445)     Delta_E = (-0.3825, 0.555)

    So Delta_E - delta = (-0.1825, 0.205), m = 2, and grad F(w_i) = (0.95, -1.15). With w_hat - w = (-0.4, 0.65), d is
    (-0.2, 0.3). For example g = -delta / (0.1 * 2) = (1, -1.75), g . d = -0.725, and the term is -0.725 g.
    """
    s = _quadratic_straggler()
    by_hand = {
        "keep": (0, 0),
        "wait": (-0.1825, 0.205),
        "linear": (-0.2, 0.35),
        "times-30": (-5.8, 10.15),
        "mean-gradient": (-0.725, 1.26875),  # -0.725 (1, -1.75)
        "mean-step": (-0.00725, 0.0126875),  # 0.0725 (-0.1, 0.175)
        "update": (-0.029, 0.05075),  # 0.145 (-0.2, 0.35)
        "remaining-step": (-0.00447125, 0.0050225),  # 0.049 (-0.09125, 0.1025)
        "remaining-gradient": (-0.447125, 0.50225),  # -0.49 (0.9125, -1.025)
        "last-gradient": (-0.65, 0.975),  # -0.65 (1, -1.5)
        "full-gradient": (-0.50825, 0.61525),  # -0.535 (0.95, -1.15)
        "hessian": (-0.1, 0.7),  # A (-0.2, 0.3)
        "hessian-true-distance": (-0.16, 0.4325),  # A (-0.1825, 0.205)
        "hessian-rate": (0.02, -0.14),  # -0.2 (-0.1, 0.7)
        "gradient-only": (-0.19, 0.23),  # -0.2 (0.95, -1.15)
        "taylor": (-0.185, 0.195),  # -0.2 ((0.95, -1.15) + (-0.1, 0.7) / 4)
        "taylor-own": (-0.1825, 0.205),  # exact: -0.2 ((0.95, -1.15) + A (-0.19, 0.23) / 4)
    }
    for name in _PRINTED:
        if f"{name}-minus" in READINGS:
            by_hand[f"{name}-minus"] = tuple(-value for value in by_hand[name])
        if f"fitted-{name}" in READINGS:  # the projection of (-0.1825, 0.205) on the term
            term, missing = by_hand[name], by_hand["wait"]
            alpha = (term[0] * missing[0] + term[1] * missing[1]) / (term[0] ** 2 + term[1] ** 2)
            by_hand[f"fitted-{name}"] = (alpha * term[0], alpha * term[1])
    assert set(by_hand) == set(READINGS) - {POLICY}
    for name, term in by_hand.items():
        approximation = make_approximator(name).approximate([s.update], [s])[0]
        gap = (approximation - s.delta - torch.tensor(term)).abs().max()
        assert gap < 2e-6, f"{name}: got {approximation - s.delta}, by hand {term}"  # noqa: PLR2004


def _quadratic_straggler() -> Straggler:
    """Return the straggler of `check_quadratic`, with gradients from a model: F is half the sum of its squared outputs.

    The rows x of its three examples make A: the sum of x x^T over (1, 1), (1, 0), (0, sqrt 2).
    """
    model = FlatModel(nn.Linear(2, 1, bias=False), lambda outputs, _: outputs.square().sum() / 2)
    images = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, math.sqrt(2.0)]])
    loss = DeviceLoss(model, images, torch.zeros(3))
    w, lr, deltas = torch.tensor([1.0, -1.0]), 0.1, [torch.zeros(2)]
    for _ in range(4):
        deltas.append(deltas[-1] - lr * loss.gradient(w + deltas[-1]))
    update = Update(0, deltas[2], 3, 2, 4, 0.0, {}, lr, 0.0, truth=deltas[4])
    return Straggler(update, deltas[4], w, torch.tensor([-0.4, 0.65]), loss, lambda: deltas[1])


def check_policies() -> None:
    """Readings that are policies too must end with the policies' weights."""
    e = preset("digits").changed({"method": "fedavg", "rounds": 3, "evaluate_every": 3})
    scale = {"stragglers": "complete", "complete.longest": 1e9}
    policies: dict[str, dict[str, Any]] = {
        "keep": {"stragglers": "keep"},
        "wait": {"stragglers": "wait"},
        "linear": {**scale, "complete.scale": "linear"},
        "mean-gradient": {**scale, "complete.scale": "printed"},
        POLICY: {"stragglers": "complete", "complete.scale": POLICY},
    }
    for name, changes in policies.items():
        with simulate(e.changed(changes)) as simulation:
            *_, (state, _) = run_rounds(simulation.federation, simulation.start, e.rounds)
        gap = (train(e, name).w - state.w).norm() / (state.w - simulation.start.w).norm()
        assert gap < 1e-4, f"{name}: {gap:.2g} of the way from what the policy gives"  # noqa: PLR2004


def main() -> None:
    """Run, check or print."""
    parser = argparse.ArgumentParser(description="The paper's Eq. 5 and 6 in training, under every reading of g.")
    parser.add_argument("--out", type=Path, default=Path("results/printed/printed.csv"))
    parser.add_argument("--only", default=",".join(READINGS), help="readings, separated by commas")
    parser.add_argument("--rates", default=",".join(map(str, ROUNDS)), help="rates, separated by commas")
    parser.add_argument("--self-check", action="store_true", help="check every reading on numbers worked out by hand")
    options = parser.parse_args()
    readings = options.only.split(",")
    if unknown := [name for name in readings if name not in READINGS]:
        parser.error(f"--only: got {unknown[0]!r}; it takes {', '.join(READINGS)}")
    rates = [float(text) for text in options.rates.split(",")]
    if unknown := [lr for lr in rates if lr not in ROUNDS]:
        parser.error(f"--rates: got {unknown[0]}; it takes {', '.join(map(str, ROUNDS))}")
    if options.self_check:
        check()
    else:
        run_all(options.out, readings, rates)


if __name__ == "__main__":
    main()
