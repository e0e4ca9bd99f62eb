"""Bitwise comparison of two datasets up to a session. A difference means look-ahead.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.dataset.build import Dataset

Array = npt.NDArray[Any]
_PRICE_FIELDS = ("raw_close_TN", "close_TN", "open_TN", "high_TN", "low_TN", "volume_TN")
_STATE_FIELDS = ("total_return_index_TN", "delisted_TN", "unknown_TN")


@dataclass(frozen=True, slots=True)
class Difference:
    """An array that differs.

    Attributes
    ----------
    what
        Name of the array, such as ``channel return``.
    session
        First row that differs; -1 if the shapes differ.
    column
        Column of the first cell that differs; -1 if there is none.
    """

    what: str
    session: int = -1
    column: int = -1


def difference(left: Array, right: Array, what: str) -> Difference | None:
    """Compare two arrays to the bit; None if they are equal."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return Difference(what)
    if left.tobytes() == right.tobytes():
        return None
    same = (left == right) | (pd.isna(left) & pd.isna(right))
    if same.all():
        return Difference(f"{what} (a sign or a NaN's payload)")
    first = np.argwhere(np.atleast_1d(~same))[0]  # atleast_1d, because a scalar has no axis
    return Difference(what, int(first[0]), int(first[1]) if len(first) > 1 else -1)


def differences_until(
    t: int, true: Dataset, noisy: Dataset, horizon: int = 1, path_delay: int = 1
) -> list[Difference]:
    """Compare all arrays of two datasets for sessions up to ``t``, firm by firm.

    Parameters
    ----------
    t
        Last session up to which both datasets have the same data.
    true, noisy
        The datasets; firms are matched by ticker.
    horizon
        Sessions that a label spans. Only labels that end by t are compared.
    path_delay
        Delay of the labels of shorter horizons.

    Returns
    -------
    list of Difference
        In the order of computation: the panel, its groups and statements, the universe, channels,
        characteristics, then labels and targets that end by t, including shorter horizons. Columns are those
        of ``true``.
    """
    return list(_differences(t, true, noisy, horizon, path_delay))


def _differences(
    t: int, true: Dataset, noisy: Dataset, horizon: int, path_delay: int
) -> Iterator[Difference]:
    sessions = difference(true.panel.dates_T[: t + 1], noisy.panel.dates_T[: t + 1], "the list of sessions")
    if sessions is not None:
        yield sessions
        return
    if (true.channel_names, true.characteristic_names) != (noisy.channel_names, noisy.characteristic_names):
        yield Difference("the list of features")
        return
    own, theirs = _common_firms(true, noisy)
    known_TN = np.isfinite(true.panel.close_TN[: t + 1])
    if known_TN[:, np.setdiff1d(np.arange(true.panel.n_firms), own)].any():
        yield Difference("the list of firms")
    new_firms = np.setdiff1d(np.arange(noisy.panel.n_firms), theirs)
    if noisy.universe_TN[: t + 1, new_firms].any():
        yield Difference("the universe (a firm that is listed later)")

    def compare(
        get: Callable[[Dataset], Array | None], what: str, until: int = t + 1
    ) -> Iterator[Difference]:
        left_TN, right_TN = get(true), get(noisy)
        if left_TN is None or right_TN is None:
            if left_TN is not right_TN:
                yield Difference(what)
            return
        diff = difference(
            np.ascontiguousarray(left_TN[:until][:, own]),
            np.ascontiguousarray(right_TN[:until][:, theirs]),
            what,
        )
        if diff is not None:
            yield Difference(diff.what, diff.session, own[diff.column] if diff.column >= 0 else -1)

    for field in (*_PRICE_FIELDS, *_STATE_FIELDS):
        name = field.removesuffix("_TN").replace("_", " ")
        yield from compare(lambda data, field=field: getattr(data.panel, field), f"the panel's {name}")  # type: ignore[misc]
    names = {name: code for code, name in enumerate(true.panel.groups_S)}
    yield from compare(lambda data: _codes(data, names), "the panel's group")
    if set(true.panel.statements) != set(noisy.panel.statements):
        yield Difference("the list of statement items")
    for item in sorted(set(true.panel.statements) & set(noisy.panel.statements)):
        yield from compare(lambda data, item=item: data.panel.statements[item], f"statement {item}")  # type: ignore[misc]
    yield from compare(lambda data: data.universe_TN, "the universe")
    for c, name in enumerate(true.channel_names):
        yield from compare(lambda data, c=c: data.channels_TNC[:, :, c], f"channel {name}")  # type: ignore[misc]
    for f, name in enumerate(true.characteristic_names):
        yield from compare(
            lambda data, f=f: data.characteristics_TNF[:, :, f],  # type: ignore[misc]
            f"characteristic {name}",
        )
    for delay in true.labels:
        closed = max(t - delay - horizon + 1, 0)
        yield from compare(lambda data, d=delay: data.labels[d], f"the label at delay {delay}", closed)  # type: ignore[misc]
    for k, shorter in enumerate(true.shorter_labels):
        closed = max(t - path_delay - shorter + 1, 0)
        yield from compare(
            lambda data, h=shorter: data.shorter_labels[h],  # type: ignore[misc]
            f"the label of horizon {shorter}",
            closed,
        )
        yield from compare(
            lambda data, k=k: None if data.path_TNK is None else data.path_TNK[:, :, k],  # type: ignore[misc]
            f"the target of horizon {shorter}",
            closed,
        )


def _common_firms(true: Dataset, noisy: Dataset) -> tuple[list[int], list[int]]:
    place = {ticker: n for n, ticker in enumerate(true.panel.tickers_N)}
    theirs = [n for n, ticker in enumerate(noisy.panel.tickers_N) if ticker in place]
    return [place[noisy.panel.tickers_N[n]] for n in theirs], theirs


def _codes(data: Dataset, names: dict[str, int]) -> Array:
    """Group codes with the numbers of another dataset.

    The names of groups are enumerated over the whole sample. If a firm that is listed later is gone, its
    industry may be gone as well, and all codes move by one, although no firm changes its group.
    """
    own = [names.get(name, len(names) + code) for code, name in enumerate(data.panel.groups_S)]
    return np.array([*own, -1], dtype=np.int64)[data.panel.group_TN]
