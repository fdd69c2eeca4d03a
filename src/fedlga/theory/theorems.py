"""The FedLGA paper's two theorems and corollaries (Li, Qu, Tang, Lu 2023, Section IV and Appendix A), as functions.

Theorem 1 is Eq. 13, its corollary Eq. 14; Theorem 2 is Eq. 15, its corollary Eq. 16. Steps of the proofs are named as
in the appendix: A_1 to A_4, B_1 to B_4, a_1 to a_7, b_1 to b_11.

Names are the paper's symbols; docs/symbols.md has ours. Theorem 1 is about full participation: all N devices work in
every round. Theorem 2 is about partial participation: K devices, drawn with replacement.

Statement and proof disagree in places, and some steps of the proof lose a factor. `derived`, the default, is what the
proof's own steps give if each is carried out; `printed` is the statement to the letter. docs/theory.md lists every
difference. One that shows at once: with the printed constants, the bound depends on the unit of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from fedlga.core.settings import BadInput

Reading = Literal["derived", "printed"]
SLACK = 1e-12  # equal numbers may differ by so much in floats, relatively
HIGHEST_RATE, LOWEST_RATE = 1e30, 1e-100  # within these limits no power in the theorems is too large for a float, or 0
HIGHEST_CONSTANT, LOWEST_L = 1e60, 1e-29


@dataclass(frozen=True)
class Setting:
    """A federation as the theorems see it: its size, its local work, its stragglers and its two rates."""

    N: int  # devices
    K: int | None  # drawn in a round, with replacement (Theorem 2); None: all take part (Theorem 1)
    E: int  # SGD steps of a round's full local work
    T: int  # rounds
    rho: float  # share of the devices in a round whose update is completed
    tau_max: float  # largest tau_i = E - E_i + 1
    eta_l: float
    eta_g: float

    def __post_init__(self) -> None:
        counts = {"N": self.N, "K": self.N if self.K is None else self.K, "E": self.E, "T": self.T}
        for name, value in counts.items():
            if not (value >= 1 and value % 1 == 0):  # nan and infinity are neither
                raise BadInput(f"{name}: got {value}; it takes a whole number of at least 1")
        if not 0 <= self.rho <= 1:
            raise BadInput(f"rho: got {self.rho:g}; it takes a number from 0 to 1")
        for name, value in {"eta_l": self.eta_l, "eta_g": self.eta_g}.items():
            if not LOWEST_RATE <= value <= HIGHEST_RATE:
                raise BadInput(f"{name}: got {value:g}; it takes a number above 0, up to {HIGHEST_RATE:g}")
        if not 1 <= self.tau_max < math.inf:
            raise BadInput(f"tau_max: got {self.tau_max:g}; it takes a number of at least 1")

    @property
    def partial(self) -> bool:
        """Whether Theorem 2 applies, and not Theorem 1."""
        return self.K is not None

    @property
    def taking_part(self) -> int:
        """The devices of a round: K, or all N."""
        return self.N if self.K is None else self.K

    @property
    def theorem(self) -> int:
        """The number of the theorem that applies."""
        return 2 if self.partial else 1


@dataclass(frozen=True)
class Constants:
    """What the assumptions bound, and where training starts."""

    L: float  # Assumption 1, Eq. 8: how fast gradients change
    sigma_l2: float  # Assumption 3, Eq. 10: variance of a batch's gradient, sigma_l^2
    sigma_g2: float  # Assumption 3, Eq. 11: |grad F_i - grad f|^2, sigma_g^2
    gap: float  # f(w_0) - f*, how far the loss can fall
    M: float = 0.0  # Assumption 4, Eq. 12: remainder of completed updates
    gradient4: float = 0.0  # E |grad F_i|^4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (LOWEST_L if name == "L" else 0) <= value <= HIGHEST_CONSTANT:
                least = "above 0" if name == "L" else "of at least 0"
                raise BadInput(f"{name}: got {value:g}; it takes a number {least}, up to {HIGHEST_CONSTANT:g}")


@dataclass(frozen=True)
class Condition:
    """One condition on the rates: `value` must be at most `limit`, or below it."""

    name: Literal["local rate", "both rates", "progress"]
    formula: str
    value: float
    limit: float
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether the rates satisfy it. A limit that is reached to within rounding is reached."""
        return self.value < self.limit * (1 - SLACK) if self.strict else self.value <= self.limit * (1 + SLACK)


@dataclass(frozen=True)
class Bound:
    """What a theorem says of min_t E|grad f(w_t)|^2, in the parts that add up to it."""

    start: float  # (f_0 - f*) / (c1 eta_g eta_l E T): vanishes with the rounds
    noise: float  # batch noise that averages over devices; in Theorem 2 also which devices were drawn
    drift: float  # local models that move apart in the course of a round
    completion: float  # errors of completed updates

    @property
    def phi(self) -> float:
        """Phi_1 or Phi_2: what does not vanish with the rounds at fixed rates."""
        return self.noise + self.drift + self.completion

    @property
    def total(self) -> float:
        """The bound."""
        return self.start + self.phi


# The conditions


def list_conditions(s: Setting, L: float, reading: Reading = "derived") -> list[Condition]:
    """Return the conditions on the rates: of Theorem 1 (before Eq. 13), or of Theorem 2 (after Eq. 15)."""
    local = Condition(
        "local rate",
        "eta_l < 1 / (sqrt(30 (1 + rho)) L E)" if not s.partial else "eta_l <= 1 / (sqrt(30 (1 + rho)) L E)",
        s.eta_l,
        1 / (math.sqrt(30 * (1 + s.rho)) * L * s.E),
        strict=not s.partial,
    )
    if s.K is None:
        both = Condition(
            "both rates", "eta_g eta_l <= 1 / ((1 + rho) L E)", s.eta_g * s.eta_l, 1 / ((1 + s.rho) * L * s.E)
        )
        return [local, both]
    limit = math.inf if s.K == 1 else s.K / ((s.K - 1) * (1 + s.rho) * L)
    share = "K^2/N^2 " if reading == "printed" else ""
    return [
        local,
        Condition("both rates", "eta_g eta_l E <= K / ((K - 1) (1 + rho) L)", s.eta_g * s.eta_l * s.E, limit),
        Condition(
            "progress",
            f"(1 + rho) ({share}30 x^2 + eta_g (90 x^3 + 3 x) / K) < 1, x = eta_l L E",
            1 - 2 * d1(s, L, reading),
            1.0,
            strict=True,
        ),
    ]


def satisfies_conditions(s: Setting, L: float, reading: Reading = "derived") -> bool:
    """Return whether the rates satisfy all conditions."""
    return all(condition.holds for condition in list_conditions(s, L, reading))


def find_largest_lr(s: Setting, L: float, reading: Reading = "derived") -> float:
    """Return the eta_l up to which the conditions hold, with the setting's eta_g. All of them tighten with eta_l."""
    first = list_conditions(s, L, reading)
    at_most = min(first[0].limit, s.eta_l * first[1].limit / first[1].value)
    if not s.partial:
        return at_most
    low, high = 0.0, at_most
    if 1 - 2 * d1(replace(s, eta_l=high), L, reading) < 1:
        return high
    while low < (middle := (low + high) / 2) < high:
        if 1 - 2 * d1(replace(s, eta_l=middle), L, reading) < 1:
            low = middle
        else:
            high = middle
    return low


def find_largest_eta_g(s: Setting, L: float, reading: Reading = "derived") -> float:
    """Return the eta_g up to which the conditions hold, with the setting's eta_l; 0 if no eta_g helps."""
    conditions = list_conditions(s, L, reading)
    if not conditions[0].holds:
        return 0.0
    at_most = s.eta_g * conditions[1].limit / conditions[1].value
    if s.K is None:
        return at_most
    x = s.eta_l * L * s.E
    room = 1 - 30 * (1 + s.rho) * _share(s, reading) * x**2  # what the first part of the third condition leaves
    return min(at_most, max(0.0, room * s.K / ((1 + s.rho) * (90 * x**3 + 3 * x))))


# Theorem 1: full participation


def c1(s: Setting, L: float) -> float:
    """Return the largest c_1 of Theorem 1: 1/2 - 15 (1 + rho) E^2 eta_l^2 L^2. The bound is smallest with it."""
    return 0.5 - 15 * (1 + s.rho) * (s.E * s.eta_l * L) ** 2


def c2(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return c_2 of Theorem 1, which multiplies E|grad F_i|^4: what the errors of completed updates add.

    Derived: by Lemma 1, a completed update is wrong by at most m = M eta_l^2 tau_max^2 |grad F_i|^2, so their average
    over a round by rho m. |x + y|^2 <= (1 + rho) |x|^2 + (1 + 1/rho) |y|^2 gives rho (1 + rho) m^2 in A_2, and the same
    divided by eta_l^2 in A_3 / N^2. Together, over eta_g eta_l E: rho (1 + rho) m^2 (1 + L eta_g eta_l E) / (2 eta_l^2
    E^2). These errors have no reason to cancel, so there is no 1/N.
    """
    if reading == "printed":
        return s.eta_l * s.rho * k.M**2 * s.tau_max**2 / s.N * (s.eta_g * k.L + s.eta_l**3 * s.tau_max**2)
    m2 = (k.M * s.eta_l**2 * s.tau_max**2) ** 2
    return s.rho * (1 + s.rho) * m2 * (1 + k.L * s.eta_g * s.eta_l * s.E) / (2 * s.eta_l**2 * s.E**2)


def phi1(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return Phi_1 of Theorem 1: the part of its bound that does not vanish with the rounds."""
    return bound_full(s, k, reading).phi


def bound_full(s: Setting, k: Constants, reading: Reading = "derived") -> Bound:
    """Return Theorem 1's bound on min_t E|grad f|^2, Eq. 13; infinite if c_1 is not positive.

    Derived: A_2 is multiplied by L eta_g^2 / 2, so the first term of Phi_1 has a factor L, as d_2 has; and A_3 has a
    factor 1 + rho throughout, as d_3 has. The printed Phi_1 lacks both.
    """
    share = c1(s, k.L)
    if share <= 0:
        return _no_bound()
    noise = (1 + s.rho) * s.eta_g * s.eta_l * k.sigma_l2 / (2 * s.N)
    drift = 2.5 * s.eta_l**2 * s.E * k.L**2 * (k.sigma_l2 + 6 * s.E * k.sigma_g2)
    if reading == "derived":
        noise, drift = noise * k.L, drift * (1 + s.rho)
    completion = c2(s, k, reading) * k.gradient4
    return Bound(_start(s, k, share), noise / share, drift / share, completion / share)


# Theorem 2: partial participation


def d1(s: Setting, L: float, reading: Reading = "derived") -> float:
    """Return the largest d_1 of Theorem 2: 1/2 - 15 (1 + rho) E^2 eta_l^2 L^2 - the sampled devices' share.

    Derived: B_3 is a sum over all N devices (its factor is 1 / (2 N^2 E)). The proof bounds it as one over K, which
    puts K^2 / N^2 before the second term; the derivation has 1 there, as Theorem 2 of Yang et al. 2021.
    """
    x = s.E * s.eta_l * L
    sampled = (1 + s.rho) * s.eta_g * (90 * x**3 + 3 * x) / (2 * s.taking_part)
    return 0.5 - 15 * (1 + s.rho) * _share(s, reading) * x**2 - sampled


def d2(s: Setting, k: Constants) -> float:
    """Return d_2 of Theorem 2: (1 + rho) eta_g eta_l L / (2 K), before sigma_l^2 + 3 E sigma_g^2."""
    return (1 + s.rho) * s.eta_g * s.eta_l * k.L / (2 * s.taking_part)


def d3(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return d_3 of Theorem 2, before sigma_l^2 + 6 E sigma_g^2.

    It is (5/2 + 15 E L eta_l eta_g / (2 K)) (1 + rho) eta_l^2 E L^2: the statement lacks a bracket, which step b_11 of
    the proof has. The printed one has 5/2 K^2 / N^2, for which see d1.
    """
    sampled = 15 * s.E * k.L * s.eta_l * s.eta_g / (2 * s.taking_part)
    return (2.5 * _share(s, reading) + sampled) * (1 + s.rho) * s.eta_l**2 * s.E * k.L**2


def d4(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return d_4 of Theorem 2, which multiplies E|grad F_i|^4. Derived, it is the same as c_2: see there.

    The printed one also lacks the factor 1 / E that dividing the last line of step b_11 by eta_g eta_l E gives.
    """
    if reading == "printed":
        inner = k.L * s.eta_g / s.taking_part**2 + s.eta_l**3 * s.taking_part * s.tau_max**2 / s.N**2
        return s.eta_l * s.rho * s.tau_max**2 * k.M**2 * inner
    return c2(s, k)


def phi2(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return Phi_2 of Theorem 2: the part of its bound that does not vanish with the rounds."""
    return bound_partial(s, k, reading).phi


def bound_partial(s: Setting, k: Constants, reading: Reading = "derived") -> Bound:
    """Return Theorem 2's bound on min_t E|grad f|^2, Eq. 15; infinite if d_1 is not positive."""
    share = d1(s, k.L, reading)
    if share <= 0:
        return _no_bound()
    noise = d2(s, k) * (k.sigma_l2 + 3 * s.E * k.sigma_g2)
    drift = d3(s, k, reading) * (k.sigma_l2 + 6 * s.E * k.sigma_g2)
    completion = d4(s, k, reading) * k.gradient4
    return Bound(_start(s, k, share), noise / share, drift / share, completion / share)


def find_bound(s: Setting, k: Constants, reading: Reading = "derived") -> Bound:
    """Return the bound of the theorem that applies."""
    return bound_partial(s, k, reading) if s.partial else bound_full(s, k, reading)


def find_best_lr(s: Setting, k: Constants, reading: Reading = "derived") -> float:
    """Return the eta_l that satisfies the conditions and makes the bound smallest, with the setting's eta_g.

    The bound falls with eta_l as 1 / eta_l, and grows with it by every other term: it has one minimum.
    """

    def total(log_lr: float) -> float:
        return find_bound(replace(s, eta_l=math.exp(log_lr)), k, reading).total

    high = math.log(find_largest_lr(s, k.L, reading))
    low = high - 30  # a factor of 1e-13
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if total(left) <= total(right) else (left, high)
    return math.exp(low)


# The corollaries


def apply_corollary(s: Setting, L: float) -> Setting:
    """Return the setting with the corollaries' rates: eta_l = 1 / (sqrt(T) E L), eta_g = sqrt(E N) or sqrt(E K)."""
    return replace(s, eta_l=1 / (math.sqrt(s.T) * s.E * L), eta_g=math.sqrt(s.E * s.taking_part))


def find_rate(s: Setting) -> float:
    """Return the corollaries' rate: (1 + rho)/sqrt(E N T) + 1/T (Eq. 14), or (1 + rho) sqrt(E)/sqrt(T K) + 1/T (16)."""
    if s.K is None:
        return (1 + s.rho) / math.sqrt(s.E * s.N * s.T) + 1 / s.T
    return (1 + s.rho) * math.sqrt(s.E) / math.sqrt(s.T * s.K) + 1 / s.T


def find_fewest_rounds(s: Setting) -> int:
    """Return the T from which on the corollaries' rates satisfy the conditions. It does not depend on L.

    Full participation: T > 30 (1 + rho) and T >= (1 + rho)^2 E N.
    """
    low, high = 0, 1
    while not _corollary_holds(s, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _corollary_holds(s, middle) else (middle, high)
    return high


def _corollary_holds(s: Setting, T: int) -> bool:
    return satisfies_conditions(apply_corollary(replace(s, T=T), 1.0), 1.0)


def _share(s: Setting, reading: Reading) -> float:
    return (s.taking_part / s.N) ** 2 if reading == "printed" else 1.0


def _start(s: Setting, k: Constants, share: float) -> float:
    return k.gap / (share * s.eta_g * s.eta_l * s.E * s.T)


def _no_bound() -> Bound:
    return Bound(math.inf, math.inf, math.inf, math.inf)
