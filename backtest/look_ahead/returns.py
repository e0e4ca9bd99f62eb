"""A signal against the returns around its date, and how high the IC of an honest one can be.

What a signal computed from the past knows of returns ends at its date. The profile of its correlations shows
where it ends: too high an IC, a sudden end of it, or firms that know a session more.

A daily IC of 0.15 forecasts 2% of the variance of single-session returns. With 300 firms and daily trades
that is a Sharpe ratio above 20 before costs (Grinold 1989: the square root of breadth times the IC). The best
published daily signals have ICs of 0.02 to 0.06, and the true mean of the simulated market, which no model
can beat, 0.08. Longer horizons: the IC of a signal that never fades grows with the square root of the
horizon, that of a signal for one session falls with it. The ceiling grows with the fourth root, which leaves
room for slow signals.

Shape suffixes: T sessions, N firms, D sampled dates of the signal, K lags.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from backtest.inference.means import LEVEL, MeanTest, mean_test, overlap_of
from backtest.look_ahead.finding import Finding, Verdict
from features.arrays import BoolArray, DateArray, Float32Array, FloatArray, IntArray, require_shape
from features.information_coefficient import mean_known

MIN_FIRMS: Final = 10  # fewest firms of a date that is used

_BLOCKS: Final = 20  # a long signal is sampled in blocks of consecutive dates, so that weekdays are even
_LONGEST, _SHORTEST = 40, 15  # dates of a block
_CELLS: Final = 400_000  # sampled cells from which blocks are shorter: broad markets need fewer dates
CEILING: Final = 0.15  # mean IC with the return of one session above which a signal is not believed

REMARKABLE: Final = 0.10  # mean IC with the return of one session above which a person should look

_ERRORS = 4.0  # standard errors that an estimate must lie above the ceiling
_HONEST_DEVIATION = 0.15  # of the daily ICs of factor-like signals; guards small samples

_CLIP = 6.0  # mean absolute deviations; one wrong price must not decide a correlation
LAGS: Final = range(-20, 26)  # sessions before and after a signal's date

HORIZONS: Final = (2, 5, 10, 21)
_GROUP_LAGS = (1, 2, 3)
_PLATEAU = 0.6  # lowest over highest of three neighbouring ICs that count as equal
_GONE = 0.4  # share of them at which the IC after them counts as gone
_MIN_PLATEAU = 0.02
_DROP_ERRORS = 6.0
_MORE = 1.25  # how much better later than earlier sizes must be forecast
_FIRM_EVIDENCE = 30.0  # difference of two sums of squares in error variances
_MIN_FIRM_DATES = 60
_MIN_USUAL = 20  # firms that are compared with each other
KEPT: Final = 0.5
"""Share of its mean IC that an honest signal keeps from one side to the other.

Published predictors keep three quarters out of sample (McLean and Pontiff 2016).
"""
CUTOFF_DAYS: Final = 731
"""Forecasts of two years on each side of their cutoff are compared, so that slow decay is no break."""
FEWEST: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """Values in units of their date's mean absolute deviation, clipped; 0 where unknown."""

    value_DN: Float32Array
    known_DN: Float32Array  # 1 where the value is known, 0 elsewhere

    def of(self, firms_N: IntArray) -> Standardised:
        """Return some columns."""
        return Standardised(self.value_DN[:, firms_N], self.known_DN[:, firms_N])

    def at(self, rows_D: IntArray) -> Standardised:
        """Return some rows; a row outside the array is unknown."""
        inside_D = (rows_D >= 0) & (rows_D < len(self.value_DN))
        if inside_D.all():
            return Standardised(self.value_DN[rows_D], self.known_DN[rows_D])
        rows_D = np.where(inside_D, rows_D, 0)
        keep_D1 = inside_D[:, None].astype(np.float32)
        return Standardised(self.value_DN[rows_D] * keep_D1, self.known_DN[rows_D] * keep_D1)


def session_returns(index_TN: FloatArray, traded_TN: BoolArray | None = None) -> FloatArray:
    """Returns of single sessions: row t from the close of t-1 to that of t; NaN: unknown.

    With ``traded_TN``, only returns between two prices are known; else a carried price earns 0.
    """
    out_TN = np.full(index_TN.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        out_TN[1:] = index_TN[1:] / index_TN[:-1] - 1.0
    if traded_TN is not None:
        out_TN[1:][~(traded_TN[1:] & traded_TN[:-1])] = np.nan
    out_TN[~np.isfinite(out_TN)] = np.nan
    return out_TN


def sample_dates(signal_TN: FloatArray) -> IntArray:
    """Choose the dates of a signal that its profile is computed from, ascending.

    All dates with at least `MIN_FIRMS` firms. If there are many, 20 blocks of 15 to 40 consecutive ones,
    evenly spaced over the whole file.
    """
    firms_T = np.isfinite(signal_TN).sum(axis=1)
    dates_T: IntArray = np.flatnonzero(firms_T >= MIN_FIRMS)
    if not len(dates_T):
        return dates_T
    block = int(np.clip(_CELLS / _BLOCKS / firms_T[dates_T].mean(), _SHORTEST, _LONGEST))
    if len(dates_T) <= _BLOCKS * block:
        return dates_T
    first = np.linspace(0, len(dates_T) - block, _BLOCKS).astype(np.int64)
    return np.unique(dates_T[(first[:, None] + np.arange(block)).ravel()])


def standardise(x_DN: FloatArray) -> Standardised:
    """Centre and scale each date robustly and clip it. A constant date becomes 0."""
    known_DN = np.isfinite(x_DN)
    x_DN = np.where(known_DN, x_DN, 0.0)
    count_D1 = np.maximum(known_DN.sum(axis=1, keepdims=True), 1)
    value_DN = x_DN
    for _ in range(2):  # the second pass centres without the outliers that the first one clipped
        centred_DN = np.where(known_DN, value_DN - value_DN.sum(axis=1, keepdims=True) / count_D1, 0.0)
        scale_D1 = np.abs(centred_DN).sum(axis=1, keepdims=True) / count_D1
        scale_D1[scale_D1 <= 1e-12 * np.abs(x_DN).max(axis=1, keepdims=True, initial=0.0)] = np.inf
        value_DN = np.clip(centred_DN / scale_D1, -_CLIP, _CLIP)
    return Standardised(value_DN.astype(np.float32), known_DN.astype(np.float32))


def correlations(x: Standardised, y: Standardised, axis: int = 1) -> FloatArray:
    """Correlation per date (``axis=1``) or per firm (``axis=0``) over the cells where both are known.

    NaN with fewer than `MIN_FIRMS` cells, or if one side is constant.
    """
    paths = "dn,dn->d" if axis == 1 else "dn,dn->n"

    def total(a_DN: Float32Array, b_DN: Float32Array) -> FloatArray:
        summed: FloatArray = np.einsum(paths, a_DN, b_DN).astype(np.float64)
        return summed

    n = total(x.known_DN, y.known_DN)
    safe = np.maximum(n, 1.0)
    mean_x, mean_y = total(x.value_DN, y.known_DN) / safe, total(x.known_DN, y.value_DN) / safe
    var_x = total(x.value_DN * x.value_DN, y.known_DN) / safe - mean_x**2
    var_y = total(x.known_DN, y.value_DN * y.value_DN) / safe - mean_y**2
    cov = total(x.value_DN, y.value_DN) / safe - mean_x * mean_y
    usable = (n >= MIN_FIRMS) & (var_x > 1e-6) & (var_y > 1e-6)
    out = np.full(n.shape, np.nan)
    out[usable] = cov[usable] / np.sqrt(var_x[usable] * var_y[usable])
    return out


def cumulated(y: Standardised, horizon: int) -> Standardised:
    """Sum of the next ``horizon`` sessions' values at each session; known where the next session is known."""
    total_TN = np.cumsum(y.value_DN, axis=0, dtype=np.float32)
    out_TN, known_TN = np.zeros_like(total_TN), np.zeros_like(total_TN)
    if horizon < len(total_TN):
        out_TN[:-horizon] = total_TN[horizon:] - total_TN[:-horizon]
        known_TN[:-horizon] = y.known_DN[1 : len(total_TN) - horizon + 1]
    return Standardised(out_TN * known_TN, known_TN)


def ceiling(horizon: int) -> float:
    """Highest believable mean IC with the return over ``horizon`` sessions: ``0.15 horizon^(1/4)``."""
    return float(CEILING * horizon**0.25)


def lower_bound(ic_D: FloatArray, overlap: int = 1) -> float:
    """Size that the mean of daily ICs has at least: ``|mean|`` less four standard errors.

    Negative if the mean may be zero; NaN without a date. The returns of ``overlap`` consecutive dates share
    sessions, so there are that many times fewer independent ICs.
    """
    known = ic_D[~np.isnan(ic_D)]
    if not len(known):
        return float("nan")
    deviation = max(float(known.std(ddof=1)) if len(known) > 1 else 0.0, _HONEST_DEVIATION)
    independent = max(len(known) / overlap, 1.0)
    return abs(float(known.mean())) - _ERRORS * deviation / float(np.sqrt(independent))


@dataclass(frozen=True, slots=True, eq=False)
class Profiles:
    """Daily correlations of a signal with returns around its dates."""

    rows_D: IntArray
    level: Standardised  # the signal, and its change since its previous date, on these dates
    change: Standardised
    returns: Standardised  # on all sessions
    level_KD: FloatArray  # correlations of the signal, and of its change, with the returns at `LAGS`
    change_KD: FloatArray
    level_size_KD: FloatArray  # the same with the sizes of the returns
    change_size_KD: FloatArray


def make_profiles(signal_TN: FloatArray, returns: Standardised) -> Profiles:
    """Compute the profiles of a signal."""
    rows_D = sample_dates(signal_TN)
    dates = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    before_D = dates[np.maximum(np.searchsorted(dates, rows_D) - 1, 0)]  # the first date has none before it
    before_D = np.where(before_D < rows_D, before_D, -1)
    needed = np.unique(np.concatenate([rows_D, before_D[before_D >= 0]]))
    known = standardise(signal_TN[needed])
    level = known.at(np.searchsorted(needed, rows_D))
    then = known.at(np.where(before_D >= 0, np.searchsorted(needed, before_D), -1))
    both_DN = level.known_DN * then.known_DN
    change = Standardised((level.value_DN - then.value_DN) * both_DN, both_DN)
    size = Standardised(np.abs(returns.value_DN), returns.known_DN)

    def around(x: Standardised, y: Standardised) -> FloatArray:
        return np.stack([correlations(x, y.at(rows_D + lag)) for lag in LAGS])

    of_returns, of_sizes = ([around(x, y) for x in (level, change)] for y in (returns, size))
    return Profiles(rows_D, level, change, returns, *of_returns, *of_sizes)


def too_high(found: Profiles, dates_T: DateArray, horizon: int) -> Finding:
    """Check that no IC with later returns is higher than an honest signal's can be.

    The signal is compared with the returns of each of the next 25 sessions, and over 2 to 21 sessions and the
    label's horizon; its change with those of single sessions; and for the next three sessions also on each
    weekday and in each part of the file by itself.
    """
    name = "IC with later returns"
    judgement: Mapping[Verdict, str] = {
        "fail": "No honest signal reaches that.",
        "warn": "Very few honest signals reach that.",
        "pass": "That is possible for an honest signal.",
    }
    ics = _later_ics(found, dates_T, horizon)
    worst = highest(name, ics, lambda value, words: f"The {words} is {value:+.3f}.", judgement)
    return worst or Finding(name, "skipped", "No date has enough firms with a later return.")


def highest(
    check: str,
    ics: Iterable[tuple[float, float, str]],
    say: Callable[[float, str], str],
    judgement: Mapping[Verdict, str],
) -> Finding | None:
    """Find the IC that exceeds its ceiling most; None if none is known.

    It fails above the ceiling of honest signals, and is a warning where few of them are. The ICs are as
    `judged` returns them; ``say`` makes a sentence of the mean IC and of what it is with, which the
    ``judgement`` of the verdict follows.
    """
    above, value, words = max(
        (one for one in ics if np.isfinite(one[0])), key=lambda one: one[0], default=(np.nan, np.nan, "")
    )
    if np.isnan(above):
        return None
    verdict: Verdict = "fail" if above > 0 else "warn" if above > REMARKABLE / ceiling(1) - 1 else "pass"
    return Finding(check, verdict, f"{say(value, words)} {judgement[verdict]}", value)


def judged(ic_D: FloatArray, sessions: int, words: str, rows_D: IntArray) -> tuple[float, float, str]:
    """Return the lower bound of a mean IC relative to its ceiling (above 0: too high), the mean and words.

    The returns of dates ``rows_D`` overlap if they are nearer to each other than ``sessions``.
    """
    spacing = float(np.median(np.diff(rows_D))) if len(rows_D) > 1 else 1.0
    bound = lower_bound(ic_D, overlap_of(sessions, spacing))
    return bound / ceiling(sessions) - 1.0, mean_known(ic_D), words


def _later_ics(found: Profiles, dates_T: DateArray, horizon: int) -> Iterator[tuple[float, float, str]]:
    """Yield each IC, `judged`."""
    rows_D, days_D = found.rows_D, dates_T[found.rows_D]
    kinds = (("IC", found.level_KD), ("IC of the signal's change", found.change_KD))
    for lag, (name, ic_KD) in product(range(1, LAGS.stop), kinds):
        yield judged(ic_KD[LAGS.index(lag)], 1, f"{name} with the return of session t+{lag}", rows_D)
    yield from over_spans(found.level, found.returns, rows_D, horizon, "IC with ")
    weekday_D = (days_D.astype(np.int64) + 3) % 7
    part_D = np.arange(len(rows_D)) // max(40, -(-len(rows_D) // 20))
    for lag, (name, ic_KD) in product(_GROUP_LAGS, kinds):
        ic_D, words = ic_KD[LAGS.index(lag)], f"{name} with the return of session t+{lag}"
        for day in np.unique(weekday_D):
            yield judged(ic_D[weekday_D == day], 1, f"{words} on {calendar.day_name[day]}s", rows_D)
        for inside_D in (part_D == part for part in np.unique(part_D)):
            since, until = days_D[inside_D][[0, -1]]
            yield judged(ic_D[inside_D], 1, f"{words} from {since} to {until}", rows_D)


def over_spans(
    x: Standardised, returns: Standardised, rows_D: IntArray, horizon: int, words: str = ""
) -> Iterator[tuple[float, float, str]]:
    """Yield the ICs with the returns over 2 to 21 sessions and the label's horizon, `judged`."""
    for sessions in sorted({*HORIZONS, horizon} - {1}):
        ic_D = correlations(x, cumulated(returns, sessions).at(rows_D))
        yield judged(ic_D, sessions, f"{words}the return over the next {sessions} sessions", rows_D)


def sudden_end(found: Profiles) -> Finding:
    """Check that the IC does not stay level over three sessions and vanish in the next one.

    What was known at t fades after t. An IC that is level up to session t+b, b >= 1, and gone in the session
    after it comes from a window that ends at t+b.
    """
    name, examined = "sudden end of the IC", False
    mean_K = np.array([mean_known(ic_D) for ic_D in found.level_KD])
    for b in range(1, LAGS[-1] - 3):
        at = LAGS.index(b)
        sign = np.sign(mean_K[at])
        level_K, later_K = sign * mean_K[at - 2 : at + 1], sign * mean_K[at + 1 : at + 4]
        if np.isnan(level_K).any() or np.isnan(later_K).any():
            continue
        examined = True
        level = level_K.min() >= max(_MIN_PLATEAU, _PLATEAU * level_K.max())
        if not level or max(later_K[0], later_K.mean()) > _GONE * level_K.mean():
            continue
        drop_D = sign * (found.level_KD[at - 2 : at + 1].mean(axis=0) - found.level_KD[at + 1])
        drop_D = drop_D[~np.isnan(drop_D)]
        if drop_D.mean() > _DROP_ERRORS * drop_D.std(ddof=1) / len(drop_D) ** 0.5:
            before = mean_known(found.level_KD[at - 2 : at + 1].ravel())
            sentence = (
                f"The IC with single sessions is {before:+.3f} up to session t+{b} and {mean_K[at + 1]:+.3f} "
                f"in the session after it. What is known at t fades; a window that ends {b} "
                f"session{'s' if b > 1 else ''} after t ends like this."
            )
            return Finding(name, "fail", sentence, before)
    if not examined:
        return Finding(name, "skipped", "Too few sessions after t have an IC.")
    return Finding(name, "pass", "The ICs with single sessions after t have no sudden end.")


def later_sizes(found: Profiles) -> Finding:
    """Check that the signal does not know the sizes of later returns better than those of earlier ones.

    A volatility computed up to t is closer to the sizes of the returns it was computed from than to later
    ones. The session after t is left out, because news after the close of t moves prices then.
    """
    name, zero = "size of later returns", LAGS.index(0)
    bounds = {k: lower_bound(found.change_size_KD[LAGS.index(k)]) for k in range(2, LAGS.stop)}
    lag = max(bounds, key=lambda k: bounds[k] if np.isfinite(bounds[k]) else -np.inf)
    value = mean_known(found.change_size_KD[LAGS.index(lag)])
    if bounds[lag] > ceiling(1):
        sentence = (
            f"The signal's change has a correlation of {value:+.3f} with the size of the return of session "
            f"t+{lag}, whatever its sign: it knows the volatility of that session."
        )
        return Finding(name, "fail", sentence, value)
    later_D = found.level_size_KD[zero + 1 : zero + 22].mean(axis=0)
    earlier_D = found.level_size_KD[zero - 20 : zero + 1].mean(axis=0)
    later = mean_known(later_D)
    if not np.isfinite(later):
        return Finding(name, "skipped", "Too few sessions before and after the signal's dates.")
    sign = np.sign(later)
    later, earlier = sign * later, sign * mean_known(earlier_D)
    better = lower_bound(sign * (later_D - earlier_D)) > 0
    if later > REMARKABLE and later > _MORE * max(earlier, 0.0) and better:
        sentence = (
            f"The signal has a correlation of {later:.3f} with the sizes of the next 21 returns and of "
            f"{earlier:.3f} with those of the last 21: it knows later volatility better than earlier."
        )
        return Finding(name, "fail", sentence, float(later))
    return Finding(name, "pass", "Sizes of later returns are not known better than those of earlier ones.")


def early_firms(found: Profiles, tickers_N: tuple[str, ...]) -> Finding:
    """Check that no group of firms has signals that are dated a session early.

    Correlations over time, firm by firm, with the returns of sessions t-1, t and t+1. A firm counts as early
    if its correlations are nearer to the median firm's moved by one session than to the median firm's.
    """
    name = "firms dated early"
    flagged_N = np.zeros(len(tickers_N), dtype=np.bool_)
    tested = 0
    for series in (found.level, found.change):
        around = [correlations(series, found.returns.at(found.rows_D + lag), axis=0) for lag in (-1, 0, 1)]
        before_N, now_N, next_N = around
        known_N = series.known_DN.sum(axis=0)
        usable_N = ~np.isnan(before_N + now_N + next_N) & (known_N >= _MIN_FIRM_DATES)
        if usable_N.sum() < _MIN_USUAL:
            continue
        tested = max(tested, int(usable_N.sum()))
        before, now, after = (float(np.median(one[usable_N])) for one in around)
        own = (now_N - now) ** 2 + (next_N - after) ** 2
        early = (now_N - before) ** 2 + (next_N - now) ** 2
        flagged_N |= usable_N & (known_N * (own - early) > _FIRM_EVIDENCE)
    if not tested:
        return Finding(name, "skipped", f"Too few firms have {_MIN_FIRM_DATES} dates.")
    count = int(flagged_N.sum())
    if count >= max(3, 0.01 * tested):
        named = ", ".join(tickers_N[n] for n in np.flatnonzero(flagged_N)[:5])
        sentence = (
            f"The signals of {count:,} of {tested:,} firms know the return of session t+1 as those of the "
            f"other firms know that of session t: {named}{', ...' if count > 5 else ''}."
        )
        return Finding(name, "fail", sentence, float(count))
    return Finding(name, "pass", f"None of {tested:,} firms is dated a session earlier than the others.")


def skill_ends(before_T: FloatArray, after_T: FloatArray, *, overlap: int = 1) -> Finding:
    """Test whether the mean IC falls by more than half where the training data of a forecaster ended.

    A language or foundation model may repeat outcomes that were in its training data: its forecasts before
    the knowledge cutoff can have skill that no later forecast has.

    Fails if both hold in one-sided tests at 5%: the mean IC before, ``m0``, is above zero, and the mean
    after, ``m1``, is below ``KEPT m0``. As both must hold, at most 5% of the signals fail that keep half of
    their skill or more, or have none. The second test is `mean_test` of a series with mean ``KEPT m0 - m1``,
    which has ``KEPT (n/n0) (ic - m0)`` on the ``n0`` sessions before and ``-(n/n1) (ic - m1)`` on the ``n1``
    after, ``n = n0 + n1``, each plus the mean: its Newey-West error is that of the difference, also if the
    two sides have other variances.

    The daily ICs of forecasts before and after their cutoff have shape (T,), on the same sessions: known when
    the labels are, NaN where there is none. The labels of ``overlap`` consecutive ones overlap. ``value`` is
    the p-value of the second test; skipped with fewer than 20 ICs on a side. ValueError if the shapes differ,
    ``overlap`` is below 1, or an IC is infinite.

    >>> ic_T = np.random.default_rng(0).normal(0.0, 0.1, 1000)
    >>> known = np.arange(1000) >= 500
    >>> before, after = np.where(known, np.nan, ic_T + 0.04), np.where(known, ic_T, np.nan)
    >>> skill_ends(before, after).verdict
    'fail'
    """
    name = "knowledge cutoff"
    require_shape("the ICs after the cutoff", after_T, before_T.shape)
    ic_T = np.stack([before_T, after_T], axis=1).ravel()  # in order of the sessions
    late_T = np.tile([False, True], len(before_T))[~np.isnan(ic_T)]
    ic_T = ic_T[~np.isnan(ic_T)]
    n, counts = len(ic_T), (int((~late_T).sum()), int(late_T.sum()))
    if min(counts) < FEWEST:
        side = "before" if counts[0] <= counts[1] else "after"
        words = f"Only {min(counts)} sessions of the two years {side} the cutoff have an IC."
        return Finding(name, "skipped", words)
    early, late = mean_test(ic_T[~late_T], overlap=overlap), mean_test(ic_T[late_T], overlap=overlap)
    fall = KEPT * early.mean - late.mean
    of_late_T = -n / counts[1] * (ic_T - late.mean)
    of_early_T = KEPT * n / counts[0] * (ic_T - early.mean)
    p_fall = _above_zero(mean_test(fall + np.where(late_T, of_late_T, of_early_T), overlap=overlap))
    said = f"{early.mean:+.3f} in the two years before the cutoff and {late.mean:+.3f} after"
    if _above_zero(early) < LEVEL and p_fall < LEVEL:
        words = (
            f"The mean IC is {said}, less than half (p {p_fall:.2g}): the skill ends with the training data, "
            "as if the model remembered outcomes."
        )
        return Finding(name, "fail", words, p_fall, LEVEL)
    words = f"The mean IC is {said}: no sign that the skill ends with the training data (p {p_fall:.2g})."
    return Finding(name, "pass", words, p_fall, LEVEL)


def _above_zero(test: MeanTest) -> float:
    """One-sided p-value of a mean above zero; 0 or 1 without variation."""
    if np.isnan(test.p_value):
        return 0.0 if test.mean > 0 else 1.0
    return test.p_value / 2.0 if test.t > 0 else 1.0 - test.p_value / 2.0
