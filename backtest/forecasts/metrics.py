"""Metrics of forecasts against labels. For metrics of books, see `backtest.accounts.performance`.

A (date, firm) pair is used if both forecast and label are known. A date without a value for a metric is NaN
in the metric's series and is left out of its mean; a metric without any date is NaN. Correlations within a
date are those of `features.information_coefficient`, which early stopping also uses: a constant forecast has
an IC of 0. Where a metric selects firms by forecast, ties share equally (`backtest.forecasts.ranking`), which
is the expectation over a random order of the tied firms. ICIR, precision at k and top-k SR follow the
definitions that are common for the Nasdaq benchmark of Feng et al. 2019.

Shape suffixes: T dates, N firms, Q quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from backtest.accounts.performance import ratio
from backtest.forecasts.ranking import RankSelector, as_signal
from backtest.inference.means import newey_west_lags, newey_west_t
from features.arrays import AnyFloatArray, BoolArray, FloatArray, require_shape
from features.information_coefficient import (
    MIN_FIRMS,
    ic_by_date,
    is_constant,
    mean_known,
    rank_ic_by_date,
)

ROUNDING = 1e-12
_QUANTILES = 5
LITERATURE_YEAR = 15.87  # square root of 252, as rounded in published tables


@dataclass(frozen=True, slots=True, eq=False)
class ForecastMetrics:
    """Quality of forecasts against labels.

    Attributes
    ----------
    n_dates, n_pairs : int
        Number of dates with an IC, and of pairs of forecast and label.
    coverage_dates : float
        ``n_dates`` as a share of the dates whose labels allow an IC (3 firms or more, not constant).
    coverage_firms : float
        Share of firms with a forecast among the firms with a label, on the ``n_dates`` dates.
    tied : float
        Share of the pairs whose forecast equals another forecast of the same date.
    ic, icir, ic_t : float
        Mean of the daily Pearson correlations ``ic_T``, that mean over their population standard deviation,
        and the Newey-West t-statistic of the mean.
    rank_ic, rank_icir, rank_ic_t : float
        The same with Spearman correlation (average ranks).
    lags : int
        Newey-West lags used.
    precision_at_10 : float
        Share of the 10 highest forecasts whose label is at least zero, averaged over dates.
    literature_sr : float
        `top_k_sr` of the 5 highest forecasts, before costs.
    r2_oos : float
        Out-of-sample R2 against a zero forecast.
    quantile_returns : tuple of float
        Mean label of each forecast quantile, lowest forecasts first.
    monotonicity : float
        Spearman correlation of quantile number and mean label.
    ic_T, rank_ic_T : ndarray of shape (T,)
        The daily series.
    """

    n_dates: int
    n_pairs: int
    coverage_dates: float
    coverage_firms: float
    tied: float
    ic: float
    icir: float
    ic_t: float
    rank_ic: float
    rank_icir: float
    rank_ic_t: float
    lags: int
    precision_at_10: float
    literature_sr: float
    r2_oos: float
    quantile_returns: tuple[float, ...]
    monotonicity: float
    ic_T: FloatArray
    rank_ic_T: FloatArray


def forecast_metrics(
    forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, *, horizon: int = 1
) -> ForecastMetrics:
    """Compute all metrics of forecasts against labels.

    Parameters
    ----------
    forecast_TN, label_TN : ndarray of shape (T, N)
        Forecasts and labels; NaN = unknown. Coverage is measured against the known labels, so pass the labels
        of all dates and firms that should have a forecast.
    horizon : int
        Sessions that a label spans. Overlapping labels need at least ``horizon - 1`` Newey-West lags.

    Returns
    -------
    ForecastMetrics
        NaN where a metric is undefined.

    Raises
    ------
    ValueError
        If shapes differ, a value is infinite, or no pair has both forecast and label.
    """
    labels_T, with_ic_T = (~np.isnan(label_TN)).sum(axis=1), _can_have_ic(label_TN)
    forecast_TN, label_TN = _pairs(forecast_TN, label_TN)
    selector = RankSelector(forecast_TN)
    n_pairs = int(selector.count_T.sum())
    if not n_pairs:
        msg = "No forecast has a label: choose dates whose labels end inside the data."
        raise ValueError(msg)
    ic_T, rank_ic_T = ic_by_date(forecast_TN, label_TN), rank_ic_by_date(forecast_TN, label_TN)
    known_T = ~np.isnan(ic_T)
    n_dates = int(known_T.sum())
    lags = max(horizon - 1, newey_west_lags(n_dates))
    quantile_Q = quantile_returns(forecast_TN, label_TN, _QUANTILES)
    return ForecastMetrics(
        n_dates=n_dates,
        n_pairs=n_pairs,
        coverage_dates=ratio(n_dates, int(with_ic_T.sum())),
        coverage_firms=ratio(int(selector.count_T[known_T].sum()), int(labels_T[known_T].sum())),
        tied=int(selector.tied().sum()) / n_pairs,
        ic=mean_known(ic_T),
        icir=icir(ic_T),
        ic_t=newey_west_t(ic_T, lags),
        rank_ic=mean_known(rank_ic_T),
        rank_icir=icir(rank_ic_T),
        rank_ic_t=newey_west_t(rank_ic_T, lags),
        lags=lags,
        precision_at_10=precision_at_k(forecast_TN, label_TN, 10),
        literature_sr=top_k_sr(forecast_TN, label_TN, 5),
        r2_oos=r2_oos(forecast_TN, label_TN),
        quantile_returns=tuple(quantile_Q.tolist()),
        monotonicity=monotonicity(quantile_Q),
        ic_T=ic_T,
        rank_ic_T=rank_ic_T,
    )


def icir(ic_T: FloatArray) -> float:
    """Mean of a series of ICs over its population standard deviation; not annualised.

    NaN if the series varies only by rounding, as for a perfect forecast.
    """
    known_T = ic_T[~np.isnan(ic_T)]
    deviation = float(known_T.std()) if len(known_T) else 0.0
    return ratio(mean_known(known_T), deviation if deviation > ROUNDING else 0.0)


def quantile_returns(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, q: int = 5) -> FloatArray:
    """Mean over dates of the equal-weight label of each forecast quantile, shape (Q,), lowest first.

    With n pairs on a date, quantile i (from 0) takes the ranks from ``ceil(i n / q)`` up to
    ``ceil((i + 1) n / q)``, lowest first, so sizes differ by at most one. Tied firms that straddle a boundary
    are split between the quantiles, each firm in the same proportion. Dates with fewer than q pairs are
    skipped.
    """
    x_TN, y_TN = _pairs(forecast_TN, label_TN)
    if q < 2:
        msg = f"q is {q}; there must be at least 2 quantiles."
        raise ValueError(msg)
    enough_T = (~np.isnan(x_TN)).sum(axis=1) >= q
    if not enough_T.any():
        return np.full(q, np.nan)
    selector, y_TN = RankSelector(x_TN[enough_T]), np.nan_to_num(y_TN[enough_T])
    below_T, sum_below_T = np.zeros_like(selector.count_T), np.zeros(len(y_TN))
    mean_Q = np.empty(q)
    for i in range(q):
        upper_T = -(-(i + 1) * selector.count_T // q)
        sum_T = (selector.lowest(upper_T) * y_TN).sum(axis=1)
        mean_Q[i] = np.mean((sum_T - sum_below_T) / (upper_T - below_T))
        below_T, sum_below_T = upper_T, sum_T
    return mean_Q


def monotonicity(quantile_Q: FloatArray) -> float:
    """Spearman correlation of quantile number and mean label: 1 if the means rise throughout.

    NaN if a mean is NaN or all means are equal. Means that differ only by rounding, as for a constant
    forecast, count as equal.
    """
    if np.isnan(quantile_Q).any() or not quantile_Q.any():
        return math.nan
    number_Q = np.arange(len(quantile_Q), dtype=np.float64)
    mean_Q = np.round(quantile_Q / np.abs(quantile_Q).max(), 12)
    return float(rank_ic_by_date(number_Q[None, :], mean_Q[None, :])[0])


def precision_at_k(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, k: int = 10) -> float:
    """Share of the k highest forecasts whose label is at least zero, averaged over dates.

    Dates with fewer than k pairs are skipped.
    """
    return mean_known(_top_k_mean(forecast_TN, label_TN, k, hits=True))


def top_k_sr(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, k: int = 5) -> float:
    """Sharpe ratio of the literature: mean over population standard deviation of top-k returns, times 15.87.

    The return of a date is the equal-weight mean label of the k highest forecasts, before costs. Intended for
    labels over one session.
    """
    top_T = _top_k_mean(forecast_TN, label_TN, k, hits=False)
    return icir(top_T) * LITERATURE_YEAR


def r2_oos(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray) -> float:
    """``1 - sum (y - f)^2 / sum y^2`` over all pairs, against a zero forecast (Gu, Kelly and Xiu 2020).

    It is meaningful only for forecasts in the label's unit, not for scores or ranks.
    """
    x_TN, y_TN = _pairs(forecast_TN, label_TN)
    return 1.0 - ratio(float(np.nansum((y_TN - x_TN) ** 2)), float(np.nansum(y_TN**2)))


def _pairs(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray) -> tuple[FloatArray, FloatArray]:
    """Return both as float64, NaN where either is NaN."""
    x_TN, y_TN = as_signal("forecast", forecast_TN), as_signal("label", label_TN)
    require_shape("the label", y_TN, x_TN.shape)
    unknown_TN = np.isnan(x_TN) | np.isnan(y_TN)
    x_TN[unknown_TN] = np.nan
    y_TN[unknown_TN] = np.nan
    return x_TN, y_TN


def _can_have_ic(label_TN: AnyFloatArray) -> BoolArray:
    """Flag the dates on which a complete forecast would have an IC. Shape (T,)."""
    can_T: BoolArray = ((~np.isnan(label_TN)).sum(axis=1) >= MIN_FIRMS) & ~is_constant(label_TN)
    return can_T


def _top_k_mean(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, k: int, *, hits: bool) -> FloatArray:
    """Mean label, or share of labels >= 0, of each date's k highest forecasts; NaN with fewer than k."""
    x_TN, y_TN = _pairs(forecast_TN, label_TN)
    if k < 1:
        msg = f"k is {k}; it must be at least 1 firm."
        raise ValueError(msg)
    selector = RankSelector(x_TN)
    value_TN = (y_TN >= 0).astype(np.float64) if hits else np.nan_to_num(y_TN)
    sum_T = (selector.highest(np.minimum(selector.count_T, k)) * value_TN).sum(axis=1)
    return np.where(selector.count_T >= k, sum_T / k, np.nan)
