"""As-of tables on the panel's grid: groups by validity interval, statements by the day they became known.

Shape suffixes: T sessions, N firms, S groups.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from features.arrays import DateArray, FloatArray, IntArray
from features.rolling import carry

SHARE_COUNT = "shares_outstanding"


def _days(column: pl.Series, missing: str) -> DateArray:
    """Turn a date column into numpy days; null becomes the date ``missing``."""
    filled = column.cast(pl.Date).fill_null(pl.lit(missing).str.to_date())
    days: DateArray = filled.to_numpy().astype("datetime64[D]")
    return days


def groups_as_of(
    securities: pl.DataFrame, group_by: str, dates_T: DateArray, tickers_N: tuple[str, ...]
) -> tuple[IntArray, tuple[str, ...]]:
    """Lay out each firm's group (sector or industry) as of every session.

    A row counts on sessions with ``valid_from <= t < valid_to`` (null: open on that side); of rows that
    overlap, the one that became valid last counts. Codes are given in the order in which groups become
    valid (names decide ties), so that a group that first appears after t changes no code at or before t.

    Parameters
    ----------
    securities : polars.DataFrame
        Columns ticker, valid_from, valid_to and the one named by ``group_by``.
    group_by : str
        The column that holds the group's name.
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, sorted.
    tickers_N : tuple of str
        The panel's firms.

    Returns
    -------
    group_TN : ndarray of int16, shape (T, N)
        Code into ``groups_S``; -1 unknown.
    groups_S : tuple of str
        Group names.
    """
    slots = {ticker: i for i, ticker in enumerate(tickers_N)}
    rows = securities.filter(pl.col("ticker").is_in(tickers_N) & pl.col(group_by).is_not_null())
    rows = rows.sort("valid_from", group_by, "ticker", nulls_last=False)
    groups_S = tuple(rows[group_by].unique(maintain_order=True).to_list())
    codes = {name: code for code, name in enumerate(groups_S)}
    first_R = np.searchsorted(dates_T, _days(rows["valid_from"], "0001-01-01"), side="left")
    until_R = np.searchsorted(dates_T, _days(rows["valid_to"], "9999-12-31"), side="left")
    group_TN = np.full((len(dates_T), len(tickers_N)), -1, dtype=np.int16)
    for ticker, name, first, until in zip(rows["ticker"], rows[group_by], first_R, until_R, strict=True):
        group_TN[first:until, slots[ticker]] = codes[name]
    return group_TN, groups_S


def statements_as_of(
    fundamentals: pl.DataFrame, dates_T: DateArray, tickers_N: tuple[str, ...], split_TN: FloatArray
) -> Mapping[str, FloatArray]:
    """Lay out the latest statement known at every session, item by item.

    The value at t is that of the most recent ``period_end`` among the rows with ``known_at <= t``, in its
    version known last. A restatement of an older period does not displace a newer period. The item
    ``shares_outstanding`` is a count as of its period's end: it is brought to t by the splits in between,
    so that it can be multiplied with a raw close.

    Parameters
    ----------
    fundamentals : polars.DataFrame
        Columns ticker, period_end, known_at, item, value; ``filing_id``, where present, decides ties.
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, sorted.
    tickers_N : tuple of str
        The panel's firms.
    split_TN : ndarray of shape (T, N)
        Split ratio on its ex-date, 1 otherwise.

    Returns
    -------
    mapping of str to ndarray of shape (T, N)
        Value per item in the statements' unit; NaN before the first one. Null values are passed over.
    """
    order = ["known_at", "period_end", *(["filing_id"] if "filing_id" in fundamentals.columns else [])]
    rows = (
        fundamentals.filter(pl.col("ticker").is_in(tickers_N) & pl.col("value").is_finite())
        .sort(order)
        .with_columns(newest=pl.col("period_end").cum_max().over("ticker", "item"))
        .filter(pl.col("period_end") == pl.col("newest"))
    )
    slots = {ticker: i for i, ticker in enumerate(tickers_N)}
    total_TN: FloatArray = np.multiply.accumulate(split_TN, axis=0)
    statements: dict[str, FloatArray] = {}
    for (item,), part in sorted(rows.partition_by("item", as_dict=True, maintain_order=True).items()):
        session_R = np.searchsorted(dates_T, _days(part["known_at"], "9999-12-31"), side="left")
        ended_R = np.searchsorted(dates_T, _days(part["period_end"], "9999-12-31"), side="right") - 1
        firm_R = np.array([slots[ticker] for ticker in part["ticker"]], dtype=np.int64)
        value_R = part["value"].to_numpy().astype(np.float64)
        if item == SHARE_COUNT:  # without the splits up to the period's end; those up to t come back below
            value_R = value_R / np.where(ended_R >= 0, total_TN[np.maximum(ended_R, 0), firm_R], 1.0)
        value_TN = np.full((len(dates_T), len(tickers_N)), np.nan)
        seen_R = session_R < len(dates_T)
        value_TN[session_R[seen_R], firm_R[seen_R]] = value_R[seen_R]  # rows are in order: the last one stays
        value_TN = carry(value_TN)
        statements[str(item)] = value_TN * total_TN if item == SHARE_COUNT else value_TN
    return statements
