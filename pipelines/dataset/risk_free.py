"""The risk-free rate of each session: a number, or a file of dated annual rates."""

from pathlib import Path

import numpy as np
import polars as pl

from features.arrays import DateArray, FloatArray
from features.panel.periods import SESSIONS_PER_YEAR
from pipelines.errors import DataError, one_line
from pipelines.settings import RELATIVE_PATHS

MAX_AGE_DAYS = 45  # a monthly rate can be used until the next one is published


def risk_free_rates(
    setting: float | str, dates_T: DateArray, periods_per_year: float = SESSIONS_PER_YEAR
) -> FloatArray:
    """Return the risk-free return of each session, as known at the close of the session before.

    Annual rate divided by the periods per year. Session t uses the newest rate dated at or before session
    t-1. NaN if there is none, or if it is more than 45 days older than session t-1.
    """
    if not isinstance(setting, str):
        return np.full(len(dates_T), setting / periods_per_year)
    frame = read_series(Path(setting), "rate", "risk-free rates", "backtest.risk_free")
    odd = frame.filter(~(pl.col("rate").abs() < 1))
    if odd.height:
        day, rate = odd.row(0)
        raise DataError(
            f"{setting}: the rate of {day} is {rate}; give annual rates as fractions, 0.05 for 5%."
        )
    known_R = frame["date"].to_numpy().astype("datetime64[D]")
    session_T = dates_T.astype("datetime64[D]")
    rate_T = np.full(len(session_T), np.nan)
    row_T = np.searchsorted(known_R, session_T[:-1], side="right") - 1
    age_T = session_T[:-1] - known_R[np.maximum(row_T, 0)]
    usable_T = (row_T >= 0) & (age_T <= np.timedelta64(MAX_AGE_DAYS, "D"))
    rate_T[1:][usable_T] = frame["rate"].to_numpy()[row_T[usable_T]] / periods_per_year
    return rate_T


def require_rates(setting: float | str, rate_T: FloatArray, dates_T: DateArray) -> None:
    """Require a rate on every session except the first, on which a book earns nothing."""
    unknown_T = np.isnan(rate_T[1:])
    if unknown_T.any():
        day = dates_T[1:][unknown_T][0].astype("datetime64[D]")
        raise DataError(
            f"{setting} has no risk-free rate in the {MAX_AGE_DAYS} days before {day}; add rates for the "
            "whole test, or set backtest.risk_free to a number."
        )


def describe_rate(setting: float | str) -> str:
    """Describe the risk-free rate that Sharpe ratios use."""
    if isinstance(setting, str):
        return f"the rates in {Path(setting).name}"
    return f"a rate of {setting:.2%} a year" if setting else "a rate of 0"


def read_series(path: Path, value: str, what: str, setting: str) -> pl.DataFrame:
    """Read a CSV or Parquet file with a date and a number in each row; ``what`` says what they are."""
    if not path.is_file():
        raise DataError(f"There is no file of {what} at {path}; check {setting} ({RELATIVE_PATHS}).")
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not readable as {path.suffix or 'CSV'}: {one_line(error)}") from None
    missing = [column for column in ("date", value) if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the column {missing[0]!r}; {what} need date and {value}.")
    try:
        day = pl.col("date")
        if frame.schema["date"] == pl.String:
            day = day.str.to_date("%Y-%m-%d")
        # the day of a date's own time zone; a cast would give the day in UTC
        frame = frame.select(day.dt.date(), pl.col(value).cast(pl.Float64)).drop_nulls().sort("date")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: {one_line(error)}; dates must be YYYY-MM-DD and {what} numbers.") from None
    if frame["date"].is_duplicated().any():
        twice = frame.filter(pl.col("date").is_duplicated())["date"][0]
        raise DataError(f"{path} has more than one {value} for {twice}; keep one {value} per date.")
    return frame
