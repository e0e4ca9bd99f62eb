"""Bitwise comparison of two datasets up to a session. A difference means look-ahead.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.dataset.build import Dataset

Array = npt.NDArray[Any]
_FIELDS: Final = (
    *("raw_close_TN", "close_TN", "open_TN", "high_TN", "low_TN", "volume_TN"),
    *("total_return_index_TN", "delisted_TN", "unknown_TN"),
)


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
    sessions = difference(true.panel.dates_T[: t + 1], noisy.panel.dates_T[: t + 1], "the list of sessions")
    if sessions is not None:
        return [sessions]
    if (true.channel_names, true.characteristic_names) != (noisy.channel_names, noisy.characteristic_names):
        return [Difference("the list of features")]
    own, theirs = common_firms(true, noisy)
    gone = np.setdiff1d(np.arange(true.panel.n_firms), own)
    if np.isfinite(true.panel.close_TN[: t + 1, gone]).any():
        return [Difference("the list of firms")]
    found = []
    if noisy.universe_TN[: t + 1, np.setdiff1d(np.arange(noisy.panel.n_firms), theirs)].any():
        found.append(Difference("the universe (a firm that is listed later)"))
    if set(true.panel.statements) != set(noisy.panel.statements):
        found.append(Difference("the list of statement items"))
    codes = {name: code for code, name in enumerate(true.panel.groups_S)}
    right = {what: array_TN for what, array_TN, _ in _arrays(noisy, codes, t, horizon, path_delay)}
    for what, left_TN, until in _arrays(true, codes, t, horizon, path_delay):
        right_TN = right.get(what)
        if left_TN is None or right_TN is None:
            found += [Difference(what)] if left_TN is not right_TN else []
            continue
        one = difference(
            np.ascontiguousarray(left_TN[:until][:, own]),
            np.ascontiguousarray(right_TN[:until][:, theirs]),
            what,
        )
        if one is not None:
            found.append(Difference(one.what, one.session, own[one.column] if one.column >= 0 else -1))
    return found


def common_firms(left: Dataset, right: Dataset) -> tuple[list[int], list[int]]:
    """Columns of the firms that two datasets share, in either, in the order of the second."""
    place = {ticker: n for n, ticker in enumerate(left.panel.tickers_N)}
    theirs = [n for n, ticker in enumerate(right.panel.tickers_N) if ticker in place]
    return [place[right.panel.tickers_N[n]] for n in theirs], theirs


def _arrays(
    data: Dataset, codes: dict[str, int], t: int, horizon: int, path_delay: int
) -> Iterator[tuple[str, Array | None, int]]:
    """Yield each array of a dataset by name, and the number of its rows that were known at t."""
    for field in _FIELDS:
        yield f"the panel's {field.removesuffix('_TN').replace('_', ' ')}", getattr(data.panel, field), t + 1
    yield "the panel's group", _group_codes(data, codes), t + 1
    for item in sorted(data.panel.statements):
        yield f"statement {item}", data.panel.statements[item], t + 1
    yield "the universe", data.universe_TN, t + 1
    for c, name in enumerate(data.channel_names):
        yield f"channel {name}", data.channels_TNC[:, :, c], t + 1
    for f, name in enumerate(data.characteristic_names):
        yield f"characteristic {name}", data.characteristics_TNF[:, :, f], t + 1
    for delay, label_TN in data.labels.items():
        yield f"the label at delay {delay}", label_TN, max(t - delay - horizon + 1, 0)
    for k, (shorter, label_TN) in enumerate(data.shorter_labels.items()):
        closed = max(t - path_delay - shorter + 1, 0)
        yield f"the label of horizon {shorter}", label_TN, closed
        path_TN = None if data.path_TNK is None else data.path_TNK[:, :, k]
        yield f"the target of horizon {shorter}", path_TN, closed


def _group_codes(data: Dataset, codes: dict[str, int]) -> Array:
    """Group codes with the numbers of another dataset.

    The names of groups are enumerated over the whole sample. If a firm that is listed later is gone, its
    industry may be gone as well, and all codes move by one, although no firm changes its group.
    """
    own = [codes.get(name, len(codes) + code) for code, name in enumerate(data.panel.groups_S)]
    return np.array([*own, -1], dtype=np.int64)[data.panel.group_TN]
