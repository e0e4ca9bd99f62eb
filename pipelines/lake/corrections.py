"""Corrections: the values in which two states of the data differ, and states between the two."""

from collections.abc import Collection, Mapping
from typing import Final

import polars as pl

from pipelines.lake.schemas import KNOWN_FROM, STAMPS, keys
from pipelines.lake.storage import compare, in_order

Tables = Mapping[str, pl.DataFrame]

_OF_PRICES: Final = ("gaps", "flags")  # made by ingest from prices, so a price's correction includes them
_LEAST: Final = frozenset({"filing_id", "row_hash", "evidence", "source", "unit", "cleared"})
"""Columns that are shown only if nothing else changed."""
_TEXT: Final = pl.String()
_COLUMNS: Final = {"table": _TEXT, "ticker": _TEXT, "day": pl.Date(), "key": _TEXT, "column": _TEXT} | {
    **{"before": _TEXT, "after": _TEXT, "size": pl.Float64()}
}


def corrections(before: Tables, after: Tables) -> pl.DataFrame:
    """List the values that differ between two states of lake tables, by table and firm.

    Columns: table (gaps and flags count as prices), ticker, day (from which the row is known), key, column
    (or ``added`` or ``withdrawn``, of rows that one state alone has), before, after (as text), and size: the
    relative change of a number, ``|a - b| / max(|a|, |b|)``; 1 for other values and for whole rows; 0 for
    names and flags.

    >>> from pipelines.lake.schemas import empty
    >>> spell = {"universe": "x", "ticker": "A", "from_date": "2024-01-31", "to_date": None}
    >>> rows = pl.DataFrame([spell], schema=empty("membership").schema | {"from_date": pl.String})
    >>> rows = rows.with_columns(pl.col("from_date").str.to_date())
    >>> corrections({}, {"membership": rows}).select("table", "ticker", "column", "size").rows()
    [('membership', 'A', 'added', 1.0)]
    """
    parts = [pl.DataFrame(schema=_COLUMNS)]
    names = sorted({*before, *after})
    for name in sorted(names, key=_OF_PRICES.__contains__):  # the price of a correction stands before its gap
        old, new = _both(name, before, after)
        key, found = keys(name), compare(name, in_order(name, new), old.lazy(), pl.lit(value=True))
        of_row = (
            pl.lit(_told(name)).alias("table"),
            pl.col("ticker"),
            pl.col(KNOWN_FROM[name]).alias("day"),
            pl.concat_str(pl.lit(name), *(pl.col(one).cast(_TEXT) for one in key), separator=" ").alias(
                "key"
            ),
        )
        withdrawn = old.join(found.withdrawn, on=key, how="semi")
        for rows, change in ((found.new, "added"), (withdrawn, "withdrawn")):
            parts.append(rows.select(*of_row, column=pl.lit(change), before=None, after=None, size=1.0))
        both = found.changed.join(old, on=key, suffix=":before")
        for column in sorted(
            new.columns, key=lambda one: one != "close"
        ):  # the first of equal changes is shown
            if column in key or column in STAMPS:
                continue
            now, then = pl.col(column), pl.col(f"{column}:before")
            size, texts = pl.lit(0.0 if column in _LEAST else 1.0), {"before": then, "after": now}
            if new.schema[column].is_numeric():
                size = ((now - then).abs() / pl.max_horizontal(now.abs(), then.abs())).fill_nan(None).round(9)
                texts = {name: value.round_sig_figs(8) for name, value in texts.items()}
            rows = both.filter(now.ne_missing(then))
            parts.append(rows.select(*of_row, column=pl.lit(column), size=size.fill_null(1.0), **texts))
    return pl.concat(part.select(pl.col(one).cast(kind) for one, kind in _COLUMNS.items()) for part in parts)


def mixed(before: Tables, after: Tables, chosen: Collection[tuple[str, str]]) -> dict[str, pl.DataFrame]:
    """Return the earlier tables with the later rows of ``chosen``, pairs of table and ticker."""
    tables = {}
    for name in {*before, *after}:
        is_chosen = pl.col("ticker").is_in([ticker for told, ticker in chosen if told == _told(name)])
        old, new = _both(name, before, after)
        rows = pl.concat([old.filter(~is_chosen), new.filter(is_chosen)])
        if rows.height:
            tables[name] = rows
    return tables


def filed_and_restated(statements: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the first value of every statement item, and the last one at the time of the first.

    The second table is what a database shows that overwrites restated values: it knows them before they were
    published. An item is a (ticker, period_end, item, months).

    >>> from datetime import date
    >>> rows = {"ticker": "A", "period_end": date(2023, 12, 31), "item": "assets", "months": None}
    >>> rows |= {"known_at": [date(2024, 1, 31), date(2024, 5, 1)], "value": [7.0, 5.0]}
    >>> rows |= {"filing_id": ["1", "2"], "stated_on": None}
    >>> [one.select("known_at", "value").rows() for one in filed_and_restated(pl.DataFrame(rows))]
    [[(datetime.date(2024, 1, 31), 7.0)], [(datetime.date(2024, 1, 31), 5.0)]]
    """
    item, values = ["ticker", "period_end", "item", "months"], ["value", "stated_on"]
    rows = statements.sort(*item, "known_at", "filing_id")
    filed = rows.unique(item, keep="first", maintain_order=True)
    last = rows.unique(item, keep="last", maintain_order=True)
    return filed, filed.with_columns(last[name] for name in values)


def _told(name: str) -> str:
    """The table that a correction is said to be of."""
    return "prices" if name in _OF_PRICES else name


def _both(name: str, before: Tables, after: Tables) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A table in both states; without rows where a state does not have it."""
    given = before[name] if name in before else after[name]
    return before.get(name, given.clear()), after.get(name, given.clear())
