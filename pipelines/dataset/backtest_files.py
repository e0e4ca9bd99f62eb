"""Files that a backtest reads beside the data: risk-free rates, benchmarks, borrow fees and price limits.

Shape suffixes: T sessions of the panel, N firms.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import DateArray, FloatArray
from features.panel.holding import earned_index
from features.panel.panel import Panel
from features.panel.periods import SESSIONS_PER_YEAR
from pipelines.config.benchmarks import BenchmarkConfig
from pipelines.config.sections import BacktestConfig
from pipelines.errors import ConfigError, DataError, one_line
from pipelines.format import abbreviate
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
    frame = _read_series(Path(setting), "rate", "risk-free rates", "backtest.risk_free")
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


_NAMED = 5


def benchmark_closes(benchmarks: Mapping[str, BenchmarkConfig], panel: Panel) -> dict[str, FloatArray]:
    """Close of each benchmark that is a ticker or a file, shape (T,); NaN where there is none.

    A session has the close of its own date: dates of a file that are no session are left out, so a return
    from one session to the next one includes them. A ticker's are total-return closes, until it
    is delisted.
    """
    return {name: _closes(name, one, panel) for name, one in benchmarks.items() if one.weights is None}


def _closes(name: str, benchmark: BenchmarkConfig, panel: Panel) -> FloatArray:
    setting = f"backtest.benchmarks.{name}"
    close_T: FloatArray
    if benchmark.file is None:
        if benchmark.ticker not in panel.tickers_N:
            raise ConfigError(
                f"{setting}: no ticker of the data is {benchmark.ticker!r}; they have for example "
                f"{panel.tickers_N[0]!r}."
            )
        n = panel.tickers_N.index(benchmark.ticker)
        close_T = carry(earned_index(panel)[:, n : n + 1])[:, 0]  # the last price of a halt
        return np.where(panel.delisted_TN[:, n], np.nan, close_T)
    frame = _read_series(Path(benchmark.file), "close", "closes", f"{setting}.file")
    wrong = frame.filter(~((pl.col("close") > 0) & pl.col("close").is_finite()))
    if wrong.height or frame.is_empty():
        said = "it has no closes" if frame.is_empty() else "the close of {} is {}".format(*wrong.row(0))
        raise DataError(f"{benchmark.file}: {said}; an index has a close above 0 for every session.")
    days = pl.DataFrame({"date": panel.dates_T.astype("datetime64[D]")})
    close_T = days.join(frame, on="date", how="left", maintain_order="left")["close"].to_numpy()
    return close_T  # null is NaN


def require_closes(name: str, close_T: FloatArray, panel: Panel, held: slice) -> None:
    """Require a close of a benchmark on every session ``held``; DataError names those without one."""
    unknown_T = np.isnan(close_T[held])
    if unknown_T.any():
        days = panel.dates_T[held][unknown_T].astype("datetime64[D]")
        raise DataError(
            f"The benchmark {name} has no close on {len(days):,} of {len(unknown_T):,} sessions: "
            f"{abbreviate(days.tolist(), _NAMED)}; add them, or leave it out of backtest.benchmarks."
        )


FileSetting = Literal["backtest.costs.borrow_file", "backtest.execution.price_limit_file"]
_HOLDS: Final[Mapping[FileSetting, tuple[str, str]]] = {
    "backtest.costs.borrow_file": ("borrow fee", "bps_per_year"),
    "backtest.execution.price_limit_file": ("limit", "limit"),
}


def read_firm_file(file: str, setting: FileSetting, panel: Panel) -> pl.DataFrame:
    """Read a CSV or Parquet file with columns ticker and a number of at least 0, and perhaps from_date.

    The answer has these columns, with the number as ``value``, and ``firm``: the ticker in the data, which
    follows renames; null without one. Rows of former tickers come first, so that those of newer ones count.
    """
    what, value = _HOLDS[setting]
    # type inference would read 000001 as a number
    form = {"schema_overrides": {"ticker": pl.String}, "try_parse_dates": True, "infer_schema_length": None}
    frame = read_table(Path(file), f"{what}s", setting, **form)
    since = pl.col("from_date") if "from_date" in frame.columns else pl.lit(None)
    try:
        frame = frame.select(
            pl.col("ticker").cast(pl.String),
            pl.col(value).cast(pl.Float64, strict=True).alias("value"),
            since.cast(pl.Date).alias("from_date"),
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file} is no file with columns ticker and {value} ({one_line(error)}).") from None
    known = pl.col("ticker").is_not_null() & pl.col("value").is_finite() & (pl.col("value") >= 0)
    wrong = frame.filter(~known.fill_null(value=False))
    if not wrong.is_empty():
        ticker, number = wrong.row(0)[:2]
        raise DataError(
            f"{file} gives {ticker} a {what} of {number} ({value}); it must be a number of at least 0."
        )
    own = set(panel.tickers_N)
    now = [one if one in own else panel.newest_tickers.get(one) for one in frame["ticker"]]
    firm = pl.Series("firm", [one if one in own else None for one in now], dtype=pl.String)
    if not frame.is_empty() and firm.null_count() == frame.height:
        raise ConfigError(
            f"No ticker of {file} is in the data, which have for example {panel.tickers_N[0]!r} where the "
            f"file has {frame['ticker'][0]!r}: correct the tickers, or check {setting}."
        )
    return frame.with_columns(firm).sort(pl.col("ticker") == pl.col("firm"), maintain_order=True)


def unmatched_tickers(settings: BacktestConfig, panel: Panel) -> Iterator[str]:
    """Name the tickers of the files that are no firm of the data, a sentence for each file.

    A file that cannot be read is left out: where it is used, the error is raised.
    """
    files = zip(_HOLDS, (settings.costs.borrow_file, settings.execution.price_limit_file), strict=True)
    for setting, file in files:
        try:
            rows = None if file is None else read_firm_file(file, setting, panel)
        except (ConfigError, DataError):
            continue
        if rows is not None and rows["firm"].null_count():
            names = rows.filter(pl.col("firm").is_null())["ticker"].unique().sort().to_list()
            are = "ticker is" if len(names) == 1 else "tickers are"
            yield f"{len(names):,} {are} in {setting}, but not in the data: {abbreviate(names, 5)}."


def _read_series(path: Path, value: str, what: str, setting: str) -> pl.DataFrame:
    """Read a file with a date and a number in each row; ``what`` says what they are."""
    frame = read_table(path, what, setting)
    if missing := [column for column in ("date", value) if column not in frame.columns]:
        raise DataError(f"{path} lacks the column {missing[0]!r}; {what} need date and {value}.")
    day = pl.col("date").str.to_date("%Y-%m-%d") if frame.schema["date"] == pl.String else pl.col("date")
    try:
        # the day of a date's own time zone; a cast would give the day in UTC
        frame = frame.select(day.dt.date(), pl.col(value).cast(pl.Float64)).drop_nulls().sort("date")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: {one_line(error)}; dates must be YYYY-MM-DD and {what} numbers.") from None
    if frame["date"].is_duplicated().any():
        twice = frame.filter(pl.col("date").is_duplicated())["date"][0]
        raise DataError(f"{path} has more than one {value} for {twice}; keep one {value} per date.")
    return frame


def read_table(path: Path, what: str, setting: str, **of_csv: Any) -> pl.DataFrame:  # noqa: ANN401 (polars')
    """Read the CSV or Parquet file of a setting; ``what`` says what it holds."""
    require_file(path, what, setting)
    try:
        return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, **of_csv)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not readable as {path.suffix or 'CSV'}: {one_line(error)}") from None


def require_file(path: Path, what: str, setting: str) -> None:
    """Require that the file of a setting exists."""
    if not path.is_file():
        raise DataError(f"There is no file of {what} at {path}; check {setting} ({RELATIVE_PATHS}).")
