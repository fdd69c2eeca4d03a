"""The site builds without a warning, asks nobody for anything, and says what the code says."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import fedlga
import fedlga.flower
from browsing import needs_browser, open_browser, read_errors, set_screen, wait_until
from fedlga.cli import main
from fedlga.cli.main import cli
from fedlga.core.registry import SEAMS
from fedlga.core.types import Record
from fedlga.experiments.config import experiment_fields
from fedlga.experiments.measures import list_measures
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run_and_record

ROOT = Path(__file__).parents[2]
LOOKED_AT = ("index", "one-round", "choosing", "methods/fedlga", "command-line", "records", "python")


def read_source(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_the_page_about_records_lists_every_file_of_a_run_folder(tmp_path):
    for _ in run_and_record(preset("digits").changed({"rounds": 1}), tmp_path / "run"):
        pass
    table = read_source("records")
    assert [file.name for file in (tmp_path / "run").iterdir() if f"| `{file.name}" not in table] == []


def test_the_page_about_commands_has_every_exit_code():
    """The codes are those that the command's module names, and no other."""
    codes = r"\b\d+(?= (?:done|the run|the call|after))"
    assert re.findall(codes, read_source("command-line")) == re.findall(codes, main.__doc__ or "")


def test_no_name_is_described_twice_on_the_page_about_python():
    names = re.findall(r"^::: (\S+)", read_source("python"), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_links_between_pages_say_what_they_lead_to():
    """A reader of the site knows titles of pages; names of files are not in it."""
    pages = {file: file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")}
    assert [
        f"{file.name}: {text}" for file, page in pages.items() for text in re.findall(r"\[[\w-]+\.md\]\(", page)
    ] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site once."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Reader(HTMLParser):
    """Reads the links, the places that can be linked to, and what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and "href" in values:
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Reader]:
    """Read all pages of the site."""
    readers: dict[Path, Reader] = {}
    for file in sorted(site.rglob("*.html")):
        readers[file] = Reader()
        readers[file].feed(file.read_text(encoding="utf-8"))
    return readers


def read_text(site: Path, page: str) -> str:
    return (site / f"{page}.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_link_leads_somewhere(site, pages):
    broken: list[str] = []
    for file, reader in pages.items():
        if file.name == "404.html":  # its links begin at the root of a server
            continue
        for link in reader.links:
            path, _, place = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (file.parent / path).resolve() if path else file
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert not broken


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site, pages):
    outside = re.compile(r"(https?:)?//")
    assert not [f"{file.name}: {load}" for file, r in pages.items() for load in r.loads if outside.match(load)]
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles)


@pytest.mark.slow
def test_every_page_of_docs_is_in_the_navigation(site, pages):
    linked = {
        (file.parent / link).resolve() for file, r in pages.items() for link in r.links if file.name == "index.html"
    }
    missing = [
        page
        for file in (ROOT / "docs").rglob("*.md")
        if (site / (page := file.relative_to(ROOT / "docs").with_suffix(".html"))).resolve() not in linked
    ]
    assert missing in ([], [Path("index.html")])


@pytest.mark.slow
def test_the_reference_has_what_the_code_has(site):
    records, settings, commands = (read_text(site, page) for page in ("records", "settings", "command-line"))
    fields = {f.name for f in dataclasses.fields(Record)} | {m.name for m in list_measures("accuracy")}
    assert not [name for name in sorted(fields) if f"<code>{name}</code>" not in records]
    names = {f.name for f in experiment_fields()} | {name for seam in SEAMS.values() for name in seam.names}
    assert not [name for name in sorted(names) if f"<code>{name}</code>" not in settings]
    for name, command in cli.commands.items():
        assert f'id="fedlga-{name}"' in commands
        long = [o for p in command.params for o in p.opts if o.startswith("--") and o not in ("--help", "--version")]
        assert not [option for option in long if option not in commands], name
    assert "made from the code:" not in records + settings + commands


@pytest.mark.slow
def test_every_public_name_is_on_the_page_about_python(site):
    places = set(re.findall(r'id="([^"]+)"', read_text(site, "python")))
    wanted = {f"fedlga.{name}" for name in fedlga.__all__} | {f"fedlga.flower.{name}" for name in fedlga.flower.__all__}
    assert sorted(wanted - places) == []


@pytest.mark.slow
def test_equations_are_drawn_by_the_browser(site):
    for method in SEAMS["method"].names:
        page = read_text(site, f"methods/{method}")
        assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page
        assert "\\frac" not in page


@pytest.fixture(scope="module")
def browser(site) -> Any:
    """Open a browser without a window that has no way to a server."""
    with open_browser(network=False) as driver:
        yield driver


def open_page(browser: Any, site: Path, page: str, width: int = 1300, scheme: str = "light") -> None:
    """Open a page from its file, as a reader without a server does, who was never here before."""
    set_screen(browser, width, scheme)
    browser.get((site / f"{page}.html").as_uri())
    browser.execute_script("localStorage.clear()")  # the colours that were chosen before
    browser.refresh()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("page", LOOKED_AT)
def test_a_page_fits_every_screen_in_both_colour_schemes(browser, site, page):
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b)"
    for width in (400, 1300):
        for scheme in ("light", "dark"):
            open_page(browser, site, page, width, scheme)
            wait_until(browser, f"return {lightness} {'<' if scheme == 'dark' else '>='} 300")
            assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
            assert read_errors(browser) == []


@pytest.mark.slow
@needs_browser
def test_search_works_from_files(browser, site):
    from selenium.webdriver.common.by import By

    open_page(browser, site, "index")
    box = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    box.click()
    box.send_keys("staleness")
    links = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    found = wait_until(browser, f"const links = {links}; return links.length ? links : null")
    assert any("schedules.html" in link for link in found)


@pytest.mark.slow
@needs_browser
def test_the_picture_of_a_round_is_drawn_in_the_colours_of_the_page(browser, site):
    from selenium.webdriver.common.by import By

    colours: list[str] = []
    for scheme in ("light", "dark"):
        open_page(browser, site, "one-round", 400, scheme)
        picture = browser.find_element(By.CSS_SELECTOR, "svg.one-round")
        assert picture.size["height"] > 300
        colours.append(
            json.dumps(
                browser.execute_script("return getComputedStyle(arguments[0].querySelector('.head')).fill", picture)
            )
        )
    assert len(set(colours)) == 2
