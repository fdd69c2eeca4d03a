"""One round of each method, and a second for those with memory, worked out by hand on two-parameter quadratics.

The setting, unless a check says otherwise. Device i holds F_i(w) = 1/2 |w - b_i|^2, so its gradient is w - b_i, and
with eta_l = 1/2 every step halves the distance to b_i. Four devices, of which only A and B report:

    b_A = (4, 0), b_B = (0, 4), w = (0, 0), E = 2 steps asked, A does 1, B does 2.

    A: (0,0) -> (2,0)           delta_A = (2, 0)
    B: (0,0) -> (0,2) -> (0,3)  delta_B = (0, 3)

These are functions, not tests, because test_mistakes.py also runs them on methods with a mistake put in.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from federations import close, play, quadratics
from fedlga.core.method import Method
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.registry import names_of
from fedlga.core.round import Federation, run_rounds
from fedlga.core.types import Assignment, ServerState
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

FOUR_DEVICES: dict[str, Any] = {
    "centres": [(4.0, 0.0), (0.0, 4.0), (9.0, 9.0), (-9.0, 9.0)],
    "script": [[1, 2, 0, 0]],
    "asked": 2,
    "lr": 0.5,
}
# Two devices with the optimum of their mean loss at (2, 2); the second does five times the work of the first.
UNEQUAL_WORK: dict[str, Any] = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[2, 10]], "asked": 10, "lr": 0.01}
# Different curvatures: with many local steps FedAvg drifts towards the mean of the centres, away from the optimum,
# which is (a_1 b_1 + a_2 b_2) / (a_1 + a_2) = (0.8, 3.2).
UNEQUAL_CURVATURES: dict[str, Any] = {
    "centres": [(4.0, 0.0), (0.0, 4.0)],
    "curvatures": [1.0, 4.0],
    "script": [[10, 10]],
    "asked": 10,
    "lr": 0.1,
}


def four_devices(method: Method, **changes: Any) -> tuple[Federation, ServerState]:
    """Return the federation described above, with some arguments of `quadratics` changed."""
    return quadratics(method, **{**FOUR_DEVICES, **changes})


def check_fedavg(cls: type[Method]) -> None:
    # mean = (1, 1.5); the server optimiser's eta_g is 1, then 2
    close(play(*four_devices(cls()), 1)[0].w, [1.0, 1.5])
    close(play(*four_devices(cls(), optimizer=Sgd(eta_g=2.0)), 1)[0].w, [2.0, 3.0])


def check_fedavg_by_examples(cls: type[Method]) -> None:
    # A holds 1 example, B holds 3 (the silent ones 5 each): p = 1/4, 3/4 of those that reported: (2/4, 9/4)
    close(play(*four_devices(cls(), copies=[1, 3, 5, 5], by_examples=True), 1)[0].w, [0.5, 2.25])


def check_fedprox(cls: type[Method]) -> None:
    # mu = 1 adds w_local - w_sent. A: gradient -4 + 0, to 2. B: -4 + 0, to 2; then (2 - 4) + (2 - 0) = 0, stays at 2.
    # Mean (1, 1). Without the term's gradient B would reach 3.
    close(play(*four_devices(cls(mu=1.0)), 1)[0].w, [1.0, 1.0])


def check_fednova(cls: type[Method]) -> None:
    # a_A = 1, a_B = 2, p = 1/2 each: tau_eff = 1.5; sum p delta / a = (1, 0.75); w = 1.5 (1, 0.75).
    close(play(*four_devices(cls()), 1)[0].w, [1.5, 1.125])


def check_fednova_by_examples(cls: type[Method]) -> None:
    # p = 1/4, 3/4 of those that reported: tau_eff = 1/4 + 6/4 = 7/4; sum p delta / a = (1/2, 9/8); w = (7/8, 63/32)
    close(play(*four_devices(cls(), copies=[1, 3, 5, 5], by_examples=True), 1)[0].w, [0.875, 1.96875])


def check_fednova_momentum(cls: type[Method]) -> None:
    # m = 1/2. A: one step, delta (2, 0), a = 1.
    # B: v = -4, to 2; v = -2 + (2 - 4) = -4, to 4: delta (0, 4); a: c = 1, a = 1; c = 1.5, a = 2.5.
    # tau_eff = 1.75; sum p delta / a = (1, 0.8); w = (1.75, 1.4).
    close(play(*four_devices(cls(), momentum=0.5), 1)[0].w, [1.75, 1.4])


def check_fednova_proximal(cls: type[Method]) -> None:
    # mu = 1, eta_l = 1/2: as FedProx, delta (2, 0) and (0, 2); a_A = 1, a_B = 1 (1 - 1/2) + 1 = 1.5; tau_eff = 1.25.
    # sum p delta / a = (1, 2/3); w = (1.25, 5/6)
    close(play(*four_devices(cls(mu=1.0)), 1)[0].w, [1.25, 5 / 6])


def check_scaffold(cls: type[Method]) -> None:
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
    federation, state = four_devices(cls())
    state, _ = play(federation, state, 1)
    close(state.w, [1.0, 1.5])
    close(state.memory["control"], [-1.0, -0.75])
    memories = dict(federation.backend.memories())
    close(memories[0]["control"], [-4.0, 0.0])
    close(memories[1]["control"], [0.0, -3.0])
    state, _ = play(federation, state, 1)
    close(state.w, [1.0, 1.40625])
    close(state.memory["control"], [-0.5, -0.234375])


def check_scaffold_from_other_weights(cls: type[Method]) -> None:
    # From w = (2, 2): A's one gradient is (-2, 2), so w = (3, 1) and c_A = (-2, 2). A c_i that started from the weights
    # would have turned the gradient to (-4, 0).
    federation, state = four_devices(cls(), start=(2.0, 2.0), script=[[1, 0, 0, 0]])
    state, _ = play(federation, state, 1)
    close(state.w, [3.0, 1.0])
    close(dict(federation.backend.memories())[0]["control"], [-2.0, 2.0])


def check_scaffold_decay(cls: type[Method]) -> None:
    # gamma = 1/2: round 1 at eta 1/2, round 2 at 1/4. Only A, one step, so c_A is A's gradient plus nothing else:
    # round 1: gradient (-4, 0): w = (2, 0), c_A = (-4, 0), c = (-1, 0).
    # round 2: gradient (-2, 0); + c - c_A = (3, 0): moves -(1/4)(1, 0): w = (1.75, 0);
    #          c_A = c_A - c - delta / (1/4) = (-4 + 1 + 1, 0) = (-2, 0): the gradient at (2, 0), as it should be.
    federation, state = four_devices(cls(), script=[[1, 0, 0, 0]], lr_decay=0.5)
    state, _ = play(federation, state, 2)
    close(state.w, [1.75, 0.0])
    close(dict(federation.backend.memories())[0]["control"], [-2.0, 0.0])


def check_scaffold_momentum(cls: type[Method]) -> None:
    # B alone, m = 1/2, two steps: delta (0, 4) (see check_fednova_momentum); the gradients were -4 and -2, and moved
    # the weights a = 2.5 gradients far, the first 1.5 times, the second once: c_B = -4 / (2.5 / 2) = -3.2.
    federation, state = four_devices(cls(), script=[[0, 2, 0, 0]], momentum=0.5)
    play(federation, state, 1)
    close(dict(federation.backend.memories())[1]["control"], [0.0, -3.2])


def check_feddyn(cls: type[Method]) -> None:
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
    federation, state = four_devices(cls(alpha=0.5))
    state, _ = play(federation, state, 1)
    close(state.w, [1.5, 1.875])
    close(state.memory["drift"], [-0.25, -0.3125])
    memories = dict(federation.backend.memories())
    close(memories[0]["gradient"], [-1.0, 0.0])
    close(memories[1]["gradient"], [0.0, -1.25])
    state, _ = play(federation, state, 1)
    close(state.w, [1.859375, 2.20703125])
    close(state.memory["drift"], [-0.2265625, -0.263671875])


def check_momentum_starts_at_zero(cls: type[Method]) -> None:
    # A alone, one step a round, m = 1/2: every round halves the distance to 4: 2, 3. Momentum carried over from round 1
    # would add half of its step: 2 + 1/2 (2 + 1/2 * 4) = 4.
    federation, state = four_devices(cls(), script=[[1, 0, 0, 0]], momentum=0.5)
    close(play(federation, state, 2)[0].w, [3.0, 0.0])


def check_that_draws_are_the_same_for_every_method() -> None:
    """Devices, stragglers, batches and starting weights of all six methods, in a real federation on digits."""
    draws = [draws_of(method) for method in names_of("method")]
    assert all(others == draws[0] for others in draws)


def draws_of(method: str) -> Any:
    """Return everything that is drawn at random in three rounds of a method."""
    experiment = preset("digits").changed({"method": method, "steps_per_epoch": 1, "rounds": 3})
    with simulate(experiment) as simulation:
        assert simulation.devices is not None
        batches = [
            (device, images.sum().item(), labels.tolist())
            for device in range(3)
            for images, labels in islice(simulation.devices.batches(first_assignment(simulation.start.w, device)), 4)
        ]
        records = [record for _, record in run_rounds(simulation.federation, simulation.start, 3)]
        devices = [(r.devices, r.steps, r.slow, r.absent, r.simulated_seconds) for r in records]
        return simulation.start.w.tolist(), batches, devices


def first_assignment(w: Any, device: int) -> Assignment:
    """Return an assignment of the first round: four steps."""
    numbers = {"steps": 4, "steps_asked": 4, "lr": 0.1, "momentum": 0.0}
    return Assignment(round=0, device=device, w=w, seed=0, broadcast={}, **numbers)
