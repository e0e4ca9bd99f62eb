"""Style scores of firms: size, value, momentum, reversal and volatility, from the panel alone.

A style is a characteristic of the feature library, ranked within the date's universe and mapped to a standard
normal. A score of session t is known at the close of t. The sign is that of the name: a positive score is a
large, cheap, rising, recently fallen or volatile firm.

Shape suffixes: T sessions, N firms, K styles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arithmetic.rolling import last_known_index
from features.arithmetic.transforms import rank_normal
from features.arrays import BoolArray, Float32Array, require_shape
from features.panel.panel import Panel


@dataclass(frozen=True, slots=True)
class Style:
    """A style and the characteristic that measures it.

    Attributes
    ----------
    name : str
        Key in tables, such as ``reversal_5``.
    family : str
        What a reader calls it, such as ``reversal``.
    characteristic : str
        Name in `features.library.characteristics.CHARACTERISTICS`.
    sign : int
        -1 if a firm with a low characteristic has a high score.
    source : str
        Paper that documents the premium.
    """

    name: str
    family: str
    characteristic: str
    sign: int
    source: str


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

    Attributes
    ----------
    names : tuple of str
        Styles that the panel allows.
    score_KTN : ndarray of float32, shape (K, T, N)
        Known at the close of t. 0 where the characteristic or the universe leaves a firm without a score, the
        mean of a date's scores.
    known_KT : ndarray of bool, shape (K, T)
        Whether any firm of the date has a score.
    universe_TN : ndarray of bool, shape (T, N)
        Firms that are ranked: those of the newest universe up to t.
    left_out : tuple of str
        One sentence per style that the data do not allow.
    """

    names: tuple[str, ...]
    score_KTN: Float32Array
    known_KT: BoolArray
    universe_TN: BoolArray
    left_out: tuple[str, ...]


def style_scores(panel: Panel, universe_TN: BoolArray) -> StyleScores:
    """Compute the scores of all styles that a panel allows.

    Parameters
    ----------
    panel : Panel
        Prices, and statements where there are any.
    universe_TN : ndarray of bool, shape (T, N)
        Firms of the universe, known at the close of t. A session without any firm, as between the decisions
        of a weekly config, uses the newest universe before it.

    Returns
    -------
    StyleScores
        ``Phi^-1((rank - 1/2) / n)`` within the date's universe; ties get their average rank.

    Raises
    ------
    ValueError
        If the universe has another shape than the panel.
    """
    from features.library.characteristics import CHARACTERISTICS

    require_shape("the universe", universe_TN, panel.close_TN.shape)
    ranked_TN = newest_universe(universe_TN)
    usable, left_out = [], []
    for style in STYLES:
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
        score_TN = rank_normal(raw_TNK[:, :, k], ranked_TN)
        unknown_TN = np.isnan(score_TN)
        known_KT[k] = ~unknown_TN.all(axis=1)
        np.multiply(score_TN, np.float32(style.sign), out=score_KTN[k])
        score_KTN[k][unknown_TN] = 0.0
    names = tuple(style.name for style in usable)
    return StyleScores(names, score_KTN, known_KT, ranked_TN, tuple(left_out))


def newest_universe(universe_TN: BoolArray) -> BoolArray:
    """Carry the universe over sessions without any firm: the newest one up to t, shape (T, N)."""
    any_T: BoolArray = np.logical_or.reduce(universe_TN, axis=1)
    newest_T1 = last_known_index(any_T[:, None])
    newest_TN: BoolArray = universe_TN[np.maximum(newest_T1[:, 0], 0)] & (newest_T1 >= 0)
    return newest_TN
