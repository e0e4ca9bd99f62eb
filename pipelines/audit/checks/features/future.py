"""Future perturbation of features: no value at or before t may change when all data after t are replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from pipelines.audit.compare import Difference, differences_until
from pipelines.audit.noise import replace_future
from pipelines.audit.result import Result
from pipelines.audit.subject import AFTER, Subject
from pipelines.dataset import build as datasets

NAME = "future"
_NAMED = 3
FIRMS = 400
"""Firms that are sampled at two of three sessions of a full audit; at every third, all firms are replaced."""
QUICK_FIRMS = 200
"""Firms that are sampled in a quick audit."""


def check(subject: Subject) -> Result:
    """Compare the dataset's arrays up to t with those of a dataset whose later data are replaced by noise.

    The comparison is to the bit. It covers sessions, the panel, groups, statements, the universe, channels,
    characteristics (including inputs) and labels that end by t (including shorter horizons). The data of all
    firms are replaced at once, which also reveals leaks through the cross-section. At two of three sessions,
    and in a quick audit, these are the firms of a sample.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return Result(NAME, "skipped", "There are too few sessions with a universe.")
    rows: list[dict[str, Any]] = []
    for k, t in enumerate(times):
        firms = QUICK_FIRMS if subject.budget.quick else FIRMS if k % 3 else None
        rows += [
            {
                "after": subject.day(t),
                "what": diff.what,
                "first_on": subject.day(diff.session) if diff.session >= 0 else None,
                "ticker": ticker,
            }
            for diff, ticker in _replaced(subject, t, firms)
        ]
    days = ", ".join(str(subject.day(t)) for t in times)
    if not rows:
        compared = len(subject.dataset.channel_names) + len(subject.dataset.characteristic_names)
        return Result(
            NAME,
            "pass",
            f"{compared} features, the universe and ended labels are bitwise identical when all data after "
            f"{days} are replaced by noise.",
        )
    named = furthest_upstream([row["what"] for row in rows])
    first = next(row for row in rows if row["what"] == named[0])
    where = f", first at {first['first_on']} for {first['ticker']}" if first["first_on"] else ""
    return Result(
        NAME,
        "fail",
        f"{_listed(named)} used future data: replacing all data after {first['after']} changed earlier "
        f"values{where}.",
        pl.DataFrame(rows, infer_schema_length=None),
    )


def furthest_upstream(names: Iterable[str]) -> list[str]:
    """Return the differences of the earliest stage; later stages differ as a consequence."""
    by_stage: dict[int, list[str]] = {}
    for what in names:
        stage = by_stage.setdefault(_stage(what), [])
        if what not in stage:
            stage.append(what)
    return by_stage[min(by_stage)]


def _replaced(subject: Subject, t: int, firms: int | None) -> list[tuple[Difference, str]]:
    config = subject.config
    tables = subject.window(t - subject.lookback, t + AFTER)
    if firms is not None:
        tables = subject.sample_firms(tables, firms)
    whole = tables["prices"].height == subject.tables["prices"].height
    true = subject.dataset if whole else datasets.build_dataset(tables, config)
    noisy = datasets.build_dataset(replace_future(tables, subject.day(t), seed=subject.seed + t), config)
    at = int(np.searchsorted(true.panel.dates_T, subject.dataset.panel.dates_T[t]))
    shift = t - at
    return [
        (
            Difference(diff.what, diff.session + shift if diff.session >= 0 else -1),
            true.panel.tickers_N[diff.column] if diff.column >= 0 else "-",
        )
        for diff in differences_until(at, true, noisy, config.label.horizon, config.label.delay)
    ]


def _stage(what: str) -> int:
    if what.startswith(("the list", "the panel", "the names")):
        return 0
    if what.startswith("statement"):
        return 1
    return 2 if what.startswith("the universe") else 3


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    shown = shown[0].upper() + shown[1:]
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
