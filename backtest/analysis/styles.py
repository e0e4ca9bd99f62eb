"""Style scores of firms, from the panel alone, and the returns of the factors that they make.

A style is a characteristic of the feature library, ranked within the date's universe and mapped to a standard
normal. A score of session t is known at the close of t, and leaves the wrong prices out that are known to be
wrong by then. The sign is that of the name: a positive score is a large, cheap, rising, recently fallen or
volatile firm.

In each session the returns of the universe are regressed on the scores of an earlier close:
``r_i = f_market + sum_k f_k x_ik + e_i`` (Fama and MacBeth 1973). ``f_k`` is the return of a portfolio with a
score of 1 in style k and of 0 in every other style, long and short equal amounts; ``f_market`` is the return
of the universe in equal weights, because scores have a mean of 0 (Fama 1976, chapter 9).

Shape suffixes: T sessions, N firms, K styles, R sessions of a block, J market and styles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from features.arithmetic.rolling import last_known_index
from features.arithmetic.transforms import rank_normal
from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray, require_shape
from features.panel.cleaned import as_known
from features.panel.holding import held_return, holders
from features.panel.panel import Panel


@dataclass(frozen=True, slots=True)
class Style:
    """A style and the characteristic that measures it."""

    name: str  # key in tables, such as ``reversal_5``
    family: str  # what a reader calls it, such as ``reversal``
    characteristic: str  # name in `features.library.characteristics.CHARACTERISTICS`
    sign: int  # -1 if a firm with a low characteristic has a high score
    source: str  # paper that documents the premium


STYLES = (
    Style("size", "size", "log_market_equity", 1, "Fama and French 1993"),
    Style("value", "value", "book_to_market", 1, "Fama and French 1993"),
    Style("momentum", "momentum", "momentum_252_21", 1, "Jegadeesh and Titman 1993; Carhart 1997"),
    Style("reversal_1", "reversal", "return_1", -1, "Nagel 2012"),
    Style("reversal_5", "reversal", "return_5", -1, "Lehmann 1990"),
    Style("reversal_21", "reversal", "return_21", -1, "Jegadeesh 1990"),
    Style("volatility", "volatility", "volatility_63", 1, "Ang, Hodrick, Xing and Zhang 2006"),
)
"""Reversal has three spans, because books that trade daily, weekly and monthly meet different ones."""

MARKET = "market"
"""Name of the market among factors."""

FAMILIES = {MARKET: MARKET, **{style.name: style.family for style in STYLES}}
"""Factor -> its family."""


@dataclass(frozen=True, slots=True, eq=False)
class StyleScores:
    """Scores of every firm and session.

    Examples
    --------
    >>> score, known = np.zeros((0, 3, 4), np.float32), np.zeros((0, 3), bool)
    >>> StyleScores((), score, known, np.ones((3, 4), bool), ("These data have no volume.",)).left_out
    ('These data have no volume.',)
    """

    names: tuple[str, ...]
    """Styles that the panel allows."""
    score_KTN: Float32Array
    """Known at the close of t. 0 where the characteristic or the universe leaves a firm without a score, the
    mean of a date's scores."""
    known_KT: BoolArray
    """Whether any firm of the date has a score."""
    universe_TN: BoolArray
    """Firms that are ranked: those of the newest universe up to t."""
    left_out: tuple[str, ...]
    """One sentence per style that the data do not allow."""


def style_scores(panel: Panel, universe_TN: BoolArray, styles: Sequence[Style] = STYLES) -> StyleScores:
    """Compute the scores of ``styles`` that a panel allows: ``Phi^-1((rank - 1/2) / n)`` within the universe.

    Ties get their average rank. The universe is known at the close of t. A session without any firm, as
    between the decisions of a weekly config, uses the newest universe before it. ValueError if the universe
    has another shape than the panel.
    """
    from features.library.characteristics import CHARACTERISTICS

    require_shape("the universe", universe_TN, panel.close_TN.shape)
    ranked_TN = newest_universe(universe_TN)
    usable, left_out = [], []
    for style in styles:
        missing = sorted(CHARACTERISTICS[style.characteristic].needs - panel.fields)
        if missing:
            fields = " and no ".join(field.removeprefix("statements:") for field in missing)
            left_out.append(f"These data have no {fields}: the style {style.name} is left out.")
        else:
            usable.append(style)
    score_KTN = np.empty((len(usable), *universe_TN.shape), dtype=np.float32)
    known_KT = np.empty((len(usable), len(universe_TN)), dtype=np.bool_)
    raw_TNK = CHARACTERISTICS.compute(panel, [style.characteristic for style in usable])
    for k, style in enumerate(usable):
        score_TN = rank_normal(_as_known(panel, style.characteristic, raw_TNK[:, :, k]), ranked_TN)
        unknown_TN = np.isnan(score_TN)
        known_KT[k] = ~unknown_TN.all(axis=1)
        np.multiply(score_TN, np.float32(style.sign), out=score_KTN[k])
        score_KTN[k][unknown_TN] = 0.0
    names = tuple(style.name for style in usable)
    return StyleScores(names, score_KTN, known_KT, ranked_TN, tuple(left_out))


def _as_known(panel: Panel, name: str, raw_TN: Float32Array) -> AnyFloatArray:
    """Leave the wrong prices known at the close out of a characteristic; market equity has none of them."""
    from features.library.characteristics import CHARACTERISTICS
    from features.library.characteristics.market import known_beta

    if not len(panel.wrong.session_K) or CHARACTERISTICS[name].needs_statements:
        return raw_TN
    if name == "beta_252":  # the returns of all firms are in it
        return np.where(np.isnan(raw_TN), np.nan, known_beta(panel, 252))
    return as_known(panel, lambda known: CHARACTERISTICS.compute(known, [name])[:, :, 0])


def newest_universe(universe_TN: BoolArray) -> BoolArray:
    """Carry the universe over sessions without any firm: the newest one up to t, shape (T, N)."""
    any_T: BoolArray = np.logical_or.reduce(universe_TN, axis=1)
    newest_T1 = last_known_index(any_T[:, None])
    return universe_TN[np.maximum(newest_T1[:, 0], 0)] & (newest_T1 >= 0)


_BLOCK = 64  # sessions at once, so that intermediate arrays stay small
MIN_FIRMS_PER_FACTOR = 2


@dataclass(frozen=True, slots=True, eq=False)
class FactorReturns:
    """Returns of the market and of the styles.

    Examples
    --------
    >>> FactorReturns(("market",), np.zeros((5, 1))).names
    ('market',)
    """

    names: tuple[str, ...]
    """``market``, then the styles."""
    return_TJ: FloatArray
    """Return earned in session t, a fraction, known at the close of t. NaN where a factor is unknown: no firm
    had a score, or the universe was too small."""


def factor_returns(scores: StyleScores, earned_TN: FloatArray, delay: int = 0) -> FactorReturns:
    """Regress the returns of each session on the scores of ``1 + delay`` sessions before.

    A portfolio that is decided at the close of ``t - 1 - delay`` and traded ``delay`` sessions later earns
    the return of session t. A book and its factors have the same delay, so neither sees more than the other.

    Scores are known at the close of each session. ``earned_TN`` is the return of session t, from the close of
    ``t-1``; NaN is unknown and leaves the firm out. A session with fewer than 2 firms for each factor has no
    factor return. Styles that cannot be told apart on a session share the return (least squares of minimum
    norm), and a style that is the same for all firms has a return of 0. ValueError if shapes differ or the
    delay is negative.

    Examples
    --------
    >>> score, known = np.zeros((0, 3, 4), np.float32), np.zeros((0, 3), bool)
    >>> scores = StyleScores((), score, known, np.ones((3, 4), bool), ())  # the market alone
    >>> factor_returns(scores, np.full((3, 4), 0.01)).return_TJ.ravel()
    array([ nan, 0.01, 0.01])
    """
    K, T, N = scores.score_KTN.shape
    require_shape("the returns", earned_TN, (T, N))
    if delay < 0:
        msg = f"delay is {delay}; it must be at least 0, since scores cannot be traded before they are known."
        raise ValueError(msg)
    out_TJ = np.full((T, K + 1), np.nan)
    first = 1 + delay
    for start in range(first, T, _BLOCK):
        rows = slice(start, min(start + _BLOCK, T))
        known = slice(rows.start - first, rows.stop - first)
        x_KRN, y_RN = scores.score_KTN[:, known], earned_TN[rows]
        in_RN = (scores.universe_TN[known] & np.isfinite(y_RN)).astype(np.float64)
        every_RN = np.zeros(y_RN.shape, dtype=np.int32)  # one group, the market
        style_RK, market_R1, count_R1 = regress_returns(x_KRN, every_RN, in_RN, np.nan_to_num(y_RN), 1)
        style_RK[~scores.known_KT[:, known].T] = np.nan
        enough_R1 = count_R1 >= MIN_FIRMS_PER_FACTOR * (K + 1)
        out_TJ[rows] = np.where(enough_R1, np.column_stack([market_R1, style_RK]), np.nan)
    return FactorReturns((MARKET, *scores.names), out_TJ)


def sum_by(key_R: IntArray, amount_R: FloatArray, count: int) -> FloatArray:
    """Sum amounts by key, shape (count,)."""
    return np.bincount(key_R, weights=amount_R, minlength=count).astype(np.float64, copy=False)


def regress_returns(
    x_KRN: Float32Array, code_RN: IntArray, weight_RN: FloatArray, y_RN: FloatArray, G: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weighted least squares of each session on styles and groups: returns of both, and the groups' weights.

    Solved by the theorem of Frisch, Waugh and Lovell: returns and scores are demeaned within groups. The
    return of a group holds that of the market; it is NaN for groups without firms.
    """
    K, R = len(x_KRN), len(y_RN)
    key = (np.arange(R)[:, None] * G + code_RN).ravel()

    def means(z_RN: FloatArray | Float32Array) -> FloatArray:
        total = sum_by(key, (weight_RN * z_RN).ravel(), R * G)
        return total.reshape(R, G) / np.where(total_RG > 0, total_RG, 1.0)

    total_RG = sum_by(key, weight_RN.ravel(), R * G).reshape(R, G)
    mean_RG, root_RN = means(y_RN), np.sqrt(weight_RN)
    mean_KRG = np.stack([means(x_RN) for x_RN in x_KRN]) if K else np.zeros((0, R, G))
    y_RN1 = ((y_RN - np.take_along_axis(mean_RG, code_RN, axis=1)) * root_RN)[:, :, None]
    x_RKN = np.empty((R, K, y_RN.shape[1]))
    for k in range(K):
        x_RKN[:, k] = (x_KRN[k] - np.take_along_axis(mean_KRG[k], code_RN, axis=1)) * root_RN
    inverse_RKK = np.linalg.pinv(x_RKN @ x_RKN.transpose(0, 2, 1), rcond=1e-9, hermitian=True)
    style_RK = (inverse_RKK @ (x_RKN @ y_RN1))[:, :, 0]
    group_RG = mean_RG - np.einsum("krg,rk->rg", mean_KRG, style_RK)
    return style_RK, np.where(total_RG > 0, group_RG, np.nan), total_RG


@dataclass(slots=True, eq=False)
class FactorData:
    """Scores of all sessions, and factor returns by delay."""

    scores: StyleScores  # known at the close of each session of the panel
    earned_TN: FloatArray  # return of each session, as a holder earns it; NaN where a price is unknown
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


def factor_data(panel: Panel, universe_TN: BoolArray) -> FactorData:
    """Compute the scores and the returns of the firms of a panel, once for all books."""
    return FactorData(style_scores(panel, universe_TN), earned_returns(panel))


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
