"""Markets on which the audit is tried: simulated ones, and real prices from a folder of files.

A market can be cut at a session, as if it had been delivered then. The generators of cases are functions of a
market, so that the same leak can be delivered twice, with a vintage between.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from pipelines.audit.subject import Subject, budget
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import build_dataset
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source

Array = npt.NDArray[np.float64]
Tables = dict[str, pl.DataFrame]
SETTINGS: Final[Mapping[str, Any]] = {
    "name": "bench",
    "source": {"kind": "simulated", "seed": 0},
    "lake": "lake",
    "universe": {"min_history": 20},
    "features": {"window": 5, "channels": ["return"], "characteristics": ["return_5", "volatility_21"]},
    "label": {"horizon": 1, "delay": 0, "transform": "demean"},
    "folds": {"scheme": "expanding", "train": 400, "valid": 100, "test": 150, "embargo": 1, "max_folds": 3},
    "models": {"ridge": {}},
}
_BARS: Final = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True, eq=False)
class Base:
    """A market: its tables, and its prices as arrays over all firms, also of those listed later.

    Attributes
    ----------
    name
        Name in the table of results.
    tables
        Lake tables.
    dates_T, tickers_N
        Sessions and firms of the arrays.
    bars
        Name of a price column -> array [T, N]; NaN = no row.
    seed
        Seed of the generators.
    whole
        Sessions of the whole market, also of one that was cut.
    """

    name: str
    tables: Tables
    dates_T: npt.NDArray[np.datetime64]
    tickers_N: tuple[str, ...]
    bars: Mapping[str, Array]
    seed: int
    whole: int

    @cached_property
    def close_TN(self) -> Array:  # noqa: N802
        """Closes, adjusted for splits from the first session on."""
        split = self.bars["split_ratio"]
        return self.bars["close"] * np.cumprod(np.where(np.isfinite(split), split, 1.0), axis=0)

    @cached_property
    def carried_TN(self) -> Array:  # noqa: N802
        """Adjusted closes, carried through sessions without one."""
        return carry(self.close_TN)

    @cached_property
    def return_TN(self) -> Array:  # noqa: N802
        """Simple returns from the last known close; NaN without a price."""
        out = np.full(self.close_TN.shape, np.nan)
        out[1:] = self.close_TN[1:] / self.carried_TN[:-1] - 1.0
        return np.asarray(np.clip(out, -0.9, 3.0))

    @cached_property
    def group_N(self) -> npt.NDArray[np.int64]:  # noqa: N802
        """Code of each firm's first industry."""
        first = (
            self.tables["securities"].sort("valid_from").group_by("ticker").agg(pl.col("industry").first())
        )
        named = dict(first.iter_rows())
        labels = [named.get(ticker) or "?" for ticker in self.tickers_N]
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)

    def noise(self, key: int) -> Array:
        """Standard-normal noise; the rows of a market that was cut are the first rows of the whole one."""
        return np.random.default_rng((self.seed, key)).standard_normal(self.close_TN.shape)

    def until(self, t: int) -> Base:
        """Return the market as it was delivered at the close of session t."""
        day = self.dates_T[t].astype("datetime64[D]").item()
        kept = {
            "prices": pl.col("date") <= day,
            "securities": pl.col("valid_from") <= day,
            "fundamentals": pl.col("known_at") <= day,
            "membership": pl.col("from_date") <= day,
        }
        tables = {name: frame.filter(kept[name]) for name, frame in self.tables.items()}
        return replace(
            self,
            tables=tables,
            dates_T=self.dates_T[: t + 1],
            bars={name: array[: t + 1] for name, array in self.bars.items()},
        )

    def rows(self, name: str, value_TN: Array) -> pl.DataFrame:
        """Rows of the inputs table where a value is known and the firm trades."""
        t, n = np.nonzero(np.isfinite(value_TN) & np.isfinite(self.bars["close"]))
        return pl.DataFrame(
            {
                "name": np.full(len(t), name),
                "date": self.dates_T[t].astype("datetime64[D]"),
                "ticker": np.asarray(self.tickers_N)[n],
                "value": value_TN[t, n],
            },
            schema={"name": pl.String, "date": pl.Date, "ticker": pl.String, "value": pl.Float64},
        )

    def with_input(self, value_TN: Array, name: str = "signal") -> Tables:
        """Return the tables with an input."""
        return {**self.tables, "inputs": self.rows(name, value_TN)}

    def with_bars(self, **changed: Array) -> Tables:
        """Return the tables with other prices; a row exists where the close is known."""
        bars = {**self.bars, **changed}
        t, n = np.nonzero(np.isfinite(bars["close"]))
        columns: dict[str, Any] = {
            "date": self.dates_T[t].astype("datetime64[D]"),
            "ticker": np.asarray(self.tickers_N)[n],
            **{name: bars[name][t, n] for name in _BARS},
            "split_ratio": np.nan_to_num(bars["split_ratio"][t, n], nan=1.0),
            "dividend": np.nan_to_num(bars["dividend"][t, n]),
        }
        frame = pl.DataFrame(columns).with_columns(
            pl.col("date").cast(pl.Date), pl.col(*_BARS).fill_nan(None), **_STAMPS
        )
        return {**self.tables, "prices": check("prices", frame).valid}


_STAMPS: Final = {
    "source": pl.lit("bench"),
    "ingested_at": pl.lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).dt.cast_time_unit("us"),
}


def stamped(prices: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of where and when prices were ingested."""
    return prices.with_columns(**_STAMPS)


def carry(x_TN: Array) -> Array:
    """Carry the last known value forward."""
    at = np.where(np.isfinite(x_TN), np.arange(len(x_TN))[:, None], 0)
    return np.asarray(np.take_along_axis(x_TN, np.maximum.accumulate(at, axis=0), axis=0))


def make_base(name: str, tables: Tables, seed: int) -> Base:
    """Lay the prices of tables out as arrays."""
    prices = tables["prices"]
    dates, tickers = prices["date"].unique().sort(), prices["ticker"].unique().sort()
    t = prices["date"].replace_strict(dates, pl.arange(len(dates), eager=True)).to_numpy()
    n = prices["ticker"].replace_strict(tickers, pl.arange(len(tickers), eager=True)).to_numpy()
    bars = {}
    for column in (*_BARS, "split_ratio", "dividend"):
        array = np.full((len(dates), len(tickers)), np.nan)
        array[t, n] = prices[column].cast(pl.Float64).to_numpy()
        bars[column] = array
    return Base(name, tables, dates.to_numpy(), tuple(tickers.to_list()), bars, seed, len(dates))


def simulated(seed: int, **market: object) -> Base:
    """Simulate a market with listings, delistings, splits, halts and statements."""
    settings = {"firms": 50, "sessions": 1100, "delistings_per_year": 0.04, **market}
    config = check_config(
        {**SETTINGS, "source": {"kind": "simulated", "seed": seed, "market": settings}}, origin="bench"
    )
    source = make_source(config)
    tables = dict(source.fetch().tables)  # type: ignore[union-attr]  # a simulation is fetched at once
    tables["prices"] = tables["prices"].with_columns(**_STAMPS)
    kept = {name: check(name, frame).valid for name, frame in tables.items() if "truth" not in name}
    return make_base(f"simulated {seed}", kept, seed)


def is_held_out(ticker: str) -> bool:
    """Whether a firm is of the half on which no limit was chosen."""
    return zlib.crc32(ticker.encode()) % 2 == 1


@cache
def read_prices(folder: Path, market: str) -> pl.DataFrame:
    """Prices of a market (nasdaq, sp500 or csi300), without those that are zero."""
    prices = pl.read_parquet(folder / f"{market}_prices.parquet")
    columns = [name for name in (*_BARS, "split_ratio") if name in prices.columns]
    prices = prices.with_columns(pl.col(*columns).cast(pl.Float64))
    return prices.with_columns(
        pl.when(pl.col(name) > 0).then(name).alias(name) for name in ("open", "high", "low")
    ).filter(pl.col("close") > 0)


def cut(folder: Path, market: str, prices: pl.DataFrame, name: str, seed: int) -> Base:
    """Make a market of some rows of `read_prices`, with industries, or with the members of the CSI 300."""
    tables = {"prices": check("prices", prices.with_columns(**_STAMPS)).valid}
    tickers, start = prices["ticker"].unique().sort(), prices["date"].min()
    if market == "csi300":
        listed = pl.read_csv(folder / "csi300_membership.csv", try_parse_dates=True)
        listed = listed.filter(pl.col("ticker").is_in(tickers.implode()))
        tables["membership"] = check("membership", listed).valid
        firms = pl.DataFrame({"ticker": tickers, "industry": "?", "sector": "?"})
    elif market == "sp500":
        listed = pl.read_csv(folder / "sp500_securities.csv", infer_schema_length=None)
        firms = listed.select("ticker", industry="GICS Sub Industry", sector="GICS Sector")
    else:
        firms = pl.read_csv(folder / "nasdaq_industry.csv").with_columns(sector=pl.col("industry"))
    firms = firms.filter(pl.col("ticker").is_in(tickers.implode())).with_columns(valid_from=pl.lit(start))
    tables["securities"] = check("securities", firms).valid
    return make_base(name, tables, seed)


def bases(folder: Path) -> list[Base]:
    """Return three simulated and three real markets, of firms on which no limit was chosen."""
    found = [simulated(11), simulated(29, firms=60, sessions=1300), simulated(43, firms=35, sessions=1100)]
    years = {"sp500": (2013, 2017, 4), "nasdaq": (2004, 2009, 8), "csi300": (2013, 2018, 6)}
    for market, (first, last, every) in years.items():
        if (folder / f"{market}_prices.parquet").is_file():
            prices = read_prices(folder, market).filter(pl.col("date").dt.year().is_between(first, last))
            counts = prices.group_by("ticker").len().filter(pl.col("len") >= 250)["ticker"].sort()
            own = [ticker for ticker in counts if is_held_out(ticker)][1::every]
            name = f"{market} {first}-{last}"
            found.append(cut(folder, market, prices.filter(pl.col("ticker").is_in(own)), name, 1))
    return found


def make_subject(tables: Tables, changes: Mapping[str, Any] | None = None) -> Subject:
    """Build the subject of an audit from tables."""
    config: Config = check_config({**SETTINGS, **(changes or {})}, origin="bench")
    dataset = build_dataset(tables, config)
    return Subject(config=config, tables=tables, dataset=dataset, budget=budget(config, quick=True))
