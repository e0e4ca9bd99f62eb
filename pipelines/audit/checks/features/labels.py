"""Labels, recomputed from the raw prices: the return of the sessions that the config says, and no other.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray
from features.panel.holding import tradable
from features.panel.panel import Panel
from pipelines.audit.holder import HolderValues, holder_values, sample_firms
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset.market import to_panel
from pipelines.train.task import collect_arrays

NAME = "labels"
FIRMS: Final = 40
LONGEST_HALT: Final = 15
"""Sessions without a price up to which a firm is certain to be held; later it may count as delisted."""
GONE: Final = 25
"""Sessions without a price after which a firm is certain to be delisted, so that its label is known."""
TOLERANCE: Final = 1e-9
_SHIFTS: Final = (-1, 1, -2, 2, -3, 3)
_MATCH: Final = 0.9


@dataclass(frozen=True, slots=True)
class _Label:
    """A label array, and the sessions that it must span."""

    name: str
    delay: int
    horizon: int
    value_TN: FloatArray


def check(subject: Subject) -> Result:
    """Recompute the labels of all delays and horizons from closes, splits and dividends.

    Labels of sampled firms must be the returns of their spans on every session: 0 where the firm could not
    be bought, and known where it was delisted. What tasks learn from must be these labels within the
    universe, in the same order of the firms, and so must the labels stored with a run's forecasts.
    """
    holder = holder_values(subject.tables["prices"], subject.dataset.panel, sample_firms(subject, FIRMS))
    labels = list(_labels(subject))
    rows = [row for label in labels for row in _wrong(subject, label, holder)]
    rows += [*_handed_to_tasks(subject), *_stored(subject)]
    if rows:
        return Result(NAME, "fail", str(rows[0]["sentence"]), pl.DataFrame(rows, infer_schema_length=None))
    spans = ", ".join(label.name.removeprefix("the label ") for label in labels)
    return Result(
        NAME,
        "pass",
        f"Labels {spans} are the returns of their spans, recomputed from the prices of "
        f"{len(holder.columns_N)} firms, and tasks learn from them.",
    )


def _labels(subject: Subject) -> Iterator[_Label]:
    data, label = subject.dataset, subject.config.label
    for delay, label_TN in data.labels.items():
        name = f"the label of horizon {label.horizon} at delay {delay}"
        yield _Label(name, delay, label.horizon, label_TN)
    for horizon, label_TN in data.shorter_labels.items():
        yield _Label(f"the label of horizon {horizon} at delay {label.delay}", label.delay, horizon, label_TN)


def _wrong(subject: Subject, label: _Label, holder: HolderValues) -> list[dict[str, object]]:
    found_TN = label.value_TN[:, holder.columns_N]
    expected_TN, known_TN, gone_TN = _expected(holder, label.delay, label.horizon)
    odd_TN = _not_as_delivered(subject.dataset.panel)[:, holder.columns_N]
    known_TN &= ~_touches(odd_TN, label.delay, label.horizon)
    off_TN = known_TN & ~_equal(found_TN, expected_TN)
    missing_TN = gone_TN & np.isnan(found_TN)
    if missing_TN.any():
        t, n = np.argwhere(missing_TN)[0]
        sentence = (
            f"Labels of firms that stopped trading are missing: {label.name} is unknown for "
            f"{subject.dataset.panel.tickers_N[holder.columns_N[n]]} on {subject.day(int(t))}, although it "
            "was traded and then delisted. A firm must not be dropped because its later return is missing."
        )
        return [{"label": label.name, "cells": int(missing_TN.sum()), "sentence": sentence}]
    if not off_TN.any():
        return []
    t, n = np.argwhere(off_TN)[0]
    first, last = label.delay, label.delay + label.horizon
    sentence = (
        f"{label.name[0].upper()}{label.name[1:]} is not the return from the close of t+{first} to that of "
        f"t+{last}: on {subject.day(int(t))} it is {found_TN[t, n]:+.5f} for "
        f"{subject.dataset.panel.tickers_N[holder.columns_N[n]]}, and the prices give "
        f"{expected_TN[t, n]:+.5f} ({off_TN.sum():,} of {known_TN.sum():,} labels differ)."
        f"{_likely(found_TN, off_TN, holder, label)}"
    )
    return [{"label": label.name, "cells": int(off_TN.sum()), "sentence": sentence}]


def _expected(holder: HolderValues, delay: int, horizon: int) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Returns of a span, where they are certain, and where a firm is certain to be delisted in the span."""
    T, N = holder.value_TN.shape
    expected_TN = np.full((T, N), np.nan)
    known_TN, gone_TN = np.zeros((T, N), np.bool_), np.zeros((T, N), np.bool_)
    rows = np.arange(max(-delay, 0), T - max(delay, 0) - horizon)
    if not len(rows):
        return expected_TN, known_TN, gone_TN
    start, end = rows + delay, rows + delay + horizon
    start_TN, end_TN, last_TN = holder.value_TN[start], holder.value_TN[end], holder.last_TN
    bought_TN = np.isfinite(start_TN)
    halted_TN = ~bought_TN & (last_TN[start] >= 0) & (start[:, None] - last_TN[start] <= LONGEST_HALT)
    # the longest stretch without a price that ends within the span
    silent_TN = np.arange(T)[:, None] - last_TN
    longest_TN = np.max([silent_TN[start + k] for k in range(1, horizon + 1)], axis=0)
    held_TN = bought_TN & np.isfinite(end_TN) & (longest_TN <= LONGEST_HALT)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected_TN[rows] = np.where(held_TN, end_TN / start_TN - 1.0, 0.0)
    known_TN[rows] = held_TN | halted_TN
    gone_TN[rows] = bought_TN & (end[:, None] - last_TN[end] >= GONE)
    return expected_TN, known_TN, gone_TN


def _not_as_delivered(panel: Panel) -> BoolArray:
    """Cells whose price is no holder's: known gaps, prices without volume, and rows that earn nothing."""
    odd_TN = panel.gap_TN | (panel.traded_TN & ~tradable(panel))
    odd_TN[panel.wrong.session_K, panel.wrong.firm_K] = True
    return odd_TN


def _touches(odd_TN: BoolArray, delay: int, horizon: int) -> BoolArray:
    """Whether the span of a label contains such a cell."""
    touched_TN = np.zeros_like(odd_TN)
    for k in range(delay, delay + horizon + 1):
        touched_TN[: max(len(odd_TN) - k, 0)] |= odd_TN[k:]
    return touched_TN


def _equal(found_TN: FloatArray, expected_TN: FloatArray) -> BoolArray:
    return np.asarray(np.abs(found_TN - expected_TN) <= TOLERANCE * (1.0 + np.abs(expected_TN)))


def _likely(found_TN: FloatArray, off_TN: BoolArray, holder: HolderValues, label: _Label) -> str:
    """The shift of the sessions that explains the wrong labels, in words; empty if there is none."""
    for shift in _SHIFTS:
        expected_TN, known_TN, _ = _expected(holder, label.delay + shift, label.horizon)
        both_TN = off_TN & known_TN
        if both_TN.any() and _equal(found_TN, expected_TN)[both_TN].mean() >= _MATCH:
            when = "early" if shift < 0 else "late"
            count = f"{abs(shift)} session{'s' if abs(shift) > 1 else ''}"
            return f" They are the returns of a span that begins {count} too {when}."
    return ""


def _handed_to_tasks(subject: Subject) -> Iterator[dict[str, object]]:
    """Compare what tasks learn from and are scored on with the labels of the dataset."""
    data, config = subject.dataset, subject.config
    arrays = collect_arrays(data, config.features.window)
    own_TN = np.where(data.universe_TN, data.labels[config.label.delay], np.nan)
    if not np.array_equal(arrays.label_TN, own_TN, equal_nan=True):
        sentence = "Tasks are scored on other labels than those of the config's first delay in the universe."
        yield {"label": "the label of tasks", "cells": None, "sentence": sentence}
    if config.label.residualise_factors:
        return  # residuals have another order than the labels
    targets = [("the target", own_TN, arrays.target_TN)]
    for k, (horizon, label_TN) in enumerate(data.shorter_labels.items()):
        if arrays.path_TNK is not None:
            within_TN = np.where(data.universe_TN, label_TN, np.nan)
            targets.append((f"the target of horizon {horizon}", within_TN, arrays.path_TNK[:, :, k]))
    for name, label_TN, target_TN in targets:
        wrong_T = [t for t in subject.decisions if not _same_order(label_TN[t], target_TN[t])]
        if wrong_T:
            sentence = (
                f"{name[0].upper()}{name[1:]} does not rank the firms as their labels do, first on "
                f"{subject.day(int(wrong_T[0]))}: models learn from something else than the label."
            )
            yield {"label": name, "cells": len(wrong_T), "sentence": sentence}


def _same_order(label_N: FloatArray, target_N: FloatArray) -> bool:
    known_N = np.isfinite(label_N)
    if (np.isfinite(target_N) != known_N).any():
        return False
    order = np.argsort(label_N[known_N], kind="stable")
    rises = np.diff(target_N[known_N][order].astype(np.float64))
    return bool((rises >= -1e-6 * max(float(np.abs(target_N[known_N]).max(initial=0.0)), 1e-12)).all())


def _stored(subject: Subject) -> Iterator[dict[str, object]]:
    """Compare the labels that are stored with a run's forecasts with those of the dataset."""
    if subject.forecasts is None or subject.forecasts.is_empty():
        return
    data, label = subject.dataset, subject.config.label
    labels = {**data.shorter_labels, label.horizon: data.labels[label.delay]}
    keys = ["horizon", "model", "fold", "seed"]
    for (horizon, model, fold, seed), part in subject.forecasts.group_by(keys, maintain_order=True):
        stored_TN = to_panel(part.drop_nulls("label"), "label", data.panel)
        known_TN = np.isfinite(stored_TN)
        if not _equal(labels[int(str(horizon))][known_TN], stored_TN[known_TN]).all():
            sentence = (
                f"The stored labels of {model}, fold {fold}, seed {seed}, horizon {horizon} are not those of "
                "the data."
            )
            yield {"label": "stored labels", "cells": int(known_TN.sum()), "sentence": sentence}
