"""Inputs that are early: a user's number at t that is a channel or a price of a later session.

Shape suffixes: N firms, I inputs, K known series.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arithmetic.transforms import rank_normal
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset.build import INPUT_PREFIX, to_panel

NAME = "timing"
FloatArray = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.float32]
AHEAD: Final = 3
"""Sessions ahead that are tried."""
DATES: Final = 60
ALIKE: Final = 0.98
"""Mean rank correlation within a date from which on an input is taken for the series."""
NEARER: Final = 0.25
"""How much less than the same session's the later session's distance from 1 must be: slow series are like
themselves on the next day, but only an early one is nearer to the later value."""


def check(subject: Subject) -> Result:
    """Compare each input at t with every channel, price and volume at t, t+1, ... t+3.

    A series that looks back holds at t+3 what was known at t, so characteristics count as an innocent
    explanation at t and never as a later one.
    """
    if not subject.inputs:
        return Result(NAME, "skipped", "The config has no inputs of the user's own.")
    own_ITN = [_ranked(_raw(subject, name), subject) for name in subject.inputs]
    of_the_day, looking_back = _series(subject)
    names = list(of_the_day)
    dates = _dates(subject)
    rows = []
    for name, input_TN in zip(subject.inputs, own_ITN, strict=True):
        now = max(_alike(input_TN, one_TN, dates, 0) for one_TN in (of_the_day | looking_back).values())
        later_AK = np.array(
            [
                [_alike(input_TN, of_the_day[series], dates, ahead) for series in names]
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
                "wrong": later >= ALIKE and 1.0 - later < NEARER * (1.0 - now),
            }
        )
    evidence = pl.DataFrame(rows)
    early = evidence.filter(pl.col("wrong"))
    if early.is_empty():
        return Result(
            NAME, "pass", f"None of {len(rows)} inputs is nearer to a later session's series.", evidence
        )
    one = early.row(0, named=True)
    more = f" ({early.height - 1} more)" if early.height > 1 else ""
    return Result(
        NAME,
        "fail",
        f"Input {one['input']} at t is {one['series']} of t+{one['sessions_ahead']} (rank correlation "
        f"{one['correlation_then']:.4f}, and {one['best_correlation_now']:.4f} with anything known at t): "
        f"it is early{more}.",
        evidence,
    )


def _series(subject: Subject) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """Series of the day's own numbers, and those that look back, ranked within the date."""
    data = subject.dataset
    named = {f"channel {n}": data.channels_TNC[:, :, c] for c, n in enumerate(data.channel_names)}
    panel = {"the adjusted close": data.panel.close_TN, "the raw close": data.panel.raw_close_TN}
    if data.panel.volume_TN is not None:
        panel["the volume"] = data.panel.volume_TN
    of_the_day = {name: _ranked(array_TN, subject) for name, array_TN in (named | panel).items()}
    looking_back = {
        name: data.characteristics_TNF[:, :, f]
        for f, name in enumerate(data.characteristic_names)
        if not name.startswith(INPUT_PREFIX)
    }
    return of_the_day, looking_back


def _raw(subject: Subject, name: str) -> FloatArray:
    rows = subject.tables["inputs"].filter(pl.col("name") == name)
    return to_panel(rows, "value", subject.dataset.panel)


def _ranked(array_TN: npt.NDArray[np.floating], subject: Subject) -> npt.NDArray[np.float32]:
    """Rank within the dates that are compared; the others stay 0."""
    out_TN = np.zeros(array_TN.shape, dtype=np.float32)
    dates = np.unique(np.minimum(_dates(subject)[:, None] + np.arange(AHEAD + 1), len(array_TN) - 1).ravel())
    known_DN = np.isfinite(subject.dataset.panel.close_TN[dates])
    out_TN[dates] = np.nan_to_num(rank_normal(array_TN[dates], known_DN), nan=0.0)
    return out_TN


def _dates(subject: Subject) -> npt.NDArray[np.int64]:
    usable = subject.decisions[subject.decisions < subject.dataset.panel.n_sessions - AHEAD]
    return usable[np.linspace(0, len(usable) - 1, min(DATES, len(usable))).astype(np.int64)]


def _alike(
    input_TN: npt.NDArray[np.float32],
    series_TN: npt.NDArray[np.float32],
    dates: npt.NDArray[np.int64],
    ahead: int,
) -> float:
    """Mean over dates of the absolute correlation between the input and the series some sessions on."""
    x_DN, y_DN = input_TN[dates].astype(np.float64), series_TN[dates + ahead].astype(np.float64)
    both_DN = (x_DN != 0) & (y_DN != 0)
    x_DN, y_DN = np.where(both_DN, x_DN, 0.0), np.where(both_DN, y_DN, 0.0)
    size_D = np.sqrt((x_DN**2).sum(axis=1) * (y_DN**2).sum(axis=1))
    used_D = (both_DN.sum(axis=1) >= 5) & (size_D > 0)
    if not used_D.any():
        return 0.0
    return float(np.abs(np.mean((x_DN * y_DN).sum(axis=1)[used_D] / size_D[used_D])))
