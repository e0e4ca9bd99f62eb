"""What features depend on: not on sessions before their declared window, and not on the firms of other dates.

Shape suffixes: T sessions, R sessions around t, N firms, F characteristics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Result, answer, skipped
from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.library.channels import CHANNELS, compute_channels
from features.library.characteristics import CHARACTERISTICS, compute_characteristics
from features.panel.panel import Panel, build_panel
from pipelines.audit.checks.future import listed
from pipelines.audit.subject import Subject
from pipelines.dataset import build as datasets
from pipelines.dataset import characteristics
from pipelines.dataset.characteristics import INPUT_PREFIX

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
_AROUND: Final = 15
_AT_ONCE: Final = 10
_QUICK: Final = 24
"""Characteristics of a quick audit whose transform is checked; all of them go through the same one."""


class _Kind(NamedTuple):
    word: str
    registry: Mapping[str, Any]
    compute: Any
    names: tuple[str, ...]


def warm_up(subject: Subject) -> Result:
    """Compute every feature at t from its declared window and from a longer history, and compare.

    Firms with a split before the window are left out: their share counts are adjusted for splits that the
    shorter history does not contain.
    """
    firms = QUICK_FIRMS if subject.budget.quick else FIRMS
    subject = replace(subject, tables=subject.sample_firms(subject.tables, firms))
    own = tuple(name for name in subject.dataset.characteristic_names if name in CHARACTERISTICS)
    kinds = (
        _Kind("channel", CHANNELS, compute_channels, subject.dataset.channel_names),
        _Kind("characteristic", CHARACTERISTICS, compute_characteristics, own),
    )
    rows: list[dict[str, Any]] = []
    compared: set[str] = set()
    for t in _times(subject):
        for kind in kinds:
            windows = {kind.registry[name].window for name in kind.names}
            for window in sorted(windows):
                names = [name for name in kind.names if kind.registry[name].window == window]
                for row in _moved(subject, kind, t, window, names) if t - window - 1 > 0 else ():
                    compared.add(row["feature"])
                    rows += [row] if "ticker" in row else []
    if not compared:
        return skipped("The history is too short for the window of any feature.")
    if not rows:
        sentence = (
            f"{len(compared)} features have the same values from their declared windows as from a longer "
            f"history (to {TOLERANCE:g})."
        )
        return answer("pass", sentence)
    one, named = rows[0], list(dict.fromkeys(row["feature"] for row in rows))
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    sentence = (
        f"{named[0][0].upper()}{named[0][1:]}{more} depends on sessions before its declared window of "
        f"{one['window']}: on {one['date']} the value of {one['ticker']} is {one['short']:.6g} from the "
        f"window and {one['long']:.6g} from a longer history."
    )
    return answer("fail", sentence, rows)


def _times(subject: Subject) -> list[int]:
    """Sample sessions with enough history for every declared window, else sessions of the second half."""
    decisions = subject.decisions
    late = decisions[decisions > subject.lookback]
    pool = late if len(late) else decisions[len(decisions) // 2 :]
    count = min(max(subject.budget.sessions // 2, 1), len(pool))
    drawn = np.random.default_rng((subject.seed, 5)).choice(pool, count, replace=False)
    return sorted(int(t) for t in drawn)


def _moved(subject: Subject, kind: _Kind, t: int, window: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the name of each feature that can be compared, and the firms whose values differ."""
    start = t - window + 1
    statements = any(kind.registry[name].needs_statements for name in names)
    long, short = (_panel(subject, first, t, statements=statements) for first in (start - EARLIER, start))
    place = {ticker: n for n, ticker in enumerate(long.tickers_N)}
    own = np.array([place[ticker] for ticker in short.tickers_N])
    split = subject.tables["prices"].filter(
        (pl.col("date") < subject.day(start)) & (pl.col("split_ratio") != 1.0)
    )
    usable_N = np.isfinite(short.close_TN[-1]) & ~np.isin(short.tickers_N, split["ticker"].unique().to_list())
    for name in names:
        if not kind.registry[name].needs <= (short.fields & long.fields):
            continue
        left_N = kind.compute(short, [name])[-1, :, 0].astype(np.float64)
        right_N = kind.compute(long, [name])[-1, own, 0].astype(np.float64)
        comparable_N = usable_N & (np.isfinite(left_N) | np.isfinite(right_N))
        if comparable_N.any():
            row = {"feature": f"{kind.word} {name}", "window": window, "date": subject.day(t)}
            yield row
            for n in np.flatnonzero(comparable_N & ~_is_close(left_N, right_N, comparable_N))[:5]:
                both = {"short": float(left_N[n]), "long": float(right_N[n])}
                yield {**row, "ticker": short.tickers_N[n], **both}


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


def _is_close(left_N: FloatArray, right_N: FloatArray, among_N: BoolArray) -> BoolArray:
    """Whether two values are equal up to rounding; False where one is unknown."""
    known_N = np.where(np.isfinite(right_N), right_N, left_N)
    size = float(np.nanmedian(np.abs(np.where(among_N, known_N, np.nan))))
    floor = ROUNDING if size <= ROUNDING else TOLERANCE * size
    largest_N = np.maximum(np.abs(left_N), np.abs(right_N))
    return np.asarray(np.abs(left_N - right_N) <= np.maximum(TOLERANCE * largest_N, floor))


def cross_section(subject: Subject) -> Result:
    """Replace raw characteristics and labels on all other dates, and require identical results at t.

    Universe and groups are replaced as well. The transformed characteristics, and the targets of the label's
    horizon and of shorter horizons, must be equal to the bit. The check ``future`` cannot find a rank over
    all past dates, because such a rank does not look ahead. It still makes a firm's value depend on the firms
    and the market level of other dates.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return skipped("There are too few sessions with a universe.")
    rule = subject.config.features.transform
    every = subject.dataset.characteristic_names
    names = every[: len(every) // (2 if rule.add_indicator else 1)]
    if subject.budget.quick and len(names) > _QUICK:
        names = names[:: -(-len(names) // _QUICK)]
    raw = _raw(subject, names, times)
    rows = [
        {"on": subject.day(t), "what": what}
        for t in times
        for what in (
            *_other_characteristics(subject, t, rule.names(names), raw[t]),
            *_other_targets(subject, t),
        )
    ]
    if not rows:
        days = ", ".join(str(subject.day(t)) for t in times)
        sentence = (
            f"Ranks, scales and targets of {days} are bitwise identical when the raw values of all other "
            "dates are replaced."
        )
        return answer("pass", sentence)
    named = listed(list(dict.fromkeys(str(row["what"]) for row in rows)))
    sentence = (
        f"{named} on {rows[0]['on']} depend on other dates: rank and scale each firm among the firms of its "
        "own date."
    )
    return answer("fail", sentence, rows)


def _around(subject: Subject, t: int) -> IntArray:
    """Sessions around t, which stand for all others: a date that depends on others depends on these."""
    return np.arange(max(t - _AROUND, 0), min(t + _AROUND + 1, subject.dataset.panel.n_sessions))


def _raw(subject: Subject, names: tuple[str, ...], times: list[int]) -> dict[int, Float32Array]:
    """Raw characteristics on the sessions around each t, computed a few at a time to save memory."""
    config, data = subject.config, subject.dataset
    parts: dict[int, list[Float32Array]] = {t: [] for t in times}
    for start in range(0, len(names), _AT_ONCE):
        chosen = names[start : start + _AT_ONCE]
        own = tuple(name.removeprefix(INPUT_PREFIX) for name in chosen if name.startswith(INPUT_PREFIX))
        features = config.features.model_copy(update={"inputs": own})
        some = config.model_copy(update={"features": features})
        raw_TNF = characteristics.raw_characteristics(data.panel, chosen, subject.tables, some)
        for t in times:
            parts[t].append(raw_TNF[_around(subject, t)])
    return {t: np.concatenate(blocks, axis=2) for t, blocks in parts.items()}


def _other_characteristics(
    subject: Subject, t: int, transformed: tuple[str, ...], raw_RNF: Float32Array
) -> Iterator[str]:
    """Yield the characteristics that differ at t when other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t))
    data, rows_R, raw_RNF = subject.dataset, _around(subject, t), raw_RNF.copy()
    others_R = rows_R != t
    universe_RN, group_RN = data.universe_TN[rows_R], data.panel.group_TN[rows_R]
    shape = (int(others_R.sum()), data.panel.n_firms)
    universe_RN[others_R] = rng.random(shape) < 0.7
    group_RN[others_R] = rng.integers(-1, len(data.panel.groups_S) + 1, shape)
    raw_RNF[others_R] = 5.0 * rng.standard_normal((*shape, raw_RNF.shape[2]), dtype=np.float32)
    again_RNF = characteristics.within_dates(raw_RNF, universe_RN, group_RN, subject.config)
    again_NF = again_RNF[int(np.argmin(others_R))]
    for f, name in enumerate(transformed):
        own_N = data.characteristics_TNF[t, :, data.characteristic_names.index(name)]
        if not np.array_equal(own_N, again_NF[:, f], equal_nan=True):
            yield f"characteristic {name}"


def _other_targets(subject: Subject, t: int) -> Iterator[str]:
    """Yield the targets that differ at t when labels and universe of other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t, 1))
    data, label = subject.dataset, subject.config.label
    others_T = np.arange(data.panel.n_sessions) != t
    shape = (int(others_T.sum()), data.panel.n_firms)
    universe_TN = data.universe_TN.copy()
    universe_TN[others_T] = rng.random(shape) < 0.7
    targets = [(label.horizon, data.labels[label.delay], data.target_TN)]
    if data.path_TNK is not None:
        shorter = enumerate(data.shorter_labels.items())
        targets += [(horizon, label_TN, data.path_TNK[:, :, k]) for k, (horizon, label_TN) in shorter]
    for horizon, label_TN, target_TN in targets:
        noisy_TN = label_TN.copy()
        noisy_TN[others_T] = 0.1 * rng.standard_normal(shape)
        made_TN = datasets.make_target(noisy_TN, universe_TN, data.panel, label)
        if not np.array_equal(target_TN[t], made_TN[t], equal_nan=True):
            yield f"the target of horizon {horizon}"
