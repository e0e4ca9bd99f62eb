"""Labels: the forward returns that models forecast at t.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from features.arithmetic.transforms import rank_normal
from features.arrays import BoolArray, Float32Array, FloatArray, require_shape
from features.panel.derived import row_mean
from features.panel.holder_returns import bought_return
from features.panel.holding import holders
from features.panel.panel import Panel

TargetKind = Literal["raw", "demean", "rank"]


def forward_returns(panel: Panel, delay: int, horizon: int, first: int = 0) -> FloatArray:
    """Compute the forward return of each firm, before costs, for a book that decides at t.

    The book buys the firm at the close of ``t+delay`` and holds it for ``horizon`` sessions. If the firm can
    be bought and stays listed, the label is ``index[t+delay+horizon] / index[t+delay] - 1`` with
    `Panel.total_return_index_TN` as the index. An order that cannot be filled earns 0. A delisting pays its
    delisting return, then cash. Positions are held through halts. `features.panel.holder_returns` defines
    this convention, and `features.panel.holding` which rows can be traded and earn;
    `backtest.accounts.accounting` also uses both. A label depends on nothing dated after ``t+delay+horizon``,
    except that a spike is known to be wrong when the price has returned.

    Parameters
    ----------
    panel : Panel
        The data.
    delay : int
        Sessions between the decision and the trade, at least 0.
    horizon : int
        Sessions held, at least 1.
    first : int
        Session of the first row to compute, at least 0.

    Returns
    -------
    ndarray of shape (T - first, N)
        A fraction, known at the close of ``t+delay+horizon``. NaN before the first price, where the span ends
        after the panel, across a known gap (`Panel.gap_TN`), and where the firm is still held at the end of
        the span but the data lack its price there (`features.panel.delistings`).

    Raises
    ------
    ValueError
        If the delay is negative or the horizon below 1.
    """
    if delay < 0 or horizon < 1:
        msg = f"The label has delay {delay} and horizon {horizon}; they must be at least 0 and at least 1."
        raise ValueError(msg)
    earned_TN = bought_return(holders(panel).on(slice(first, None)), horizon, panel.gap_TN[first:])[delay:]
    out_TN = np.full((panel.n_sessions - first, panel.n_firms), np.nan)
    out_TN[: len(earned_TN)] = earned_TN
    return out_TN


def target(label_TN: FloatArray, universe_TN: BoolArray, kind: TargetKind) -> Float32Array:
    """Transform labels within each date, over the firms of the universe with a known label.

    Parameters
    ----------
    label_TN : ndarray of shape (T, N)
        Labels.
    universe_TN : ndarray of bool, shape (T, N)
        Firms in the universe at t.
    kind : {"raw", "demean", "rank"}
        Unchanged, minus the date's mean, or ranked to a normal
        (`features.arithmetic.transforms.rank_normal`).

    Returns
    -------
    ndarray of float32, shape (T, N)
        NaN outside the universe and where the label is unknown. Each date is transformed by itself.

    Raises
    ------
    ValueError
        If the shapes differ or the kind is unknown.
    """
    require_shape("the universe", universe_TN, label_TN.shape)
    inside_TN = np.where(universe_TN, label_TN, np.nan)
    if kind == "raw":
        return inside_TN.astype(np.float32)
    if kind == "demean":
        return (inside_TN - row_mean(inside_TN)).astype(np.float32)
    if kind == "rank":
        return rank_normal(inside_TN, universe_TN)
    msg = f"Unknown target {kind!r}: choose raw, demean or rank."  # type: ignore[unreachable]  # from a config
    raise ValueError(msg)
