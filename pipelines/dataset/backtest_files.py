"""Files that a backtest reads beside the data: risk-free rates, benchmarks, firms' fees and limits, factors.

Published factor returns come from files of Kenneth French, global-q.org, jkpfactors.com, or plain tables. The
returns that a book has earned are attributed to them, and nothing else reads them.

Shape suffixes: T sessions of the panel, N firms, P periods of a file, J factors.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import DateArray, FloatArray, IntArray
from features.panel.holding import earned_index
from features.panel.panel import Panel
from features.panel.periods import SESSIONS_PER_YEAR, periods_per_year
from pipelines.config.sections import BacktestConfig, BenchmarkConfig
from pipelines.errors import ConfigError, DataError, one_line
from pipelines.format import abbreviate
from pipelines.settings import RELATIVE_PATHS
from pipelines.sources.files.opening import bytes_of

MAX_AGE_DAYS = 45  # a monthly rate can be used until the next one is published


def risk_free_rates(
    setting: float | str, dates_T: DateArray, per_year: float = SESSIONS_PER_YEAR
) -> FloatArray:
    """Return the risk-free return of each session, as known at the close of the session before.

    Annual rate divided by the periods per year. Session t uses the newest rate dated at or before session
    t-1. NaN if there is none, or if it is more than 45 days older than session t-1.
    """
    if not isinstance(setting, str):
        return np.full(len(dates_T), setting / per_year)
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
    rate_T[1:][usable_T] = frame["rate"].to_numpy()[row_T[usable_T]] / per_year
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
    frame = _read_table(Path(file), f"{what}s", setting, **form)
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
    frame = _read_table(path, what, setting)
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


Unit = Literal["percent", "fraction"]
Frequency = Literal["daily", "weekly", "monthly"]

FRACTION_BELOW: Final = 0.5
PERCENT_ABOVE: Final = 1.5
"""Annual volatility, the median of the factors, below which values are fractions and above which they are
percent. Published factors have volatilities of 3% to 25% a year."""

_ROW: Final = re.compile(r"\s*\d{6}(\d{2})?\s*[,\s]\s*[-+.\d]")
_RATES: Final = ("rf", "r_f")
_MISSING: Final = (-99.99, -999.0)  # in Kenneth French's files
_DATE_PARTS: Final = ("year", "month", "day")
_LONG: Final = ("name", "date", "ret")
_OF_ONE: Final = ("location", "freq", "weighting")  # what a long file may hold several of
_LONGEST: Final[Mapping[Frequency, int]] = {"daily": 7, "weekly": 10, "monthly": 31}  # days of a period


@dataclass(frozen=True, slots=True, eq=False)
class PublishedFactors:
    """Factor returns of one entry of ``backtest.factors``, as fractions."""

    names: tuple[str, ...]
    end_P: DateArray  # last day of each period, ascending: the date of a file, or the last day of its month
    return_PJ: FloatArray  # NaN is unknown
    rate_P: FloatArray | None  # risk-free return of the period, not of a year; None if no file has one
    frequency: Frequency
    per_year: float  # periods in a year: 252, 52 or 12

    def periods(self, dates_T: DateArray) -> IntArray:
        """Return the period that each session belongs to, -1 if none, shape (T,).

        A period begins after the end of the one before. The first one of a daily or weekly file has no
        beginning and is left out, and so are sessions more than 7 days before the next date of a daily file
        (10 of a weekly one), whose dates have a hole there.
        """
        day_T = dates_T.astype("datetime64[D]")
        period_T = np.searchsorted(self.end_P, day_T)
        known_T = period_T < len(self.end_P)
        ahead_T = self.end_P[np.minimum(period_T, len(self.end_P) - 1)] - day_T
        known_T &= ahead_T < np.timedelta64(_LONGEST[self.frequency], "D")
        if self.frequency != "monthly":
            known_T &= period_T > 0
        return np.where(known_T, period_T, -1)

    def complete(self, dates_T: DateArray, held: slice) -> IntArray:
        """Return the periods of the sessions ``held``, -1 for those that the sessions do not fill.

        A period counts if all of its sessions in the data are held, and the data do not begin or end in it.
        """
        period_T = self.periods(dates_T)
        outside_T = np.ones(len(period_T), dtype=np.bool_)
        outside_T[held] = False
        outside_T[0] = True  # the return of the first session is unknown
        partial = set(period_T[outside_T].tolist())
        last = int(period_T[-1])
        if last >= 0:
            after = dates_T[-1].astype("datetime64[D]") + np.timedelta64(1, "D")
            if np.busday_count(after, self.end_P[last] + np.timedelta64(1, "D")) > 0:
                partial.add(last)
        return np.where(np.isin(period_T[held], list(partial)), -1, period_T[held])


def published_factors(entries: Mapping[str, Sequence[str]], panel: Panel) -> dict[str, PublishedFactors]:
    """Read the files of every entry of ``backtest.factors``; none may be more frequent than the prices."""
    found = {}
    for name, files in entries.items():
        setting = f"backtest.factors.{name}"
        found[name] = factors = join_factors(setting, [read_factors(Path(one), setting) for one in files])
        if factors.per_year > 1.5 * panel.periods_per_year:
            raise ConfigError(
                f"{setting}: the factors are {factors.frequency}, and the prices have "
                f"{panel.periods_per_year:g} sessions a year; give factors that are not more frequent."
            )
    return found


def join_factors(setting: str, files: Sequence[PublishedFactors]) -> PublishedFactors:
    """Join the factors of several files by date; the risk-free return is that of the first with one."""
    first = files[0]
    if len({one.frequency for one in files}) > 1:
        raise ConfigError(
            f"{setting}: its files are {' and '.join(one.frequency for one in files)}; give files of one "
            "frequency, or name them apart."
        )
    names = [name for one in files for name in one.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{setting}: more than one of its files has {twice[0]}; leave one of them out.")
    if len(files) == 1:
        return first
    end_P = np.unique(np.concatenate([one.end_P for one in files]))
    return_PJ, rate_P = np.full((len(end_P), len(names)), np.nan), None
    column = 0
    for one in files:
        row = np.searchsorted(end_P, one.end_P)
        return_PJ[row, column : column + len(one.names)] = one.return_PJ
        column += len(one.names)
        if rate_P is None and one.rate_P is not None:
            rate_P = np.full(len(end_P), np.nan)
            rate_P[row] = one.rate_P
    return PublishedFactors(tuple(names), end_P, return_PJ, rate_P, first.frequency, first.per_year)


def read_factors(path: Path, setting: str) -> PublishedFactors:
    """Read a file of factor returns as its site delivers it, or a plain table.

    | form | recognised by | unit |
    |---|---|---|
    | Kenneth French, CSV or text | header lines above the data, and no name above the dates | percent |
    | global-q.org | columns that begin with ``R_`` | percent |
    | jkpfactors.com | columns ``name``, ``date`` and ``ret`` | fractions |
    | plain | a column ``date``, all others numbers | by size |

    A ZIP archive may hold the file, and a plain table may be Parquet. Of a plain table, values whose annual
    volatility (the median of the factors) is below `FRACTION_BELOW` are fractions, and above `PERCENT_ABOVE`
    percent. -99.99 and -999 are unknown. A column RF or R_F is the risk-free return of the period. DataError
    if the file has none of these forms, or values of another unit than its form has.
    """
    _require_file(path, "factors", setting)
    frame, unit = _read_form(path, setting)
    frame = _numbers(path, frame)
    if frame["date"].is_duplicated().any():
        twice = frame.filter(pl.col("date").is_duplicated())["date"][0]
        raise DataError(f"{path} has more than one row for {twice}; keep one row per date.")
    frame = frame.sort("date")
    named = {name.strip(): frame[name].to_numpy().astype(np.float64) for name in frame.columns[1:]}
    named = {name: np.where(np.isin(x_P, _MISSING), np.nan, x_P) for name, x_P in named.items()}
    rates = [name for name in named if name.lower() in _RATES]
    names = tuple(name for name in named if name not in rates)
    if not names or frame.height < 2:
        raise DataError(f"{path} has {len(names)} factors on {frame.height} dates; it needs 1 on 2 dates.")
    end_P = frame["date"].to_numpy().astype("datetime64[D]")
    per_year = periods_per_year(end_P)
    frequencies: dict[float, Frequency] = {52.0: "weekly", 12.0: "monthly"}
    frequency = "daily" if per_year >= 250 else frequencies.get(per_year)
    if frequency is None:
        raise DataError(
            f"{path} has {per_year:.3g} periods a year; give daily, weekly or monthly factor returns."
        )
    if frequency == "monthly":
        end_P = (end_P.astype("datetime64[M]") + 1).astype("datetime64[D]") - np.timedelta64(1, "D")
    return_PJ = np.column_stack([named[name] for name in names])
    scale = 0.01 if _unit(path, return_PJ, per_year, unit) == "percent" else 1.0
    rate_P = scale * named[rates[0]] if rates else None
    return PublishedFactors(names, end_P, scale * return_PJ, rate_P, frequency, per_year)


def _unit(path: Path, return_PJ: FloatArray, per_year: float, of_form: Unit | None) -> Unit:
    """Return the unit of a form, unless values contradict it; of a plain table, by the size of its values."""
    measured_J = np.isfinite(return_PJ).sum(axis=0) >= 2
    if np.isinf(return_PJ).any() or not measured_J.any():
        raise DataError(f"{path} has infinite values, or no factor with 2 values; correct it.")
    size = float(np.median(np.nanstd(return_PJ[:, measured_J], axis=0)) * np.sqrt(per_year))
    by_size: Unit | None = (
        "fraction" if size < FRACTION_BELOW else "percent" if size > PERCENT_ABOVE else None
    )
    if of_form is not None and by_size in (None, of_form):
        return of_form
    if of_form is not None:
        raise DataError(
            f"{path} has the form of a file in {of_form}s, but an annual volatility of {size:.3g}, which is "
            f"that of {by_size}s; deliver it unchanged.".replace("percents", "percent")
        )
    if by_size is None:
        raise DataError(
            f"{path} may hold fractions or percent: its factors have an annual volatility of {size:.3g}, and "
            f"below {FRACTION_BELOW} would be fractions, above {PERCENT_ABOVE} percent; write it with the "
            "columns name, date and ret, which are fractions."
        )
    return by_size


def _read_form(path: Path, setting: str) -> tuple[pl.DataFrame, Unit | None]:
    """Read a table with ``date`` and a column for each factor, and the unit of its form; None if plain."""
    if path.suffix == ".parquet":
        return _plain(path, _read_table(path, "factors", setting))
    text = bytes_of(path).decode("utf-8-sig", errors="replace")
    found = _kenneth_french(path, text.splitlines())
    if found is not None:
        return found, "percent"
    try:
        frame = pl.read_csv(io.StringIO(text), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} is not readable as CSV: {one_line(error)}") from None
    return _plain(path, frame)


def _plain(path: Path, frame: pl.DataFrame) -> tuple[pl.DataFrame, Unit | None]:
    """Read what has one header: the forms of global-q.org and jkpfactors.com, or a plain table."""
    frame = frame.rename({name: name.strip() for name in frame.columns})
    parts = ("date", *_DATE_PARTS, *_LONG, *_OF_ONE)
    frame = frame.rename({name: name.lower() for name in frame.columns if name.lower() in parts})
    if {"year", "month"} <= set(frame.columns):
        digits = [pl.col(name).cast(pl.String).str.zfill(2) for name in _DATE_PARTS if name in frame.columns]
        frame = frame.with_columns(date=pl.concat_str(digits)).drop(_DATE_PARTS, strict=False)
    if "date" not in frame.columns:
        raise DataError(f"{path} has no column of dates; factor files need date, or year and month.")
    if set(_LONG) <= set(frame.columns):
        for column in _OF_ONE:
            if column in frame.columns and frame[column].n_unique() > 1:
                held = ", ".join(map(str, frame[column].unique().sort().head(3)))
                raise DataError(f"{path} has more than one {column} ({held}); keep the rows of one.")
        if frame.select("name", "date").is_duplicated().any():
            raise DataError(f"{path} has more than one ret for a name and date; keep one.")
        names = frame["name"].unique(maintain_order=True).to_list()
        frame = frame.pivot(on="name", index="date", values="ret").select("date", *names)
        return frame, "fraction"
    of_q = any(name.startswith("R_") for name in frame.columns)
    return frame, "percent" if of_q else None


def _kenneth_french(path: Path, lines: Sequence[str]) -> pl.DataFrame | None:
    """Read the first block of dated rows below a header without a name above the dates; None without one.

    Annual returns, which follow the monthly ones, and the copyright are below that block.
    """
    first = next((i for i, line in enumerate(lines) if _ROW.match(line)), 0)
    separator = "," if first and "," in lines[first] else None
    names = lines[first - 1].split(separator) if first else []
    if separator is None:
        names = ["", *names]
    if len(names) < 2 or names[0].strip():
        return None
    rows = []
    for number, line in enumerate(lines[first:], start=first + 1):
        if not _ROW.match(line):
            break
        day, *values = line.split(separator)
        try:
            if len(values) != len(names) - 1:
                raise ValueError
            rows.append((day.strip(), *map(float, values)))
        except ValueError:
            raise DataError(
                f"{path}: line {number} is no date with {len(names) - 1} numbers; download the file again."
            ) from None
    schema = {"date": pl.String, **dict.fromkeys((name.strip() for name in names[1:]), pl.Float64)}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _numbers(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``date`` as dates, then all other columns as numbers; a month is dated on its first day."""
    day = pl.col("date").cast(pl.String).str.strip_chars().str.slice(0, 10).str.replace_all("-", "")
    day = pl.when(day.str.len_chars() == 6).then(day + "01").otherwise(day)
    try:
        return frame.select(
            day.str.to_date("%Y%m%d").alias("date"),
            pl.col([name for name in frame.columns if name != "date"]).cast(pl.Float64),
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path}: {one_line(error)}; dates must be YYYY-MM-DD, YYYYMMDD or YYYYMM, all else numbers."
        ) from None


def _read_table(path: Path, what: str, setting: str, **of_csv: Any) -> pl.DataFrame:  # noqa: ANN401 (polars')
    """Read the CSV or Parquet file of a setting; ``what`` says what it holds."""
    _require_file(path, what, setting)
    try:
        return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, **of_csv)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not readable as {path.suffix or 'CSV'}: {one_line(error)}") from None


def _require_file(path: Path, what: str, setting: str) -> None:
    """Require that the file of a setting exists."""
    if not path.is_file():
        raise DataError(f"There is no file of {what} at {path}; check {setting} ({RELATIVE_PATHS}).")
