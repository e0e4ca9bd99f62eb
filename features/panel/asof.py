"""As-of joins onto the panel's grid: groups by validity interval, statements by publication date.

Shape suffixes: T sessions, N firms, S groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import DateArray, FloatArray, IntArray

SHARE_COUNT = "shares_outstanding"
_SPLIT_POWER = {SHARE_COUNT: 1, "eps": -1}
"""Items that splits change: a share count is multiplied by the ratio, a per-share amount divided by it."""
STALE_DAYS = 548  # a year and a half: an annual statement is replaced after 15 months at the latest


def _days(column: pl.Series, missing: str) -> DateArray:
    """Turn a date column into numpy days; null becomes the date ``missing``."""
    filled = column.cast(pl.Date).fill_null(pl.lit(missing).str.to_date())
    days: DateArray = filled.to_numpy().astype("datetime64[D]")
    return days


def spans(
    rows: pl.DataFrame, start: str, end: str, dates_T: DateArray, tickers_N: tuple[str, ...]
) -> Iterator[tuple[int, int, int]]:
    """Yield the firm of each row, and the sessions from start to end; a null leaves a side open."""
    firms = {ticker: n for n, ticker in enumerate(tickers_N)}
    first_R = np.searchsorted(dates_T, _days(rows[start], "0001-01-01"), side="left")
    until_R = np.searchsorted(dates_T, _days(rows[end], "9999-12-31"), side="left")
    return zip((firms[ticker] for ticker in rows["ticker"]), first_R.tolist(), until_R.tolist(), strict=True)


def groups_as_of(
    securities: pl.DataFrame, group_by: str, dates_T: DateArray, tickers_N: tuple[str, ...]
) -> tuple[IntArray, tuple[str, ...]]:
    """Look up each firm's group (sector or industry) as of every session.

    A row is valid on sessions with ``valid_from <= t < valid_to``; a null leaves that side open. Of
    overlapping rows, the one with the latest ``valid_from`` is used. Codes are numbered in the order in which
    groups become valid, ties by name. A group that first appears after t therefore changes no code at or
    before t.

    ``securities`` has the columns ticker, valid_from, valid_to and ``group_by``. Returned are the codes, of
    shape (T, N) and -1 where unknown, and the names that they number.

    Examples
    --------
    >>> rows = pl.DataFrame({"ticker": ["A"], "valid_from": [None], "valid_to": [None], "sector": ["oil"]})
    >>> dates = np.arange("2024-01-01", "2024-01-03", dtype="datetime64[D]")
    >>> groups_as_of(rows, "sector", dates, ("A", "B"))
    (array([[ 0, -1],
           [ 0, -1]], dtype=int16), ('oil',))
    """
    rows = securities.filter(pl.col("ticker").is_in(tickers_N) & pl.col(group_by).is_not_null())
    rows = rows.sort("valid_from", group_by, "ticker", nulls_last=False)
    groups_S = tuple(rows[group_by].unique(maintain_order=True).to_list())
    codes = {name: code for code, name in enumerate(groups_S)}
    group_TN = np.full((len(dates_T), len(tickers_N)), -1, dtype=np.int16)
    valid = spans(rows, "valid_from", "valid_to", dates_T, tickers_N)
    for name, (n, first, until) in zip(rows[group_by], valid, strict=True):
        group_TN[first:until, n] = codes[name]
    return group_TN, groups_S


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Known values of one item, one row per change, sorted by firm and session."""

    firm_R: IntArray
    session_R: IntArray
    until_R: IntArray  # the session from which the row is stale
    value_R: FloatArray  # without the panel's splits, for an item that splits change
    split_power: int  # the value is multiplied by (product of splits so far) ** split_power

    def lay_out(self, firms: range, total_TN: FloatArray) -> FloatArray:
        """Carry each row forward until the next row or until it is stale: [T, n], NaN elsewhere."""
        T = len(total_TN)
        rows = slice(*np.searchsorted(self.firm_R, [firms.start, firms.stop]).tolist())
        firm_R = self.firm_R[rows] - firms.start
        start_R = firm_R * T + self.session_R[rows]
        next_R = (firm_R + 1) * T
        next_R[:-1] = np.minimum(next_R[:-1], start_R[1:])
        stale_R = np.clip(firm_R * T + self.until_R[rows], start_R, next_R)
        before_R = np.diff(start_R, prepend=0)
        before_R[1:] = start_R[1:] - next_R[:-1]
        # three runs per row: NaN before it, its value, NaN while it is stale
        length = np.stack([before_R, stale_R - start_R, next_R - stale_R], axis=1).ravel()
        value = np.full((len(firm_R), 3), np.nan)
        value[:, 1] = self.value_R[rows]
        flat = np.repeat(value.ravel(), length)
        value_TN = np.full((len(firms), T), np.nan)
        value_TN.reshape(-1)[: len(flat)] = flat
        out_TN = np.ascontiguousarray(value_TN.T)
        if self.split_power > 0:
            out_TN *= total_TN[:, firms.start : firms.stop]
        elif self.split_power < 0:
            out_TN /= total_TN[:, firms.start : firms.stop]
        out_TN.setflags(write=False)
        return out_TN


class Statements(Mapping[str, FloatArray]):
    """Statement values as known at every session, by item.

    Keys are the items and, for each, ``<item>@1y``: the value a year earlier (`statements_as_of`). Values are
    arrays of shape (T, N). They are computed on each access and not kept, so a panel stores only the filings.

    Examples
    --------
    >>> list(Statements({}, range(2), np.ones((3, 2))))
    []
    """

    def __init__(
        self, known: Mapping[str, _Known], firms: range, total_TN: FloatArray, first: int = 0
    ) -> None:
        self._known, self._firms, self._total_TN, self._first = known, firms, total_TN, first

    def __getitem__(self, key: str) -> FloatArray:
        """Return one item on the panel's grid."""
        return self._known[key].lay_out(self._firms, self._total_TN)[self._first :]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._known)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._known)

    @property
    def splits_TN(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """Product of the split ratios up to t, shape (T, N), also where there are no statements."""
        return self._total_TN[self._first :, self._firms.start : self._firms.stop]

    def contents(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yield the arrays that all values are computed from, with their names."""
        yield "statements", np.array([self._firms.start, self._firms.stop, self._first])
        yield "total", self._total_TN
        for key in sorted(self._known):
            known = self._known[key]
            yield f"{key} {known.split_power}", known.value_R
            for rows in (known.firm_R, known.session_R, known.until_R):
                yield key, rows

    def take_firms(self, firms: slice) -> Statements:
        """Select a contiguous range of firms."""
        return Statements(self._known, self._firms[firms], self._total_TN, self._first)

    def take_sessions(self, first: int) -> Statements:
        """Select the sessions from index ``first`` on."""
        return Statements(self._known, self._firms, self._total_TN, self._first + first)


def statements_as_of(
    fundamentals: pl.DataFrame, dates_T: DateArray, tickers_N: tuple[str, ...], split_TN: FloatArray
) -> Statements:
    """Look up the latest statement known at every session, and that of a year earlier, item by item.

    The value at t is that of the most recent ``period_end`` among the rows with ``known_at <= t``, in the
    latest version known at t. A restatement of an older period does not displace a newer period. The value
    under ``<item>@1y`` is that of the period that ended one year before the most recent one, again in the
    latest version known at t. Fiscal years have 52 or 53 weeks, so 28 days of difference are allowed.

    Flows cover one year. Where ``months`` is 3, the last four quarters known at t are summed, and all four
    must be known. If a fourth quarter was reported only as part of a year (``months`` 12), it is that year
    minus its first three quarters. Where ``months`` is 12 or null, the value is used unchanged. Rows of any
    other span (half years, nine months to date) are ignored.

    A value is NaN once its period ended more than `STALE_DAYS` before t.

    Share counts (``shares_outstanding``) and per-share amounts (``eps``) are adjusted to t for the splits
    with ``stated_on < date <= t``. A share count can therefore be multiplied by a raw close, and its growth
    over a year reflects issues and buybacks only. The number already contains the splits up to
    ``stated_on``, so a count from a cover page or from a restated comparative is not adjusted twice. Each
    version of a period is adjusted from its own date.

    ``fundamentals`` has the columns ticker, period_end, known_at, item and value, and may have ``months``,
    the span of a flow; ``stated_on``, the last day whose splits a share count or per-share amount contains,
    null for the period's end; and ``filing_id``, which breaks ties. Rows with a null value are ignored.
    ``split_TN`` is the split ratio on its ex-date, 1 otherwise. Values are in the statements' unit; NaN
    before the first one.

    Examples
    --------
    >>> rows = {"ticker": ["A"], "period_end": ["2023-12-31"], "known_at": ["2024-01-02"], "item": ["assets"]}
    >>> rows = pl.DataFrame(rows | {"value": [7.0]})
    >>> rows = rows.with_columns(pl.col("period_end", "known_at").str.to_date())
    >>> dates = np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]")
    >>> statements_as_of(rows, dates, ("A",), np.ones((3, 1)))["assets"].ravel()
    array([nan,  7.,  7.])
    """
    from features.panel.kernels import follow_filings  # compiled, so imported only where there are statements

    ties = ["filing_id"] if "filing_id" in fundamentals.columns else []
    months = pl.col("months") if "months" in fundamentals.columns else pl.lit(None)
    stated = pl.col("stated_on") if "stated_on" in fundamentals.columns else pl.lit(None)
    rows = (
        fundamentals.with_columns(
            months.cast(pl.Int64).fill_null(0).alias("months"),
            stated.cast(pl.Date).fill_null(pl.col("period_end")).alias("stated_on"),
        )
        .filter(
            pl.col("ticker").is_in(tickers_N)
            & pl.col("value").is_finite()
            & pl.col("months").is_in([0, 3, 12])
        )
        .sort("item", "ticker", "known_at", "period_end", *ties)
    )
    firms = {ticker: i for i, ticker in enumerate(tickers_N)}
    firm_R = rows["ticker"].replace_strict(firms, return_dtype=pl.Int64).to_numpy()
    session_R = np.searchsorted(dates_T, _days(rows["known_at"], "9999-12-31"), side="left")
    end_R = _days(rows["period_end"], "9999-12-31").astype(np.int64)
    item_R = rows["item"].rle_id().to_numpy()
    series_R = rows.select(pl.struct("item", "ticker").rle_id()).to_series().to_numpy().astype(np.int64)
    value_R = rows["value"].cast(pl.Float64).to_numpy()
    day_T = dates_T.astype("datetime64[D]").astype(np.int64)
    total_TN: FloatArray = np.multiply.accumulate(split_TN, axis=0)
    power_R = rows["item"].replace_strict(_SPLIT_POWER, default=0, return_dtype=pl.Int64).to_numpy()
    at_R = np.searchsorted(day_T, _days(rows["stated_on"], "9999-12-31").astype(np.int64), side="right") - 1
    # remove the splits that the value contains; those up to t are applied on access
    contained_R = np.where(at_R >= 0, total_TN[np.maximum(at_R, 0), firm_R], 1.0)
    value_R = np.where(power_R > 0, value_R / contained_R, value_R)
    value_R = np.where(power_R < 0, value_R * contained_R, value_R)
    now_R, now_end_R, before_R = follow_filings(series_R, end_R, value_R, rows["months"].to_numpy())
    until_R = np.searchsorted(day_T, now_end_R + STALE_DAYS, side="right")
    # of several rows that become known in one session, the last one counts
    last_R = np.ones(len(rows), dtype=np.bool_)
    last_R[:-1] = (series_R[1:] != series_R[:-1]) | (session_R[1:] != session_R[:-1])
    last_R &= session_R < len(dates_T)
    known: dict[str, _Known] = {}
    for code, item in enumerate(rows["item"].unique(maintain_order=True).to_list()):
        first, after = np.searchsorted(item_R, [code, code + 1])
        own = first + np.flatnonzero(last_R[first:after])
        power = _SPLIT_POWER.get(item, 0)
        for key, of_R in ((item, now_R), (f"{item}@1y", before_R)):
            known[key] = _Known(firm_R[own], session_R[own], until_R[own], of_R[own], power)
    return Statements(known, range(len(tickers_N)), total_TN)
