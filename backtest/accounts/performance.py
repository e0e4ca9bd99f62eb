"""Performance of a book: return, risk, drawdown, turnover and trading costs.

**Excess returns.** Cash earns nothing in the accounts, so a session's return is the sum of weight times
return. The excess return is ``return - net exposure * rate``, with the net exposure at the previous close. It
equals the return over the risk-free rate if cash were credited at that rate. A fully invested book has a net
exposure of 1, so the whole rate is deducted. A self-financing long-short book has a net exposure of 0: its
return is already an excess return. A book that is half in cash pays half of the rate. Sharpe and Sortino
ratios use these excess returns, with a rate of 0 unless one is given.

A ratio whose denominator is zero is NaN. Shape suffix: T sessions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from backtest.accounts.result import BookResult
from features.arrays import BoolArray, FloatArray, require_shape
from features.information_coefficient import mean_known
from features.panel.periods import SESSIONS_PER_YEAR

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class BookMetrics:
    """Performance of a book from its first trade to its last session, or to its ruin.

    A mean per session is multiplied by `BookResult.periods_per_year` to be annual, and a standard deviation
    or a ratio of the two by its root.

    Examples
    --------
    >>> from backtest.accounts.accounting import run_book
    >>> from backtest.costs import CostModel
    >>> index = np.array([[1.0], [1.1], [1.0]])
    >>> book_metrics(run_book(np.ones((3, 1)), index, index > 0, CostModel(), 0)).leverage
    1.0
    """

    n_sessions: int
    """Number of sessions, including that of the first trade, which bears the trade's costs."""
    total_return_gross: float
    total_return_net: float
    """`total_return_gross`, `total_return_net`: last NAV - 1."""
    annual_return_gross: float
    annual_return_net: float
    """`annual_return_gross`, `annual_return_net`: geometric: ``(1 + total return) ** (periods per year / n) -
    1``."""
    annual_volatility_gross: float
    annual_volatility_net: float
    """`annual_volatility_gross`, `annual_volatility_net`: sample standard deviation of the session returns
    times the root of the periods per year."""
    sharpe_gross: float
    sharpe_net: float
    """`sharpe_gross`, `sharpe_net`: mean over sample standard deviation, of excess returns over the risk-free
    rate; annual."""
    sortino_net: float
    """Mean over ``sqrt(mean(min(r, 0)^2))`` of excess returns; annual."""
    calmar_net: float
    """Annual return over the largest drawdown, both net."""
    skew_net: float
    """``m3 / m2^1.5`` of the session returns, population moments."""
    worst_day_net: float
    best_day_net: float
    """`worst_day_net`, `best_day_net`: lowest and highest return of a session."""
    max_drawdown_gross: float
    max_drawdown_net: float
    """`max_drawdown_gross`, `max_drawdown_net`: largest fall from an earlier peak (including the starting
    capital), as a positive fraction."""
    hit_rate_net: float
    """Share of sessions with a positive return."""
    turnover: float
    """Mean one-way turnover per session."""
    leverage: float
    """Mean gross exposure over NAV."""
    net_exposure: float
    """Mean of long less short positions over NAV, ``1 - cash``."""
    unfilled: float
    """Mean turnover per session that could not be traded."""
    max_unpriced: float
    """Largest share of NAV in positions without a known price."""
    costs_bps_per_year: Mapping[str, float]
    """Mean cost by kind (`backtest.costs.COST_KINDS`), in basis points of NAV per year."""
    ruined_at: int | None
    """Session on which the book was ruined; None if it was not."""
    identity_gap: float
    """Largest relative difference between the two NAVs (from returns and from the ledger)."""


@dataclass(frozen=True, slots=True)
class ActiveMetrics:
    """A book, net of costs, against a benchmark on the same sessions.

    The active return of a session is the book's net return less the benchmark's return. Beta and captures are
    NaN if the benchmark does not vary, or never rises or falls.

    Examples
    --------
    >>> from backtest.accounts.accounting import run_book
    >>> from backtest.costs import CostModel
    >>> index = np.array([[1.0], [1.1], [1.0]])
    >>> book = run_book(np.ones((3, 1)), index, index > 0, CostModel(), 0)
    >>> round(active_metrics(book, 2 * book.return_net_T).beta, 2)
    0.5
    """

    benchmark_return: float
    """Geometric annual return of the benchmark."""
    tracking_difference: float
    """Geometric annual return of the book less that of the benchmark (ESMA 2012)."""
    active_return: float
    """Mean of the active return times the periods per year: information ratio times tracking error."""
    tracking_error: float
    """Annual sample standard deviation of the active return: the active risk."""
    information_ratio: float
    """Mean over sample standard deviation of the active return, annual; NaN if the two returns differ only by
    rounding."""
    beta: float
    """``cov(book, benchmark) / var(benchmark)`` of the session returns."""
    up_capture: float
    """Geometric mean return of the book over that of the benchmark, on sessions on which the benchmark rises.
    It is per session: annual returns would give a book that is half invested much less than 0.5."""
    down_capture: float
    """The same on sessions on which the benchmark falls."""
    active_drawdown: float
    """Largest fall from an earlier peak of the compounded active return, as a positive fraction."""


def book_metrics(result: BookResult, rate_T: FloatArray | None = None) -> BookMetrics:
    """Compute the performance of a book; see `BookMetrics` for each definition.

    Without any trade, all sessions count. ``rate_T`` is the risk-free return of each session, a fraction that
    is known at the previous close; None: 0. Ratios are NaN where their denominator is zero. ValueError if the
    shapes of rates and accounts differ, or a rate is NaN on a session with positions.

    Examples
    --------
    >>> from backtest.accounts.accounting import run_book
    >>> from backtest.costs import CostModel
    >>> index = np.array([[1.0], [1.1], [1.0]])
    >>> round(book_metrics(run_book(np.ones((3, 1)), index, index > 0, CostModel(), 0)).max_drawdown_net, 4)
    0.0909
    """
    span, year = counted_sessions(result), result.periods_per_year
    last = span.stop
    free_T = _free(result, rate_T)[span]
    net_T, gross_T = result.return_net_T[span], result.return_gross_T[span]
    return BookMetrics(
        n_sessions=len(net_T),
        total_return_gross=float(result.nav_gross_T[last - 1]) - 1.0,
        total_return_net=float(result.nav_net_T[last - 1]) - 1.0,
        annual_return_gross=annual_return(gross_T, year),
        annual_return_net=annual_return(net_T, year),
        annual_volatility_gross=annual_volatility(gross_T, year),
        annual_volatility_net=annual_volatility(net_T, year),
        sharpe_gross=sharpe(gross_T - free_T, year),
        sharpe_net=sharpe(net_T - free_T, year),
        sortino_net=sortino(net_T - free_T, year),
        calmar_net=calmar(net_T, year),
        skew_net=skewness(net_T),
        worst_day_net=float(net_T.min()),
        best_day_net=float(net_T.max()),
        max_drawdown_gross=max_drawdown(gross_T),
        max_drawdown_net=max_drawdown(net_T),
        hit_rate_net=float((net_T > 0).mean()),
        turnover=float(result.turnover_T[span].mean()),
        leverage=float(result.leverage_T[span].mean()),
        net_exposure=float(result.net_exposure_T[span].mean()),
        unfilled=float(result.unfilled_T[span].mean()),
        max_unpriced=float(result.unpriced_T[span].max()),
        costs_bps_per_year={
            kind: float(cost_T[span].mean()) * 1e4 * year for kind, cost_T in result.costs_T.items()
        },
        ruined_at=result.ruined_at,
        identity_gap=result.identity_gap,
    )


def excess_return(result: BookResult, rate_T: FloatArray | None = None) -> FloatArray:
    """Net return of each session less the risk-free rate on net exposure, shape (T,).

    Arguments and errors are those of `book_metrics`, whose `sharpe_net` is the Sharpe ratio of these returns.
    NaN before the first trade and after ruin.
    """
    span = counted_sessions(result)
    excess_T = np.full_like(result.return_net_T, np.nan)
    excess_T[span] = result.return_net_T[span] - _free(result, rate_T)[span]
    return excess_T


def active_metrics(result: BookResult, benchmark_T: FloatArray) -> ActiveMetrics:
    """Compare a book with the returns of a benchmark; see `ActiveMetrics` for each definition.

    ``benchmark_T`` are simple returns from close to close, or to the first trade, of the sessions of the
    book, else a ValueError; those used are the ones of `book_metrics`. Neither uses the risk-free rate.
    All figures of a book that never traded are NaN.

    Examples
    --------
    >>> from backtest.accounts.accounting import run_book
    >>> from backtest.costs import CostModel
    >>> index = np.array([[1.0], [1.1], [1.0]])
    >>> book, half = (run_book(np.full((3, 1), w), index, index > 0, CostModel(), 0) for w in (1.0, 0.5))
    >>> round(active_metrics(book, half.return_gross_T).information_ratio, 2)
    0.5
    """
    require_shape("the benchmark's return", benchmark_T, result.return_net_T.shape)
    if result.first_trade is None:
        return ActiveMetrics(*np.full(len(fields(ActiveMetrics)), np.nan).tolist())
    span, year = counted_sessions(result), result.periods_per_year
    net_T, other_T = result.return_net_T[span], benchmark_T[span]
    active_T = net_T - other_T
    error, theirs = annual_volatility(active_T, year), annual_return(other_T, year)
    variance = float(other_T.var(ddof=1)) if len(other_T) > 1 else math.nan
    covariance = float(np.cov(net_T, other_T)[0, 1]) if len(other_T) > 1 else math.nan
    return ActiveMetrics(
        benchmark_return=theirs,
        tracking_difference=annual_return(net_T, year) - theirs,
        active_return=mean_known(active_T) * year,
        tracking_error=error,
        information_ratio=sharpe(active_T, year) if error > ROUNDING else math.nan,
        beta=ratio(covariance, variance),
        up_capture=_capture(net_T, other_T, other_T > 0),
        down_capture=_capture(net_T, other_T, other_T < 0),
        active_drawdown=max_drawdown(active_T),
    )


def _capture(return_T: FloatArray, benchmark_T: FloatArray, where_T: BoolArray) -> float:
    """Geometric mean return over that of the benchmark on some sessions; NaN without any."""
    ours, theirs = (annual_return(x_T[where_T], periods_per_year=1.0) for x_T in (return_T, benchmark_T))
    return ours / theirs if where_T.any() else math.nan


def counted_sessions(result: BookResult) -> slice:
    """Sessions from the first trade to the end, or to the book's ruin."""
    last = len(result.return_net_T) if result.ruined_at is None else result.ruined_at + 1
    return slice(result.first_trade or 0, last)


def exposure_before(result: BookResult) -> FloatArray:
    """Net exposure at the previous close, shape (T,); 0 in the first session."""
    return np.concatenate([[0.0], 1.0 - result.cash_T[:-1]])


def _free(result: BookResult, rate_T: FloatArray | None) -> FloatArray:
    """Net exposure at the previous close times the risk-free rate: deducted from a session's return."""
    if rate_T is None:
        return np.zeros_like(result.cash_T)
    require_shape("the risk-free rate", rate_T, result.cash_T.shape)
    exposure_T = exposure_before(result)
    free_T = np.where(exposure_T == 0.0, 0.0, exposure_T * rate_T)
    if np.isnan(free_T[counted_sessions(result)]).any():
        msg = "The risk-free rate is unknown on a session with positions: give a rate for every session."
        raise ValueError(msg)
    return free_T


def annual_return(return_T: FloatArray, periods_per_year: float = SESSIONS_PER_YEAR) -> float:
    """Geometric annual return of session returns; infinite if it overflows for a short series.

    Examples
    --------
    >>> round(annual_return(np.full(252, 0.001)), 4)
    0.2864
    """
    if not len(return_T):
        return math.nan
    with np.errstate(over="ignore"):
        return float(np.prod(np.maximum(1.0 + return_T, 0.0)) ** (periods_per_year / len(return_T))) - 1.0


def annual_volatility(return_T: FloatArray, periods_per_year: float = SESSIONS_PER_YEAR) -> float:
    """Sample standard deviation of session returns times the root of the periods; NaN with fewer than 2.

    Examples
    --------
    >>> round(annual_volatility(np.array([0.01, -0.01, 0.01])), 3)
    0.183
    """
    return float(return_T.std(ddof=1)) * math.sqrt(periods_per_year) if len(return_T) > 1 else math.nan


def sharpe(return_T: FloatArray, periods_per_year: float = SESSIONS_PER_YEAR) -> float:
    """Annualised mean over volatility of session returns; NaN without variation.

    Examples
    --------
    >>> round(sharpe(np.array([0.01, -0.005, 0.01])), 2)
    9.17
    """
    volatility = annual_volatility(return_T, periods_per_year)
    return ratio(mean_known(return_T) * periods_per_year, volatility)


def sortino(return_T: FloatArray, periods_per_year: float = SESSIONS_PER_YEAR) -> float:
    """Annualised mean of session returns over ``sqrt(mean(min(r, 0)^2))``; NaN without a loss.

    Examples
    --------
    >>> round(sortino(np.array([0.01, -0.005, 0.01])), 2)
    27.5
    """
    downside = math.sqrt(mean_known(np.minimum(return_T, 0.0) ** 2))
    return ratio(mean_known(return_T), downside) * math.sqrt(periods_per_year)


def max_drawdown(return_T: FloatArray) -> float:
    """Largest fall of compounded NAV from an earlier peak, including the starting capital; 0 to 1.

    Examples
    --------
    >>> round(max_drawdown(np.array([0.1, -0.2, 0.05])), 4)
    0.2
    """
    nav_T = np.concatenate([[1.0], np.cumprod(np.maximum(1.0 + return_T, 0.0))])
    return float(np.max(1.0 - nav_T / np.maximum.accumulate(nav_T)))


def calmar(return_T: FloatArray, periods_per_year: float = SESSIONS_PER_YEAR) -> float:
    """Geometric annual return over the largest drawdown (Young 1991); NaN without a drawdown.

    Examples
    --------
    >>> round(calmar(np.array([0.01, -0.005, 0.001]), periods_per_year=12), 2)
    4.81
    """
    return ratio(annual_return(return_T, periods_per_year), max_drawdown(return_T))


def skewness(return_T: FloatArray) -> float:
    """Skewness ``m3 / m2^1.5`` of session returns, population moments; NaN without variation.

    Examples
    --------
    >>> round(skewness(np.array([0.0, 0.0, 0.03])), 3)
    0.707
    """
    if len(return_T) < 2:
        return math.nan
    deviation_T = return_T - return_T.mean()
    m2 = float((deviation_T**2).mean())
    return ratio(float((deviation_T**3).mean()), m2**1.5 if math.sqrt(m2) > ROUNDING else 0.0)


def ratio(numerator: float, denominator: float) -> float:
    """Quotient; NaN unless the denominator is above zero."""
    return numerator / denominator if denominator > 0 else math.nan
