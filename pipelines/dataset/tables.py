"""The input tables of a lake: their versions and rows, cut at a session, with renamed firms."""

import datetime as dt
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import polars as pl

from features.panel.panel import PRICE_COLUMNS
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import (
    KNOWN_FROM,
    LEAST_SAME,
    READ_TABLES,
    SAME_RETURN,
    forget_later,
    keys,
    rows_known,
)

_OF_FIRMS = ("prices", "inputs", "gaps", "flags", "fundamentals", "membership", "securities")
_OF_MARKET = ("prices", "securities", "fundamentals", "membership", "renames", "gaps", "flags")


def open_lake(config: Config, notify: Callable[[str], None] | None = None) -> Lake:
    """Return the lake of a config; ``notify`` gets a message when another writer commits first."""
    return Lake(config.lake, config.lake_options, notify)


def read_tables(
    lake: Lake,
    versions: Mapping[str, int],
    through: dt.date | None = None,
    **of_prices: Any,  # noqa: ANN401 (several types)
) -> dict[str, pl.DataFrame]:
    """Read input tables at these versions, cut at a session unless it is None, with the newest tickers."""
    tables = {}
    for table, version in versions.items():
        known = None if through is None else rows_known(table, through)
        rows = lake.read(table, version, filters=known, **(of_prices if table == "prices" else {}))
        tables[table] = rows if through is None else forget_later(table, rows, through)
    if through is not None and "prices" in tables and tables["prices"].is_empty():
        raise DataError(f"The lake {lake.root} has no prices up to {through}; choose a later date.")
    return follow_renames({table: rows for table, rows in tables.items() if rows.height or table == "prices"})


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Return the versions of the tables that a run reads: the newest, or those of an earlier state.

    Versions before an unfinished ingest are the newest (`Lake.versions_to_read`).
    """
    all_versions = lake.versions_to_read() if as_of is None else lake.versions_as_of(as_of)
    versions = {name: version for name, version in all_versions.items() if name in READ_TABLES}
    if "prices" not in versions:
        raise DataError(f"The lake {lake.root} holds no prices yet; run 'peerglass ingest CONFIG' first.")
    return versions


def describe_as_of(as_of: str, versions: Mapping[str, int]) -> str:
    """Name the version of each table that ``--as-of`` selects."""
    listed = ", ".join(f"{table} version {version}" for table, version in versions.items())
    return f"as of {as_of}: {listed}"


def read_market_tables(
    lake: Lake, versions: Mapping[str, int], through: dt.date | None = None
) -> dict[str, pl.DataFrame]:
    """Read what `build_market` uses, cut at a session; prices come in the order of storage, unsorted."""
    of_market = {table: versions[table] for table in _OF_MARKET if table in versions}
    return read_tables(lake, of_market, through, columns=list(PRICE_COLUMNS), ordered=False)


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
    names = _names(renames)
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
    later = _names(renames.filter(pl.col("from_date") > day)).filter(pl.col("ticker") == ticker)
    return ticker if later.is_empty() else str(later["newest"][0])


def newest_tickers(lake: Lake, versions: Mapping[str, int], through: dt.date | None = None) -> dict[str, str]:
    """Return the newest ticker of the last firm that had a former one, as known at a session."""
    if "renames" not in versions:
        return {}
    known = None if through is None else rows_known("renames", through)
    renames = lake.read("renames", versions["renames"], filters=known)
    return dict(_names(renames).select("ticker", "newest").iter_rows())


def _names(renames: pl.DataFrame) -> pl.DataFrame:
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
