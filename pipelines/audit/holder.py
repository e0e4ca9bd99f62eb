"""What a holder of a share earns, from the raw prices, in a few lines that share nothing with the pipeline.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import FloatArray, IntArray
from features.panel.panel import Panel
from pipelines.audit.subject import Subject


@dataclass(frozen=True, slots=True, eq=False)
class HolderValues:
    """Value of one share of the first day, with its dividends, for some firms.

    Attributes
    ----------
    columns_N
        Columns of the firms in the panel.
    value_TN
        Value at the close; NaN on sessions without a price.
    last_TN
        Last session up to t with a price; -1 before the first.
    """

    columns_N: IntArray
    value_TN: FloatArray
    last_TN: IntArray


def holder_values(prices: pl.DataFrame, panel: Panel, columns_N: IntArray) -> HolderValues:
    """Follow one share of some firms through splits and dividends, row by row of the prices.

    A dividend is per share after the split of its day, and buys shares at the next close. ``prices`` are the
    rows that the panel was built from.
    """
    session = {day: t for t, day in enumerate(panel.dates_T.astype("datetime64[D]").tolist())}
    place = {panel.tickers_N[n]: k for k, n in enumerate(columns_N)}
    value_TN = np.full((panel.n_sessions, len(columns_N)), np.nan)
    rows = prices.filter(pl.col("ticker").is_in(list(place))).sort("ticker", "date")
    held, shares, waiting = "", 1.0, 0.0
    columns = ("ticker", "date", "close", "split_ratio", "dividend")
    for ticker, day, close, split, dividend in rows.select(columns).iter_rows():
        if ticker != held:
            held, shares, waiting = ticker, 1.0, 0.0
        ratio = split or 1.0
        shares, waiting = shares * ratio, waiting / ratio + (dividend or 0.0)
        if close is not None and math.isfinite(close) and close > 0:
            shares *= 1.0 + waiting / close
            waiting = 0.0
            value_TN[session[day], place[ticker]] = shares * close
    at_TN = np.where(np.isfinite(value_TN), np.arange(len(value_TN))[:, None], -1)
    return HolderValues(columns_N, value_TN, np.maximum.accumulate(at_TN, axis=0))


def sample_firms(subject: Subject, count: int) -> IntArray:
    """Columns of firms that are in the universe, a third of them firms that stop trading."""
    data = subject.dataset
    rng = np.random.default_rng((subject.seed, 11))
    inside = np.flatnonzero(data.universe_TN.any(axis=0))
    ends = inside[~data.panel.traded_TN[-1, inside]]
    leavers = rng.permutation(ends)[: count // 3]
    others = rng.permutation(np.setdiff1d(inside, leavers))[: count - len(leavers)]
    return np.sort(np.concatenate([leavers, others])).astype(np.int64)
