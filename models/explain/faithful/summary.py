"""The measures of one model over its forecasts: curves, agreement, attention at inference, and stability.

The rows that the functions return are the rows of the stored tables.

Legend: E forecasts, P units, D dates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from features.arrays import FloatArray, IntArray
from models.explain.faithful.forecasts import RANDOM, SHAP, Curves, ForecastMeasures
from models.explain.faithful.statistics import (
    UNKNOWN,
    FigureOverDates,
    corrected_over_dates,
    mean_over_dates,
    rank_correlation,
    ratio_over_dates,
)
from models.explain.faithful.unit_games import CHANGED, Intervened
from models.explain.peers import PeerAttribution

MEASURES: dict[str, Callable[[Curves], float]] = {
    "deletion": lambda one: one.area("deletion"),
    "insertion": lambda one: one.area("insertion"),
    "comprehensiveness": lambda one: one.comprehensiveness,
    "sufficiency": lambda one: one.sufficiency,
    "cumulative": lambda one: one.area("cumulative"),
}
"""Measures of a curve. Larger is more faithful, except for sufficiency, where smaller is."""


@dataclass(frozen=True, slots=True)
class MethodMeasure:
    """One measure of one method's order under one removal, with the share of the gain of SHAP."""

    method: str  # what was measured; measures are the keys of :data:`MEASURES`
    removal: str
    measure: str
    value: FigureOverDates  # mean, in the unit of the forecast or, if cumulative, as a share
    # ``(value - random) / (SHAP - random)``: 0 for an order as good as a random one, 1 for one as good as
    # that of the Shapley values
    share: FigureOverDates


def measure_methods(measured: Sequence[ForecastMeasures], seed: int = 0) -> list[MethodMeasure]:
    """Summarise the curves of every method, removal and measure; the seed is that of the bootstrap."""
    if not measured:
        return []
    session_E = np.array([one.session for one in measured])
    found = []
    for method, removal in measured[0].curves:
        for name, of in MEASURES.items():
            value_E, random_E, shap_E = (
                np.array([of(one.curves[by, removal]) for one in measured]) for by in (method, RANDOM, SHAP)
            )
            sign = -1.0 if name == "sufficiency" else 1.0
            share = ratio_over_dates(sign * (value_E - random_E), sign * (shap_E - random_E), session_E, seed)
            value = mean_over_dates(value_E, session_E, seed)
            found.append(MethodMeasure(method, removal, name, value, share))
    return found


def mean_curves(measured: Sequence[ForecastMeasures]) -> list[dict[str, Any]]:
    """Average the curves of the forecasts by method, removal and share of the units.

    Deletion and insertion are divided by the mean change of all units; the cumulative curve is a share.
    Forecasts with another number of steps (of peers, on dates with more or fewer firms) are interpolated to
    the shares of the first.
    """
    found = []
    for removal in dict.fromkeys(how for _, how in measured[0].curves):
        share_S = measured[0].curves[SHAP, removal].share_S
        scale = float(np.mean([one.curves[SHAP, removal].deletion_S[-1] for one in measured])) or 1.0
        for method in dict.fromkeys(by for by, how in measured[0].curves if how == removal):
            own = [one.curves[method, removal] for one in measured]
            columns = {"share": share_S}
            for name, unit in (("deletion", scale), ("insertion", scale), ("cumulative", 1.0)):
                every = [np.interp(share_S, one.share_S, getattr(one, f"{name}_S")) for one in own]
                columns[name] = np.mean(every, axis=0) / unit
            for point in zip(*(value_S.tolist() for value_S in columns.values()), strict=True):
                named = dict(zip(columns, point, strict=True))
                found.append({"method": method, "removal": removal, **named})
    return found


@dataclass(frozen=True, slots=True)
class Correlation:
    """A mean rank correlation of importances."""

    # ``agreement with SHAP``; ``explainer seeds``, ``model seeds``, ``folds`` and ``neighbouring days`` are
    # correlations of an importance with itself; ``shuffled parameters``
    kind: str
    method: str  # whose importance
    value: FigureOverDates  # the correlation
    # what it would be if attention knew nothing of the forecast; None where there is no such null
    null: FigureOverDates | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of attention with ``|SHAP|``."""

    # mean rank correlation, and what it would be if attention knew nothing of the forecast
    found: FigureOverDates = UNKNOWN
    null: FigureOverDates = UNKNOWN
    # ``found`` without the noise of the Shapley values; its interval contains the error of the correction
    corrected: FigureOverDates = UNKNOWN
    # rank correlation of the Shapley values with a second, independent estimate of themselves
    reliability: FigureOverDates = UNKNOWN


Pairs = Iterable[tuple[int, FloatArray, FloatArray]]
"""Session, and two importances [P] or [E, P] of the same units."""


def mean_correlation(pairs: Pairs, seed: int = 0) -> FigureOverDates:
    """Mean rank correlation of pairs of importances of the same units."""
    rows, sessions = [], []
    for session, first, second in pairs:
        rows.append(rank_correlation(np.atleast_2d(first), np.atleast_2d(second)))
        sessions.append(np.full(len(rows[-1]), session))
    return mean_over_dates(np.concatenate(rows), np.concatenate(sessions), seed) if rows else UNKNOWN


def correlation_of_parts(parts: Iterable[FloatArray]) -> FigureOverDates:
    """Mean rank correlation of importances [P] or [E, P] of parts, such as folds, over all pairs.

    It has no interval: the parts are few, and each has its own model. ``dates`` is their number.
    """
    every = [np.atleast_2d(part) for part in parts]
    rows = [rank_correlation(a, b) for a, b in combinations(every, 2)]
    means = [float(row_E[np.isfinite(row_E)].mean()) for row_E in rows if np.isfinite(row_E).any()]
    return FigureOverDates(float(np.mean(means)), np.nan, np.nan, len(every)) if means else UNKNOWN


def agreement(
    measured: Sequence[ForecastMeasures], first: str, second: str, seed: int = 0
) -> FigureOverDates:
    """Mean rank correlation of two methods' importances over the forecasts that have both."""
    known = (one for one in measured if first in one.importance)
    return mean_correlation(
        ((one.session, one.importance[first], one.importance[second]) for one in known), seed
    )


def randomisation(measured: Sequence[ForecastMeasures], method: str, seed: int = 0) -> FigureOverDates:
    """Mean rank correlation of an importance with those of the same model with shuffled parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps": near 1, the importance does not depend on what
    the model has learned. The shuffles of different dates are independent, so the interval over dates
    contains the variance between shuffles.
    """
    known = (one for one in measured if method in one.importance and method in one.shuffled)
    pairs = ((one.session, one.importance[method], one.shuffled[method]) for one in known)
    return mean_correlation(
        ((at, np.broadcast_to(own_P, x_SP.shape), x_SP) for at, own_P, x_SP in pairs), seed
    )


def stability(
    pairs: Iterable[tuple[ForecastMeasures, ForecastMeasures]], method: str, seed: int = 0
) -> FigureOverDates:
    """Mean rank correlation of an importance over pairs of forecasts, such as those of two seeds.

    Pairs whose units differ are left out, and so are methods that one of them lacks.
    """
    none = np.array([])
    every = ((a.session, a.importance.get(method, none), b.importance.get(method, none)) for a, b in pairs)
    return mean_correlation(
        ((at, a_P, b_P) for at, a_P, b_P in every if a_P.size and a_P.shape == b_P.shape), seed
    )


def pairs_of_models(
    parts: Sequence[Sequence[ForecastMeasures]],
) -> list[tuple[ForecastMeasures, ForecastMeasures]]:
    """Pair the same forecasts of several models, for :func:`stability` over model seeds."""
    by_key = [{(one.session, one.firm): one for one in part} for part in parts]
    return [(a[key], b[key]) for a, b in combinations(by_key, 2) for key in sorted(a.keys() & b.keys())]


def pairs_of_neighbours(
    measured: Sequence[ForecastMeasures],
) -> list[tuple[ForecastMeasures, ForecastMeasures]]:
    """Pair the forecasts of a firm on two consecutive sessions, for :func:`stability` over time."""
    by_key = {(one.session, one.firm): one for one in measured}
    return [(one, by_key[t + 1, n]) for (t, n), one in by_key.items() if (t + 1, n) in by_key]


PEER_METHODS = ("shap", "attention")
"""Importances of peers of which whole matrices are known."""


def peer_stability(
    pairs: Iterable[tuple[PeerAttribution, PeerAttribution]], method: str, seed: int = 0
) -> FigureOverDates:
    """Mean rank correlation of the peers of a follower over pairs of attributions.

    The two are of one session and two models, or of one model and two sessions. Followers and peers that are
    in one of them only are left out. The size of the Shapley values is used.
    """

    def common(one: PeerAttribution, two: PeerAttribution) -> tuple[int, FloatArray, FloatArray]:
        _, *places = np.intersect1d(one.firms_N, two.firms_N, return_indices=True)
        values = (part.phi_NN if method == "shap" else part.attention_NN for part in (one, two))
        sizes = (np.abs(value_NN[np.ix_(at, at)]) for value_NN, at in zip(values, places, strict=True))
        first_NN, second_NN = map(_without_own, sizes)
        return one.session, first_NN, second_NN

    return mean_correlation((common(one, two) for one, two in pairs), seed)


def day_agreement(measured: Sequence[ForecastMeasures], seed: int = 0) -> Agreement:
    """Agreement over the days of the measured forecasts; the null is uniform attention, which ranks none."""
    rows = [(one.session, one.importance, one.again_P) for one in measured if one.again_P is not None]
    if not rows:
        return Agreement()
    agreed_E, repeat_E = (
        np.array([rank_correlation(a_P[None], b_P[None])[0] for a_P, b_P in pairs])
        for pairs in (
            [(own["attention"], own[SHAP]) for _, own, _ in rows],
            [(own["shap_once"], again_P) for _, own, again_P in rows],
        )
    )
    return _agreement(np.array([session for session, _, _ in rows]), agreed_E, repeat_E, seed)


def peer_agreement(network: Sequence[PeerAttribution], seed: int = 0) -> Agreement:
    """Agreement over the peers of all targets on the dates of a network.

    The null compares the attention of one target with the Shapley values of another, drawn at random. It
    keeps what every target has in common: the same few firms lead everyone. An agreement that is not above
    it does not speak of the pair.
    """
    rows = []
    for part in network:
        size_NN = np.abs(_without_own(part.phi_NN))
        if np.isfinite(size_NN).sum(axis=1).max(initial=0) < 3:
            continue
        order_N = np.random.default_rng((seed, part.session)).permutation(len(size_NN))
        partner_N = np.empty_like(order_N)
        partner_N[order_N] = np.roll(order_N, 1)
        agreed_N = rank_correlation(part.attention_NN, size_NN)
        null_N = rank_correlation(_without_own(part.attention_NN), size_NN[partner_N])
        rows.append((np.full(len(size_NN), part.session), agreed_N, part.repeat_N, null_N))
    if not rows:
        return Agreement()
    session_E, agreed_E, repeat_E, null_E = (np.concatenate(column) for column in zip(*rows, strict=True))
    return _agreement(session_E, agreed_E, repeat_E, seed, mean_over_dates(null_E, session_E, seed))


def _agreement(
    session_E: IntArray,
    agreed_E: FloatArray,
    repeat_E: FloatArray,
    seed: int,
    null: FigureOverDates | None = None,
) -> Agreement:
    found = mean_over_dates(agreed_E, session_E, seed)
    null = FigureOverDates(0.0, 0.0, 0.0, found.dates) if null is None else null
    return Agreement(found, null, *corrected_over_dates(agreed_E, repeat_E, session_E, seed))


@dataclass(frozen=True, slots=True)
class Inference:
    """Forecasts under other weights at inference."""

    weights: str  # ``as trained``, ``uniform`` or ``permuted``
    ic: FigureOverDates  # mean rank IC of the forecasts
    lost: FigureOverDates | None = None  # mean of ``IC as trained - IC`` over the same dates; None as trained
    # mean change of the forecast, divided by the change when everything is removed; None as trained
    moved: FigureOverDates | None = None


def at_inference(parts: Sequence[Intervened], seed: int = 0) -> dict[str, Inference]:
    """Summarise the interventions on all folds and seeds, by the weights; empty without any."""
    if not parts:
        return {}
    session_E = np.concatenate([part.session_D for part in parts])
    ic = {name: np.concatenate([part.ic[name] for part in parts]) for name in parts[0].ic}
    moved = {name: np.concatenate([part.moved[name] for part in parts]) for name in parts[0].moved}
    own_E = ic["as trained"]
    found = {"as trained": Inference("as trained", mean_over_dates(own_E, session_E, seed))}
    for weights in CHANGED:
        found[weights] = Inference(
            weights,
            mean_over_dates(ic[weights], session_E, seed),
            mean_over_dates(own_E - ic[weights], session_E, seed),
            ratio_over_dates(moved[weights], moved["removed"], session_E, seed),
        )
    return found


def _without_own(weights_NN: FloatArray) -> FloatArray:
    """NaN on the diagonal: a firm's own weight is 0 by construction, and would agree with another's."""
    return np.where(np.eye(len(weights_NN), dtype=np.bool_), np.nan, weights_NN)
