"""The positions that a report keeps, and their encoding for the picker."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from page_data import unpack
from report_data import make_header, make_positions, make_report

from pipelines.pages.report import MAX_NAMES, MIN_NAMES, holdings_data, select_holdings
from pipelines.pages.report import render_report as render


def decode(sessions: list[dict[str, Any]]) -> pl.DataFrame:
    """Do what the page's script does."""
    rows = [(one["date"], *row) for one in sessions for row in one["rows"]]
    names = ["date", "ticker", "weight", "trade", "pnl", "cost"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(pl.col("date").str.to_date())


def test_few_positions_are_all_kept_and_survive_the_encoding() -> None:
    positions = make_positions(firms=20, sessions=30)
    kept = select_holdings(positions)
    assert kept.complete
    got = decode(holdings_data(kept)).sort("date", "ticker")
    expected = positions.drop("model", "book").sort("date", "ticker")
    assert got.select("date", "ticker").equals(expected.select("date", "ticker"))
    for name in ("weight", "trade", "pnl"):
        np.testing.assert_allclose(got[name], expected[name], atol=0.51e-5)
    np.testing.assert_allclose(got["cost"], expected["cost"], atol=0.51e-6)  # shown with 0.01 bps


def test_a_firm_that_was_sold_in_a_session_is_no_name_of_it() -> None:
    positions = make_positions(firms=20, sessions=3).with_columns(
        weight=pl.when(pl.col("ticker") < "S005").then(0.0).otherwise("weight")
    )
    kept = select_holdings(positions)
    sold = positions.filter(pl.col("weight") == 0, pl.col("date") == pl.col("date").min()).height
    assert sold > 0
    assert kept.complete
    assert kept.totals["names"].to_list() == [20 - sold] * 3


def test_the_largest_positions_and_trades_of_every_session_are_kept() -> None:
    positions = make_positions(firms=60, sessions=200)
    kept = select_holdings(positions, max_rows=3_000)
    assert kept.names_per_date == 10
    assert not kept.complete
    newest = positions.filter(pl.col("date") == positions["date"].max())
    assert kept.rows.filter(pl.col("date") == newest["date"][0]).height == newest.height, "all of the newest"
    assert kept.rows.height - newest.height <= 3_000
    assert kept.rows["date"].n_unique() == kept.totals.height == 200
    for date in (kept.totals["date"][0], kept.totals["date"][117]):
        day = positions.filter(pl.col("date") == date)
        shown = set(kept.rows.filter(pl.col("date") == date)["ticker"])
        held = day.sort(pl.col("weight").abs(), descending=True)["ticker"].head(10)
        traded = (
            day.sort(pl.col("trade").abs(), descending=True).head(5).filter(pl.col("trade") != 0)["ticker"]
        )
        assert shown == {*held, *traded}
    assert select_holdings(positions, max_rows=1).names_per_date == MIN_NAMES
    assert select_holdings(make_positions(10, 5), max_rows=10**6).names_per_date == MAX_NAMES


def test_the_totals_are_those_of_all_positions() -> None:
    positions = make_positions(firms=60, sessions=50)
    kept = select_holdings(positions, max_rows=400)
    expected = positions.group_by("date", maintain_order=True).agg(
        gross=pl.col("weight").abs().sum(), net=pl.col("weight").sum(), pnl=pl.col("pnl").sum()
    )
    for name in ("gross", "net", "pnl"):
        assert kept.totals[name].to_list() == pytest.approx(expected[name].to_list(), abs=1e-12)
    content = holdings_data(kept)
    assert content[0]["names"] == 60
    assert content[0]["gross"] == pytest.approx(expected["gross"][0])
    assert sum(len(one["rows"]) for one in content) == kept.rows.height


def test_the_page_shows_the_newest_session_and_says_what_is_left_out() -> None:
    page = render(make_report(header=make_header(tables="evaluations/ab12")))
    part = page[page.index('<section id="holdings">') : page.index('<section id="models">')]
    assert "a session before the newest shows its 21 largest positions and 10 largest trades" in part
    assert "all of them are in positions.parquet in evaluations/ab12" in part
    newest = make_positions()["date"].to_list()[-1]
    assert f'max="{newest}" value="{newest}"' in part
    assert f"{newest}: 60 names, gross" in part
    rows = part[part.index("<tbody>") : part.index("</tbody>")]
    assert rows.count("<tr>") == 60


def test_hostile_names_stay_data() -> None:
    positions = make_positions().with_columns(ticker=pl.lit("</script><b>") + pl.col("ticker"))
    page = render(make_report(positions=positions))
    assert "</script><b>" not in page
    assert unpack(page)["holdings"][0]["rows"][0][0].startswith("</script><b>S")
