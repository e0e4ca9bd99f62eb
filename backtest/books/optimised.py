"""The optimised book: the highest expected return within limits on risk, exposures and turnover.

Shape suffixes: T sessions, N firms, M firms that may be held at a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from backtest.books.inputs import BookInputs, BookNote, BookTargets, Need, last_decision
from backtest.books.limit_use import LimitUse
from backtest.books.optimiser.covariance import factor_covariance
from backtest.books.optimiser.program import Infeasible, Limits, Program
from backtest.books.optimiser.uses import limit_uses
from backtest.books.rank_weighted import centred_rank
from backtest.forecasts.ranking import as_signal
from features.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class Optimised:
    """Maximise the expected return of the signal within limits on risk, exposures and turnover.

    ``max a'w`` over the weights w that satisfy all of `backtest.books.optimiser.program.Limits`.

    The expected returns are ``a_i = volatility_i z_i`` with the normal scores ``z_i = Phi^-1((r_i - 0.5) /
    n)`` of the ranks r of the signal (ties share). This is the rule of Grinold (1994), alpha = IC x
    volatility x score; a constant IC changes nothing, because risk is limited and not priced. Only ranks of
    the signal enter. Risk is that of a statistical factor model, estimated on the last
    ``covariance_sessions`` sessions (`backtest.books.optimiser.covariance`).

    A firm may be held if it has a signal, returns on at least half of these sessions that vary, and, where
    they are limited, a sector and a beta.

    The turnover limit counts from the last target to this one. Firms that may no longer be held are sold, and
    these sales count. The first book is not limited by it. If no weights satisfy all limits, or the solver
    fails, there is no decision: the last book is kept, and a note says why.

    Attributes
    ----------
    limits : Limits
        Limits on risk, exposures and turnover.
    covariance_sessions : int
        Sessions over which covariances are estimated, at least 20.
    risk_factors : int
        Largest number of statistical factors in the covariances, at least 1.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Notes
    -----
    The program is solved by skfolio's ``MeanRisk`` (cvxpy, Clarabel), so limits hold up to the solver's
    tolerance, about 1e-8.
    """

    kind: ClassVar[str] = "optimised"
    formula: ClassVar[str] = "maximises volatility x normal score of the signal, within the limits"
    limits: Limits = Limits()  # noqa: RUF009  # frozen
    covariance_sessions: int = 252
    risk_factors: int = 20

    def __post_init__(self) -> None:
        if self.covariance_sessions < 20:
            msg = f"covariance_sessions is {self.covariance_sessions}; it must be at least 20."
            raise ValueError(msg)
        if self.risk_factors < 1:
            msg = f"risk_factors is {self.risk_factors}; it must be at least 1."
            raise ValueError(msg)

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
        }
        return frozenset(need for need, used in wanted.items() if used)

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = self._eligible(inputs)
        decides_T = inputs.schedule.decisions((~np.isnan(signal_TN)).sum(axis=1), 2)
        target_TN = np.full(signal_TN.shape, np.nan)
        last_N = inputs.last_N
        notes = []
        for t in np.flatnonzero(decides_T):
            answer = self._decide(int(t), signal_TN[t], last_N, inputs)
            if isinstance(answer, Infeasible):
                kept = "the last book is kept" if last_N is not None else "there is no book yet"
                notes.append(BookNote(int(t), f"{answer.reason}; {kept}"))
            else:
                target_TN[t] = last_N = answer
        return BookTargets(target_TN, tuple(notes))

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision; see `backtest.books.book.Book.limit_uses`."""
        last_N = last_decision(inputs, target_TN)
        may_N, program = self._program(len(target_TN) - 1, self._eligible(inputs)[-1], last_N, inputs)
        assert not isinstance(program, Infeasible), "there was a decision"
        return limit_uses(target_TN[-1, may_N], program, self.limits)

    def _eligible(self, inputs: BookInputs) -> FloatArray:
        """Return the signal, NaN where the firm lacks an exposure that is limited."""
        signal_TN = as_signal("signal", inputs.signal_TN)
        if self.limits.max_sector_net is not None:
            assert inputs.group_TN is not None
            signal_TN[inputs.group_TN < 0] = np.nan
        if self.limits.max_beta is not None:
            assert inputs.beta_TN is not None
            signal_TN[np.isnan(inputs.beta_TN)] = np.nan
        return signal_TN

    def _decide(
        self, t: int, signal_N: FloatArray, last_N: FloatArray | None, inputs: BookInputs
    ) -> FloatArray | Infeasible:
        from backtest.books.optimiser.solver import best_weights  # imports skfolio

        may_N, program = self._program(t, signal_N, last_N, inputs)
        if isinstance(program, Infeasible):
            return program
        weight_M = best_weights(program, self.limits)
        if isinstance(weight_M, Infeasible):
            return weight_M
        target_N = np.zeros(len(signal_N))
        target_N[may_N] = weight_M
        return target_N

    def _program(
        self, t: int, signal_N: FloatArray, last_N: FloatArray | None, inputs: BookInputs
    ) -> tuple[BoolArray, Program | Infeasible]:
        """Return the firms that may be held, and the program of the decision at t."""
        assert inputs.past is not None
        window_LN = inputs.past.window(t, self.covariance_sessions)
        may_N = ~np.isnan(signal_N) & _has_returns(window_LN, self.covariance_sessions)
        if may_N.sum() < 2:
            return may_N, Infeasible("fewer than 2 firms have a signal and enough past returns")
        covariance = factor_covariance(window_LN[:, may_N], self.risk_factors)
        return may_N, Program(
            expected_M=covariance.volatility_M * _normal_scores(signal_N[may_N]),
            covariance=covariance,
            group_M=None if inputs.group_TN is None else inputs.group_TN[t, may_N],
            beta_M=None if inputs.beta_TN is None else inputs.beta_TN[t, may_N],
            last_M=None if last_N is None else last_N[may_N],
            forced_sales=0.0 if last_N is None else float(np.abs(last_N[~may_N]).sum()),
            periods_per_year=inputs.past.periods_per_year,
        )


def _has_returns(window_LN: FloatArray, sessions: int) -> BoolArray:
    """Whether each firm has returns on half of the sessions, and they vary."""
    enough_N = (~np.isnan(window_LN)).sum(axis=0) >= (sessions + 1) // 2
    out_N = np.zeros(window_LN.shape[1], dtype=np.bool_)
    out_N[enough_N] = np.nanstd(window_LN[:, enough_N], axis=0) > 0
    return out_N


def _normal_scores(signal_M: FloatArray) -> FloatArray:
    """Normal scores of the ranks; ties share their mean rank."""
    from scipy.special import ndtri  # imported here because the import takes time

    rank_M = centred_rank(signal_M[None])[0]
    score_M: FloatArray = ndtri(0.5 + rank_M / len(signal_M))
    return score_M
