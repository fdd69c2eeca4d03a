"""The theorems: numbers re-derived by hand in exact fractions, and properties of the conditions."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedlga.core.settings import BadInput
from fedlga.theory.theorems import (
    HIGHEST_CONSTANT,
    HIGHEST_RATE,
    LOWEST_L,
    LOWEST_RATE,
    Constants,
    Reading,
    Setting,
    apply_corollary,
    bound_full,
    bound_partial,
    c1,
    c2,
    d1,
    d2,
    d3,
    d4,
    find_best_lr,
    find_bound,
    find_fewest_rounds,
    find_largest_eta_g,
    find_largest_lr,
    find_rate,
    list_conditions,
    phi1,
    phi2,
    satisfies_conditions,
)

FULL = Setting(N=10, K=None, E=5, T=100, rho=0.5, tau_max=4, eta_l=0.005, eta_g=2.0)
PARTIAL = replace(FULL, K=4)
KNOWN = Constants(L=3.0, sigma_l2=7.0, sigma_g2=2.0, gap=1.5, M=0.25, gradient4=16.0)


def exact(s: Setting, k: Constants) -> dict[str, Fraction]:
    """Return all values as exact fractions of the decimals above."""
    values = {**vars(s), **vars(k)}
    return {name: Fraction(str(value)) for name, value in values.items() if value is not None}


def rederive(s: Setting, k: Constants) -> tuple[Fraction, dict[str, Fraction]]:
    """Follow the appendix from the smoothness of f to the bound, step by step, in exact fractions.

    A quantity that the proof bounds is a dictionary from what it is bounded by ('grad2' is |grad f|^2, 'sum2' is
    |sum_i sum_e grad F_i(w_ie)|^2, 't2' is sum_i |t_i|^2) to its coefficient. Returns the coefficient of
    -eta_g eta_l E |grad f|^2, and the terms of Phi times it.
    """
    v = exact(s, k)
    N, E, L, rho, el, eg = (v[name] for name in ("N", "E", "L", "rho", "eta_l", "eta_g"))
    # Lemma 3: mean over devices of |w_ie - w|^2.
    drift2 = {
        "drift": 5 * E * el**2 * (v["sigma_l2"] + 6 * E * v["sigma_g2"]),
        "grad2": 30 * E**2 * el**2,
    }
    # Lemma 1, squared: the error of one completed update.
    m2 = (v["M"] * el**2 * v["tau_max"] ** 2) ** 2 * v["gradient4"]
    # A_3: |sum over N devices and E steps|^2 <= N E sums of squares, each <= L^2 |w_ie - w|^2; Young with rho for the
    # errors of rho N devices, which are errors of updates: divided by eta_l they are errors of sums of gradients.
    a3 = {name: (1 + rho) * N * E * L**2 * N * E * value for name, value in drift2.items()}
    a3["completion"] = (1 + 1 / rho) * (rho * N) ** 2 * m2 / el**2 if rho else Fraction(0)
    # A_1 = eta_l E / 2 |grad f|^2 + eta_l / (2 N^2 E) (A_3 - sum2)
    a1 = {name: el / (2 * N**2 * E) * value for name, value in a3.items()}
    a1["grad2"] += el * E / 2
    a1["sum2"] = -el / (2 * N**2 * E)
    # A_2 = E|Delta|^2, Young with rho again: (1 + rho) |mean of true updates|^2 + (1 + 1/rho) (rho m)^2
    a2 = {"completion": (1 + 1 / rho) * rho**2 * m2 if rho else Fraction(0)}
    if s.K is None:  # A_4 <= E eta_l^2 N sigma_l^2 + eta_l^2 sum2, over N^2
        a2["noise"] = (1 + rho) / N**2 * E * el**2 * N * v["sigma_l2"]
        a2["sum2"] = (1 + rho) / N**2 * el**2
    else:  # B_4, with E|sum of K drawn t|^2 = K/N t2 + K (K - 1) / N^2 sum2
        K = v["K"]
        a2["noise"] = (1 + rho) / K**2 * K * E * el**2 * v["sigma_l2"]
        a2["sum2"] = (1 + rho) / K**2 * el**2 * K * (K - 1) / N**2
        t2 = (1 + rho) / K**2 * el**2 * K / N
        # t_i: sum over devices of |sum_e grad F_i(w_ie)|^2 <= 3 E^2 (N L^2 drift + N sigma_g^2 + N |grad f|^2)
        a2["drift"] = t2 * 3 * E**2 * N * L**2 * drift2["drift"]
        a2["grad2"] = t2 * 3 * E**2 * N * (L**2 * drift2["grad2"] + 1)
        a2["noise"] += t2 * 3 * E**2 * N * v["sigma_g2"]
    # f(w+) <= f - eta_g eta_l E |grad f|^2 + eta_g A_1 + L eta_g^2 / 2 A_2; sum2 must not be positive.
    total = {name: eg * a1.get(name, Fraction(0)) + L * eg**2 / 2 * a2.get(name, Fraction(0)) for name in {*a1, *a2}}
    assert total.pop("sum2") <= 0
    share = (eg * el * E - total.pop("grad2")) / (eg * el * E)
    return share, {name: value / (eg * el * E) for name, value in total.items()}


@pytest.mark.parametrize("s", [FULL, PARTIAL, replace(FULL, rho=0.0), replace(PARTIAL, rho=1.0, K=1, eta_l=0.002)])
def test_bounds_are_what_the_steps_of_the_proof_give(s: Setting):
    share, terms = rederive(s, KNOWN)
    bound = find_bound(s, KNOWN)
    assert (d1(s, KNOWN.L) if s.partial else c1(s, KNOWN.L)) == pytest.approx(float(share))
    assert bound.noise == pytest.approx(float(terms["noise"] / share))
    assert bound.drift == pytest.approx(float(terms["drift"] / share))
    assert bound.completion == pytest.approx(float(terms["completion"] / share))
    v = exact(s, KNOWN)
    assert bound.start == pytest.approx(float(v["gap"] / (share * v["eta_g"] * v["eta_l"] * v["E"] * v["T"])))
    assert bound.total == pytest.approx(bound.start + bound.phi)


@pytest.mark.parametrize("s", [FULL, PARTIAL, replace(FULL, rho=1.0), replace(PARTIAL, rho=1.0, K=2)])
def test_errors_in_the_term_that_step_a1_subtracts_change_nothing(s: Setting):
    """Keep the errors e of completed updates in that term, and in A_2 take them apart from the batch noise n alone.

    2 <e, n> <= rho |n|^2 + |e|^2 / rho, so |S + e + n|^2 <= |S + e|^2 + (1 + rho) |n|^2 + |e|^2 / rho; the proof takes
    S and n for independent. No constant grows if rho K >= 2, and the second condition needs no 1 + rho.
    """
    share, terms = rederive(s, KNOWN)
    v = exact(s, KNOWN)
    N, E, L, rho, el, eg = (v[name] for name in ("N", "E", "L", "rho", "eta_l", "eta_g"))
    m2 = (v["M"] * el**2 * v["tau_max"] ** 2) ** 2 * v["gradient4"]  # of an update: |e|^2 <= (rho N)^2 m2 / el^2
    drift = 5 * E * el**2 * (v["sigma_l2"] + 6 * E * v["sigma_g2"])
    taking_part = N if s.K is None else v["K"]
    noise = (1 + rho) * E * el**2 * v["sigma_l2"] / taking_part
    completion = rho * m2
    moved = grad2 = Fraction(0)
    if s.K is not None:  # rho of the devices: |t + e|^2 <= 2 |t|^2 + 2 |e|^2, the others have no error
        completion += 2 * rho * m2 / taking_part
        t2 = (1 + rho) * el**2 / taking_part * 3 * E**2
        moved, grad2, noise = t2 * L**2 * drift, t2 * (30 * E**2 * el**2 * L**2 + 1), noise + t2 * v["sigma_g2"]
        assert L * eg**2 / 2 * el**2 * (taking_part - 1) / (taking_part * N**2) <= eg * el / (2 * N**2 * E)
    else:
        assert L * eg**2 / 2 * el**2 / N**2 <= eg * el / (2 * N**2 * E)
    a2, a1, all_steps = L * eg**2 / 2, eg * el / (2 * E), eg * el * E
    a3 = (1 + rho) * E**2 * L**2  # over N^2
    assert 1 - (a1 * (a3 * 30 * E**2 * el**2 + E**2) + a2 * grad2) / all_steps >= share
    assert (a2 * noise) / all_steps <= terms["noise"]
    assert (a1 * a3 * drift + a2 * moved) / all_steps <= terms["drift"]
    assert (a1 * rho * (1 + rho) * m2 / el**2 + a2 * completion) / all_steps <= terms["completion"]


@pytest.mark.parametrize("s", [FULL, PARTIAL, replace(FULL, rho=1.0), replace(PARTIAL, rho=1.0, K=2)])
def test_what_closing_the_gap_in_steps_a5_and_b4_costs(s: Setting):
    """The gradients S = S_0 + D after the noise n depend on it. S_0, at w_t, does not: 2 <D, n> <= |D|^2 + |n|^2.

    So A_2 gets |n|^2 and |D|^2 once more: 1 + rho becomes 2 + rho before sigma_l^2, and at most 2 + rho before |D|^2,
    because A_2 has |D|^2 with L eta_g eta_l E times the factor that A_1 has, which the conditions keep below 1 (of K
    drawn devices only each one's own noise and gradients depend on each other: L eta_g eta_l E / K).
    """
    v = exact(s, KNOWN)
    L, E, rho, el, eg = (v[name] for name in ("L", "E", "rho", "eta_l", "eta_g"))
    extra = L * eg * el * E / (v["K"] if s.partial else 1)
    assert extra <= 1
    half_drift = L**2 * 5 * E * el**2 / 2  # before sigma_l^2 + 6 E sigma_g^2, without a factor of rho
    assert half_drift * (1 + rho + extra) <= half_drift * (2 + rho)
    # Noise: L eta_g^2 / 2 times (1 + rho + 1) E eta_l^2 sigma_l^2 / K, over eta_g eta_l E.
    more = float(L * eg * el * v["sigma_l2"] / (2 * s.taking_part))
    now = d2(s, KNOWN) * KNOWN.sigma_l2
    assert now + more == pytest.approx(now * float((2 + rho) / (1 + rho)))


def test_constants_of_theorem_1_by_hand():
    # x = E eta_l L = 5 * 0.005 * 3 = 0.075; c1 = 1/2 - 15 * 1.5 * 0.005625 = 0.3734375
    assert c1(FULL, 3.0) == pytest.approx(0.3734375)
    # m^2 = (0.25 * 0.000025 * 16)^2 = 1e-8; c2 = 0.75 * 1e-8 * (1 + 3 * 2 * 0.005 * 5) / (2 * 0.000025 * 25) = 6.9e-6
    assert c2(FULL, KNOWN) == pytest.approx(0.75e-8 * 1.15 / 0.00125)
    # noise 1.5 * 3 * 0.01 * 7 / 20 = 0.01575; drift 2.5 * 1.5 * 0.000025 * 5 * 9 * (7 + 60) = 0.28265625
    phi = (0.01575 + 0.28265625 + 16 * 6.9e-6) / 0.3734375
    assert phi1(FULL, KNOWN) == pytest.approx(phi)
    # start 1.5 / (0.3734375 * 2 * 0.005 * 5 * 100) = 0.80335
    assert bound_full(FULL, KNOWN).total == pytest.approx(1.5 / (0.3734375 * 5) + phi)


def test_constants_of_theorem_2_by_hand():
    # x = 0.075: 90 x^3 + 3 x = 0.03796875 + 0.225; d1 = 0.3734375 - 1.5 * 2 * 0.26296875 / 8 = 0.27482421875
    assert d1(PARTIAL, 3.0) == pytest.approx(0.27482421875)
    assert d2(PARTIAL, KNOWN) == pytest.approx(1.5 * 2 * 0.005 * 3 / 8)
    # 5/2 + 15 * 5 * 3 * 0.005 * 2 / 8 = 2.78125; times 1.5 * 0.000025 * 5 * 9
    assert d3(PARTIAL, KNOWN) == pytest.approx(2.78125 * 0.0016875)
    assert d4(PARTIAL, KNOWN) == c2(PARTIAL, KNOWN)
    phi = (0.005625 * (7 + 30) + 2.78125 * 0.0016875 * (7 + 60) + 16 * 6.9e-6) / 0.27482421875
    assert phi2(PARTIAL, KNOWN) == pytest.approx(phi)


def test_the_statement_to_the_letter():
    printed = bound_full(FULL, KNOWN, "printed")
    assert printed.noise == pytest.approx(bound_full(FULL, KNOWN).noise / 3)  # no L
    assert printed.drift == pytest.approx(bound_full(FULL, KNOWN).drift / 1.5)  # no 1 + rho
    # eta_l rho M^2 tau^2 / N (eta_g L + eta_l^3 tau^2) = 0.005 * 0.5 * 0.0625 * 16 / 10 * (6 + 1.25e-7 * 16)
    assert c2(FULL, KNOWN, "printed") == pytest.approx(0.00025 * 6.000002)
    # 1/2 - 15 * 1.5 * 16/100 * 0.005625 - 0.09861328125
    assert d1(PARTIAL, 3.0, "printed") == pytest.approx(0.5 - 0.02025 - 0.09861328125)
    assert d3(PARTIAL, KNOWN, "printed") == pytest.approx((0.4 + 0.28125) * 0.0016875)
    # 0.005 * 0.5 * 16 * 0.0625 * (3 * 2 / 16 + 1.25e-7 * 4 * 16 / 100)
    assert d4(PARTIAL, KNOWN, "printed") == pytest.approx(0.0025 * (0.375 + 8e-8))
    assert list_conditions(PARTIAL, 3.0, "printed")[2].value == pytest.approx(1 - 2 * d1(PARTIAL, 3.0, "printed"))
    assert bound_partial(PARTIAL, KNOWN, "printed").total < bound_partial(PARTIAL, KNOWN).total


def test_conditions_by_hand():
    local, both = list_conditions(FULL, 3.0)
    assert (local.limit, both.limit) == (pytest.approx(1 / (math.sqrt(45) * 15)), pytest.approx(1 / 22.5))
    assert (local.value, both.value) == (0.005, 0.01)
    *_, both, progress = list_conditions(PARTIAL, 3.0)
    assert both.limit == pytest.approx(4 / (3 * 1.5 * 3))
    # 30 * 1.5 * 0.005625 + 1.5 * 2 / 4 * 0.26296875
    assert progress.value == pytest.approx(0.253125 + 0.1972265625)
    assert list_conditions(replace(PARTIAL, K=1), 3.0)[1].limit == math.inf


def test_a_limit_that_is_reached_counts_only_where_the_theorem_says_at_most():
    at_limit = replace(FULL, eta_l=list_conditions(FULL, 3.0)[0].limit)
    assert not list_conditions(at_limit, 3.0)[0].holds
    assert list_conditions(replace(at_limit, K=4), 3.0)[0].holds


def test_fewest_rounds_of_the_corollaries():
    # Full: T > 30 * 1.5 = 45 and T >= 1.5^2 * 5 * 10 = 112.5
    assert find_fewest_rounds(FULL) == 113
    # Without stragglers T >= 50 exactly, which must not fail by rounding.
    assert find_fewest_rounds(replace(FULL, rho=0.0)) == 50
    assert find_fewest_rounds(replace(FULL, rho=0.0, N=1, E=1)) == 31
    T = find_fewest_rounds(PARTIAL)
    assert satisfies_conditions(apply_corollary(replace(PARTIAL, T=T), 7.0), 7.0)
    assert not satisfies_conditions(apply_corollary(replace(PARTIAL, T=T - 1), 7.0), 7.0)


@pytest.mark.parametrize("L", [0.7, 3.0, 7.97, 22.1])
@pytest.mark.parametrize(("N", "E"), [(4, 9), (4, 10), (3, 11), (6, 5), (1, 1)])
def test_the_fewest_rounds_satisfy_the_conditions_to_the_last_bit(N: int, E: int, L: float):
    """rho = 0: T >= E N, and T > 30. At T = E N two equal numbers are compared, and at T = 30 too."""
    s = Setting(N=N, K=None, E=E, T=max(N * E, 31), rho=0.0, tau_max=E, eta_l=1.0, eta_g=1.0)
    assert find_fewest_rounds(s) == s.T
    assert satisfies_conditions(apply_corollary(s, L), L)
    fewer = replace(s, T=s.T - 1)
    assert not satisfies_conditions(apply_corollary(fewer, L), L)


def test_rates_of_the_corollaries():
    s = apply_corollary(FULL, 3.0)
    assert (s.eta_l, s.eta_g) == (pytest.approx(1 / 150), pytest.approx(math.sqrt(50)))
    assert apply_corollary(PARTIAL, 3.0).eta_g == pytest.approx(math.sqrt(20))
    assert find_rate(FULL) == pytest.approx(1.5 / math.sqrt(5000) + 0.01)
    assert find_rate(PARTIAL) == pytest.approx(1.5 * math.sqrt(5) / math.sqrt(400) + 0.01)


def test_rates_that_are_too_large_have_no_bound():
    for s in (replace(FULL, eta_l=1.0), replace(PARTIAL, eta_l=1.0)):
        assert find_bound(s, KNOWN).total == math.inf


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rho": 1.5}, "rho: got 1.5; it takes a number from 0 to 1"),
        ({"eta_l": 0.0}, "eta_l: got 0; it takes a number above 0"),
        ({"eta_g": math.inf}, "eta_g: got inf; it takes a number above 0"),
        ({"K": 0}, "K: got 0; it takes a whole number of at least 1"),
        ({"N": 2.5}, "N: got 2.5; it takes a whole number of at least 1"),
        ({"E": math.nan}, "E: got nan; it takes a whole number of at least 1"),
        ({"T": math.inf}, "T: got inf; it takes a whole number of at least 1"),
        ({"tau_max": 0.5}, "tau_max: got 0.5; it takes a number of at least 1"),
    ],
)
def test_bad_settings(change: dict[str, float], line: str):
    with pytest.raises(BadInput, match=line):
        replace(FULL, **change)
    with pytest.raises(BadInput, match="L: got 0; it takes a number above 0"):
        replace(KNOWN, L=0)
    with pytest.raises(BadInput, match=r"M: got 1e\+200; it takes a number of at least 0, up to 1e\+60"):
        replace(KNOWN, M=1e200)


@pytest.mark.parametrize("K", [None, 4])
@pytest.mark.parametrize("L", [LOWEST_L, HIGHEST_CONSTANT])
@pytest.mark.parametrize("reading", ["derived", "printed"])
def test_no_number_that_is_taken_is_too_large_to_compute_with(K: int | None, L: float, reading: Reading):
    extreme = Constants(L, *[HIGHEST_CONSTANT] * 5)
    for rate in (LOWEST_RATE, HIGHEST_RATE):
        s = replace(FULL, K=K, eta_l=rate, eta_g=rate)
        assert find_bound(s, extreme, reading).total > 0
        assert find_largest_eta_g(s, L, reading) >= 0
        assert find_largest_lr(s, L, reading) >= 0
    s = replace(FULL, K=K)
    assert satisfies_conditions(replace(s, eta_l=find_best_lr(s, extreme, reading)), L, reading)


# Properties

positive = st.floats(0.01, 100)
settings = st.builds(
    Setting,
    N=st.integers(1, 500),
    K=st.none() | st.integers(1, 100),
    E=st.integers(1, 100),
    T=st.integers(1, 10**6),
    rho=st.floats(0, 1),
    tau_max=st.floats(1, 100),
    eta_l=st.floats(1e-5, 1),
    eta_g=st.floats(0.01, 100),
)
constants = st.builds(
    Constants, L=positive, sigma_l2=positive, sigma_g2=positive, gap=positive, M=positive, gradient4=positive
)


@given(settings, positive, st.floats(1.001, 10))
def test_conditions_tighten_with_rho_steps_and_curvature(s: Setting, L: float, factor: float):
    largest = find_largest_lr(s, L)
    worse = [(replace(s, E=math.ceil(s.E * factor)), L), (s, L * factor)]
    if s.rho * factor <= 1:
        worse.append((replace(s, rho=s.rho * factor), L))
    for other, other_L in worse:
        assert find_largest_lr(other, other_L) <= largest * (1 + 1e-9)
        assert find_largest_eta_g(other, other_L) <= find_largest_eta_g(s, L) * (1 + 1e-9)
        if satisfies_conditions(other, other_L):
            assert satisfies_conditions(s, L)
    assert find_largest_lr(s, 2 * L) == pytest.approx(largest / 2)
    assert find_fewest_rounds(replace(s, rho=1.0)) >= find_fewest_rounds(s)


@given(settings, positive)
def test_the_largest_rates_are_where_the_conditions_end(s: Setting, L: float):
    largest = find_largest_lr(s, L)
    assert satisfies_conditions(replace(s, eta_l=largest * 0.999), L)
    assert not satisfies_conditions(replace(s, eta_l=largest * 1.001), L)
    if (most := find_largest_eta_g(s, L)) > 0 and math.isfinite(most):
        assert satisfies_conditions(replace(s, eta_g=most * 0.999), L)
        assert not satisfies_conditions(replace(s, eta_g=most * 1.001), L)
    else:
        assert not satisfies_conditions(replace(s, eta_g=1e-9), L)


@given(settings, constants, positive, positive)
def test_the_bound_does_not_depend_on_units(s: Setting, k: Constants, loss: float, length: float):
    """f in another unit, and w in another: |grad f|^2 changes by (loss / length)^2, and so must its bound."""
    other = Constants(
        L=k.L * loss / length**2,
        sigma_l2=k.sigma_l2 * (loss / length) ** 2,
        sigma_g2=k.sigma_g2 * (loss / length) ** 2,
        gap=k.gap * loss,
        M=k.M / length,
        gradient4=k.gradient4 * (loss / length) ** 4,
    )
    rates = replace(s, eta_l=s.eta_l * length**2 / loss)
    share = d1(s, k.L) if s.partial else c1(s, k.L)
    assume(share > 1e-3)  # next to 0, the last bits decide
    assert find_bound(rates, other).total == pytest.approx((loss / length) ** 2 * find_bound(s, k).total, rel=1e-6)


def test_the_printed_bound_depends_on_units():
    cents = replace(KNOWN, L=300.0, sigma_l2=70000.0, sigma_g2=20000.0, gap=150.0, gradient4=16e8)
    ratio = (
        bound_full(replace(FULL, eta_l=FULL.eta_l / 100), cents, "printed").noise
        / bound_full(FULL, KNOWN, "printed").noise
    )
    assert ratio == pytest.approx(100)  # and not 100^2


@given(settings, constants)
def test_the_bound_grows_with_what_is_assumed(s: Setting, k: Constants):
    bound = find_bound(s, k).total
    for name in ("sigma_l2", "sigma_g2", "gap", "M", "gradient4", "L"):
        assert find_bound(s, replace(k, **{name: 2 * getattr(k, name)})).total >= bound
    assert find_bound(replace(s, T=2 * s.T), k).total <= bound
    assert find_bound(replace(s, rho=1.0), k).total >= bound


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 1), constants, st.sampled_from([True, False]))
def test_the_corollaries_bound_falls_as_their_rate(N: int, E: int, rho: float, k: Constants, partial: bool):
    """With the corollaries' rates, once T is large, four times the rounds halve the bound."""
    s = Setting(N=N, K=N if partial else None, E=E, T=1, rho=rho, tau_max=E, eta_l=1.0, eta_g=1.0)
    T = 10**20  # the terms in 1/T, with any of the constants above, are small then
    totals = [find_bound(apply_corollary(replace(s, T=rounds), k.L), k).total for rounds in (T, 4 * T)]
    assert totals[0] / totals[1] == pytest.approx(2, rel=0.05)
