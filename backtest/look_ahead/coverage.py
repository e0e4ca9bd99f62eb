"""Checks of which firms have a signal: a choice that needs tomorrow's price is look-ahead as well.

Shape suffixes: T sessions, N firms, D dates of the signal.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from backtest.look_ahead.finding import Finding
from features.arrays import BoolArray, FloatArray, IntArray

_BEFORE: Final = 5  # sessions before a firm's last price at which its coverage is compared
_MIN_ENDINGS: Final = 10
_GAP_SHARE: Final = 0.25  # of the firms without a price: a gap in the data, not endings of firms
_ERRORS: Final = 4.0
_SILENT: Final = 60  # sessions without a price until the end, from which a firm counts as gone


def needs_next_price(signal_TN: FloatArray, universe_TN: BoolArray, traded_TN: BoolArray) -> Finding:
    """Check that firms are covered on the last session before they stop trading, as they were before.

    A file from which rows without a next return were dropped lacks the firms that halt or are delisted
    tomorrow, and nobody knows these today. The same firms five sessions earlier are the comparison, so a firm
    that leaves the file in time, for example after a takeover was announced, is no evidence.

    Parameters
    ----------
    signal_TN : signal; NaN where there is none.
    universe_TN : True where a firm may be forecast.
    traded_TN : True where a firm has a price.
    """
    name = "needs tomorrow's price"
    present_TN = np.isfinite(signal_TN)
    dates_T = np.asarray(present_TN.any(axis=1))
    stops_TN = traded_TN[:-1] & ~traded_TN[1:]
    gap_T = stops_TN.sum(axis=1) > _GAP_SHARE * np.maximum(traded_TN[:-1].sum(axis=1), 1)
    stops_TN &= universe_TN[:-1] & (dates_T[:-1] & ~gap_T)[:, None]
    t, n = np.nonzero(stops_TN)
    t, n = t[t >= _BEFORE], n[t >= _BEFORE]
    compared = dates_T[t - _BEFORE] & universe_TN[t - _BEFORE, n]
    t, n = t[compared], n[compared]
    if len(t) < _MIN_ENDINGS:
        return Finding(name, "skipped", f"Only {len(t)} halts and endings of firms fall into the file.")
    last, before = float(present_TN[t, n].mean()), float(present_TN[t - _BEFORE, n].mean())
    words = (
        f"On the last session before a halt or ending, {last:.0%} of {len(t):,} firms have a signal, and "
        f"{before:.0%} five sessions earlier"
    )
    if before - last > _ERRORS * 0.5 / len(t) ** 0.5 and last < 0.5 * before:
        return Finding(
            name, "fail", f"{words}: rows were left out because there is no price tomorrow.", before - last
        )
    return Finding(name, "pass", f"{words}.", before - last)


def only_survivors(
    signal_TN: FloatArray, universe_TN: BoolArray, traded_TN: BoolArray, rows_D: IntArray
) -> Finding:
    """Check that the file covers firms that stopped trading before its end, as it covers the others.

    Parameters
    ----------
    signal_TN, universe_TN, traded_TN
        As in `needs_next_price`.
    rows_D
        Sampled dates of the signal.
    """
    name = "only survivors"
    first, last = int(rows_D[0]), int(rows_D[-1])
    listed_N = np.asarray(universe_TN[first : last + 1].any(axis=0))
    gone_N = listed_N & ~traded_TN[max(last - _SILENT, 0) : last + 1].any(axis=0)
    covered_N = np.asarray(np.isfinite(signal_TN).any(axis=0))
    stays_N = listed_N & ~gone_N
    if gone_N.sum() < _MIN_ENDINGS or stays_N.sum() < _MIN_ENDINGS:
        return Finding(
            name, "skipped", f"Only {int(gone_N.sum())} firms of the universe end within the file."
        )
    gone, stays = float(covered_N[gone_N].mean()), float(covered_N[stays_N].mean())
    words = (
        f"{gone:.0%} of {int(gone_N.sum()):,} firms that stopped trading have a signal, and {stays:.0%} of "
        "the others"
    )
    if stays >= 0.5 and gone < 0.1 * stays:
        return Finding(name, "warn", f"{words}: the firms may have been chosen at the end.", stays - gone)
    return Finding(name, "pass", f"{words}.", stays - gone)


def presence(signal_TN: FloatArray, universe_TN: BoolArray) -> FloatArray | None:
    """Whether a firm of the universe has a signal, as a signal of its own: 1 or 0, NaN outside.

    Returns
    -------
    ndarray of shape (T, N) or None
        None if nearly all firms, or hardly any, have a signal on the file's dates.
    """
    present_TN = np.isfinite(signal_TN)
    inside_TN = universe_TN & np.asarray(present_TN.any(axis=1))[:, None]
    share = float(present_TN[inside_TN].mean()) if inside_TN.any() else 1.0
    if not 0.02 < share < 0.98:
        return None
    return np.where(inside_TN, present_TN.astype(np.float64), np.nan)
