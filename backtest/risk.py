"""A risk model by characteristics: what moves firms together, and how much each of them moves alone.

The last part is the risk of a book by the model, and what earned its profit.

Shape suffixes: T sessions, N firms, K styles, G groups, J factors (market, styles, groups), M some firms, R
sessions of a block, or rows of a book's ledger, P some of its sessions, Q the market, the styles and all
groups together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from backtest.analysis.ledger import Contribution, LedgerRows, explained, factor_amounts
from backtest.analysis.regression import long_run
from backtest.analysis.styles import (
    MARKET,
    MIN_FIRMS_PER_FACTOR,
    STYLES,
    Style,
    StyleScores,
    earned_returns,
    newest_universe,
    regress_returns,
    style_scores,
    sum_by,
)
from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.panel.cleaned import as_known
from features.panel.derived import cached
from features.panel.panel import Panel

RISK_STYLES = (
    *(style for style in STYLES if style.name not in ("reversal_1", "reversal_5")),
    Style("beta", "beta", "beta_252", 1, "Sharpe 1964; Rosenberg 1974"),
)
"""Styles of the model. Reversal over one and five sessions is noise of trading, not a lasting exposure."""

CORRELATION_HALF_LIFE = 504
VOLATILITY_HALF_LIFE = 84
LAGS = 2
"""Newey-West lags of the factors' correlations and volatilities."""
PRIOR_SESSIONS = 21
"""Sessions that the universe's mean specific variance counts for."""
MIN_SESSIONS = 63
"""Sessions with factor returns from which a covariance is known."""
MIN_GROUP = 5
"""Firms of the universe below which a group is part of `OTHER`."""

GROUPS = "groups"
"""Name of all groups together."""
OTHER = "other groups"
"""Groups that are small, and firms without a group."""
_BLOCK = 64  # sessions at once, so that intermediate arrays stay small
_WEIGHT_RANGE = 9.0


@dataclass(frozen=True, slots=True, eq=False)
class CharacteristicRisk:
    """Factors and specific variances of a panel; row t is known at the close of t.

    In each session the returns of the universe are regressed on what was known at the close before:
    ``r_i = f_market + f_group(i) + sum_k x_ik f_k + e_i``. The styles ``x_k`` are those of `RISK_STYLES`,
    ranked within the universe and mapped to a standard normal; the groups are sectors or industries. The
    weights are ``1 / variance`` of the firm (`regression_weights`). The returns of the groups have a weighted
    mean of 0, which tells them from that of the market. Rosenberg 1974; Menchero, Orr and Wang 2011 (USE4),
    who weigh by the root of market equity.

    The covariance of the returns of the next session is ``X F X' + D``, all of it known at the close of t:

    - F, of the factors: correlations of half-life 504 sessions and volatilities of half-life 84, uncentred,
      with `LAGS` Newey-West lags (Newey and West 1987). The half-lives are those of USE4S.
    - D, of each firm alone: the exponentially weighted mean of ``e_i^2`` of half-life 84, shrunk towards the
      mean of the universe. The firm's own estimate weighs its effective number of sessions, the mean 21.

    Examples
    --------
    >>> score, known = np.zeros((0, 80, 9), np.float32), np.zeros((0, 80), bool)
    >>> scores = StyleScores((), score, known, np.ones((80, 9), bool), ())  # the market alone
    >>> earned = np.random.default_rng(0).normal(0, 0.02, (80, 9))
    >>> model = risk_model(scores, np.full((80, 9), -1), (), earned, np.ones((80, 9)))
    >>> model.names, model.loadings(79, np.array([0])).shape
    (('market',), (1, 1))
    """

    scores: StyleScores
    """Exposures to the styles."""
    groups_G: tuple[str, ...]
    """Names of the groups, the last of which is `OTHER`. Without groups it is the only one."""
    group_TN: IntArray
    """Group of each firm, an index of ``groups_G``."""
    return_TJ: FloatArray
    """Return of each factor in session t, from exposures of the close of ``t-1``; NaN where unknown."""
    specific_TN: Float32Array
    """Forecast of the specific variance of the next session's return; NaN before there is any."""
    first: int = 0
    """Session of the panel that is row 0 of the methods below."""
    _covariances: dict[int, FloatArray | None] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """``market``, the styles, and the groups if there is more than one."""
        return (MARKET, *self.scores.names, *(self.groups_G if len(self.groups_G) > 1 else ()))

    @property
    def n_groups(self) -> int:
        """Number of the last factors, those of the groups."""
        return len(self.names) - 1 - len(self.scores.names)

    def since(self, session: int) -> "CharacteristicRisk":
        """Return the same model with another row 0."""
        return replace(self, first=session)

    def exposures(self, t: int, firm_M: IntArray) -> FloatArray:
        """Exposures of some firms to all factors at the close of row t, shape (M, J)."""
        s, J = self.first + t, len(self.names)
        x_MJ = np.zeros((len(firm_M), J))
        x_MJ[:, 0] = 1.0
        K = len(self.scores.names)
        x_MJ[:, 1 : 1 + K] = self.scores.score_KTN[:, s, firm_M].T
        if J > 1 + K:
            x_MJ[np.arange(len(firm_M)), 1 + K + self.group_TN[s, firm_M]] = 1.0
        return x_MJ

    def factor_covariance(self, t: int) -> FloatArray | None:
        """Covariance F of the factor returns of the session after row t, shape (J, J).

        None before `MIN_SESSIONS` sessions with factor returns. A factor without any has a variance of 0.
        """
        s = self.first + t
        if s not in self._covariances:
            self._covariances[s] = _factor_covariance(self.return_TJ[: s + 1])
        return self._covariances[s]

    def loadings(self, t: int, firm_M: IntArray) -> FloatArray | None:
        """Exposures ``X L`` to factors of variance 1, with ``L L' = F``, shape (M, J); None without F."""
        covariance_JJ = self.factor_covariance(t)
        if covariance_JJ is None:
            return None
        size_J, vector_JJ = np.linalg.eigh(covariance_JJ)
        loading_MJ: FloatArray = self.exposures(t, firm_M) @ (vector_JJ * np.sqrt(np.maximum(size_J, 0.0)))
        return loading_MJ

    def specific(self, t: int, firm_M: IntArray) -> FloatArray:
        """Specific variances of some firms at the close of row t, shape (M,)."""
        variance_M: FloatArray = self.specific_TN[self.first + t, firm_M].astype(np.float64)
        return variance_M


def characteristic_risk(panel: Panel) -> CharacteristicRisk:
    """Return the risk model of a panel, which is kept while the panel lives."""
    from features.library.characteristics import CHARACTERISTICS

    def estimate() -> CharacteristicRisk:
        universe_TN = newest_universe(panel.traded_TN if panel.universe_TN is None else panel.universe_TN)
        volatility_TN = as_known(
            panel, lambda known: CHARACTERISTICS.compute(known, ["volatility_63"])[:, :, 0]
        )
        return risk_model(
            style_scores(panel, universe_TN, RISK_STYLES),
            panel.group_TN,
            panel.groups_S,
            earned_returns(panel),
            regression_weights(volatility_TN, universe_TN),
        )

    return cached(panel, characteristic_risk, estimate)


def regression_weights(volatility_TN: Float32Array | FloatArray, universe_TN: BoolArray) -> Float32Array:
    """Weight firms by ``1 / variance``, relative to the median of the universe, shape (T, N).

    Within a factor of 9 of the median, which is 1; 1 for firms without a volatility, 0 outside the universe.
    """
    variance_TN = np.where(universe_TN, np.square(volatility_TN, dtype=np.float32), np.nan)
    known_T = ~np.isnan(variance_TN).all(axis=1)
    median_T1 = np.ones((len(variance_TN), 1), np.float32)
    median_T1[known_T, 0] = np.nanmedian(variance_TN[known_T], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight_TN = np.clip(median_T1 / variance_TN, 1.0 / _WEIGHT_RANGE, _WEIGHT_RANGE)
    weight_TN[np.isnan(weight_TN)] = 1.0
    weight_TN[~universe_TN] = 0.0
    return weight_TN.astype(np.float32)


def risk_model(
    scores: StyleScores,
    group_TN: IntArray,
    groups: tuple[str, ...],
    earned_TN: FloatArray,
    weight_TN: Float32Array | FloatArray,
) -> CharacteristicRisk:
    """Estimate the factors of every session and the specific variances that are known at its close.

    ``scores``, groups (codes of ``groups``, -1 is unknown) and weights are known at the close of each
    session, and ``earned_TN`` is the return of session t, from the close of ``t-1``, NaN where unknown. Firms
    outside the universe do not enter the regression, and have residuals. A session with fewer than 2 firms
    for each factor has no factor returns.

    Examples
    --------
    >>> score, known = np.zeros((0, 3, 4), np.float32), np.zeros((0, 3), bool)
    >>> scores = StyleScores((), score, known, np.ones((3, 4), bool), ())  # the market alone
    >>> model = risk_model(scores, np.zeros((3, 4), int), ("a",), np.full((3, 4), 0.01), np.ones((3, 4)))
    >>> model.return_TJ.ravel()
    array([ nan, 0.01, 0.01])
    """
    K, T, N = scores.score_KTN.shape
    code_TN, names = _pooled(group_TN, groups, scores.universe_TN)
    G = len(names)
    return_TJ = np.full((T, 1 + K + (G if G > 1 else 0)), np.nan)
    specific = _SpecificVariance(N)
    specific_TN = np.full((T, N), np.nan, dtype=np.float32)
    for start in range(1, T, _BLOCK):
        rows = slice(start, min(start + _BLOCK, T))
        known = slice(rows.start - 1, rows.stop - 1)
        x_KRN, code_RN, y_RN = scores.score_KTN[:, known], code_TN[known], earned_TN[rows]
        used_RN = np.where(np.isfinite(y_RN), weight_TN[known], 0.0)
        style_RK, group_RG, total_RG = regress_returns(x_KRN, code_RN, used_RN, np.nan_to_num(y_RN), G)
        style_RK[~scores.known_KT[:, known].T] = np.nan
        present_RG = total_RG > 0
        few_R = (used_RN > 0).sum(axis=1) < MIN_FIRMS_PER_FACTOR * (K + present_RG.sum(axis=1))
        style_RK[few_R], group_RG[few_R] = np.nan, np.nan
        market_R = (total_RG * np.nan_to_num(group_RG)).sum(axis=1) / np.maximum(total_RG.sum(axis=1), 1e-300)
        return_TJ[rows, 0] = np.where(few_R, np.nan, market_R)
        return_TJ[rows, 1 : 1 + K] = style_RK
        if G > 1:
            return_TJ[rows, 1 + K :] = group_RG - market_R[:, None]
        # a firm of a group without firms of the universe has the return of the market instead
        of_firm_RN = np.take_along_axis(
            np.where(np.isnan(group_RG), return_TJ[rows, :1], group_RG), code_RN, axis=1
        )
        error_RN = y_RN - of_firm_RN
        for k in range(K):
            error_RN -= x_KRN[k] * np.nan_to_num(style_RK[:, k : k + 1])
        for r, error_N in enumerate(error_RN):
            specific.add(error_N)
            specific_TN[start + r] = specific.forecast(scores.universe_TN[start + r])
    return CharacteristicRisk(scores, names, code_TN, return_TJ, specific_TN)


def _pooled(
    group_TN: IntArray, groups: tuple[str, ...], universe_TN: BoolArray
) -> tuple[IntArray, tuple[str, ...]]:
    """Codes with small groups and unknown ones as the last code, and the names of the codes."""
    T, G = len(group_TN), len(groups)
    code_TN = np.where(group_TN < 0, G, group_TN).astype(np.int32)
    row_T1 = np.arange(T)[:, None] * (G + 1)
    count = np.bincount((row_T1 + code_TN)[universe_TN], minlength=T * (G + 1))
    small = count.reshape(T, G + 1) < MIN_GROUP
    code_TN[np.take_along_axis(small, code_TN, axis=1)] = G
    if (code_TN == G).all():
        return np.zeros_like(code_TN), (OTHER,)
    return code_TN, (*groups, OTHER)


class _SpecificVariance:
    """Exponentially weighted means of squared residuals, session by session."""

    def __init__(self, firms: int) -> None:
        self.decay = 0.5 ** (1.0 / VOLATILITY_HALF_LIFE)
        self.sum_N, self.weight_N, self.square_N = np.zeros((3, firms))

    def add(self, error_N: FloatArray) -> None:
        """Add the residuals of a session; a firm without one keeps its estimate."""
        known_N = np.isfinite(error_N)
        for total_N, decay, value_N in (
            (self.sum_N, self.decay, error_N**2),
            (self.weight_N, self.decay, 1.0),
            (self.square_N, self.decay**2, 1.0),
        ):
            np.copyto(total_N, decay * total_N + value_N, where=known_N)

    def forecast(self, universe_N: BoolArray) -> FloatArray:
        """Shrink the estimates towards the universe's mean; NaN while nothing is known."""
        own_N = self.sum_N / np.where(self.weight_N > 0, self.weight_N, np.nan)
        of_universe_N = own_N[universe_N & (self.weight_N > 0)]
        if not len(of_universe_N):
            return np.full(len(own_N), np.nan)
        sessions_N = self.weight_N**2 / np.where(self.square_N > 0, self.square_N, 1.0)
        share_N = sessions_N / (sessions_N + PRIOR_SESSIONS)
        mean = float(of_universe_N.mean())
        return share_N * np.nan_to_num(own_N) + (1.0 - share_N) * mean


def _factor_covariance(return_SJ: FloatArray) -> FloatArray | None:
    """Covariance of factor returns from those of the sessions up to a close."""
    if np.isfinite(return_SJ[:, 0]).sum() < MIN_SESSIONS:
        return None
    variance_J = np.diag(newey_west(return_SJ, VOLATILITY_HALF_LIFE, LAGS))
    slow_JJ = newey_west(return_SJ, CORRELATION_HALF_LIFE, LAGS)
    slow_J = np.diag(slow_JJ)
    scale_J = np.sqrt(np.divide(variance_J, slow_J, out=np.zeros_like(slow_J), where=slow_J > 0))
    return slow_JJ * scale_J * scale_J[:, None]


def newey_west(return_TJ: FloatArray, half_life: float, lags: int) -> FloatArray:
    """Exponentially weighted, uncentred covariance with Newey-West lags, shape (J, J).

    ``(G_0 + sum_{l=1..L} (1 - l / (L+1)) (G_l + G_l')) / (d d')^(1/2)`` with ``G_l = sum_t g_t g_{t-l}'``,
    ``g_t = w_t^(1/2) f_t`` and ``w_t = 2^(-age / half_life)``. ``d_j`` is the weight of the sessions on which
    the return of factor j is known; an unknown one counts as 0 in the sums. It has no negative eigenvalue.

    Examples
    --------
    >>> newey_west(np.array([[1.0], [2.0]]), half_life=1.0, lags=0)
    array([[3.]])
    """
    age_T1 = np.arange(len(return_TJ) - 1, -1, -1)[:, None]
    weight_T1 = 0.5 ** (age_T1 / half_life)
    total_JJ = long_run(np.sqrt(weight_T1) * np.nan_to_num(return_TJ), lags)
    known_J = (weight_T1 * np.isfinite(return_TJ)).sum(axis=0)
    root_J = np.sqrt(np.where(known_J > 0, known_J, np.inf))
    return total_JJ / root_J / root_J[:, None]


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
