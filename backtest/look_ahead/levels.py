"""Questions about a signal and later values: a later return, price or channel, or means of the whole sample.

Shape suffixes: T sessions, N firms, D dates of the signal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import numpy as np

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, judged_by
from backtest.look_ahead.returns import MIN_FIRMS, sample_dates
from features.arithmetic.transforms import rank_normal
from features.arrays import AnyFloatArray, Float32Array, FloatArray, IntArray
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
    for start, span in product((0, 1), _SPANS):
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


def check(data: Delivery) -> Result:
    """Compare each input with later channels, prices and volume (`equal_to_later_value`)."""
    values = KnownValues({**data.channels, **prices_of(data.panel)}, data.characteristics)
    priced_TN = np.isfinite(data.panel.close_TN)

    def question(name: str, x_TN: FloatArray) -> Iterator[Finding]:
        yield replace(equal_to_later_value(np.where(priced_TN, x_TN, np.nan), values, name), subject=name)

    return data.ask(question, "None of {n} inputs matches a series of a later session.")


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
