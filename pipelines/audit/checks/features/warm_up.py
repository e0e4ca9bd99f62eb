"""Warm-up: a feature must not depend on sessions before its declared window.

Shape suffixes: T sessions, N firms, K features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from features.library.channels import CHANNELS, compute_channels
from features.library.characteristics import CHARACTERISTICS, compute_characteristics
from features.panel.panel import Panel, build_panel
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "warm_up"
TOLERANCE: Final = 1e-6
"""Tolerance, relative to the value or to the median size in the cross-section. Forward adjustment factors
that start on another session round differently, and features are stored in float32."""
ROUNDING: Final = 1e-9
"""Absolute tolerance of a feature that is 0 for most firms. Features subtract numbers near 1, such as the
place of a close in its range, and where most bars have no range, an exact 0 is compared with the rounding of
a price over its range."""
FIRMS: Final = 400
QUICK_FIRMS: Final = 200
"""Firms whose features are computed; a window is declared for all firms alike."""
EARLIER: Final = 120
"""Number of sessions by which the longer history starts earlier."""


@dataclass(frozen=True, slots=True)
class _Kind:
    word: str
    registry: Mapping[str, Any]
    compute: Any
    names: tuple[str, ...]


def check(subject: Subject) -> Result:
    """Compute every feature at t from its declared window and from a longer history, and compare.

    Firms with a split before the window are left out: their share counts are adjusted for splits that the
    shorter history does not contain.
    """
    firms = QUICK_FIRMS if subject.budget.quick else FIRMS
    subject = replace(subject, tables=subject.sample_firms(subject.tables, firms))
    kinds = (
        _Kind("channel", CHANNELS, compute_channels, subject.dataset.channel_names),
        _Kind(
            "characteristic",
            CHARACTERISTICS,
            compute_characteristics,
            tuple(name for name in subject.dataset.characteristic_names if name in CHARACTERISTICS),
        ),
    )
    rows: list[dict[str, Any]] = []
    compared: set[str] = set()
    for t in _times(subject):
        for kind in kinds:
            for window, names in _by_window(kind).items():
                if t - window - 1 <= 0:
                    continue
                moved, seen = _moved(subject, kind, t, window, names)
                rows += moved
                compared |= seen
    if not compared:
        return Result(NAME, "skipped", "The history is too short for the window of any feature.")
    if not rows:
        return Result(
            NAME,
            "pass",
            f"{len(compared)} features have the same values from their declared windows as from a longer "
            f"history (to {TOLERANCE:g}).",
        )
    named = list(dict.fromkeys(row["feature"] for row in rows))
    first = rows[0]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return Result(
        NAME,
        "fail",
        f"{named[0][0].upper()}{named[0][1:]}{more} depends on sessions before its declared window of "
        f"{first['window']}: on {first['date']} the value of {first['ticker']} is {first['short']:.6g} from "
        f"the window and {first['long']:.6g} from a longer history.",
        pl.DataFrame(rows, infer_schema_length=None),
    )


def _times(subject: Subject) -> list[int]:
    """Sample sessions with enough history for every declared window, else sessions of the second half."""
    decisions = subject.decisions
    late = decisions[decisions > subject.lookback]
    pool = late if len(late) else decisions[len(decisions) // 2 :]
    count = min(max(subject.budget.sessions // 2, 1), len(pool))
    drawn = np.random.default_rng((subject.seed, 5)).choice(pool, count, replace=False)
    return sorted(int(t) for t in drawn)


def _by_window(kind: _Kind) -> dict[int, list[str]]:
    """Group features by their declared window."""
    groups: dict[int, list[str]] = {}
    for name in kind.names:
        groups.setdefault(kind.registry[name].window, []).append(name)
    return groups


def _moved(
    subject: Subject, kind: _Kind, t: int, window: int, names: list[str]
) -> tuple[list[dict[str, Any]], set[str]]:
    start = t - window + 1
    statements = any(kind.registry[name].needs_statements for name in names)
    long, short = (_panel(subject, first, t, statements=statements) for first in (start - EARLIER, start))
    place = {ticker: n for n, ticker in enumerate(long.tickers_N)}
    own = np.array([place[ticker] for ticker in short.tickers_N])
    firms = np.isfinite(short.close_TN[-1]) & ~_split_before(subject, short, start)
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for name in names:
        if not kind.registry[name].needs <= (short.fields & long.fields):
            continue
        left_N = kind.compute(short, [name])[-1, :, 0].astype(np.float64)
        right_N = kind.compute(long, [name])[-1, own, 0].astype(np.float64)
        comparable_N = firms & (np.isfinite(left_N) | np.isfinite(right_N))
        if not comparable_N.any():
            continue
        seen.add(name)
        for n in np.flatnonzero(comparable_N & ~_is_close(left_N, right_N, comparable_N))[:5]:
            rows.append(
                {
                    "feature": f"{kind.word} {name}",
                    "window": window,
                    "date": subject.day(t),
                    "ticker": short.tickers_N[n],
                    "short": float(left_N[n]),
                    "long": float(right_N[n]),
                }
            )
    return rows, seen


def _panel(subject: Subject, first: int, last: int, *, statements: bool) -> Panel:
    """Build the panel of some sessions, with statements only on request: they take most of the time."""
    start, end = subject.day(max(first, 0)), subject.day(last)
    tables = subject.tables
    fundamentals = tables.get("fundamentals") if statements else None
    return build_panel(
        tables["prices"].filter(pl.col("date").is_between(start, end)),
        tables.get("securities"),
        None if fundamentals is None else fundamentals.filter(pl.col("known_at") <= end),
        gaps=tables.get("gaps"),
        group_by=subject.config.features.group_by,
    )


def _split_before(subject: Subject, panel: Panel, start: int) -> npt.NDArray[np.bool_]:
    prices = subject.tables["prices"].filter(
        (pl.col("date") < subject.day(start)) & (pl.col("split_ratio") != 1.0)
    )
    split = set(prices["ticker"].unique().to_list())
    return np.array([ticker in split for ticker in panel.tickers_N])


def _is_close(
    left_N: npt.NDArray[np.float64], right_N: npt.NDArray[np.float64], among_N: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Whether two values are equal up to rounding; False where one is unknown."""
    size = float(
        np.nanmedian(np.abs(np.where(among_N, np.where(np.isfinite(right_N), right_N, left_N), np.nan)))
    )
    floor = ROUNDING if size <= ROUNDING else TOLERANCE * size
    near_N = np.abs(left_N - right_N) <= np.maximum(
        TOLERANCE * np.maximum(np.abs(left_N), np.abs(right_N)), floor
    )
    close: npt.NDArray[np.bool_] = near_N
    return close
