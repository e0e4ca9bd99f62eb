"""The look-ahead guard: all checks of every signal of a file, as a table.

What the checks are and why their limits are where they are: :mod:`backtest.look_ahead`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.beyond import PastPrices, beyond_past
from backtest.look_ahead.coverage import choice_of_rows, needs_next_price, only_survivors
from backtest.look_ahead.finding import VERDICTS, Finding
from backtest.look_ahead.levels import (
    equal_to_later_price,
    equal_to_later_return,
    static_signal,
    whole_sample_statistics,
)
from backtest.look_ahead.profile import sample_dates, session_returns, standardise
from backtest.look_ahead.returns import check_returns, make_profiles
from features.arrays import FloatArray
from features.panel.panel import Panel
from pipelines.dataset.market import Market
from pipelines.results.signals.placing import PlacedSignals
from pipelines.results.signals.reading import SignalTable

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "signal": pl.String,
    "check": pl.String,
    "verdict": pl.Enum(list(VERDICTS)),
    "sentence": pl.String,
    "value": pl.Float64,
}


def guard_table(table: SignalTable, placed: PlacedSignals, market: Market, horizon: int) -> pl.DataFrame:
    """Make all checks of every signal.

    Parameters
    ----------
    table
        All rows of the file.
    placed
        The signals on the panel.
    market
        Prices and universe.
    horizon
        Horizon of the label, in sessions.

    Returns
    -------
    polars.DataFrame
        signal, check, verdict (`backtest.look_ahead.finding.VERDICTS`), sentence, value: the worst findings
        of each signal first.
    """
    past = _Past(market, horizon)
    rows = []
    for signal, signal_TN in placed.signals.items():
        findings = [_off_sessions(table, signal, placed), whole_sample_statistics(table.rows, signal)]
        findings += past.check(signal_TN)
        findings.sort(key=lambda one: VERDICTS.index(one.verdict))
        rows += [(signal, one.check, one.verdict, one.sentence, one.value) for one in findings]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def failed(guard: pl.DataFrame) -> dict[str, list[str]]:
    """Signal -> the checks that it failed; signals that failed none are left out."""
    bad: dict[str, list[str]] = {}
    for signal, check in guard.filter(pl.col("verdict") == "fail").select("signal", "check").iter_rows():
        bad.setdefault(signal, []).append(check)
    return bad


class _Past:
    """The market that signals are checked against, prepared once for all of them."""

    def __init__(self, market: Market, horizon: int) -> None:
        self.market, self.horizon = market, horizon
        self.return_TN = session_returns(market.panel.total_return_index_TN, market.panel.traded_TN)
        self.returns = standardise(self.return_TN)
        self.prices = PastPrices(market.panel.total_return_index_TN)

    def check(self, signal_TN: FloatArray) -> Iterator[Finding]:
        panel, universe_TN = self.market.panel, self.market.universe_TN
        yield needs_next_price(signal_TN, universe_TN, panel.traded_TN)
        rows_D = sample_dates(signal_TN)
        if not len(rows_D):
            yield Finding("IC with later returns", "skipped", "No date of the file has 10 firms.")
            return
        found = make_profiles(signal_TN, self.returns)
        yield from check_returns(found, panel.dates_T, panel.tickers_N, self.horizon)
        yield beyond_past(signal_TN, self.prices, self.returns, self.horizon)
        yield equal_to_later_return(signal_TN, panel.total_return_index_TN, rows_D)
        yield equal_to_later_price(signal_TN, _fields(panel), _restated(panel), rows_D)
        yield static_signal(signal_TN, self.return_TN)
        yield only_survivors(signal_TN, universe_TN, panel.traded_TN, rows_D)
        yield choice_of_rows(np.isfinite(signal_TN), universe_TN, self.return_TN, self.horizon)


def _fields(panel: Panel) -> dict[str, FloatArray]:
    optional = {
        "close": panel.raw_close_TN,
        "adjusted close": panel.close_TN,
        "open": panel.open_TN,
        "high": panel.high_TN,
        "low": panel.low_TN,
        "volume": panel.volume_TN,
    }
    return {name: value_TN for name, value_TN in optional.items() if value_TN is not None}


def _restated(panel: Panel) -> dict[str, FloatArray]:
    """Closes as a vendor restates them: adjusted from the newest price back for all splits and dividends."""
    index_TN, close_TN = panel.total_return_index_TN, panel.raw_close_TN
    last_N = len(close_TN) - 1 - np.argmax(panel.traded_TN[::-1], axis=0)
    firms_N = np.arange(close_TN.shape[1])
    factor_N = close_TN[last_N, firms_N] / index_TN[last_N, firms_N]
    return {
        "close restated for later splits and dividends": np.where(
            panel.traded_TN, index_TN * factor_N, np.nan
        )
    }


def _off_sessions(table: SignalTable, signal: str, placed: PlacedSignals) -> Finding:
    name = "dated on sessions"
    own = (pl.col("signal") == signal) & (pl.col("reason") == "not a session")
    rows = int(placed.rows.filter(own)["rows"].sum())
    if not rows:
        return Finding(name, "pass", "All dates between the first and the last price are sessions.")
    share = rows / max(table.rows.height, 1)
    named = ", ".join(placed.off_sessions[:3])
    return Finding(
        name,
        "warn",
        f"{share:.1%} of the rows are dated on days without a session, for example {named}. If the "
        "dates come from time stamps in another time zone, the others may be a day early.",
        share,
    )
