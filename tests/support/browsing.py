"""A real Chromium, driven by selenium: Debian's, with its driver."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
DRIVER = shutil.which("chromedriver") or ""
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no Chromium with its driver here: see `make browser`"
)
PATIENCE = 60  # seconds; what is waited for comes far sooner, also on a busy machine


@contextmanager
def open_browser(*, scripts: bool = True, network: bool = True) -> Generator[Any]:
    """Open a browser without a window; its console is kept. It may run no JavaScript, or find no host by its name."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    if not network:
        options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def set_screen(browser: Any, width: int, scheme: str) -> None:
    """Give the page a width and a colour scheme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def wait_until(browser: Any, script: str, *arguments: Any) -> Any:
    """Wait until a script returns something true, and return it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(
        lambda driver: driver.execute_script(script, *arguments)
    )


def read_errors(browser: Any) -> list[str]:
    """Return what the console holds against the page."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def is_dark(browser: Any) -> bool:
    """Return whether the page's text is lighter than its paper."""
    ink, paper = browser.execute_script(
        "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    )
    light = [sum(int(part) for part in colour[4:-1].split(",")[:3]) for colour in (ink, paper)]
    return light[0] > light[1]


def count_colours(element: Any) -> int:
    """Return how many colours a picture of an element has: a blank one has one or two."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")
    return len(picture.getcolors(maxcolors=1 << 20) or [])


def wait_for_ink(browser: Any, selector: str, count: int) -> None:
    """Wait until so many elements are there, and a picture of each has more than a few colours."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def all_drawn(driver: Any) -> bool:
        elements = driver.find_elements(By.CSS_SELECTOR, selector)
        return len(elements) == count and all(count_colours(element) > 8 for element in elements)

    WebDriverWait(browser, PATIENCE, ignored_exceptions=[StaleElementReferenceException]).until(all_drawn)


def point_at(browser: Any, element: Any, share: float) -> None:
    """Move the mouse to a place inside an element, at this share of its width."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element_with_offset(element, _aside(element, share), 0).perform()


def drag_over(browser: Any, element: Any, start: float, end: float) -> None:
    """Drag the mouse across an element, from one share of its width to another."""
    from selenium.webdriver.common.action_chains import ActionChains

    point_at(browser, element, start)
    chain = ActionChains(browser).click_and_hold()
    chain.move_to_element_with_offset(element, _aside(element, end), 0).release().perform()


def _aside(element: Any, share: float) -> int:
    return int((share - 0.5) * element.size["width"])
