"""A signal and prices: later values that it equals, and what it says beyond past prices.

A z-score, a place in a range, a smoothed price or a value that was filled backwards is nearly a function of
past prices, so that its IC with later returns is small even if its window ends after its date. What is left
once past prices have explained all they can is then mostly the part of the window that was not known. For an
honest signal it is known at t, however it was made, and no forecast that is known at t has a higher IC than
`backtest.look_ahead.returns` allows.

Shape suffixes: T sessions, N firms, D dates of the signal, K functions of past prices, M cells.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, judged_by
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
from features.arithmetic.transforms import rank_normal
from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from features.panel.panel import Panel

_SPANS: Final = (1, 2, 3, 5, 10, 21)  # sessions of a return
_EQUAL: Final = 1e-6  # relative
_MIN_EQUAL, _EQUAL_SHARE = 20, 0.001
_CONTROLS, _TIMES = (26, 34, 43), 12.0
"""Sessions after t at which returns are equal by chance, and by how many times the share must exceed that. A
mixture with 5% of later returns exceeds it by over 20 times in prices of a few cents."""
_DATES: Final = 60  # dates whose ranks are compared
_LATER, _EARLIER = (1, 2, 3, 5), (0, 1, 2)  # sessions after and before the signal's date
CLOSE: Final = 0.98  # mean rank correlation over firms from which a signal counts as equal to a series
NEARER: Final = 0.25
"""The correlation with a later value must be this much nearer to 1: its distance from 1 is below this
fraction of the distance for values up to t. A slow series resembles its own next value, but only an early
series is nearer to the later value."""
_MIN_ROWS: Final = 30
_STATIC: Final = 1e-6  # of the deviation over firms: smaller changes are rounding
_STATIC_CEILING: Final = 0.5

WINDOWS: Final = (3, 5, 10, 20, 30, 45, 60, 90, 120, 180, 250)
"""Sessions of the functions of past prices. Between them, functions of other windows are interpolated."""
_RECENT: Final = 4  # single returns
_FIRMS: Final = 400  # firms that a signal of more is explained for
_SINCE: Final = 21  # dates of the signal over which its change is explained
_CELLS_PER_FUNCTION: Final = 20
_STEPS: Final = 40  # of the step function from what past prices explain to the signal
_RIDGE: Final = 1e-6
_FLAT: Final = 1e-9


def equal_to_later_return(signal_TN: FloatArray, index_TN: FloatArray, rows_D: IntArray) -> Finding:
    """Check that the values of a signal are not returns that start at or after its date.

    Returns over 1 to 21 sessions from the close of t or of t+1 are compared, simple ones and logarithms, with
    either sign, to six digits. Where prices move by whole ticks, returns equal each other by chance: it
    fails if the values equal later returns several times as often as those of sessions weeks later.
    """
    name = "equal to a later return"
    signal_DN = signal_TN[rows_D]
    known = int(np.isfinite(signal_DN).sum())
    best: tuple[int, int, int] = (0, 0, 1)
    for start, span in itertools.product((0, 1), _SPANS):
        equal, _ = _equal(signal_DN, index_TN, rows_D, start, span)
        best = max(best, (equal, start, span))
    equal, start, span = best
    chance = max(
        cases / max(pairs, 1)
        for cases, pairs in (_equal(signal_DN, index_TN, rows_D, control, span) for control in _CONTROLS)
    )
    share = equal / max(known, 1)
    bad = equal >= max(_MIN_EQUAL, _EQUAL_SHARE * known) and share >= _TIMES * chance
    equal_to = (
        f"{share:.1%} of the values equal the firm's return from the close of t+{start} to that of "
        f"t+{start + span}, and {chance:.1%} one of other sessions."
    )
    return judged_by(name, bad, equal_to if bad else "The values are no later returns.", share)


def _equal(
    signal_DN: FloatArray, index_TN: FloatArray, rows_D: IntArray, start: int, span: int
) -> tuple[int, int]:
    """Values that equal the return over ``span`` sessions from the close of t + start, and all known ones."""
    inside_D = rows_D + start + span < len(index_TN)
    rows, signal_DN = rows_D[inside_D], np.abs(signal_DN[inside_D])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_DN = index_TN[rows + start + span] / index_TN[rows + start]
        equal = 0
        for earned_DN in (ratio_DN - 1.0, np.log(ratio_DN)):
            size_DN = np.abs(earned_DN)
            equal = max(
                equal, int(((np.abs(signal_DN - size_DN) <= _EQUAL * size_DN) & (size_DN > 1e-4)).sum())
            )
    return equal, int((np.isfinite(signal_DN) & np.isfinite(ratio_DN)).sum())


@dataclass(frozen=True, eq=False)
class KnownValues:
    """Values that a signal may equal, by name, ranked within the date on the dates of the signal."""

    daily: Mapping[str, AnyFloatArray]  # known at the close of t and about no other session, such as prices
    # at t+1 these may hold only what was known at t, so that only the value at t is compared
    looking_back: Mapping[str, AnyFloatArray] = field(default_factory=dict)
    restated: Mapping[str, AnyFloatArray] = field(default_factory=dict)  # of t, made with events after t
    _ranked: dict[bytes, list[tuple[str, bool, Float32Array]]] = field(default_factory=dict)

    def on(self, rows_D: IntArray) -> list[tuple[str, bool, Float32Array]]:
        """Return each series at each lag: name, whether later than t, ranks [D, N]; the last are kept."""
        key = rows_D.tobytes()
        if key not in self._ranked:
            self._ranked.clear()
            self._ranked[key] = list(self._rank(rows_D))
        return self._ranked[key]

    def _rank(self, rows_D: IntArray) -> Iterator[tuple[str, bool, Float32Array]]:
        for name, value_TN in self.daily.items():
            for lag in _EARLIER:
                yield name, False, _ranks(value_TN[rows_D - lag])
            for lag in _LATER:
                yield f"{name} of t+{lag}", True, _ranks(value_TN[rows_D + lag])
        for later, series in ((False, self.looking_back), (True, self.restated)):
            for name, value_TN in series.items():
                yield name, later, _ranks(value_TN[rows_D])


def equal_to_later_value(signal_TN: FloatArray, known: KnownValues, what: str = "the signal") -> Finding:
    """Check that a signal is not nearer to a later price, volume or channel than to all values up to t.

    Nearness is the mean rank correlation over firms on 60 dates of the signal. A signal that is the close of
    t has a correlation of 1 with it, and cannot be nearer to the close of t+1.
    """
    name = "equal to a later price"
    rows_D = sample_dates(signal_TN)
    rows_D = rows_D[(rows_D >= max(_EARLIER)) & (rows_D + max(_LATER) < len(signal_TN))]
    rows_D = rows_D[:: max(1, len(rows_D) // _DATES)][:_DATES]
    ranks_DN = _ranks(signal_TN[rows_D]) if len(rows_D) else np.zeros((0, 0), dtype=np.float32)
    if not ranks_DN.any():
        few = f"its values differ between {MIN_FIRMS} firms on none of {len(rows_D)} dates"
        return Finding(name, "skipped", few)
    best = {False: (0.0, ""), True: (0.0, "")}
    for series, later, value_DN in known.on(rows_D):
        best[later] = max(best[later], (_rank_correlation(ranks_DN, value_DN), series))
    (now, _), (then, series) = best[False], best[True]
    if then < CLOSE or 1.0 - then >= NEARER * (1.0 - now):
        return Finding(name, "pass", "The signal is no later price or volume.", then, CLOSE)
    sentence = (
        f"{what[0].upper()}{what[1:]} at t equals {series}: their rank correlation is {then:.4f}, but at "
        f"most {now:.4f} with series known at t."
    )
    return Finding(name, "fail", sentence, then, CLOSE)


def later_values(data: Delivery) -> Result:
    """Compare each input with later channels, prices and volume (`equal_to_later_value`)."""
    values = KnownValues({**data.channels, **prices_of(data.panel)}, data.characteristics)
    priced_TN = np.isfinite(data.panel.close_TN)

    return data.ask(
        lambda name, x_TN: [equal_to_later_value(np.where(priced_TN, x_TN, np.nan), values, name)],
        "None of {n} inputs matches a series of a later session.",
    )


def prices_of(panel: Panel) -> dict[str, FloatArray]:
    """Prices and volume of a panel by name."""
    fields = {
        "the raw close": panel.raw_close_TN,
        "the adjusted close": panel.close_TN,
        "the open": panel.open_TN,
        "the high": panel.high_TN,
        "the low": panel.low_TN,
        "the volume": panel.volume_TN,
    }
    return {name: value_TN for name, value_TN in fields.items() if value_TN is not None}


def _ranks(x_DN: AnyFloatArray) -> Float32Array:
    """Normal scores within the date; 0 where unknown."""
    return np.nan_to_num(rank_normal(x_DN, np.isfinite(x_DN)), nan=0.0)


def _rank_correlation(x_DN: Float32Array, y_DN: Float32Array) -> float:
    """Absolute mean over dates of the correlation of two series of ranks; 0 without a date of 10 firms."""
    both_DN = (x_DN != 0) & (y_DN != 0)
    x_DN, y_DN = np.where(both_DN, x_DN, 0.0), np.where(both_DN, y_DN, 0.0)
    product_D = np.einsum("dn,dn->d", x_DN, y_DN, dtype=np.float64)
    size_D = np.sqrt(
        np.einsum("dn,dn->d", x_DN, x_DN, dtype=np.float64)
        * np.einsum("dn,dn->d", y_DN, y_DN, dtype=np.float64)
    )
    used_D = (both_DN.sum(axis=1) >= MIN_FIRMS // 2) & (size_D > 0)
    return float(np.abs(np.mean(product_D[used_D] / size_D[used_D]))) if used_D.any() else 0.0


def static_signal(signal_TN: FloatArray, return_TN: FloatArray) -> Finding:
    """Check that a signal that never changes does not know the firms' mean returns."""
    name = "constant per firm"
    rows_D = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    signal_DN = signal_TN[rows_D]
    known_DN = np.isfinite(signal_DN)
    count_N = known_DN.sum(axis=0)
    used_N = count_N >= _MIN_ROWS
    if used_N.sum() < MIN_FIRMS:
        return Finding(name, "skipped", f"Too few firms have {_MIN_ROWS} dates.")
    first_N = signal_DN[np.argmax(known_DN, axis=0), np.arange(signal_DN.shape[1])]
    scale = float(np.std(first_N[used_N]))
    moved_DN = known_DN & (np.abs(signal_DN - first_N) > _STATIC * scale)
    if moved_DN.any() or scale == 0:
        return Finding(name, "pass", "The signal changes over time.")
    mean_N = first_N[used_N]
    rows_D = rows_D[rows_D + 1 < len(return_TN)]
    later_DN = return_TN[rows_D + 1][:, used_N]
    known_DN = np.isfinite(later_DN) & known_DN[: len(rows_D), used_N]
    earned_N = np.where(known_DN, later_DN, 0.0).sum(axis=0) / np.maximum(known_DN.sum(axis=0), 1)
    correlation = float(rank_ic_by_date(mean_N[None], earned_N[None])[0])
    bound = abs(correlation) - 4.0 / float(used_N.sum()) ** 0.5
    sentence = f"Rank correlation with the firms' mean returns: {correlation:+.2f}."
    if bound > _STATIC_CEILING:
        sentence = (
            "The signal never changes, and its rank correlation with the firms' mean returns over the whole "
            f"file is {correlation:+.2f}: it was computed from them."
        )
    return judged_by(name, bound > _STATIC_CEILING, sentence, correlation)


def beyond(data: Delivery) -> Result:
    """Explain every input by past prices, and compare what is left with later returns."""
    chosen, traded_TN = data.columns, data.panel.traded_TN
    past, returns = PastPrices(data.panel.total_return_index_TN[:, chosen]), standardise(data.return_TN)

    def question(name: str, x_TN: FloatArray) -> list[Finding]:
        x_TN = np.where(traded_TN, x_TN, np.nan)[:, chosen]
        if is_common(x_TN):
            return [Finding("beyond", "skipped", "it has one value for all firms of a date")]
        return [beyond_past(x_TN, past, returns, data.horizon, name)]

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
    later = place_D >= _SINCE
    since_D = dates[place_D[later] - _SINCE]
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
