"""The page of `fedlga watch` in a real Chromium, while runs go on. Nothing waits for seconds, all for what is shown."""

from __future__ import annotations

import pytest

from browsing import (
    count_colours,
    drag_over,
    is_dark,
    needs_browser,
    open_browser,
    point_at,
    read_errors,
    set_screen,
    wait_for_ink,
    wait_until,
)
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run_and_record
from run_folders import append_records, make_record, start_run
from serving import serve

pytestmark = [pytest.mark.slow, needs_browser]

EVIL = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
CELL = "return document.querySelector('#table tbody tr td:nth-child(3)')?.textContent.startsWith(arguments[0])"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs: two seeds of one experiment, and one of another, which completes; it has messages of devices."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run = start_run(folder / f"keep-{seed}", seed=seed, method="fedavg", stragglers="keep", rounds=40)
        append_records(run, *(make_record(round=r, accuracy=r / 100 + seed / 10) for r in range(1, 31)))
    other = start_run(folder / "complete", method="fedavg", stragglers="complete", rounds=40)
    for r in range(1, 41):
        work = {"devices": [1, 2, 30], "steps": [5, 2, 0], "steps_asked": [5, 5, 5], "used": [1, 2], "slow": [2]}
        costs = {"device_seconds": {1: 5.0, 2: 5.0}, "bytes_down": 3_000_000, "bytes_up": 2_000_000}
        refused = {30: EVIL} if r == 7 else {}
        record = make_record(round=r, accuracy=r / 50, scales={2: 1.5}, growth=0.4, refused=refused, **work, **costs)
        append_records(other, record)
    return folder


@pytest.fixture(scope="module")
def page(browser, folder):
    with serve(folder) as server:
        set_screen(browser, 1400, "light")
        browser.get(server.url)
        wait_until(browser, "return document.querySelectorAll('#table tbody tr').length === 3")
        wait_until(browser, "return document.querySelector('#charts canvas') !== null")
        yield browser


def find(page, selector: str):
    from selenium.webdriver.common.by import By

    return page.find_elements(By.CSS_SELECTOR, selector)


def texts(page, selector: str) -> list[str]:
    return page.execute_script(f"return [...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def test_a_run_is_followed_while_it_goes_on(browser, tmp_path):
    """A real run, stopped and continued: each round appears, and each state, in the page that was opened once."""
    e = preset("digits").changed({"rounds": 4, "method": "fedlga"})
    with serve(tmp_path) as server:
        set_screen(browser, 1400, "light")
        browser.get(server.url)
        wait_until(browser, "return document.getElementById('headline').textContent === 'No run yet'")
        steps = run_and_record(e, tmp_path / "run")
        for number in (1, 2):
            record = next(steps)
            wait_until(browser, CELL, f"{number} of 4")
            shown = f"{record.metrics['accuracy']:.1%}"
            assert shown in texts(browser, "#table tbody td")
            assert texts(browser, "#headline") == ["1 run: 1 running"]
        assert texts(browser, "#table .state") == ["running"]
        wait_until(browser, "return document.querySelector('#table progress').value === 2")
        steps.close()
        wait_until(browser, "return document.getElementById('headline').textContent === '1 run: 1 stopped'")
        resume = f"fedlga run --resume {tmp_path / 'run'}"
        wait_until(browser, "return document.getElementById('details-resume').innerText === arguments[0]", resume)
        list(run_and_record(e, tmp_path / "run", resume=True))
        wait_until(browser, "return document.getElementById('headline').textContent === '1 run: 1 finished'")
        assert texts(browser, "#table .state") == ["finished"]
        assert read_errors(browser) == []
    wait_until(browser, "return document.getElementById('status').dataset.state === 'lost'")
    browser.get("about:blank")
    browser.get_log("browser")  # that the server went away is in it


def test_curves_can_be_pointed_at_hidden_and_zoomed(page):
    """Two seeds, r/100 and r/100 + 0.1: their mean in round 30 is 35 %. The other curve is at 30/50 there."""
    set_screen(page, 1400, "light")
    chart = find(page, "#charts .u-over")[0]
    point_at(page, chart, 29 / 39)
    tip = wait_until(page, "return document.querySelector('#charts .tip:not([hidden])')?.innerText")
    assert tip.splitlines() == ["rounds 30", "FedAvg (complete)", "60.00%", "FedAvg (keep)", "35.00%"]
    keep = next(button for button in find(page, "#legend button") if button.text == "FedAvg (keep)")
    keep.click()
    point_at(page, chart, 28.5 / 39)
    wait_until(page, "return !document.querySelector('#charts .tip').innerText.includes('keep')")
    assert keep.get_attribute("aria-pressed") == "false"
    keep.click()
    drag_over(page, chart, 0.5, 0.9)
    wait_until(page, "return !document.querySelector('#charts .unzoom').hidden")
    point_at(page, chart, 0.02)
    wait_until(page, "return Number(document.querySelector('#charts .tip b')?.textContent.split(' ')[1]) >= 20")
    find(page, "#charts .unzoom")[0].click()
    point_at(page, chart, 0.01)
    wait_until(page, "return document.querySelector('#charts .tip b')?.textContent === 'rounds 1'")


def test_the_axis_can_be_chosen(page):
    set_screen(page, 1400, "light")
    find(page, "label:has(input[value=megabytes])")[0].click()
    chart = find(page, "#charts .u-over")[0]
    point_at(page, chart, 0.995)
    wait_until(page, "return document.querySelector('#charts .tip b')?.textContent === 'megabytes sent 200'")
    find(page, "label:has(input[value=rounds])")[0].click()
    find(page, "label:has(input[value='0.1'])")[0].click()
    point_at(page, find(page, "#charts .u-over")[0], 0.01)
    wait_until(page, "return document.querySelector('#charts .tip b')?.textContent === 'rounds 36'")
    find(page, "label:has(input[value='1'])")[0].click()


def test_the_table_sorts(page):
    def names() -> list[str]:
        return texts(page, "#table tbody th")

    head = {button.text: button for button in find(page, "#table thead button")}
    head["best"].click()
    assert names() == ["FedAvg (complete), seed 0", "FedAvg (keep), seed 1", "FedAvg (keep), seed 0"]
    {button.text: button for button in find(page, "#table thead button")}["best"].click()
    assert names() == ["FedAvg (keep), seed 0", "FedAvg (keep), seed 1", "FedAvg (complete), seed 0"]
    assert texts(page, "#table thead th[aria-sort=ascending]") == ["best"]


def test_what_a_run_cost_and_what_completing_did(page):
    row = page.execute_script(
        "const heads = [...document.querySelectorAll('#table thead th')].map((e) => e.textContent);"
        "const row = [...document.querySelectorAll('#table tbody tr')].find((e) => e.textContent.includes('complete'));"
        "return Object.fromEntries(heads.map((name, i) => [name, row.children[i].textContent]))"
    )
    wanted = {"exponent": "0.40", "scale": "1.50", "device time": "7 min", "down": "120 MB", "up": "80.0 MB"}
    assert {name: row[name] for name in wanted} == wanted
    assert row["unfinished"] == "67%"
    assert len(find(page, "#completing-charts canvas")) == 2


def test_texts_of_devices_stay_texts(page):
    """A device's reason holds HTML. It is shown as it is, makes no element, and no script of it runs."""
    next(row for row in find(page, "#table tbody tr button") if "complete" in row.text).click()
    wait_until(page, "return document.querySelectorAll('#messages li').length === 1")
    assert texts(page, "#messages li") == [f"round 7: device 30 was refused: {EVIL}"]
    assert find(page, "main img") == []
    assert find(page, "main script") == []
    assert page.execute_script("return document.title").endswith("fedlga watch")
    rows = texts(page, "#devices tbody tr")
    assert rows[0].startswith("2") and rows[1].startswith("30") and len(rows) == 3
    assert count_colours(find(page, "#picture")[0]) >= 3
    assert "40 times completed" in find(page, "#picture-text")[0].text


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_nothing_is_blank(page, width, scheme):
    set_screen(page, width, scheme)
    wait_until(page, f"return document.querySelector('#charts canvas').getBoundingClientRect().width <= {width}")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert is_dark(page) == (scheme == "dark")
    wait_for_ink(page, "#charts canvas, #completing-charts canvas", 4)
    assert read_errors(page) == []
