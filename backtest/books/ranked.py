"""What the books by rank share: eligible firms, decisions held side by side, neutrality and volatility.

The steps of a decision, in this order:

1. A firm is eligible if it has a signal and every exposure that the book needs.
2. The rule selects and weighs the eligible firms (`RankedBook.select`).
3. With ``overlap``, the weights of all decisions that are still held are averaged. A firm that is no longer
   eligible has weight 0.
4. With ``inverse_volatility``, each side is weighted by ``1 / volatility``.
5. The exposures in ``neutral`` are removed.
6. With ``target_volatility``, the book is scaled to it.

Only ranks of the signal enter: any increasing transform of the signal gives the same weights to the bit.
`forecast_weights` is the exception: it holds firms in proportion to the signal.

Shape suffixes: T sessions, N firms, M firms that are held, D decisions, L sessions of a window.
"""

from abc import abstractmethod
from typing import Literal

import numpy as np
from pydantic import Field

from backtest.books.book import (
    Book,
    BookInputs,
    BookNote,
    BookTargets,
    LimitUse,
    Need,
    PastReturns,
    eligible,
    spread_over_sessions,
)
from backtest.forecasts.daily import SortedPanel
from features.arrays import Float32Array, FloatArray, IntArray

Exposure = Literal["sector", "beta", "styles"]
"""An exposure that a book can be neutral to."""

_ROUNDING = 1e-9  # a residual below this share of the gross exposure is rounding
WINDOW = 126
"""Sessions over which the volatility of a book is measured: half a year, as in Barroso and Santa-Clara."""
LEAST = 0.25
"""Least volatility of a firm in inverse weights, relative to the median of the firms held."""


class RankedBook(Book):
    """Settings that all books by rank have."""

    overlap: bool = False
    """Whether each decision is held for ``label.horizon`` sessions: the book is the average of the decisions
    of that many sessions. False: a decision replaces the one before."""
    inverse_volatility: bool = False
    """Whether the weights of each side are divided by the firms' volatility over 63 sessions."""
    target_volatility: float | None = Field(default=None, gt=0)
    """Annual volatility that every decision is scaled to, 0.1 for 10%, as its weights would have had it over
    the last 126 sessions. Null: no scaling."""
    max_leverage: float = Field(default=4.0, gt=0)
    """Largest gross exposure that ``target_volatility`` may lead to."""

    @property
    @abstractmethod
    def needed(self) -> int:
        """Number of eligible firms that a decision needs."""

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Exposures that the book removes."""
        return ()

    @abstractmethod
    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return the weights by rank, shape (D, N); NaN in the signal means not eligible."""

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal; see `backtest.books.book.Book.needs`."""
        wanted: dict[Need, bool] = {
            "groups": "sector" in self.exposures,
            "beta": "beta" in self.exposures,
            "volatility": self.inverse_volatility,
            "returns": self.target_volatility is not None,
            "risk": "styles" in self.exposures,
        }
        return frozenset(need for need, used in wanted.items() if used)

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = eligible(self, inputs)
        decides_T = inputs.schedule.decisions(np.count_nonzero(~np.isnan(signal_TN), axis=1), self.needed)
        session_D = np.flatnonzero(decides_T)
        signal_DN = signal_TN if decides_T.all() else signal_TN[decides_T]
        weight_DN = self.select(signal_DN)
        if self.overlap:
            weight_DN = average_held(weight_DN, session_D, inputs.horizon)
            weight_DN[np.isnan(signal_DN)] = 0.0
        if self.inverse_volatility:
            assert inputs.volatility_TN is not None
            weight_DN = weigh_by_inverse_volatility(weight_DN, inputs.volatility_TN[decides_T])
        if self.exposures:
            group_DN = None if inputs.group_TN is None else inputs.group_TN[decides_T]
            beta_DN = None if inputs.beta_TN is None else inputs.beta_TN[decides_T]
            style_DNK = _styles(inputs, session_D) if "styles" in self.exposures else None
            weight_DN = neutralise(weight_DN, group_DN, beta_DN, style_DNK)
        notes: tuple[BookNote, ...] = ()
        if self.target_volatility is not None:
            assert inputs.past is not None
            limits = (self.target_volatility, self.max_leverage)
            weight_DN, notes = scale_to_volatility(weight_DN, session_D, inputs.past, *limits)
        return BookTargets(spread_over_sessions(weight_DN, decides_T), notes)

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision; see `backtest.books.book.Book.limit_uses`."""
        weight_N = target_TN[-1]
        held = np.flatnonzero(weight_N)
        uses = []
        if "sector" in self.exposures:
            assert inputs.group_TN is not None
            net_S = np.bincount(inputs.group_TN[-1, held], weights=weight_N[held])
            uses.append(LimitUse("neutral sector", float(np.abs(net_S).max(initial=0.0)), 0.0))
        if "beta" in self.exposures:
            assert inputs.beta_TN is not None
            beta = abs(float(inputs.beta_TN[-1, held] @ weight_N[held]))
            uses.append(LimitUse("neutral beta", beta, 0.0, "beta"))
        if "styles" in self.exposures:
            score_NK = _styles(inputs, np.array([len(target_TN) - 1]))[0]
            scores = float(np.abs(weight_N[held] @ score_NK[held]).max(initial=0.0))
            uses.append(LimitUse("neutral styles", scores, 0.0, "scores"))
        if self.target_volatility is not None:
            assert inputs.past is not None
            window_LN = inputs.past.window(len(target_TN) - 1, WINDOW)
            volatility = expected_volatility(weight_N[held], window_LN[:, held], inputs.past.periods_per_year)
            uses.append(LimitUse("target_volatility", volatility, self.target_volatility, "a year"))
            uses.append(LimitUse("max_leverage", float(np.abs(weight_N).sum()), self.max_leverage))
        return tuple(uses)


class LongShortBook(RankedBook):
    """Settings of books by rank that hold short positions."""

    neutral: tuple[Exposure, ...] = ()
    """Exposures to remove: ``sector`` (the groups of ``features.group_by``), ``beta`` (to the market, over
    252 sessions) and ``styles`` (those of the risk model, `backtest.risk.RISK_STYLES`)."""

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Exposures that the book removes."""
        return self.neutral


def neutralise(
    weight_DN: FloatArray,
    group_DN: IntArray | None = None,
    beta_DN: FloatArray | None = None,
    style_DNK: Float32Array | None = None,
) -> FloatArray:
    """Remove the exposure to sectors, to the market's beta and to styles, and keep the gross exposure.

    The result is the residual of a least-squares regression of a decision's weights on a constant, on
    indicators of the sectors, on beta and on style scores, over the firms that are held (weight not 0). Of
    all books whose weights sum to 0 in total and in each sector, and whose beta and scores are 0, it is the
    closest one in squared weights. Then the residual is scaled to the gross exposure of the weights. A sector
    that is held on one side only, with equal weights, drops out. If nothing but rounding is left, the
    decision is to hold nothing.

    ``group_DN`` is the sector of each firm at the decision, at least 0 for every firm that is held; without
    it only the total is neutral. ``beta_DN`` is the trailing beta, known for every firm that is held; without
    it beta is not removed, and without ``style_DNK``, the scores of each firm, styles are not. Weights drift
    away from neutrality until the next decision.

    Notes
    -----
    The regression is solved by the theorem of Frisch, Waugh and Lovell: weights and betas are demeaned within
    sectors, and the demeaned weights are regressed on the demeaned betas.

    Examples
    --------
    >>> neutralise(np.array([[1.0, 0.0, -1.0, 0.5]]), beta_DN=np.array([[1.0, 1.0, 1.0, 2.0]])).round(2)
    array([[ 1.25,  0.  , -1.25, -0.  ]])
    """
    out_DN = np.zeros_like(weight_DN)
    for d, weight_N in enumerate(weight_DN):
        held = np.flatnonzero(weight_N)
        if not len(held):
            continue
        group_M = None if group_DN is None else group_DN[d, held]
        residual_M = _demeaned(weight_N[held], group_M)
        if beta_DN is not None:
            beta_M = _demeaned(beta_DN[d, held], group_M)
            spread = float(beta_M @ beta_M)
            if spread > _ROUNDING * float(beta_DN[d, held] @ beta_DN[d, held]):
                residual_M = residual_M - beta_M * (float(beta_M @ residual_M) / spread)
        if style_DNK is not None:
            columns = [
                *style_DNK[d, held].T.astype(np.float64),
                *([] if beta_DN is None else [beta_DN[d, held]]),
            ]
            x_MJ = np.column_stack([_demeaned(x_M, group_M) for x_M in columns])
            residual_M = residual_M - x_MJ @ (np.linalg.pinv(x_MJ, rcond=_ROUNDING) @ residual_M)
        gross, left = np.abs(weight_N[held]).sum(), np.abs(residual_M).sum()
        if left > _ROUNDING * gross:
            out_DN[d, held] = residual_M * (gross / left)
    return out_DN


def _styles(inputs: BookInputs, session_D: IntArray) -> Float32Array:
    """Scores of the risk model at some sessions, shape (D, N, K)."""
    assert inputs.risk is not None
    return inputs.risk.scores.score_KTN[:, inputs.risk.first + session_D].transpose(1, 2, 0)


def _demeaned(x_M: FloatArray, group_M: IntArray | None) -> FloatArray:
    """Subtract the mean, or each group's mean."""
    if group_M is None:
        centred_M: FloatArray = x_M - x_M.mean()
        return centred_M
    total_S, count_S = np.bincount(group_M, weights=x_M), np.bincount(group_M)
    return x_M - (total_S / np.maximum(count_S, 1))[group_M]


def average_held(weight_DN: FloatArray, session_D: IntArray, holding: int) -> FloatArray:
    """Average the decisions that are held at each decision: those of the last ``holding`` sessions.

    A decision of session s is held over the sessions s to ``s + holding - 1``. With a decision every m
    sessions, ``holding / m`` of them (rounded up) overlap, and each decision replaces the oldest one. In the
    first ``holding`` sessions the average is of those that exist, so the book is fully invested from the
    start. Weights are those that were decided; drift between decisions is not followed. ``session_D`` are the
    sessions of the decisions, ascending; row d depends only on decisions up to d. Jegadeesh and Titman 1993,
    section I: overlapping portfolios with a holding period of K months.
    """
    first_D = np.searchsorted(session_D, session_D - holding, side="right")
    average_DN = np.empty_like(weight_DN)
    for d, first in enumerate(first_D):
        weight_DN[first : d + 1].mean(axis=0, out=average_DN[d])
    return average_DN


def row_sums(x_DN: FloatArray) -> FloatArray:
    """Sum each decision from left to right, shape (D, 1): firms with 0 change nothing, not even the rounding.

    A book must not depend on firms that it does not hold, such as those that are listed later.
    """
    return np.asarray(np.cumsum(x_DN, axis=1)[:, -1:])


def weigh_by_inverse_volatility(weight_DN: FloatArray, volatility_DN: FloatArray) -> FloatArray:
    """Divide weights by the firms' volatilities, and keep the gross exposure of each side.

    ``w_i = G (v_i / s_i) / sum_j (v_j / s_j)`` over the firms of a side, with the weights v before, their sum
    G on that side and the volatilities s, which are trailing standard deviations of returns, above 0 for
    every firm that is held. Each firm of a quantile then contributes the same stand-alone volatility. A
    volatility below a quarter of the median of the firms held counts as that quarter: the price of a fund of
    Treasury bills or of a takeover target hardly moves, and would otherwise take half of a side.
    """
    held_DN = np.where(weight_DN != 0, volatility_DN, np.nan)
    some_D = ~np.isnan(held_DN).all(axis=1)
    median_D1 = np.zeros((len(held_DN), 1))
    median_D1[some_D, 0] = np.nanmedian(held_DN[some_D], axis=1)
    volatility_DN = np.maximum(held_DN, LEAST * median_D1)
    out_DN = np.zeros_like(weight_DN)
    for side_DN in (np.maximum(weight_DN, 0.0), np.minimum(weight_DN, 0.0)):
        scaled_DN = np.divide(side_DN, volatility_DN, out=np.zeros_like(side_DN), where=side_DN != 0)
        before_D1, after_D1 = row_sums(side_DN), row_sums(scaled_DN)
        out_DN += scaled_DN * np.divide(before_D1, after_D1, out=np.zeros_like(after_D1), where=after_D1 != 0)
    return out_DN


def scale_to_volatility(
    weight_DN: FloatArray, session_D: IntArray, past: PastReturns, target: float, max_leverage: float
) -> tuple[FloatArray, tuple[BookNote, ...]]:
    """Scale each decision to an annual volatility, as expected from the last `WINDOW` sessions.

    The expected volatility is the standard deviation of what today's weights would have earned over these
    sessions, ``sqrt(p) std(R w)``, which is ``sqrt(p w' S w)`` with the sample covariance S and p sessions in
    a year. An unknown return counts as 0. The gross exposure is at most ``max_leverage``. A row is NaN (no
    decision, with a note) if fewer than half of the window's sessions exist, or if the weights would have had
    no volatility. Barroso and Santa-Clara 2015, "Momentum has its moments"; here with the covariances of
    today's weights instead of the returns of the book's own past.
    """
    scaled_DN = np.full_like(weight_DN, np.nan)
    notes = []
    for d, t in enumerate(session_D):
        window_LN = past.window(int(t), WINDOW)
        if len(window_LN) < WINDOW // 2:
            text = f"no decision: {len(window_LN)} past sessions are too few for the volatility of the book"
            notes.append(BookNote(int(t), text))
            continue
        held = np.flatnonzero(weight_DN[d])
        if not len(held):
            scaled_DN[d] = 0.0
            continue
        volatility = expected_volatility(weight_DN[d, held], window_LN[:, held], past.periods_per_year)
        if volatility <= 0:
            notes.append(BookNote(int(t), "no decision: the firms of the book had no returns that vary"))
            continue
        gross = np.abs(weight_DN[d, held]).sum()
        scaled_DN[d] = weight_DN[d] * min(target / volatility, max_leverage / gross)
    return scaled_DN, tuple(notes)


def expected_volatility(weight_M: FloatArray, return_LM: FloatArray, periods_per_year: float) -> float:
    """Return the annual volatility that weights would have had, ``sqrt(p) std(R w)`` with p sessions a year.

    The returns are those of at least 2 past sessions; an unknown one (NaN) counts as 0.
    """
    earned_L = np.nan_to_num(return_LM) @ weight_M
    return float(earned_L.std(ddof=1)) * float(np.sqrt(periods_per_year))


def centred_rank(signal_DN: FloatArray) -> FloatArray:
    """Return ``rank - (n + 1) / 2`` of the n known values of a date, multiples of one half.

    Ties share their mean rank, and a NaN has 0. A row sums to 0.
    """
    signals = SortedPanel("signal", signal_DN)
    return np.nan_to_num(signals.ranks() - (signals.count_T[:, None] + 1) / 2)
