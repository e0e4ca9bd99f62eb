"""Vintages: what was delivered earlier and what is delivered now must agree up to the earlier delivery's end.

This is the general test for data that know the future. Whatever was computed with later values changes when
later values arrive, or is missing at the end of the earlier delivery because they had not arrived.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Verdict
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "vintages"
FIRM_SHARE: Final = 0.02
"""Minimum share of a column's firms whose history was rewritten, for a failure. Fewer are corrections of
single errors, which every vendor makes, and a warning."""
ROW_SHARE: Final = 0.002
"""Minimum share of a column's rows, likewise."""
FEW: Final = 3
"""Up to this many rows are never more than a warning."""
RELATIVE: Final = 1e-6
"""Files are rounded, and float32 has seven digits."""
ANNOUNCED: Final = 3e-3
"""Relative tolerance within which a price differs from the earlier one by the splits recorded since."""

_TABLES: Final[Mapping[str, tuple[tuple[str, ...], str, tuple[str, ...]]]] = {
    "prices": (
        ("date", "ticker"),
        "date",
        ("close", "open", "high", "low", "volume", "split_ratio", "dividend"),
    ),
    "inputs": (("name", "date", "ticker"), "date", ("value",)),
    "fundamentals": (("ticker", "period_end", "known_at", "item"), "known_at", ("value",)),
    "securities": (("ticker", "valid_from"), "valid_from", ("sector", "industry")),
    "membership": (("universe", "ticker", "from_date"), "from_date", ("to_date",)),
}
"""Table -> its key, the date on which a row is known, and the columns that must not change."""


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    table: str
    column: str
    kind: str
    rows: int
    share: float
    firms: int
    ticker: str
    since: dt.date
    correlation: float | None

    @property
    def sentence(self) -> str:
        what = f"{self.table} {self.column}".strip()
        firms = f"{self.firms:,} firm{'s' if self.firms > 1 else ''}, such as {self.ticker}"
        size = f"{self.rows:,} row{'s' if self.rows > 1 else ''} ({self.share:.1%}) of {firms}"
        if self.kind == "announced":
            return f"{what} of {size} differ by the splits that were recorded since, which is announced"
        if self.kind == "added":
            return (
                f"{what} has {size} since {self.since} that the earlier delivery did not have for dates it "
                "covers, as if they become known later than their date"
            )
        if self.kind == "new":
            return (
                f"{what} has {size}, whose history was added since: firms that are added later were chosen "
                "with what is known later"
            )
        if self.kind == "withdrawn":
            return f"{what} lacks {size} since {self.since} that the earlier delivery had"
        later = (
            ""
            if self.correlation is None
            else f", and the changes correlate by {self.correlation:+.2f} with the returns that came after"
        )
        return f"{what} differs in {size} since {self.since}{later}"


def check(subject: Subject) -> Result:
    """Compare the tables with an earlier delivery, up to its last day."""
    if subject.older is None:
        return Result(
            NAME,
            "skipped",
            "There is no earlier delivery to compare with: keep one and give it with --vintage.",
        )
    return compare_vintages(subject.older, subject.tables)


def compare_vintages(
    older: Mapping[str, pl.DataFrame], newer: Mapping[str, pl.DataFrame], through: dt.date | None = None
) -> Result:
    """Compare two deliveries of the same tables up to the last day of the earlier one.

    Parameters
    ----------
    older, newer
        Lake tables of the two deliveries. Tables that only one of them has are left out; the later one must
        have prices.
    through
        Last day that is compared; None for the last one of the earlier delivery.

    Returns
    -------
    Result
        ``fail`` if more than a few rows were rewritten, added or withdrawn; ``warn`` for single ones. A price
        that differs by exactly the splits recorded since is told apart: it is announced.
    """
    through = through or _last_day(older)
    findings = [
        one
        for table, (key, known, columns) in _TABLES.items()
        if table in older and table in newer
        for one in _differences(
            table, older[table], newer[table], key, known, columns, through, newer["prices"]
        )
    ]
    evidence = pl.DataFrame([_row(one) for one in findings], infer_schema_length=None)
    real = [one for one in findings if one.kind != "announced"]
    aside = "".join(
        f" {one.sentence[0].upper()}{one.sentence[1:]}." for one in findings if one.kind == "announced"
    )
    if not real:
        return Result(
            NAME, "pass", f"History up to {through} is that of the earlier delivery.{aside}", evidence
        )
    worst = sorted(real, key=lambda one: (one.verdict != "fail", -abs(one.correlation or 0.0), -one.share))
    more = f" ({len(worst) - 1} more)" if len(worst) > 1 else ""
    head = "History was rewritten" if worst[0].verdict == "fail" else "Single rows of history differ"
    return Result(
        NAME,
        worst[0].verdict,
        f"{head}: compared with the delivery up to {through}, {worst[0].sentence}{more}. Ask the source for "
        f"values as they were first published.{aside}",
        evidence,
    )


def _last_day(older: Mapping[str, pl.DataFrame]) -> dt.date:
    """Last day of a delivery: that of its prices, or, without prices, of what it has."""
    dated = (
        [older["prices"]["date"]]
        if "prices" in older
        else [older[t][_TABLES[t][1]] for t in _TABLES if t in older]
    )
    days = [day for series in dated if isinstance(day := series.max(), dt.date)]
    return max(days, default=dt.date.min)


def _differences(  # noqa: PLR0917 (a table and what is known of it)
    table: str,
    older: pl.DataFrame,
    newer: pl.DataFrame,
    key: tuple[str, ...],
    known: str,
    columns: tuple[str, ...],
    through: dt.date,
    prices: pl.DataFrame,
) -> list[_Finding]:
    names = older["name"].unique().sort().to_list() if table == "inputs" else [None]
    found: list[_Finding] = []
    for name in names:
        left = older if name is None else older.filter(pl.col("name") == name)
        right = newer if name is None else newer.filter(pl.col("name") == name)
        if right.is_empty():
            continue
        left, right = (frame.filter(pl.col(known) <= through) for frame in (left, right))
        if table == "membership":  # a spell that has ended since was open then
            left, right = (
                frame.with_columns(
                    to_date=pl.when(pl.col("to_date") <= through).then("to_date").otherwise(None)
                )
                for frame in (left, right)
            )
        first = left[known].min()
        right = right.filter(pl.col(known) >= first)
        columns_now = [c for c in columns if c in left.columns and c in right.columns]
        base = (table, name, key, known, max(left.height, 1))
        added = right.join(left, on=key, how="anti")
        new_firm = ~pl.col("ticker").is_in(left["ticker"].unique().implode())
        found += _keys_differ("added", added.filter(~new_firm), left, base)
        found += _keys_differ("new", added.filter(new_firm), left, base)
        found += _keys_differ("withdrawn", left.join(right, on=key, how="anti"), left, base)
        both = right.select(*key, *columns_now).join(
            left.select(*key, *(pl.col(c).alias(f"{c}:then") for c in columns_now)), on=key
        )
        for column in columns_now:
            found += _values_differ(column, both, base, prices)
    return found


_Base = tuple[str, str | None, tuple[str, ...], str, int]


def _keys_differ(kind: str, rows: pl.DataFrame, left: pl.DataFrame, base: _Base) -> list[_Finding]:
    table, name, _, known, _ = base
    if rows.is_empty() or (table == "securities" and kind != "withdrawn"):
        return []
    if kind == "added" and table == "inputs":
        # the share is of the last session: a value that always arrives late is missing there alone
        total = max(int(left.group_by(known).len()["len"].median() or 1), 1)  # type: ignore[arg-type]
    else:
        total = base[4]
    return [_finding(table, name or "", kind, rows, total, left, known, None)]


def _values_differ(column: str, both: pl.DataFrame, base: _Base, prices: pl.DataFrame) -> list[_Finding]:
    table, name, _, known, total = base
    now, then = pl.col(column), pl.col(f"{column}:then")
    if both.schema[column].is_float():
        off = (now - then).abs() > RELATIVE * pl.max_horizontal(now.abs(), then.abs())
        differs = off.fill_null(value=False) | (now.is_null() != then.is_null())
    else:
        differs = now.ne_missing(then)
    rows = both.filter(differs)
    if rows.is_empty():
        return []
    shown = f"{name}" if name else column
    found = []
    if table == "prices" and column in ("open", "high", "low", "close", "volume"):
        announced = _announced(rows, column, prices)
        if announced.height:
            found.append(_finding(table, shown, "announced", announced, total, both, known, None))
        rows = rows.join(announced, on=["date", "ticker"], how="anti")
        if rows.is_empty():
            return found
    correlation = _with_later(rows, column, prices) if table in ("prices", "inputs") else None
    found.append(_finding(table, shown, "changed", rows, total, both, known, correlation))
    return found


def _announced(rows: pl.DataFrame, column: str, prices: pl.DataFrame) -> pl.DataFrame:
    """Rows whose ratio to the earlier value is the product of all later recorded splits of the firm."""
    splits = prices.filter(pl.col("split_ratio") != 1.0).select("ticker", "date", "split_ratio")
    if splits.is_empty():
        return rows.clear()
    later = (
        rows.select("ticker", "date")
        .join(splits, on="ticker", suffix="_split")
        .filter(pl.col("date_split") > pl.col("date"))
        .group_by("ticker", "date")
        .agg(pl.col("split_ratio").product().alias("factor"), pl.col("split_ratio").last().alias("newest"))
    )
    ratio = pl.col(f"{column}:then") / pl.col(column)
    ratio = 1.0 / ratio if column == "volume" else ratio
    near = ((ratio / pl.col("factor") - 1.0).abs() < ANNOUNCED) | (
        (ratio / pl.col("newest") - 1.0).abs() < ANNOUNCED
    )
    return rows.join(later, on=["ticker", "date"]).filter(near).select(rows.columns)


def _with_later(rows: pl.DataFrame, column: str, prices: pl.DataFrame) -> float | None:
    """Correlation of the changes with the returns of the 21 sessions after."""
    ordered = prices.select("ticker", "date", "close").sort("ticker", "date")
    later = ordered.with_columns(later=pl.col("close").shift(-21).over("ticker") / pl.col("close") - 1.0)
    change = pl.col(column) - pl.col(f"{column}:then")
    scale = (pl.col(column).abs() + pl.col(f"{column}:then").abs()).clip(1e-12)
    joined = (
        rows.with_columns(change=change / scale)
        .join(later, on=["ticker", "date"])
        .drop_nulls(["change", "later"])
    )
    if joined.height < 20:
        return None
    value = np.corrcoef(joined["change"].to_numpy(), joined["later"].clip(-0.5, 0.5).to_numpy())[0, 1]
    return float(value) if np.isfinite(value) else None


def _finding(  # noqa: PLR0917 (all of them are facts of one finding)
    table: str,
    column: str,
    kind: str,
    rows: pl.DataFrame,
    total: int,
    whole: pl.DataFrame,
    known: str,
    correlation: float | None,
) -> _Finding:
    counts = rows.group_by("ticker").len().sort(pl.col("len") * -1, "ticker")
    firms, share = counts.height, min(rows.height / total, 1.0)
    firm_share = firms / max(whole["ticker"].n_unique(), 1)
    many = rows.height > FEW and kind != "new" and (firm_share >= FIRM_SHARE or share >= ROW_SHARE)
    since = rows[known].min()
    assert isinstance(since, dt.date)
    verdict: Verdict = "pass" if kind == "announced" else "fail" if many else "warn"
    return _Finding(
        verdict, table, column, kind, rows.height, share, firms, counts["ticker"][0], since, correlation
    )


def _row(one: _Finding) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _Finding.__slots__}
