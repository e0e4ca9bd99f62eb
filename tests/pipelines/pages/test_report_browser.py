"""The report in a browser: what the first screens show, folded charts, links, the paper, and no requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from report_data import make_report

from pipelines.pages.report import render_report

BROWSER = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not BROWSER.is_file(), reason=f"there is no browser at {BROWSER}")
HEIGHT = 800  # of a screen


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pages") / "report.html"
    path.write_text(render_report(make_report()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(params=[1280, 400])
def width(request: pytest.FixtureRequest) -> int:
    wide: int = request.param
    return wide


@pytest.fixture
def page(browser: Browser, address: str, width: int) -> Iterator[Page]:
    troubles: list[str] = []
    shown = browser.new_page(viewport={"width": width, "height": HEIGHT})
    shown.set_default_timeout(60_000)
    shown.on("pageerror", lambda error: troubles.append(str(error)))
    shown.on("console", lambda message: troubles.append(message.text))
    shown.on("request", lambda sent: troubles.append(sent.url) if sent.url.split("#")[0] != address else None)
    shown.goto(address)
    shown.wait_for_selector("#overview .main-svg")
    yield shown
    shown.close()
    assert troubles == []


def drawn(page: Page, within: str) -> list[float]:
    """Widths of the charts that are drawn, 0 for those that are not."""
    widths: list[float] = page.eval_on_selector_all(
        f"{within} .plot", "all => all.map(one => one.querySelector('.main-svg')?.clientWidth ?? 0)"
    )
    return widths


def test_two_screens_are_open_and_the_page_is_short(page: Page, width: int) -> None:
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= 8 * HEIGHT
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing is wider than the screen"
    assert all(drawn(page, "header"))
    assert len(drawn(page, "#overview")) == 2
    assert all(drawn(page, "#overview"))
    if width == 1280:
        bottom = "all => all.map(one => one.getBoundingClientRect().bottom)"
        ends = page.eval_on_selector_all("header figure, #overview", bottom)
        assert ends[0] <= HEIGHT
        assert ends[1] <= 2 * HEIGHT


def test_a_folded_chart_is_drawn_as_wide_as_the_page_when_its_section_is_opened(
    page: Page, width: int
) -> None:
    assert set(drawn(page, "#books")) == {0}
    page.click("#books summary")
    page.wait_for_selector("#books .main-svg")
    place = page.eval_on_selector("#books .plot", "one => one.clientWidth")
    assert place > 0.7 * (width - 200)
    assert drawn(page, "#books") == [place, place]
    assert set(drawn(page, "#rolling")) == {0}
    page.click("#books summary")
    page.set_viewport_size({"width": 700, "height": HEIGHT})
    page.click("#books summary")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#books .plot')].every(one => one.clientWidth > 500"
        " && one.querySelector('.main-svg').clientWidth === one.clientWidth)"
    )


def test_a_link_opens_its_section(page: Page) -> None:
    assert page.eval_on_selector("#audit details", "one => one.open") is False
    page.click(".checked a[href='#audit']")
    page.wait_for_function("() => document.querySelector('#audit details').open")
    page.wait_for_function(
        "() => Math.abs(document.querySelector('#audit').getBoundingClientRect().top) < 100"
    )  # it scrolls there


def test_a_link_upwards_ends_at_its_section(page: Page) -> None:
    page.goto(f"{page.url}#holdings")
    page.reload()
    page.wait_for_function(
        "() => Math.abs(document.querySelector('#holdings').getBoundingClientRect().top) < 100"
    )
    page.click("nav a[href='#books']")
    page.wait_for_function(
        "() => document.querySelector('#books details').open"
        " && Math.abs(document.querySelector('#books').getBoundingClientRect().top) < 100"
    )


def test_paper_has_the_result_and_what_the_reader_has_opened(page: Page) -> None:
    page.click("#folds summary")
    folds = page.locator("section > details")
    before = folds.evaluate_all("all => all.map(one => one.open)")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    seen = "all => all.filter(one => one.getBoundingClientRect().height > 0).map(one => one.id)"
    printed = page.eval_on_selector_all("section", seen)
    assert {"overview", "figures", "books", "trips", "folds"} <= set(printed)
    assert not {"models", "attribution", "config"} & set(printed)
    assert all(width in (330, 680) for width in drawn(page, "#books") + drawn(page, "#rolling"))
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert folds.evaluate_all("all => all.map(one => one.open)") == before


def test_no_labels_of_names_are_left_out_on_paper(page: Page) -> None:
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    labels = page.eval_on_selector_all("#exposures .ytick text", "all => all.map(one => one.textContent)")
    assert len(labels) == 7 + 6, "sectors and styles"
    rows = "all => all.filter(one => one.getBoundingClientRect().height > 0).length"
    assert page.eval_on_selector_all("#holdings-table tbody tr", rows) == 20
    assert page.locator("text=The first 20 rows of 60 are printed.").is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
