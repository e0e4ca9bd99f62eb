"""The registry of characteristics: what each is, what it needs, and how to compute many of them.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arrays import Float32Array, FloatArray
from features.derived import HALT, sessions_quiet
from features.rolling import lag
from features.panel import Panel
from features.registry import Compute, compute_stacked, split_by_needs

Family = Literal["momentum", "reversal", "volatility", "liquidity", "value", "quality", "growth", "size"]


@dataclass(frozen=True, slots=True)
class Characteristic:
    """A number per firm and session, known at the close of t.

    Attributes
    ----------
    name : str
        Unique name.
    family : str
        The group of related characteristics that attribution treats as one player.
    needs : frozenset of str
        Panel fields that it reads (`features.panel.Panel.fields`).
    warmup : int
        Sessions after a firm's first price before the first value.
    formula : str
        The definition, in terms of the panel's columns.
    unit : str
        Unit of the raw value.
    source : str
        The paper it is known from.
    compute : callable
        Panel -> float64 array of shape (T, N). NaN where the firm did not trade at t, listed for less than
        the warm-up, where an input is unknown, or where the formula has no finite value.
    """

    name: str
    family: Family
    needs: frozenset[str]
    warmup: int
    formula: str
    unit: str
    source: str
    compute: Compute


CHARACTERISTICS: dict[str, Characteristic] = {}


def characteristic(
    name: str,
    family: Family,
    *,
    warmup: int,
    formula: str,
    unit: str,
    source: str,
    needs: Iterable[str] = ("close",),
) -> Callable[[Compute], Compute]:
    """Register a function as a characteristic; the NaN rule of `Characteristic.compute` is applied to it.

    Parameters
    ----------
    name, family, warmup, formula, unit, source, needs
        As in `Characteristic`.

    Returns
    -------
    callable
        Decorator that registers and returns the function unchanged.
    """

    def register(raw: Compute) -> Compute:
        def compute(panel: Panel) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # no finite value: NaN below
                value_TN = raw(panel)
            known_TN = (
                ~np.isnan(panel.close_TN)
                & (lag(sessions_quiet(panel), warmup) <= HALT)
                & np.isfinite(value_TN)
            )
            return np.where(known_TN, value_TN, np.nan)

        assert name not in CHARACTERISTICS, f"the characteristic {name} is registered twice"
        CHARACTERISTICS[name] = Characteristic(
            name, family, frozenset(needs), warmup, formula, unit, source, compute
        )
        return raw

    return register


def available_characteristics(
    panel: Panel, names: Iterable[str] | None = None
) -> tuple[list[str], list[str]]:
    """Say which characteristics a panel's columns allow.

    Parameters
    ----------
    panel : Panel
        The data.
    names : iterable of str, optional
        The ones wanted, in this order; all by default.

    Returns
    -------
    usable : list of str
        Those whose inputs the panel has.
    messages : list of str
        One sentence for each of the others, naming what is missing.

    Raises
    ------
    ValueError
        If a name is not registered.
    """
    return split_by_needs("characteristic", CHARACTERISTICS, panel, names)


def compute_characteristics(panel: Panel, names: Iterable[str] | None = None) -> Float32Array:
    """Compute characteristics, raw (not ranked, not scaled).

    Parameters
    ----------
    panel : Panel
        The data.
    names : iterable of str, optional
        Which, in this order; all that the panel allows by default.

    Returns
    -------
    ndarray of float32, shape (T, N, F)
        Values known at the close of t; NaN as in `Characteristic.compute`.

    Raises
    ------
    ValueError
        If a name is not registered or its inputs are missing; `available_characteristics` says which.
    """
    return compute_stacked("characteristic", CHARACTERISTICS, panel, names)
