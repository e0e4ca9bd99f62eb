"""The operators of expressions: what each computes, which arguments it takes and how far back it reads.

Functions of elements treat each cell by itself. Functions over time read the last ``n`` sessions of a firm
and need half of them to be known, rounded up. Functions across firms compare the firms of the universe at t,
or those of the firm's group. Ranks and places compare values rounded to float32, so that the rounding of
adjusted prices orders nothing.

Shape suffixes: T sessions, R some of the sessions, N firms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.arithmetic import rolling
from features.arithmetic.rolling import lag, map_tiles, rolling_mean
from features.arrays import FloatArray, IntArray, frozen
from features.panel.derived import column, daily_return, dollar_volume, market_return
from features.panel.panel import Panel

Values = Any
"""An array [T, N], or a number."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series that expressions can name: its definition, the panel's fields it needs, and its warm-up."""

    meaning: str
    needs: tuple[str, ...]
    compute: Callable[[Panel], FloatArray]
    warmup: int = 0


SERIES = {
    "open": Series("adjusted price at the open", ("open",), lambda panel: column(panel, "open")),
    "high": Series("adjusted highest price of the session", ("high",), lambda panel: column(panel, "high")),
    "low": Series("adjusted lowest price of the session", ("low",), lambda panel: column(panel, "low")),
    "close": Series("adjusted price at the close", ("close",), lambda panel: panel.close_TN),
    "raw_close": Series("close as quoted", ("close",), lambda panel: panel.raw_close_TN),
    "volume": Series(
        "dollar volume / adjusted close: shares, adjusted as prices are",
        ("close", "volume"),
        lambda panel: dollar_volume(panel) / panel.close_TN,
    ),
    "dollar_volume": Series("raw close times shares traded", ("close", "volume"), dollar_volume),
    "returns": Series(
        "`close[t] / C[t-1] - 1`, `C` the close carried through halts", ("close",), daily_return, 1
    ),
    "market": Series(
        "mean of `returns` over the firms that traded",
        ("close",),
        lambda panel: np.broadcast_to(market_return(panel), panel.close_TN.shape),
        1,
    ),
}
"""The series by name."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: how it is written, what it computes, and the sessions before t that it reads.

    The names of the arguments in ``form`` say what each is: ``n`` a number of sessions, ``q`` a share,
    ``group`` the word itself, which may be left out, and everything else a series.
    """

    form: str
    meaning: str
    compute: Callable[..., Values]
    reach: Callable[[int], int] | None = None
    """Sessions before t that a window of n sessions reads; None for an operator without a window."""
    across: bool = False
    """Whether it compares firms. Then it takes values [R, N], group codes [R, N] and the number of groups."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(self.form.partition("(")[2].rstrip(")").split(", "))


def _half(n: int) -> int:
    return (n + 1) // 2


def _known(x_TN: Values) -> Values:
    """Make infinite values unknown."""
    return np.where(np.isfinite(x_TN), x_TN, np.nan)


def _compared(holds: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    return lambda x, y: holds(x, y) + 0.0 * (x - y)  # 1 or 0; NaN where either is unknown


def _single(x_TN: FloatArray) -> FloatArray:
    return x_TN.astype(np.float32).astype(np.float64)


def _over(loop: str, x_TN: FloatArray, n: int, *first: Any) -> FloatArray:  # noqa: ANN401 (what the loop takes)
    """Run a compiled loop of `features.arithmetic.windows` on windows of n sessions."""
    from features.arithmetic import windows

    kernel, window = getattr(windows, loop), () if loop == "rolling_weighted" else (n,)
    return map_tiles(lambda x, out: kernel(x[0], *first, *window, float(_half(n)), out[0]), x_TN)[0]


def _sum(x_TN: FloatArray, n: int) -> FloatArray:
    known_TN = rolling.rolling_count(x_TN, n) >= _half(n)
    return np.where(known_TN, rolling.rolling_sum(x_TN, n), np.nan)


def _quantile(x_TN: FloatArray, n: int, q: float) -> FloatArray:
    from features.arithmetic.kernels import rolling_quantile

    return map_tiles(lambda x, out: rolling_quantile(x[0], q, n, float(_half(n)), out[0]), x_TN)[0]


def _covariance(x_TN: FloatArray, y_TN: FloatArray, n: int) -> FloatArray:
    both_TN = x_TN * y_TN
    x_TN, y_TN = x_TN + 0.0 * both_TN, y_TN + 0.0 * both_TN  # NaN where either is unknown
    least, count_TN = max(_half(n), 2), rolling.rolling_count(both_TN, n)
    square_TN = rolling_mean(both_TN, n, least)
    apart_TN = square_TN - rolling_mean(x_TN, n, least) * rolling_mean(y_TN, n, least)
    covariance_TN: FloatArray = _rounded(apart_TN, np.abs(square_TN)) * count_TN / (count_TN - 1.0)
    return covariance_TN


def _rounded(x_TN: FloatArray, size_TN: FloatArray | float) -> FloatArray:
    """Make what is only rounding 0, so that it orders no firm."""
    return np.where(np.abs(x_TN) <= 1e-14 * size_TN, 0.0, x_TN)


def _ema(x_TN: FloatArray, n: int) -> FloatArray:
    weight_W = (1.0 - 2.0 / (n + 1.0)) ** np.arange(4 * n - 1, -1, -1)
    return _over("rolling_weighted", x_TN, 4 * n, frozen(weight_W))


def _trend(part: int) -> Callable[[FloatArray, int], FloatArray]:
    return lambda x, n: _over("rolling_trend", x, n, part)


def _rank(x_RN: FloatArray, group_RN: IntArray, n_groups: int) -> FloatArray:
    from features.arithmetic.kernels import pack_with_column
    from features.arithmetic.windows import rank_by_group

    packed_RN, out_RN = np.empty(x_RN.shape, dtype=np.uint64), np.empty(x_RN.shape)
    pack_with_column(frozen(x_RN.astype(np.float32).view(np.uint32)), packed_RN)
    packed_RN.sort(axis=1)
    rank_by_group(frozen(packed_RN), group_RN, n_groups, out_RN)
    return out_RN


def _compare(what: int) -> Callable[[FloatArray, IntArray, int], FloatArray]:
    def compare(x_RN: FloatArray, group_RN: IntArray, n_groups: int) -> FloatArray:
        from features.arithmetic.windows import compare_by_group

        out_RN = np.empty(x_RN.shape)
        compare_by_group(frozen(x_RN), group_RN, n_groups, what, out_RN)
        return out_RN

    return compare


def _before(n: int) -> int:
    return n - 1


_ALL = (
    Operator("abs(x)", "absolute value", np.abs),
    Operator("sign(x)", "-1, 0 or 1", np.sign),
    Operator("log(x)", "natural logarithm; unknown unless x > 0", lambda x: _known(np.log(x))),
    Operator("exp(x)", "exponential", lambda x: _known(np.exp(x))),
    Operator("sqrt(x)", "square root; unknown if x < 0", np.sqrt),
    Operator("power(x, y)", "`x ** y`; unknown where that is not a real number", lambda x, y: _known(x**y)),
    Operator(
        "signed_power(x, y)", "`sign(x) * abs(x) ** y`", lambda x, y: _known(np.sign(x) * np.abs(x) ** y)
    ),
    Operator("maximum(x, y)", "the larger of two values", np.maximum),
    Operator("minimum(x, y)", "the smaller of two values", np.minimum),
    Operator(
        "where(c, x, y)",
        "x where c is true (not 0), else y; unknown where c is",
        lambda c, x, y: np.where(c != 0, x, y) + 0.0 * c,
    ),
    Operator("delay(x, n)", "x of n sessions ago", lag, lambda n: n),
    Operator("delta(x, n)", "`x - delay(x, n)`", lambda x, n: x - lag(x, n), lambda n: n),
    Operator("sum(x, n)", "sum; unknown values count as 0", _sum, _before),
    Operator("mean(x, n)", "average", lambda x, n: rolling_mean(x, n, _half(n)), _before),
    Operator(
        "std(x, n)", "sample standard deviation", lambda x, n: rolling.rolling_std(x, n, _half(n)), _before
    ),
    Operator(
        "skew(x, n)",
        "skewness, population moments",
        lambda x, n: rolling.rolling_skewness(x, n, _half(n)),
        _before,
    ),
    Operator("min(x, n)", "smallest value", lambda x, n: -rolling.rolling_max(-x, n, _half(n)), _before),
    Operator("max(x, n)", "largest value", lambda x, n: rolling.rolling_max(x, n, _half(n)), _before),
    Operator(
        "argmin(x, n)",
        "place of the smallest value, 1 the oldest session and n today; of equal ones the oldest",
        lambda x, n: _over("rolling_argmax", -_single(x), n),
        _before,
    ),
    Operator(
        "argmax(x, n)",
        "place of the largest value",
        lambda x, n: _over("rolling_argmax", _single(x), n),
        _before,
    ),
    Operator(
        "ts_rank(x, n)",
        "rank of today's value, as a share of the known values; ties share their mean rank",
        lambda x, n: _over("rolling_rank", _single(x), n),
        _before,
    ),
    Operator("quantile(x, n, q)", "quantile q in [0, 1], linear between values", _quantile, _before),
    Operator(
        "product(x, n)",
        "product of the known values",
        lambda x, n: _known(_over("rolling_product", x, n)),
        _before,
    ),
    Operator(
        "count(c, n)", "number of sessions on which c is true", lambda c, n: _sum(_truth(c), n), _before
    ),
    Operator(
        "corr(x, y, n)",
        "correlation over the sessions on which both are known; unknown without variation",
        lambda x, y, n: _rounded(rolling.rolling_correlation(x, y, n, max(_half(n), 2)), 1.0),
        _before,
    ),
    Operator("cov(x, y, n)", "sample covariance over the same sessions", _covariance, _before),
    Operator("slope(x, n)", "slope of a regression of x on the session, per session", _trend(0), _before),
    Operator("rsquare(x, n)", "R2 of that regression; unknown without variation", _trend(1), _before),
    Operator("residual(x, n)", "today's residual of that regression", _trend(2), _before),
    Operator(
        "decay_linear(x, n)",
        "average with weights n for today, n - 1 for the session before, ..., 1",
        lambda x, n: _over("rolling_weighted", x, n, frozen(np.arange(1.0, n + 1.0))),
        _before,
    ),
    Operator(
        "ema(x, n)",
        "average over the last 4 n sessions with weights `(1 - 2 / (n + 1)) ** k`, k sessions ago",
        _ema,
        lambda n: 4 * n - 1,
    ),
    Operator("rank(x, group)", "rank as a share of the known values; ties share it", _rank, across=True),
    Operator("demean(x, group)", "x minus the mean", _compare(0), across=True),
    Operator(
        "zscore(x, group)",
        "x minus the mean, over the population standard deviation; 0 where all are equal",
        _compare(1),
        across=True,
    ),
    Operator("scale(x, group)", "x over the sum of absolute values", _compare(2), across=True),
)


def _truth(c_TN: Values) -> Values:
    return (c_TN != 0) + 0.0 * c_TN


OPERATORS = {one.form.partition("(")[0]: one for one in _ALL}
"""The functions by name."""

SYMBOLS: dict[type[ast.AST], Operator] = {
    ast.Add: Operator("+(x, y)", "sum", lambda x, y: x + y),
    ast.Sub: Operator("-(x, y)", "difference", lambda x, y: x - y),
    ast.Mult: Operator("*(x, y)", "product", lambda x, y: _known(x * y)),
    ast.Div: Operator("/(x, y)", "ratio", lambda x, y: _known(np.divide(x, y))),
    ast.Pow: OPERATORS["power"],
    ast.USub: Operator("-(x)", "negative", lambda x: -x),
    ast.Gt: Operator(">(x, y)", "larger", _compared(np.greater)),
    ast.GtE: Operator(">=(x, y)", "at least", _compared(np.greater_equal)),
    ast.Lt: Operator("<(x, y)", "smaller", _compared(np.less)),
    ast.LtE: Operator("<=(x, y)", "at most", _compared(np.less_equal)),
    ast.Eq: Operator("==(x, y)", "equal", _compared(np.equal)),
    ast.NotEq: Operator("!=(x, y)", "not equal", _compared(np.not_equal)),
    ast.And: Operator("and(x, y)", "both", lambda x, y: _truth(x) * _truth(y)),
    ast.Or: Operator("or(x, y)", "one or both", lambda x, y: np.maximum(_truth(x), _truth(y))),
    ast.Not: Operator("not(x)", "not", lambda x: 1.0 - _truth(x)),
}
"""The symbols of Python that expressions can use."""
