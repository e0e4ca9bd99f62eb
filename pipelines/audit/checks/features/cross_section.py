"""Cross-sections: a firm must be ranked and scaled only among the firms of its own date.

The check `future` cannot find a rank over all past dates, because such a rank does not look ahead. It still
makes a firm's value depend on the firms and the market level of other dates, so a date is not a
cross-section.

Shape suffixes: T sessions, R sessions around t, N firms, F characteristics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from features.arrays import Float32Array, IntArray
from features.library.standardise import TransformRule
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset import build as datasets
from pipelines.dataset import characteristics
from pipelines.dataset.characteristics import INPUT_PREFIX

NAME = "cross_section"
_NAMED = 3
_AROUND: Final = 15
_AT_ONCE: Final = 10
_QUICK: Final = 24
"""Characteristics of a quick audit; all of them go through the same transform."""


def check(subject: Subject) -> Result:
    """Replace raw characteristics and labels on all other dates, and require identical results at t.

    Universe and groups are replaced as well. The transformed characteristics, and the targets of the label's
    horizon and of shorter horizons, must be equal to the bit.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return Result(NAME, "skipped", "There are too few sessions with a universe.")
    names = _names(subject)
    raw = _raw(subject, names, times)
    rows = [
        {"on": subject.day(t), "what": what}
        for t in times
        for what in _depends_on_others(subject, t, names, raw[t])
    ]
    days = ", ".join(str(subject.day(t)) for t in times)
    if not rows:
        return Result(
            NAME,
            "pass",
            f"Ranks, scales and targets of {days} are bitwise identical when the raw values of all other "
            "dates are replaced.",
        )
    named = list(dict.fromkeys(str(row["what"]) for row in rows))
    shown = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return Result(
        NAME,
        "fail",
        f"{shown[0].upper()}{shown[1:]} on {rows[0]['on']} depend on other dates: rank and scale each firm "
        "among the firms of its own date.",
        pl.DataFrame(rows),
    )


def _around(subject: Subject, t: int) -> IntArray:
    """Sessions around t, which stand for all others: a date that depends on others depends on these."""
    return np.arange(max(t - _AROUND, 0), min(t + _AROUND + 1, subject.dataset.panel.n_sessions))


def _names(subject: Subject) -> tuple[str, ...]:
    """Characteristics before the transform: all, or evenly spaced ones in a quick audit."""
    rule = TransformRule(**subject.config.features.transform.model_dump())
    every = subject.dataset.characteristic_names
    names = every[: len(every) // (2 if rule.add_indicator else 1)]
    if not subject.budget.quick or len(names) <= _QUICK:
        return names
    return names[:: -(-len(names) // _QUICK)]


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


def _depends_on_others(
    subject: Subject, t: int, names: tuple[str, ...], raw_RNF: Float32Array
) -> Iterator[str]:
    """Yield the names of arrays that differ at t when other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t))
    config, data = subject.config, subject.dataset
    panel, rows_R = data.panel, _around(subject, t)
    others_R = rows_R != t
    universe_RN, group_RN, raw_RNF = data.universe_TN[rows_R], panel.group_TN[rows_R], raw_RNF.copy()
    shape = (int(others_R.sum()), panel.n_firms)
    universe_RN[others_R] = rng.random(shape) < 0.7
    group_RN[others_R] = rng.integers(-1, len(panel.groups_S) + 1, shape)
    raw_RNF[others_R] = 5.0 * rng.standard_normal((*shape, raw_RNF.shape[2]), dtype=np.float32)
    again_NF = characteristics.within_dates(raw_RNF, universe_RN, group_RN, config)[int(np.argmin(others_R))]
    transformed = TransformRule(**config.features.transform.model_dump()).names(names)
    place = {name: f for f, name in enumerate(data.characteristic_names)}
    for f, name in enumerate(transformed):
        if not _same(data.characteristics_TNF[t, :, place[name]], again_NF[:, f]):
            yield f"characteristic {name}"

    others_T = np.arange(panel.n_sessions) != t
    universe_TN = data.universe_TN.copy()
    shape = (int(others_T.sum()), panel.n_firms)
    universe_TN[others_T] = rng.random(shape) < 0.7

    label = config.label
    targets = [(f"the target of horizon {label.horizon}", data.labels[label.delay], data.target_TN)]
    if data.path_TNK is not None:
        targets += [
            (f"the target of horizon {horizon}", label_TN, data.path_TNK[:, :, k])
            for k, (horizon, label_TN) in enumerate(data.shorter_labels.items())
        ]
    for what, label_TN, target_TN in targets:
        noisy_TN = label_TN.copy()
        noisy_TN[others_T] = 0.1 * rng.standard_normal(shape)
        made_TN = datasets.make_target(noisy_TN, universe_TN, panel, label)
        if not _same(target_TN[t], made_TN[t]):
            yield what


def _same(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left, right, equal_nan=True)
