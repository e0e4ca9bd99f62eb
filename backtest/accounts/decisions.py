"""Target weights, stored sparsely: the firms and weights of every decision.

A book holds a few of the firms of a panel, and many variants of a sweep trade the same targets. Twelve bytes
per weight that is not zero are less than eight per cell of the panel.

Shape suffixes: T sessions, N firms, K weights of all decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, FloatArray, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Target weights of a book; build them with `from_targets`.

    Attributes
    ----------
    n_firms : int
        Number of firms of the panel.
    decided_T : ndarray of bool, shape (T,)
        Whether there is a decision at the close of t.
    start_T1 : ndarray of int64, shape (T + 1,)
        The weights of session t are those from ``start[t]`` up to ``start[t + 1]``.
    firm_K : ndarray of int32, shape (K,)
        Firms with a target that is not zero, ascending within a session.
    weight_K : ndarray of shape (K,)
        Their weights, fractions of NAV.
    """

    n_firms: int
    decided_T: BoolArray
    start_T1: npt.NDArray[np.int64]
    firm_K: npt.NDArray[np.int32]
    weight_K: FloatArray

    @classmethod
    def from_targets(cls, target_TN: FloatArray) -> Decisions:
        """Collect the weights of a dense array.

        Parameters
        ----------
        target_TN : ndarray of shape (T, N)
            Fractions of NAV decided at the close of t; a row of NaN means no decision.

        Raises
        ------
        ValueError
            If a row is infinite or only partly NaN.
        """
        from backtest.accounts.kernels.collect import count_weights, write_weights

        target_TN = frozen(np.ascontiguousarray(target_TN, dtype=np.float64))
        T, N = target_TN.shape
        count_T = np.zeros(T, dtype=np.int64)
        count_weights(target_TN, count_T)
        if (count_T < -1).any():
            msg = (
                f"The target of session {int(np.argmax(count_T < -1))} is infinite or partly NaN; use weight "
                "0 for a firm that is not held, and a whole row of NaN for no decision."
            )
            raise ValueError(msg)
        start_T1 = np.zeros(T + 1, dtype=np.int64)
        np.cumsum(np.maximum(count_T, 0), out=start_T1[1:])
        K = int(start_T1[-1])
        firm_K, weight_K = np.empty(K + 1, dtype=np.int32), np.empty(K + 1)
        write_weights(target_TN, start_T1, firm_K, weight_K)
        firm_K, weight_K = firm_K[:K], weight_K[:K]
        return cls(N, frozen(count_T >= 0), frozen(start_T1), frozen(firm_K), frozen(weight_K))
