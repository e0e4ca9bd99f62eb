"""Characteristics against pandas and statsmodels on a market with holidays, halts and missing fields.

The scalar references of ``test_characteristics`` were written from the same formulas as the package. The
references here are other libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
from random_markets import DAYS, MAX_HALT, Tables, panel_of, random_tables
from statsmodels.regression.rolling import RollingOLS

from features.library.characteristics import CHARACTERISTICS
from features.panel.panel import Panel

STALE = pd.Timedelta(days=548)


@dataclass(frozen=True)
class Wide:
    """The market in pandas: one row per session and one column per firm."""

    panel: Panel
    close: pd.DataFrame
    carried: pd.DataFrame
    returns: pd.DataFrame
    market: pd.Series
    dollars: pd.DataFrame


@pytest.fixture(scope="module")
def tables() -> Tables:
    return random_tables(11)


@pytest.fixture(scope="module")
def wide(tables: Tables) -> Wide:
    panel = panel_of(tables)
    assert panel.volume_TN is not None
    days = pd.DatetimeIndex(DAYS)
    close = pd.DataFrame(panel.close_TN, index=days, columns=list(panel.tickers_N))
    carried = close.ffill(limit=MAX_HALT)
    returns = close / carried.shift(1) - 1
    dollars = pd.DataFrame(panel.raw_close_TN * panel.volume_TN, index=days, columns=close.columns)
    return Wide(panel, close, carried, returns, returns.mean(axis=1), dollars)


def half(window: int) -> int:
    return (window + 1) // 2


def regression(wide: Wide, window: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Slope on the market and standard error of the regression, of every firm and session."""
    slope, error = {}, {}
    for ticker in wide.returns:
        # statsmodels rolls over rows and drops missing ones, if enough rows remain
        fit = RollingOLS(
            wide.returns[ticker], sm.add_constant(wide.market), window, min_nobs=half(window), missing="drop"
        ).fit()
        slope[ticker], error[ticker] = fit.params.iloc[:, 1], np.sqrt(fit.mse_resid)
    return pd.DataFrame(slope), pd.DataFrame(error)


def known_assets(wide: Wide, tables: Tables) -> pd.DataFrame:
    """Total assets of the newest period that was filed by each session, while they are not stale."""
    filed = tables["fundamentals"].filter(pl.col("item") == "total_assets").to_pandas()
    out = {}
    for ticker in wide.close:
        own = filed[filed["ticker"] == ticker].sort_values(["known_at", "period_end"])
        newest = own[own["period_end"] >= own["period_end"].cummax()]
        newest = newest.assign(known_at=newest["known_at"].astype("datetime64[ns]"))
        sessions = pd.DataFrame({"known_at": wide.close.index.astype("datetime64[ns]")})
        row = pd.merge_asof(sessions, newest, on="known_at")
        fresh = sessions["known_at"] - row["period_end"] <= STALE
        out[ticker] = row["value"].where(fresh).to_numpy(dtype=float)
    return pd.DataFrame(out, index=wide.close.index)


def by_pandas(wide: Wide, tables: Tables, name: str) -> pd.DataFrame:
    r, carried, close, dollars = wide.returns, wide.carried, wide.close, wide.dollars
    if name.startswith(("beta_", "idiosyncratic_volatility_")):
        slope, error = regression(wide, int(name.rpartition("_")[2]))
        return slope if name.startswith("beta") else error
    if name == "log_total_assets":
        return pd.DataFrame(np.log(known_assets(wide, tables)))
    rolling_21, rolling_63 = r.rolling(21, min_periods=11), r.rolling(63, min_periods=32)
    rolling_252 = r.rolling(252, min_periods=126)
    n = rolling_63.count()
    before = pd.DataFrame({ticker: r[ticker].shift(1).where(r[ticker].notna()) for ticker in r})
    both = r.where(before.notna())
    formulas: dict[str, Callable[[], pd.DataFrame]] = {
        "return_21": lambda: carried.pct_change(21, fill_method=None),
        "lagged_return_3": lambda: r.shift(3),
        "momentum_252_21": lambda: carried.shift(21) / carried.shift(252) - 1,
        "high_distance_252": lambda: close / close.rolling(252, min_periods=126).max() - 1,
        "volatility_252": rolling_252.std,
        "maximum_return_21": rolling_21.max,
        # pandas corrects for bias, while the characteristics are ratios of population moments
        "skewness_63": lambda: rolling_63.skew() * (n - 2) / (n * (n - 1)) ** 0.5,
        "kurtosis_63": lambda: rolling_63.kurt() * (n - 2) * (n - 3) / (n * n - 1) + 3 * (n - 1) / (n + 1),
        "market_correlation_252": lambda: rolling_252.corr(wide.market),
        "autocorrelation_63": lambda: both.rolling(63, min_periods=32).corr(before),
        "dollar_volume_variation_63": lambda: (
            dollars.rolling(63, min_periods=32).std() / dollars.rolling(63, min_periods=32).mean()
        ),
        "log_dollar_volume_21": lambda: pd.DataFrame(np.log(dollars.rolling(21, min_periods=11).mean())),
        "amihud_21": lambda: 1e6 * (r.abs() / dollars.where(dollars > 0)).rolling(21, min_periods=11).mean(),
    }
    return formulas[name]()


NAMES = (
    *("return_21", "lagged_return_3", "momentum_252_21", "high_distance_252", "volatility_252"),
    *("maximum_return_21", "skewness_63", "kurtosis_63", "market_correlation_252", "autocorrelation_63"),
    *("dollar_volume_variation_63", "log_dollar_volume_21", "amihud_21", "log_total_assets"),
    *("beta_63", "beta_252", "idiosyncratic_volatility_21", "idiosyncratic_volatility_63"),
)


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # statsmodels divides by zero degrees of freedom in empty windows
@pytest.mark.parametrize("name", NAMES)
def test_characteristic_equals_pandas_or_statsmodels(wide: Wide, tables: Tables, name: str) -> None:
    ours: npt.NDArray[np.float64] = CHARACTERISTICS[name].compute(wide.panel)
    theirs = by_pandas(wide, tables, name).to_numpy()
    warm = wide.carried.shift(CHARACTERISTICS[name].warmup).notna() & wide.close.notna()
    expected = np.where(warm.to_numpy() & np.isfinite(theirs), theirs, np.nan)
    assert np.isfinite(expected).sum() > 3000
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-10)
