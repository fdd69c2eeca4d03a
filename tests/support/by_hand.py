"""One round of each method, and a second for those with memory, worked out by hand on two-parameter quadratics.

The stage, unless a check says otherwise. Device i holds F_i(w) = 1/2 |w - b_i|^2, so its gradient is w - b_i, and with
eta_l = 1/2 every step halves the distance to b_i. Four devices, of which only A and B report (the others send nothing):

    b_A = (4, 0), b_B = (0, 4), w = (0, 0), E = 2 steps asked, A does 1, B does 2.

    A: (0,0) -> (2,0)           delta_A = (2, 0)
    B: (0,0) -> (0,2) -> (0,3)  delta_B = (0, 3)

These are functions, not tests, because test_mistakes.py runs them on methods with a mistake put in.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from federations import close, play, quadratics
from fedlga.experiment import preset
from fedlga.federation import rounds
from fedlga.methods import METHODS
from fedlga.methods.base import Method
from fedlga.simulation import simulate
from fedlga.types import Task

STAGE: dict[str, Any] = {
    "centres": [(4.0, 0.0), (0.0, 4.0), (9.0, 9.0), (-9.0, 9.0)],
    "script": [[1, 2, 0, 0]],
    "asked": 2,
    "lr": 0.5,
}


def stage(method: Method, **changes: Any) -> Any:
    return quadratics(method, **{**STAGE, **changes})


def fedavg(cls: type[Method]) -> None:
    # mean = (1, 1.5); eta_g = 1 then 2
    close(play(*stage(cls()), 1)[0].w, [1.0, 1.5])
    close(play(*stage(cls(eta_g=2.0)), 1)[0].w, [2.0, 3.0])


def fedavg_by_examples(cls: type[Method]) -> None:
    # A holds 1 example, B holds 3 (the silent ones 5 each): p = 1/4, 3/4 of those that reported: (2/4, 9/4)
    close(play(*stage(cls(), copies=[1, 3, 5, 5], by_examples=True), 1)[0].w, [0.5, 2.25])


def fedprox(cls: type[Method]) -> None:
    # mu = 1 adds w_local - w_sent. A: gradient -4 + 0, to 2. B: -4 + 0, to 2; then (2 - 4) + (2 - 0) = 0, stays at 2.
    # Mean (1, 1). Without the term's gradient B would reach 3.
    close(play(*stage(cls(mu=1.0)), 1)[0].w, [1.0, 1.0])


def fednova(cls: type[Method]) -> None:
    # a_A = 1, a_B = 2, p = 1/2 each: tau_eff = 1.5; sum p delta / a = (1, 0.75); w = 1.5 (1, 0.75).
    close(play(*stage(cls()), 1)[0].w, [1.5, 1.125])


def fednova_by_examples(cls: type[Method]) -> None:
    # p = 1/4, 3/4 of those that reported: tau_eff = 1/4 + 6/4 = 7/4; sum p delta / a = (1/2, 9/8); w = (7/8, 63/32)
    close(play(*stage(cls(), copies=[1, 3, 5, 5], by_examples=True), 1)[0].w, [0.875, 1.96875])


def fednova_momentum(cls: type[Method]) -> None:
    # m = 1/2. A: one step, delta (2, 0), a = 1.
    # B: v = -4, to 2; v = -2 + (2 - 4) = -4, to 4: delta (0, 4); a: c = 1, a = 1; c = 1.5, a = 2.5.
    # tau_eff = 1.75; sum p delta / a = (1, 0.8); w = (1.75, 1.4).
    close(play(*stage(cls(), momentum=0.5), 1)[0].w, [1.75, 1.4])


def fednova_proximal(cls: type[Method]) -> None:
    # mu = 1, eta_l = 1/2: as FedProx, delta (2, 0) and (0, 2); a_A = 1, a_B = 1 (1 - 1/2) + 1 = 1.5; tau_eff = 1.25.
    # sum p delta / a = (1, 2/3); w = (1.25, 5/6)
    close(play(*stage(cls(mu=1.0)), 1)[0].w, [1.25, 5 / 6])


def scaffold(cls: type[Method]) -> None:
    # Round 1 is FedAvg: w = (1, 1.5).
    # c_A = -delta_A / (1 * 1/2) = (-4, 0), its gradient; c_B = -(0, 3) / (2 * 1/2) = (0, -3), its mean gradient.
    # c = (c_A + c_B) / N = (-1, -0.75), N = 4.
    # Round 2, again 1 and 2 steps.
    # A: gradient (1 - 4, 1.5) + c - c_A = (-3, 1.5) + (3, -0.75) = (0, 0.75): delta_A = (0, -0.375).
    # B: constant c - c_B = (-1, 2.25). Step 1: (1, 1.5 - 4) + (-1, 2.25) = (0, -0.25), to (1, 1.625).
    #    Step 2: (1, -2.375) + (-1, 2.25) = (0, -0.125), to (1, 1.6875): delta_B = (0, 0.1875).
    # w = (1, 1.5) + (0, (-0.375 + 0.1875) / 2) = (1, 1.40625).
    # c_A' - c_A = -c - delta_A / (1/2) = (1, 0.75) - (0, -0.75) = (1, 1.5)
    # c_B' - c_B = -c - delta_B / 1 = (1, 0.75) - (0, 0.1875) = (1, 0.5625)
    # c = (-1, -0.75) + (2, 2.0625) / 4 = (-0.5, -0.234375)
    federation, server = stage(cls())
    server, _ = play(federation, server, 1)
    close(server.w, [1.0, 1.5])
    close(server.memory["control"], [-1.0, -0.75])
    memories = dict(federation.backend.memories())
    close(memories[0]["control"], [-4.0, 0.0])
    close(memories[1]["control"], [0.0, -3.0])
    server, _ = play(federation, server, 1)
    close(server.w, [1.0, 1.40625])
    close(server.memory["control"], [-0.5, -0.234375])


def scaffold_elsewhere(cls: type[Method]) -> None:
    # From w = (2, 2): A's one gradient is (-2, 2), so w = (3, 1) and c_A = (-2, 2). A c_i that started from the weights
    # would have turned the gradient to (-4, 0).
    federation, server = stage(cls(), start=(2.0, 2.0), script=[[1, 0, 0, 0]])
    server, _ = play(federation, server, 1)
    close(server.w, [3.0, 1.0])
    close(dict(federation.backend.memories())[0]["control"], [-2.0, 2.0])


def scaffold_decay(cls: type[Method]) -> None:
    # gamma = 1/2: round 1 at eta 1/2, round 2 at 1/4. Only A, one step, so c_A is A's gradient plus nothing else:
    # round 1: gradient (-4, 0): w = (2, 0), c_A = (-4, 0), c = (-1, 0).
    # round 2: gradient (-2, 0); + c - c_A = (3, 0): moves -(1/4)(1, 0): w = (1.75, 0);
    #          c_A = c_A - c - delta / (1/4) = (-4 + 1 + 1, 0) = (-2, 0): the gradient at (2, 0), as it should be.
    federation, server = stage(cls(), script=[[1, 0, 0, 0]], lr_decay=0.5)
    server, _ = play(federation, server, 2)
    close(server.w, [1.75, 0.0])
    close(dict(federation.backend.memories())[0]["control"], [-2.0, 0.0])


def scaffold_momentum(cls: type[Method]) -> None:
    # B alone, m = 1/2, two steps: delta (0, 4) (see fednova_momentum); the gradients were -4 and -2, and moved the
    # weights a = 2.5 gradients far, the first 1.5 times, the second once: c_B = -4 / (2.5 / 2) = -3.2.
    federation, server = stage(cls(), script=[[0, 2, 0, 0]], momentum=0.5)
    play(federation, server, 1)
    close(dict(federation.backend.memories())[1]["control"], [0.0, -3.2])


def feddyn(cls: type[Method]) -> None:
    # alpha = 1/2. A: gradient -4, to 2: delta_A = (2, 0).
    # B: -4, to 2; (2 - 4) + 1/2 (2 - 0) = -1, to 2.5: delta_B = (0, 2.5).
    # h_A = -(1, 0), h_B = -(0, 1.25); h = (h_A + h_B) / N = (-0.25, -0.3125), N = 4.
    # w = mean(w_i) - h / alpha = (1, 1.25) + (0.5, 0.625) = (1.5, 1.875).
    # Round 2, from there, 1 and 2 steps.
    # A: (1.5 - 4, 1.875) - h_A = (-1.5, 1.875): delta_A = (0.75, -0.9375).
    # B: step 1: (1.5, 1.875 - 4) - h_B = (1.5, -0.875): to (0.75, 2.3125), moved (-0.75, 0.4375).
    #    step 2: (0.75, -1.6875) - h_B + 1/2 (-0.75, 0.4375) = (0.375, -0.21875): to (0.5625, 2.421875):
    #    delta_B = (-0.9375, 0.546875).
    # h = (-0.25, -0.3125) - 1/2 (0.75 - 0.9375, -0.9375 + 0.546875) / 4 = (-0.2265625, -0.263671875)
    # w = (1.5, 1.875) + (-0.09375, -0.1953125) + 2 (0.2265625, 0.263671875) = (1.859375, 2.20703125)
    federation, server = stage(cls(alpha=0.5))
    server, _ = play(federation, server, 1)
    close(server.w, [1.5, 1.875])
    close(server.memory["drift"], [-0.25, -0.3125])
    memories = dict(federation.backend.memories())
    close(memories[0]["gradient"], [-1.0, 0.0])
    close(memories[1]["gradient"], [0.0, -1.25])
    server, _ = play(federation, server, 1)
    close(server.w, [1.859375, 2.20703125])
    close(server.memory["drift"], [-0.2265625, -0.263671875])


def momentum_starts_anew(cls: type[Method]) -> None:
    # A alone, one step a round, m = 1/2: every round halves the distance to 4: 2, 3. Momentum carried over from round 1
    # would add half of its step: 2 + 1/2 (2 + 1/2 * 4) = 4.
    federation, server = stage(cls(), script=[[1, 0, 0, 0]], momentum=0.5)
    close(play(federation, server, 2)[0].w, [3.0, 0.0])


def same_draws_for_every_method() -> None:
    """Devices, stragglers, batches and starting weights of all six methods, in a real federation on digits."""
    seen = [draws_of(method) for method in METHODS]
    assert all(draws == seen[0] for draws in seen)


def draws_of(method: str) -> Any:
    experiment = preset("digits").changed({"method": method, "steps_per_epoch": 1, "rounds": 3})
    with simulate(experiment) as simulation:
        batches = [
            (device, images.sum().item(), labels.tolist())
            for device in range(3)
            for images, labels in islice(simulation.devices.batches(first_task(simulation.start.w, device)), 4)
        ]
        records = [record for _, record in rounds(simulation.federation, simulation.start, 3)]
        who = [(r.devices, r.steps, r.slow, r.absent, r.simulated_seconds) for r in records]
        return simulation.start.w.tolist(), batches, who


def first_task(w: Any, device: int) -> Task:
    numbers = {"steps": 4, "steps_asked": 4, "lr": 0.1, "momentum": 0.0}
    return Task(round=0, device=device, w=w, seed=0, shared={}, **numbers)
