"""Metrics of forecasts against labels. For metrics of books, see `backtest.accounts.performance`.

A (date, firm) pair is used if both forecast and label are known. A date without a value for a metric is NaN
in the metric's series and is left out of its mean; a metric without any date is NaN. Correlations within a
date are those of `features.information_coefficient`, which early stopping also uses: a constant forecast has
an IC of 0. Where a metric selects firms by forecast, ties share equally (`backtest.forecasts.daily`), which
is the expectation over a random order of the tied firms. ICIR, precision at k and top-k SR follow the
definitions that are common for the Nasdaq benchmark of Feng et al. 2019.

Shape suffixes: T dates, N firms, Q quantiles.
"""

import math
from dataclasses import dataclass

import numpy as np

from backtest.accounts.performance import ratio
from backtest.forecasts.daily import DailyMetrics, SortedPanel, daily_metrics
from backtest.inference.means import newey_west_lags, newey_west_t
from features.arrays import AnyFloatArray, FloatArray
from features.information_coefficient import MIN_FIRMS, mean_known
from features.panel.periods import SESSIONS_PER_YEAR

ROUNDING = 1e-12
_QUANTILES = 5


@dataclass(frozen=True, slots=True, eq=False)
class ForecastMetrics:
    """Quality of forecasts against labels.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(20, 8))
    >>> forecast_metrics(x, 0.01 * x).coverage_firms
    1.0
    """

    n_dates: int
    n_pairs: int
    """`n_dates`, `n_pairs`: number of dates with an IC, and of pairs of forecast and label."""
    coverage_dates: float
    """``n_dates`` as a share of the dates whose labels allow an IC (3 firms or more, not constant)."""
    coverage_firms: float
    """Share of firms with a forecast among the firms with a label, on the ``n_dates`` dates."""
    tied: float
    """Share of the pairs whose forecast equals another forecast of the same date."""
    ic: float
    icir: float
    ic_t: float
    """`ic`, `icir`, `ic_t`: mean of the daily Pearson correlations ``ic_T``, that mean over their population
    standard deviation, and the Newey-West t-statistic of the mean."""
    rank_ic: float
    rank_icir: float
    rank_ic_t: float
    """`rank_ic`, `rank_icir`, `rank_ic_t`: the same with Spearman correlation (average ranks)."""
    lags: int
    """Newey-West lags used."""
    precision_at_10: float
    """Share of the 10 highest forecasts whose label is at least zero, averaged over dates."""
    literature_sr: float
    """Sharpe ratio of the literature: mean over population standard deviation of the equal-weight label of
    the 5 highest forecasts, times the root of the periods per year to two decimals (15.87, as in published
    tables), before costs. Intended for labels over one session."""
    r2_oos: float
    """Out-of-sample R2 against a zero forecast."""
    quantile_returns: tuple[float, ...]
    """Mean label of each forecast quantile, lowest forecasts first."""
    monotonicity: float
    """Spearman correlation of quantile number and mean label."""
    ic_T: FloatArray
    rank_ic_T: FloatArray
    """`ic_T`, `rank_ic_T`: the daily series."""


def forecast_metrics(
    forecast: AnyFloatArray | SortedPanel,
    label: AnyFloatArray | SortedPanel,
    *,
    horizon: int = 1,
    periods_per_year: float = SESSIONS_PER_YEAR,
) -> ForecastMetrics:
    """Compute all metrics of forecasts against labels.

    NaN is unknown. Coverage is measured against the known labels, so pass the labels of all dates and firms
    that should have a forecast. Sort a panel that is used more than once
    (`backtest.forecasts.daily.SortedPanel`). A label spans ``horizon`` sessions; overlapping labels need at
    least ``horizon - 1`` Newey-West lags. A metric that is undefined is NaN. ValueError if shapes differ, a
    value is infinite, or no pair has both forecast and label.

    Examples
    --------
    >>> forecast, noise = np.random.default_rng(0).normal(size=(2, 250, 50))
    >>> found = forecast_metrics(forecast, 0.1 * forecast + noise)
    >>> round(found.ic, 2), round(found.ic_t, 1)
    (0.1, 11.8)
    """
    forecast = forecast if isinstance(forecast, SortedPanel) else SortedPanel("forecast", forecast)
    label = label if isinstance(label, SortedPanel) else SortedPanel("label", label)
    daily = daily_metrics(forecast, label, quantiles=_QUANTILES, hits=10, top=5)
    n_pairs = int(daily.pairs_T.sum())
    if not n_pairs:
        raise ValueError("No forecast has a label: choose dates whose labels end inside the data.")
    known_T = ~np.isnan(daily.ic_T)
    n_dates = int(known_T.sum())
    lags = max(horizon - 1, newey_west_lags(n_dates))
    quantile_Q = mean_quantiles(daily)
    lowest_T = np.fmin.reduce(label.x_TN, axis=1, initial=np.inf)
    varies_T = np.fmax.reduce(label.x_TN, axis=1, initial=-np.inf) > lowest_T
    return ForecastMetrics(
        n_dates=n_dates,
        n_pairs=n_pairs,
        coverage_dates=ratio(n_dates, int((varies_T & (label.count_T >= MIN_FIRMS)).sum())),
        coverage_firms=ratio(int(daily.pairs_T[known_T].sum()), int(label.count_T[known_T].sum())),
        tied=int(daily.tied_T.sum()) / n_pairs,
        ic=mean_known(daily.ic_T),
        icir=icir(daily.ic_T),
        ic_t=newey_west_t(daily.ic_T, lags),
        rank_ic=mean_known(daily.rank_ic_T),
        rank_icir=icir(daily.rank_ic_T),
        rank_ic_t=newey_west_t(daily.rank_ic_T, lags),
        lags=lags,
        precision_at_10=mean_known(daily.hits_T),
        literature_sr=icir(daily.top_T) * round(math.sqrt(periods_per_year), 2),
        r2_oos=_r2(daily),
        quantile_returns=tuple(quantile_Q.tolist()),
        monotonicity=monotonicity(quantile_Q),
        ic_T=daily.ic_T,
        rank_ic_T=daily.rank_ic_T,
    )


def icir(ic_T: FloatArray) -> float:
    """Mean of a series of ICs over its population standard deviation; not annualised.

    NaN if the series varies only by rounding, as for a perfect forecast.

    Examples
    --------
    >>> round(icir(np.array([0.02, 0.04, np.nan])), 3)
    3.0
    """
    known_T = ic_T[~np.isnan(ic_T)]
    deviation = float(known_T.std()) if len(known_T) else 0.0
    return ratio(mean_known(known_T), deviation if deviation > ROUNDING else 0.0)


def quantile_returns(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray, q: int = 5) -> FloatArray:
    """Mean over dates of the equal-weight label of each forecast quantile, shape (Q,), lowest first.

    `backtest.forecasts.daily.daily_metrics` defines the quantiles. Dates with fewer than q pairs are skipped.

    Examples
    --------
    >>> quantile_returns(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.01, 0.03, 0.03, 0.05]]), q=2)
    array([0.02, 0.04])
    """
    forecast, label = SortedPanel("forecast", forecast_TN), SortedPanel("label", label_TN)
    return mean_quantiles(daily_metrics(forecast, label, quantiles=q))


def mean_quantiles(daily: DailyMetrics) -> FloatArray:
    """Mean over dates of the mean label of each quantile, shape (Q,); NaN without a date that has enough."""
    return np.array([mean_known(mean_T) for mean_T in daily.quantile_TQ.T])


def monotonicity(quantile_Q: FloatArray) -> float:
    """Spearman correlation of quantile number and mean label: 1 if the means rise throughout.

    NaN if a mean is NaN or all means are equal. Means that differ only by rounding, as for a constant
    forecast, count as equal.

    Examples
    --------
    >>> monotonicity(np.array([-0.01, 0.0, 0.02]))
    1.0
    """
    if np.isnan(quantile_Q).any() or not quantile_Q.any():
        return math.nan
    mean_Q = np.round(quantile_Q / np.abs(quantile_Q).max(), 12)
    if mean_Q.min() == mean_Q.max():
        return math.nan
    rank_Q = (mean_Q[:, None] > mean_Q).sum(axis=1) + 0.5 * (mean_Q[:, None] == mean_Q).sum(axis=1)
    return float(np.corrcoef(np.arange(len(mean_Q)), rank_Q)[0, 1])


def r2_oos(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray) -> float:
    """``1 - sum (y - f)^2 / sum y^2`` over all pairs, against a zero forecast (Gu, Kelly and Xiu 2020).

    It is meaningful only for forecasts in the label's unit, not for scores or ranks.

    Examples
    --------
    >>> r2_oos(np.array([[0.01, -0.01]]), np.array([[0.02, -0.02]]))
    0.75
    """
    forecast, label = SortedPanel("forecast", forecast_TN), SortedPanel("label", label_TN)
    return _r2(daily_metrics(forecast, label))


def _r2(daily: DailyMetrics) -> float:
    return 1.0 - ratio(float(daily.squared_error_T.sum()), float(daily.squared_label_T.sum()))
