"""Compiled loops over the firms of a date in the order of their signals.

The rules of `features.arithmetic.kernels` apply: arrays are C-contiguous, a kernel starts no threads, and
sums are not reordered. Importing this module imports numba, so it is imported inside functions.

Shape suffixes: N firms, D decisions.
"""

import numpy as np

from features.arithmetic.kernels import compiled
from features.arrays import FloatArray, IntArray


@compiled
def centred_ranks(signal_DN: FloatArray, order_DN: IntArray, count_D: IntArray, out_DN: FloatArray) -> None:
    """Compute ``rank - (n + 1) / 2`` of the n known values of a date; ties share their mean rank, NaN gets 0.

    Every result is a multiple of one half. ``order_DN`` and ``count_D`` are those of
    `backtest.forecasts.daily.SortedPanel`.
    """
    for d in range(signal_DN.shape[0]):
        signal_N, order_N, n, out_N = signal_DN[d], order_DN[d], count_D[d], out_DN[d]
        out_N[:] = 0.0
        first = 0
        while first < n:
            end = first + 1
            while end < n and signal_N[order_N[end]] == signal_N[order_N[first]]:
                end += 1
            for place in range(first, end):
                out_N[order_N[place]] = (first + end - n) / 2
            first = end


@compiled
def drop_and_buy(  # noqa: PLR0917  # a compiled loop takes arrays and numbers
    signal_DN: FloatArray,
    order_DN: IntArray,
    count_D: IntArray,
    k: int,
    n_drop: int,
    before_N: FloatArray,
    held_DN: FloatArray,
) -> None:
    """Follow the top-k drop book from decision to decision, in units of one position.

    A NaN signal is not eligible. ``order_DN`` and ``count_D`` are the order and the number of the signals of
    a date (`backtest.forecasts.daily.SortedPanel`), ``k`` the number of positions, ``n_drop`` the largest
    number of them that a decision replaces, ``before_N`` the units of each firm before the first decision,
    which are overwritten, and ``held_DN`` the output: units of each firm after the decision, from 0 to 1. A
    row sums to k, up to rounding. A fraction of a unit is held only if firms are tied. Without ties every
    step is that of `backtest.books.rules.top_k_drop`.
    """
    D, N = signal_DN.shape
    candidate_N = np.zeros(N)
    for d in range(D):
        signal_N, order_N, n, held_N = signal_DN[d], order_DN[d], count_D[d], held_DN[d]
        units = 0.0
        for i in range(N):
            if np.isnan(signal_N[i]):
                before_N[i] = 0.0
            units += before_N[i]
        candidate_N[:] = 0.0
        _buy(signal_N, order_N[:n], before_N, n_drop + k - units, candidate_N)
        held_N[:] = 0.0
        left, end = float(k), n
        while end > 0 and left > 0:  # from the best block of equals down
            first, owned, offered = end, 0.0, 0.0
            while first > 0 and signal_N[order_N[first - 1]] == signal_N[order_N[end - 1]]:
                first -= 1
                owned += before_N[order_N[first]]
                offered += candidate_N[order_N[first]]
            kept = min(1.0, left / owned) if owned > 0 else 0.0  # among equals, positions before candidates
            left = max(left - owned, 0.0)
            bought = min(1.0, left / offered) if offered > 0 else 0.0
            left = max(left - offered, 0.0)
            for place in range(first, end):
                i = order_N[place]
                held_N[i] = min(kept * before_N[i] + bought * candidate_N[i], 1.0)
            end = first
        for i in range(N):
            before_N[i] = held_N[i]


@compiled
def _buy(
    signal_N: FloatArray, order_M: IntArray, held_N: FloatArray, units: float, out_N: FloatArray
) -> None:
    """Fill units from the highest signal down, each firm up to one unit; tied firms share by what is free."""
    end = len(order_M)
    while end > 0 and units > 0:
        first, free = end, 0.0
        while first > 0 and signal_N[order_M[first - 1]] == signal_N[order_M[end - 1]]:
            first -= 1
            free += 1.0 - held_N[order_M[first]]
        if free > 0:
            share = min(1.0, units / free)
            for place in range(first, end):
                out_N[order_M[place]] = share * (1.0 - held_N[order_M[place]])
            units -= share * free
        end = first
