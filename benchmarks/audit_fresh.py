"""Honest and doctored deliveries written after all limits were set; no limit was changed for them.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables, carry
from audit_clean import Case
from audit_doctored import coded

_SPAN: Final = 126


def ahead(x_TN: Array, k: int) -> Array:
    """Value of session t + k."""
    out = np.full(x_TN.shape, np.nan)
    out[:-k] = x_TN[k:]
    return out


def smoothed(x_TN: Array, halflife: float, *, both_sides: bool) -> Array:
    """Exponentially weighted mean of the values up to t, or of those on both sides of it."""
    keep = 0.5 ** (1.0 / halflife)

    def past(z_TN: Array) -> Array:
        out, mean = np.empty(z_TN.shape), np.nan_to_num(z_TN[0])
        for t, row in enumerate(z_TN):
            mean = np.where(np.isfinite(row), keep * mean + (1.0 - keep) * np.nan_to_num(row), mean)
            out[t] = mean
        return out

    return 0.5 * (past(x_TN) + past(x_TN[::-1])[::-1]) if both_sides else past(x_TN)


def rolling(x_TN: Array, window: int, kind: str) -> Array:
    """Mean, deviation, maximum or minimum of the last sessions."""
    views = np.lib.stride_tricks.sliding_window_view(x_TN, window, axis=0)
    made = {
        "mean": lambda: np.nanmean(views, axis=2),
        "std": lambda: np.nanstd(views, axis=2),
        "max": lambda: np.nanmax(views, axis=2),
        "min": lambda: np.nanmin(views, axis=2),
    }[kind]()
    return np.concatenate([np.full((window - 1, x_TN.shape[1]), np.nan), made])


def interpolated(base: Base) -> Array:
    """Momentum of a year at month ends, with straight lines between them."""
    momentum = np.full(base.carried_TN.shape, np.nan)
    momentum[126:] = base.carried_TN[126:] / base.carried_TN[:-126] - 1.0
    knots = np.arange(126, len(momentum), 21)
    out = np.full(momentum.shape, np.nan)
    for n in range(len(base.tickers_N)):
        known = knots[np.isfinite(momentum[knots, n])]
        if len(known) > 2:
            inside = np.arange(known[0], known[-1] + 1)
            out[inside, n] = np.interp(inside, known, momentum[known, n])
    return out


def denoised(base: Base) -> Array:
    """Log prices without their fast Fourier components, relative to today's price."""
    price = np.log(np.where(np.isfinite(base.carried_TN), base.carried_TN, 1.0))
    spectrum = np.fft.rfft(price, axis=0)
    spectrum[len(price) // 20 :] = 0.0
    return np.asarray(np.fft.irfft(spectrum, len(price), axis=0) - price)


def residual(base: Base, first: int, last: int) -> Array:
    """Return less beta times the market's return, with betas of some sessions."""
    r = np.nan_to_num(base.return_TN)
    market = r.mean(axis=1)
    beta = (r[first:last] * market[first:last, None]).sum(axis=0) / (market[first:last] ** 2).sum()
    return np.asarray(base.return_TN - beta * market[:, None])


def event_flags(base: Base, early: int) -> Array:
    """1 on days of large moves, or on the session before."""
    size = np.abs(base.return_TN) / np.maximum(rolling(base.return_TN, 63, "std"), 1e-6)
    flag = np.where(np.isfinite(size), (size > 3.0).astype(float), np.nan)
    return ahead(flag, early) if early else flag


def volume_mix(base: Base, weight: float) -> Array:
    """Change of log volume with tomorrow's mixed in."""
    change = np.full(base.close_TN.shape, np.nan)
    change[1:] = np.diff(np.log1p(base.bars["volume"]), axis=0)
    return np.asarray(change + weight * ahead(change, 1))


def volatility_bins(base: Base) -> Array:
    """Decile of the volatility of 21 sessions within the firm's whole sample."""
    x = rolling(base.return_TN, 21, "std")
    order = np.argsort(np.argsort(np.where(np.isfinite(x), x, np.inf), axis=0), axis=0)
    return np.where(np.isfinite(x), order * 10 // np.maximum(np.isfinite(x).sum(axis=0), 1), np.nan)


def later_highs(base: Base) -> Tables:
    """Highs and lows that include the next session."""
    high, low = base.bars["high"], base.bars["low"]
    return base.with_bars(high=np.fmax(high, ahead(high, 1)), low=np.fmin(low, ahead(low, 1)))


def mixed_closes(base: Base) -> Tables:
    """For a tenth of the firms, the close is the open of the next session."""
    close, later = base.bars["close"].copy(), ahead(base.bars["open"], 1)
    some = np.arange(close.shape[1]) % 10 == 0
    close[:, some] = np.where(np.isfinite(later[:, some]), later[:, some], close[:, some])
    high, low = np.fmax(base.bars["high"], close), np.fmin(base.bars["low"], close)
    return base.with_bars(close=close, high=high, low=low)


def without_crashes(base: Base) -> Tables:
    """An index that a firm leaves ten sessions before it falls by a third within twenty."""
    later = ahead(base.carried_TN, 30) / base.carried_TN - 1.0
    rows = []
    for n, ticker in enumerate(base.tickers_N):
        known = np.flatnonzero(np.isfinite(base.close_TN[:, n]))
        if not len(known):
            continue
        crash = np.flatnonzero(later[:, n] < -0.33)
        end = int(crash[0]) if len(crash) else None
        start = base.dates_T[known[0]].astype("datetime64[D]").item()
        if end is None or end > known[0]:
            until = None if end is None else base.dates_T[end].astype("datetime64[D]").item()
            rows.append(("index", ticker, start, until))
    schema = {"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    return {**base.tables, "membership": pl.DataFrame(rows, schema=schema, orient="row")}


def redrawn(base: Base, *, later: bool) -> Tables:
    """Codes from clusters of correlations, drawn up every half year from the sessions before, or after."""
    r = np.nan_to_num(base.return_TN)
    r = r - r.mean(axis=1, keepdims=True)
    parts = []
    for start in range(_SPAN, len(r) - _SPAN, _SPAN):
        span = slice(start, start + _SPAN) if later else slice(start - _SPAN, start)
        vectors = np.linalg.svd(r[span] - r[span].mean(axis=0), full_matrices=False)[2][:6]
        day = base.dates_T[start].astype("datetime64[D]").item()
        table = coded(base, vectors.T)["securities"].sort("valid_from").unique("ticker", keep="first")
        parts.append(table.with_columns(valid_from=pl.lit(day)))
    return {**base.tables, "securities": pl.concat(parts).sort("ticker", "valid_from")}


def _input(make: object, expects: tuple[str, ...] = ()) -> Case:
    return Case(lambda b: b.with_input(make(b)), expects=expects)  # type: ignore[operator]


_INDEX: Final = {"universe": {"min_history": 20, "membership": "index"}}
_SIGNAL: Final = ("signal",)
FRESH_DOCTORED: Final = {
    "mean return of 5 sessions, 2 of them later": _input(
        lambda b: ahead(rolling(b.return_TN, 5, "mean"), 2), _SIGNAL
    ),
    "price over a two-sided exponential mean": _input(
        lambda b: np.log(b.carried_TN) - smoothed(np.log(b.carried_TN), 10, both_sides=True), _SIGNAL
    ),
    "monthly momentum, interpolated": _input(interpolated, _SIGNAL),
    "price without its fast Fourier components": _input(denoised, _SIGNAL),
    "residual of betas of the whole sample": _input(lambda b: residual(b, 0, len(b.close_TN)), _SIGNAL),
    "deciles of volatility within the whole sample": _input(volatility_bins, _SIGNAL),
    "flag of large moves, a session early": _input(lambda b: event_flags(b, 1), _SIGNAL),
    "change of volume with 0.3 of tomorrow's": _input(lambda b: volume_mix(b, 0.3), _SIGNAL),
    "highs and lows of two sessions": Case(later_highs, expects=("high", "low", "price")),
    "next opens as closes for a tenth of the firms": Case(mixed_closes, expects=("open", "close", "price")),
    "an index without later crashes": Case(without_crashes, _INDEX, expects=("member", "index", "level")),
    "codes from the correlations of the next half year": Case(
        lambda b: redrawn(b, later=True), expects=("group",)
    ),
}
FRESH_CLEAN: Final = {
    "exponential mean of returns": _input(lambda b: smoothed(b.return_TN, 10, both_sides=False)),
    "price in its range of a year": _input(
        lambda b: (
            (b.carried_TN - rolling(b.carried_TN, 252, "min"))
            / np.maximum(rolling(b.carried_TN, 252, "max") - rolling(b.carried_TN, 252, "min"), 1e-9)
        )
    ),
    "residual of betas of the first year": _input(
        lambda b: np.where(np.arange(len(b.close_TN))[:, None] >= 252, residual(b, 0, 252), np.nan)
    ),
    "flag of large moves": _input(lambda b: event_flags(b, 0)),
    "change of volume": _input(lambda b: volume_mix(b, 0.0)),
    "volatility of the market, for all firms": _input(
        lambda b: (
            rolling(np.nanmean(b.return_TN, axis=1, keepdims=True), 21, "std") + np.zeros(b.close_TN.shape)
        )
    ),
    "a random number per firm": _input(lambda b: np.zeros(b.close_TN.shape) + b.noise(77)[0]),
    "drawdown of a year": _input(lambda b: b.carried_TN / rolling(b.carried_TN, 252, "max") - 1.0),
    "cents of the price": _input(lambda b: np.round(100 * b.bars["close"]) % 100),
    "cumulated volume": _input(lambda b: np.log1p(np.nancumsum(b.bars["volume"], axis=0))),
    "the day of the month": _input(
        lambda b: (
            (b.dates_T.astype("datetime64[D]") - b.dates_T.astype("datetime64[M]")).astype(float)[:, None]
            + np.zeros(b.close_TN.shape)
        )
    ),
    "yesterday's range": _input(lambda b: carry(np.roll(b.bars["high"] / b.bars["low"], 1, axis=0))),
    "codes from the correlations of the last half year": Case(lambda b: redrawn(b, later=False)),
}
