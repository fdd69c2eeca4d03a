"""The HTML page: what it says, and how a real browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from torch import nn

from browsing import (
    count_colours,
    drag_over,
    is_dark,
    needs_browser,
    open_browser,
    point_at,
    read_errors,
    set_screen,
    wait_until,
)
from fedlga.experiments.compare import Plan, run_plan, start
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.records import Run, read_run
from fedlga.experiments.run import run, run_and_record
from fedlga.experiments.simulation import load_data
from fedlga.learning.task import Task
from fedlga.report.curves import AXES, COSTS, list_styles
from fedlga.report.devices import COMPLETED, DROPPED, FINISHED, KEPT, NOT_ASKED, NOTHING, find_states
from fedlga.report.groups import Group, collect_runs, name_experiments
from fedlga.report.headline import make_headline
from fedlga.report.page import make_page
from run_folders import append_records, make_record, start_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compared_folder(tmp_path_factory) -> Path:
    """Two methods and three policies over two seeds, audited."""
    folder = tmp_path_factory.mktemp("report") / "comparison"
    base = preset("digits").changed({"rounds": 5, "audit": True})
    plan = Plan(base, {}, ["fedavg", "fedlga"], ["keep", "drop", "complete"], [0, 1])
    data = load_data(base)
    start(plan, folder, data)
    list(run_plan(plan, folder, data))
    return folder


def test_who_was_slow_by_hand(tmp_path):
    """Device 1 finished, 2 was completed, 3 kept, 4 thrown away, 5 sent nothing, 6 came only later."""
    first = make_record(
        devices=[1, 2, 3, 4, 5], steps=[5, 2, 2, 2, 0], steps_asked=[5] * 5, used=[1, 2, 3], scales={2: 1.5}
    )
    second = make_record(round=2, devices=[6], steps=[5], steps_asked=[5], used=[6])
    append_records(start_run(tmp_path / "run"), first, second)
    states, devices = find_states(read_run(tmp_path / "run"))
    assert devices == [1, 2, 3, 4, 5, 6]
    assert states[:, 0].tolist() == [FINISHED, COMPLETED, KEPT, DROPPED, NOTHING, NOT_ASKED]
    assert states[:, 1].tolist() == [NOT_ASKED] * 5 + [FINISHED]


def test_nobody_was_there(tmp_path):
    """A population may have nobody at home: the page has nothing to draw of devices, and says so."""
    append_records(start_run(tmp_path / "run"), make_record(accuracy=0.1), make_record(round=2, accuracy=0.1))
    assert "No device was asked for work." in make_page(collect_runs([tmp_path / "run"]))


def test_one_run(tmp_path):
    run(preset("digits").changed({"rounds": 3, "target": 0.99}), tmp_path / "one")
    groups = collect_runs([tmp_path / "one"])
    assert make_headline(groups).startswith("FedLGA (complete) did not reach 99%; best accuracy ")
    text = make_page(groups)
    assert "Who holds what" in text
    assert "20 devices hold" in text
    assert "How close completing came" not in text  # nothing was audited


def test_a_comparison_in_one_file(compared_folder):
    groups = collect_runs([compared_folder])
    assert [group.label for group in groups] == [
        "FedAvg (complete)",
        "FedAvg (drop)",
        "FedAvg (keep)",
        "FedLGA (complete)",
    ]
    assert all(len(group.runs) == 2 for group in groups)
    text = make_page(groups)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]+"', text.replace("xlink:href", "href")), "nothing is fetched"
    drawn = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "http:" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", drawn) and "https:" not in drawn, "nor named"
    assert text.count("Copyright (c) 2022 Leon Sorokin") == 1, "the licence goes with the library"
    assert "How close completing came" in text
    images = re.findall(r"<svg (?!class=.swatch)[^>]*>", drawn)
    assert len(images) >= 3 * 2 + 4 + 2
    assert all(re.search(r'role="img" aria-label="[^"]{30,}"', image) for image in images), "a text for each figure"
    assert make_page(groups) == text, "the same page from the same runs"


def test_runs_that_differ_are_named_by_what_differs(tmp_path):
    for rho in (0.1, 0.9):
        run(preset("digits").changed({"rounds": 2, "rho": rho}), tmp_path / f"{rho}")
    labels = [group.label for group in collect_runs([tmp_path])]
    assert labels == ["FedLGA (complete), rho 0.1", "FedLGA (complete), rho 0.9"]


def test_a_label_says_once_what_runs_differ_in():
    """Of data sets that come with their own devices and rates, the name is enough; a setting beside them is said."""
    base = preset("digits")
    other = base.changed({"dataset": "cifar-10", "model": "cnn", "devices": 100, "cohort": 7, "rounds": 9, "lr": 0.3})
    assert name_experiments([base, other]) == ["FedLGA (complete), digits", "FedLGA (complete), cifar-10"]
    assert name_experiments([base, other, other.changed({"rho": 0.7})]) == [
        "FedLGA (complete), digits, rho 0.5",
        "FedLGA (complete), cifar-10, rho 0.5",
        "FedLGA (complete), cifar-10, rho 0.7",
    ]
    five = [base.changed({"model": name}) for name in ("mlp", "cnn", "a:b", "a:c", "a:d")]
    assert name_experiments(five)[4] == "FedLGA (complete), a:d"
    many = base.changed({"lr": 0.5, "rho": 0.1, "devices": 30, "cohort": 6, "batch_size": 3, "epochs": 9})
    assert name_experiments([base, many])[1] == "FedLGA (complete), lr 0.5"


def test_the_same_run_twice_is_one_run(tmp_path):
    run(preset("digits").changed({"rounds": 2}), tmp_path / "run")
    (group,) = collect_runs([tmp_path / "run", tmp_path, tmp_path / "run" / ".." / "run"])
    assert len(group.runs) == 1


def test_of_the_same_run_twice_the_longer_counts(tmp_path):
    e = preset("digits")
    for name, rounds in (("a-broken-off", 2), ("b-whole", 4)):
        folder = run(e.changed({"rounds": rounds}), tmp_path / name).folder
        (folder / "experiment.toml").write_text(e.changed({"rounds": 4}).resolved().to_toml())
    (group,) = collect_runs([tmp_path])
    assert [len(r.records) for r in group.runs] == [4]
    assert group.unfinished == 0


def test_what_is_not_over_is_not_ranked(tmp_path):
    e = preset("digits").changed({"rounds": 3, "target": 0.1})
    run(e.changed({"method": "fedavg"}), tmp_path / "avg")
    steps = run_and_record(e.changed({"method": "feddyn"}), tmp_path / "dyn")
    next(steps)
    steps.close()
    headline = make_headline(collect_runs([tmp_path]))
    assert "fewest" not in headline
    assert "FedDyn (keep) is not over: 1 of 3 rounds; " in headline
    one, two = (run(e.changed({"method": "fedavg", "seed": seed}), tmp_path / f"more-{seed}") for seed in (1, 2))
    assert one.summary["finished"] and two.summary["finished"]
    steps = run_and_record(e.changed({"method": "feddyn"}), tmp_path / "dyn", resume=True)
    list(steps)
    groups = collect_runs([tmp_path])
    assert "fewest" not in make_headline(groups), "three seeds against one"
    assert "up to 3 seeds" in make_page(groups)


def make_group(label: str, *rounds: float | None) -> Group:
    """Return finished runs that needed so many rounds, and ten times as many simulated seconds, to the target."""
    base = preset("digits").resolved()
    summaries = [{"finished": True, "rounds_to_target": r, "best_accuracy": 0.5} for r in rounds]
    runs = [
        Run(Path(), base.changed({"seed": seed}), s | {"simulated_seconds_to_target": s["rounds_to_target"]})
        for seed, s in enumerate(summaries)
    ]
    return Group(label, runs)


def test_no_winner_among_equals():
    equal = [make_group("A", 10, 11, 12), make_group("B", 10, 11, 12), make_group("C", 40, 41, 42)]
    assert make_headline(equal) == (
        "To 85% in the fewest rounds: A (11 ± 2) and B (11 ± 2), whose 95 % intervals overlap; "
        "in the least simulated time: A (11 ± 2 s) and B (11 ± 2 s), whose 95 % intervals overlap."
    )
    assert "fewest rounds: A (11 ± 2); in" in make_headline([equal[0], equal[2]])
    assert make_headline([equal[2], make_group("D", 9, None, 9)]).endswith("; D did not reach it on every seed.")


def test_no_winner_with_fewer_than_three_seeds():
    headline = make_headline([make_group("A", 10, 11), make_group("B", 50, 51)])
    assert "fewest" not in headline
    assert headline.endswith("With fewer than three seeds, none is named as best.")


def test_many_that_cannot_be_compared_make_no_wall_of_text():
    headline = make_headline([make_group(label, 10) for label in "ABCDEFG"])
    assert "D reached 85% after 10 rounds" in headline
    assert "E reached" not in headline
    assert headline.endswith("; and 3 more, in the table below. With fewer than three seeds, none is named as best.")


def test_nobody_came_closest_among_equals():
    headline = make_headline([make_group("A", None, None, None), make_group("B", None, None, None)])
    assert headline == (
        "None reached 85% on every seed; "
        "closest came A (50.0% ± 0.0%) and B (50.0% ± 0.0%), whose 95 % intervals overlap."
    )


def test_rounds_are_marked_at_whole_numbers(tmp_path):
    """Without JavaScript too: in three rounds there is no 1.5."""
    run_folder = start_run(tmp_path / "run", method="fedavg", stragglers="keep", rounds=3)
    work = {"devices": [1], "steps": [5], "steps_asked": [5], "used": [1]}
    append_records(run_folder, *(make_record(round=r, accuracy=r / 10, **work) for r in (1, 2, 3)))
    page = make_page(collect_runs([tmp_path / "run"]))
    (over_rounds,) = re.findall(r'data-axis="rounds">(.*?)data-axis="seconds"', page, re.DOTALL)
    marks = re.findall(r'xtick_\d+">.*?<text[^>]*>([^<]+)</text>', over_rounds, re.DOTALL)
    assert marks
    assert set(marks) == {"1", "2", "3"}


def test_runs_that_are_going_on_can_be_looked_at(tmp_path):
    """A run swaps its checkpoint's folders while its page is made."""
    run(preset("digits").changed({"rounds": 1}), tmp_path / "run")
    over = Event()

    def swap() -> None:
        while not over.is_set():
            (tmp_path / "run" / "checkpoint.new" / "devices").mkdir(parents=True)
            (tmp_path / "run" / "checkpoint.new").rename(tmp_path / "run" / "checkpoint.old")
            shutil.rmtree(tmp_path / "run" / "checkpoint.old")

    thread = Thread(target=swap)
    thread.start()
    try:
        assert all(len(collect_runs([tmp_path])) == 1 for _ in range(50))
    finally:
        over.set()
        thread.join()


def test_other_options_have_a_name_and_a_look_of_their_own(tmp_path):
    for mu in (0.1, 1.0):
        run(preset("digits").changed({"rounds": 1, "method": "fedprox", "mu": mu}), tmp_path / f"{mu}")
    groups = collect_runs([tmp_path])
    assert [group.label for group in groups] == ["FedProx (keep), mu 0.1", "FedProx (keep), mu 1.0"]
    assert len(set(list_styles(groups))) == 2


def test_other_targets_are_not_compared(tmp_path):
    for target in (0.1, 0.99):
        run(preset("digits").changed({"rounds": 1, "target": target}), tmp_path / f"{target}")
    headline = make_headline(collect_runs([tmp_path]))
    assert "fewest" not in headline
    assert "target 0.1 reached 10%" in headline
    assert "target 0.99 did not reach 99%" in headline


def test_runs_without_a_target_have_no_numbers_about_one(tmp_path):
    """Alone they have no such column and no such note; beside runs that have a target, '-' and not '0 of 1'."""
    line = np.linspace(-1, 1, 40)
    task = Task(lambda: nn.Linear(1, 1), (line[:, None], 2 * line), name="line", metrics=["rmse"])
    base = Experiment(lr=0.001, devices=2, cohort=2, rounds=2, backend="serial")
    run(base, tmp_path / "none", task=task)
    page = make_page(collect_runs([tmp_path / "none"]))
    shown = page.split("<details>", maxsplit=1)[0]
    assert "<th scope=col>best rmse</th>" in shown
    assert "target" not in shown
    assert "of n" not in shown
    assert "<th scope=col>rounds</th>" not in shown
    run(base.changed({"target": 1e6}), tmp_path / "easy", task=task)
    run(base.changed({"target": 0.0}), tmp_path / "hard", task=task)
    groups = collect_runs([tmp_path / name for name in ("none", "easy", "hard")])
    page = make_page(groups)
    rows = dict(re.findall(r"<tr><th scope=row>([^<]*)</th>(.*?)</tr>", page))
    cells = [re.findall("<td>(.*?)</td>", rows[group.label])[0] for group in groups]
    assert cells == ["-", "1", "0 of 1"]
    assert "Rounds and seconds: to their targets; 'k of n': only k of n seeds reached it" in page
    assert "horizontal line" not in page, "there is no one target"


def test_a_damaged_partition_is_left_out(tmp_path):
    run(preset("digits").changed({"rounds": 1}), tmp_path / "run")
    (tmp_path / "run" / "partition.json").write_text("[")
    assert "Who holds what" not in make_page(collect_runs([tmp_path / "run"]))


def test_names_are_escaped(tmp_path):
    run(preset("digits").changed({"rounds": 1}), tmp_path / "run")
    toml = tmp_path / "run" / "experiment.toml"
    toml.write_text(toml.read_text().replace('model = "mlp"', 'model = "<script>alert(1)</script>"'))
    assert "<script>alert" not in make_page(collect_runs([tmp_path / "run"]))


def test_no_name_ends_the_numbers(tmp_path):
    """Names stand in JSON inside the page too, where HTML would end at any </script>."""
    name = "</script><script>alert(1)</script>"
    for number in (1, 2):
        folder = run(preset("digits").changed({"rounds": 1}), tmp_path / str(number)).folder
        toml = folder / "experiment.toml"
        toml.write_text(toml.read_text().replace('model = "mlp"', f'model = "{name}{number}"'))
    text = make_page(collect_runs([tmp_path]))
    numbers = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', text, flags=re.DOTALL)
    assert numbers is not None
    assert json.loads(numbers[1])["curves"][0]["label"] == f"FedLGA (complete), {name}1"
    assert "<script>alert" not in text


def test_a_page_may_run_its_own_scripts_only(tmp_path):
    """The policy lists the hash of every script of the page, and allows nothing else."""
    run(preset("digits").changed({"rounds": 1}), tmp_path / "run")
    text = make_page(collect_runs([tmp_path / "run"]))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(hashes) == 3
    assert policy[1] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src " + " ".join(
        f"'sha256-{value}'" for value in hashes
    )


@pytest.fixture(scope="module")
def page_file(compared_folder) -> Path:
    file = compared_folder / "report.html"
    file.write_text(make_page(collect_runs([compared_folder])))
    return file


@pytest.fixture(scope="module")
def browser(page_file):
    """A real Chromium that looks at the page."""
    with open_browser() as driver:
        driver.get(page_file.as_uri())
        yield driver


@needs_browser
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_nothing_is_blank(browser, width, scheme):
    set_screen(browser, width, scheme)
    wait_until(browser, f"return document.documentElement.scrollWidth <= {width}")  # after the charts were drawn anew
    assert is_dark(browser) == (scheme == "dark")
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('figure > svg, figure canvas')].filter(s => s.getClientRects().length)"
        ".map(s => s.getBoundingClientRect()).map((box) => [box.width, box.height])"
    )
    assert len(boxes) >= 5
    assert all(w > 250 and h > 100 for w, h in boxes)


@needs_browser
def test_the_switch_works_and_the_console_is_quiet(browser):
    from selenium.webdriver.common.by import By

    def shown():
        parts = browser.find_elements(By.CSS_SELECTOR, ".axis")
        return [part.get_attribute("data-axis") for part in parts if part.is_displayed()]

    assert shown() == ["rounds"]
    for axis in ("simulated_seconds", "seconds", "rounds"):
        browser.find_element(By.CSS_SELECTOR, f"label:has(input[value={axis}])").click()
        assert shown() == [axis]
        wait_until(browser, "return document.querySelector('.axis.on canvas') !== null")
    assert read_errors(browser) == []


@needs_browser
@pytest.mark.parametrize(
    ("ticks", "percent", "texts"),
    [
        ([0.2, 0.225, 0.25], False, ["0.2", "0.225", "0.25"]),  # with two decimals 0.23: ticks at uneven values
        ([0.55, 0.575, 0.6], True, ["55.0%", "57.5%", "60.0%"]),
        ([0.3, 0.4], True, ["30%", "40%"]),
        ([0.00025, 0.0005], False, ["0.00025", "0.0005"]),
        ([1000, 1500], False, ["1,000", "1,500"]),
    ],
)
def test_no_tick_is_rounded(browser, ticks, percent, texts):
    script = "const [ticks, percent] = arguments; return ticks.map((tick) => Charts.formatTick(tick, ticks, percent))"
    assert browser.execute_script(script, ticks, percent) == texts


@needs_browser
def test_the_figures_hold_ink(browser):
    from selenium.webdriver.common.by import By

    figures = browser.find_elements(By.CSS_SELECTOR, "figure > svg, figure canvas")
    figures = [figure for figure in figures if figure.is_displayed()]
    assert len(figures) >= 2 + 4 + 2
    assert all(count_colours(figure) > 20 for figure in figures)


@needs_browser
def test_curves_can_be_pointed_at_hidden_and_zoomed(browser, compared_folder):
    """The values shown are those of the records: the mean accuracy of both seeds in the last round."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By

    def on_chart(act, *where):
        """Do something with the chart. It is drawn anew after a change of size: then once more."""
        while True:
            try:
                return act(browser, browser.find_element(By.CSS_SELECTOR, ".axis.on .u-over"), *where)
            except StaleElementReferenceException:
                continue

    set_screen(browser, 1440, "light")
    on_chart(point_at, 0.995)
    tip = wait_until(browser, "return document.querySelector('.axis.on .tip:not([hidden])')?.innerText")
    keep = next(group for group in collect_runs([compared_folder]) if group.label == "FedAvg (keep)")
    mean = sum(run.records[-1].metrics["accuracy"] or 0.0 for run in keep.runs) / 2
    assert tip.splitlines()[0] == "rounds 5"
    assert tip.splitlines()[tip.splitlines().index("FedAvg (keep)") + 1] == f"{mean:.2%}"

    names = browser.find_elements(By.CSS_SELECTOR, ".legend button")
    assert [name.text for name in names] == [group.label for group in collect_runs([compared_folder])]
    next(name for name in names if name.text == "FedAvg (keep)").click()
    on_chart(point_at, 0.99)
    wait_until(browser, "return !document.querySelector('.axis.on .tip').innerText.includes('FedAvg (keep)')")
    assert "FedAvg (drop)" in browser.find_element(By.CSS_SELECTOR, ".axis.on .tip").text

    back = browser.find_element(By.CSS_SELECTOR, ".axis.on .unzoom")
    assert not back.is_displayed()
    on_chart(drag_over, 0.3, 0.7)
    wait_until(browser, "return !document.querySelector('.axis.on .unzoom').hidden")
    on_chart(point_at, 0.02)
    wait_until(browser, "return document.querySelector('.axis.on .tip b')?.textContent !== 'rounds 1'")
    back.click()
    on_chart(point_at, 0.005)
    wait_until(browser, "return document.querySelector('.axis.on .tip b')?.textContent === 'rounds 1'")
    assert read_errors(browser) == []


@needs_browser
def test_it_reads_without_javascript(page_file):
    """Every axis is there, drawn; nothing that cannot be used is."""
    from selenium.webdriver.common.by import By

    with open_browser(scripts=False) as driver:
        set_screen(driver, 1440, "light")
        driver.get(page_file.as_uri())
        axes = driver.find_elements(By.CSS_SELECTOR, ".axis")
        assert [part.get_attribute("data-axis") for part in axes if part.is_displayed()] == [*AXES, *COSTS]
        assert all(figure.is_displayed() for figure in driver.find_elements(By.CSS_SELECTOR, ".axis figure > svg"))
        assert not driver.find_element(By.CSS_SELECTOR, ".switch").is_displayed()
        assert count_colours(driver.find_element(By.CSS_SELECTOR, ".axis figure > svg")) > 20
        names = driver.find_elements(By.CSS_SELECTOR, ".legend li")
        assert len(names) == 4 and all(name.is_displayed() and name.text for name in names)
