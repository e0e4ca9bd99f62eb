"""What weights amount to under each limit of the optimised book.

Shape suffixes: M firms that may be held, K factors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backtest.books.limit_use import LimitUse
from backtest.books.optimiser.program import Limits, Program
from features.arrays import FloatArray


def limit_uses(weight_M: FloatArray, program: Program, limits: Limits) -> tuple[LimitUse, ...]:
    """Measure weights by the formulas of `Limits`, one use for each limit that is set.

    Parameters
    ----------
    weight_M : ndarray of shape (M,)
        Weights of the decision.
    program : Program
        Risk, exposures and the last target of the decision. Without a last target there is no turnover.
    limits : Limits
        Limits on the weights.
    """
    return tuple(_uses(weight_M, program, limits))


def _uses(weight_M: FloatArray, program: Program, limits: Limits) -> Iterator[LimitUse]:
    net = float(weight_M.sum())
    yield LimitUse("max_position", float(np.abs(weight_M).max()), limits.max_position)
    yield LimitUse("max_leverage", float(np.abs(weight_M).sum()), limits.max_leverage)
    yield LimitUse("min_net", net, limits.min_net, least=True)
    yield LimitUse("max_net", net, limits.max_net)
    if limits.max_volatility is not None:
        loaded_K = program.covariance.loading_MK.T @ weight_M
        variance = float(loaded_K @ loaded_K + program.covariance.specific_M @ weight_M**2)
        volatility = float(np.sqrt(program.periods_per_year * variance))
        yield LimitUse("max_volatility", volatility, limits.max_volatility, "a year")
    if limits.max_turnover is not None and program.last_M is not None:
        moved = float(np.abs(weight_M - program.last_M).sum()) + program.forced_sales
        yield LimitUse("max_turnover", 0.5 * moved, limits.max_turnover)
    if limits.max_sector_net is not None:
        assert program.group_M is not None
        net_S = np.bincount(program.group_M, weights=weight_M)
        yield LimitUse("max_sector_net", float(np.abs(net_S).max()), limits.max_sector_net)
    if limits.max_beta is not None:
        assert program.beta_M is not None
        yield LimitUse("max_beta", abs(float(program.beta_M @ weight_M)), limits.max_beta, "beta")
