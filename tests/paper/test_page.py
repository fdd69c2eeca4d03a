"""An item's page: its table, its claims, and what it was made with."""

from __future__ import annotations

import csv
import shutil

from fedlga.paper.items import ITEMS
from fedlga.paper.page import describe_origin, make_page, make_table, write_item
from fedlga.paper.redraw import remake_page
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import make_setting
from run_folders import OLD_RUNS


def test_a_page_of_runs_of_an_earlier_version(tmp_path):
    """Every file is made from four runs that are done, and nothing is run."""
    shutil.copytree(OLD_RUNS / "paper-digits", tmp_path / "runs" / "digits")
    runs = ItemRuns(ITEMS["tau-max"], make_setting("digits"), [0], tmp_path, ["fedlga"])
    files = write_item(runs, "fedlga paper tau-max")
    assert [file.name for file in files] == [f"digits.{ending}" for ending in ("md", "csv", "svg", "png", "pdf")]
    assert all(file.stat().st_size > 200 for file in files)
    page = files[0].read_text()
    assert page == make_page(runs, describe_origin(runs, "fedlga paper tau-max"))
    assert page == remake_page(files[1]), "without the runs"
    assert "Does it hold here?" in page
    assert "fewer than five seeds can show nothing" in page
    assert "`fedlga paper tau-max`; python " in page
    rows = list(csv.DictReader(files[1].read_text().splitlines()))
    assert [row["point"] for row in rows] == ["tau-max-0.2", "tau-max-0.4", "tau-max-0.6", "base"]
    assert all(row["last_train_loss"] for row in rows)


def test_a_table_without_runs(tmp_path):
    runs = ItemRuns(ITEMS["tau-max"], make_setting("digits"), [0], tmp_path, ["fedlga"])
    rows = make_table(runs)
    assert [row["tau_max / E"] for row in rows] == ["0.2", "0.4", "0.6", "0.8"]
    assert {row["rounds to target"] for row in rows} == {"-"}
    assert "There are no runs to tell." in make_page(runs, "made by hand")


def test_what_the_paper_does_not_claim_is_not_judged(tmp_path):
    """Of devices and cohorts it speaks on CIFAR; of local work on every data set."""
    for name, dataset, claimed in (
        ("cohort", "digits", False),
        ("cohort", "cifar-10", True),
        ("epochs", "digits", True),
    ):
        runs = ItemRuns(ITEMS[name], make_setting(dataset), [0], tmp_path)
        page = make_page(runs, "made by hand")
        assert ("It is not claimed of this data set by the paper." in page) is not claimed
        assert ("The paper, of cifar-10 and cifar-100 alone: " in page) is not claimed
        assert any(claim.judged for claim in runs.item.claims(runs)) is claimed
