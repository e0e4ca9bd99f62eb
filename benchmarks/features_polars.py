"""The thirty features as polars expressions on a long frame, sorted by firm and date.

Each step is one `with_columns`, so that polars shares the grouping and runs the expressions in parallel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from features_market import CROSS_SECTIONS, MAX_HALT, TAIL, WARMUPS, FloatArray, half, read
from polars import Expr, col
from scipy.special import ndtri


def prepare(folder: Path) -> pl.DataFrame:
    """Build the long frame: one row per session and firm, null where it did not trade."""
    industry_N = read(folder, "industry")
    dates_T = read(folder, "dates")
    T, N = len(dates_T), len(industry_N)
    columns = {name: read(folder, name).T.ravel() for name in ("close", "high", "low", "volume")}
    frame = pl.DataFrame(
        {
            "ticker": np.repeat(np.arange(N, dtype=np.uint16), T),
            "date": np.tile(dates_T, N),
            "industry": np.repeat(industry_N, T),
            **columns,
        },
        nan_to_null=True,
    )
    return frame.sort("ticker", "date")


def _mean(x: Expr, window: int) -> Expr:
    return x.rolling_mean(window, min_samples=half(window))


def _over(**expressions: Expr) -> dict[str, Expr]:
    return {name: expression.over("ticker") for name, expression in expressions.items()}


def compute(frame: pl.DataFrame) -> pl.DataFrame:
    """Compute all features."""
    close, r, dv, m, span = col("close"), col("r"), col("dv"), col("m"), col("span")
    frame = frame.with_columns(
        carried=close.forward_fill(MAX_HALT).over("ticker"),
        span=(col("high") / col("low")).log(),
        dv=close * col("volume"),
    )
    frame = frame.with_columns(r=close / col("carried").shift(1).over("ticker") - 1)
    frame = frame.with_columns(market=r.mean().over("date"), impact=r.abs() / pl.when(dv > 0).then(dv))
    frame = frame.with_columns(m=pl.when(r.is_not_null()).then(col("market")))
    back = col("carried").shift
    frame = frame.with_columns(
        **_over(
            return_5=close / back(5) - 1,
            return_21=close / back(21) - 1,
            momentum_252_21=back(21) / back(252) - 1,
            high_distance_252=close / close.rolling_max(252, min_samples=half(252)) - 1,
            low_distance_252=close / close.rolling_min(252, min_samples=half(252)) - 1,
            volatility_21=r.rolling_std(21, min_samples=half(21)),
            volatility_63=r.rolling_std(63, min_samples=half(63)),
            parkinson_21=(_mean(span * span, 21) / (4 * np.log(2))).sqrt(),
            maximum_return_21=r.rolling_max(21, min_samples=half(21)),
            skewness_63=r.rolling_skew(63, min_samples=half(63)),
            log_dollar_volume_21=_mean(dv, 21).log(),
            amihud_21=1e6 * _mean(col("impact"), 21),
            volume_trend_5_63=(_mean(dv, 5) / _mean(dv, 63)).log(),
            zero_return_days_21=_mean((r.abs() < 1e-12).cast(pl.Float64), 21),
            median_dollar_volume_21=dv.rolling_median(21, min_samples=half(21)),
            median_dollar_volume_63=dv.rolling_median(63, min_samples=half(63)),
            median_dollar_volume_126=dv.rolling_median(126, min_samples=half(126)),
            surprise=(dv / _mean(dv, 21)).log(),
            mean_r=_mean(r, 63),
            mean_m=_mean(m, 63),
            mean_rm=_mean(r * m, 63),
            mean_mm=_mean(m * m, 63),
            mean_rr=_mean(r * r, 63),
            n=r.is_not_null().cast(pl.Float64).rolling_sum(63, min_samples=1),
            **{f"heard_{warmup}": back(warmup).is_not_null() for warmup in set(WARMUPS.values())},
        )
    )
    # volume surprise where the return is known, and return where the volume surprise is known
    both = r.is_not_null() & col("surprise").is_not_null()
    frame = frame.with_columns(a=pl.when(both).then(r), b=pl.when(both).then(col("surprise")))
    a, b = col("a"), col("b")
    frame = frame.with_columns(
        **_over(
            mean_a=_mean(a, 63),
            mean_b=_mean(b, 63),
            mean_ab=_mean(a * b, 63),
            mean_aa=_mean(a * a, 63),
            mean_bb=_mean(b * b, 63),
        ),
        cov=col("mean_rm") - col("mean_r") * col("mean_m"),
        var_m=col("mean_mm") - col("mean_m") ** 2,
        var_r=col("mean_rr") - col("mean_r") ** 2,
    )
    var_a, var_b = col("mean_aa") - col("mean_a") ** 2, col("mean_bb") - col("mean_b") ** 2
    cov, n = col("cov"), col("n")
    frame = frame.with_columns(
        return_volume_correlation_63=(col("mean_ab") - col("mean_a") * col("mean_b"))
        / (var_a * var_b).sqrt(),
        beta_63=cov / col("var_m"),
        idiosyncratic_volatility_63=((col("var_r") - cov * cov / col("var_m")) * n / (n - 2)).sqrt(),
    )
    frame = frame.with_columns(
        residual_return_1=r - col("beta_63").shift(1).over("ticker") * col("market"),
    )
    frame = frame.with_columns(
        **{
            name: pl.when(close.is_not_null() & col(f"heard_{warmup}")).then(col(name))
            for name, warmup in WARMUPS.items()
        }
    )
    group = ("date", "industry")
    across: dict[str, Expr] = {
        "group_relative_return_5": pl.when(col("return_5").count().over(group) >= 2).then(
            col("return_5") - col("return_5").mean().over(group)
        ),
    }
    for kind, name in CROSS_SECTIONS:
        x = col(name)
        if kind == "rank":
            x = x.cast(pl.Float32)  # as in the pipeline; in float64, rounding would decide near ties
            across[f"{kind}_{name}"] = ((x.rank("average") - 0.5) / x.count()).over("date")
        elif kind == "zscore":
            across[f"{kind}_{name}"] = ((x - x.mean()) / x.std(ddof=0)).over("date")
        elif kind == "winsorised":
            low, high = x.quantile(TAIL, "linear"), x.quantile(1 - TAIL, "linear")
            across[f"{kind}_{name}"] = x.clip(low, high).over("date")
        else:
            across[f"{kind}_{name}"] = x - x.mean().over(group)
    frame = frame.with_columns(**across)
    ranks = [f"{kind}_{name}" for kind, name in CROSS_SECTIONS if kind == "rank"]
    scores = [pl.Series(name, ndtri(frame[name].to_numpy())) for name in ranks]
    return frame.with_columns(scores)


def values(out: pl.DataFrame, name: str, every: int) -> FloatArray:
    """Return one feature for every ``every``-th firm, (T, n)."""
    N = out["ticker"].n_unique()
    x_NT: FloatArray = out[name].cast(pl.Float64).to_numpy().reshape(N, -1)
    return np.ascontiguousarray(x_NT[::every].T)
