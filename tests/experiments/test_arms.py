"""Arms: how they are written, what they are called, and the runs that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.registry import find, names_of
from fedlga.core.settings import BadInput
from fedlga.experiments.arms import Arm, check_different, format_settings, pair_arms, parse_arm
from fedlga.experiments.presets import preset

DIGITS = preset("digits")


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("fedavg", Arm("fedavg", "keep")),
        ("fedlga", Arm("fedlga", "complete")),
        ("fedavg complete", Arm("fedavg", "complete")),
        ("  fedprox   drop  ", Arm("fedprox", "drop")),
        ("fedprox mu=0.1", Arm("fedprox", "keep", {"mu": 0.1})),
        ("fedprox wait lr=1 mu=0.1", Arm("fedprox", "wait", {"lr": 1, "mu": 0.1})),
        ("fedavg keep server_optimizer=adam", Arm("fedavg", "keep", {"server_optimizer": "adam"})),
        ("fedavg keep adam.eta_g=0.1", Arm("fedavg", "keep", {"adam.eta_g": 0.1})),
        ("fedavg keep stop_at_target=true", Arm("fedavg", "keep", {"stop_at_target": True})),
        ("fedavg keep slow_classes=[0,1]", Arm("fedavg", "keep", {"slow_classes": [0, 1]})),
        (
            "methods_for_tests:Forgetful plugins_for_tests:KeepHalf limit=2.5",
            Arm("methods_for_tests:Forgetful", "plugins_for_tests:KeepHalf", {"limit": 2.5}),
        ),
    ],
)
def test_an_arm_as_it_is_written(text, arm):
    assert parse_arm(text) == arm


HOW = "it takes METHOD [POLICY] [KEY=VALUE ...], such as 'fedavg keep lr=0.1'"
ORDER = "METHOD and POLICY come first, seeds with --seeds"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"--arm: got ''; {HOW}"),
        ("lr=0.1", f"--arm: got 'lr=0.1'; {HOW}"),
        ("lr=0.1 fedavg", f"--arm: got 'lr=0.1 fedavg'; {HOW}"),
        ("fedavg lr=0.1 keep", f"--arm: got 'fedavg lr=0.1 keep'; {HOW}"),
        ("fedavg keep drop", f"--arm: got 'fedavg keep drop'; {HOW}"),
        ("fedavg lr = 0.1", f"--arm: got 'fedavg lr = 0.1'; {HOW}"),
        ("fedavg keep =0.1", "--arm: got '=0.1'; it takes key=value"),
        ("fedpro", "method: there is no 'fedpro'; did you mean 'fedprox'?"),
        ("fedavg kep", "stragglers: there is no 'kep'; did you mean 'keep'?"),
        ("fedavg seed=3", f"--arm: got seed in 'fedavg seed=3'; {ORDER}"),
        ("fedavg stragglers=drop", f"--arm: got stragglers in 'fedavg stragglers=drop'; {ORDER}"),
        ("fedavg lr=1 method=fedprox", f"--arm: got method in 'fedavg lr=1 method=fedprox'; {ORDER}"),
    ],
)
def test_a_wrong_arm_gets_one_line(text, message):
    with pytest.raises(BadInput) as error:
        parse_arm(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("arm", "label", "text"),
    [
        (Arm("fedavg", "keep"), "fedavg-keep", ""),
        (Arm("fedavg", "keep", {"lr": 0.03, "mu": 1.0}), "fedavg-keep-lr=0.03-mu=1", "lr=0.03 mu=1"),
        (Arm("fedavg", "keep", {"lr": 1e-05, "rounds": 100}), "fedavg-keep-lr=1e-05-rounds=100", "lr=1e-05 rounds=100"),
        (
            Arm("fedavg", "keep", {"slow_classes": [0, 1]}),
            "fedavg-keep-slow_classes=[0,1]",
            "slow_classes=[0,1]",
        ),
        (
            Arm("my.methods:Mine", "my.policies:Half", {"aggregation": "my.rules:Best"}),
            "my.methods.Mine-my.policies.Half-aggregation=my.rules.Best",
            "aggregation=my.rules:Best",
        ),
        (Arm("fedavg", "keep", {"trace": "a/b.csv"}), "fedavg-keep-trace=a.b.csv", "trace=a/b.csv"),
    ],
)
def test_a_label_is_one_word_that_every_file_system_takes(arm, label, text):
    assert (arm.label, arm.settings_text) == (label, text)


numbers = st.floats(1e-3, 1e3).map(lambda x: float(f"{x:.5g}")) | st.integers(0, 1000)


@given(st.dictionaries(st.sampled_from(["lr", "mu", "lr_decay", "clip"]), numbers))
def test_what_is_shown_of_an_arm_can_be_written_again(settings):
    arm = Arm("fedavg", "keep", settings)
    assert parse_arm(f"fedavg keep {arm.settings_text}") == arm
    assert "/" not in arm.label
    assert len(arm.label.split()) == 1


def test_settings_as_text():
    settings = {"lr": 0.1, "epochs": 5, "fast": True, "model": "mlp"}
    assert format_settings(settings) == "lr=0.1 epochs=5 fast=True model=mlp"
    assert format_settings({}) == ""


def test_the_run_of_an_arm():
    e = Arm("fedprox", "drop", {"mu": 0.25, "lr": 0.5}).experiment(DIGITS, 7)
    assert (e.method, e.policy, e.seed, e.lr) == ("fedprox", "drop", 7, 0.5)
    assert e.settings("method")["mu"] == 0.25
    assert e.rounds == DIGITS.rounds


def test_more_settings_replace_those_that_were_there():
    arm = Arm("fedavg", "keep", {"lr": 0.1, "mu": 1})
    assert arm.add({"lr": 0.2, "clip": 1.0}) == Arm("fedavg", "keep", {"lr": 0.2, "mu": 1, "clip": 1.0})
    assert arm.settings == {"lr": 0.1, "mu": 1}, "an arm never changes"


def test_an_arm_survives_plain_values():
    arm = Arm("fedprox", "keep", {"mu": 0.1})
    assert Arm(**arm.as_dict()) == arm


def test_every_method_goes_with_the_policies_it_takes():
    assert pair_arms(["fedavg", "fedlga"], ["keep", "complete"]) == [
        Arm("fedavg", "keep"),
        Arm("fedavg", "complete"),
        Arm("fedlga", "complete"),
    ]
    assert pair_arms([], ["keep"]) == []


def test_without_policies_each_method_has_its_own():
    assert pair_arms(names_of("method"), []) == [
        Arm(name, find("method", name).default_policy) for name in names_of("method")
    ]
    assert pair_arms(["fedavg", "fedprox"], [], "drop") == [Arm("fedavg", "drop"), Arm("fedprox", "drop")]


@pytest.mark.parametrize(
    ("methods", "policies", "message"),
    [
        (["fedlga"], ["keep", "drop"], "--stragglers: method fedlga takes complete; got keep,drop"),
        (["fedavg"], ["kep"], "stragglers: there is no 'kep'; did you mean 'keep'?"),
        ([], ["kep"], "stragglers: there is no 'kep'; did you mean 'keep'?"),
        (["fedpro"], [], "method: there is no 'fedpro'; did you mean 'fedprox'?"),
    ],
)
def test_methods_and_policies_that_do_not_go_together(methods, policies, message):
    with pytest.raises(BadInput) as error:
        pair_arms(methods, policies)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "arms",
    [
        [Arm("fedavg", "keep"), Arm("fedavg", "drop"), Arm("fedavg", "keep")],
        [Arm("fedavg", "keep", {"lr": 0.1}), Arm("fedavg", "keep", {"lr": 0.10})],
        [Arm("fedavg", "keep", {"lr": 0.1000001}), Arm("fedavg", "keep", {"lr": 0.1})],  # they would share a folder
    ],
)
def test_the_same_arm_twice_is_refused(arms):
    with pytest.raises(BadInput, match=rf"--arm: {arms[0].label} is there twice; each arm is compared once"):
        check_different(arms)


def test_arms_that_differ_in_one_thing_are_different():
    check_different([])
    check_different(
        [
            Arm("fedavg", "keep"),
            Arm("fedprox", "keep"),
            Arm("fedavg", "drop"),
            Arm("fedavg", "keep", {"lr": 0.1}),
            Arm("fedavg", "keep", {"lr": 0.2}),
            Arm("fedavg", "keep", {"lr": 0.1, "clip": 1.0}),
        ]
    )
