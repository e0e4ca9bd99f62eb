"""From raw characteristics to what models see: cross-sectional transforms in a row, and the unknown filled.

Each date by itself, over the firms of its universe alone; causal to the bit. The single steps are those of
`features.arithmetic.transforms`. Shape suffixes: T sessions, N firms, F characteristics, R rows (some
sessions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arithmetic.parallel import for_each
from features.arithmetic.transforms import neutralise, rank_normal, winsorise, zscore
from features.arrays import AnyFloatArray, BoolArray, Float32Array, IntArray, require_shape

MISSING = "_missing"
"""What the name of an indicator ends with."""
_ROWS = 64  # sessions whose medians are taken at a time


@dataclass(frozen=True, slots=True)
class TransformRule:
    """What is done to characteristics within each date, in this order.

    Attributes
    ----------
    winsorise : float or None
        Share of each tail, in [0, 0.5), that is pulled back to its quantile; None for none.
    neutralise : {"none", "group"}
        Whether the mean of the firm's group is subtracted; where the group is unknown, so is the value.
    kind : {"rank_normal", "zscore"}
        Ranked and mapped to a standard normal, or centred and divided by the deviation.
    missing : {"zero", "median", "group_median"}
        What an unknown value of a firm of the universe becomes: the centre, the date's median, or that of the
        firm's group (where the group is unknown, or nobody in it is known, the date's).
    add_indicator : bool
        Whether every characteristic is joined by one that is 1 where a value was unknown, else 0.
    """

    winsorise: float | None = None
    neutralise: Literal["none", "group"] = "none"
    kind: Literal["rank_normal", "zscore"] = "rank_normal"
    missing: Literal["zero", "median", "group_median"] = "zero"
    add_indicator: bool = False

    def __post_init__(self) -> None:
        if not 0 <= (self.winsorise or 0.0) < 0.5:
            msg = f"Winsorising {self.winsorise} of each tail is impossible: give a share in [0, 0.5)."
            raise ValueError(msg)

    def names(self, characteristics: Iterable[str]) -> tuple[str, ...]:
        """Name the columns that `transform_characteristics` makes of these characteristics."""
        names = tuple(characteristics)
        return (*names, *(f"{name}{MISSING}" for name in names)) if self.add_indicator else names


def transform_characteristics(
    values_TNF: AnyFloatArray, universe_TN: BoolArray, group_TN: IntArray, rule: TransformRule
) -> Float32Array:
    """Transform characteristics within each date's universe, and fill what is unknown.

    Parameters
    ----------
    values_TNF : ndarray of shape (T, N, F)
        Raw values known at the close of t; NaN and infinities are unknown.
    universe_TN : ndarray of bool, shape (T, N)
        The firms that count; the others play no role.
    group_TN : ndarray of int, shape (T, N)
        Group codes as of t; -1 is unknown, and firms of unknown group are no group.
    rule : TransformRule
        The steps.

    Returns
    -------
    ndarray of float32, shape (T, N, F) or, with indicators, (T, N, 2 F)
        Without NaN; 0 outside the universe. The indicators come after all values: columns are those of
        `TransformRule.names`. Row t depends on row t alone, to the bit. In memory each column lies together;
        beside the answer, a few arrays of shape (T, N) are held.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    T, N, F = values_TNF.shape
    require_shape("the universe", universe_TN, (T, N))
    require_shape("the groups", group_TN, (T, N))
    out_FTN = np.empty((2 * F if rule.add_indicator else F, T, N), dtype=np.float32)
    for f in range(F):
        value_TN = _stepped(values_TNF[:, :, f], universe_TN, group_TN, rule)
        unknown_TN = universe_TN & np.isnan(value_TN)
        if rule.add_indicator:
            out_FTN[F + f] = unknown_TN
        if rule.missing != "zero":
            _fill_with_medians(value_TN, unknown_TN, group_TN if rule.missing == "group_median" else None)
        out_FTN[f] = np.nan_to_num(value_TN, copy=False, nan=0.0)
    return np.moveaxis(out_FTN, 0, 2)


def _stepped(
    value_TN: AnyFloatArray, universe_TN: BoolArray, group_TN: IntArray, rule: TransformRule
) -> Float32Array:
    """Winsorise, neutralise and scale; NaN outside the universe and where unknown."""
    if rule.winsorise:
        value_TN = winsorise(value_TN, universe_TN, rule.winsorise)
    if rule.neutralise == "group":
        own_TN = neutralise(value_TN, group_TN, universe_TN)
        # what float32 could not tell from the group's mean is rounding, which a rank would make much of
        own_TN[np.abs(own_TN) <= np.finfo(np.float32).eps * np.abs(value_TN)] = 0.0
        value_TN = own_TN
    scale = rank_normal if rule.kind == "rank_normal" else zscore
    return scale(value_TN, universe_TN)


def _fill_with_medians(value_TN: Float32Array, unknown_TN: BoolArray, group_TN: IntArray | None) -> None:
    """Put the median of the firm's group, or else of the date, where a value is unknown."""

    def fill(rows: slice) -> None:
        value_RN, unknown_RN = value_TN[rows], unknown_TN[rows]
        median_RN = _median(value_RN, np.zeros(value_RN.shape, dtype=np.int64))
        if group_TN is not None:
            group_RN = group_TN[rows].astype(np.int64)
            of_group_RN = _median(value_RN, group_RN + 1)
            median_RN = np.where((group_RN < 0) | np.isnan(of_group_RN), median_RN, of_group_RN)
        value_RN[unknown_RN] = median_RN[unknown_RN]

    for_each(fill, [slice(start, start + _ROWS) for start in range(0, len(value_TN), _ROWS)])


def _median(x_RN: Float32Array, group_RN: IntArray) -> Float32Array:
    """Give every firm the median of its row's group (from 0 on); NaN where nobody in it is known."""
    n_groups = int(group_RN.max(initial=0)) + 1
    cell_RN = np.arange(len(x_RN))[:, None] * n_groups + group_RN
    order_RN = np.lexsort((x_RN, group_RN), axis=1)  # NaN last in its group
    flat = np.take_along_axis(x_RN, order_RN, axis=1).ravel()
    members = np.bincount(cell_RN.ravel(), minlength=len(x_RN) * n_groups)
    known = np.bincount(cell_RN[~np.isnan(x_RN)], minlength=len(members))
    start = np.cumsum(members) - members
    low, high = (np.minimum(start + at // 2, len(flat) - 1) for at in (np.maximum(known - 1, 0), known))
    median = np.where(known > 0, np.float32(0.5) * (flat[low] + flat[high]), np.float32(np.nan))
    out_RN: Float32Array = median[cell_RN]
    return out_RN
