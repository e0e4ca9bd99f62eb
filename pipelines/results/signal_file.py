"""``peerglass backtest FILE``: evaluate a user's signal in the same way as a model's forecasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.config.schema import Config
from pipelines.dataset.market import build_market, to_panel
from pipelines.dataset.tables import describe_as_of, input_versions, open_lake, read_tables
from pipelines.errors import DataError
from pipelines.progress import Progress
from pipelines.results.describe import describe_ladder
from pipelines.results.evaluate import evaluate

_COLUMNS = ("date", "ticker", "signal")
# Type inference would guess the order of day and month in 05/01/2015, and read the ticker 0700 as a number.
_AS_TEXT = {"date": pl.String, "ticker": pl.String}
_NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


def backtest_file(path: Path, config: Config, progress: Progress, as_of: str | None = None) -> str:
    """Evaluate a signal file with a config's lake, universe, label, books and costs.

    A signal dated ``t`` must have been known at the close of ``t``; this cannot be checked here. Rows outside
    the universe are dropped and counted.

    Raises
    ------
    DataError
        If the file cannot be read, lacks a column, repeats a key, holds non-finite values, or has no row
        inside the universe.
    """
    signal = read_signal(path)
    lake = open_lake(config, progress.note)
    with progress.stage("dataset"):
        versions = input_versions(lake, as_of)
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        dataset = build_market(read_tables(lake, versions), config)
    signal_TN = np.where(dataset.universe_TN, to_panel(signal, "signal", dataset.panel), np.nan)
    used = int(np.isfinite(signal_TN).sum())
    if used == 0:
        raise DataError(
            f"{path}: none of the {signal.height:,} rows is a firm of the universe on a session of the lake "
            f"{lake.root}; check the dates, the tickers and the section universe of the config."
        )
    with progress.stage("backtest"):
        sessions = _sessions_to_cover(signal_TN, dataset.universe_TN)
        result = evaluate(
            {path.stem: {0: signal_TN}}, dataset, config, _NO_SCORES, truth_TN=None, sessions=sessions
        )
    left_out = signal.height - used
    first, last = dataset.panel.dates_T[sessions[[0, -1]]].astype("datetime64[D]")
    cover = result.ladder.row(0, named=True)
    note = (
        f"{used:,} signals evaluated, {left_out:,} outside the universe dropped. From {first} to {last} they "
        f"cover {cover['coverage_dates']:.1%} of the dates and {cover['coverage_firms']:.1%} of the firms on "
        f"these dates; {cover['tied']:.1%} of them are tied with another signal of the same date.\n"
    )
    return note + describe_ladder(result.ladder, config)


def _sessions_to_cover(signal_TN: FloatArray, universe_TN: BoolArray) -> npt.NDArray[np.intp]:
    """Sessions with a universe, from the first to the last date of the signal."""
    signal_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    universe_T = np.flatnonzero(universe_TN.any(axis=1))
    covered_T: npt.NDArray[np.intp] = universe_T[(universe_T >= signal_T[0]) & (universe_T <= signal_T[-1])]
    return covered_T


def read_signal(path: Path) -> pl.DataFrame:
    """Read and validate a signal file.

    Returns
    -------
    polars.DataFrame
        date, ticker, signal; rows with a missing value are dropped.

    Raises
    ------
    DataError
        If the file cannot be read, lacks a column, repeats a key or holds non-finite values.
    """
    if not path.is_file():
        raise DataError(f"There is no signal file at {path}; check the path.")
    try:
        frame = (
            pl.read_parquet(path)
            if path.suffix == ".parquet"
            else pl.read_csv(path, schema_overrides=_AS_TEXT)
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{path} is not readable as {path.suffix or 'CSV'}: {' '.join(str(error).split())[:200]}"
        ) from None
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise DataError(
            f"{path} lacks the column {missing[0]!r}; it needs date, ticker and signal, and has "
            f"{', '.join(frame.columns)}."
        )
    try:
        day = pl.col("date")
        if frame.schema["date"] == pl.String:
            day = day.str.replace(r"[T ]00:00(:00(\.0+)?)?$", "").str.to_date("%Y-%m-%d")
        frame = frame.select(
            day.cast(pl.Date), pl.col("ticker").cast(pl.String), pl.col("signal").cast(pl.Float64)
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path}: {' '.join(str(error).split())[:200]}; dates must be YYYY-MM-DD and signals numbers."
        ) from None
    frame = frame.drop_nulls()
    bad = frame.filter(~pl.col("signal").is_finite())
    if bad.height:
        row = bad.row(0, named=True)
        raise DataError(
            f"{path}: the signal of {row['ticker']} on {row['date']} is {row['signal']}; "
            "use finite numbers, or remove the row."
        )
    repeated = frame.filter(frame.select("date", "ticker").is_duplicated())
    if repeated.height:
        row = repeated.row(0, named=True)
        raise DataError(
            f"{path}: {row['ticker']} on {row['date']} appears more than once; "
            "keep one signal per firm and date."
        )
    return frame
