"""Doctored deliveries: inputs, prices, statements, codes and lists that know the future.

Every generator is a function of the market as it was known at a session, so that an earlier delivery of the
same vendor can be made (`Base.until`).

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables, carry
from audit_clean import (
    Case,
    by_volume,
    expanding_mean,
    group_mean,
    members,
    past,
    rank,
    statements,
    surprise,
    volatility,
)

from features.arithmetic.rolling import rolling_mean

Compute = Callable[[Base], Array]


def ahead(x_TN: Array, k: int = 1) -> Array:
    """Value k sessions later."""
    out = np.full_like(x_TN, np.nan)
    out[:-k] = x_TN[k:]
    return out


def _firms(base: Base, share: float) -> np.ndarray:
    drawn = np.random.default_rng((base.seed, 41)).random(len(base.tickers_N))
    return np.asarray(drawn <= np.sort(drawn)[max(round(share * len(drawn)), 2) - 1])


def early(x_TN: Array, base: Base, where: str) -> Array:
    """Deliver an input one session early, for some firms or on some sessions."""
    t = np.arange(len(x_TN))
    cells = {
        "5% of the firms": _firms(base, 0.05)[None, :],
        "20% of the firms": _firms(base, 0.20)[None, :],
        "10% of the days": (np.random.default_rng((base.seed, 42)).random(5000)[: len(x_TN)] < 0.1)[:, None],
        "after a date": (t > base.whole * 0.6)[:, None],
        "the last test fold": (t > base.whole * 0.88)[:, None],
    }[where]
    return np.where(np.broadcast_to(cells, x_TN.shape), ahead(x_TN), x_TN)


def forward_return(base: Base, days: int) -> Array:
    """Return over the next sessions."""
    return ahead(base.carried_TN, days) / base.carried_TN - 1.0


def mixed(base: Base, correlation: float) -> Array:
    """Noise with tomorrow's return mixed in."""
    later = ahead(base.return_TN)
    later = (later - np.nanmean(later, axis=1, keepdims=True) if len(later) else later) / 0.02
    later = np.clip(later / np.maximum(np.nanstd(later), 1e-9), -4, 4)
    return np.asarray(correlation * later + np.sqrt(1.0 - correlation**2) * base.noise(43))


def z_level(base: Base) -> Array:
    """Prices scaled by mean and deviation of the whole delivery."""
    x = base.close_TN
    return np.asarray((x - np.nanmean(x, axis=0)) / np.maximum(np.nanstd(x, axis=0), 1e-9))


def trimmed(base: Base) -> Array:
    """Prices scaled by mean and deviation of the whole delivery between its 5% quantiles."""
    low, high = np.nanquantile(base.close_TN, [0.05, 0.95], axis=0)
    inside = np.clip(base.close_TN, low, high)
    return np.asarray(
        (base.close_TN - np.nanmean(inside, axis=0)) / np.maximum(np.nanstd(inside, axis=0), 1e-9)
    )


def robust(base: Base) -> Array:
    """Prices scaled by median and interquartile range of the whole delivery."""
    low, middle, high = np.nanquantile(base.close_TN, [0.25, 0.5, 0.75], axis=0)
    return np.asarray((base.close_TN - middle) / np.maximum(high - low, 1e-9))


def blocks(base: Base, size: int = 252) -> Array:
    """Prices scaled between the lowest and highest close of their year."""
    out = np.full_like(base.close_TN, np.nan)
    for start in range(0, len(out), size):
        part = base.close_TN[start : start + size]
        low, high = np.nanmin(part, axis=0), np.nanmax(part, axis=0)
        out[start : start + size] = (part - low) / np.maximum(high - low, 1e-9)
    return out


def loadings(base: Base) -> Array:
    """Loadings on the second to fourth principal component of the whole delivery, summed."""
    returns = np.nan_to_num(base.return_TN)
    vectors = np.linalg.svd(returns - returns.mean(axis=0), full_matrices=False)[2][1:4]
    vectors = vectors * np.sign(vectors[:, :1])
    return np.tile(vectors.sum(axis=0), (len(returns), 1))


def encoded(base: Base, by: str) -> Array:
    """Mean of the next return over the whole delivery, by firm or by industry."""
    means = np.tile(np.nanmean(base.return_TN, axis=0), (len(base.return_TN), 1))
    return means if by == "firm" else group_mean(base, means)


def backfilled(base: Base, days: int = 63) -> Array:
    """The momentum that is known at a quarter's end, from its first session on."""
    out, x = np.full_like(base.close_TN, np.nan), past(base, days)
    for start in range(0, len(out), days):
        out[start : start + days] = x[min(start + days, len(out)) - 1]
    return out


def over_mean(base: Base) -> Array:
    """Prices over the mean of all so far."""
    return np.asarray(base.close_TN / expanding_mean(base.close_TN))


def noise(base: Base) -> Array:
    """Noise, on every session anew."""
    return base.noise(43)


_WHERE: Final = (
    "5% of the firms",
    "20% of the firms",
    "10% of the days",
    "after a date",
    "the last test fold",
)
INPUTS: Final[Mapping[str, tuple[Compute, Compute]]] = {
    **{
        f"{what}, one session early for {where}": (lambda b, f=f, where=where: early(f(b), b, where), f)  # type: ignore[misc]
        for what, f in {
            "5-day return": lambda b: past(b, 5),
            "price over average": lambda b: b.close_TN / rolling_mean(b.close_TN, 20, 20),
            "log volume": lambda b: np.log1p(b.bars["volume"]),
        }.items()
        for where in _WHERE
    },
    "return of the next 63 sessions": (lambda b: forward_return(b, 63), lambda b: past(b, 63)),
    "return of the next 126 sessions": (lambda b: forward_return(b, 126), lambda b: past(b, 126)),
    "volatility of the next 21 sessions": (
        lambda b: ahead(volatility(b, 21), 21),
        lambda b: volatility(b, 21),
    ),
    "volatility of the next 63 sessions": (
        lambda b: ahead(volatility(b, 63), 63),
        lambda b: volatility(b, 63),
    ),
    **{
        f"noise with tomorrow's return, {c}": (lambda b, c=c: mixed(b, c), noise)  # type: ignore[misc]
        for c in (0.02, 0.05, 0.08, 0.14)
    },
    "full-sample z-score, clipped": (lambda b: np.clip(z_level(b), -1.5, 1.5), over_mean),
    "full-sample z-score, demeaned by date": (
        lambda b: z_level(b) - np.nanmean(z_level(b), axis=1, keepdims=True),
        over_mean,
    ),
    "full-sample z-score, trimmed": (trimmed, over_mean),
    "full-sample z-score, robust": (robust, over_mean),
    "full-sample z-score, ranked by date": (lambda b: rank(z_level(b)), over_mean),
    "between minimum and maximum of the year": (blocks, over_mean),
    "loadings of the whole sample": (loadings, noise),
    "mean of the target by firm": (lambda b: encoded(b, "firm"), lambda b: expanding_mean(b.return_TN)),
    "mean of the target by industry": (
        lambda b: encoded(b, "industry"),
        lambda b: group_mean(b, expanding_mean(b.return_TN)),
    ),
    "filled back over a quarter": (backfilled, lambda b: past(b, 63)),
    "surprises at the period's end": (lambda b: surprise(b, 0), lambda b: surprise(b, 25)),
}
"""Name -> a doctored input and its honest twin."""


def _scaled_bars(base: Base, factor_TN: Array) -> dict[str, Array]:
    return {name: base.bars[name] * factor_TN for name in ("open", "high", "low", "close")}


def back_adjusted(base: Base) -> Tables:
    """Prices divided by all later dividends of 0.7% a quarter, and by a later split for a firm in four."""
    T, N = base.close_TN.shape
    factor = np.ones((T, N))
    for start in range(40, T, 63):
        factor[:start] *= 0.993
    for n in range(0, N, 4):
        factor[: int(200 + 17 * n) % max(T, 1), n] *= 0.5 if T > 900 else 1.0
    return base.with_bars(**_scaled_bars(base, factor))


def closed_backwards(base: Base) -> Tables:
    """Halts of 3 to 12 sessions, closed with the next price."""
    rng = np.random.default_rng((base.seed, 51))
    bars = {name: base.bars[name].copy() for name in ("open", "high", "low", "close")}
    for n in range(len(base.tickers_N)):
        for _ in range(4):
            start, size = int(rng.integers(30, 1000)), int(rng.integers(3, 13))
            if start + size >= len(base.close_TN):
                continue
            after = bars["close"][start + size, n]
            inside = np.isfinite(bars["close"][start : start + size, n]) & np.isfinite(after)
            for array in bars.values():
                part = array[start : start + size, n]
                array[start : start + size, n] = np.where(inside, after, part)
    return base.with_bars(**bars)


def winsorised_prices(base: Base) -> Tables:
    """Prices clipped at a firm's 2% quantiles of the whole delivery."""
    low, high = np.nanquantile(base.bars["close"], [0.02, 0.98], axis=0)
    return base.with_bars(
        **{name: np.clip(base.bars[name], low, high) for name in ("open", "high", "low", "close")}
    )


def winsorised_returns(base: Base) -> Tables:
    """Prices of returns that were clipped at a firm's 1% quantiles of the whole delivery."""
    low, high = np.nanquantile(base.return_TN, [0.01, 0.99], axis=0)
    clipped = np.clip(np.nan_to_num(base.return_TN), low, high)
    first = np.take_along_axis(
        base.bars["close"], np.isfinite(base.bars["close"]).argmax(axis=0)[None, :], axis=0
    )
    close = np.where(np.isfinite(base.bars["close"]), first * np.cumprod(1.0 + clipped, axis=0), np.nan)
    bars = {
        **_scaled_bars(base, close / base.bars["close"]),
        "close": close,
        "split_ratio": np.ones_like(close),
    }
    return base.with_bars(**bars)


def centred(base: Base, weight: float) -> Tables:
    """Closes averaged with their two neighbours."""
    c = base.close_TN
    before, after = np.roll(base.carried_TN, 1, axis=0), ahead(c)
    before[0] = c[0]
    mixed_TN = (1.0 - 2.0 * weight) * c + weight * before + weight * np.where(np.isfinite(after), after, c)
    ratio = mixed_TN / c
    close = base.bars["close"] * ratio
    high, low = np.fmax(base.bars["high"], close), np.fmin(base.bars["low"], close)
    return base.with_bars(close=close, high=high, low=low)


def next_open(base: Base) -> Tables:
    """The open of the next session, in the place of this session's."""
    o = ahead(base.bars["open"])
    o = np.where(np.isfinite(o), o, base.bars["close"])
    return base.with_bars(open=o, high=np.fmax(base.bars["high"], o), low=np.fmin(base.bars["low"], o))


def without_tails(base: Base) -> Tables:
    """Firms that are delisted, and whose last 15 sessions, with most of the fall, are cut off."""
    chosen = np.arange(len(base.tickers_N)) % 6 == 0
    bars = {name: base.bars[name].copy() for name in ("open", "high", "low", "close", "volume")}
    ends = {}
    for n in np.flatnonzero(chosen):
        end = 300 + 31 * n % 900
        if end >= len(base.dates_T):
            continue
        for array in bars.values():
            array[end - 15 :, n] = np.nan
        ends[base.tickers_N[n]] = base.dates_T[end].astype("datetime64[D]").item()
    tables = base.with_bars(**bars)
    gone = pl.DataFrame(
        {"ticker": list(ends), "end": list(ends.values())}, schema={"ticker": pl.String, "end": pl.Date}
    )
    firms = (
        base.tables["securities"]
        .drop("delisted_on")
        .join(gone, on="ticker", how="left")
        .rename({"end": "delisted_on"})
    )
    return {**tables, "securities": firms.select(base.tables["securities"].columns)}


def coded(base: Base, features_NK: Array, count: int = 12) -> Tables:
    """Industry codes from clusters of firms."""
    rng = np.random.default_rng(base.seed)
    points = (features_NK - features_NK.mean(axis=0)) / np.maximum(features_NK.std(axis=0), 1e-12)
    centre = points[rng.choice(len(points), count, replace=False)]
    for _ in range(30):
        code = ((points[:, None] - centre[None]) ** 2).sum(axis=2).argmin(axis=1)
        centre = np.stack(
            [points[code == k].mean(axis=0) if (code == k).any() else centre[k] for k in range(count)]
        )
    named = pl.DataFrame({"ticker": base.tickers_N, "code": [f"group {k:02}" for k in code]})
    firms = (
        base.tables["securities"]
        .join(named, on="ticker", how="left")
        .with_columns(industry=pl.col("code"), sector=pl.col("code"))
    )
    return {**base.tables, "securities": firms.select(base.tables["securities"].columns)}


def codes_of_correlations(base: Base) -> Tables:
    """Clusters of the correlations of the last two thirds of the delivery."""
    later = np.nan_to_num(base.return_TN[len(base.return_TN) // 3 :])
    later = later - later.mean(axis=1, keepdims=True)
    vectors = np.linalg.svd(later - later.mean(axis=0), full_matrices=False)[2][:8]
    return coded(base, vectors.T)


def codes_of_returns(base: Base) -> Tables:
    """Clusters of each firm's returns of quarters."""
    total = np.log(base.carried_TN[63::63]) - np.log(base.carried_TN[:-63:63][: len(base.carried_TN[63::63])])
    return coded(base, np.nan_to_num(np.nansum(total, axis=0, keepdims=True)).T)


def winners(base: Base, start: int) -> Array:
    """Return until the end of the delivery, or of two years."""
    end = min(start + 504, len(base.close_TN) - 1)
    return np.asarray(base.carried_TN[end] / base.carried_TN[start])


def survivors(base: Base) -> Tables:
    """Only firms that trade on the last session, beside two that do not."""
    last = np.isfinite(base.bars["close"][-1])
    leave = np.zeros(len(last), dtype=bool)
    leave[:2] = True
    bars = {
        name: np.where((last | leave)[None, :], base.bars[name], np.nan)
        for name in ("open", "high", "low", "close", "volume")
    }
    for array in bars.values():
        array[500:, :2] = np.nan
    return base.with_bars(**bars)


def ordered(base: Base) -> Tables:
    """Tickers renamed in the order of the total return."""
    first = base.carried_TN[np.isfinite(base.carried_TN).argmax(axis=0), np.arange(len(base.tickers_N))]
    order = np.argsort(-(base.carried_TN[-1] / first))
    new = pl.DataFrame(
        {"ticker": [base.tickers_N[n] for n in order], "code": [f"S{k:04}" for k in range(len(order))]}
    )
    return {
        name: frame.join(new, on="ticker").with_columns(ticker=pl.col("code")).select(frame.columns)
        for name, frame in base.tables.items()
        if name in ("prices", "securities")
    }


def at_period_end(base: Base, share: float = 0.4) -> Tables:
    """Statements of which some are dated on their period's end."""
    frame = statements(base, (30, 60))
    rng = np.random.default_rng((base.seed, 61))
    periods = frame.select("ticker", "period_end").unique().sort("ticker", "period_end")
    periods = periods.with_columns(early=pl.Series(rng.random(periods.height) < share))
    frame = frame.join(periods, on=["ticker", "period_end"]).with_columns(
        known_at=pl.when(pl.col("early") & ~pl.col("filing_id").str.ends_with("/A"))
        .then("period_end")
        .otherwise("known_at")
    )
    return {**base.tables, "fundamentals": frame.drop("early")}


def one_period_early(base: Base) -> Tables:
    """The values of the next quarter at the dates of this one."""
    frame = statements(base, (30, 60)).sort("ticker", "item", "period_end", "known_at")
    later = frame.with_columns(value=pl.col("value").shift(-1).over("ticker", "item")).drop_nulls("value")
    return {**base.tables, "fundamentals": later}


def overwritten(base: Base, share: float = 0.5) -> Tables:
    """Statements of which some amended values stand at the original date."""
    frame = statements(base, (30, 60), restated=0.15)
    rng = np.random.default_rng((base.seed, 62))
    key = ["ticker", "period_end", "item"]
    newest = frame.sort("known_at").group_by(key).agg(pl.col("value").last().alias("newest")).sort(key)
    newest = newest.with_columns(taken=pl.Series(rng.random(newest.height) < share))
    frame = frame.join(newest, on=key).with_columns(value=pl.when("taken").then("newest").otherwise("value"))
    return {**base.tables, "fundamentals": frame.drop("newest", "taken")}


DOCTORED: Final[Mapping[str, Case]] = {
    **{
        name: Case(lambda b, f=pair[0]: b.with_input(f(b)), expects=("signal",), of_input=True, pair=pair)  # type: ignore[misc]
        for name, pair in INPUTS.items()
    },
    "prices adjusted with later dividends and splits": Case(back_adjusted, expects=("adjusted",)),
    "gaps closed backwards": Case(closed_backwards, expects=("Backfilled", "repeated", "gap")),
    "prices winsorised at quantiles of the sample": Case(
        winsorised_prices, expects=("clipped", "maximum", "minimum")
    ),
    "returns winsorised at quantiles of the sample": Case(winsorised_returns, expects=("clipped",)),
    "a centred average, weight 0.1": Case(lambda b: centred(b, 0.1), expects=("average", "smooth")),
    "a centred average, weight 0.2": Case(lambda b: centred(b, 0.2), expects=("average", "smooth")),
    "the open of the next session": Case(next_open, expects=("open",)),
    "tails before delistings cut off": Case(without_tails, expects=("delist",)),
    "codes of later correlations": Case(codes_of_correlations, expects=("group", "industr", "sector")),
    "codes of later returns": Case(codes_of_returns, expects=("group", "industr", "sector")),
    "a universe of later winners": Case(lambda b: members(b, winners), expects=("member", "index")),
    "survivors beside two leavers": Case(survivors, expects=("urvivor",)),
    "tickers in the order of returns": Case(ordered, expects=("icker",)),
    "40% of statements at their period's end": Case(at_period_end, expects=("period",)),
    "statements one period early": Case(one_period_early, expects=("tatement", "fundamentals")),
    "half of the restatements overwritten": Case(overwritten, expects=("estate", "fundamentals", "original")),
}
__all__ = ["DOCTORED", "by_volume", "carry", "dt"]
