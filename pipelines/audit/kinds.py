"""Kinds of dates, and a draw of sessions in which every kind is present.

Code that looks ahead on Fridays, at month ends or in one year alone is found on such dates and on no other.

Shape suffixes: T sessions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, DateArray
from pipelines.audit.subject import Subject

_WEEKDAYS: Final = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_ENDS: Final = (("M", "month"), ("Y", "year"))
_NEAR_END: Final = 3
_PARTS: Final = 8


def kinds_of_dates(subject: Subject) -> dict[str, BoolArray]:
    """Flag the sessions of each kind: calendar, segments of folds, parts of the sample, eves of events."""
    dates_T = subject.dataset.panel.dates_T.astype("datetime64[D]")
    T = len(dates_T)
    kinds = _calendar(dates_T)
    for fold in subject.folds:
        for name, sessions in (("train", fold.train), ("validation", fold.valid), ("test", fold.test)):
            if name == "test" or fold is subject.folds[-1]:
                kinds[f"the {name} sessions of fold {fold.index}"] = _flags(sessions, T)
    for part in range(_PARTS):
        first, last = T * part // _PARTS, T * (part + 1) // _PARTS - 1
        sessions = np.arange(first, last + 1)
        kinds[f"sessions from {dates_T[first]} to {dates_T[last]}"] = _flags(sessions, T)
    kinds["eves of listings, halts, splits, statements and membership changes"] = _flags(subject.eves, T)
    return kinds


def _calendar(dates_T: DateArray) -> dict[str, BoolArray]:
    weekday_T = (dates_T.astype(np.int64) + 3) % 7
    kinds = {name: weekday_T == day for day, name in enumerate(_WEEKDAYS)}
    for unit, name in _ENDS:
        period_T = dates_T.astype(f"datetime64[{unit}]")
        starts_T = np.concatenate([[True], period_T[1:] != period_T[:-1]])
        kinds[f"first sessions of a {name}"] = starts_T
        kinds[f"last sessions of a {name}"] = np.concatenate([starts_T[1:], [False]])
    month_T = dates_T.astype("datetime64[M]").astype(np.int64) % 12
    starts_T = kinds["first sessions of a month"]
    kinds["first sessions of a quarter"] = starts_T & (month_T % 3 == 0)
    kinds["last sessions of a quarter"] = kinds["last sessions of a month"] & (month_T % 3 == 2)
    near_T = np.zeros(len(dates_T), dtype=np.bool_)
    for off in range(-_NEAR_END, _NEAR_END + 1):
        near_T |= np.roll(starts_T, off)
    kinds["sessions near the turn of a month"] = near_T
    names = np.datetime_as_string(np.arange("2001-01", "2002-01", dtype="datetime64[M]"))
    kinds |= {f"month {name[5:]}": month_T == k for k, name in enumerate(names)}
    gap_T = np.append(np.diff(dates_T).astype(np.int64), 1)
    kinds["eves of a holiday"] = (gap_T > 1) & ~((gap_T == 3) & (weekday_T == 4))
    kinds["sessions after a holiday"] = np.roll(kinds["eves of a holiday"], 1)
    day_T = (dates_T - dates_T.astype("datetime64[M]")).astype(np.int64)
    kinds["third Fridays of a month"] = (weekday_T == 4) & (day_T >= 14) & (day_T <= 20)
    return kinds


def _flags(sessions: npt.NDArray[np.integer], T: int) -> BoolArray:
    flags_T = np.zeros(T, dtype=np.bool_)
    flags_T[sessions] = True
    return flags_T


def draw_of_every_kind(subject: Subject, count: int) -> list[int]:
    """Draw decision sessions such that every kind is there before any kind is there again.

    Of the sessions that could be next, one is drawn at random among those that cover most of the kinds that
    were drawn least.
    """
    T = subject.dataset.panel.n_sessions
    usable = subject.decisions[subject.decisions < T - 3]
    if not len(usable):
        return []
    rng = np.random.default_rng((subject.seed, 12))
    present = [flags_T[usable] for flags_T in kinds_of_dates(subject).values() if flags_T[usable].any()]
    of_kind = np.stack(present, axis=1).astype(np.float64)
    rare = 1.0 / of_kind.sum(axis=0)  # a kind with few sessions decides, one with many comes by itself
    drawn = np.zeros(of_kind.shape[1])
    left = np.ones(len(usable), dtype=np.bool_)
    chosen: list[int] = []
    for _ in range(min(count, len(usable))):
        worth = of_kind @ (rare / 4.0**drawn) + of_kind @ (1.0 / 4.0**drawn)
        best = np.flatnonzero(left & (worth >= worth[left].max() - 1e-12))
        pick = int(rng.choice(best))
        left[pick] = False
        drawn += of_kind[pick]
        chosen.append(int(usable[pick]))
    return sorted(chosen)


def common_kind(subject: Subject, hits: list[int], others: list[int]) -> str | None:
    """Name the kind of dates that all hits share and no other session has; None if there is no such kind."""
    for name, flags_T in kinds_of_dates(subject).items():
        if all(flags_T[t] for t in hits) and not any(flags_T[t] for t in others):
            return name
    return None
