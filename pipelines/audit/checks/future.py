"""Perturbation of the future: no feature at or before t may change when all data after t are replaced.

``future`` replaces the future of all firms at a few sessions. ``dates`` replaces that of a few firms at many
sessions, drawn so that every kind of date is among them: code that looks ahead on Fridays, at month ends or
in one year alone is found on such dates and on no other.

Shape suffixes: T sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.look_ahead.finding import Result, answer, skipped
from backtest.look_ahead.noise import replace_future
from features.arrays import BoolArray, DateArray
from pipelines.audit.refit import Difference, differences_until
from pipelines.audit.subject import AFTER, Subject
from pipelines.dataset import build as datasets
from pipelines.dataset.build import Dataset
from pipelines.errors import DataError

FIRMS: Final = 400
"""Firms that are sampled at two of three sessions of a full audit; at every third, all firms are replaced."""
QUICK_FIRMS: Final = 200
"""Firms that are sampled in a quick audit."""
FEW_FIRMS: Final = 12
HISTORY: Final = 320
"""Sessions before t that most of the small datasets hold; features with a longer window are unknown there."""
LONG_EVERY: Final = 10
"""Every tenth small dataset holds the history that all features need."""
_AFTER_FEW: Final = 6
_NAMED: Final = 3
_STAGES: Final = (("the list", "the panel", "the names"), ("statement",), ("the universe",), ("",))
"""Beginnings of the names of arrays, by the stage that computes them."""
_WEEKDAYS: Final = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_NEAR_END: Final = 3
_PARTS: Final = 8
_NO_SESSIONS: Final = "There are too few sessions with a universe."


def future(subject: Subject) -> Result:
    """Compare the dataset's arrays up to t with those of a dataset whose later data are replaced by noise.

    The comparison is to the bit. It covers sessions, the panel, groups, statements, the universe, channels,
    characteristics (including inputs) and labels that end by t (including shorter horizons). The data of all
    firms are replaced at once, which also reveals leaks through the cross-section. At two of three sessions,
    and in a quick audit, these are the firms of a sample.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return skipped(_NO_SESSIONS)
    rows: list[dict[str, Any]] = []
    for k, t in enumerate(times):
        firms = QUICK_FIRMS if subject.budget.quick else FIRMS if k % 3 else None
        tables = subject.window(t - subject.lookback, t + AFTER)
        if firms is not None:
            tables = subject.sample_firms(tables, firms)
        whole = tables["prices"].height == subject.tables["prices"].height
        true = subject.dataset if whole else datasets.build_dataset(tables, subject.config)
        first = int(np.searchsorted(subject.dataset.panel.dates_T, true.panel.dates_T[0]))
        rows += [
            {
                "after": subject.day(t),
                "what": one.what,
                "first_on": subject.day(one.session + first) if one.session >= 0 else None,
                "ticker": true.panel.tickers_N[one.column] if one.column >= 0 else "-",
            }
            for one in _differences(subject, t, tables, true)
        ]
    if not rows:
        data = subject.dataset
        sentence = (
            f"{len(data.channel_names) + len(data.characteristic_names)} features, the universe and ended "
            "labels are bitwise identical when all data after "
            f"{', '.join(str(subject.day(t)) for t in times)} are replaced by noise."
        )
        return answer("pass", sentence)
    named = _furthest_upstream(row["what"] for row in rows)
    one = next(row for row in rows if row["what"] == named[0])
    where = f", first at {one['first_on']} for {one['ticker']}" if one["first_on"] else ""
    sentence = (
        f"{listed(named)} used future data: replacing all data after {one['after']} changed earlier "
        f"values{where}."
    )
    return answer("fail", sentence, rows)


def dates(subject: Subject) -> Result:
    """Compare datasets of a few firms up to t, at sessions of every kind, when all later data are noise."""
    times = draw_of_every_kind(subject, subject.budget.cuts)
    if not times:
        return skipped(_NO_SESSIONS)
    few = subject.sample_firms(subject.tables, FEW_FIRMS)
    # the whole of a short history is built once, a window of a long one for each session
    short = subject.dataset.panel.n_sessions <= 2 * HISTORY
    whole: Dataset | None = None
    found: dict[int, list[Difference]] = {}
    for k, t in enumerate(times):
        history = subject.lookback if k % LONG_EVERY == 0 else min(subject.lookback, HISTORY)
        tables = few if short else subject.window(t - history, t + _AFTER_FEW, few)
        try:
            true = whole or datasets.build_dataset(tables, subject.config)
            found[t] = _differences(subject, t, tables, true)
        except DataError:  # the universe of a few firms is empty
            continue
        whole = true if short else None
    if not found:
        return skipped(f"{FEW_FIRMS} firms are too few for a universe.")
    hits = {t: diffs for t, diffs in found.items() if diffs}
    if not hits:
        sentence = (
            f"Features, the universe and ended labels of {FEW_FIRMS} firms are bitwise identical when all "
            f"data after each of {len(found)} sessions of every kind are replaced by noise."
        )
        return answer("pass", sentence)
    rows = [{"after": subject.day(t), "what": one.what} for t, diffs in hits.items() for one in diffs]
    named = _furthest_upstream(str(row["what"]) for row in rows)
    first = next(row["after"] for row in rows if row["what"] == named[0])
    kind = _common_kind(subject, list(hits), [t for t in found if t not in hits])
    sentence = (
        f"{listed(named)} used future data on {len(hits)} of {len(found)} sessions"
        f"{f', always on {kind}' if kind else ''}, first after {first}: replacing all later data changed "
        "earlier values."
    )
    return answer("fail", sentence, rows)


def listed(names: list[str]) -> str:
    """Name up to three things, as the beginning of a sentence."""
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{shown[0].upper()}{shown[1:]}{more}"


def _differences(
    subject: Subject, t: int, tables: dict[str, pl.DataFrame], true: Dataset
) -> list[Difference]:
    """Differences up to t of a dataset whose later data are noise."""
    day, label = subject.day(t), subject.config.label
    noisy = datasets.build_dataset(replace_future(tables, day, seed=subject.seed + t), subject.config)
    at = int(np.searchsorted(true.panel.dates_T, np.datetime64(day)))
    return differences_until(at, true, noisy, label.horizon, label.delay)


def _furthest_upstream(names: Iterable[str]) -> list[str]:
    """Return the differences of the earliest stage; later stages differ as a consequence."""
    distinct = list(dict.fromkeys(names))
    staged = ([name for name in distinct if name.startswith(starts)] for starts in _STAGES)
    return next(stage for stage in staged if stage)


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
        kinds[f"sessions from {dates_T[first]} to {dates_T[last]}"] = _flags(np.arange(first, last + 1), T)
    kinds["eves of listings, halts, splits, statements and membership changes"] = _flags(subject.eves, T)
    return kinds


def _calendar(dates_T: DateArray) -> dict[str, BoolArray]:
    weekday_T = (dates_T.astype(np.int64) + 3) % 7
    kinds = {name: weekday_T == day for day, name in enumerate(_WEEKDAYS)}
    for unit, name in (("M", "month"), ("Y", "year")):
        period_T = dates_T.astype(f"datetime64[{unit}]")
        starts_T = np.concatenate([[True], period_T[1:] != period_T[:-1]])
        kinds[f"first sessions of a {name}"] = starts_T
        kinds[f"last sessions of a {name}"] = np.concatenate([starts_T[1:], [False]])
    month_T = dates_T.astype("datetime64[M]").astype(np.int64) % 12
    starts_T = kinds["first sessions of a month"]
    kinds["first sessions of a quarter"] = starts_T & (month_T % 3 == 0)
    kinds["last sessions of a quarter"] = kinds["last sessions of a month"] & (month_T % 3 == 2)
    near = [np.roll(starts_T, off) for off in range(-_NEAR_END, _NEAR_END + 1)]
    kinds["sessions near the turn of a month"] = np.any(near, axis=0)
    kinds |= {f"month {k + 1:02}": month_T == k for k in range(12)}
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
    usable = subject.decisions[subject.decisions < subject.dataset.panel.n_sessions - 3]
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
        pick = int(rng.choice(np.flatnonzero(left & (worth >= worth[left].max() - 1e-12))))
        left[pick] = False
        drawn += of_kind[pick]
        chosen.append(int(usable[pick]))
    return sorted(chosen)


def _common_kind(subject: Subject, hits: list[int], others: list[int]) -> str | None:
    """Name the kind of dates that all hits share and no other session has; None if there is no such kind."""
    for name, flags_T in kinds_of_dates(subject).items() if others else ():
        if flags_T[hits].all() and not flags_T[others].any():
            return name
    return None
