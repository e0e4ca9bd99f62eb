"""Every kind of date: values that look ahead on some dates alone, such as Fridays or the first of a month.

The check `future` replaces the future of all firms at a few sessions. Here the future of a few firms is
replaced at many sessions, drawn so that every kind of date is among them (`pipelines.audit.kinds`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from pipelines.audit.checks.features.future import furthest_upstream
from pipelines.audit.compare import Difference, differences_until
from pipelines.audit.kinds import common_kind, draw_of_every_kind
from pipelines.audit.noise import replace_future
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset import build as datasets
from pipelines.dataset.build import Dataset

NAME = "dates"
FIRMS: Final = 12
HISTORY: Final = 320
"""Sessions before t that most of the small datasets hold; features with a longer window are unknown there."""
LONG_EVERY: Final = 10
"""Every tenth small dataset holds the history that all features need."""
_AFTER: Final = 6
_NAMED: Final = 3


def check(subject: Subject) -> Result:
    """Compare datasets of a few firms up to t, at sessions of every kind, when all later data are noise."""
    times = draw_of_every_kind(subject, subject.budget.cuts)
    if not times:
        return Result(NAME, "skipped", "There are too few sessions with a universe.")
    small = _few_firms(subject)
    # the whole of a short history is built once, a window of a long one for each session
    whole = _built(small, subject) if subject.dataset.panel.n_sessions <= 2 * HISTORY else None
    found = {t: _replaced(small, whole, subject, t, long=k % LONG_EVERY == 0) for k, t in enumerate(times)}
    tried = [t for t, diffs in found.items() if diffs is not None]
    if not tried:
        return Result(NAME, "skipped", f"{FIRMS} firms are too few for a universe.")
    hits = {t: diffs for t in tried if (diffs := found[t])}
    if not hits:
        return Result(
            NAME,
            "pass",
            f"Features, the universe and ended labels of {FIRMS} firms are bitwise identical when all data "
            f"after each of {len(tried)} sessions of every kind are replaced by noise.",
        )
    rows: list[dict[str, Any]] = [
        {"after": subject.day(t), "what": one.what} for t, diffs in hits.items() for one in diffs
    ]
    named = furthest_upstream([row["what"] for row in rows])
    first = next(row for row in rows if row["what"] == named[0])
    others = [t for t in tried if t not in hits]
    kind = common_kind(subject, list(hits), others) if others else None
    only = f", always on {kind}" if kind else ""
    shown = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return Result(
        NAME,
        "fail",
        f"{shown[0].upper()}{shown[1:]} used future data on {len(hits)} of {len(tried)} sessions{only}, "
        f"first after {first['after']}: replacing all later data changed earlier values.",
        pl.DataFrame(rows),
    )


def _few_firms(subject: Subject) -> dict[str, pl.DataFrame]:
    tables = {name: frame for name, frame in subject.tables.items() if not name.startswith("truth_")}
    return subject.sample_firms(tables, FIRMS)


def _replaced(
    tables: dict[str, pl.DataFrame], whole: Dataset | None, subject: Subject, t: int, *, long: bool
) -> list[Difference] | None:
    """Differences up to t of a small dataset whose later data are noise; None if it has no universe."""
    day = subject.day(t)
    selected = tables if whole is not None else _window(tables, subject, t, long=long)
    true = _built(selected, subject) if whole is None else whole
    noisy = _built(replace_future(selected, day, seed=subject.seed + t), subject)
    if true is None or noisy is None:
        return None
    at = int(np.searchsorted(true.panel.dates_T, np.datetime64(day)))
    label = subject.config.label
    return differences_until(at, true, noisy, label.horizon, label.delay)


def _window(
    tables: dict[str, pl.DataFrame], subject: Subject, t: int, *, long: bool
) -> dict[str, pl.DataFrame]:
    history = subject.lookback if long else min(subject.lookback, HISTORY)
    last = subject.dataset.panel.n_sessions - 1
    start, end = subject.day(max(t - history, 0)), subject.day(min(t + _AFTER, last))
    within = pl.col("date").is_between(start, end)
    selected = {
        name: frame.filter(within) if name in ("prices", "inputs") else frame
        for name, frame in tables.items()
    }
    if "fundamentals" in selected:
        selected["fundamentals"] = selected["fundamentals"].filter(pl.col("known_at") <= end)
    return selected


def _built(tables: dict[str, pl.DataFrame], subject: Subject) -> Dataset | None:
    from pipelines.errors import DataError

    try:
        return datasets.build_dataset(tables, subject.config)
    except DataError:  # the universe of a few firms is empty
        return None
