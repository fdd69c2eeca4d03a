"""Claims: tested on paired seeds, and what they come to."""

from __future__ import annotations

import pytest

from fedlga.experiments.statistics import compare_pairs
from fedlga.paper.claims import Claim, judge
from fedlga.paper.items import ITEMS
from fedlga.paper.page import make_table
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import make_setting
from run_folders import write_finished


def test_a_claim_is_tested_on_paired_seeds(tmp_path):
    """FedLGA two rounds ahead of FedAvg on all five seeds; FedProx never gets there."""
    runs = ItemRuns(ITEMS["accuracy"], make_setting("digits"), range(5), tmp_path)
    rounds = {"fedlga": 2, "fedavg": 4, "fedprox": None}
    for method, policy in runs.kinds:
        for seed in runs.seeds if method in rounds else []:
            folder = runs.folder(runs.points[0], method, policy, seed)
            facts = {"method": method, "stragglers": policy, "best_accuracy": 0.5}
            write_finished(folder, seed=seed, rounds_to_target=rounds[method], **facts)
    sentences = [claim.sentence() for claim in runs.item.claims(runs)]
    assert (
        sentences[0]
        == "FedLGA needs fewer rounds than FedAvg: holds (-2.0, 95 % interval -2.0 to -2.0, p = 0.031, 5 seeds)"
    )
    assert "holds" in sentences[1]
    assert "5 not in time" in sentences[1]
    assert sentences[2].endswith("no runs to tell")
    rows = {row["method"]: row for row in make_table(runs)}
    assert rows["FedLGA"]["rounds to target"] == "2 ± 0"
    assert rows["FedProx"]["rounds to target"] == "0 of 5 within 6"
    assert rows["FedDyn"]["rounds to target"] == "-"


def test_being_third_is_what_the_paper_claims(tmp_path):
    """A round of FedAvg and FedNova is shorter than FedLGA's, those of the others longer: just as the paper says."""
    runs = ItemRuns(ITEMS["runtime"], make_setting("digits"), range(5), tmp_path)
    seconds = {"fedavg": 1.0, "fednova": 1.1, "fedlga": 1.2, "scaffold": 1.3, "feddyn": 1.4, "fedprox": 1.5}
    for method, policy in runs.kinds:
        for seed in runs.seeds:
            folder = runs.folder(runs.points[0], method, policy, seed)
            facts = {"method": method, "stragglers": policy, "seconds_per_round": seconds[method], "seconds": 9.0}
            write_finished(folder, seed=seed, seconds_to_target=1.0 if method == "fedlga" else 2.0, **facts)
    claims = runs.item.claims(runs)
    assert all(claim.difference is not None and claim.difference.shown for claim in claims)
    assert judge(claims, 5) == "It holds here, in all 10 of its parts."
    assert judge(claims[:0], 5) == "There are no runs to tell."


def test_time_counts_only_as_far_as_both_ran(tmp_path):
    """Completing gives up after 100 s, waiting arrives after 300 s of 900: nothing can be said."""
    runs = ItemRuns(ITEMS["time"], make_setting("digits"), range(5), tmp_path)
    facts = {"wait": (300.0, 900.0), "complete": (None, 100.0)}
    for policy, (reached, ran) in facts.items():
        for seed in runs.seeds:
            folder = runs.folder(runs.points[0], "fedavg", policy, seed)
            more = {"simulated_seconds_to_target": reached, "simulated_seconds": ran, "stragglers": policy}
            write_finished(folder, seed=seed, method="fedavg", **more)
    difference = runs.item.claims(runs)[0].difference
    assert difference is not None
    assert difference.verdict == "not shown"
    assert judge(runs.item.claims(runs), 5).startswith("It is not shown here")


LOW, HIGH = dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 2.0)
MIXED = {0: 1.0, 1: 3.0, 2: 1.0, 3: 3.0, 4: 2.0}
HOLDS = Claim("it holds", compare_pairs(LOW, HIGH))
OPPOSITE = Claim("the opposite", compare_pairs(HIGH, LOW))
OPEN = Claim("neither", compare_pairs(MIXED, HIGH))
NO_RUNS = Claim("nothing", None)
TOO_FEW = "fewer than five seeds can show nothing"
ASIDE = Claim("besides", compare_pairs(HIGH, LOW), judged=False)


@pytest.mark.parametrize(
    ("claims", "seeds", "verdict"),
    [
        ([HOLDS], 5, "It holds here."),
        ([HOLDS, ASIDE], 5, "It holds here."),
        ([HOLDS, OPPOSITE], 5, "It does not hold here: 1 of 2 parts hold, of 1 the opposite holds."),
        ([HOLDS, OPEN], 5, "It holds in part: 1 of 2 parts hold, 1 are not shown."),
        ([HOLDS, NO_RUNS], 5, "It holds in part: 1 of 2 parts hold, 1 have no runs to tell."),
        ([OPEN], 5, "It is not shown here: 0 of 1 parts hold, 1 are not shown."),
        ([OPEN], 3, f"It is not shown here: 0 of 1 parts hold, 1 are not shown; {TOO_FEW}."),
        ([NO_RUNS], 5, "There are no runs to tell."),
        ([ASIDE], 5, "It is not claimed of this data set by the paper."),
    ],
)
def test_what_claims_come_to(claims, seeds, verdict):
    assert judge(claims, seeds) == verdict
