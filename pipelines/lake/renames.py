"""Renamed firms: the newest ticker of the firm that had a ticker on a day."""

import datetime as dt
from collections.abc import Mapping
from itertools import groupby

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.schemas import KNOWN_FROM, LEAST_SAME, SAME_RETURN, keys

_OF_FIRMS = ("prices", "inputs", "gaps", "flags", "fundamentals", "membership", "securities")


def follow_renames(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Give the rows of renamed firms their newest ticker, and leave the table ``renames`` out.

    Rows from ``from_date`` on keep theirs: another firm took it over. Of two names, the new one's row counts.
    """
    tables = dict(tables)
    renames = tables.pop("renames", None)
    if renames is None:
        return tables
    dated_by = {table: "date" if table == "flags" else KNOWN_FROM[table] for table in _OF_FIRMS}
    return {
        table: renamed(rows, renames, keys(table), dated_by[table]) if table in dated_by else rows
        for table, rows in tables.items()
    }


def renamed(rows: pl.DataFrame, renames: pl.DataFrame, key: list[str], dated_by: str) -> pl.DataFrame:
    """Give rows with a ticker the newest one of their firm; see `follow_renames`."""
    names = last_names(renames)
    candidates = rows.filter(pl.col("ticker").is_in(names["ticker"].implode())).sort(dated_by)
    next_name = names.rename({"from_date": "until"})
    found = candidates.join_asof(
        next_name,
        left_on=dated_by,
        right_on="until",
        by="ticker",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,  # both are sorted by their dates
    ).filter(pl.col("newest").is_not_null())
    if found.is_empty():
        return rows
    stay = rows.join(found, on=key, how="anti", maintain_order="left")
    if "close" in rows.columns:
        _refuse_another_firm(found, stay)
    moved = found.with_columns(pl.col("newest").alias("ticker")).select(rows.columns)
    moved = moved.unique(key, keep="last", maintain_order=True).join(stay, on=key, how="anti")
    return pl.concat([stay, moved]).sort(key)


_FEWEST_RETURNS, _CENT = 10, 0.01


def _refuse_another_firm(moved: pl.DataFrame, stay: pl.DataFrame) -> None:
    """Raise DataError if a new ticker has prices of another firm from before a firm was called so."""
    own = moved.select("date", "until", pl.col("newest").alias("ticker"), old="ticker", own="close")
    both = own.join(stay.select("date", "ticker", "close"), on=["date", "ticker"]).sort("old", "date")
    growth = {
        f"{name}_growth": pl.col(name) / pl.col(name).shift().over("old", "ticker")
        for name in ("own", "close")
    }
    both = both.with_columns(**growth).drop_nulls(list(growth))
    rounding = _CENT / pl.col("own") + _CENT / pl.col("close")
    agree = (pl.col("own_growth") - pl.col("close_growth")).abs() <= SAME_RETURN + rounding
    found = both.group_by("old", "ticker").agg(pl.col("until").max(), pl.len(), agree=agree.mean())
    found = found.filter((pl.col("len") >= _FEWEST_RETURNS) & (pl.col("agree") < LEAST_SAME))
    for old, ticker, day, _, share in found.sort("old", "ticker").head(1).iter_rows():
        raise DataError(
            f"{old} is called {ticker} from {day} on (renames), but the earlier prices of {ticker} are of "
            f"another firm: {share:.0%} of the returns of both agree. Give that firm a ticker of its own in "
            f"all files, such as {ticker}.1, and ingest them again."
        )


def newest_ticker(ticker: str, day: dt.date, renames: pl.DataFrame) -> str:
    """Return the newest ticker of a firm that was called ``ticker`` on a day.

    >>> days = [dt.date(2022, 6, 9), dt.date(2024, 1, 2)]
    >>> names = {"ticker": ["FB", "META"], "from_date": days, "new_ticker": ["META", "M"]}
    >>> newest_ticker("FB", dt.date(2022, 6, 8), pl.DataFrame(names))
    'M'
    """
    if not (renames["ticker"] == ticker).any():
        return ticker
    later = last_names(renames.filter(pl.col("from_date") > day)).filter(pl.col("ticker") == ticker)
    return ticker if later.is_empty() else str(later["newest"][0])


def last_names(renames: pl.DataFrame) -> pl.DataFrame:
    """Return ticker, from_date and ``newest``: the last name of the firm that had the ticker until then."""
    in_order = renames.sort("from_date", "ticker").select("ticker", "from_date", "new_ticker")
    newest: dict[str, str] = {}  # of the firm that has the ticker after the renames that were seen
    names: list[tuple[str, dt.date, str]] = []
    for day, of_day in groupby(reversed(in_order.rows()), key=lambda row: row[1]):
        # those of one day are of different firms, so that none of them follows another one
        found = [(ticker, day, newest.get(new, new)) for ticker, _, new in of_day]
        newest.update((ticker, last) for ticker, _, last in found)
        names += found
    schema = {"ticker": pl.String, "from_date": pl.Date, "newest": pl.String}
    return pl.DataFrame(names[::-1], schema=schema, orient="row")
