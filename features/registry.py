"""What the registries of characteristics and channels share: names against columns, and stacking.

Shape suffixes: T sessions, N firms, K features of either kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import numpy as np

from features.arrays import Float32Array, FloatArray
from features.panel import Panel

Compute = Callable[[Panel], FloatArray]


class Feature(Protocol):
    """What a registry entry of any kind has."""

    @property
    def needs(self) -> frozenset[str]:
        """Panel fields that it reads."""

    @property
    def compute(self) -> Compute:
        """Panel -> float64 array of shape (T, N)."""


Entry = TypeVar("Entry", bound=Feature)


def split_by_needs(
    kind: str, registry: Mapping[str, Entry], panel: Panel, names: Iterable[str] | None
) -> tuple[list[str], list[str]]:
    """Split names into those that the panel's columns allow and a sentence for each lack of the others.

    Parameters
    ----------
    kind : str
        What the entries are called, for messages.
    registry : mapping of str to Feature
        The known ones.
    panel : Panel
        The data.
    names : iterable of str or None
        The ones wanted; None for all.

    Returns
    -------
    usable : list of str
        In the order asked for.
    messages : list of str
        ``"These data have no volume: the characteristics x and y are left out."``

    Raises
    ------
    ValueError
        If a name is not registered.
    """
    wanted = list(registry) if names is None else list(names)
    unknown = [name for name in wanted if name not in registry]
    if unknown:
        msg = f"Unknown {kind} {', '.join(unknown)}: choose among {', '.join(sorted(registry))}."
        raise ValueError(msg)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in wanted:
        lacking.setdefault(tuple(sorted(registry[name].needs - panel.fields)), []).append(name)
    usable = lacking.pop((), [])
    return usable, [_lack(kind, missing, left_out) for missing, left_out in lacking.items()]


def _lack(kind: str, missing: tuple[str, ...], names: list[str]) -> str:
    fields = " and no ".join(field.removeprefix("statements:") for field in missing)
    if len(names) == 1:
        return f"These data have no {fields}: the {kind} {names[0]} is left out."
    return f"These data have no {fields}: the {kind}s {', '.join(names[:-1])} and {names[-1]} are left out."


def compute_stacked(
    kind: str, registry: Mapping[str, Entry], panel: Panel, names: Iterable[str] | None
) -> Float32Array:
    """Compute features and stack them along the last axis.

    Parameters
    ----------
    kind, registry, panel
        As in `split_by_needs`.
    names : iterable of str or None
        Which, in this order; None for all that the panel allows.

    Returns
    -------
    ndarray of float32, shape (T, N, K)
        NaN where unknown, or beyond what float32 holds.

    Raises
    ------
    ValueError
        If a name is not registered, or its inputs are missing.
    """
    wanted = None if names is None else list(names)
    usable, messages = split_by_needs(kind, registry, panel, wanted)
    if wanted is not None and messages:
        raise ValueError(messages[0])
    out_TNK = np.empty((panel.n_sessions, panel.n_firms, len(usable)), dtype=np.float32)
    limit = float(np.finfo(np.float32).max)
    for k, name in enumerate(usable):
        value_TN = registry[name].compute(panel)
        out_TNK[:, :, k] = np.where(np.abs(value_TN) <= limit, value_TN, np.nan)
    return out_TNK
