"""Names, colours and dashes of methods and policies: the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes and markers for prints in grey.
POLICY_COLOURS = {"wait": "#0072B2", "drop": "#999999", "keep": "#E69F00", "complete": "#D55E00"}
POLICY_DASHES: dict[str, Any] = {
    "wait": (0, (6, 2)),
    "drop": (0, (1, 1.5)),
    "keep": (0, (4, 1.5, 1, 1.5)),
    "complete": "-",
}
METHOD_COLOURS = {
    "fedlga": "#D55E00",
    "fedavg": "#0072B2",
    "fedprox": "#E69F00",
    "fednova": "#009E73",
    "scaffold": "#CC79A7",
    "feddyn": "#56B4E9",
}
METHOD_DASHES: dict[str, Any] = {
    "fedlga": "-",
    "fedavg": (0, (6, 2)),
    "fedprox": (0, (4, 1.5, 1, 1.5)),
    "fednova": (0, (1, 1.5)),
    "scaffold": (0, (8, 2, 1, 2, 1, 2)),
    "feddyn": (0, (3, 1.2)),
}
METHOD_MARKERS = {"fedlga": "o", "fedavg": "s", "fedprox": "D", "fednova": "^", "scaffold": "v", "feddyn": "P"}
METHOD_NAMES = {
    "fedlga": "FedLGA",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "Scaffold",
    "feddyn": "FedDyn",
}

Style = tuple[str, Any]  # colour and dashes


def method_style(method: str) -> Style:
    """Return the colour and dashes of a method."""
    return METHOD_COLOURS.get(method, "#000000"), METHOD_DASHES.get(method, "-")


def policy_style(policy: str) -> Style:
    """Return the colour and dashes of a policy; an arm's own settings may follow its name."""
    policy = policy.partition(" ")[0]
    return POLICY_COLOURS.get(policy, "#000000"), POLICY_DASHES.get(policy, "-")


def value_style(index: int) -> Style:
    """Return the colour and dashes of one of a few values of the same thing."""
    return _numbered_style(index)


def choose_styles(kinds: Sequence[tuple[str, str]]) -> list[Style]:
    """Return a style for each pair of a method and a policy; no two are the same, up to 36 of them.

    Methods have their own if several are compared, policies if there is one method. If a pair comes twice, or a method
    is not one of ours, styles are given in order.
    """
    methods = {method for method, _ in kinds}
    if len(set(kinds)) < len(kinds) or any(method not in METHOD_NAMES for method in methods):
        return [_numbered_style(index) for index in range(len(kinds))]
    if len(methods) == 1 and len(kinds) > 1:
        return [policy_style(policy) for _, policy in kinds]
    several = {m for m in methods if len({policy for method, policy in kinds if method == m}) > 1}
    return [
        (method_style(method)[0], policy_style(policy)[1] if method in several else method_style(method)[1])
        for method, policy in kinds
    ]


def choose_policy_styles(policies: Sequence[str]) -> list[Style]:
    """Return a style for each policy, whose settings may follow its name; no two are the same, up to 36 of them."""
    styles = [policy_style(policy) for policy in policies]
    alike = len({repr(style) for style in styles}) < len(styles)
    return [_numbered_style(index) for index in range(len(policies))] if alike else styles


def _numbered_style(index: int) -> Style:
    colours, dashes = list(METHOD_COLOURS.values()), list(METHOD_DASHES.values())
    return colours[index % len(colours)], dashes[(index + index // len(colours)) % len(dashes)]


def as_pixels(dashes: Any) -> list[float]:
    """Return dashes of matplotlib as a list of lengths, in pixels of a line that is two wide; empty: a full line."""
    return [] if isinstance(dashes, str) else [2 * float(length) for length in dashes[1]]
