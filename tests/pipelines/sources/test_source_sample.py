"""The bundled sample: its tables and its notes."""

from __future__ import annotations

from datetime import date

import polars as pl
from skfolio.datasets import load_sp500_dataset

from pipelines.lake.contracts import check
from pipelines.sources.sample import SampleSource


def test_the_sample_is_skfolios_prices_in_long_form() -> None:
    fetched = SampleSource().fetch()
    prices = fetched.tables["prices"]
    wide = load_sp500_dataset()
    assert prices.height == wide.size == 8313 * 20
    assert prices.select("date", "ticker").is_unique().all()
    for ticker, day in (("AAPL", "1990-01-02"), ("XOM", "2022-12-28"), ("KO", "2008-10-10")):
        got = prices.filter((pl.col("ticker") == ticker) & (pl.col("date") == date.fromisoformat(day)))
        assert got["close"].item() == wide.loc[day, ticker]


def test_every_firm_is_classified_and_assumptions_are_noted() -> None:
    fetched = SampleSource().fetch()
    securities = fetched.tables["securities"]
    assert set(securities["ticker"]) == set(fetched.tables["prices"]["ticker"])
    assert securities.select("sector", "industry", "name").null_count().row(0) == (0, 0, 0)
    assert check("securities", securities).valid.height == 20
    output = " ".join(fetched.notes)
    assert "no open, high, low or volume" in output
    assert "adjusted for splits and dividends" in output
    assert "assumed static" in output
    assert any("Survivorship" in hazard for hazard in fetched.hazards)


def test_closes_are_adjusted_as_the_notes_say() -> None:
    """Apple was quoted at 645.57 on 2014-06-06 and split 7 for 1 on the 9th: raw prices would fall by 86%."""
    apple = SampleSource().fetch().tables["prices"].filter(pl.col("ticker") == "AAPL")
    around = apple.filter(pl.col("date").is_between(date(2014, 6, 6), date(2014, 6, 9)))["close"]
    assert abs(around[1] / around[0] - 1) < 0.03
    assert (
        around[0] < 645.57 / 28
    )  # below the split-adjusted quote (28 = 7 x 4), because closes are dividend-adjusted as well
