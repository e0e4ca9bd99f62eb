"""Inputs that are early: a user's input at t that equals a channel or price of a later session.

Shape suffixes: N firms, I inputs, K known series.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arithmetic.transforms import rank_normal
from features.arrays import FloatArray
from pipelines.audit.result import Result, not_examined
from pipelines.audit.subject import Subject
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.dataset.market import to_panel

NAME = "timing"
Ranks = npt.NDArray[np.float32]
AHEAD: Final = 3
"""Number of sessions ahead to compare with."""
DATES: Final = 60
MIN_CORRELATION: Final = 0.98
"""Minimum mean cross-sectional rank correlation for which an input counts as equal to a series."""
NEARER: Final = 0.25
"""The correlation with the later session must be this much nearer to 1: its distance from 1 is below this
fraction of the distance for session t. A slow series resembles its own next value, but only an early series
is nearer to the later value."""


def check(subject: Subject) -> Result:
    """Compare each input at t with every channel, price and volume at t, t+1, t+2 and t+3.

    Characteristics are compared only at t. They look back, so their value at t+3 may contain only data known
    at t, and a match would not prove look-ahead.
    """
    if not subject.inputs:
        return Result(NAME, "skipped", "The config has no inputs.")
    own_ITN = [_ranked(_raw(subject, name), subject) for name in subject.inputs]
    daily, looking_back = _series(subject)
    names = list(daily)
    dates = _dates(subject)
    rows, unknown = [], {}
    for name, input_TN in zip(subject.inputs, own_ITN, strict=True):
        if not input_TN[dates].any():
            unknown[name] = f"its values differ between firms on none of {len(dates)} forecast dates"
            continue
        now = max(_rank_correlation(input_TN, one_TN, dates, 0) for one_TN in (daily | looking_back).values())
        later_AK = np.array(
            [
                [_rank_correlation(input_TN, daily[series], dates, ahead) for series in names]
                for ahead in range(1, AHEAD + 1)
            ]
        )
        ahead, k = np.unravel_index(int(later_AK.argmax()), later_AK.shape)
        later = float(later_AK[ahead, k])
        rows.append(
            {
                "input": name,
                "series": names[k],
                "sessions_ahead": int(ahead) + 1,
                "correlation_then": later,
                "best_correlation_now": now,
                "failed": later >= MIN_CORRELATION and 1.0 - later < NEARER * (1.0 - now),
            }
        )
    left_out = not_examined(unknown)
    if not rows:
        return Result(NAME, "skipped", left_out)
    evidence = pl.DataFrame(rows)
    early = evidence.filter(pl.col("failed"))
    if early.is_empty():
        return Result(
            NAME,
            "pass",
            f"None of {len(rows)} inputs matches a series of a later session.{left_out and ' ' + left_out}",
            evidence,
        )
    one = early.row(0, named=True)
    more = f" ({early.height - 1} more)" if early.height > 1 else ""
    return Result(
        NAME,
        "fail",
        f"Input {one['input']} at t equals {one['series']} of t+{one['sessions_ahead']}: their rank "
        f"correlation is {one['correlation_then']:.4f}, but at most {one['best_correlation_now']:.4f} with "
        f"series known at t{more}.",
        evidence,
    )


def _series(subject: Subject) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """Series of daily values, and series that look back, both ranked within the date."""
    data = subject.dataset
    named = {f"channel {n}": data.channels_TNC[:, :, c] for c, n in enumerate(data.channel_names)}
    panel = {"the adjusted close": data.panel.close_TN, "the raw close": data.panel.raw_close_TN}
    if data.panel.volume_TN is not None:
        panel["the volume"] = data.panel.volume_TN
    daily = {name: _ranked(array_TN, subject) for name, array_TN in (named | panel).items()}
    looking_back = {
        name: data.characteristics_TNF[:, :, f]
        for f, name in enumerate(data.characteristic_names)
        if not name.startswith(INPUT_PREFIX)
    }
    return daily, looking_back


def _raw(subject: Subject, name: str) -> FloatArray:
    rows = subject.tables["inputs"].filter(pl.col("name") == name)
    return to_panel(rows, "value", subject.dataset.panel)


def _ranked(array_TN: npt.NDArray[np.floating], subject: Subject) -> npt.NDArray[np.float32]:
    """Rank within the dates to compare; other dates stay 0."""
    out_TN = np.zeros(array_TN.shape, dtype=np.float32)
    dates = np.unique(np.minimum(_dates(subject)[:, None] + np.arange(AHEAD + 1), len(array_TN) - 1).ravel())
    known_DN = np.isfinite(subject.dataset.panel.close_TN[dates])
    out_TN[dates] = np.nan_to_num(rank_normal(array_TN[dates], known_DN), nan=0.0)
    return out_TN


def _dates(subject: Subject) -> npt.NDArray[np.int64]:
    usable = subject.decisions[subject.decisions < subject.dataset.panel.n_sessions - AHEAD]
    return usable[np.linspace(0, len(usable) - 1, min(DATES, len(usable))).astype(np.int64)]


def _rank_correlation(
    input_TN: npt.NDArray[np.float32],
    series_TN: npt.NDArray[np.float32],
    dates: npt.NDArray[np.int64],
    ahead: int,
) -> float:
    """Absolute mean over dates of the correlation of the input with the series ``ahead`` sessions later."""
    x_DN, y_DN = input_TN[dates].astype(np.float64), series_TN[dates + ahead].astype(np.float64)
    both_DN = (x_DN != 0) & (y_DN != 0)
    x_DN, y_DN = np.where(both_DN, x_DN, 0.0), np.where(both_DN, y_DN, 0.0)
    size_D = np.sqrt((x_DN**2).sum(axis=1) * (y_DN**2).sum(axis=1))
    used_D = (both_DN.sum(axis=1) >= 5) & (size_D > 0)
    if not used_D.any():
        return 0.0
    return float(np.abs(np.mean((x_DN * y_DN).sum(axis=1)[used_D] / size_D[used_D])))
