"""Signals for the tests of the look-ahead guard: honest ones, and ones that were doctored with the future.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, build_panel, to_panel
from pipelines.dataset.market import Market
from pipelines.lake.contracts import check
from pipelines.results.evaluate_signals import guard_table, place_signals
from pipelines.results.signal_file import SignalTable
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.source import SimulatedSource

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Ground:
    """What signals are made from: market, returns of single sessions, truth of a simulated market."""

    market: Market
    return_TN: Array
    truth_TN: Array | None
    seed: int

    @property
    def panel(self) -> Panel:
        return self.market.panel

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def ground(panel: Panel, truth_TN: Array | None, seed: int, min_history: int = 60) -> Ground:
    traded_TN = panel.traded_TN
    universe_TN = traded_TN & (np.cumsum(traded_TN, axis=0) >= min_history)
    market = Market(panel=panel, universe_TN=universe_TN, labels={}, notes=())
    index_TN = panel.total_return_index_TN
    return_TN = np.full(index_TN.shape, np.nan)
    return_TN[1:] = np.where(traded_TN[1:] & traded_TN[:-1], index_TN[1:] / index_TN[:-1] - 1.0, np.nan)
    return Ground(market, return_TN, truth_TN, seed)


def simulated_ground(seed: int, sessions: int = 1000, firms: int = 160) -> Ground:
    tables = SimulatedSource(MarketConfig(sessions=sessions, firms=firms), seed=seed).fetch().tables
    now = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    prices = tables["prices"].with_columns(
        pl.lit("simulated").alias("source"), pl.lit(now).dt.cast_time_unit("us").alias("ingested_at")
    )
    panel = build_panel(check("prices", prices).valid, tables["securities"], delisting_rule=DelistingRule())
    return ground(panel, to_panel(tables["truth_mu"], "mu", panel), seed)


def lagged(x_TN: Array, k: int) -> Array:
    """Row t holds row t-k; a negative k looks ahead."""
    out_TN = np.full(x_TN.shape, np.nan)
    if k >= 0:
        out_TN[k:] = x_TN[: len(x_TN) - k]
    else:
        out_TN[:k] = x_TN[-k:]
    return out_TN


def window(x_TN: Array, first: int, last: int) -> Array:
    """Mean over rows t+first to t+last; an unknown value counts as 0."""
    filled_TN = np.nan_to_num(x_TN)
    total_TN = sum(np.nan_to_num(lagged(filled_TN, -k)) for k in range(first, last + 1))
    return np.asarray(total_TN) / (last - first + 1)


def spread(x_TN: Array) -> Array:
    """Centre and scale each date."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(
            (x_TN - np.nanmean(x_TN, axis=1, keepdims=True)) / np.nanstd(x_TN, axis=1, keepdims=True)
        )


def noise(g: Ground, salt: int) -> Array:
    return np.random.default_rng([g.seed, salt]).standard_normal(g.return_TN.shape)


def ranked(x_TN: Array) -> Array:
    order_TN = np.argsort(np.argsort(np.where(np.isnan(x_TN), np.inf, x_TN), axis=1), axis=1)
    ranks_TN: Array = np.where(
        np.isnan(x_TN), np.nan, order_TN / np.maximum(np.isfinite(x_TN).sum(1, keepdims=True), 1)
    )
    return ranks_TN


def early_tenth(g: Ground) -> Array:
    signal_TN = window(g.return_TN, -20, 0)
    signal_TN[:, ::10] = lagged(signal_TN, -1)[:, ::10]
    return signal_TN


def backfilled(g: Ground) -> Array:
    """A weekly signal whose value also stands on the four sessions before it was made."""
    made_TN = window(g.return_TN, -4, 0)
    ahead_T = np.minimum(4 - np.arange(len(made_TN)) % 5 + np.arange(len(made_TN)), len(made_TN) - 1)
    signal_TN: Array = made_TN[ahead_T]
    return signal_TN


def full_sample_score(g: Ground) -> Array:
    value_TN = np.where(g.market.universe_TN, g.panel.close_TN, np.nan)
    return np.asarray((value_TN - np.nanmean(value_TN, axis=0)) / np.nanstd(value_TN, axis=0))


def over_maximum(g: Ground) -> Array:
    value_TN = np.where(g.market.universe_TN, window(np.nan_to_num(g.panel.close_TN), -4, 0), np.nan)
    return np.asarray(value_TN / np.nanmax(value_TN, axis=0))


def friday_peek(g: Ground) -> Array:
    weekday_T = (g.panel.dates_T.astype("datetime64[D]").astype(np.int64) + 3) % 7
    peek_TN = spread(lagged(g.return_TN, -1)) * 0.5 + noise(g, 1)
    return np.where((weekday_T == 4)[:, None], peek_TN, noise(g, 2))


def with_next_price(g: Ground) -> Array:
    return np.where(np.isfinite(lagged(g.return_TN, -1)), noise(g, 3), np.nan)


def only_winners(g: Ground) -> Array:
    later_TN = window(g.return_TN, 1, 10)
    return np.where(later_TN > np.median(later_TN, axis=1, keepdims=True), noise(g, 4), np.nan)


def restated_price(g: Ground) -> Array:
    index_TN = g.panel.total_return_index_TN
    last_N = len(index_TN) - 1 - np.argmax(g.panel.traded_TN[::-1], axis=0)
    firms_N = np.arange(index_TN.shape[1])
    return np.asarray(index_TN / index_TN[last_N, firms_N] * g.panel.raw_close_TN[last_N, firms_N])


def full_sample_pca(g: Ground) -> Array:
    """Residual reversal, with the loadings on three components of the whole sample."""
    r_TN = np.nan_to_num(spread(g.return_TN))
    loading_NK = np.linalg.svd(r_TN, full_matrices=False)[2][:3].T
    return np.asarray(r_TN @ loading_NK @ loading_NK.T - r_TN)


def score_of_the_horizon(g: Ground) -> Array:
    """The price in deviations from its mean over t-90 to t+10."""
    log_TN = np.log(g.panel.total_return_index_TN)
    mean_TN = window(log_TN, -90, 10)
    square_TN = window(log_TN**2, -90, 10) - mean_TN**2
    return np.asarray((log_TN - mean_TN) / np.sqrt(np.maximum(square_TN, 1e-12)))


def without(chosen: Callable[[Array], npt.NDArray[np.bool_]]) -> Callable[[Ground], Array]:
    """A random signal without the rows that are chosen by the next return."""

    def signal(g: Ground) -> Array:
        later_TN = np.where(g.market.universe_TN, lagged(g.return_TN, -1), np.nan)
        return np.where(chosen(later_TN), np.nan, noise(g, 13))

    return signal


DOCTORED: Mapping[str, Callable[[Ground], Array]] = {
    "tomorrow's return": lambda g: lagged(g.return_TN, -1),
    "centred average": lambda g: window(g.return_TN, -5, 5),
    "wide centred average": lambda g: window(g.return_TN, -20, 20),
    "full-sample z-score": full_sample_score,
    "divided by the firm's maximum": over_maximum,
    "one day early for a tenth of the firms": early_tenth,
    "slow momentum, one day early": lambda g: window(g.return_TN, -99, 1),
    "later volatility": lambda g: np.sqrt(window(g.return_TN**2, 1, 21)),
    "forward return with noise 0.3": lambda g: 0.3 * spread(window(g.return_TN, 1, 5)) + noise(g, 5),
    "forward return with noise 0.1": lambda g: 0.1 * spread(window(g.return_TN, 1, 5)) + noise(g, 6),
    "weekly signal, filled backwards": backfilled,
    "rank of the next close": lambda g: ranked(lagged(g.panel.raw_close_TN, -1)),
    "restated price": restated_price,
    "mean return of the firm": lambda g: np.broadcast_to(
        np.nanmean(g.return_TN, axis=0), g.return_TN.shape
    ).copy(),
    "rows with a price tomorrow": with_next_price,
    "rows of winners": only_winners,
    "peek on Fridays": friday_peek,
    "score over a window that holds the horizon": score_of_the_horizon,
    "without the worst thousandth of next returns": without(lambda x: x < np.nanquantile(x, 0.001)),
    "without the largest moves": without(lambda x: np.abs(x) > np.nanquantile(np.abs(x), 0.85)),
    "a twentieth of the rows are tomorrow's return": lambda g: np.where(
        np.random.default_rng(g.seed).random(g.return_TN.shape) < 0.05,
        lagged(g.return_TN, -1),
        0.02 * noise(g, 7),
    ),
    "weekly return, a day early on a tenth of the days": lambda g: np.where(
        np.random.default_rng(g.seed).random((len(g.return_TN), 1)) < 0.1,
        window(g.return_TN, -3, 1),
        window(g.return_TN, -4, 0),
    ),
    "z-score of a longer sample": lambda g: np.where(
        np.arange(len(g.return_TN))[:, None] > 300, full_sample_score(g), np.nan
    ),
}
"""Signals that know the future, and that the file alone gives away."""

HIDDEN: Mapping[str, Callable[[Ground], Array]] = {
    "faint next return": lambda g: 0.05 * np.nan_to_num(spread(lagged(g.return_TN, -1))) + noise(g, 8),
    "loadings of the whole sample": full_sample_pca,
}
"""Signals that know the future, and that nothing in the file gives away."""


def smooth(g: Ground) -> Array:
    """A slow firm characteristic: a random walk that is updated every 63 sessions, with a lag."""
    steps_TN = np.where((np.arange(len(g.return_TN)) % 63 == 40)[:, None], noise(g, 9), 0.0)
    return np.asarray(noise(g, 10)[:1] * 3 + np.cumsum(steps_TN, axis=0))


def dollar_volume(g: Ground) -> Array:
    assert g.panel.volume_TN is not None
    with np.errstate(divide="ignore"):
        return np.asarray(
            np.log(window(np.nan_to_num(g.panel.volume_TN * g.panel.raw_close_TN), -20, 0) + 1.0)
        )


def sparse_event(g: Ground) -> Array:
    """The sign of an unusual move, and 0 on most days."""
    usual_TN = np.sqrt(window(g.return_TN**2, -60, -1)) + 1e-4
    return np.where(np.abs(g.return_TN) > 3 * usual_TN, np.sign(g.return_TN), 0.0)


def liquid_half(g: Ground) -> Array:
    size_TN = dollar_volume(g)
    return np.where(size_TN > np.nanmedian(size_TN, axis=1, keepdims=True), noise(g, 11), np.nan)


def weekly_update(g: Ground) -> Array:
    made_TN = window(g.return_TN, -4, 0)
    return np.asarray(made_TN[np.arange(len(made_TN)) // 5 * 5])


CLEAN: Mapping[str, Callable[[Ground], Array]] = {
    "momentum": lambda g: window(g.return_TN, -120, -21),
    "short momentum": lambda g: window(g.return_TN, -20, 0),
    "reversal": lambda g: -g.return_TN,
    "weekly reversal": lambda g: -window(g.return_TN, -4, 0),
    "volatility": lambda g: np.sqrt(window(g.return_TN**2, -20, 0)),
    "volume": dollar_volume,
    "price": lambda g: np.log(g.panel.raw_close_TN),
    "random": lambda g: noise(g, 12),
    "sign of the last return": lambda g: np.sign(g.return_TN),
    "slow characteristic": smooth,
    "industry dummy": lambda g: np.where(g.panel.group_TN == 2, 1.0, 0.0),
    "sparse event": sparse_event,
    "rank of momentum": lambda g: ranked(window(g.return_TN, -60, 0)),
    "liquid half": liquid_half,
    "weekly update": weekly_update,
    "distance from the average price": lambda g: (
        g.panel.close_TN / np.maximum(window(np.nan_to_num(g.panel.close_TN), -19, 0), 1e-9)
    ),
}
"""Honest signals, which any market has."""


def truth(g: Ground) -> Array:
    """The true conditional mean of a simulated market: the strongest honest signal."""
    assert g.truth_TN is not None
    return g.truth_TN


def as_table(signals: Mapping[str, Array], g: Ground) -> SignalTable:
    """Rows where a signal is known and the firm trades, as a file would hold them."""

    def finite(value_R: Array) -> pl.Series:
        return pl.Series(np.where(np.isfinite(value_R), value_R, np.nan)).fill_nan(None)

    known_TN = np.any([np.isfinite(signal_TN) for signal_TN in signals.values()], axis=0) & g.panel.traded_TN
    t, n = np.nonzero(known_TN)
    rows = pl.DataFrame(
        {
            "date": g.panel.dates_T.astype("datetime64[D]")[t],
            "ticker": pl.Series(list(g.panel.tickers_N)).gather(n),
            **{name: finite(signal_TN[t, n]) for name, signal_TN in signals.items()},
        }
    )
    return SignalTable(Path("x.csv"), rows.with_columns(pl.col("date").cast(pl.Date)), ())


def findings(signals: Mapping[str, Array], g: Ground, horizon: int = 1) -> pl.DataFrame:
    """Guard table of signals in one file.

    Those with the same cells are next to each other: what the guard computes of the market is kept for them.
    """
    order = sorted(signals, key=lambda name: int(np.isfinite(signals[name])[g.panel.traded_TN].sum()))
    table = as_table({name: signals[name] for name in order}, g)
    return guard_table(table, place_signals(table, g.market, None), g.market, horizon)
