"""Where alphalens-reloaded defines a metric as Peerglass does, the numbers are equal; the rest is shown here.

`docs/backtesting.md` explains the differences. The references in `test_daily.py` need no other library.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from random_markets import panel_of, random_tables

from backtest.forecasts.daily import DailyMetrics, SortedPanel, daily_metrics, persistence
from features.panel.holding import bought_return, forward_returns, holder_market, tradable

T, N, H = 40, 60, 3


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Alphalens uses what pandas deprecates, and seaborn is imported with warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def market(seed: int, firms: int) -> tuple[np.ndarray, np.ndarray]:
    """Prices without gaps, and a persistent signal of ``firms`` of N firms on every date but the last H."""
    rng = np.random.default_rng(seed)
    price_TN = 20 * np.exp(np.cumsum(rng.normal(0, 0.02, (T, N)), axis=0))
    signal_TN = np.cumsum(rng.normal(size=(T, N)), axis=0)
    left_out_TN = np.argsort(rng.random((T, N)), axis=1) >= firms
    signal_TN[left_out_TN] = np.nan
    signal_TN[-H:] = np.nan  # alphalens leaves out signals without a return
    return price_TN, signal_TN


def forward(price_TN: np.ndarray, horizon: int, delay: int = 0) -> np.ndarray:
    """Labels of firms that trade on every session and are never delisted."""
    traded_TN = np.ones(price_TN.shape, dtype=np.bool_)
    label_TN = np.full(price_TN.shape, np.nan)
    earned_TN = bought_return(holder_market(price_TN, traded_TN, ~traded_TN), horizon)[delay:]
    label_TN[: len(earned_TN)] = earned_TN
    return label_TN


def frames(price_TN: np.ndarray, signal_TN: np.ndarray) -> tuple[pd.Series, pd.DataFrame]:
    """Convert to alphalens' inputs: a factor by date and asset, and prices."""
    days = pd.bdate_range("2020-01-01", periods=T)
    names = [f"F{n:03}" for n in range(N)]
    index = pd.MultiIndex.from_product([days, names], names=["date", "asset"])
    return pd.Series(signal_TN.ravel(), index).dropna(), pd.DataFrame(price_TN, days, names)


def alphalens(price_TN: np.ndarray, signal_TN: np.ndarray, periods: tuple[int, ...] = (H,)) -> Any:  # noqa: ANN401  # untyped
    """Alphalens' metrics; the dates without a signal are left out."""
    from alphalens import performance, utils

    factor, prices = frames(price_TN, signal_TN)
    clean = utils.get_clean_factor_and_forward_returns(factor, prices, periods=periods, max_loss=1.0)
    means, _ = performance.mean_return_by_quantile(clean, by_date=True, demeaned=False)
    quantile = clean["factor_quantile"]
    return SimpleNamespace(
        clean=clean,
        ic=performance.factor_information_coefficient(clean),
        quantiles=means,
        mean_by_quantile=performance.mean_return_by_quantile(clean, demeaned=False)[0],
        autocorrelation=performance.factor_rank_autocorrelation(clean).to_numpy(),
        turnover={q: performance.quantile_turnover(quantile, q).to_numpy() for q in (1, 5)},
    )


def ours(label_TN: np.ndarray, signal_TN: np.ndarray) -> DailyMetrics:
    return daily_metrics(SortedPanel("signal", signal_TN), SortedPanel("label", label_TN))


@pytest.mark.parametrize("firms", [60, 55, 50, 51])
def test_ic_quantile_returns_and_turnover_are_equal(firms: int) -> None:
    price_TN, signal_TN = market(firms, firms)
    theirs, mine = alphalens(price_TN, signal_TN), ours(forward(price_TN, H), signal_TN)
    dates = T - H
    label = f"{H}D"
    assert len(theirs.ic) == dates
    np.testing.assert_allclose(mine.rank_ic_T[:dates], theirs.ic[label], rtol=0, atol=1e-12)
    means_TQ = theirs.quantiles[label].unstack(0).to_numpy()
    persistent = persistence(SortedPanel("signal", signal_TN[:dates]), (1,))[1]
    np.testing.assert_allclose(
        persistent.rank_autocorrelation_T, theirs.autocorrelation[1:], rtol=0, atol=1e-12
    )
    if firms % 5 == 0:
        np.testing.assert_allclose(mine.quantile_TQ[:dates], means_TQ, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            mine.quantile_TQ[:dates].mean(axis=0), theirs.mean_by_quantile[label], rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(persistent.top_turnover_T, theirs.turnover[5][1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose(persistent.bottom_turnover_T, theirs.turnover[1][1:], rtol=0, atol=1e-12)
        assert persistent.top_turnover_T.max() > 0.2


def test_tied_signals_have_the_same_ic() -> None:
    price_TN, signal_TN = market(3, 60)
    signal_TN = np.round(2 * signal_TN)
    theirs, mine = alphalens(price_TN, signal_TN), ours(forward(price_TN, H), signal_TN)
    assert mine.tied_T[: T - H].min() > 20
    np.testing.assert_allclose(mine.rank_ic_T[: T - H], theirs.ic[f"{H}D"], rtol=0, atol=1e-12)


def test_ties_at_an_edge_go_to_the_lower_quantile_there_and_are_shared_here() -> None:
    from alphalens import utils

    price_TN, signal_TN = market(3, 60)
    signal_TN = np.round(signal_TN)
    sizes = alphalens(price_TN, signal_TN).clean.groupby(["date", "factor_quantile"], observed=True).size()
    assert sizes.min() < 12 < sizes.max()  # ours always hold 60 / 5
    rating_TN = np.where(np.isfinite(signal_TN), np.arange(N) % 3, np.nan)
    assert not np.isnan(ours(forward(price_TN, H), rating_TN).quantile_TQ[: T - H]).any()
    factor, prices = frames(price_TN, rating_TN)
    with pytest.raises(ValueError, match="Bin edges must be unique"):
        utils.get_clean_factor_and_forward_returns(factor, prices, periods=(H,), max_loss=0.0)


@pytest.mark.parametrize("firms", [52, 53, 54])
def test_with_other_numbers_of_firms_an_edge_lies_one_firm_lower_at_most(firms: int) -> None:
    price_TN, signal_TN = market(firms, firms)
    sizes = alphalens(price_TN, signal_TN).clean.groupby(["date", "factor_quantile"], observed=True).size()
    theirs_Q = np.cumsum(sizes.to_numpy().reshape(-1, 5)[0])
    order_TN = np.where(np.isfinite(signal_TN), np.argsort(np.argsort(signal_TN, axis=1), axis=1), np.nan)
    mean_Q = ours(order_TN, signal_TN).quantile_TQ[0]  # the firms of a quantile are neighbours in the order
    ours_Q, edge = [], 0.0
    for mean in mean_Q:  # (edge + (next edge - 1)) / 2
        edge = 2 * mean + 1 - edge
        ours_Q.append(edge)
    np.testing.assert_allclose(ours_Q, np.round(ours_Q), rtol=0, atol=1e-9)
    assert set(np.round(ours_Q).astype(int) - theirs_Q) == {0, 1}


def test_their_forward_return_is_our_label_at_delay_0() -> None:
    price_TN, signal_TN = market(0, 60)
    theirs = alphalens(price_TN, signal_TN, (1, H)).clean
    for horizon in (1, H):
        label_TN = forward(price_TN, horizon)[: T - H]
        np.testing.assert_allclose(theirs[f"{horizon}D"].to_numpy(), label_TN.ravel(), rtol=0, atol=1e-12)
    later = np.roll(price_TN, -1, axis=0)  # a delay of 1 is a price that is known one session later
    later[-1] = np.nan
    delayed = alphalens(later, np.where(np.arange(T)[:, None] < T - H - 1, signal_TN, np.nan), (H,)).clean
    np.testing.assert_allclose(
        delayed[f"{H}D"].to_numpy(), forward(price_TN, H, delay=1)[: T - H - 1].ravel(), rtol=0, atol=1e-12
    )


def test_their_longer_horizon_drops_signals_from_the_shorter_one() -> None:
    price_TN, signal_TN = market(1, 60)
    signal_TN[-H:-1] = signal_TN[-H - 1]  # their returns over one session are known
    both = alphalens(price_TN, signal_TN, (1, H)).ic["1D"].dropna()
    alone = alphalens(price_TN, signal_TN, (1,)).ic["1D"].dropna()
    known = int((~np.isnan(ours(forward(price_TN, 1), signal_TN).ic_T)).sum())
    assert (len(both), len(alone)) == (T - H, T - 1)
    assert known == T - 1


def test_their_default_quantile_returns_are_demeaned_and_the_spread_is_the_same() -> None:
    from alphalens import performance

    price_TN, signal_TN = market(2, 60)
    theirs = alphalens(price_TN, signal_TN).clean
    raw, demeaned = (
        performance.mean_return_by_quantile(theirs, demeaned=flag)[0][f"{H}D"].to_numpy()
        for flag in (False, True)
    )
    assert np.abs(raw - demeaned).max() > 1e-6
    mine_Q = ours(forward(price_TN, H), signal_TN).quantile_TQ[: T - H].mean(axis=0)
    np.testing.assert_allclose(mine_Q[-1] - mine_Q[0], demeaned[-1] - demeaned[0], rtol=0, atol=1e-12)


def test_their_spread_is_half_of_ours() -> None:
    from alphalens import performance

    price_TN, signal_TN = market(2, 60)
    theirs = alphalens(price_TN, signal_TN)
    half, _ = performance.compute_mean_returns_spread(theirs.quantiles, 5, 1)
    mine_TQ = ours(forward(price_TN, H), signal_TN).quantile_TQ[: T - H]
    np.testing.assert_allclose(2 * half[f"{H}D"], mine_TQ[:, -1] - mine_TQ[:, 0], rtol=0, atol=1e-12)


def test_a_constant_signal_has_an_ic_of_0_here_and_none_there() -> None:
    from alphalens import performance, utils

    price_TN, signal_TN = market(2, 60)
    signal_TN[np.isfinite(signal_TN)] = 1.0
    factor, prices = frames(price_TN, signal_TN)
    returns = utils.compute_forward_returns(factor, prices, periods=(H,))
    theirs = performance.factor_information_coefficient(returns.assign(factor=factor))
    assert theirs[f"{H}D"].isna().all()
    assert len(theirs) == T - H
    assert (ours(forward(price_TN, H), signal_TN).rank_ic_T[: T - H] == 0).all()


def test_gaps_halts_a_delisting_splits_and_dividends_change_no_definition() -> None:
    """On a market with all of them, for firms that can be bought at t; prices there are the index."""
    from alphalens import performance, utils

    panel = panel_of(random_tables(5))
    first, last, horizon, q = 400, 700, 25, 3  # a firm counts as delisted after 20 sessions
    dates = slice(first, last)
    label_TN = forward_returns(panel, 0, horizon)
    signal_TN = np.cumsum(np.random.default_rng(5).normal(size=label_TN.shape), axis=0)
    signal_TN[~tradable(panel) | np.isnan(label_TN)] = np.nan
    held_TN = np.isfinite(signal_TN[dates])
    assert (~panel.traded_TN[first + horizon : last + horizon] & held_TN).any()  # halted at the end
    assert (panel.delisted_TN[first + horizon : last + horizon] & held_TN).any()
    days = pd.DatetimeIndex(panel.dates_T)
    index = pd.MultiIndex.from_product([days[dates], panel.tickers_N], names=["date", "asset"])
    clean = utils.get_clean_factor_and_forward_returns(
        pd.Series(signal_TN[dates].ravel(), index).dropna(),
        pd.DataFrame(panel.total_return_index_TN, days, panel.tickers_N),
        periods=(horizon,),
        quantiles=q,
        max_loss=0.0,
    )
    (name,) = utils.get_forward_returns_columns(clean.columns)
    np.testing.assert_allclose(clean[name], label_TN[dates][held_TN], rtol=0, atol=1e-12)
    signal = SortedPanel("signal", signal_TN[dates])
    mine = daily_metrics(signal, SortedPanel("label", label_TN[dates]), quantiles=q)
    theirs = performance.factor_information_coefficient(clean)[name]
    np.testing.assert_allclose(mine.rank_ic_T, theirs, rtol=0, atol=1e-12)
    autocorrelation = performance.factor_rank_autocorrelation(clean).to_numpy()[1:]
    kept = persistence(signal, (1,), quantiles=q)[1]
    np.testing.assert_allclose(kept.rank_autocorrelation_T, autocorrelation, rtol=0, atol=1e-12)
    means, _ = performance.mean_return_by_quantile(clean, by_date=True, demeaned=False)
    even_T = mine.pairs_T % q == 0
    assert 20 < even_T.sum() < len(even_T)
    np.testing.assert_allclose(
        mine.quantile_TQ[even_T], means[name].unstack(0).to_numpy()[even_T], rtol=0, atol=1e-12
    )
    turnover = performance.quantile_turnover(clean["factor_quantile"], q).to_numpy()[1:]
    both_T = even_T[1:] & even_T[:-1]
    np.testing.assert_allclose(kept.top_turnover_T[both_T], turnover[both_T], rtol=0, atol=1e-12)
    assert both_T.sum() > 5
