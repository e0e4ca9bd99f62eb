"""Tiles: a few of a panel's firms, or its newest sessions, as a panel of their own.

Most features treat each firm by itself. Their functions therefore work on all firms or on a tile that fits
the processor's cache (`features.arithmetic.parallel`). Functions that look across firms
(`features.panel.derived.market_mean`, `group_mean`) fetch the full panel behind the tile.

Shape suffixes: T sessions, N firms, n firms of a tile.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from features.panel.asof import Statements
from features.panel.panel import NO_ROWS, Panel

_origins: WeakKeyDictionary[Panel, Panel] = WeakKeyDictionary()


def take_firms(panel: Panel, firms: slice, needs: frozenset[str] | None = None) -> Panel:
    """Select some of a panel's firms.

    Parameters
    ----------
    panel : Panel
        The data.
    firms : slice
        The firms.
    needs : frozenset of str, optional
        Panel fields (`Panel.fields`) to copy into contiguous memory, because they will be read often; all by
        default. The other fields are views, which are slower to read.

    Returns
    -------
    Panel
        A panel of these firms. `full_panel` returns the panel it was taken from.
    """

    def take(name: str, array_TN: npt.NDArray[Any]) -> npt.NDArray[Any]:
        part_Tn = array_TN[:, firms]
        if needs is None or name in needs or (name == "raw_close" and "volume" in needs):
            part_Tn = np.ascontiguousarray(part_Tn)
            part_Tn.setflags(write=False)
        return part_Tn

    changed: dict[str, Any] = {"tickers_N": panel.tickers_N[firms], "wrong": NO_ROWS}  # no feature reads them
    for field in fields(panel):
        value = getattr(panel, field.name)
        if field.name.endswith("_TN") and value is not None:
            changed[field.name] = take(field.name.removesuffix("_TN"), value)
        elif isinstance(value, Statements):
            changed[field.name] = value.take_firms(firms)
    tile = replace(panel, **changed)
    _origins[tile] = full_panel(panel)
    return tile


def take_sessions(panel: Panel, first: int) -> Panel:
    """Select the sessions of a panel from index ``first`` on.

    A feature has the same value as in the whole panel, to the bit, on every session with at least
    ``window - 1`` selected sessions before it (`features.library.registry.Feature.window`). A panel built
    from later prices only would not have this property, because adjustment starts at the first price.

    Parameters
    ----------
    panel : Panel
        The data of all firms, not a tile.
    first : int
        Index of the first session to keep.

    Returns
    -------
    Panel
        Views of the panel's arrays, with all firms.
    """
    assert panel not in _origins, "a tile of firms has no sessions of its own"
    changed: dict[str, Any] = {"dates_T": panel.dates_T[first:], "wrong": NO_ROWS}
    for field in fields(panel):
        value = getattr(panel, field.name)
        if field.name.endswith("_TN") and value is not None:
            changed[field.name] = value[first:]
        elif isinstance(value, Statements):
            changed[field.name] = value.take_sessions(first)
    return replace(panel, **changed)


def full_panel(panel: Panel) -> Panel:
    """Return the panel that a tile was taken from, or the panel itself if it is not a tile."""
    return _origins.get(panel, panel)
