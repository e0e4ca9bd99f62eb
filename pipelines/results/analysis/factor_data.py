"""Style scores and factor returns of a market, computed once for all books.

Shape suffixes: T sessions, N firms, K styles, J market and styles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from backtest.analysis.styles import FactorReturns, StyleScores, factor_returns, style_scores
from features.arrays import FloatArray
from features.panel.holding import held_return, holders
from features.panel.panel import Panel
from pipelines.dataset.market import Market

_BLOCK: Final = 64
"""Sessions at a time, so that intermediate arrays stay small."""


@dataclass(slots=True, eq=False)
class FactorData:
    """Scores of all sessions, and factor returns by delay.

    Attributes
    ----------
    scores
        Known at the close of each session of the panel.
    earned_TN
        Return of each session, as a holder earns it; NaN where a price is unknown.
    """

    scores: StyleScores
    earned_TN: FloatArray
    _returns: dict[int, FactorReturns] = field(default_factory=dict)

    def scores_on(self, held: slice) -> StyleScores:
        """Scores on some sessions."""
        every = self.scores
        return replace(
            every,
            score_KTN=every.score_KTN[:, held],
            known_KT=every.known_KT[:, held],
            universe_TN=every.universe_TN[held],
        )

    def returns_on(self, held: slice, delay: int) -> FactorReturns:
        """Returns on some sessions of factors that are traded ``delay`` sessions after their decision."""
        if delay not in self._returns:
            self._returns[delay] = factor_returns(self.scores, self.earned_TN, delay)
        every = self._returns[delay]
        return FactorReturns(every.names, every.return_TJ[held])


def factor_data(market: Market) -> FactorData:
    """Compute the scores and the returns of a market's firms."""
    return FactorData(style_scores(market.panel, market.universe_TN), earned_returns(market.panel))


def earned_returns(panel: Panel) -> FloatArray:
    """Return of each session for a holder, shape (T, N): halts earn 0, a delisting pays its return.

    NaN in the first session, and where the total return index is unknown at either close.
    """
    earned_TN = np.full(panel.total_return_index_TN.shape, np.nan)
    for start in range(0, panel.n_sessions - 1, _BLOCK):
        block = holders(panel).on(slice(start, start + _BLOCK + 1))
        known_BN = block.known_TN[1:] & block.known_TN[:-1]
        earned_TN[start + 1 : start + 1 + len(known_BN)] = np.where(known_BN, held_return(block, 1), np.nan)
    return earned_TN
