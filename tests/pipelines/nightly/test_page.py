"""The page of a night: every part is there, names from data stay text, and it loads nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import night_results
import polars as pl
import pytest
from page_data import section_titles

from pipelines.nightly.page import render_page
from pipelines.nightly.result import ModelVersion, NightFinding, NightResult

EVIL = "<img src=x onerror=alert(1)>"
VOID = {"meta", "link", "img", "br", "line", "circle", "polyline", "polygon"}


class Reader(HTMLParser):
    """Collects tags and text, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


@pytest.mark.parametrize("make", [night_results.night, night_results.done, night_results.failed])
def test_a_page_is_closed_html_without_scripts_or_requests(make: object, tmp_path: Path) -> None:
    assert callable(make)
    reader = read(render_page(make(tmp_path)))
    assert reader.tags.count("h1") == 1
    assert not {"script", "iframe", "img", "object", "form"} & set(reader.tags)
    links = [value for name, value in reader.attributes if name in ("href", "src")]
    assert links
    assert all(value is not None and value.startswith(("#", "data:,")) for value in links)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]


def test_the_limits_of_the_book_are_shown_with_their_units(tmp_path: Path) -> None:
    text = " ".join(read(render_page(night_results.night(tmp_path))).text)
    assert "challenger, mean of 20 sessions" in text
    assert "max_beta binds beta 0.020 beta 0.020 max_leverage free 160.0% of NAV 200.0% of NAV" in text


def test_the_state_comes_first_and_every_part_follows(tmp_path: Path) -> None:
    text = " ".join(read(render_page(night_results.night(tmp_path))).text)
    assert "Done, with warnings." in text
    assert "40 signals for the session after 2026-11-20" in text
    assert night_results.DRIFT.sentence in text
    for title in ("CUSUM", "Realised rank IC", "beta_252", "9 other features", "rank correlation"):
        assert title in text
    for title in ("Trades", "Highest", "Lowest", "Last nights", "Promotions", "Versions"):
        assert title in text
    assert "first version" in text
    assert "prices 41, securities 7" in text


@pytest.mark.parametrize("make", [night_results.night, night_results.done])
def test_the_profit_comes_before_the_trades(make: Callable[[Path], NightResult], tmp_path: Path) -> None:
    page = render_page(make(tmp_path))
    assert section_titles(page)[0] == "account"
    text = " ".join(read(page).text)
    assert "P&L of 2026-11-20 \N{MINUS SIGN}2,000 \N{MINUS SIGN}0.20%" in text
    assert "P&L of the month +10,500 +1.05%" in text
    assert "NAV 1,010,500 gross 1,012,000" in text
    assert "Return on the capital, after costs, %" in text


def test_a_failed_night_says_what_failed_and_what_to_do(tmp_path: Path) -> None:
    result = night_results.failed(tmp_path)
    text = " ".join(read(render_page(result)).text)
    assert "Failed." in text
    assert text.index(night_results.LOST.sentence) < text.index("Mend the cause")
    assert "peerglass nightly CONFIG --date 2026-11-20" in text
    assert "Trades" not in text


def test_names_from_data_are_text(tmp_path: Path) -> None:
    evil = [EVIL, *(f"F{n}" for n in range(9))]
    finding = NightFinding("coverage", "warn", f"{EVIL} has no price.", EVIL)
    result = night_results.night(tmp_path, evil)
    promotions = night_results.promotions().with_columns(why=pl.lit(EVIL))
    result = replace(
        result,
        findings=(finding,),
        promotions=promotions,
        champion=ModelVersion("run", EVIL),
        signals=night_results.signals(evil, ModelVersion("run", EVIL)),
        tables={"attributions": night_results.attributions(evil).with_columns(player=pl.lit(EVIL))},
        nights=night_results.nights(["warned"], [(finding,)]),
        seconds={EVIL: 1.0},
    )
    for state in ("done", "warned", "failed"):
        page = render_page(replace(result, state=state, error=EVIL))
        reader = read(page)
        assert "img" not in reader.tags
        assert page.count(EVIL) == 0
        assert sum(EVIL in text for text in reader.text) >= 8
        assert not re.search(r"\son\w+\s*=", re.sub(r">[^<]*<", "><", page))


def test_every_cell_of_the_last_nights_stands_under_its_title(tmp_path: Path) -> None:
    result = replace(night_results.night(tmp_path), nights=night_results.nights(["warned", "failed"]))
    page = render_page(result).partition('aria-label="Nights"')[2].partition("</table>")[0]
    head, *rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in page.split("<tr")[1:]]
    warned, failed = (dict(zip(head, row, strict=True)) for row in rows)
    assert warned["state"] == "warned"
    assert warned["warnings or error"] == "drift"
    assert failed["warnings or error"] == "The source did not answer."
    assert warned["model"] == str(night_results.CHAMPION)
    assert (warned["signals"], warned["trades"], warned["seconds"]) == ("1,020", "84", "94")


def test_long_labels_leave_no_band_of_the_realised_rank_ic(tmp_path: Path) -> None:
    result = night_results.night(tmp_path)
    pages = [render_page(replace(result, overlap=overlap)) for overlap in (1, 5, 6)]
    assert all("means of 20 sessions, with a band of 95%." in page for page in pages[:2])
    assert "too few for a band, because the labels of 6 sessions overlap." in pages[2]
    shapes = [len(re.findall("<(?:path|polygon)[ >]", page)) for page in pages]
    assert shapes[0] == shapes[1] == shapes[2] + 1
