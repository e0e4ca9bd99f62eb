"""Cross-sections: a firm must be ranked and scaled only among the firms of its own date.

The check `future` cannot find a rank over all past dates, because such a rank does not look ahead. It still
makes a firm's value depend on the firms and the market level of other dates, so a date is not a
cross-section.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from features.library.standardise import TransformRule
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset import build as datasets

NAME = "cross_section"
_NAMED = 3


def check(subject: Subject) -> Result:
    """Replace raw characteristics and labels on all other dates, and require identical results at t.

    Universe and groups are replaced as well. The transformed characteristics, and the targets of the label's
    horizon and of shorter horizons, must be equal to the bit.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return Result(NAME, "skipped", "There are too few sessions with a universe.")
    rows = [{"on": subject.day(t), "what": what} for t in times for what in _depends_on_others(subject, t)]
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


def _depends_on_others(subject: Subject, t: int) -> Iterator[str]:
    """Yield the names of arrays that differ at t when all other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t))
    config, data = subject.config, subject.dataset
    panel = data.panel
    others_T = np.arange(panel.n_sessions) != t
    universe_TN, group_TN = data.universe_TN.copy(), panel.group_TN.copy()
    shape = (int(others_T.sum()), panel.n_firms)
    universe_TN[others_T] = rng.random(shape) < 0.7
    group_TN[others_T] = rng.integers(-1, len(panel.groups_S) + 1, shape)

    rule = TransformRule(**config.features.transform.model_dump())
    count = len(data.characteristic_names) // (2 if rule.add_indicator else 1)
    names = data.characteristic_names[:count]
    raw_TNF = np.array(datasets.raw_characteristics(panel, names, subject.tables, config))
    raw_TNF[others_T] = 5.0 * rng.standard_normal((*shape, count), dtype=np.float32)
    again_TNF = datasets.within_dates(raw_TNF, universe_TN, group_TN, config)
    for f, name in enumerate(data.characteristic_names):
        if not _same(data.characteristics_TNF[t, :, f], again_TNF[t, :, f]):
            yield f"characteristic {name}"

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
