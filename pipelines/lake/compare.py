"""The changes of an upsert: rows that are new, rows that differ from stored ones, and rows that it withdraws.

Tables are written in the order of their dates, in files of about a million rows whose first and last dates
are in the log. A batch is compared in pieces, each only with the stored rows of its own dates: a new session
is compared with nothing, and a complete redelivery never holds the whole table twice in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

import polars as pl

from pipelines.lake.schemas import STAMPS, keys, schema

_PIECE_ROWS: Final = 1_000_000
_SPANS: Final = 16
"""Maximum number of date ranges in a predicate: enough to skip the files between scattered corrections."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between a batch and the stored rows.

    Attributes
    ----------
    new
        Rows of the batch whose key is not stored.
    changed
        Rows of the batch that are stored with other values; a different stamp alone does not count.
    withdrawn
        Keys of the stored rows that the batch withdraws.
    in_scope
        Number of stored rows that the batch would withdraw if it did not contain them.
    """

    new: pl.DataFrame
    changed: pl.DataFrame
    withdrawn: pl.DataFrame
    in_scope: int


def in_order(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in storage order: sorted by the key, with its dates first."""
    order = _order(table)
    return rows if _is_sorted(rows, order) else rows.sort(order)


def compare(table: str, rows: pl.DataFrame, stored: pl.LazyFrame, scope: pl.Expr | None = None) -> Changes:
    """Return what a batch changes.

    Parameters
    ----------
    table
        Name of the lake table.
    rows
        The batch, as returned by `in_order`, each key once.
    stored
        The table's rows.
    scope
        Boolean expression over the table's columns: stored rows that are withdrawn unless the batch contains
        them. None: nothing is withdrawn.
    """
    key = keys(table)
    values = [c for c in rows.columns if c not in key and c not in STAMPS]
    new: list[pl.DataFrame] = [rows.clear()]
    changed: list[pl.DataFrame] = [rows.clear()]
    withdrawn: list[pl.DataFrame] = [rows.select(key).clear()]
    in_scope = 0
    pieces = list(_pieces(table, rows))
    for i, piece in enumerate(pieces):
        may_match = _within(piece, key) if scope is None else _between(table, pieces, i)
        stored_rows = stored.filter(may_match).select(*key, *values).collect()
        if stored_rows.is_empty():
            new.append(piece)
            continue
        stored_names = {c: f"{c}:stored" for c in values}
        both = piece.join(
            stored_rows.rename(stored_names).with_columns(pl.lit(value=True).alias(":there")),
            on=key,
            how="left",
            maintain_order="left",
        )
        differs = pl.any_horizontal(
            pl.lit(value=False), *(pl.col(c).ne_missing(pl.col(f"{c}:stored")) for c in values)
        )
        new.append(both.filter(pl.col(":there").is_null()).select(rows.columns))
        changed.append(both.filter(pl.col(":there") & differs).select(rows.columns))
        if scope is not None:
            in_scope_keys = stored_rows.filter(scope).select(key)
            in_scope += in_scope_keys.height
            if stored_rows.height > piece.height - new[-1].height:  # some stored rows have no match
                withdrawn.append(in_scope_keys.join(piece, on=key, how="anti"))
    return Changes(pl.concat(new), pl.concat(changed), pl.concat(withdrawn), in_scope)


def match_predicate(table: str, changed: pl.DataFrame) -> str:
    """Return a merge's predicate: equal keys within the changed dates, so that other files are not rewritten.

    Parameters
    ----------
    table
        Name of the lake table.
    changed
        The keys to replace or withdraw; rows that are only added match nothing and can be omitted.
    """
    key = keys(table)
    terms = [f'target."{c}" = source."{c}"' for c in key]
    for c in key:
        if changed.schema[c] == pl.String and changed[c].n_unique() == 1:
            value = changed[c][0].replace("'", "''")
            terms.append(f"target.\"{c}\" = '{value}'")
    dated = _dates(table)
    if dated:
        spans = _spans(changed[dated[0]].unique().sort().to_list())
        column = f'target."{dated[0]}"'
        ranges = (f"({column} >= '{first}' AND {column} <= '{last}')" for first, last in spans)
        terms.append(f"({' OR '.join(ranges)})")
    return " AND ".join(terms)


def _dates(table: str) -> list[str]:
    types = schema(table).create_empty().schema
    return [c for c in keys(table) if types[c] == pl.Date]


def _order(table: str) -> list[str]:
    dated = _dates(table)
    return [*dated, *(c for c in keys(table) if c not in dated)]


def _is_sorted(rows: pl.DataFrame, order: list[str]) -> bool:
    """Compare every row with the one before it, which is much cheaper than sorting sorted rows."""
    ordered = pl.lit(value=True)
    for c in reversed(order):
        before = pl.col(c).shift()
        ordered = (pl.col(c) > before) | ((pl.col(c) == before) & ordered)
    return bool(rows.select(ordered.fill_null(value=True).all()).item())


def _pieces(table: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split a sorted batch between dates into pieces of about `_PIECE_ROWS` rows."""
    dated = _dates(table)
    if not dated or rows.height <= _PIECE_ROWS:
        yield rows
        return
    starts = rows.select((pl.col(dated[0]).rle_id().diff(1) > 0).arg_true()).to_series().to_list()
    begin = cut = 0
    for start in (*starts, rows.height):
        if start - begin > _PIECE_ROWS and cut > begin:
            yield rows.slice(begin, cut - begin)
            begin = cut
        cut = start
    yield rows.slice(begin)


def _within(rows: pl.DataFrame, key: list[str]) -> pl.Expr:
    """Select stored rows that may share a key: those within the batch's range of every key column."""
    return pl.all_horizontal(
        pl.col(c).is_between(pl.lit(rows[c].min(), dtype), pl.lit(rows[c].max(), dtype))
        for c, dtype in rows.select(key).schema.items()
    )


def _between(table: str, pieces: list[pl.DataFrame], i: int) -> pl.Expr:
    """Select stored rows from a piece's first date to the next piece's; the ends are open."""
    day = _dates(table)[0]
    inside = pl.lit(value=True)
    if i > 0:
        inside &= pl.col(day) >= pieces[i][day][0]
    if i + 1 < len(pieces):
        inside &= pl.col(day) < pieces[i + 1][day][0]
    return inside


def _spans(days: list[date]) -> list[tuple[date, date]]:
    """Cover sorted days by at most `_SPANS` ranges, split at the widest gaps."""
    gaps = sorted(range(1, len(days)), key=lambda i: days[i] - days[i - 1], reverse=True)
    cuts = sorted(gaps[: _SPANS - 1])
    return [(days[a], days[b - 1]) for a, b in zip([0, *cuts], [*cuts, len(days)], strict=True)]
