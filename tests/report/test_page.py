"""The HTML page: what it says, and how a real browser shows it."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from torch import nn

from fedlga.experiments.compare import Plan, run_plan, start
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.records import Run
from fedlga.experiments.run import run, run_and_record
from fedlga.experiments.simulation import load_data
from fedlga.learning.task import Task
from fedlga.report.page import (
    COMPLETED,
    DROPPED,
    FINISHED,
    KEPT,
    NOT_ASKED,
    NOTHING,
    _style,  # pyright: ignore[reportPrivateUsage]
    collect_runs,
    find_states,
    make_headline,
    make_page,
)
from run_folders import make_record

pytestmark = pytest.mark.slow

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
DRIVER = shutil.which("chromedriver") or ""
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no Chromium with its driver here: see `make browser`"
)


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


def test_who_was_slow_by_hand():
    """Device 1 finished, 2 was completed, 3 kept, 4 thrown away, 5 sent nothing, 6 came only later."""
    first = make_record(
        devices=[1, 2, 3, 4, 5], steps=[5, 2, 2, 2, 0], steps_asked=[5] * 5, used=[1, 2, 3], scales={2: 1.5}
    )
    second = make_record(round=2, devices=[6], steps=[5], steps_asked=[5], used=[6])
    states, devices = find_states(Run(Path(), preset("digits"), [first, second], {}))
    assert devices == [1, 2, 3, 4, 5, 6]
    assert states[:, 0].tolist() == [FINISHED, COMPLETED, KEPT, DROPPED, NOTHING, NOT_ASKED]
    assert states[:, 1].tolist() == [NOT_ASKED] * 5 + [FINISHED]


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
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", text), "nor named"
    assert "How close completing came" in text
    images = re.findall(r"<svg [^>]*>", text)
    assert len(images) >= 3 * 2 + 4 + 2
    assert all(re.search(r'role="img" aria-label="[^"]{30,}"', image) for image in images), "a text for each figure"
    assert make_page(groups) == text, "the same page from the same runs"


def test_runs_that_differ_are_named_by_what_differs(tmp_path):
    for rho in (0.1, 0.9):
        run(preset("digits").changed({"rounds": 2, "rho": rho}), tmp_path / f"{rho}")
    labels = [group.label for group in collect_runs([tmp_path])]
    assert labels == ["FedLGA (complete), rho 0.1", "FedLGA (complete), rho 0.9"]


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
    assert "FedDyn (keep) is not over: 1 of 1 runs stopped early" in headline
    one, two = (run(e.changed({"method": "fedavg", "seed": seed}), tmp_path / f"more-{seed}") for seed in (1, 2))
    assert one.summary["finished"] and two.summary["finished"]
    steps = run_and_record(e.changed({"method": "feddyn"}), tmp_path / "dyn", resume=True)
    list(steps)
    groups = collect_runs([tmp_path])
    assert "fewest" not in make_headline(groups), "three seeds against one"
    assert "up to 3 seeds" in make_page(groups)


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
    assert [group.label for group in groups] == ["FedProx (keep), fedprox.mu 0.1", "FedProx (keep), fedprox.mu 1.0"]
    assert len({_style(groups, group) for group in groups}) == 2


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


@pytest.fixture(scope="module")
def browser(compared_folder):
    """A real Chromium that looks at the page."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    file = compared_folder / "report.html"
    file.write_text(make_page(collect_runs([compared_folder])))
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(file.as_uri())
        yield driver
    finally:
        driver.quit()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_nothing_is_blank(browser, width, scheme):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ink, paper = browser.execute_script(
        "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (ink, paper)]
    assert (light[0] > light[1]) == (scheme == "dark")
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('svg')].filter(s => s.getClientRects().length)"
        ".map(s => [s.getBoundingClientRect(), s.querySelectorAll('path').length])"
        ".map(([box, paths]) => [box.width, box.height, paths])"
    )
    assert len(boxes) >= 5
    assert all(w > 250 and h > 100 and paths > 5 for w, h, paths in boxes)


@pytest.mark.slow
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
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
@needs_browser
def test_the_figures_hold_ink(browser):
    """A picture of a figure has many colours; a blank one has one or two."""
    from PIL import Image
    from selenium.webdriver.common.by import By

    for figure in [f for f in browser.find_elements(By.TAG_NAME, "svg") if f.is_displayed()]:
        picture = Image.open(io.BytesIO(figure.screenshot_as_png)).convert("RGB")
        assert len(picture.getcolors(maxcolors=1 << 20) or []) > 20
