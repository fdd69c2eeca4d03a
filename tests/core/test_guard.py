"""What is believed of an update: by hand, and whatever one device sends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.aggregation.mean import Mean
from fedlga.core.aggregation.median import Median
from fedlga.core.aggregator import Aggregator
from fedlga.core.guard import LEAST_KNOWN, Guard, find_cosine
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.core.quarantine import judge as give_strikes
from fedlga.core.registry import create, names_of
from fedlga.core.settings import BadInput, Stopped
from fedlga.core.types import Contribution, ServerState, Update
from fedlga.experiments.presets import preset
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.scaffold import Scaffold


def update(device, values, *, steps=4, asked=4, examples=10, lr=0.1, **uploads):
    return Update(
        device=device,
        delta=torch.tensor(values, dtype=torch.float32),
        examples=examples,
        steps=steps,
        steps_asked=asked,
        train_loss=0.0,
        uploads=uploads,
        lr=lr,
        momentum=0.0,
    )


def judge(*updates, bound=20.0, state=None):
    guard = Guard(bound, state or ServerState(round=0, w=torch.zeros(2)))
    admitted = guard.admit([Contribution(u) for u in updates])
    return [c.update.device for c in admitted], guard


HONEST = [update(d, (3.0, 4.0)) for d in range(5)]


def test_an_update_is_compared_with_the_median():
    """All have length 5; one of 99 is believed, and one of 101 is not."""
    believed, guard = judge(*HONEST, update(8, (0.0, 99.0)), update(9, (0.0, 101.0)))
    assert believed == [0, 1, 2, 3, 4, 8]
    assert guard.refused == {9: "delta is 20.2 times as long as usual"}


def test_whoever_did_more_steps_may_be_longer_in_proportion():
    """The others did 1 of 10 steps, with length 1. Ten steps may be ten times as long: 200 is the bound."""
    short = [update(d, (1.0, 0.0), steps=1, asked=10) for d in range(6)]
    believed, guard = judge(*short, update(8, (199.0, 0.0), steps=10, asked=10), update(9, (21.0, 0.0), steps=1))
    assert believed == [0, 1, 2, 3, 4, 5, 8]
    assert list(guard.refused) == [9]


def test_lengths_are_compared_at_the_same_rate():
    """A rate that is a hundred times as high makes updates a hundred times as long."""
    believed, _ = judge(*HONEST, update(8, (300.0, 400.0), lr=10.0))
    assert 8 in believed


def test_what_is_usual_is_remembered_from_round_to_round():
    _, guard = judge(*HONEST)
    state = ServerState(round=1, w=torch.zeros(2), memory=guard.memory())
    believed, later = judge(update(9, (0.0, 101.0)), state=state)
    assert believed == []
    assert later.memory()["guard.delta"].shape == (6, 2)


def test_if_all_become_longer_the_usual_follows():
    """Three rounds of six with length 1, then of length 1000: refused until they are half of what is known."""
    memory, refused = {}, []
    for round in range(6):
        state = ServerState(round=round, w=torch.zeros(2), memory=memory)
        length = 1.0 if round < 3 else 1000.0
        _, guard = judge(*[update(d, (length, 0.0)) for d in range(6)], state=state)
        memory = guard.memory()
        refused.append(len(guard.refused))
    assert refused == [0, 0, 0, 6, 6, 0]


def test_before_anything_is_usual_only_the_absurd_is_refused():
    believed, _ = judge(update(0, (1.0, 0.0)), update(1, (1e6, 0.0)))
    assert believed == [0, 1]
    believed, _ = judge(update(0, (1.0, 0.0)), update(1, (3e38, 0.0)))
    assert believed == [0]
    assert LEAST_KNOWN > 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["delta", "control"])
@pytest.mark.parametrize("bound", [0.0, 20.0])
def test_what_is_not_finite_is_never_believed(bad, where, bound):
    control = torch.tensor([1.0, bad if where == "control" else 1.0])
    wrong = update(9, (1.0, bad if where == "delta" else 1.0), control=control)
    believed, guard = judge(*HONEST, wrong, bound=bound)
    assert believed == [0, 1, 2, 3, 4]
    assert guard.refused == {9: "its numbers are not finite"}


def test_a_claim_of_absurdly_many_examples_is_refused():
    believed, guard = judge(*HONEST, update(8, (3.0, 4.0), examples=1000), update(9, (3.0, 4.0), examples=2**40))
    assert believed == [0, 1, 2, 3, 4, 8]
    assert guard.refused == {9: f"it claims {2**40} examples, far more than is usual"}


def test_completing_cannot_make_an_update_much_longer_than_full_work():
    """Device 9 claims 1 of 1000 steps and sends what 1000 steps give; completing would multiply it by 1000.

    Full work has length 5, so it counts no more than one and a half times that.
    """
    full = [update(d, (3.0, 4.0), steps=1000, asked=1000) for d in range(6)]
    liar = update(9, (0.0, 5.0), steps=1, asked=1000)
    aggregator = Aggregator(FedAvg(), Complete(scale="linear", longest=1e9), Mean())
    state = ServerState(round=0, w=torch.zeros(2))
    outcome = aggregator.aggregate(state, [Contribution(u) for u in (*full, liar)])
    assert outcome.bounded == pytest.approx({9: 7.5 / 5000})
    torch.testing.assert_close(outcome.state.w, torch.tensor([18.0 / 7, (24.0 + 7.5) / 7]))


@given(
    st.lists(st.floats(-2.0, 2.0, width=32), min_size=2, max_size=2),
    st.sampled_from([1.0, 1e3, 1e20, 3e38, math.inf, math.nan]),
    st.integers(0, 5),
    st.sampled_from(["fedavg", "fednova", "fedlga", "feddyn", "scaffold"]),
    st.booleans(),
)
def test_whatever_one_of_six_sends_the_weights_stay_near(values, factor, place, method, robust):
    """Honest updates have length 5: no step of five honest and one hostile update is longer than the bound allows."""
    sent = [update(d, (3.0, 4.0), control=torch.tensor([0.1, 0.1])) for d in range(6)]
    hostile = tuple(v * factor for v in values)
    sent[place] = update(place, hostile, control=torch.tensor([*hostile]))
    policy = "complete" if method == "fedlga" else "keep"
    rule = Median() if robust else Mean()
    aggregator = Aggregator(create("method", method), create("policy", policy), rule)
    state = ServerState(round=0, w=torch.zeros(2))
    for _ in range(3):
        state = aggregator.aggregate(state, [Contribution(u, share=0.1) for u in sent]).state
    assert torch.isfinite(state.w).all()
    assert float(state.w.norm()) <= 3 * (5 + 20 * 5 + 1)


def test_a_run_can_stop_at_a_share_of_refused_updates(tmp_path):
    import fedlga

    experiment = preset("digits").changed({"rounds": 3, "outlier_bound": 0.5, "most_refused": 0.0, "method": "fedavg"})
    with pytest.raises(Stopped, match=r"round \d: \d+ of \d+ updates were left out as wrong, more than most_refused"):
        fedlga.run(experiment, tmp_path / "run")
    with pytest.raises(BadInput, match="most_refused"):
        preset("digits").changed({"most_refused": 1.5})


@pytest.mark.parametrize("rule", names_of("aggregation"))
def test_refused_updates_are_in_the_record(rule, tmp_path):
    import fedlga

    experiment = preset("digits").changed({"rounds": 3, "outlier_bound": 0.9, "aggregation": rule, "method": "fedavg"})
    records = fedlga.run(experiment, tmp_path / "run").records
    assert any(record.refused for record in records)
    for record in records:
        assert not set(record.refused) & set(record.used)
        assert all("times as long as usual" in why for why in record.refused.values())


def test_the_same_updates_are_refused_held_or_as_they_come():
    """A policy that needs all updates holds them; the others are judged as they arrive, by the rounds before."""
    _, guard = judge(*HONEST)
    state = ServerState(round=1, w=torch.zeros(2), memory=guard.memory())
    sent = [Contribution(u) for u in (*HONEST, update(9, (0.0, 500.0)))]
    held = Aggregator(FedAvg(), Keep(), Median()).aggregate(state, sent)
    streamed = Aggregator(FedAvg(), Keep(), Mean()).aggregate(state, sent)
    assert held.refused == streamed.refused == {9: "delta is 100 times as long as usual"}
    torch.testing.assert_close(streamed.state.w, torch.tensor([3.0, 4.0]))


AGAINST = "delta is 8 times as long as usual for its steps, and points against the others (cosine -1.00)"
KEEPERS = {  # an aggregator that holds all updates of a round, and one that sums them as they arrive
    "held": lambda method: Aggregator(method, Keep(), Mean(length_bound=1e9)),
    "streamed": lambda method: Aggregator(method, Keep(), Mean()),
}


def remember_honest(*controls):
    """Return the state after a round of five honest updates of length 5."""
    sent = [update(d, (3.0, 4.0), **({"control": torch.tensor(controls)} if controls else {})) for d in range(5)]
    _, guard = judge(*sent)
    return ServerState(round=1, w=torch.zeros(2), memory=guard.memory())


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_long_update_against_the_others_is_left_out(keeper, place):
    """Honest updates are (3, 4), of length 5. (24, 32) is 8 times as long and goes their way; -(24, 32) does not.

    The mean of five times (3, 4) and of (24, 32) is (6.5, 26/3).
    """
    for sign, mean, refused in ((1, (6.5, 26 / 3), {}), (-1, (3.0, 4.0), {9: AGAINST})):
        sent = [*HONEST[:place], update(9, (sign * 24.0, sign * 32.0)), *HONEST[place:]]
        outcome = KEEPERS[keeper](FedAvg()).aggregate(remember_honest(), [Contribution(u) for u in sent])
        assert outcome.refused == refused
        assert sorted(c.update.device for c in outcome.used) == [0, 1, 2, 3, 4, *([9] if not refused else [])]
        torch.testing.assert_close(outcome.state.w, torch.tensor(mean))


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("place", [0, 2, 5])
def test_the_first_round_is_judged_by_itself(keeper, place):
    """Nothing is usual before a first round. In it, the median length is 5, so these are 100 and 8 times as long.

    What FedDyn and Scaffold add up over rounds would keep what they let in for ever.
    """
    for wrong, why in (((0.0, 500.0), "delta is 100 times as long as usual"), ((-24.0, -32.0), AGAINST)):
        sent = [*HONEST[:place], update(9, wrong), *HONEST[place:]]
        state = ServerState(round=0, w=torch.zeros(2))
        outcome = KEEPERS[keeper](FedAvg()).aggregate(state, [Contribution(u) for u in sent])
        assert outcome.refused == {9: why}
        assert [c.update.device for c in outcome.received] == [u.device for u in sent]
        torch.testing.assert_close(outcome.state.w, torch.tensor((3.0, 4.0)))


def test_only_a_first_round_is_held():
    """Once something is usual, an update is summed before the next one arrives."""
    arrived: list[int] = []

    def arrive():
        for u in HONEST:
            arrived.append(u.device)
            yield Contribution(u)

    class Watching(FedAvg):
        def weigh(self, contribution):
            summed.append((contribution.update.device, len(arrived)))
            return super().weigh(contribution)

    for state, waits in ((ServerState(round=0, w=torch.zeros(2)), [5] * 5), (remember_honest(), [1, 2, 3, 4, 5])):
        arrived, summed = [], []
        Aggregator(Watching(), Keep()).aggregate(state, arrive())
        assert summed == list(enumerate(waits))


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize(("strikes", "believed"), [(0, True), (1, True), (2, False)])
def test_whoever_was_refused_twice_must_not_send_a_long_update(keeper, strikes, believed):
    """(-32, 24) is 8 times as long as usual, and goes across: not against the others. 3.9 times is not long."""
    state = remember_honest()
    for _ in range(strikes):
        state = replace(state, memory={**state.memory, **give_strikes(state, [9], [], after=3, rounds=10)})
    across = [Contribution(u) for u in (*HONEST, update(9, (-32.0, 24.0)))]
    outcome = KEEPERS[keeper](FedAvg()).aggregate(state, across)
    why = "delta is 8 times as long as usual for its steps, and its device was refused before"
    assert outcome.refused == ({} if believed else {9: why})
    short = [Contribution(u) for u in (*HONEST, update(9, (3.9 * -4.0, 3.9 * 3.0)))]
    assert not KEEPERS[keeper](FedAvg()).aggregate(state, short).refused


def test_how_far_back_an_update_may_go():
    """Along (3, 4)/5 the first goes back 7.4, the second 7.6; one and a half usual lengths are 7.5. Both are long."""
    for back, believed in ((7.4, True), (7.6, False)):
        sideways = update(9, (-4.0 * 6 - 0.6 * back, 3.0 * 6 - 0.8 * back))
        outcome = KEEPERS["held"](FedAvg()).aggregate(remember_honest(), [Contribution(u) for u in (*HONEST, sideways)])
        assert (not outcome.refused) is believed


@pytest.mark.parametrize("keeper", KEEPERS)
def test_who_is_not_compared(keeper):
    """Four others have no common direction; and 3.9 times the usual length is not long."""
    hostile = update(9, (-24.0, -32.0))
    few = KEEPERS[keeper](FedAvg()).aggregate(remember_honest(), [Contribution(u) for u in (*HONEST[:4], hostile)])
    assert not few.refused
    short = update(9, (-3.9 * 3, -3.9 * 4))
    outcome = KEEPERS[keeper](FedAvg()).aggregate(remember_honest(), [Contribution(u) for u in (*HONEST, short)])
    assert not outcome.refused


def test_whoever_claims_few_steps_has_to_go_along():
    """Ten steps are of length 5, so one step would be of 0.5: 5 is ten times that, and against the others."""
    full = [update(d, (3.0, 4.0), steps=10, asked=10) for d in range(6)]
    along, against = (update(d, (s * 3.0, s * 4.0), steps=1, asked=10) for d, s in ((8, 1), (9, -1)))
    _, guard = judge(*full)
    state = ServerState(round=1, w=torch.zeros(2), memory=guard.memory())
    for policy in (Keep(), Complete()):
        outcome = Aggregator(FedAvg(), policy).aggregate(state, [Contribution(u) for u in (*full, along, against)])
        why = "delta is 10 times as long as usual for its steps, and points against the others (cosine -1.00)"
        assert outcome.refused == {9: why}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_a_method_uploads_is_compared_too(keeper):
    """Controls are (1, 0); one is (-8, 0). What the aggregator had before, (-100, 0), is not their direction."""
    state = remember_honest(1.0, 0.0)
    state = ServerState(round=1, w=state.w, memory={**state.memory, "control": torch.tensor([-100.0, 0.0])})
    sent = [update(d, (3.0, 4.0), control=torch.tensor([1.0, 0.0])) for d in range(6)]
    sent.insert(5, update(9, (3.0, 4.0), control=torch.tensor([-8.0, 0.0])))
    outcome = KEEPERS[keeper](Scaffold()).aggregate(state, [Contribution(u, share=0.1) for u in sent])
    why = "control is 8 times as long as usual, and points against the others (cosine -1.00)"
    assert outcome.refused == {9: why}
    torch.testing.assert_close(outcome.state.memory["control"], torch.tensor([-99.4, 0.0]))


@pytest.mark.parametrize("method", ["fedavg", "fednova", "feddyn"])
@pytest.mark.parametrize("keeper", KEEPERS)
def test_where_nothing_is_left_out_the_last_bit_is_the_same(method, keeper):
    """A long update that goes along is held, and then added in its place."""
    rng = torch.Generator().manual_seed(0)
    common = torch.randn(1000, generator=rng)
    deltas = [common + torch.randn(1000, generator=rng) for _ in range(9)]
    deltas[4] *= 7
    sent = [Contribution(update(d, delta.tolist()), share=0.1) for d, delta in enumerate(deltas)]
    state = ServerState(round=0, w=torch.zeros(1000))
    sums = [
        Aggregator(create("method", method), Keep(), rule).aggregate(state, sent).state.w
        for rule in (Mean(outlier_bound=0), Mean(), Mean(length_bound=1e9), Mean(length_bound=1e9, outlier_bound=0))
    ]
    pair = sums[:2] if keeper == "streamed" else sums[2:]
    assert torch.equal(*pair)


def test_directions_of_masked_updates_say_nothing():
    """Private completing is for sums of updates under masks; a length of 8 times the others' may be the mask's."""
    sent = [Contribution(u) for u in (*HONEST, update(9, (-24.0, -32.0)))]
    outcome = Aggregator(FedAvg(), Complete(private=True)).aggregate(remember_honest(), sent)
    assert not outcome.refused


def test_the_cosine_of_numbers_of_any_size():
    """Products of 1e30 are beyond float32."""
    large, small = torch.tensor([3e30, 4e30]), torch.tensor([0.0, -1e-3])
    assert find_cosine(large, small) == pytest.approx(-0.8)
    assert find_cosine(large, large) == pytest.approx(1.0)
    assert find_cosine(large, torch.zeros(2)) == 0.0
