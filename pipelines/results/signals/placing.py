"""Placing the rows of a signal file on the panel, and counting the rows that are left out, by reason.

Shape suffixes: R rows of the file, T sessions, N firms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.results.signals.reading import SignalTable

USED: Final = "used"
REASONS: Final = (
    "missing value",
    "outside the prices' dates",
    "not a session",
    "unknown ticker",
    "quarantined",
    "unpriced",
    "no universe on that date",
    "not in the universe",
)
"""Why a row is left out. A row counts under the first reason that applies."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSignals:
    """Signals on the panel.

    Attributes
    ----------
    signals
        Signal -> values on the cells of the universe, shape (T, N); NaN where there is none.
    rows
        signal, reason (`USED` or one of `REASONS`), rows: how the rows of the file were used.
    off_sessions
        Dates of the file that are not sessions although prices exist before and after them, sorted.
    """

    signals: Mapping[str, FloatArray]
    rows: pl.DataFrame
    off_sessions: tuple[str, ...]

    def used(self, signal: str) -> int:
        """Number of rows of a signal that are measured."""
        own = (pl.col("signal") == signal) & (pl.col("reason") == USED)
        return int(self.rows.filter(own)["rows"].sum())

    @property
    def constant(self) -> tuple[str, ...]:
        """Signals with values that differ between the firms of no date: they rank no firm above another."""
        return tuple(
            signal
            for signal, value_TN in self.signals.items()
            if not (np.fmax.reduce(value_TN, axis=1) > np.fmin.reduce(value_TN, axis=1)).any()
        )


def place_signals(table: SignalTable, market: Market, quarantine: pl.DataFrame | None) -> PlacedSignals:
    """Place signals on the panel and count the rows that are left out.

    Parameters
    ----------
    table
        The rows of the file.
    market
        Panel and universe.
    quarantine
        Rows of the lake's table ``quarantine``; None if there is none.
    """
    panel, frame = market.panel, table.rows
    dates_T = panel.dates_T.astype("datetime64[D]")
    day_R = frame["date"].to_numpy().astype("datetime64[D]")
    t_R = np.minimum(np.searchsorted(dates_T, day_R), len(dates_T) - 1)
    tickers = pl.Enum(list(panel.tickers_N))
    n_R = frame["ticker"].cast(tickers, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    outside_R = (day_R < dates_T[0]) | (day_R > dates_T[-1])
    off_R = dates_T[t_R] != day_R
    unknown_R = n_R < 0
    priced_R = panel.traded_TN[t_R, n_R]
    decides_T: BoolArray = np.asarray(market.universe_TN.any(axis=1))
    tests: dict[str, BoolArray] = {
        "outside the prices' dates": outside_R,
        "not a session": off_R,
        "unknown ticker": unknown_R,
        "quarantined": ~priced_R & _quarantined(frame, ~priced_R & ~off_R & ~unknown_R, quarantine),
        "unpriced": ~priced_R,
        "no universe on that date": ~decides_T[t_R],
        "not in the universe": ~market.universe_TN[t_R, n_R],
    }
    reason_R = np.zeros(len(day_R), dtype=np.int8)  # 0: used
    for number, name in reversed(list(enumerate(REASONS, start=1))):
        if name in tests:
            reason_R[tests[name]] = number
    signals, rows = {}, []
    for signal in table.signals:
        value_R = frame[signal].to_numpy()
        own_R = np.where(np.isnan(value_R), 1, reason_R)
        value_TN = np.full(market.universe_TN.shape, np.nan)
        used_R = own_R == 0
        value_TN[t_R[used_R], n_R[used_R]] = value_R[used_R]
        signals[signal] = value_TN
        counts = np.bincount(own_R, minlength=len(REASONS) + 1)
        rows += [
            {"signal": signal, "reason": name, "rows": int(count)}
            for name, count in zip((USED, *REASONS), counts, strict=True)
        ]
    off = np.unique(day_R[off_R & ~outside_R])
    return PlacedSignals(signals, pl.DataFrame(rows), tuple(str(day) for day in off))


def leave_out_constant(table: SignalTable, placed: PlacedSignals) -> tuple[SignalTable, PlacedSignals]:
    """Leave out the signals that are constant on every date, with a note in the table.

    Raises
    ------
    DataError
        If no other signal is left.
    """
    constant = placed.constant
    if not constant:
        return table, placed
    named = ", ".join(constant)
    if len(constant) == len(table.signals):
        raise DataError(
            f"{table.path}: {named} has the same value for all firms of a date, on every date, so it ranks "
            "no firm above another; give a column whose values differ between firms."
        )
    note = f"Not measured: {named} (the same value for all firms, on every date)."
    kept = {signal: value_TN for signal, value_TN in placed.signals.items() if signal not in constant}
    rows = placed.rows.filter(~pl.col("signal").is_in(constant))
    return (
        replace(table, rows=table.rows.drop(constant), notes=(*table.notes, note)),
        replace(placed, signals=kept, rows=rows),
    )


def _quarantined(frame: pl.DataFrame, asked_R: BoolArray, quarantine: pl.DataFrame | None) -> BoolArray:
    """Whether the price row of each asked date and ticker lies in quarantine."""
    found_R: npt.NDArray[np.bool_] = np.zeros(frame.height, dtype=np.bool_)
    if quarantine is None or not asked_R.any():
        return found_R
    held = quarantine.filter((pl.col("table") == "prices") & pl.col("resolved_at").is_null())
    keys = {
        (str(row.get("date"))[:10], str(row.get("ticker"))) for row in map(json.loads, held["row"].to_list())
    }
    asked = np.flatnonzero(asked_R)
    rows = frame.select(pl.col("date").cast(pl.String), "ticker")[asked].iter_rows()
    found_R[asked] = [row in keys for row in rows]
    return found_R
