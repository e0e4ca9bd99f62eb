"""The report: its contents, that it loads nothing, and that names which look like HTML are escaped."""

import base64
import dataclasses
import datetime as dt
import functools
import gzip
import hashlib
import json
import math
import re
from typing import Any

import polars as pl
import pytest
from page_data import Page, section_titles
from plotly.offline import get_plotlyjs
from report_data import (
    BOOKS,
    MODELS,
    make_edges,
    make_explained,
    make_header,
    make_ladder,
    make_positions,
    make_report,
    make_series,
    make_signals,
)

from backtest.analysis.history import round_trips
from backtest.look_ahead.finding import Finding, Result, conclude
from pipelines.audit.command import Audit
from pipelines.columns import table
from pipelines.config.load import check_config
from pipelines.config.sections import BacktestConfig
from pipelines.format import EN_DASH, MINUS
from pipelines.pages.report import render_report as render
from pipelines.pages.report_data import RunReport, assumptions
from pipelines.pages.tables import Shown, Spec, with_interval
from pipelines.pages.verdict import judge_report


@functools.cache
def standard_page() -> str:
    return render(make_report())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(standard_page())


def charts_of(page: Page) -> dict[str, dict[str, Any]]:
    """The charts of a page by their place, as the script reads them."""
    (packed,) = (code for attrs, code in page.scripts if attrs.get("id") == "data")
    figures: dict[str, dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed)))["figures"]
    return figures


def test_the_page_loads_nothing(page: Page) -> None:
    ours = [code for attrs, code in page.scripts if code != get_plotlyjs()]
    assert len(ours) == len(page.scripts) - 1, "plotly.js is inlined exactly once"
    for tag, attrs in page.elements:
        assert tag not in {"iframe", "object", "embed", "img", "base", "form", "video", "audio"}
        assert "src" not in attrs
        assert "srcset" not in attrs
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attrs)
    everything = page.style + "".join(ours)
    banned = r"https?://|//cdn|url\(|@import|@font-face|fetch\(|XMLHttpRequest|topojson|mapbox|maplibre|MathJax|\$\$"
    assert re.search(banned, everything) is None
    assert '"scattergeo"' not in everything
    assert '"choropleth"' not in everything
    assert "showSendToCloud: false" in everything, "plotly.js 7 shows an upload button by default"
    assert 'plotlyServerURL: ""' in everything


def test_the_content_security_policy_allows_only_the_two_scripts(page: Page) -> None:
    metas = [
        a for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    policy = metas[0]["content"] or ""
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    script_rule = next(rule for rule in policy.split("; ") if rule.startswith("script-src"))
    assert "unsafe-inline" not in script_rule
    executed = [code for attrs, code in page.scripts if attrs.get("type") is None]
    hashes = {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in executed}
    assert set(re.findall(r"'sha256-([^']+)'", script_rule)) == hashes
    assert len(executed) == 2
    assert not any("\r" in code for code in executed), "browsers normalise line ends before they hash"


def test_every_figure_has_its_titles_and_a_caption(page: Page) -> None:
    drawn = charts_of(page)
    assert len(drawn) == 46
    for name, chart in drawn.items():
        axes = {name: value for name, value in chart["layout"].items() if name.startswith(("xaxis", "yaxis"))}
        assert axes
        dates = any(
            re.fullmatch(r"\d{4}-\d\d-\d\d", str(x)) for trace in chart["data"] for x in trace["x"][:1]
        )
        for place, value in axes.items():
            speaks = value.get("type") == "category" or (place == "xaxis" and dates)
            hidden = value.get("showticklabels") is False
            assert value.get("title", {}).get("text") or speaks or hidden, f"{name}: {place} has no title"
    labels = [a.get("aria-label") for tag, a in page.elements if tag == "div" and a.get("class") == "plot"]
    assert all(labels)
    assert sum(tag == "figcaption" for tag, _ in page.elements) == len(drawn)
    assert sum(tag == "figure" for tag, _ in page.elements) == len(drawn)


def test_every_figure_is_in_the_page_as_valid_json(page: Page) -> None:
    places = [a["id"] for tag, a in page.elements if tag == "div" and a.get("class") == "plot"]
    drawn = charts_of(page)
    assert list(drawn) == places
    assert all(figure["data"] for figure in drawn.values())


def test_the_page_has_less_than_2_mb_beside_plotly_for_15_years_of_8_models() -> None:
    def three_times(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([frame.with_columns(pl.col("date").dt.offset_by(f"{5 * k}y")) for k in range(3)])

    long = make_series(1_300)
    data = make_report(
        equity=three_times(long["equity"]),
        ic_series=three_times(long["ic_series"]),
        quantile_series=three_times(make_signals()["quantile_series"]),
        positions=three_times(make_positions(100, 1_300)),
    )
    size = len(render(data).encode()) - len(get_plotlyjs().encode())
    assert 500_000 < size < 2_000_000


def test_names_from_data_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    image = "\"><img src=x onerror=alert(2)> <a href='http://x.invalid'>y</a>"
    rename = pl.col("model").replace("temporal_peer", image)
    tables = {
        name: frame.with_columns(
            *([rename] if "model" in frame.columns else []),
            *(pl.lit(evil).alias(column) for column in ("book",) if column in frame.columns),
            *(pl.lit(image) + pl.col(c) for c in ("key", "term", "ticker") if c in frame.columns),
            *(pl.lit([evil]).alias(c) for c in ("names",) if c in frame.columns),
        )
        for name, frame in make_report().tables.items()
    }
    header = make_header(
        name=evil,
        run_id=image,
        config_yaml=f"a: {evil}",
        hazards=(evil, image),
        notes=(image,),
        libraries={evil: image},
        stage_seconds={evil: 1.0},
        main_book=evil,
        universe=image,
        data_versions=pl.DataFrame({"table": [evil], "version": [1], "rows": [2]}),
        audit=Audit((Result(evil, "fail", image),), "full").table,
    )
    found = make_explained("temporal_peer")
    example = {"ticker": image, "date": evil, "base_value": 0.0, "forecast": 1.0, "player": [evil, image]}
    explained = dataclasses.replace(
        found,
        model=image,
        tables={
            **found.tables,
            "edges": make_edges().with_columns(leader=pl.lit(evil)),
            "players": found.table("players").with_columns(player=pl.lit(evil) + pl.col("player")),
            "example": pl.DataFrame(example | {"value": [0.5, 0.5], "error": [0.1, 0.1]}),
        },
    )
    page = Page(render(make_report(header=header, explained=(explained,), explorer=image, **tables)))
    assert evil in page.text
    assert image in page.text
    assert len([a for a, _ in page.scripts if a.get("type") is None]) == 2
    assert not any(tag == "img" for tag, _ in page.elements)
    assert not any("onerror" in attrs for _, attrs in page.elements)
    drawn = charts_of(page)
    assert len(drawn) > 30
    for chart in drawn.values():  # plotly.js interprets chart texts as HTML: all must be escaped
        written = json.dumps(chart, ensure_ascii=False)
        visible = re.sub(r'"(legendgroup)": ?"(?:[^"\\]|\\.)*"', "", written)
        assert not re.search(r"<(script|img|a |/(?!extra>))", visible)


RESULTS = [
    *("overview", "evidence", "audit", "assumptions", "figures", "returns", "drawdowns", "books", "costs"),
    *("rolling", "signal", "quantiles", "exposures", "risk", "factors", "contributions", "capacity"),
    *("trials", "trips", "holdings"),
]
ORIGINS = ["models", "folds", "learning", "truth", "attribution", "network", "provenance", "config"]


def test_all_but_the_first_two_screens_is_folded(page: Page) -> None:
    text = standard_page()
    parts = re.findall(r'<section id="([a-z]+)">(<details[^>]*>)?', text)
    assert parts[0] == ("overview", "")
    assert [fold for _, fold in parts[1:]] == [
        *['<details class="fold paper">'] * (len(RESULTS) - 1),
        *['<details class="fold">'] * len(ORIGINS),
    ]
    first = text[text.index("<header>") : text.index("</header>")]
    tiles = re.findall(r"<dt>(.*?)</dt><dd>(.*?)<small>(.*?)</small>", first)
    minus = "\N{MINUS SIGN}"
    assert tiles == [
        ("net return", "12.2%", "per year"),
        ("volatility", "9.1%", "per year"),
        ("net Sharpe", "1.35", "95% [0.45, 2.25]"),
        ("max drawdown", f"{minus}9.9%", "net of costs"),
        ("turnover", "62.0%", "one-way, per session"),
        ("deflated Sharpe", "0.97", "after 42 trials"),
    ]
    assert first.count("<figure>") == 1
    second = text[text.index('<section id="overview">') : text.index('<section id="evidence">')]
    assert second.count("<figure>") == 2
    labels = re.findall(r'role="region" aria-label="(.*?)"', second)
    assert labels == ["Net return by month", "Costs of the main book in basis points of NAV per year"]


def test_the_head_says_what_was_measured_when() -> None:
    text = standard_page()
    head = text[text.index("<header>") : text.index("</header>")]
    assert "<h1>Nightly, simulated market</h1>" in head
    assert "2021-01-04 to 2023-11-24 · 756 dates" in head
    title = "<title>Nightly, simulated market, 2021-01-04 to 2023-11-24: Peerglass report</title>"
    assert title in text
    assert "Models are compared on the 756 dates from 2021-01-04 to 2023-11-24" in text


def test_groups_have_the_name_of_what_they_are() -> None:
    for group, other in (("industry", "sector"), ("sector", "industry")):
        text = render(make_report(header=make_header(group=group)))
        for words in ("Net contribution by {}", "Net weight by {}", "{} or style"):
            assert words.format(group) in text
            assert words.format(other) not in text


def test_crises_are_shown_on_real_markets_and_beside_the_benchmarks() -> None:
    book = BOOKS[0]
    text = render(make_report(**benchmark_tables("spx", book)))
    found = re.search(r'aria-label="Crises">.*?</table>', text, re.DOTALL)
    assert found is not None
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", found[0])[1:]]
    assert [row[:3] for row in rows] == [["Rates and inflation", "2022-01-03", "2022-10-12"]]
    equity = make_report().table("equity", "temporal_peer", every_book=True).filter(pl.col("book") == book)
    nav = dict(equity.select("date", "nav_net").iter_rows())
    expected = 100 * (nav[dt.date(2022, 10, 12)] / nav[dt.date(2022, 1, 3)] - 1)
    assert float(rows[0][3].replace("\N{MINUS SIGN}", "-")) == pytest.approx(expected, abs=0.051)
    assert "Crises</h3>" not in render(make_report(header=make_header(simulated=True)))


def test_round_trips_are_those_of_the_positions(page: Page) -> None:
    trips = round_trips(make_positions())
    closed = trips.drop_nulls("exit")
    assert f"{closed.height:,} closed, {trips.height - closed.height:,} open at the end" in page.text
    best = trips.sort("net", descending=True).row(0, named=True)
    text = standard_page()
    found = re.search(r'aria-label="The 10 best">.*?</table>', text, re.DOTALL)
    assert found is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", found[0])
    assert cells[:4] == [best["ticker"], best["side"], str(best["entry"]), str(best["exit"])]
    assert cells[8] == f"+{1e4 * best['net']:.1f}"


def test_months_after_a_ruin_are_not_counted() -> None:
    after = pl.when(pl.col("date") > pl.col("date").min() + pl.duration(days=20))
    ruined = make_series()["equity"].with_columns(
        nav_net=after.then(0.0).otherwise("nav_net"), excess_net=after.then(None).otherwise(0.0)
    )
    assert re.search(r": \d+% of 1 months are positive", render(make_report(equity=ruined)))


def test_sections_without_data_are_omitted() -> None:
    assert section_titles(standard_page()) == RESULTS + ORIGINS
    ladder = make_ladder().with_columns(truth_ic=pl.lit(None), truth_rank_ic=pl.lit(None)).drop_nulls("ic")
    bare = RunReport(make_header(hazards=(), notes=(), git_commit=None), {"ladder": ladder})
    page = render(bare)
    few = ["evidence", "audit", "assumptions", "trials", "models", "provenance", "config"]
    assert section_titles(page) == few
    assert 'class="hazards"' not in page
    assert 'class="notes"' not in page
    links = re.findall(r'href="#([a-z]+)"', page[page.index("<nav") : page.index("</nav>")])
    assert links == ["top", *few]


SECTIONS_OF: dict[str, set[str]] = {
    "equity": {"books", "returns"},
    "folds": {"folds"},
    "learning": {"learning"},
    "costs": {"costs"},
    "figures": {"figures"},
    "capacity": {"capacity"},
    "factor_alpha": {"factors"},
    "contributions": {"contributions"},
    "exposures": {"exposures"},
    "risk": {"risk"},
    "positions": {"holdings", "trips"},
    "worst_days": set(),
    "ic_decay": set(),
    "overfitting": set(),
}
"""Table -> anchors of the sections that show nothing else."""


@pytest.mark.slow(5)
@pytest.mark.parametrize("table", SECTIONS_OF)
def test_a_missing_table_removes_only_its_section(table: str) -> None:
    complete = set(section_titles(standard_page()))
    assert complete - set(section_titles(render(make_report(**{table: None})))) == SECTIONS_OF[table]


def test_empty_tables_remove_their_sections_and_no_others() -> None:
    complete = set(section_titles(standard_page()))
    tables = make_report().tables
    for chosen in (list(SECTIONS_OF)[::2], list(SECTIONS_OF)[1::2]):
        without = section_titles(render(make_report(**{name: tables[name].clear() for name in chosen})))
        assert complete - set(without) == set.union(*(SECTIONS_OF[name] for name in chosen))


def test_unknown_delistings_are_shown_by_book_and_only_if_there_were_any() -> None:
    sides = {"side": ["book", "long", "short"], "paid_out": [5, 3, 2]}
    sharpes = {
        "sharpe_net_0": [1.5, 1.2, 0.4],
        "sharpe_net_30": [0.9, 0.2, 0.8],
        "sharpe_net_55": [0.3, -0.7, 1.1],
    }
    returns = {
        "annual_return_net_0": [0.15, 0.12, 0.04],
        "annual_return_net_30": [0.09, 0.02, 0.08],
        "annual_return_net_55": [0.03, -0.07, 0.11],
    }
    endings = pl.DataFrame({**sides, **sharpes, **returns}).with_columns(
        model=pl.lit("ridge"), book=pl.lit("long_short")
    )
    page = render(make_report(endings=endings))
    part = page[page.index('id="delistings"') : page.index('id="folds"')]
    rows = [
        [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", part)
    ]
    minus = "\N{MINUS SIGN}"
    long_side = [
        "ridge",
        "long_short",
        "long",
        "3",
        "1.20",
        "0.20",
        f"{minus}0.70",
        "12.0",
        "2.0",
        f"{minus}7.0",
    ]
    assert len(rows) == 5  # two rows of headers
    assert rows[3] == long_side
    assert "delistings" not in section_titles(render(make_report(endings=None)))
    assert "delistings" not in section_titles(render(make_report(endings=endings.clear())))


def test_empty_frames_count_as_no_data() -> None:
    nothing = {name: frame.clear() for name, frame in make_report().tables.items() if name != "comparisons"}
    ladder = make_ladder().with_columns(truth_ic=pl.lit(None), truth_rank_ic=pl.lit(None))
    ladder = ladder.with_columns(deflated_sharpe=pl.lit(None, dtype=pl.Float64))
    page = render(make_report(**nothing | {"ladder": ladder}, explained=()))
    assert section_titles(page) == ["evidence", "audit", "assumptions", "models", "provenance", "config"]


def test_one_delay_and_one_turnover_have_one_name_each(tiny: dict[str, Any]) -> None:
    label = {"horizon": 1, "delay": 0, "extra_delays": [1]}
    untradable = check_config({**tiny, "label": label, "models": {"ridge": {}}}, origin="c")
    rows = dict(assumptions(untradable).select("assumption", "value").iter_rows())
    assert rows["execution delay"] == 1.0, "the delay of the verdict, the key figures and the tests"

    report = make_report(header=make_header(execution_delay=3))
    assert f"before costs ({report.header.main_book}, traded at delay 3)" in judge_report(report).evidence
    page = Page(render(report)).text
    assert "Books trade 3 sessions after it, as backtest.delay sets." in page
    assert "Books trade then." in Page(render(make_report())).text
    assert "traded value in per cent" not in page, "a turnover is one-way everywhere"


def test_the_report_says_how_it_decides_and_shows_the_tests(page: Page) -> None:
    head = page.text[page.text.index("Validation rank IC") : page.text.index("Hazards")]
    assert "How this is decided" in head
    assert "deflated value is at least 0.95" in head
    assert "the 95% interval of the daily IC difference lies above 0" in head
    assert "IC difference +0.0200 [+0.0099, +0.0299]" in head, "in the tile"
    text = standard_page()
    found = re.search(r'aria-label="Tests against the baselines">.*?</table>', text, re.DOTALL)
    assert found is not None
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", found[0])
    ]
    peer = next(row for row in rows if row[:2] == ["self_peer", "lightgbm"])
    minus = "\N{MINUS SIGN}"
    assert peer[2:7] == ["+0.0080", f"{minus}0.0021", "+0.0179", "0.032", "0.043"]
    assert peer[7:] == ["+0.44", f"{minus}0.26", "+1.14", "0.076", "? unclear"]
    assert '<td class="unclear">? unclear</td>' in text
    untested = render(make_report(comparisons=None))
    assert "Tests against the baselines" not in untested
    assert "not tested" in untested


def benchmark_tables(name: str, book: str) -> dict[str, pl.DataFrame]:
    """One model's book against one benchmark that never moves."""
    series = make_report().table("equity", MODELS[0], every_book=True).filter(pl.col("book") == book)
    keys = {"model": MODELS[0], "book": book, "delay": 1, "benchmark": name}
    numbers = dict.fromkeys(table("benchmarks").columns, 0.25) | keys | {"returns": "price", "n_sessions": 9}
    flat = series.select("date", nav_benchmark=1.0).with_columns(pl.lit(v).alias(k) for k, v in keys.items())
    return {"benchmarks": table("benchmarks").frame([numbers]), "benchmark_series": flat}


def test_books_are_compared_with_the_benchmarks_of_the_config_and_the_rate_is_named() -> None:
    book = BOOKS[0]
    index = {"<spx>": {"file": "spx.csv", "returns": "price"}}
    header = make_header(
        backtest=BacktestConfig.model_validate({"benchmarks": index}), sharpe_rate="the rates in tbill.csv"
    )
    text = render(make_report(header=header, **benchmark_tables("<spx>", book)))
    found = re.search(rf'aria-label="{book} against its benchmarks">.*?</table>', text, re.DOTALL)
    assert found is not None
    row = re.search(r"<tbody>(<tr.*?</tr>)", found[0], re.DOTALL)
    assert row is not None
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]
    assert cells[1:] == ["&lt;spx&gt;", "price", "0.25", *["25.0"] * 3, "0.25", *["25.0"] * 5]
    assert "&lt;spx&gt;: a price index, without the dividends that books receive" in text
    assert "Active return, compounded" in text
    assert text.count("in excess of the rates in tbill.csv") == 1, "said once"


def test_predicted_risk_has_a_chart_a_table_and_the_bias_statistic() -> None:
    text = standard_page()
    bias = make_report().tables["risk"]["surprise"].std()
    assert f"the standard deviation of weekly returns over predicted volatility, is {bias:.2f};" in text
    table = re.search(r'aria-label="Exposures to the risk model">.*?</table>', text, re.DOTALL)
    assert table is not None
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall(r"<tr.*?</tr>", table[0], re.DOTALL)[1:]
    ]
    assert rows == [
        ["market", "+0.200", "+0.200", "+0.200", "50.0"],
        ["&lt;b&gt;beta&lt;/b&gt;", *[f"{MINUS}0.100"] * 3, "14.0"],
        ["specific", *[EN_DASH] * 3, "36.0"],
    ]
    assert "Predicted volatility" in text


def test_published_factors_have_a_table_of_the_main_book_and_the_alphas_of_all_books() -> None:
    rows = [
        {
            **dict.fromkeys(table("factor_models").columns, 0.25),
            **{"model": "temporal_peer", "book": book, "delay": 1, "factors": "<q5>", "frequency": "monthly"},
            **{"after_costs": net, "term": term, "periods": 48, "lags": 9},
            "reading": "Its factors explain little." if term == "alpha" else None,
        }
        for book in BOOKS
        for net in (False, True)
        for term in ("alpha", "R_MKT")
    ]
    header = make_header(backtest=BacktestConfig.model_validate({"factors": {"<q5>": "q5.csv"}}))
    text = render(make_report(header=header, factor_models=table("factor_models").frame(rows)))
    assert "on published monthly factors over 48 periods. Its factors explain little." in text
    shown = [
        re.findall(r"<tr.*?</tr>", part, re.DOTALL)
        for part in re.findall(r'aria-label="[^"]*&lt;q5&gt;">.*?</table>', text, re.DOTALL)
    ]
    assert [len(one) for one in shown] == [1 + 2, 1 + 2 * len(BOOKS)]
    assert "published" not in standard_page()


def test_the_default_benchmark_has_a_table_for_long_only_books_alone() -> None:
    book = BOOKS[1]
    tables = {
        name: benchmark_tables("eq", BOOKS[0])[name].vstack(frame)
        for name, frame in benchmark_tables("eq", book).items()
    }
    ladder = make_ladder().with_columns(pl.lit(-0.456).alias(f"{book}.information_ratio"))
    text = render(make_report(ladder=ladder, **tables))
    assert f"{book} against its benchmarks" in text
    assert f"{BOOKS[0]} against its benchmarks" not in text
    assert "Active return, compounded" not in text
    assert "eq: the universe in equal weights, before costs." in text
    plain = standard_page()
    assert "against its benchmarks" not in plain
    assert "Sharpe ratios are in excess of a rate of 0, charged on net exposure" in plain


def test_dates_on_which_a_book_could_not_decide_are_named() -> None:
    notes = {
        "model": ["ridge", "ridge", "<b>"],
        "book": [BOOKS[0]] * 3,
        "date": [dt.date(2024, 3, 1), dt.date(2024, 3, 8), dt.date(2024, 3, 8)],
        "note": ["no weights satisfy all limits; the last book is kept"] * 3,
    }
    text = render(make_report(book_notes=pl.DataFrame(notes)))
    reason = "2024-03-08: no weights satisfy all limits; the last book is kept."
    assert f"<p>{BOOKS[0]} of ridge: notes on 2 dates; the newest, {reason}</p>" in text
    assert f"<p>{BOOKS[0]} of &lt;b&gt;: notes on 1 date; the newest, {reason}</p>" in text
    assert "notes on" not in standard_page()


def test_numbers_have_units_and_missing_ones_are_dashes(page: Page) -> None:
    text = standard_page()
    models = text[text.index('<section id="models">') : text.index('<section id="folds">')]
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r'<tr class="chosen">.*?</tr>', models)
    ]
    forecast = ["3", "0.0451", "0.0410", "6.6", "0.29", "0.0381", "0.27", "54.1", "2.46", "51"]
    forecast += ["100.0", "97.5", "0.0"]
    book = [
        "2.87",
        "1.35",
        "0.45",
        "2.25",
        "0.97",
        "12.2",
        "\N{MINUS SIGN}9.9",
        "62.0",
        "\N{CHECK MARK} yes",
        "\N{CHECK MARK} yes",
    ]
    assert rows[:2] == [["temporal_peer", *forecast], ["temporal_peer", *book]]
    assert len(rows) == 4, "the chosen model is highlighted at both delays"
    assert "\N{EN DASH}</td>" in text
    assert "max drawdown %" in page.text
    assert "turnover % / session" in page.text
    assert "net return % / year" in page.text


def test_other_delays_have_their_own_tables(page: Page) -> None:
    assert "The same forecasts with a delay of 0 sessions" in page.text
    assert "it cannot be traded" in page.text
    only = make_ladder().filter(pl.col("delay") == 1)
    assert "The same forecasts" not in render(make_report(ladder=only))


def test_the_audit_stands_in_the_head_the_worst_first() -> None:
    results = (Result("fine", "pass", "Good."), Result("bad", "fail", "Prices of tomorrow."))
    page = render(make_report(header=make_header(audit=Audit(results, "full").table)))
    block = page[page.index('class="audit fail"') : page.index("<h3>Hazards")]
    assert block.index("Prices of tomorrow.") < block.index("Good.")
    assert "1 failure, 1 passed" in block
    assert "<li><b>bad</b>: Prices of tomorrow.</li>" in block
    assert "Audit: not run." in standard_page()


def test_what_a_failed_check_looked_at_is_shown_the_worst_first() -> None:
    rows = [
        Finding("choice of rows", "pass", "Would be a leak.", 0.5, 2.0, f"input <{at}>") for at in range(30)
    ]
    rows.append(Finding("choice of rows", "fail", "It is a leak.", -7.0, 2.0, "input <bad>"))
    bad, fine = conclude(rows, "Nothing."), conclude(rows[:1], "Nothing.")
    results = [dataclasses.replace(bad, check="coverage"), dataclasses.replace(fine, check="bars")]
    header = make_header(audit=Audit(tuple(results), "full").table, behind={"coverage": bad.evidence})
    page = render(make_report(header=header))
    block = page[page.index('class="audit fail"') : page.index("<h3>Hazards")]
    shown = block[block.index("<summary>What it looked at, 20 of 31 rows</summary>") :]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', shown)]
    assert widths == [200.0, *[25.0] * 9], "seven is more than twice the limit; 0.5 is a quarter of it"
    assert shown.index("input &lt;bad&gt;") < shown.index("input &lt;0&gt;")
    assert "\N{MINUS SIGN}7 (limit 2)" in shown
    assert "It is a leak." in shown
    assert "Would be a leak." not in shown
    assert "input &lt;19&gt;" not in shown


def test_rendering_twice_gives_the_same_page() -> None:
    assert render(make_report()) == standard_page()


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("weight", "after trades, of the day's NAV"),
        (("sharpe_net", "net", None, "Sharpe"), "annual Sharpe ratio after costs"),
        (("weight", "RMS SHAP", "#3"), ""),
        (("kind", "planted edges"), ""),
    ],
)
def test_a_column_of_another_table_has_no_hint_of_a_declared_one(column: Spec, hint: str) -> None:
    assert Shown.of(column).hint == hint


def test_an_interval_with_one_known_bound_is_written() -> None:
    frame = pl.DataFrame({"low": [0.2, 0.2, None, None], "high": [math.inf, None, 0.5, None]})
    assert with_interval(frame)["interval"].to_list() == [
        "0.20 to unbounded",
        f"0.20 to {EN_DASH}",
        f"{EN_DASH} to 0.50",
        EN_DASH,
    ]
