"""The optimised book: the highest expected return within limits on risk, exposures and turnover.

Shape suffixes: T sessions, N firms, M firms that may be held at a decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from backtest.books.book import (
    TOLERANCE,
    Book,
    BookInputs,
    BookNote,
    BookTargets,
    LimitUse,
    Need,
    eligible,
    last_decision,
)
from backtest.books.ranked import centred_rank
from features.arrays import BoolArray, FloatArray, IntArray
from features.options import Options
from features.panel.periods import SESSIONS_PER_YEAR

if TYPE_CHECKING:
    import cvxpy as cp

_ZERO = 1e-8  # a smaller weight is 0


class WeightLimits(Options):
    """Limits of an optimised book, as fractions of NAV. Null is no limit.

    Examples
    --------
    >>> WeightLimits(long_only=True, max_net=1.0, min_net=1.0).max_position
    0.05
    """

    long_only: bool = False
    """Whether short positions are excluded."""
    max_position: float = Field(default=0.05, gt=0)
    """Largest absolute weight of a firm."""
    max_leverage: float = Field(default=2.0, gt=0)
    """Largest gross exposure."""
    min_net: float = 0.0
    """Smallest net exposure."""
    max_net: float = 0.0
    """Largest net exposure. A book that is fully invested has 1 for both."""
    max_volatility: float | None = Field(default=0.1, gt=0)
    """Largest expected annual volatility, ``sqrt(p w' S w)`` with p sessions in a year."""
    max_turnover: float | None = Field(default=None, gt=0)
    """Largest one-way turnover from the last target to the next one. The first book is not limited."""
    max_sector_net: float | None = Field(default=None, ge=0)
    """Largest absolute net weight of a sector (the groups of ``features.group_by``)."""
    max_beta: float | None = Field(default=None, ge=0)
    """Largest absolute beta of the book to the market, over 252 sessions."""

    @model_validator(mode="after")
    def _check_net(self) -> WeightLimits:
        if self.min_net > self.max_net:
            msg = f"min_net is {self.min_net} and max_net is {self.max_net}; min_net must not be larger."
            raise ValueError(msg)
        if self.long_only and self.max_net <= 0:
            msg = f"max_net is {self.max_net}; a long_only book needs a net exposure above 0, such as 1."
            raise ValueError(msg)
        return self


class FactorCovariance(NamedTuple):
    """A covariance ``B B' + diag(s)`` of the returns of a session."""

    loading_MK: FloatArray  # B: loadings on factors of variance 1
    specific_M: FloatArray  # s: variance that the factors do not explain, above 0
    volatility_M: FloatArray  # standard deviation of each firm's returns

    @property
    def matrix(self) -> FloatArray:
        """The covariance, shape (M, M)."""
        return self.loading_MK @ self.loading_MK.T + np.diag(self.specific_M)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """The numbers of one decision."""

    expected_M: FloatArray  # expected returns, in any unit
    covariance: FactorCovariance  # covariance of the returns of a session
    group_M: IntArray | None = None  # sectors; needed for ``max_sector_net``
    beta_M: FloatArray | None = None  # betas; needed for ``max_beta``
    # last target weights of these firms. None: there is no book yet, and turnover is not limited.
    last_M: FloatArray | None = None
    forced_sales: float = 0.0  # gross last target weight of all other firms, which are sold
    periods_per_year: float = SESSIONS_PER_YEAR  # sessions in a year


class Infeasible(Exception):  # noqa: N818  # it says what the problem is
    """No weights could be found: the message says which limits cannot be met, or how the solver failed."""


class Optimised(Book):
    """The highest expected return within limits on risk, exposures and turnover, by skfolio.

    ``max a'w`` over the weights w that satisfy all of `WeightLimits`.

    The expected returns are ``a_i = volatility_i z_i`` with the normal scores ``z_i = Phi^-1((r_i - 0.5) /
    n)`` of the ranks r of the signal (ties share). This is the rule of Grinold (1994), alpha = IC x
    volatility x score; a constant IC changes nothing, because risk is limited and not priced. Only ranks of
    the signal enter. Risk is that of a statistical factor model, estimated on the last
    ``covariance_sessions`` sessions (`factor_covariance`), or of the model by characteristics
    (`backtest.risk.CharacteristicRisk`).

    A firm may be held if it has a signal, returns on at least half of these sessions that vary, and, where
    they are limited, a sector and a beta.

    The turnover limit counts from the last target to this one. Firms that may no longer be held are sold, and
    these sales count. The first book is not limited by it. If no weights satisfy all limits, or the solver
    fails, there is no decision: the last book is kept, and a note says why. Limits hold up to the tolerance
    of the solver (cvxpy, Clarabel), about 1e-8.

    Examples
    --------
    >>> Optimised(limits=WeightLimits(max_turnover=0.2, max_sector_net=0.05)).needs == {"returns", "groups"}
    True
    """

    continues: ClassVar[bool] = True  # by its turnover
    kind: Literal["optimised"] = "optimised"
    """Selects this kind of book."""
    rebalance_every: int = Field(default=5, ge=1)
    """Dates with signals from one rebalancing to the next: 5 is a week of daily signals. Sessions without
    signals do not count. With ``rebalance_on``: 2 is every second of its sessions."""
    limits: WeightLimits = WeightLimits()
    """Limits on risk, exposures and turnover."""
    covariance_sessions: int = Field(default=252, ge=20)
    """Sessions on which the covariance of returns is estimated."""
    risk_factors: Annotated[int, Field(ge=1)] | Literal["characteristics"] = 20
    """Largest number of statistical factors in the covariance; at most a tenth of the firms are used.
    ``characteristics``: the factors are the market, styles and groups instead."""

    @property
    def long_only(self) -> bool:
        """Whether the limits allow no short positions."""
        return self.limits.long_only

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal; see `backtest.books.book.Book.needs`."""
        wanted: dict[Need, bool] = {
            "returns": True,
            "groups": self.limits.max_sector_net is not None,
            "beta": self.limits.max_beta is not None,
            "risk": self.risk_factors == "characteristics",
        }
        return frozenset(need for need, used in wanted.items() if used)

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = eligible(self, inputs)
        decides_T = inputs.schedule.decisions((~np.isnan(signal_TN)).sum(axis=1), 2)
        target_TN = np.full(signal_TN.shape, np.nan)
        last_N = inputs.last_N
        notes = []
        for t in np.flatnonzero(decides_T):
            try:
                may_N, program = self._program(int(t), signal_TN[t], last_N, inputs)
                best_M = best_weights(program, self.limits)
            except Infeasible as problem:
                kept = "the last book is kept" if last_N is not None else "there is no book yet"
                notes.append(BookNote(int(t), f"{problem}; {kept}"))
                continue
            last_N = np.zeros(len(may_N))
            last_N[may_N] = best_M
            target_TN[t] = last_N
        return BookTargets(target_TN, tuple(notes))

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision; see `backtest.books.book.Book.limit_uses`."""
        last_N = last_decision(inputs, target_TN)
        may_N, program = self._program(len(target_TN) - 1, eligible(self, inputs)[-1], last_N, inputs)
        return tuple(limit_uses(target_TN[-1, may_N], program, self.limits))

    def _program(
        self, t: int, signal_N: FloatArray, last_N: FloatArray | None, inputs: BookInputs
    ) -> tuple[BoolArray, Program]:
        """Return the firms that may be held, and the program of the decision at t, or raise `Infeasible`."""
        assert inputs.past is not None
        window_LN, sessions = inputs.past.window(t, self.covariance_sessions), self.covariance_sessions
        may_N = ~np.isnan(signal_N) & ((~np.isnan(window_LN)).sum(axis=0) >= (sessions + 1) // 2)
        may_N[may_N] = np.nanstd(window_LN[:, may_N], axis=0) > 0
        if may_N.sum() < 2:
            raise Infeasible("fewer than 2 firms have a signal and enough past returns")
        if self.risk_factors != "characteristics":
            covariance = factor_covariance(window_LN[:, may_N], self.risk_factors)
        else:
            assert inputs.risk is not None
            firm_M = np.flatnonzero(may_N)
            loading_MJ, specific_M = inputs.risk.loadings(t, firm_M), inputs.risk.specific(t, firm_M)
            if loading_MJ is None:
                raise Infeasible("the risk model knows too few sessions of factor returns")
            volatility_M = np.sqrt((loading_MJ**2).sum(axis=1) + specific_M)
            covariance = FactorCovariance(loading_MJ, specific_M, volatility_M)
        return may_N, Program(
            expected_M=covariance.volatility_M * _normal_scores(signal_N[may_N]),
            covariance=covariance,
            group_M=None if inputs.group_TN is None else inputs.group_TN[t, may_N],
            beta_M=None if inputs.beta_TN is None else inputs.beta_TN[t, may_N],
            last_M=None if last_N is None else last_N[may_N],
            forced_sales=0.0 if last_N is None else float(np.abs(last_N[~may_N]).sum()),
            periods_per_year=inputs.past.periods_per_year,
        )


def _normal_scores(signal_M: FloatArray) -> FloatArray:
    """Normal scores of the ranks; ties share their mean rank."""
    from scipy.special import ndtri  # imported here because the import takes time

    rank_M = centred_rank(signal_M[None])[0]
    score_M: FloatArray = ndtri(0.5 + rank_M / len(signal_M))
    return score_M


def factor_covariance(return_LM: FloatArray, factors: int) -> FactorCovariance:
    """Estimate a covariance from the principal components of standardised past returns.

    Returns are divided by each firm's standard deviation. The first K principal components are the factors,
    with K the smaller of ``factors`` and a tenth of the firms. What they leave of a firm's variance is
    specific to the firm: residual correlations, which 252 sessions cannot tell from noise for hundreds of
    firms, are shrunk to 0. Every variance is the sample's. At least 1% of it counts as specific. At most half
    of a firm's returns are unknown (NaN); these count as the firm's mean in the components. Connor and
    Korajczyk 1988 (factors from principal components); Fan, Fan and Lv 2008 (covariances from factor models
    when firms outnumber sessions).
    """
    mean_M = np.nanmean(return_LM, axis=0)
    volatility_M = np.nanstd(return_LM, axis=0, ddof=1)
    score_LM = np.nan_to_num((return_LM - mean_M) / volatility_M)
    score_LM /= np.sqrt((score_LM**2).sum(axis=0))  # so that score' score is a correlation matrix
    count = max(1, min(factors, score_LM.shape[1] // 10))
    _, size, vector = np.linalg.svd(score_LM, full_matrices=False)
    loading_MK = vector[:count].T * size[:count]
    specific_M = np.maximum(1.0 - (loading_MK**2).sum(axis=1), 0.01)
    loading_MK *= np.sqrt((1.0 - specific_M) / (loading_MK**2).sum(axis=1))[:, None]
    return FactorCovariance(loading_MK * volatility_M[:, None], specific_M * volatility_M**2, volatility_M)


def limit_uses(weight_M: FloatArray, program: Program, limits: WeightLimits) -> Iterator[LimitUse]:
    """Measure weights by the formulas of `WeightLimits`: one use for each limit that is set.

    Risk, exposures and the last target are those of the program. Without a last target there is no turnover.
    """
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


def best_weights(program: Program, limits: WeightLimits) -> FloatArray:
    """Maximise the expected return within the limits, up to `TOLERANCE`, or raise `Infeasible`."""
    try:
        return _solve(program, limits)
    except Infeasible as problem:
        if program.last_M is None or limits.max_turnover is None:
            raise
        try:
            _solve(program, limits.model_copy(update={"max_turnover": None}))
        except Infeasible:
            raise problem from None
        raise Infeasible(
            f"a turnover of {limits.max_turnover} is not enough to come within the other limits (sales of "
            f"firms that may no longer be held take {0.5 * program.forced_sales:.3f})"
        ) from None


def _solve(program: Program, limits: WeightLimits) -> FloatArray:
    """Solve the program by skfolio, whose import takes seconds."""
    from cvxpy.atoms.norm1 import norm1
    from skfolio import RiskMeasure
    from skfolio.exceptions import OptimizationError
    from skfolio.optimization import MeanRisk, ObjectiveFunction

    def further_limits(weights: cp.Variable) -> list[cp.Constraint]:
        constraints = [norm1(weights) <= limits.max_leverage]
        if limits.max_turnover is not None and program.last_M is not None:
            moved = norm1(weights - program.last_M) + program.forced_sales
            constraints.append(moved <= 2.0 * limits.max_turnover)
        return constraints

    limited = list[tuple[FloatArray, float]]()  # exposures, and the limit of their absolute sum
    if limits.max_sector_net is not None:
        assert program.group_M is not None
        sectors = np.unique(program.group_M)
        limited += (((program.group_M == code).astype(np.float64), limits.max_sector_net) for code in sectors)
    if limits.max_beta is not None:
        assert program.beta_M is not None
        limited.append((program.beta_M, limits.max_beta))
    most, year = limits.max_volatility, float(np.sqrt(program.periods_per_year))
    model = MeanRisk(
        objective_function=ObjectiveFunction.MAXIMIZE_RETURN,
        risk_measure=RiskMeasure.STANDARD_DEVIATION,
        max_standard_deviation=None if most is None else most / year,
        prior_estimator=_known_prior(program),
        min_weights=0.0 if limits.long_only else -limits.max_position,
        max_weights=limits.max_position,
        budget=None,
        min_budget=limits.min_net,
        max_budget=limits.max_net,
        left_inequality=np.stack([sign * x_M for x_M, _ in limited for sign in (1, -1)]) if limited else None,
        right_inequality=np.repeat([limit for _, limit in limited], 2) if limited else None,
        add_constraints=further_limits,
        save_problem=True,
    )
    try:
        model.fit(np.zeros((2, len(program.expected_M))))  # not read: the prior holds all estimates
    except OptimizationError:
        status = model.problem_.status
        failed = f"the solver failed ({status})"
        raise Infeasible("no weights satisfy all limits" if status == "infeasible" else failed) from None
    weight_M: FloatArray = np.asarray(model.weights_, dtype=np.float64)
    weight_M[np.abs(weight_M) < _ZERO] = 0.0
    excesses = {use.name: use.excess for use in limit_uses(weight_M, program, limits)}
    excesses["long_only"] = -float(weight_M.min()) if limits.long_only else 0.0
    name, excess = max(excesses.items(), key=lambda item: item[1])
    if excess > TOLERANCE:
        raise Infeasible(f"the solver's answer exceeds {name} by {excess:.2g}")
    return weight_M


def _known_prior(program: Program) -> object:
    """A prior of skfolio whose expected returns and factor model of risk are given."""
    from skfolio.prior import BasePrior, FactorModel, ReturnDistribution

    class Known(BasePrior):  # type: ignore[misc]  # skfolio has no types
        def __init__(self) -> None:
            """Take no settings, so that skfolio can make another one of them."""

        def fit(self, X: object, y: None = None) -> Known:
            self.return_distribution_ = distribution
            return self

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
    distribution = ReturnDistribution(
        mu=program.expected_M,
        covariance=program.covariance.matrix,
        returns=np.zeros((2, firms)),
        factor_model=model,
    )
    return Known()
