"""The tables of README and docs are those that results/ gives, and nobody writes one by hand."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("make_tables", ROOT / "tools" / "make_tables.py")
assert _spec is not None
assert _spec.loader is not None
tables = importlib.util.module_from_spec(_spec)
sys.modules["make_tables"] = tables  # dataclasses look their module up
_spec.loader.exec_module(tables)

PAGE = "<!-- table rounds folder=policies -->\n<!-- end table -->\n"
# Rounds of wait: 10, 12 and 14. Mean 12, deviation 2, and t of two degrees of freedom 4.303: 4.303 * 2 / sqrt(3) = 5.
RUNS = """method,stragglers,settings,seed,rounds_to_target,simulated_seconds_to_target
fedavg,wait,,0,10,100
fedavg,wait,,1,12,120
fedavg,wait,,2,14,140
fedavg,complete,,0,11,55
fedavg,complete,,1,12,60
fedavg,complete,,2,15,75
"""
HONEST = f"Here, {tables.PLUS_MINUS}.\n\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with a page of one table, which is not made yet, and its data."""
    (tmp_path / "results" / "policies").mkdir(parents=True)
    (tmp_path / "results" / "policies" / "runs.csv").write_text(RUNS, encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    (tmp_path / "README.md").write_text(HONEST + PAGE, encoding="utf-8")
    return tmp_path


# The pages of this repository


def test_every_table_is_current_and_none_is_written_by_hand(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr()


def test_every_function_makes_a_table_of_a_page():
    pages = "".join(file.read_text(encoding="utf-8") for file in tables.list_pages())
    assert set(re.findall(r"^<!-- table ([a-z-]+)", pages, re.MULTILINE)) == set(tables.TABLES)


def test_the_lists_of_exceptions_name_what_exists():
    for page, header in tables.UNMEASURED:
        assert header in (ROOT / page).read_text(encoding="utf-8").split("\n"), (page, header)
    assert all((ROOT / page).is_file() for page in tables.TRANSCRIPTS)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "results" / "paper").glob("*/*.md")), ids=lambda f: f"{f.parent.name}-{f.stem}"
)
def test_counted_parts_are_those_of_the_verdict(file):
    parts, verdict = tables.count_parts(file), tables.read_verdict(file)
    if parts["holds"] == parts.total():
        assert verdict.startswith("holds here")
    else:
        assert f"{parts['holds']} of {parts.total()} parts hold" in verdict
    assert f"of {parts['the opposite holds']} the opposite holds" in verdict or not parts["the opposite holds"]
    assert f"{parts['not shown']} are not shown" in verdict or not parts["not shown"]


# Stale tables


def test_a_stale_table_is_named_and_written(repository, capsys):
    page = repository / "README.md"
    assert tables.main(["--check"]) == 1
    assert capsys.readouterr().out == "README.md: table 'rounds folder=policies' is stale: make tables\n"
    assert page.read_text(encoding="utf-8") == HONEST + PAGE

    assert tables.main([]) == 0
    assert "| wait | 12 ± 5 |" in page.read_text(encoding="utf-8")
    assert tables.main(["--check"]) == 0


def test_a_changed_cell_is_noticed_and_put_right(repository):
    current, _ = tables.update(PAGE)
    assert tables.update(current) == (current, [])
    assert tables.update(current.replace("12 ± 5", "12 ± 6")) == (current, ["rounds folder=policies"])


def test_a_page_of_an_item_is_written_again_when_its_claims_change(repository, capsys):
    """Its last line, which says how the runs were made, stays. Rows without what the claims need leave it alone: those
    of a running time without the seconds of whole runs, as earlier versions wrote them.
    """
    (repository / "README.md").write_text("", encoding="utf-8")
    pages = {"rho": "fashion-mnist", "runtime": "fashion-mnist"}
    for item, setting in pages.items():
        shutil.copytree(ROOT / "results" / "paper" / item, repository / "results" / "paper" / item)
        page = repository / "results" / "paper" / item / f"{setting}.md"
        page.write_text(page.read_text(encoding="utf-8").replace("The paper: ", "Somebody: "), encoding="utf-8")
    rho, runtime = (repository / "results" / "paper" / i / f"{s}.md" for i, s in pages.items())
    runtime.with_suffix(".csv").write_text("point,method,stragglers,seed,seconds_to_target\n", encoding="utf-8")
    assert tables.main(["--check"]) == 1
    assert capsys.readouterr().out == "results/paper/rho/fashion-mnist.md: the page is stale: make tables\n"
    assert "Somebody: " in rho.read_text(encoding="utf-8")
    assert tables.main([]) == 0
    assert rho.read_bytes() == (ROOT / "results" / "paper" / "rho" / "fashion-mnist.md").read_bytes()
    assert "Somebody: " in runtime.read_text(encoding="utf-8")
    assert tables.main(["--check"]) == 0


def test_a_ratio_of_rounds_is_that_of_the_means_and_not_of_what_is_shown(repository):
    """12 and 13 rounds against 9 and 10: 12.5 / 9.5 is 1.32, and 12 / 10 would be 1.2."""
    (repository / "results" / "rates").mkdir()
    rows = [f"batch,0.01,1,{method},{seed},{r}" for method, rs in (("fedavg", (12, 13)), ("fedlga", (9, 10)))
            for seed, r in enumerate(rs)]  # fmt: skip
    text = "variant,lr,eta_g,method,seed,rounds_to_target\n" + "\n".join(rows)
    (repository / "results" / "rates" / "rates.csv").write_text(text, encoding="utf-8")
    (row,) = tables.rates()
    assert (row["FedAvg"], row["FedLGA"], row["FedAvg / FedLGA"]) == ("12.5", "9.5", "1.32")


def test_changed_data_are_noticed(repository):
    current, _ = tables.update(PAGE)
    data = repository / "results" / "policies" / "runs.csv"
    text = data.read_text(encoding="utf-8")
    data.write_text(text.replace("fedavg,wait,,0,10,", "fedavg,wait,,0,310,"), encoding="utf-8")
    changed, stale = tables.update(current)
    assert stale == ["rounds folder=policies"]
    assert "| wait | 112 ± " in changed  # one of three seeds needs 300 rounds more


# Wrong calls


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nothing", "unknown table 'nothing'; takes one of aggregator, attack-losses, attacks, "),
        ("rounds", "table rounds: missing a required argument: 'folder'"),
        ("rounds folder=policies seeds=3", "table rounds: got an unexpected keyword argument 'seeds'"),
        ("rounds policies", "table rounds: 'policies' is not one argument=value"),
        ("rounds folder=policies folder=fleet", "table rounds: 'folder=fleet' is not one argument=value"),
        ("rounds folder=nothing", "there is no results/nothing/runs.csv"),
        ("rounds folder=sensitivity", "results/sensitivity/runs.csv has a policy with several methods or settings"),
        ("tuned regime=nothing", "there is no results/tuned/nothing/paired.csv"),
        ("growth over=time", "over=time: takes one of devices, cohort, parameters"),
        ("paper-sweep item=loss setting=fashion-mnist", "item=loss: takes one of tau-max, epochs, "),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(call, said):
    with pytest.raises(tables.BadTable) as error:
        tables.update(PAGE.replace("rounds folder=policies", call))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_fails_the_command_with_its_page(repository, capsys):
    (repository / "README.md").write_text("<!-- table nothing -->\n<!-- end table -->\n", encoding="utf-8")
    assert tables.main([]) == 1
    assert re.fullmatch(r"README.md: unknown table 'nothing'; takes one of .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- table where -->\n", "table 'where' has no end"),
        ("<!-- end table -->\n", "line 1: the end of a table that did not start"),
        ("<!-- table where -->\n<!-- table speed -->\n<!-- end table -->\n", "line 2: a table starts inside table"),
    ],
)
def test_comments_that_do_not_match_are_refused(text, said):
    with pytest.raises(tables.BadTable, match=said):
        tables.update(text)


# Tables by hand


@pytest.mark.parametrize(
    "text",
    [
        "| policy | rounds |\n|---|---|\n| wait | 107 |\n",
        "policy | rounds\n--- | ---\nwait | 107\n",
        "| 2 devices | 10 devices |\n|:-:|--:|\n| fast | slow |\n",
        "| policy | rounds |\n|---|---|\n| wait | `107` |\n",
        "> | policy | rounds |\n> |---|---|\n> | wait | 107 |\n",
        "- a list\n\n  | policy | rounds |\n  |---|---|\n  | wait | 107 |\n",
        "<!-- table where-->\n\n| policy | rounds |\n|---|---|\n| wait | 107 |\n",
        "<table><tr><td>wait</td><td>107</td></tr></table>\n",
        "See <TD>107</TD>.\n",
        "```\npolicy  rounds  seconds\nwait    107     1229\ndrop    111     554\n```\n",
        "Text.\n\n    wait    107     74.1%\n    drop    111     47.8%\n",
    ],
)
def test_a_table_of_numbers_by_hand_is_noticed(text):
    faults = list(tables.find_faults("docs/new.md", text))
    assert faults
    assert all(re.match(r"line \d+: .*table", fault) for fault in faults)


@pytest.mark.parametrize(
    "text",
    [
        "| policy | what it means |\n|---|---|\n| `drop` | unfinished work is thrown away |\n",
        "```\nfedlga run --set rho=0.9 --set tau_max=5\nfedlga run --rounds 20\n```\n",
        "Ten seeds gave 107 and 111 rounds.\n",
    ],
)
def test_text_commands_and_tables_without_numbers_may_be_written_by_hand(text):
    assert list(tables.find_faults("docs/new.md", text)) == []


def test_a_listed_table_may_not_get_a_column():
    page, header = "docs/flower.md", "| event | what happens | tested with |"
    assert (page, header) in tables.UNMEASURED
    assert not list(tables.find_faults(page, f"{header}\n|---|---|---|\n| a | b | 25 kinds |\n"))
    assert list(tables.find_faults(page, f"{header} seconds |\n|---|---|---|---|\n| a | b | c | 25 |\n"))
    assert list(tables.find_faults("docs/new.md", f"{header}\n|---|---|---|\n| a | b | 25 kinds |\n"))


@pytest.mark.parametrize(("words", "times"), [("", 0), (HONEST + HONEST, 2)])
def test_a_page_says_once_what_plus_minus_means(repository, words, times):
    (fault,) = tables.find_faults("README.md", words + tables.update(PAGE)[0])
    assert fault.startswith(f"says {times} times, not once, that '± is half of the 95 % interval")


# Numbers


def test_plus_minus_is_half_of_the_interval_of_the_mean():
    # Mean 2, standard deviation 1. Student's t with 2 degrees of freedom is below 4.3027 with probability 97.5 %, so
    # half of the interval is 4.3027 / sqrt(3) = 2.48.
    assert tables.show([1.0, 2.0, 3.0], ".2f") == "2.00 ± 2.48"
    assert tables.show([1.0, 2.0, 3.0], "+.1f") == "+2.0 ± 2.5"


def test_two_seeds_have_no_interval_and_a_run_that_never_arrived_leaves_no_mean():
    assert tables.show([1.0, 3.0], ".2f") == "2.00"
    assert tables.show([1.0, None, 3.0], ".2f") == "2 of 3"


def test_differences_are_taken_seed_by_seed():
    def arm(policy, *rounds):
        runs = [{"seed": str(seed), "rounds_to_target": text} for seed, text in enumerate(rounds)]
        return tables.Arm("fedavg", policy, "", runs)

    wait = arm("wait", "100", "200", "300")
    assert tables.show_gap(arm("keep", "110", "210", "310"), wait) == "+10.0 ± 0.0"
    assert tables.show_gap(arm("drop", "110", "", "310"), wait) == "-"  # one seed never reached the target
    assert tables.show_gap(wait, wait) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0034066, "3.4 ms"),
        (0.52789, "530 ms"),
        (0.9996, "1,000 ms"),
        (1.917, "1.9 s"),
        (43.12, "43 s"),
        (0.01, "10 ms"),
    ],
)
def test_times_have_two_figures(value, text):
    assert tables.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(12730, "12,730"), (318010, "0.3 million"), (99_998_290, "100 million")])
def test_parameters_are_counted_in_millions(value, text):
    assert tables.count(value) == text
