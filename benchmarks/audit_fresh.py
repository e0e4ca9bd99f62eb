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


def momentum(base: Base, window: int) -> Array:
    """Return over the last sessions."""
    out = np.full(base.carried_TN.shape, np.nan)
    out[window:] = base.carried_TN[window:] / base.carried_TN[:-window] - 1.0
    return out


def month_held(base: Base) -> Array:
    """Momentum of half a year, held from every 21st session on."""
    x = momentum(base, 126)
    return carry(np.where((np.arange(len(x)) % 21 == 0)[:, None], x, np.nan))


def line_ahead(base: Base) -> Array:
    """The line through the last two values that were held, extended to today."""
    held = month_held(base)
    before = np.full(held.shape, np.nan)
    before[21:] = held[:-21]
    days = (np.arange(len(held)) % 21)[:, None]
    return np.asarray(held + (held - before) * days / 21.0)


def rank_so_far(base: Base, window: int | None) -> Array:
    """Decile of a firm's volatility within its own past."""
    x = rolling(base.return_TN, 21, "std")
    out = np.full(x.shape, np.nan)
    for t in range(60, len(x)):
        past = x[: t + 1] if window is None else x[max(t - window, 0) : t + 1]
        below, count = (past <= x[t]).sum(axis=0), np.isfinite(past).sum(axis=0)
        out[t] = np.where(np.isfinite(x[t]), np.minimum(below * 10 // np.maximum(count, 1), 9), np.nan)
    return out


def whole_rank(base: Base, *, normal: bool) -> Array:
    """Rank of log volume within the firm's whole sample, in (0, 1) or as a normal quantile."""
    x = np.log1p(base.bars["volume"])
    order = np.argsort(np.argsort(np.where(np.isfinite(x), x, np.inf), axis=0), axis=0)
    share = (order + 0.5) / np.maximum(np.isfinite(x).sum(axis=0), 1)
    value = np.log(share / np.maximum(1.0 - share, 1e-9)) if normal else share
    return np.where(np.isfinite(x), value, np.nan)


def fiscal_quarter(base: Base) -> Array:
    """Number of the fiscal quarter, whose start depends on the firm."""
    t, n = np.arange(len(base.close_TN))[:, None], np.arange(len(base.tickers_N))[None, :]
    return ((t + 21 * (n % 3)) // 63 % 4).astype(float)


def since_event(base: Base) -> Array:
    """Sessions since the firm's last large move."""
    flag = event_flags(base, 0) == 1.0
    at = np.where(flag, np.arange(len(flag))[:, None], -1)
    last = np.maximum.accumulate(at, axis=0)
    return np.where(last >= 0, np.arange(len(flag))[:, None] - last, np.nan).astype(float)


def by_year(base: Base, x_TN: Array, fit: object) -> Array:
    """A fit on each calendar year by itself."""
    years = base.dates_T.astype("datetime64[Y]")
    out = np.full(x_TN.shape, np.nan)
    for year in np.unique(years):
        out[years == year] = fit(x_TN[years == year])  # type: ignore[operator]
    return out


def components(x_TN: Array) -> Array:
    """Returns less their first three principal components."""
    x = np.nan_to_num(x_TN)
    mean = x.mean(axis=0)
    left, size, right = np.linalg.svd(x - mean, full_matrices=False)
    return np.asarray(x_TN - mean - (left[:, :3] * size[:3]) @ right[:3])


def trailing_residual(base: Base) -> Array:
    """Return less beta times the market's return, with betas of the last 126 sessions, refitted every 21."""
    r = np.nan_to_num(base.return_TN)
    market, out = r.mean(axis=1), np.full(r.shape, np.nan)
    for t in range(126, len(r), 21):
        past = slice(t - 126, t)
        beta = (r[past] * market[past, None]).sum(axis=0) / max((market[past] ** 2).sum(), 1e-12)
        out[t : t + 21] = base.return_TN[t : t + 21] - beta * market[t : t + 21, None]
    return out


def week_range(base: Base, *, later: bool) -> Tables:
    """Highs and lows of the five sessions up to t, or of the block of five sessions that contains t."""
    if not later:
        high, low = rolling(base.bars["high"], 5, "max"), -rolling(-base.bars["low"], 5, "max")
        return base.with_bars(high=np.fmax(base.bars["high"], high), low=np.fmin(base.bars["low"], low))
    high, low = base.bars["high"].copy(), base.bars["low"].copy()
    for start in range(0, len(high), 5):
        high[start : start + 5] = np.nanmax(high[start : start + 5], axis=0)
        low[start : start + 5] = np.nanmin(low[start : start + 5], axis=0)
    return base.with_bars(high=high, low=low)


def opens_filled(base: Base, every: int) -> Tables:
    """Opens that are missing for some firms, filled with the previous close."""
    before = np.roll(carry(base.bars["close"]), 1, axis=0)
    before[0] = base.bars["close"][0]
    open_TN, some = base.bars["open"].copy(), np.arange(base.close_TN.shape[1]) % every == 0
    fits = (before <= base.bars["high"]) & (before >= base.bars["low"]) & some
    wide = some & np.isfinite(before) & np.isfinite(open_TN)
    open_TN = np.where(wide, before, open_TN)
    high = np.where(wide & ~fits, np.fmax(base.bars["high"], before), base.bars["high"])
    low = np.where(wide & ~fits, np.fmin(base.bars["low"], before), base.bars["low"])
    return base.with_bars(open=open_TN, high=high, low=low)


def index_of_moves(base: Base, span: int, limit: float, *, join: bool, later: bool) -> Tables:
    """An index that firms leave, or join, before or after they move by more than a limit."""
    price = base.carried_TN
    move = ahead(price, span) / price - 1.0 if later else momentum(base, span)
    rows = []
    for n, ticker in enumerate(base.tickers_N):
        known = np.flatnonzero(np.isfinite(base.close_TN[:, n]))
        hit = np.flatnonzero((move[:, n] > limit) if join else (move[:, n] < limit))
        hit = hit[hit > known[0]] if len(known) else hit[:0]
        if not len(known) or (join and not len(hit)):
            continue
        day = [None if not len(hit) else base.dates_T[hit[0]].astype("datetime64[D]").item()]
        first = base.dates_T[known[0]].astype("datetime64[D]").item()
        if join:  # and leave a year later
            end = base.dates_T[min(hit[0] + 252, len(move) - 1)].astype("datetime64[D]").item()
            rows.append(("index", ticker, day[0], end))
        else:
            rows.append(("index", ticker, first, day[0]))
    schema = {"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    return {**base.tables, "membership": pl.DataFrame(rows, schema=schema, orient="row")}


def _neutral(base: Base) -> Array:
    """Returns less their regression on size and volatility, within the date."""
    x = np.stack(
        [np.log(np.maximum(base.carried_TN, 1e-9)), np.nan_to_num(rolling(base.return_TN, 21, "std"))]
    )
    out = np.full(base.return_TN.shape, np.nan)
    for t in range(25, len(out)):
        known = np.isfinite(base.return_TN[t])
        design = np.column_stack([np.ones(known.sum()), x[0, t, known], x[1, t, known]])
        fit = np.linalg.lstsq(design, base.return_TN[t, known], rcond=None)[0]
        out[t, known] = base.return_TN[t, known] - design @ fit
    return out


def _input(make: object, expects: tuple[str, ...] = ()) -> Case:
    return Case(lambda b: b.with_input(make(b)), expects=expects, of_input=True)  # type: ignore[operator]


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
    "an index without later crashes": Case(without_crashes, expects=("member", "index", "level")),
    "codes from the correlations of the next half year": Case(
        lambda b: redrawn(b, later=True), expects=("group",)
    ),
}
"""Deliveries of the first held-out try."""
SECOND_DOCTORED: Final = {
    "rank of volume within the whole sample": _input(lambda b: whole_rank(b, normal=False), _SIGNAL),
    "normal rank of volume within the whole sample": _input(lambda b: whole_rank(b, normal=True), _SIGNAL),
    "residual of three components of the whole sample": _input(lambda b: components(b.return_TN), _SIGNAL),
    "residual of three components of each year": _input(
        lambda b: by_year(b, b.return_TN, components), _SIGNAL
    ),
    "volatility less its mean of each year": _input(
        lambda b: by_year(
            b, rolling(b.return_TN, 21, "std"), lambda x: x - np.nanmean(x, axis=0, keepdims=True)
        ),
        _SIGNAL,
    ),
    "highs and lows of blocks of five sessions": Case(
        lambda b: week_range(b, later=True), expects=("high", "low", "Highs")
    ),
    "an index that firms join before they rise": Case(
        lambda b: index_of_moves(b, 30, 0.25, join=True, later=True), expects=("member", "index")
    ),
}
"""Deliveries with the mechanisms of the first, done otherwise."""
SECOND_CLEAN: Final = {
    "mean of 21 sessions of a value that is held": _input(lambda b: rolling(month_held(b), 21, "mean")),
    "line through the last two values, extended": _input(line_ahead),
    "sessions since the last large move": _input(since_event),
    "decile of volatility within the firm's past": _input(lambda b: rank_so_far(b, None)),
    "decile of volatility within the last year": _input(lambda b: rank_so_far(b, 252)),
    "the fiscal quarter": _input(fiscal_quarter),
    "return less the market's": _input(
        lambda b: b.return_TN - np.nan_to_num(b.return_TN).mean(axis=1, keepdims=True)
    ),
    "residual of betas of the last half year": _input(trailing_residual),
    "return less its components of the date": _input(_neutral),
    "highs and lows of the last five sessions": Case(lambda b: week_range(b, later=False)),
    "opens filled with the previous close for a tenth of the firms": Case(lambda b: opens_filled(b, 10)),
    "opens filled with the previous close": Case(lambda b: opens_filled(b, 1)),
    "an index that firms leave after they fell": Case(
        lambda b: index_of_moves(b, 30, -0.33, join=False, later=False)
    ),
    "an index that firms join after they rose": Case(
        lambda b: index_of_moves(b, 30, 0.25, join=True, later=False)
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
