"""From raw characteristics to model inputs: cross-sectional transforms, then imputation of missing values.

Each date is transformed by itself, over the firms of its universe; causal to the bit. The single steps are
in `features.arithmetic.transforms`. Shape suffixes: T sessions, N firms, F characteristics, R rows (a block
of sessions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from features.arithmetic.parallel import for_each
from features.arithmetic.transforms import neutralise, rank_normal, winsorise, zscore
from features.arrays import AnyFloatArray, BoolArray, Float32Array, IntArray, require_shape
from features.options import Options

MISSING = "_missing"
"""Suffix of the name of a missing-value indicator."""
_ROWS = 64  # sessions per block when medians are computed


class TransformRule(Options):
    """Transformation of characteristics within each date: its settings are steps in their order."""

    winsorise: float | None = Field(default=None, ge=0, lt=0.5)
    """Share of each tail, in [0, 0.5), that is clipped to its quantile. Null: no clipping."""
    neutralise: Literal["none", "group"] = "none"
    """``group`` subtracts the mean of the firm's group (``features.group_by``) on the date; ``none`` does
    not. The value is unknown where the group is unknown."""
    kind: Literal["rank_normal", "zscore"] = "rank_normal"
    """``rank_normal`` maps ranks to a standard normal distribution; ``zscore`` subtracts the mean and divides
    by the standard deviation."""
    missing: Literal["zero", "median", "group_median"] = "zero"
    """Value that replaces a missing one: zero (the centre), the median of the date, or the median of the
    group; the date's median where the group is unknown or has no known value."""
    add_indicator: bool = False
    """Whether to add, for each characteristic, an indicator of whether its value was missing."""

    def names(self, characteristics: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the columns that `transform_characteristics` computes."""
        names = tuple(characteristics)
        return (*names, *(f"{name}{MISSING}" for name in names)) if self.add_indicator else names


def transform_characteristics(
    values_TNF: AnyFloatArray, universe_TN: BoolArray, group_TN: IntArray, rule: TransformRule
) -> Float32Array:
    """Transform characteristics within each date's universe and impute unknown values.

    Parameters
    ----------
    values_TNF : ndarray of shape (T, N, F)
        Raw values known at the close of t; NaN and infinities are unknown.
    universe_TN : ndarray of bool, shape (T, N)
        Firms in the universe; other firms have no effect.
    group_TN : ndarray of int, shape (T, N)
        Group codes as of t. -1 is unknown; firms of unknown group do not form a group.
    rule : TransformRule
        The transforms.

    Returns
    -------
    ndarray of float32, shape (T, N, F) or, with indicators, (T, N, 2 F)
        Without NaN; 0 outside the universe. Columns are those of `TransformRule.names`: all values, then all
        indicators. Row t depends only on row t, to the bit. Each column is contiguous in memory. Besides the
        result, a few temporary arrays of shape (T, N) are needed.

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
        # differences below float32 precision are rounding; ranks would turn them into large values
        own_TN[np.abs(own_TN) <= np.finfo(np.float32).eps * np.abs(value_TN)] = 0.0
        value_TN = own_TN
    scale = rank_normal if rule.kind == "rank_normal" else zscore
    return scale(value_TN, universe_TN)


def _fill_with_medians(value_TN: Float32Array, unknown_TN: BoolArray, group_TN: IntArray | None) -> None:
    """Replace unknown values by the median of the firm's group, else of the date."""

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
    """Return for each firm the median of its group in its row (codes from 0); NaN if no value is known."""
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
