"""The risk of a book by the model of `backtest.risk`, and what earned its profit.

Shape suffixes: T sessions of the book, R rows of the ledger, J factors of the model, P some of the sessions,
Q the market, the styles and all groups together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backtest.analysis.ledger import Contribution, LedgerRows, explained, factor_amounts
from backtest.analysis.styles import sum_by
from backtest.risk import CharacteristicRisk
from features.arrays import FloatArray, IntArray

GROUPS = "groups"
"""Name of all groups together."""


@dataclass(frozen=True, slots=True, eq=False)
class BookRisk:
    """Exposures and predicted variances of a book at the close of some sessions, after their trades."""

    names: tuple[str, ...]  # ``market``, the styles, and ``groups`` if the model has groups
    session_P: IntArray  # sessions of the book on which the book has a value and the model a covariance
    # weights times exposures, added up: the net weight for the market. For ``groups``, the largest absolute
    # net weight of one.
    exposure_PQ: FloatArray
    part_PQ: FloatArray  # part of the variance that belongs to a factor, ``e_j (F e)_j`` with the exposures e
    specific_P: FloatArray  # variance that is specific to the firms, ``sum_i w_i^2 D_i``

    @property
    def variance_P(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """Predicted variance of the return of the next session."""
        total_P: FloatArray = self.part_PQ.sum(axis=1) + self.specific_P
        return total_P


def book_risk(rows: LedgerRows, risk: CharacteristicRisk, nav_T: FloatArray, session_P: IntArray) -> BookRisk:
    """Measure a book at the close of some sessions, ascending; those without a covariance are left out.

    Row 0 of the model is session 0 of the book. Positions of firms whose specific variance is unknown count
    with their exposures alone.
    """
    known_P = np.array(
        [nav_T[t] > 0 and risk.factor_covariance(t) is not None for t in session_P.tolist()], bool
    )
    session_P = session_P[known_P]
    weight_R = rows.position_R / np.where(nav_T > 0, nav_T, np.inf)[rows.session_R]
    exposure_PJ = _amounts(rows, weight_R, risk, len(nav_T), sessions_ago=0)[session_P]
    variance_R = np.nan_to_num(risk.specific_TN[risk.first + rows.session_R, rows.firm_R].astype(np.float64))
    specific_T = sum_by(rows.session_R, weight_R**2 * variance_R, len(nav_T))
    part_PJ = np.empty_like(exposure_PJ)
    for p, t in enumerate(session_P.tolist()):
        covariance_JJ = risk.factor_covariance(t)
        assert covariance_JJ is not None, "sessions without one are left out"
        part_PJ[p] = exposure_PJ[p] * (covariance_JJ @ exposure_PJ[p])
    names, exposure_PQ, G = risk.names, exposure_PJ, risk.n_groups
    if G:
        names = (*risk.names[:-G], GROUPS)
        exposure_PQ = np.column_stack([exposure_PJ[:, :-G], np.abs(exposure_PJ[:, -G:]).max(axis=1)])
    return BookRisk(names, session_P, exposure_PQ, _with_groups(part_PJ, G), specific_T[session_P])


def by_risk(rows: LedgerRows, risk: CharacteristicRisk, sessions: int) -> Iterator[Contribution]:
    """Split the profit into exposure times factor return, what is specific to the firms, and costs.

    In each session factor j earns ``sum_i position_i[t-1] x_ij[t-1] f_j[t]``. The rest of the profit before
    costs is specific: ``sum_i position_i[t-1] e_i[t]``, and what trades earn before the close. A factor whose
    return is unknown earns 0 in that session. Row 0 of the model is session 0 of the book, which has
    ``sessions``.
    """
    held_TJ = _amounts(rows, rows.before_R, risk, sessions, sessions_ago=1)
    return_TJ = np.nan_to_num(risk.return_TJ[risk.first : risk.first + sessions])
    earned_Q = _with_groups((held_TJ * return_TJ).sum(axis=0)[None], risk.n_groups)[0].tolist()
    names = (*risk.names[: len(risk.names) - risk.n_groups], GROUPS)
    return explained("risk", dict(zip(names, earned_Q, strict=False)), rows)


def _with_groups(x_PJ: FloatArray, groups: int) -> FloatArray:
    """Add the last columns, those of the groups, up; without groups there is nothing to add."""
    return np.column_stack([x_PJ[:, :-groups], x_PJ[:, -groups:].sum(axis=1)]) if groups else x_PJ


def _amounts(
    rows: LedgerRows, amount_R: FloatArray, risk: CharacteristicRisk, sessions: int, *, sessions_ago: int
) -> FloatArray:
    """Sum the amounts of the rows times the exposures of their firms by session, shape (T, J).

    ``sessions_ago`` is the age of the exposures: 1 takes those of the previous close.
    """
    columns_TJ = factor_amounts(rows, amount_R, risk.scores, sessions, risk.first, sessions_ago)
    G = risk.n_groups
    if not G:
        return columns_TJ
    known_R = np.maximum(risk.first + rows.session_R - sessions_ago, 0)
    cell_R = rows.session_R * G + risk.group_TN[known_R, rows.firm_R]
    return np.column_stack([columns_TJ, sum_by(cell_R, amount_R, sessions * G).reshape(sessions, G)])
