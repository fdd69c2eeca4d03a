"""What experiments are, in few words."""

from __future__ import annotations

from fedlga.experiments.labels import describe_all, join_words
from fedlga.experiments.presets import preset

DIGITS, PAPER = preset("digits").resolved(), preset("paper").resolved()


def test_runs_of_several_models_are_named_by_all_of_them():
    text = describe_all([DIGITS, DIGITS.changed({"model": "cnn"}), PAPER])
    assert text == "digits and fashion-mnist on 20 or 50 devices, 5 or 10 a round, 50% slow; models mlp, cnn"
    assert describe_all([DIGITS, DIGITS]) == "digits on 20 devices, 5 a round, 50% slow; model mlp"


def test_words_are_joined_as_one_writes_them():
    assert [join_words(list(words), "and") for words in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
