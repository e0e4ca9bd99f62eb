"""The explorer in a browser: slider, search, filters, a firm; hostile names; a phone; no requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
import pytest
from made_networks import DATES, HOSTILE, MODEL, TICKERS, made_tables, value_of, write_tables
from playwright.sync_api import Browser, Page, Route, sync_playwright

from pipelines.config.load import check_config
from pipelines.pages.explorer import write_explorer
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun

BROWSER = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not BROWSER.is_file(), reason=f"there is no browser at {BROWSER}")
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # without a GPU process, and with events in place of a mouse: under load, either waits for frames
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path, tiny_settings: Mapping[str, object]) -> Iterator[Show]:
    """Open the explorer of some tables; at the end nothing was requested, no error and no dialog appeared."""
    context = browser.new_context()
    troubles: list[str] = []

    def only(route: Route, address: str) -> None:
        if route.request.url == address:
            route.continue_()
        else:
            troubles.append(f"requested {route.request.url}")
            route.abort()

    def opened(
        tables: Mapping[str, pl.DataFrame] | None = None, width: int = 1280, scheme: str = "light"
    ) -> Page:
        config = check_config({**tiny_settings, "models": {MODEL: {}}}, origin="tiny")
        run = RecordedRun("tiny-0123456789", config, Identity.nothing(), tmp_path)
        write_tables(run, made_tables() if tables is None else tables)
        address = write_explorer(run).as_uri()
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("dialog", lambda dialog: troubles.append(f"dialog {dialog.message}"))
        page.route("**/*", lambda route: only(route, address))
        page.goto(address)
        page.wait_for_selector("#ticker")
        return page

    yield opened
    context.close()
    assert troubles == []


def written(value: float) -> str:
    """A value as the page writes it, in basis points."""
    return f"{1e4 * value:+.2f}".replace("-", "\N{MINUS SIGN}")


def find(page: Page, text: str) -> None:
    page.fill("#firm", text)
    page.press("#firm", "Enter")


def leaders(page: Page) -> list[str]:
    return page.locator("#peersIn button.firm").all_text_contents()


def test_the_slider_shows_the_values_of_each_date(show: Show) -> None:
    page = show()
    find(page, "AAA")
    for date in (2, 0, 1):
        page.fill("#date", str(date))
        assert str(DATES[date]) in page.inner_text("#shown")
        rows = page.locator("#peersIn tbody tr")
        assert rows.count() == len(TICKERS) - 1
        for leader in (1, 4):
            row = rows.filter(has_text=TICKERS[leader])
            assert f"{written(value_of(leader, 0, date))} \u00b1 0.25" in row.inner_text()
        total = sum(value_of(j, 0, date) for j in range(1, len(TICKERS)))
        assert f"{written(total)} bps = 0.00 without peers" in page.inner_text("#forecast")
    page.focus("#date")
    page.keyboard.press("ArrowLeft")
    assert str(DATES[0]) in page.inner_text("#shown")
    assert page.locator("#earlier option").count() == 1, "there is no earlier date"
    page.dispatch_event("#after", "click")
    assert str(DATES[1]) in page.inner_text("#shown")
    assert page.evaluate("location.hash") == f"#AAA/{DATES[1]}"


def test_what_changed_since_the_chosen_date(show: Show) -> None:
    page = show()
    find(page, "AAA")
    assert page.input_value("#earlier") == "0", "the first date at least 30 days before"
    page.select_option("#earlier", "1")
    text = page.inner_text("#changes")
    difference = written(value_of(1, 0, 2) - value_of(1, 0, 1))
    assert f"{difference} \u00b1 0.35" in text, "errors of two dates are independent"
    assert "two fitted models (fold 0, seed 0; fold 1, seed 0)" in text


def test_the_search_works_with_the_keyboard_and_by_sector(show: Show) -> None:
    page = show()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "firm"
    page.keyboard.type("trucks")
    assert page.locator("#matches li").all_text_contents() == ["CCC <b>Trucks</b>", "DDD <b>Trucks</b>"]
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#firm", "aria-activedescendant") == "match1"
    page.keyboard.press("Enter")
    assert page.inner_text("#ticker") == "DDD"
    page.fill("#firm", "zzz")
    assert page.is_hidden("#matches")
    assert page.inner_text("#missing") == "No firm or sector contains zzz."
    page.keyboard.press("Enter")
    assert page.inner_text("#ticker") == "DDD", "nothing was found, so nothing changes"


def test_a_firm_is_reached_by_its_name_and_left_by_the_back_button(show: Show) -> None:
    page = show()
    find(page, "AAA")
    page.locator("#peersIn button.firm", has_text="BBB").dispatch_event("click")
    assert page.inner_text("#ticker") == "BBB"
    assert len(leaders(page)) == 5
    assert sorted(page.locator("#peersOut button.firm").all_text_contents()) == [HOSTILE, "AAA", "DDD"]
    page.locator("#peersIn button.history").last.dispatch_event("click")
    assert page.locator("#pair h3").inner_text() == "AAA \u2192 BBB"
    page.go_back()
    assert page.inner_text("#ticker") == "AAA"
    page.locator("#peersIn tr", has_text="BBB").locator("button.history").dispatch_event("click")
    text = page.inner_text("#pair")
    assert "slope \u22120.120 \u00b1 0.060, t \u22122.0, q 0.400, 250 sessions" in text
    assert "stored on 3 of 3 dates" in text
    assert page.locator("#pair svg.chart circle").count() == len(DATES)


def test_an_address_of_an_unknown_firm_or_date_says_what_the_page_lacks(show: Show) -> None:
    page = show()
    first = page.inner_text("#ticker")
    for address, said in (
        ("#ZZZ/2020-01-01", f"no firm ZZZ and no date 2020-01-01, only 3 from {DATES[0]} to {DATES[-1]}."),
        ("#%E0%A4%A", "no firm %E0%A4%A."),
    ):
        page.evaluate("address => { window.location.hash = address; }", address)
        ends = "said => document.getElementById('missing').textContent.endsWith(said)"
        page.wait_for_function(ends, arg=said)
        assert page.inner_text("#missing").startswith(f"The network of {MODEL} has ")
        assert page.inner_text("#ticker") == first
    page.evaluate("address => { window.location.hash = address; }", f"#DDD/{DATES[0]}")
    page.wait_for_function("document.getElementById('ticker').textContent === 'DDD'")
    assert page.inner_text("#missing") == ""
    assert str(DATES[0]) in page.inner_text("#shown")


def test_filters_by_sector_by_t_and_by_edges_found(show: Show) -> None:
    page = show()
    find(page, "AAA")
    assert sorted(leaders(page)) == sorted(TICKERS[1:])
    page.select_option("#sector", label="<b>Trucks</b>")
    assert sorted(leaders(page)) == ["CCC", "DDD"]
    assert "3 peers hidden by the filters" in page.inner_text("#peersIn")
    page.select_option("#sector", "-1")
    page.fill("#least", "2")
    assert sorted(leaders(page)) == ["BBB", "CCC"], "t is 4 minus the number of the leader"
    page.fill("#least", "0")
    page.check("#found")
    assert sorted(leaders(page)) == ["BBB", "CCC"], "the first three leaders' edges are found"
    edges = page.locator("#edges tbody tr")
    assert edges.count() == 10
    page.fill("#least", "12")
    assert "No peer passes the filters" in page.inner_text("#peersIn")
    assert "No edge passes the filters" in page.inner_text("#edges")


def test_the_verdict_stands_at_the_top_with_its_numbers(show: Show) -> None:
    text = show().inner_text("#verdict")
    assert text.startswith("Attention usable as an explanation of peers: no, but near inconclusive.")
    needs = "needs at least 0.70, fails below 0.40: fail, margin 0.10"
    assert f"agreement 0.31 (0.20 to unbounded), {needs}" in text
    assert "Over days: inconclusive" in text


def test_shap_and_attention_are_read_cell_by_cell(show: Show) -> None:
    page = show()
    find(page, "AAA")
    assert page.locator("#matrixPart .map").count() == 2
    assert page.locator("#matrixPart figcaption", has_text="Not shown").count() == 2
    page.focus("#matrixPart .map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    one, two = page.locator("#matrixPart .readout").all_text_contents()
    leader = TICKERS[len(TICKERS) - 1]  # the largest value
    assert one == two == f"{leader} \u2192 AAA: {written(value_of(5, 0, 2))} bps \u00b1 0.25; attention 8.3%"
    page.locator("#matrixPart .views button", has_text="Sectors").dispatch_event("click")
    page.focus("#matrixPart .map")
    page.keyboard.press("ArrowDown")
    assert "1.00 bps; attention 10.000%" in page.locator("#matrixPart .readout").first.inner_text()


def test_a_hostile_ticker_is_text(show: Show) -> None:
    page = show()
    find(page, "onerror")
    assert page.inner_text("#ticker") == HOSTILE
    assert page.locator("img").count() == 0
    assert page.locator("main b", has_text="Trucks").count() == 0, "names of sectors are text as well"
    page.wait_for_timeout(50)  # an image that fails to load would have called its handler


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction_only(show: Show, scheme: str) -> None:
    page = show(width=400, scheme=scheme)
    find(page, "onerror")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 27, 32)")
    page.emulate_media(media="print", color_scheme="dark" if scheme == "dark" else "light")
    assert page.is_hidden("#controls")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow(4)
def test_a_network_without_edges_one_date_one_firm_and_no_verdict(show: Show) -> None:
    page = show(made_tables(TICKERS[:1], (None,), DATES[:1], edges=False, verdict=False))
    assert page.inner_text("#ticker") == "AAA"
    assert page.is_disabled("#date")
    assert "not measured" in page.inner_text("#verdict")
    assert "The peers of this firm were not measured" in page.inner_text("#peersIn")
    assert "No edge passes the filters" in page.inner_text("#edges")


def test_an_old_browser_says_what_it_needs(
    browser: Browser, tmp_path: Path, tiny_settings: Mapping[str, object]
) -> None:
    run = RecordedRun(
        "tiny-0123456789",
        check_config({**tiny_settings, "models": {MODEL: {}}}, origin="tiny"),
        Identity.nothing(),
        tmp_path,
    )
    write_tables(run, made_tables())
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(write_explorer(run).as_uri())
    assert "open it in one of May 2023 or later" in page.inner_text("header")
    page.close()
