"""Benchmarks with prices of their own: an index from a file, or a ticker of the lake.

Shape suffix: T sessions of the panel.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import FloatArray
from features.panel.holding import earned_index
from features.panel.panel import Panel
from pipelines.config.sections import BenchmarkConfig
from pipelines.dataset.risk_free import read_series
from pipelines.errors import ConfigError, DataError

_NAMED = 5


def benchmark_closes(benchmarks: Mapping[str, BenchmarkConfig], panel: Panel) -> dict[str, FloatArray]:
    """Close of each benchmark that is a ticker or a file, shape (T,); NaN where there is none.

    A session has the close of its own date: dates of a file that are no session are left out, so a return
    from one session to the next one includes them. A ticker's are total-return closes, until it
    is delisted.
    """
    return {name: _closes(name, one, panel) for name, one in benchmarks.items() if one.weights is None}


def require_closes(name: str, close_T: FloatArray, panel: Panel, held: slice) -> None:
    """Require a close of a benchmark on every session ``held``; DataError names those without one."""
    unknown_T = np.isnan(close_T[held])
    if unknown_T.any():
        days = panel.dates_T[held][unknown_T].astype("datetime64[D]")
        more = f" and {len(days) - _NAMED:,} more" if len(days) > _NAMED else ""
        raise DataError(
            f"The benchmark {name} has no close on {len(days):,} of {len(unknown_T):,} sessions: "
            f"{', '.join(map(str, days[:_NAMED]))}{more}; add them, or leave it out of backtest.benchmarks."
        )


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
    path = Path(benchmark.file)
    frame = read_series(path, "close", "closes", f"{setting}.file")
    wrong = frame.filter(~((pl.col("close") > 0) & pl.col("close").is_finite()))
    if wrong.height or frame.is_empty():
        said = "it has no closes" if frame.is_empty() else "the close of {} is {}".format(*wrong.row(0))
        raise DataError(f"{path}: {said}; an index has a close above 0 for every session.")
    days = pl.DataFrame({"date": panel.dates_T.astype("datetime64[D]")})
    close_T = days.join(frame, on="date", how="left", maintain_order="left")["close"].to_numpy()
    return close_T  # null is NaN
