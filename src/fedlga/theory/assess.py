"""What the theorems say of an experiment: whether its rates satisfy the conditions, which would, and the bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedlga.core.registry import names_of
from fedlga.core.round import Federation, run_rounds
from fedlga.core.schedules.base import find_present, select_devices
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import Simulation, simulate
from fedlga.experiments.statistics import half_interval
from fedlga.learning.objective import Objective
from fedlga.theory.estimates import Estimates, Interval, estimate
from fedlga.theory.theorems import (
    Bound,
    Condition,
    Constants,
    Setting,
    apply_corollary,
    find_best_lr,
    find_bound,
    find_fewest_rounds,
    find_largest_eta_g,
    find_largest_lr,
    list_conditions,
    satisfies_conditions,
)

if TYPE_CHECKING:
    from fedlga.learning.datasets.sources import Progress

DRAWN_ROUNDS = 200  # in which it is counted who is slow; nothing is trained for it
TRIAL_ROUNDS = 5  # trained with an audit, to measure the error of completed updates


@dataclass(frozen=True)
class Stragglers:
    """Who is slow in this experiment, as the theorems count it."""

    rho: float  # share of the devices that send something whose work is unfinished, and counts
    tau_max: int  # tau = steps asked - steps done + 1
    silent: float = 0.0  # share of the drawn devices that send nothing: lost, or not one step done in time


@dataclass(frozen=True)
class Departure:
    """One thing that is not as the theorems assume."""

    line: str
    excludes: bool = False  # another algorithm than the theorems': they say nothing of it, whatever the rates


@dataclass(frozen=True)
class Outcome:
    """What a run really did, in the rounds that recorded it."""

    rounds: int  # of the run
    recorded: int  # rounds that recorded the gradient
    smallest: float  # |grad f|^2; not the one at the start, which is known without a run
    round: int  # in which it was the smallest
    last: float
    objective: float | None  # f after the last recorded round


@dataclass(frozen=True)
class Assessment:
    """What the theorems say of an experiment."""

    experiment: Experiment  # with all that its data decided
    setting: Setting
    constants: Constants
    estimates: Estimates  # at the starting weights
    completion_error: Interval | None  # |true update - completed update|; None: no update is completed
    conditions: Sequence[Condition]
    largest_lr: float  # with the experiment's eta_g
    largest_eta_g: float  # with the experiment's eta_l
    bound: Bound
    corollary: Setting  # with the corollary's rates
    corollary_holds: bool  # whether these satisfy the conditions, in so many rounds
    fewest_rounds: int  # from which on they do
    corollary_bound: Bound
    best_lr: float  # with the experiment's eta_g: the bound is smallest there
    best_bound: Bound
    departures: Sequence[Departure]  # what is not as the theorem assumes

    @property
    def applies(self) -> bool:
        """Whether the experiment's rates satisfy the conditions."""
        return all(condition.holds for condition in self.conditions)

    @property
    def covered(self) -> bool:
        """Whether the theorems are about this algorithm at all."""
        return not any(departure.excludes for departure in self.departures)


def assess(
    experiment: Experiment,
    *,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    lowest: float = 0.0,
) -> Assessment:
    """Measure an experiment's federation at its starting weights, and apply the theorem that fits.

    `lowest` is a value that f cannot fall below. A few rounds are run, in this process, if updates are completed.
    """
    if experiment.fleet == "real":
        raise BadInput("fleet: got 'real'; the theorems need the devices' data, which real devices keep to themselves")
    here = {"backend": "serial", "audit": True, "record": None, "evaluate_every": experiment.rounds, "lr_warmup": 0}
    with simulate(experiment.changed(here), data_dir=data_dir, progress=progress) as simulation:
        e = simulation.experiment.changed({name: getattr(experiment, name) for name in here})
        assert simulation.devices is not None
        objective = Objective.of(simulation.devices, by_examples=e.averaging == "examples")
        start = simulation.start
        estimates = estimate(objective, start.w, start.buffers, batch_size=e.batch_size, seed=e.seed)
        stragglers = count_stragglers(simulation.federation)
        error = measure_completion(simulation) if stragglers.rho else None
    setting = make_setting(e, simulation.federation, stragglers)
    if not estimates.objective.value >= lowest:
        raise BadInput(f"--lowest: got {lowest:g}, and the loss at the start is {estimates.objective.value:.4g}")
    constants = Constants(
        L=estimates.curvature.value,
        sigma_l2=estimates.local_variance.value,
        sigma_g2=estimates.global_variance.value,
        gap=estimates.objective.value - lowest,
        M=0.0 if error is None else find_remainder(error.value, setting, estimates.gradient4.value),
        gradient4=estimates.gradient4.value,
    )
    return apply_theorem(e, setting, constants, estimates, error, list_departures(e, simulation.federation))


def apply_theorem(
    e: Experiment,
    setting: Setting,
    constants: Constants,
    estimates: Estimates,
    error: Interval | None,
    departures: Sequence[Departure],
) -> Assessment:
    """Return what the theorem says with these numbers."""
    corollary, best_lr = apply_corollary(setting, constants.L), find_best_lr(setting, constants)
    # At other rates completed updates are wrong by another amount: M is taken to stay the same, as the theorem does.
    return Assessment(
        experiment=e,
        setting=setting,
        constants=constants,
        estimates=estimates,
        completion_error=error,
        conditions=list_conditions(setting, constants.L),
        largest_lr=find_largest_lr(setting, constants.L),
        largest_eta_g=find_largest_eta_g(setting, constants.L),
        bound=_promise(setting, constants),
        corollary=corollary,
        corollary_holds=satisfies_conditions(corollary, constants.L),
        fewest_rounds=find_fewest_rounds(setting),
        corollary_bound=_promise(corollary, constants),
        best_lr=best_lr,
        best_bound=_promise(replace(setting, eta_l=best_lr), constants),
        departures=departures,
    )


def _promise(s: Setting, k: Constants) -> Bound:
    """Return the theorem's bound; infinite if the rates do not satisfy its conditions."""
    return find_bound(s, k) if satisfies_conditions(s, k.L) else Bound(*[math.inf] * 4)


def make_setting(e: Experiment, federation: Federation, stragglers: Stragglers) -> Setting:
    """Return an experiment as the theorems see it. E counts SGD steps: those of the device with the most work."""
    eta_g = e.settings("optimizer").get("eta_g", 1.0) if e.server_optimizer == "sgd" else 1.0
    everyone = e.cohort >= e.devices and not federation.replacement
    return Setting(
        N=e.devices,
        K=None if everyone else e.cohort,
        E=max(federation.fleet.workload.steps),
        T=e.rounds,
        rho=stragglers.rho,
        tau_max=stragglers.tau_max,
        eta_l=e.lr,
        eta_g=eta_g,
    )


def count_stragglers(federation: Federation) -> Stragglers:
    """Return how many send unfinished work that counts, and how much is missing, over many drawn rounds."""
    if federation.policy.waits or not federation.policy.uses_unfinished:
        return Stragglers(0.0, 1)
    return count_slow(federation)


def count_slow(federation: Federation) -> Stragglers:
    """Return how many do not finish in time, whatever becomes of their work."""
    f, drawn, sent, unfinished, missing = federation, 0, 0, 0, 0
    for round in range(DRAWN_ROUNDS):
        present, _ = find_present(f, 0.0)
        selected = select_devices(f, round, present, f.cohort)
        for effort in f.fleet.draw(round, list(selected)):
            drawn += 1
            if not effort.lost and (effort.steps or f.policy.waits):
                sent += 1
                if effort.slow:
                    unfinished += 1
                    missing = max(missing, effort.steps_asked - effort.steps)
    return Stragglers(unfinished / sent if sent else 0.0, missing + 1, 1 - sent / drawn if drawn else 0.0)


def measure_completion(simulation: Simulation) -> Interval | None:
    """Return the root mean square of |true update - completed update| in the first rounds; None if nobody was slow.

    The bound has the square of these errors, whose mean is above the square of their mean.
    """
    rounds = min(TRIAL_ROUNDS, simulation.experiment.rounds)
    audits = [r.audit for _, r in run_rounds(simulation.federation, simulation.start, rounds) if r.audit]
    sums = [(a["completed_squares"], a["stragglers"]) for a in audits if math.isfinite(a["completed_squares"])]
    completed = sum(number for _, number in sums)
    if not completed:
        return None
    squares = [square * len(sums) / completed for square, _ in sums]  # their mean is that over all completed updates
    mean, half = statistics.fmean(squares), half_interval(squares) or 0.0
    return Interval(mean, max(0.0, mean - half), mean + half).root()


def find_remainder(error: float, s: Setting, gradient4: float) -> float:
    """Return the M with which Lemma 1 is an equality: error = M eta_l^2 tau_max^2 |grad F_i|^2."""
    scale = s.eta_l**2 * s.tau_max**2 * math.sqrt(gradient4)
    return error / scale if scale > 0 else 0.0


def list_departures(e: Experiment, federation: Federation) -> list[Departure]:
    """Return what is not as the theorems assume. First what makes it another algorithm than theirs."""
    steps = federation.fleet.workload.steps
    if e.policy == "drop":
        stragglers = "unfinished work is dropped, not completed: then fewer devices take part in a round than K"
    else:
        stragglers = "unfinished work is averaged as it came: nothing bounds what is missing but its measured size"
    slow, waits = count_slow(federation), federation.policy.waits
    late = slow.rho > 0 and not waits
    others = {
        f"method {e.method}: the theorems are about averaging (fedavg, fedlga)": e.method not in ("fedavg", "fedlga"),
        f"server optimiser {e.server_optimizer}: the theorems are about sgd; eta_g = 1 is assumed": (
            e.server_optimizer != "sgd"
        ),
        f"policy {e.policy}: the theorems are about updates that are finished or completed": e.policy
        not in names_of("policy"),
        f"aggregation rule {e.aggregation}: the theorems are about the mean": e.aggregation != "mean",
        f"schedule {e.schedule}: the theorems are about rounds": e.schedule != "rounds",
        "devices train with momentum, AdamW or clipped gradients, and not with plain SGD": bool(
            e.momentum or e.clip or e.local_optimizer != "sgd"
        ),
        "every device keeps a BatchNorm of its own: there is no joint model, whose loss f is": e.batch_norm == "device",
    }
    lines = {
        "devices are drawn without replacement; Theorem 2 draws with": (
            not federation.replacement and e.cohort < e.devices
        ),
        "a device that is drawn twice works once and counts twice; Theorem 2 has it draw other batches": (
            federation.replacement and e.cohort > 1
        ),
        stragglers: late and e.policy in ("drop", "keep"),
        "the same devices are slow in every round; Lemma 2, on which the proofs rest, draws them anew": (
            late and bool(federation.fleet.always_slow())
        ),
        f"devices are asked for {min(steps)} to {max(steps)} steps; E is the most": min(steps) != max(steps),
        "averaging is by examples; the theorems weigh all devices alike": e.averaging == "examples",
        f"eta_l changes over the rounds ({e.lr_schedule}); its first value is used": e.lr_schedule != "constant",
        f"eta_l grows in the first {e.lr_warmup} rounds; what it grows to is used": e.lr_warmup > 0,
        "training augments images; what is measured is the loss without it": e.augment,
        "some devices send nothing": slow.silent > 0,
        "devices are there at some times only; the theorems draw from all of them": (
            federation.fleet.present(0.0) is not None
        ),
    }
    return [
        *(Departure(line, excludes=True) for line, holds in others.items() if holds),
        *(Departure(line) for line, holds in lines.items() if holds),
    ]


def summarise_gradients(records: Sequence[Record]) -> Outcome | None:
    """Return what a run did to the gradient; None if it did not record it."""
    known = [(r.squared_gradient, r) for r in records if r.squared_gradient is not None]
    if not known:
        return None
    smallest, at = min(known, key=lambda pair: pair[0])
    last = known[-1][1]
    return Outcome(len(records), len(known), smallest, at.round, known[-1][0], last.train_objective)


def shorten(assessment: Assessment, rounds: int) -> Assessment:
    """Return the assessment for a run of so many rounds: one that was stopped, or went on."""
    a = assessment
    if rounds in (0, a.setting.T):
        return a
    return apply_theorem(
        a.experiment, replace(a.setting, T=rounds), a.constants, a.estimates, a.completion_error, a.departures
    )
