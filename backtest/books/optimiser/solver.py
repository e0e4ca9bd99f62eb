"""The solution of the optimised book's program by skfolio.

Importing this module imports skfolio and cvxpy, which takes seconds, so it is imported inside functions.

Shape suffixes: M firms that may be held, K factors, S sectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import cvxpy as cp
import numpy as np
from cvxpy.atoms.norm1 import norm1
from skfolio import RiskMeasure
from skfolio.exceptions import OptimizationError
from skfolio.optimization import MeanRisk, ObjectiveFunction
from skfolio.prior import BasePrior, FactorModel, ReturnDistribution

from backtest.books.limit_use import TOLERANCE
from backtest.books.optimiser.program import Infeasible, Limits, Program
from backtest.books.optimiser.uses import limit_uses
from features.arrays import FloatArray

_ZERO = 1e-8  # a smaller weight is 0


def best_weights(program: Program, limits: Limits) -> FloatArray | Infeasible:
    """Maximise the expected return within the limits.

    Parameters
    ----------
    program : Program
        Expected returns, risk, exposures and the last target.
    limits : Limits
        Limits on the weights.

    Returns
    -------
    ndarray of shape (M,) or Infeasible
        Weights that satisfy every limit up to `TOLERANCE`. Otherwise the reason why there are none.
    """
    answer = _solve(program, limits)
    if not isinstance(answer, Infeasible):
        return answer
    limited = program.last_M is not None and limits.max_turnover is not None
    if limited and not isinstance(_solve(program, replace(limits, max_turnover=None)), Infeasible):
        return Infeasible(
            f"a turnover of {limits.max_turnover} is not enough to come within the other limits (sales of "
            f"firms that may no longer be held take {0.5 * program.forced_sales:.3f})"
        )
    return answer


def _solve(program: Program, limits: Limits) -> FloatArray | Infeasible:
    def further_limits(weights: cp.Variable) -> list[cp.Constraint]:
        constraints = [norm1(weights) <= limits.max_leverage]
        if limits.max_turnover is not None and program.last_M is not None:
            moved = norm1(weights - program.last_M) + program.forced_sales
            constraints.append(moved <= 2.0 * limits.max_turnover)
        return constraints

    exposures = list(_exposures(program, limits))
    model = MeanRisk(
        objective_function=ObjectiveFunction.MAXIMIZE_RETURN,
        risk_measure=RiskMeasure.STANDARD_DEVIATION,
        max_standard_deviation=_per_session(limits.max_volatility, program.periods_per_year),
        prior_estimator=_Known(_distribution(program)),
        min_weights=0.0 if limits.long_only else -limits.max_position,
        max_weights=limits.max_position,
        budget=None,
        min_budget=limits.min_net,
        max_budget=limits.max_net,
        left_inequality=np.stack([sign * row for row, _ in exposures for sign in (1, -1)])
        if exposures
        else None,
        right_inequality=np.repeat([limit for _, limit in exposures], 2) if exposures else None,
        add_constraints=further_limits,
        save_problem=True,
    )
    try:
        model.fit(np.zeros((2, len(program.expected_M))))  # not read: the prior holds all estimates
    except OptimizationError:
        status = model.problem_.status
        return Infeasible(
            "no weights satisfy all limits" if status == "infeasible" else f"the solver failed ({status})"
        )
    weight_M: FloatArray = np.asarray(model.weights_, dtype=np.float64)
    weight_M[np.abs(weight_M) < _ZERO] = 0.0
    name, excess = max(excesses(weight_M, program, limits).items(), key=lambda item: item[1])
    if excess > TOLERANCE:
        return Infeasible(f"the solver's answer exceeds {name} by {excess:.2g}")
    return weight_M


def excesses(weight_M: FloatArray, program: Program, limits: Limits) -> dict[str, float]:
    """By how much weights exceed each limit; 0 or less is within it."""
    found = {use.name: use.excess for use in limit_uses(weight_M, program, limits)}
    return found | {"long_only": -float(weight_M.min()) if limits.long_only else 0.0}


def _exposures(program: Program, limits: Limits) -> Iterator[tuple[FloatArray, float]]:
    """Rows of exposures whose absolute sum is limited, with the limit."""
    if limits.max_sector_net is not None:
        assert program.group_M is not None
        for code in np.unique(program.group_M):
            yield (program.group_M == code).astype(np.float64), limits.max_sector_net
    if limits.max_beta is not None:
        assert program.beta_M is not None
        yield program.beta_M, limits.max_beta


def _per_session(annual: float | None, periods_per_year: float) -> float | None:
    return None if annual is None else annual / float(np.sqrt(periods_per_year))


def _distribution(program: Program) -> ReturnDistribution:
    """The expected returns and the factor model of the covariance, in skfolio's terms."""
    firms, factors = program.covariance.loading_MK.shape
    model = FactorModel(
        observations=np.array([], dtype=str),
        asset_names=np.arange(firms).astype(str),
        factor_names=np.arange(factors).astype(str),
        factor_families=None,
        loading_matrix=program.covariance.loading_MK,
        exposures=None,
        factor_covariance=np.eye(factors),
        factor_mu=np.zeros(factors),
        factor_returns=None,
        idio_covariance=program.covariance.specific_M,
        idio_mu=None,
        idio_returns=None,
        idio_variances=None,
    )
    return ReturnDistribution(
        mu=program.expected_M,
        covariance=program.covariance.matrix,
        returns=np.zeros((2, firms)),
        factor_model=model,
    )


class _Known(BasePrior):  # type: ignore[misc]  # skfolio has no types
    """A prior whose distribution is given instead of estimated."""

    def __init__(self, distribution: ReturnDistribution) -> None:
        self.distribution = distribution

    def fit(self, X: object, y: None = None) -> _Known:
        """Use the given distribution."""
        self.return_distribution_ = self.distribution
        return self
