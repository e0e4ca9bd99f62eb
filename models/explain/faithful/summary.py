"""The measures of one model over its forecasts: curves, agreement, attention at inference, and stability.

The rows that the functions return are the rows of the stored tables.

Legend: E forecasts, P units, D dates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from features.arrays import FloatArray, IntArray
from models.explain.faithful.forecasts import RANDOM, SHAP, Curves, ForecastMeasures
from models.explain.faithful.statistics import (
    UNKNOWN,
    Estimate,
    corrected_over_dates,
    mean_over_dates,
    rank_correlation,
    ratio_over_dates,
)
from models.explain.faithful.unit_games import Intervened
from models.explain.network.weights import attention_network, peer_network
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
    value: Estimate  # mean, in the unit of the forecast or, if cumulative, as a share
    # ``(value - random) / (SHAP - random)``: 0 for an order as good as a random one, 1 for one as good as
    # that of the Shapley values
    share: Estimate


def measure_methods(measured: Sequence[ForecastMeasures], seed: int = 0) -> list[MethodMeasure]:
    """Summarise the curves of every method, removal and measure; the seed is that of the bootstrap."""
    if not measured:
        return []
    session_E = _sessions(measured)
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


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean curves of one method under one removal at one share of the units.

    Deletion and insertion are divided by the mean change of all units; the cumulative curve is a share.
    """

    method: str
    removal: str
    share: float
    deletion: float
    insertion: float
    cumulative: float


def mean_curves(measured: Sequence[ForecastMeasures]) -> list[CurvePoint]:
    """Average the curves of the forecasts by method and removal.

    Forecasts with another number of steps (of peers, on dates with more or fewer firms) are interpolated to
    the shares of the first.
    """
    found = []
    for removal in dict.fromkeys(how for _, how in measured[0].curves):
        share_S = measured[0].curves[SHAP, removal].share_S
        scale = float(np.mean([one.curves[SHAP, removal].deletion_S[-1] for one in measured])) or 1.0
        for method in dict.fromkeys(by for by, how in measured[0].curves if how == removal):
            own = [one.curves[method, removal] for one in measured]
            mean = [
                np.mean([np.interp(share_S, one.share_S, getattr(one, name)) for one in own], axis=0) / scale
                for name in ("deletion_S", "insertion_S", "cumulative_S")
            ]
            mean[2] = scale * mean[2]
            points = zip(share_S.tolist(), *(of.tolist() for of in mean), strict=True)
            found += [CurvePoint(method, removal, *point) for point in points]
    return found


@dataclass(frozen=True, slots=True)
class Correlation:
    """A mean rank correlation of importances."""

    # ``agreement with SHAP``; ``explainer seeds``, ``model seeds``, ``folds`` and ``neighbouring days`` are
    # correlations of an importance with itself; ``shuffled parameters``
    kind: str
    method: str  # whose importance
    value: Estimate  # the correlation
    # what it would be if attention knew nothing of the forecast; None where there is no such null
    null: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of attention with ``|SHAP|``."""

    # mean rank correlation, and what it would be if attention knew nothing of the forecast
    found: Estimate = UNKNOWN
    null: Estimate = UNKNOWN
    # ``found`` without the noise of the Shapley values; its interval contains the error of the correction
    corrected: Estimate = UNKNOWN
    # rank correlation of the Shapley values with a second, independent estimate of themselves
    reliability: Estimate = UNKNOWN


def agreement(measured: Sequence[ForecastMeasures], first: str, second: str, seed: int = 0) -> Estimate:
    """Mean rank correlation of two methods' importances over the forecasts."""
    known = [one for one in measured if first in one.importance]
    return _mean_correlation(known, [(one.importance[first], one.importance[second]) for one in known], seed)


def day_agreement(measured: Sequence[ForecastMeasures], seed: int = 0) -> Agreement:
    """Agreement over the days of the measured forecasts; the null is uniform attention, which ranks none."""
    if not measured:
        return Agreement()
    session_E = _sessions(measured)
    agreement_E = _correlations([(one.importance["attention"], one.importance[SHAP]) for one in measured])
    again = [(one.importance["shap_once"], one.again_P) for one in measured]
    repeat_E = _correlations([(first_P, again_P) for first_P, again_P in again if again_P is not None])
    found = mean_over_dates(agreement_E, session_E, seed)
    return Agreement(
        found,
        Estimate(0.0, 0.0, 0.0, found.dates),
        *corrected_over_dates(agreement_E, repeat_E, session_E, seed),
    )


def randomisation(measured: Sequence[ForecastMeasures], method: str, seed: int = 0) -> Estimate:
    """Mean rank correlation of an importance with those of the same model with shuffled parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps": near 1, the importance does not depend on what
    the model has learned. The correlations with all shuffles of a forecast are averaged. The shuffles of
    different dates are independent, so the interval over dates contains the variance between shuffles.
    """
    known = [one for one in measured if method in one.importance and method in one.shuffled]
    if not known:
        return UNKNOWN
    value_E = []
    for one in known:
        other_SP = one.shuffled[method]
        value_E.append(
            rank_correlation(np.broadcast_to(one.importance[method], other_SP.shape), other_SP).mean()
        )
    return mean_over_dates(np.array(value_E), _sessions(known), seed)


Pairs = Sequence[tuple[ForecastMeasures, ForecastMeasures]]


def stability(pairs: Pairs, method: str, seed: int = 0) -> Estimate:
    """Mean rank correlation of an importance over pairs of forecasts, such as two seeds of one model.

    Pairs whose units differ are left out, and so are methods that one of them lacks.
    """
    none = np.array([])
    every = [(a, a.importance.get(method, none), b.importance.get(method, none)) for a, b in pairs]
    known = [(one, a_P, b_P) for one, a_P, b_P in every if a_P.size and a_P.shape == b_P.shape]
    return _mean_correlation([one for one, _, _ in known], [(a_P, b_P) for _, a_P, b_P in known], seed)


def pairs_of_models(parts: Sequence[Sequence[ForecastMeasures]]) -> Pairs:
    """Pair the same forecasts of several models, for :func:`stability` over model seeds."""
    by_key = [{(one.session, one.firm): one for one in part} for part in parts]
    return [(a[key], b[key]) for a, b in combinations(by_key, 2) for key in sorted(a.keys() & b.keys())]


def pairs_of_neighbours(measured: Sequence[ForecastMeasures]) -> Pairs:
    """Pair the forecasts of a firm on two consecutive sessions, for :func:`stability` over time."""
    by_key = {(one.session, one.firm): one for one in measured}
    return [
        (one, by_key[session + 1, firm])
        for (session, firm), one in by_key.items()
        if (session + 1, firm) in by_key
    ]


def profile_stability(parts: Sequence[Sequence[ForecastMeasures]], method: str) -> Estimate:
    """Mean rank correlation of the mean importance of each unit between parts, such as folds; no interval."""
    means_PP = [np.mean([one.importance[method] for one in part], axis=0) for part in parts if part]
    pairs = _correlations(list(combinations(means_PP, 2)))
    return Estimate(float(np.mean(pairs)), np.nan, np.nan, len(means_PP)) if len(pairs) else UNKNOWN


def peer_agreement(network: Sequence[PeerAttribution], seed: int = 0) -> Agreement:
    """Agreement over the peers of all targets on the dates of a network.

    The null compares the attention of one target with the Shapley values of another, drawn at random. It
    keeps what every target has in common: the same few firms lead everyone. An agreement that is not above
    it does not speak of the pair.
    """
    rows, nulls, repeats, sessions = [], [], [], []
    for part in network:
        size_NN = np.abs(_without_own(part.phi_NN))
        if np.isfinite(size_NN).sum(axis=1).max(initial=0) < 3:
            continue
        rng = np.random.default_rng((seed, part.session))
        order_N = rng.permutation(len(size_NN))
        partner_N = np.empty_like(order_N)
        partner_N[order_N] = np.roll(order_N, 1)
        rows.append(rank_correlation(part.attention_NN, size_NN))
        nulls.append(rank_correlation(_without_own(part.attention_NN), size_NN[partner_N]))
        repeats.append(part.repeat_N)
        sessions.append(np.full(len(size_NN), part.session))
    if not rows:
        return Agreement()
    session_E, agreement_E = np.concatenate(sessions), np.concatenate(rows)
    return Agreement(
        mean_over_dates(agreement_E, session_E, seed),
        mean_over_dates(np.concatenate(nulls), session_E, seed),
        *corrected_over_dates(agreement_E, np.concatenate(repeats), session_E, seed),
    )


PEER_METHODS = ("shap", "attention")
"""Importances of peers of which whole matrices are known."""


def peer_stability(
    pairs: Sequence[tuple[PeerAttribution, PeerAttribution]], method: str, seed: int = 0
) -> Estimate:
    """Mean rank correlation of the peers of a follower over pairs of attributions.

    The two are of one session and two models, or of one model and two sessions. Followers and peers that are
    in one of them only are left out. The size of the Shapley values is used.
    """
    rows, sessions = [], []
    for one, two in pairs:
        _, first, second = np.intersect1d(one.firms_N, two.firms_N, return_indices=True)
        sizes = []
        for part, at in ((one, first), (two, second)):
            value_NN = part.phi_NN if method == "shap" else part.attention_NN
            sizes.append(_without_own(np.abs(value_NN[np.ix_(at, at)])))
        rows.append(rank_correlation(*sizes))
        sessions.append(np.full(len(first), one.session))
    return mean_over_dates(np.concatenate(rows), np.concatenate(sessions), seed) if rows else UNKNOWN


def fold_stability(folds: Sequence[Sequence[PeerAttribution]], n_firms: int, method: str) -> Estimate:
    """Mean rank correlation of the peers of a follower between the networks of two folds.

    It has no interval: the folds are few, and each has its own model. ``dates`` is the number of folds.
    """
    networks = [(peer_network if method == "shap" else attention_network)(fold, n_firms) for fold in folds]
    weights = [np.where(network.observed, network.weight_NN, np.nan) for network in networks]
    rows = [rank_correlation(a, b) for a, b in combinations(weights, 2)]
    means = [float(row_N[np.isfinite(row_N)].mean()) for row_N in rows if np.isfinite(row_N).any()]
    return Estimate(float(np.mean(means)), np.nan, np.nan, len(folds)) if means else UNKNOWN


@dataclass(frozen=True, slots=True)
class Inference:
    """Forecasts under other weights at inference."""

    weights: str  # ``as trained``, ``uniform`` or ``permuted``
    ic: Estimate  # mean rank IC of the forecasts
    lost: Estimate | None = None  # mean of ``IC as trained - IC`` over the same dates; None as trained
    # mean change of the forecast, divided by the change when everything is removed; None as trained
    moved: Estimate | None = None


def at_inference(parts: Sequence[Intervened], seed: int = 0) -> dict[str, Inference]:
    """Summarise the interventions on all folds and seeds, by the weights; empty without any."""
    if not parts:
        return {}

    def joined(name: str) -> FloatArray:
        return np.concatenate([getattr(part, name) for part in parts])

    session_E, ic_E = np.concatenate([part.session_D for part in parts]), joined("ic_D")
    found = {"as trained": Inference("as trained", mean_over_dates(ic_E, session_E, seed))}
    for weights in ("uniform", "permuted"):
        other_E, moved_E = joined(f"ic_{weights}_D"), joined(f"moved_{weights}_D")
        found[weights] = Inference(
            weights,
            mean_over_dates(other_E, session_E, seed),
            mean_over_dates(ic_E - other_E, session_E, seed),
            ratio_over_dates(moved_E, joined("moved_removed_D"), session_E, seed),
        )
    return found


def _sessions(measured: Sequence[ForecastMeasures]) -> IntArray:
    return np.array([one.session for one in measured], dtype=np.int64)


def _without_own(weights_NN: FloatArray) -> FloatArray:
    """NaN on the diagonal: a firm's own weight is 0 by construction, and would agree with another's."""
    return np.where(np.eye(len(weights_NN), dtype=np.bool_), np.nan, weights_NN)


def _mean_correlation(
    measured: Sequence[ForecastMeasures], pairs: Sequence[tuple[FloatArray, FloatArray]], seed: int
) -> Estimate:
    return mean_over_dates(_correlations(pairs), _sessions(measured), seed) if pairs else UNKNOWN


def _correlations(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    return np.array([rank_correlation(a[None], b[None])[0] for a, b in pairs])
