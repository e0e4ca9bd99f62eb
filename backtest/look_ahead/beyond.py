"""What a signal says beyond past prices, and whether later returns know it too.

A z-score, a place in a range, a smoothed price or a value that was filled backwards is nearly a function of
past prices, so that its IC with later returns is small even if its window ends after its date. What is left
once past prices have explained all they can is then mostly the part of the window that was not known. For an
honest signal it is known at t, however it was made, and no forecast that is known at t has a higher IC than
`backtest.look_ahead.returns` allows.

Shape suffixes: T sessions, N firms, D sampled dates of the signal, K functions of past prices, M cells.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result
from backtest.look_ahead.news import is_common
from backtest.look_ahead.returns import (
    LAGS,
    MIN_FIRMS,
    Standardised,
    correlations,
    highest,
    judged,
    over_spans,
    sample_dates,
    standardise,
)
from features.arithmetic.rolling import carry, rolling_max, rolling_mean
from features.arrays import BoolArray, Float32Array, FloatArray, IntArray

WINDOWS: Final = (3, 5, 10, 20, 30, 45, 60, 90, 120, 180, 250)
"""Sessions of the functions of past prices. Between them, functions of other windows are interpolated."""
_RECENT: Final = 4  # single returns
_FIRMS: Final = 400  # firms that a signal of more is explained for
_EARLIER: Final = 21  # dates of the signal over which its change is explained
_CELLS_PER_FUNCTION: Final = 20
_STEPS: Final = 40  # of the step function from what past prices explain to the signal
_RIDGE: Final = 1e-6
_FLAT: Final = 1e-9


def check(data: Delivery) -> Result:
    """Explain every input by past prices, and compare what is left with later returns."""
    chosen, traded_TN = data.columns, data.panel.traded_TN
    past, returns = PastPrices(data.panel.total_return_index_TN[:, chosen]), standardise(data.return_TN)

    def question(name: str, x_TN: FloatArray) -> Iterator[Finding]:
        x_TN = np.where(traded_TN, x_TN, np.nan)[:, chosen]
        if is_common(x_TN):
            yield Finding("beyond", "skipped", "it has one value for all firms of a date", subject=name)
        else:
            yield replace(beyond_past(x_TN, past, returns, data.horizon, name), subject=name)

    return data.ask(
        question, "What the inputs say beyond past prices tells no later return (examined: {names})."
    )


class PastPrices:
    """Functions of past prices on chosen sessions, computed once for all signals with the same cells.

    ``index_TN`` is NaN before the listing; gaps are filled with the value before them.
    """

    def __init__(self, index_TN: FloatArray) -> None:
        self._index_TN = index_TN
        self._cells: tuple[bytes, bytes] = (b"", b"")
        self._value_DNK: Float32Array = np.zeros((0, 0, 0), dtype=np.float32)

    @property
    def windows(self) -> list[int]:
        """Those of `WINDOWS` that are shorter than the history, and the next one, which holds all of it."""
        return [
            long for long, short in zip(WINDOWS, (0, *WINDOWS), strict=False) if short < len(self._index_TN)
        ]

    @property
    def count(self) -> int:
        """Number of functions."""
        return _RECENT + 4 * len(self.windows)

    def at(self, rows_D: IntArray, firms_N: IntArray) -> Float32Array:
        """Return the functions [D, N, K] of some firms on some sessions, standardised by date; 0: unknown."""
        cells = (rows_D.tobytes(), firms_N.tobytes())
        if cells != self._cells:
            self._cells = cells
            self._value_DNK = np.zeros((len(rows_D), len(firms_N), self.count), dtype=np.float32)
            for k, value_TN in enumerate(_functions(self._index_TN[:, firms_N], self.windows)):
                self._value_DNK[:, :, k] = standardise(value_TN[rows_D]).value_DN
        return self._value_DNK


def _functions(index_TN: FloatArray, windows: Sequence[int]) -> Iterator[FloatArray]:
    """Recent returns; and for each window the return, and the price against its mean, deviation and range."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_TN = carry(np.where(index_TN > 0, np.log(index_TN), np.nan))
    first_N = np.argmax(np.isfinite(log_TN), axis=0)
    log_TN -= log_TN[first_N, np.arange(log_TN.shape[1])]

    def ago(k: int) -> FloatArray:
        """Log index k sessions ago, or at the listing if that is later."""
        ago_TN = np.zeros_like(log_TN)
        ago_TN[k:] = log_TN[: max(len(log_TN) - k, 0)]
        return np.where(np.isfinite(log_TN), np.nan_to_num(ago_TN, nan=0.0), np.nan)

    for k in range(_RECENT):
        yield ago(k) - ago(k + 1)
    for window in windows:
        mean_TN, square_TN = rolling_mean(log_TN, window, 1), rolling_mean(log_TN**2, window, 1)
        deviation_TN = np.sqrt(np.maximum(square_TN - mean_TN**2, 0.0))
        high_TN, low_TN = rolling_max(log_TN, window, 1), -rolling_max(-log_TN, window, 1)
        yield log_TN - ago(window)
        yield log_TN - mean_TN
        yield (log_TN - mean_TN) / np.maximum(deviation_TN, _FLAT)
        yield (log_TN - low_TN) / np.maximum(high_TN - low_TN, _FLAT)


def beyond_past(
    signal_TN: FloatArray, past: PastPrices, returns: Standardised, horizon: int, what: str = "signal"
) -> Finding:
    """Check that what a signal says beyond past prices does not know later returns.

    The signal is explained by a linear function of `PastPrices`, and a step function of that. Three residuals
    are compared with later returns: that of the signal; the same with the signal's last value as one more
    explanation, for signals that differ between firms more than over time; and that of the change over 21
    dates. The coefficients are common to all firms and dates, so that they know nothing of single returns.

    It fails if a residual has a higher IC with a later return than an honest forecast can have.
    """
    name = "beyond past prices"
    firms_N = np.flatnonzero(np.isfinite(signal_TN).any(axis=0))
    if len(firms_N) > _FIRMS:
        firms_N = np.sort(np.random.default_rng(0).choice(firms_N, _FIRMS, replace=False))
    signal_TN, returns = signal_TN[:, firms_N], returns.of(firms_N)
    rows_D = sample_dates(signal_TN)
    if np.isfinite(signal_TN[rows_D]).sum() < _CELLS_PER_FUNCTION * past.count:
        return Finding(name, "skipped", f"Fewer than {_CELLS_PER_FUNCTION * past.count:,} values are known.")
    found = highest(
        name,
        (
            one
            for residual, residual_rows_D in _residuals(signal_TN, rows_D, firms_N, past)
            for one in _later_ics(residual, residual_rows_D, returns, horizon)
        ),
        lambda value, words: (
            f"What the {what} says beyond the prices up to t has an IC of {value:+.3f} with {words}."
        ),
        {
            "fail": "No honest forecast reaches that: a mean, deviation, range, rank or filter in it was "
            "taken over a window that ends after t, or values were filled backwards.",
            "warn": "Very few honest forecasts reach that.",
            "pass": "That is possible for an honest forecast.",
        },
    )
    return found or Finding(name, "skipped", f"Past prices explain the whole {what}.")


def _residuals(
    signal_TN: FloatArray, rows_D: IntArray, firms_N: IntArray, past: PastPrices
) -> Iterator[tuple[Standardised, IntArray]]:
    """What past prices leave of the signal, of its news, and of its change over 21 dates; and their rows."""
    dates = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    place_D = np.searchsorted(dates, rows_D)
    before_D = dates[np.maximum(place_D - 1, 0)]
    later = place_D >= _EARLIER
    since_D = dates[place_D[later] - _EARLIER]
    needed = np.union1d(np.union1d(rows_D, before_D), since_D)
    level, past_DNK = standardise(signal_TN[needed]), past.at(needed, firms_N)
    now, before, since = (np.searchsorted(needed, one) for one in (rows_D, before_D, since_D))
    last_DN1 = level.at(before).value_DN[:, :, None]

    def with_last(d: int) -> Float32Array:
        return np.concatenate([past_DNK[now[d]], last_DN1[d]], axis=1)

    for residual in _unexplained(level.at(now), with_last, (past.count, past.count + 1)):
        yield residual, rows_D
    if later.any():
        x, then, latest = level.at(now[later]), level.at(since), now[later]
        known_DN = x.known_DN * then.known_DN
        often_D = known_DN.sum(axis=1) >= MIN_FIRMS
        if known_DN[often_D].sum() < 2 * _CELLS_PER_FUNCTION * past.count:
            return  # a few dates of few firms are left of a value that is known now and then
        change = Standardised((x.value_DN - then.value_DN) * known_DN, known_DN)

        def with_change(d: int) -> Float32Array:
            now_NK = past_DNK[latest[d]]
            return np.concatenate([now_NK, now_NK - past_DNK[since[d]]], axis=1)

        for residual in _unexplained(change, with_change, (2 * past.count,)):
            yield residual, rows_D[later]


def _unexplained(
    x: Standardised, past: Callable[[int], Float32Array], counts: Sequence[int]
) -> Iterator[Standardised]:
    """Residuals of x on functions of the past and on a step function of their fit, standardised by date.

    ``past`` gives the functions [N, K] of a date. For each of ``counts``, so many of them are used.
    Dates are read one by one, because all functions of all cells may take gigabytes.
    """
    known_DN: BoolArray = x.known_DN > 0
    x_M = x.value_DN[known_DN].astype(np.float64)
    end_D = np.cumsum(known_DN.sum(axis=1))
    K = counts[-1]

    def blocks() -> Iterator[tuple[slice, FloatArray]]:
        """Cells of a date, and their functions; over the firms with a value, all have a mean of 0."""
        for d, (first, end) in enumerate(itertools.pairwise([0, *end_D])):
            if end > first:
                past_MK = past(d)[known_DN[d]].astype(np.float64)
                yield slice(first, end), past_MK - past_MK.mean(axis=0)

    square_KK, product_K = np.zeros((K, K)), np.zeros(K)
    for cells, past_MK in blocks():
        square_KK += past_MK.T @ past_MK
        product_K += past_MK.T @ x_M[cells]
    slope_KC = np.zeros((K, len(counts)))
    for c, k in enumerate(counts):
        ridge = _RIDGE * max(float(np.trace(square_KK[:k, :k])), 1.0)
        slope_KC[:k, c] = np.linalg.solve(square_KK[:k, :k] + ridge * np.eye(k), product_K[:k])
    fit_MC = np.empty((len(x_M), len(counts)))
    for cells, past_MK in blocks():
        fit_MC[cells] = past_MK @ slope_KC
    for fit_M in fit_MC.T:
        left_M = x_M - fit_M
        step_M = np.searchsorted(np.quantile(fit_M, np.arange(1, _STEPS) / _STEPS), fit_M)
        size = np.maximum(np.bincount(step_M, minlength=_STEPS), 1)
        left_M -= (np.bincount(step_M, left_M, _STEPS) / size)[step_M]
        left_DN = np.full(known_DN.shape, np.nan)
        left_DN[known_DN] = left_M
        yield standardise(left_DN)


def _later_ics(
    residual: Standardised, rows_D: IntArray, returns: Standardised, horizon: int
) -> Iterator[tuple[float, float, str]]:
    for lag in range(1, LAGS.stop):
        ic_D = correlations(residual, returns.at(rows_D + lag))
        yield judged(ic_D, 1, f"the return of session t+{lag}", rows_D)
    yield from over_spans(residual, returns, rows_D, horizon)
