"""Replacing the future: all data that became known after a day become noise, for every firm at once.

The noise satisfies the contracts of the lake's tables, and columns that a table does not have stay absent. A
dataset built on it therefore differs from the true one only in the data after that day.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import polars as pl

Tables = Mapping[str, pl.DataFrame]
Draw = np.random.Generator

NEW_GROUP: Final = "A group of the noise"
_BAR: Final = ("open", "high", "low", "close")
_GROUPS: Final = ("sector", "industry")


def new_ticker(tables: Tables) -> str:
    """Return an unused ticker. It sorts before all others, so that every firm's column moves."""
    taken = set(tables["prices"]["ticker"].unique().to_list())
    name = "0"
    while name in taken:
        name += "0"
    return name


def replace_future(tables: Tables, day: dt.date, seed: int) -> dict[str, pl.DataFrame]:
    """Replace all data that became known after a day, for every firm, by noise that satisfies the contracts.

    - Prices: random bars, volumes, splits and dividends. Some sessions are missing, some firms never trade
      again, and there is a new firm.
    - Statements: random values, and restatements of everything published before.
    - Securities: random groups, delistings and delisting returns.
    - Membership: random changes.
    - Inputs: random values, some missing.
    - Gaps: a random half.
    - Flags of quality rules: those of later rows are left out. A flag decides what an earlier row earned.

    ``day`` is the last one that is not changed. ``prices`` are required; other tables are left out.
    """
    rng = np.random.default_rng(seed)
    ticker = new_ticker(tables)
    noise_functions: dict[str, Callable[[pl.DataFrame, dt.date, str, Draw], pl.DataFrame]] = {
        "prices": _noisy_prices,
        "fundamentals": _noisy_statements,
        "securities": _noisy_securities,
        "membership": _noisy_membership,
        "inputs": _noisy_inputs,
        "gaps": _noisy_gaps,
        "flags": lambda flags, day, _ticker, _rng: flags.filter(pl.col("date") <= day),
    }
    return {
        name: make(tables[name], day, ticker, rng) for name, make in noise_functions.items() if name in tables
    }


def drop_later_joiners(tables: Tables, day: dt.date, universe: str) -> dict[str, pl.DataFrame]:
    """Leave out the firms that join a universe's list after a day: a list of that day does not name them.

    Firms that are on no list stay, because nothing says that they were unknown.
    """
    joined = pl.col("from_date").is_null() | (pl.col("from_date") <= day)
    own = tables["membership"].filter(pl.col("universe") == universe)
    later = own.group_by("ticker").agg(known=joined.any()).filter(~pl.col("known"))
    return {name: frame.join(later, on="ticker", how="anti") for name, frame in tables.items()}


def _existing_columns(frame: pl.DataFrame, values: Mapping[str, np.ndarray]) -> dict[str, pl.Series]:
    """Keep the random columns that exist in the frame and have at least one value."""
    return {
        name: pl.Series(drawn)
        for name, drawn in values.items()
        if name in frame.columns and frame[name].null_count() < frame.height
    }


def _cut(frame: pl.DataFrame, column: str, day: dt.date) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows that were known on a day, and later ones."""
    return frame.filter(pl.col(column) <= day), frame.filter(pl.col(column) > day)


def _some(frame: pl.DataFrame, share: float, rng: Draw) -> pl.DataFrame:
    return frame.filter(pl.Series(rng.random(frame.height) < share, dtype=pl.Boolean))


def _days_after(day: dt.date, most: int, count: int, rng: Draw) -> pl.Series:
    return pl.Series([day + dt.timedelta(days=int(n)) for n in rng.integers(1, most, count)], dtype=pl.Date)


def _noisy_prices(prices: pl.DataFrame, day: dt.date, ticker: str, rng: Draw) -> pl.DataFrame:
    known, later = _cut(prices, "date", day)
    later = later.sort("date", "ticker")
    keep = pl.Series(rng.random(later.height) < 0.9)
    firms = later["ticker"].unique().sort()
    stopped = firms.filter(pl.Series(rng.random(firms.len()) < 0.1))  # these never trade again
    later = later.filter(keep & ~pl.col("ticker").is_in(stopped.implode()))
    new_rows = later.unique("date", maintain_order=True).with_columns(pl.lit(ticker).alias("ticker"))
    later = pl.concat([later, new_rows])
    size = later.height
    middle = np.exp(rng.normal(2.0, 2.0, size))
    low, high = middle * rng.uniform(0.5, 1.0, size), middle * rng.uniform(1.0, 2.0, size)
    close = rng.uniform(low, high)
    drawn = {
        "low": low,
        "high": high,
        "close": close,
        "open": rng.uniform(low, high),
        "volume": np.floor(np.exp(rng.normal(10.0, 3.0, size))),
        "split_ratio": rng.choice([0.1, 0.5, 1.0, 2.0, 7.0], size),
        "dividend": np.where(rng.random(size) < 0.2, 0.3 * close, 0.0),
    }
    later = later.with_columns(**_existing_columns(prices, drawn))
    return pl.concat([known, later]).sort("date", "ticker")


def _noisy_statements(statements: pl.DataFrame, day: dt.date, _: str, rng: Draw) -> pl.DataFrame:
    key = ["ticker", "period_end", "known_at", "item"]
    known, later = _cut(statements, "known_at", day)
    restated = known.with_columns(known_at=pl.lit(day + dt.timedelta(days=1)), filing_id=pl.lit("restated"))
    later = pl.concat([later, restated]).unique(key, keep="first", maintain_order=True)
    values = np.exp(rng.normal(10.0, 5.0, later.height))
    return pl.concat([known, later.with_columns(pl.Series("value", values))])


def _noisy_securities(securities: pl.DataFrame, day: dt.date, ticker: str, rng: Draw) -> pl.DataFrame:
    known, later = _cut(securities, "valid_from", day)
    delisted = (pl.col("delisted_on") <= day).fill_null(value=False)
    end_date = _days_after(day, 200, known.height, rng)
    paid = pl.Series(rng.uniform(-1.0, 0.5, known.height))
    reason = pl.Series(rng.choice(["merger", "performance", "unknown"], known.height), dtype=pl.String)
    until = day + dt.timedelta(days=1)
    ended = (pl.col("valid_to") <= day).fill_null(value=False)
    known = known.with_columns(
        delisted_on=pl.when(delisted).then("delisted_on").otherwise(end_date),
        delisting_return=pl.when(delisted).then("delisting_return").otherwise(paid),
        delisting_reason=pl.when(delisted).then("delisting_reason").otherwise(reason),
        valid_to=pl.when(ended).then("valid_to").otherwise(pl.lit(until)),
    )
    none = pl.lit(None, dtype=pl.Date)
    moved = known.filter(pl.col("valid_to") == until).with_columns(valid_from=pl.lit(until), valid_to=none)
    new_rows = moved.head(1).with_columns(ticker=pl.lit(ticker), listed_on=none)
    later = pl.concat([later, moved, new_rows])
    later = later.unique(["ticker", "valid_from"], keep="first", maintain_order=True)
    groups = {
        name: rng.choice([*securities[name].drop_nulls().unique().sort(), NEW_GROUP], later.height)
        for name in _GROUPS
    }
    new = pl.col("ticker") == ticker  # it is certain to be in the universe, so the new group is too
    later = later.with_columns(
        pl.when(new).then(pl.lit(NEW_GROUP)).otherwise(pl.Series(name, drawn)).alias(name)
        for name, drawn in _existing_columns(securities, groups).items()
    )
    return pl.concat([known, later])


def _noisy_membership(membership: pl.DataFrame, day: dt.date, ticker: str, rng: Draw) -> pl.DataFrame:
    known, later = _cut(membership, "from_date", day)
    end_date = _days_after(day, 60, known.height, rng)
    ended = (pl.col("to_date") <= day).fill_null(value=False)
    leaves = pl.Series(rng.random(known.height) < 0.5)
    none = pl.lit(None, dtype=pl.Date)
    stays = pl.when(leaves).then(end_date).otherwise(none)
    known = known.with_columns(to_date=pl.when(ended).then("to_date").otherwise(stays))
    joins = pl.lit(day + dt.timedelta(days=1))
    new_rows = membership.unique("universe", maintain_order=True).with_columns(
        ticker=pl.lit(ticker), from_date=joins, to_date=none
    )
    rows = pl.concat([known, _some(later, 0.5, rng), new_rows])
    return rows.unique(["universe", "ticker", "from_date"], keep="first", maintain_order=True)


def _noisy_inputs(inputs: pl.DataFrame, day: dt.date, ticker: str, rng: Draw) -> pl.DataFrame:
    known, later = _cut(inputs, "date", day)
    later = _some(later, 0.9, rng)
    new_rows = later.unique(["name", "date"], maintain_order=True).with_columns(ticker=pl.lit(ticker))
    later = pl.concat([later, new_rows])
    values = rng.normal(0.0, 1.0, later.height) * np.exp(rng.normal(0.0, 3.0, later.height))
    return pl.concat([known, later.with_columns(pl.Series("value", values))])


def _noisy_gaps(gaps: pl.DataFrame, day: dt.date, _: str, rng: Draw) -> pl.DataFrame:
    known, later = _cut(gaps, "date", day)
    return pl.concat([known, _some(later, 0.5, rng)])
