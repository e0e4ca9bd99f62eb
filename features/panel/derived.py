"""Tiles of a panel, and series that several features share, computed once per panel.

A tile is a few of a panel's firms, or its newest sessions, as a panel of its own. Most features treat each
firm by itself, so their functions work on all firms or on a tile that fits the processor's cache
(`features.arithmetic.parallel`). Functions that look across firms (`market_return`, `group_mean`) fetch the
full panel behind the tile. Series are cached while the panel lives.

All are causal to the bit. Shape suffixes: T sessions, N firms, n firms of a tile.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields, replace
from functools import wraps
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from features.arithmetic.parallel import firm_blocks, for_each, map_in_order
from features.arithmetic.rolling import carry_and_age, lag, rolling_median
from features.arrays import Float32Array, FloatArray, IntArray, frozen
from features.panel.panel import NO_ROWS, Panel

MAX_HALT = 20
"""Longest halt, in sessions, over which a close is carried forward. After a longer time without a price, a
firm is presumed delisted (`features.panel.delistings`), and its series restart if it trades again. This
bounds how many past sessions a feature can depend on."""

Value = TypeVar("Value")


class _Cell:
    """A cached value, or None until it is computed."""

    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = Lock()
        self.value: Any = None


_cache: WeakKeyDictionary[Panel, dict[Hashable, _Cell]] = WeakKeyDictionary()
_registering = Lock()


def cached(panel: Panel, key: Hashable, compute: Callable[[], Value]) -> Value:
    """Compute a value once per panel and key. Panels are immutable, so the value never becomes stale.

    It is kept while the panel lives. If several threads need it, one computes it and the others wait.
    """
    with _registering:
        cell = _cache.setdefault(panel, {}).setdefault(key, _Cell())
    with cell.lock:
        if cell.value is None:
            cell.value = compute()
        value: Value = cell.value
    return value


def forget(panel: Panel) -> None:
    """Release the cached values of a panel. They are computed again where they are needed."""
    with _registering:
        _cache.pop(panel, None)


def cached_per_panel(compute: Callable[[Panel], FloatArray]) -> Callable[[Panel], FloatArray]:
    """Cache a series by its panel."""

    @wraps(compute)
    def remembered(panel: Panel, /) -> FloatArray:
        return cached(panel, compute, lambda: frozen(compute(panel)))

    return remembered


def column(panel: Panel, name: str) -> FloatArray:
    """Return a panel column that a feature lists in ``needs``; ValueError if the panel has none."""
    array: FloatArray | None = getattr(panel, f"{name}_TN")
    if array is None:
        msg = f"This panel has no {name}: leave out the features that need it (see `Registry.available`)."
        raise ValueError(msg)
    return array


def carried_close(panel: Panel) -> FloatArray:
    """Return the adjusted close, carried through halts: ``close[s]``, s the last session <= t with a trade.

    NaN where ``t - s`` exceeds `MAX_HALT`. Row t therefore depends only on rows t-MAX_HALT..t.
    """
    return _last_price(panel)[0]


def sessions_since_trade(panel: Panel) -> FloatArray:
    """Count the sessions since a firm's last price: 0 if it trades at t, infinite before its first price."""
    return _last_price(panel)[1]


def _last_price(panel: Panel) -> tuple[FloatArray, FloatArray]:
    def carried() -> tuple[FloatArray, FloatArray]:
        close_TN, idle_TN = carry_and_age(panel.close_TN, MAX_HALT)
        return frozen(close_TN), frozen(idle_TN)

    return cached(panel, _last_price, carried)


@cached_per_panel
def daily_return(panel: Panel) -> FloatArray:
    """Compute ``close[t] / carried_close[t-1] - 1``; NaN without a trade.

    The return over a halt falls on the first session after it. After more than `MAX_HALT` sessions without a
    price it is NaN, because it is no longer a daily return.
    """
    return panel.close_TN / lag(carried_close(panel), 1) - 1.0


def market_return(panel: Panel) -> FloatArray:
    """Compute the equal-weight mean of the day's returns over all firms, shape (T, 1); NaN without a return.

    Of a universe with a list, over those that have been on it up to t (`Panel.members_TN`). Of a tile the
    mean is over all firms as well.
    """
    return _means(panel, False, daily_return)


@cached_per_panel
def dollar_volume(panel: Panel) -> FloatArray:
    """Compute dollar volume: raw close times shares traded."""
    return panel.raw_close_TN * column(panel, "volume")


def median_dollar_volume(panel: Panel, window: int) -> Float32Array:
    """Compute the median dollar volume of ``window`` sessions; NaN where fewer than half of them are known.

    It is computed in float32, which sorts twice as fast as float64; seven digits of a volume are enough.
    """
    out_TN = np.empty(panel.close_TN.shape, dtype=np.float32)

    def fill(firms: slice) -> None:
        tile = take_firms(panel, firms, frozenset())  # no copies: each array is read only once
        out_TN[:, firms] = rolling_median(dollar_volume(tile).astype(np.float32), window, (window + 1) // 2)

    for_each(fill, firm_blocks(panel.n_sessions, panel.n_firms))
    return out_TN


def row_mean(x_TN: FloatArray) -> FloatArray:
    """Average the known values of each session, shape (T, 1); NaN if there are none.

    Values are added in column order, so a firm that is listed later does not affect the rounding.
    """
    known_TN = ~np.isnan(x_TN)
    count_T1 = known_TN.sum(axis=1, keepdims=True)
    total_T1 = np.where(known_TN, x_TN, 0.0).cumsum(axis=1)[:, -1:]
    mean_T1: FloatArray = np.where(count_T1 > 0, total_T1 / np.maximum(count_T1, 1), np.nan)
    return mean_T1


def group_mean(panel: Panel, series: Callable[..., FloatArray], *settings: int) -> FloatArray:
    """Average a series over the firms of each firm's group as of t, shape (T, N).

    The mean is over the group's firms with a known value, the firm itself included, and the firms are those
    of `market_return`. NaN where the group is unknown or has fewer than two such firms, because a firm is not
    its own peer. ``series`` takes the panel and the further arguments, and computes (T, N) for each firm by
    itself. It must be a module-level function, because its identity is part of the cache key.
    """
    mean_TS, group_TN = _means(panel, True, series, *settings), panel.group_TN
    return np.where(group_TN >= 0, np.take_along_axis(mean_TS, np.maximum(group_TN, 0), axis=1), np.nan)


def _means(panel: Panel, by_group: bool, series: Callable[..., FloatArray], *settings: int) -> FloatArray:
    """Average a series by session, or by session and group (with at least two values), over all firms.

    Where the universe has a list, these are the firms that have been on it up to t (`Panel.members_TN`).
    Firms are added in column order and those without a value are skipped, so they do not affect the rounding.
    """
    full = full_panel(panel)

    def compute() -> FloatArray:
        from features.arithmetic.kernels import add_by_group

        n_groups, least = (max(len(full.groups_S), 1), 2) if by_group else (1, 1)
        total_TS = np.zeros((full.n_sessions, n_groups))
        count_TS = np.zeros((full.n_sessions, n_groups), dtype=np.int64)

        def values(firms: slice) -> tuple[FloatArray, IntArray]:
            tile = take_firms(full, firms, frozenset({"close", "group"}))
            group_Tn = tile.group_TN if by_group else np.zeros(tile.close_TN.shape, dtype=np.int16)
            x_Tn = series(tile, *settings)
            if tile.members_TN is not None:
                x_Tn = np.where(tile.members_TN, x_Tn, np.nan)
            return x_Tn, group_Tn

        for x_Tn, group_Tn in map_in_order(values, firm_blocks(full.n_sessions, full.n_firms)):
            add_by_group(frozen(x_Tn), frozen(group_Tn), total_TS, count_TS)
        mean_TS: FloatArray = np.where(count_TS >= least, total_TS / np.maximum(count_TS, 1), np.nan)
        return mean_TS

    return cached(full, (series, settings, by_group), compute)


_origins: WeakKeyDictionary[Panel, Panel] = WeakKeyDictionary()


def take_firms(panel: Panel, firms: slice, needs: frozenset[str] | None = None) -> Panel:
    """Select some of a panel's firms. `full_panel` returns the panel that the selection was taken from.

    The fields in ``needs`` (`Panel.fields`), by default all, are copied into contiguous memory, because they
    will be read often. The others are views, which are slower to read.
    """

    def take(name: str, array_TN: npt.NDArray[Any]) -> npt.NDArray[Any]:
        part_Tn = array_TN[:, firms]
        if needs is None or name in needs or (name == "raw_close" and "volume" in needs):
            part_Tn = np.ascontiguousarray(part_Tn)
            part_Tn.setflags(write=False)
        return part_Tn

    statements, tickers_N = panel.statements.take_firms(firms), panel.tickers_N[firms]
    changed = changed_arrays(panel, take)  # no feature reads the wrong rows
    tile = replace(panel, **changed, statements=statements, tickers_N=tickers_N, wrong=NO_ROWS)
    _origins[tile] = full_panel(panel)
    return tile


def take_sessions(panel: Panel, first: int) -> Panel:
    """Select the sessions of a panel, which is no tile, from index ``first`` on, as views of its arrays.

    A feature has the same value as in the whole panel, to the bit, on every session with at least ``window -
    1`` selected sessions before it (`features.library.registry.Feature.window`). A panel built from later
    prices only would not have this property, because adjustment starts at the first price.
    """
    assert panel not in _origins, "a tile of firms has no sessions of its own"
    changed = changed_arrays(panel, lambda _, array_TN: array_TN[first:])
    statements, dates_T = panel.statements.take_sessions(first), panel.dates_T[first:]
    return replace(panel, **changed, statements=statements, dates_T=dates_T, wrong=NO_ROWS)


def changed_arrays(
    panel: Panel, change: Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]]
) -> dict[str, Any]:
    """Arrays (T, N) of a panel after a change of each, which receives the name of the column as well."""
    names = [one.name for one in fields(panel) if one.name.endswith("_TN")]
    arrays = {name: getattr(panel, name) for name in names}
    return {n: change(n.removesuffix("_TN"), x_TN) for n, x_TN in arrays.items() if x_TN is not None}


def full_panel(panel: Panel) -> Panel:
    """Return the panel that a tile was taken from, or the panel itself if it is not a tile."""
    return _origins.get(panel, panel)
