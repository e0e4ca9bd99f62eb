"""The measures of one model over its forecasts: curves, agreement, attention at inference, and stability.

Legend: E forecasts, P units, D dates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from features.arrays import FloatArray, IntArray
from models.explain.faithful.forecasts import RANDOM, SHAP, Curves, ForecastMeasures
from models.explain.faithful.inference import Intervened
from models.explain.faithful.statistics import (
    UNKNOWN,
    Estimate,
    corrected_over_dates,
    mean_over_dates,
    rank_correlation,
    ratio_over_dates,
)
from models.explain.faithful.unit_games import UnitRemoval
from models.explain.network.weights import attention_network, peer_network
from models.explain.peers import PeerAttribution

MEASURES: dict[str, Callable[[Curves], float]] = {
    "deletion": lambda one: one.deletion,
    "insertion": lambda one: one.insertion,
    "comprehensiveness": lambda one: one.comprehensiveness,
    "sufficiency": lambda one: one.sufficiency,
    "cumulative": lambda one: one.cumulative,
}
"""Measures of a curve. Larger is more faithful, except for sufficiency, where smaller is."""


@dataclass(frozen=True, slots=True)
class MethodMeasure:
    """One measure of one method's order under one removal, with the share of the gain of SHAP.

    Attributes
    ----------
    method, removal, measure
        What was measured; measures are the keys of :data:`MEASURES`.
    value
        Mean, in the unit of the forecast or, if cumulative, as a share.
    share
        ``(value - random) / (SHAP - random)``: 0 for an order as good as a random one, 1 for one as good as
        that of the Shapley values.
    """

    method: str
    removal: UnitRemoval
    measure: str
    value: Estimate
    share: Estimate


def measure_methods(measured: Sequence[ForecastMeasures], seed: int = 0) -> list[MethodMeasure]:
    """Summarise the curves of every method, removal and measure; the seed is that of the bootstrap."""
    if not measured:
        return []
    session_E = sessions_of(measured)
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


def mean_curves(measured: Sequence[ForecastMeasures], removal: UnitRemoval) -> dict[str, Curves]:
    """Average the curves of the forecasts by method; changes are divided by the mean change of all units.

    Forecasts with another number of steps (of peers, on dates with more or fewer firms) are interpolated to
    the shares of the first.
    """
    if not measured:
        return {}
    share_S = measured[0].curves[SHAP, removal].share_S
    scale = float(np.mean([one.curves[SHAP, removal].deletion_S[-1] for one in measured])) or 1.0
    found = {}
    for method in dict.fromkeys(by for by, how in measured[0].curves if how == removal):
        own = [one.curves[method, removal] for one in measured]

        def mean_of(part: Callable[[Curves], FloatArray], own: list[Curves] = own) -> FloatArray:
            rows = [np.interp(share_S, one.share_S, part(one)) for one in own]
            mean_S: FloatArray = np.mean(rows, axis=0) / scale
            return mean_S

        found[method] = Curves(
            share_S=share_S,
            deletion_S=mean_of(lambda one: one.deletion_S),
            insertion_S=mean_of(lambda one: one.insertion_S),
            cumulative_S=scale * mean_of(lambda one: one.cumulative_S),
            comprehensiveness=float(np.mean([one.comprehensiveness for one in own])) / scale,
            sufficiency=float(np.mean([one.sufficiency for one in own])) / scale,
        )
    return found


def agreement(measured: Sequence[ForecastMeasures], first: str, second: str, seed: int = 0) -> Estimate:
    """Mean rank correlation of two methods' importances over the forecasts."""
    return _mean_correlation(
        [(one, one.importance[first], one.importance[second]) for one in measured if first in one.importance],
        seed,
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of attention with ``|SHAP|``.

    Attributes
    ----------
    found, null
        Mean rank correlation, and what it would be if attention knew nothing of the forecast.
    corrected
        ``found`` without the noise of the Shapley values; its interval contains the error of the correction.
    reliability
        Rank correlation of the Shapley values with a second, independent estimate of themselves.
    """

    found: Estimate
    null: Estimate
    corrected: Estimate
    reliability: Estimate


NO_AGREEMENT = Agreement(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


def day_agreement(measured: Sequence[ForecastMeasures], seed: int = 0) -> Agreement:
    """Agreement over the days of the measured forecasts; the null is uniform attention, which ranks none."""
    if not measured:
        return NO_AGREEMENT
    session_E = sessions_of(measured)
    agreement_E = _correlations([(one.importance["attention"], one.importance[SHAP]) for one in measured])
    repeat_E = _correlations([(one.importance["shap_once"], _again(one)) for one in measured])
    found = mean_over_dates(agreement_E, session_E, seed)
    return Agreement(
        found,
        Estimate(0.0, 0.0, 0.0, found.dates),
        *corrected_over_dates(agreement_E, repeat_E, session_E, seed),
    )


def _again(one: ForecastMeasures) -> FloatArray:
    assert one.again_P is not None, "the Shapley values of days are estimated twice"
    return one.again_P


def randomisation(measured: Sequence[ForecastMeasures], method: str, seed: int = 0) -> Estimate:
    """Mean rank correlation of an importance with those of the same model with shuffled parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps": near 1, the importance does not depend on what
    the model has learned. The correlations with all shuffles of a forecast are averaged. The shuffles of
    different dates are independent, so the interval over dates contains the variance between shuffles.
    """
    known = [one for one in measured if method in one.importance and method in one.shuffled]
    if not known:
        return UNKNOWN
    value_E = np.array([_with_every(one.importance[method], one.shuffled[method]).mean() for one in known])
    return mean_over_dates(value_E, sessions_of(known), seed)


def _with_every(importance_P: FloatArray, other_SP: FloatArray) -> FloatArray:
    return rank_correlation(np.broadcast_to(importance_P, other_SP.shape), other_SP)


def stability(
    pairs: Sequence[tuple[ForecastMeasures, ForecastMeasures]], method: str, seed: int = 0
) -> Estimate:
    """Mean rank correlation of an importance over pairs of forecasts, such as two seeds of one model.

    Pairs whose units differ are left out, and so are methods that one of them lacks.
    """
    return _mean_correlation(
        [
            (a, a.importance[method], b.importance[method])
            for a, b in pairs
            if method in a.importance
            and method in b.importance
            and a.importance[method].shape == b.importance[method].shape
        ],
        seed,
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
    return [
        (one, by_key[session + 1, firm])
        for (session, firm), one in by_key.items()
        if (session + 1, firm) in by_key
    ]


def profiles(parts: Sequence[Sequence[ForecastMeasures]], method: str) -> FloatArray:
    """Mean importance of each unit over the forecasts of each part [parts, P], with the same units."""
    return np.array([np.mean([one.importance[method] for one in part], axis=0) for part in parts if part])


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
        return NO_AGREEMENT
    session_E, agreement_E = np.concatenate(sessions), np.concatenate(rows)
    return Agreement(
        mean_over_dates(agreement_E, session_E, seed),
        mean_over_dates(np.concatenate(nulls), session_E, seed),
        *corrected_over_dates(agreement_E, np.concatenate(repeats), session_E, seed),
    )


PeerMethod = Literal["shap", "attention"]
PEER_METHODS: tuple[PeerMethod, ...] = ("shap", "attention")
"""Importances of peers of which whole matrices are known."""


def peer_stability(
    pairs: Sequence[tuple[PeerAttribution, PeerAttribution]], method: PeerMethod, seed: int = 0
) -> Estimate:
    """Mean rank correlation of the peers of a follower over pairs of attributions.

    The two are of one session and two models, or of one model and two sessions. Followers and peers that are
    in one of them only are left out. The size of the Shapley values is used.
    """
    rows, sessions = [], []
    for one, two in pairs:
        _, first, second = np.intersect1d(one.firms_N, two.firms_N, return_indices=True)
        sizes = [
            _without_own(np.abs(_values(part, method))[np.ix_(at, at)])
            for part, at in ((one, first), (two, second))
        ]
        rows.append(rank_correlation(*sizes))
        sessions.append(np.full(len(first), one.session))
    return mean_over_dates(np.concatenate(rows), np.concatenate(sessions), seed) if rows else UNKNOWN


def fold_stability(folds: Sequence[Sequence[PeerAttribution]], n_firms: int, method: PeerMethod) -> Estimate:
    """Mean rank correlation of the peers of a follower between the networks of two folds.

    It has no interval: the folds are few, and each has its own model. ``dates`` is the number of folds.
    """
    network_of = peer_network if method == "shap" else attention_network
    weights = []
    for fold in folds:
        network = network_of(fold, n_firms)
        weights.append(np.where(network.observed, network.weight_NN, np.nan))
    rows = [rank_correlation(a, b) for a, b in combinations(weights, 2)]
    means = [float(row_N[np.isfinite(row_N)].mean()) for row_N in rows if np.isfinite(row_N).any()]
    if not means:
        return UNKNOWN
    return Estimate(float(np.mean(means)), float("nan"), float("nan"), len(folds))


def _values(part: PeerAttribution, method: PeerMethod) -> FloatArray:
    return part.phi_NN if method == "shap" else part.attention_NN


@dataclass(frozen=True, slots=True)
class AtInference:
    """What replacing the weights at inference does.

    Attributes
    ----------
    ic, ic_uniform, ic_permuted
        Mean rank IC of the forecasts, and under uniform and permuted attention.
    lost_uniform, lost_permuted
        Mean of ``IC - IC under the intervention`` over the same dates.
    used_uniform, used_permuted
        Mean change of the forecast under the intervention, divided by the change when everything is removed.
    """

    ic: Estimate
    ic_uniform: Estimate
    ic_permuted: Estimate
    lost_uniform: Estimate
    lost_permuted: Estimate
    used_uniform: Estimate
    used_permuted: Estimate


def at_inference(parts: Sequence[Intervened], seed: int = 0) -> AtInference:
    """Summarise the interventions on all folds and seeds."""

    def joined(name: str) -> FloatArray:
        return np.concatenate([getattr(part, name) for part in parts])

    session_E = np.concatenate([part.session_D for part in parts])
    ic_E, uniform_E, permuted_E = joined("ic_D"), joined("ic_uniform_D"), joined("ic_permuted_D")
    removed_E = joined("moved_removed_D")
    return AtInference(
        ic=mean_over_dates(ic_E, session_E, seed),
        ic_uniform=mean_over_dates(uniform_E, session_E, seed),
        ic_permuted=mean_over_dates(permuted_E, session_E, seed),
        lost_uniform=mean_over_dates(ic_E - uniform_E, session_E, seed),
        lost_permuted=mean_over_dates(ic_E - permuted_E, session_E, seed),
        used_uniform=ratio_over_dates(joined("moved_uniform_D"), removed_E, session_E, seed),
        used_permuted=ratio_over_dates(joined("moved_permuted_D"), removed_E, session_E, seed),
    )


def sessions_of(measured: Sequence[ForecastMeasures]) -> IntArray:
    """Session of each forecast."""
    return np.array([one.session for one in measured], dtype=np.int64)


def _without_own(weights_NN: FloatArray) -> FloatArray:
    """NaN on the diagonal: a firm's own weight is 0 by construction, and would agree with another's."""
    return np.where(np.eye(len(weights_NN), dtype=np.bool_), np.nan, weights_NN)


def _mean_correlation(
    pairs: Sequence[tuple[ForecastMeasures, FloatArray, FloatArray]], seed: int
) -> Estimate:
    if not pairs:
        return UNKNOWN
    return mean_over_dates(
        _correlations([(a, b) for _, a, b in pairs]), sessions_of([one for one, _, _ in pairs]), seed
    )


def _correlations(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    return np.array([rank_correlation(a[None], b[None])[0] for a, b in pairs])
