"""The study of a model's attention: what is measured of every fitted model, and what follows from it.

Legend: N firms of a date, E forecasts, T sessions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import torch

from features.arrays import FloatArray, IntArray
from models.batch import PanelTensors
from models.explain import attention
from models.explain.design import columns_of, evenly_spaced
from models.explain.faithful import verdict as verdicts
from models.explain.faithful.forecasts import (
    MIN_UNITS,
    FaithfulConfig,
    ForecastMeasures,
    Intervened,
    MeasuredModel,
    Over,
    intervene,
    measure,
)
from models.explain.network import attention_network, sum_dates
from models.explain.peers import PeerAttribution, PeerGameConfig, explain_peers
from models.forecaster import Forecaster

_FIRMS_SHOWN = 40
OVERS: tuple[Over, ...] = ("days", "peers")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured for every fitted model of a run."""

    measures: FaithfulConfig  # options of the measures, with the seed of all draws
    network: PeerGameConfig  # options of the peer network
    # own dates of a fold and seed, in addition to one shared by the seeds and the session after it
    dates: int
    firms: int  # forecasts measured per date
    peer_dates: int  # dates of the network on which the rankings of peers are measured
    ic_dates: int  # dates that are forecast under uniform and permuted attention


@dataclass(frozen=True, slots=True, eq=False)
class FittedPart:
    """A fitted model with its sessions."""

    fold: int  # index of the fold, and the seed
    seed: int
    place: int  # place of the seed among the seeds of the run, from 0
    module: Forecaster  # the model, in eval mode, and its panel
    data: PanelTensors
    train: IntArray  # training sessions, and test sessions with a universe
    test: IntArray
    drawn: IntArray | None = None  # firms of the peer network; None for all


@dataclass(frozen=True, slots=True, eq=False)
class FirmMatrix:
    """Attention, SHAP and their like over some firms of one date, [target, source]."""

    session: int  # session index
    firms_n: IntArray  # panel columns of the firms, in the order of their groups
    values: dict[str, FloatArray]  # method -> matrix [n, n]


@dataclass(frozen=True, slots=True, eq=False)
class FaithfulPart:
    """The measures of one fitted model, that is of one fold and seed."""

    fold: int  # index of the fold
    measured: dict[Over, list[ForecastMeasures]]  # measured forecasts, over days and over peers
    # forecasts under uniform and permuted attention, over days and over peers; missing without such attention
    inference: dict[Over, Intervened]
    dates: tuple[attention.DateAttention, ...]  # for the traits of heads and the maps
    firms: FirmMatrix | None  # matrices over firms of one date; None without peers
    # peers on the session that two seeds explain, and for the first seed on the session after it. They
    # measure stability and are not part of the network. Empty without peers
    shared: tuple[PeerAttribution, ...]


def measure_part(part: FittedPart, network: Sequence[PeerAttribution], effort: Effort) -> FaithfulPart:
    """Measure one fitted model; ``network`` is empty without peers, or if others explain all dates."""
    module, data, seed = part.module, part.data, effort.measures.seed
    model = MeasuredModel(module, data, part.train, effort.measures)
    # the first seed explains a session and the next one, the second seed that session again
    shared = _shared(part.test)[: max(0, 2 - part.place)]
    sessions = np.unique(np.concatenate([shared, _own(part, effort.dates)])).tolist()
    days = [
        one
        for session in sessions
        for one in measure(model, "days", session, _firms(part, session, effort.firms, seed))
    ]
    dates = tuple(attention.DateAttention.of(module, data, session) for session in sessions)
    peers: list[ForecastMeasures] = []
    count = min(effort.peer_dates, len(network))
    # equal orders would have equal noise, so comparisons draw orders of this fit alone
    own_seed = int(np.random.default_rng((seed, part.fold, part.seed)).integers(2**32))
    own_orders = replace(effort.network, seed=own_seed)
    for k in range(count):
        found = network[(part.place * count + k) % len(network)]  # seeds take turns, and share some dates
        random_NN = None
        if k == 0 and effort.measures.shuffled_shap:
            copy, session = model.shuffles(found.session)[0], np.array([found.session])
            random_NN = explain_peers(copy, data, session, own_orders, drawn=part.drawn)[0].phi_NN
        known_NN = np.isfinite(found.phi_NN)  # in a large universe only some followers are measured
        np.fill_diagonal(known_NN, val=False)
        measured = found.firms_N[known_NN.sum(axis=1) >= MIN_UNITS]
        drawn = np.random.default_rng((seed, found.session)).permutation(measured)
        firms = np.sort(drawn[: effort.firms])
        peers += measure(model, "peers", found.session, firms, (found.phi_NN, random_NN))
    overs: dict[Over, bool] = {
        "days": any(date.days_NW is not None for date in dates),
        "peers": module.uses_peers,
    }
    spread = _own(part, effort.ic_dates)
    return FaithfulPart(
        fold=part.fold,
        measured={"days": days, "peers": peers},
        inference={over: intervene(module, data, spread, over, seed) for over, has in overs.items() if has},
        dates=dates,
        firms=_firm_matrix(part, network[-1]) if network and part.place == 0 else None,
        shared=explain_peers(module, data, shared, own_orders, drawn=part.drawn) if module.uses_peers else (),
    )


def _firm_matrix(part: FittedPart, found: PeerAttribution) -> FirmMatrix:
    """Matrices over the firms that receive the most attention, so that a person can read them."""
    batch = part.data.batch(torch.tensor([found.session]))
    known_NN = np.isfinite(found.phi_NN)
    measured = np.flatnonzero(known_NN.any(axis=0) & known_NN.any(axis=1))
    received = found.attention_NN.sum(axis=0)[measured]
    chosen = np.sort(measured[np.argsort(-received, kind="stable")[:_FIRMS_SHOWN]])
    chosen = chosen[np.argsort(batch.s_BN[0].cpu().numpy()[chosen], kind="stable")]
    at = np.ix_(chosen, chosen)
    values = {"attention": found.attention_NN[at], "shap": np.abs(found.phi_NN[at])}
    record = attention.record_attention(part.module, batch)
    if len(record.peers) > 1:  # with one layer, rollout ranks peers as attention does
        values["rollout"] = attention.rollout_of_peers(record)[at]
    return FirmMatrix(found.session, found.firms_N[chosen], values)


def _firms(part: FittedPart, session: int, count: int, seed: int) -> IntArray:
    """Firms explained on a session: the same for every seed, and for both of the shared sessions."""
    shared = _shared(part.test)
    anchor = int(shared[0]) if session in shared else session
    universe = np.flatnonzero(part.data.mask_TN[anchor].cpu().numpy())
    rng = np.random.default_rng((seed, anchor))
    return np.sort(rng.choice(universe, min(count, len(universe)), replace=False))


def _shared(test: IntArray) -> IntArray:
    """A session in the middle of the test, and the one after it."""
    middle = int(test[len(test) // 2])
    return np.concatenate([[middle], test[test == middle + 1]]).astype(np.int64)


def _own(part: FittedPart, count: int) -> IntArray:
    """Sessions of this seed alone, between those of the other seeds."""
    offset = (1 + 2 * part.place) * len(part.test) // 16
    return evenly_spaced(np.roll(part.test, -offset), count)


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """What was measured about the attention of one model."""

    parts: Sequence[FaithfulPart]  # the measures of its folds and seeds
    # Shapley values of its peers on the dates of the network, and the fold of each of these dates
    network: Sequence[PeerAttribution]
    folds: Sequence[int]
    n_firms: int  # number of firms of the panel
    seed: int  # seed of the bootstraps and the nulls

    @cached_property
    def judged(self) -> dict[Over, verdicts.Verdict]:
        """The verdict on attention over days and over peers, for those that the model has."""
        return {
            over: verdicts.judge(over, self._measured(over), inference, self._agreement[over], self.seed)
            for over, inference in self._inference.items()
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of the tables ``verdict``, ``inference``, ``faithfulness``, ``curves`` and ``agreement``."""
        tables: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("verdict", "faithfulness", "curves", "agreement", "inference")
        }
        for over, verdict in self.judged.items():
            measured, inference = self._measured(over), self._inference[over].values()
            found: dict[str, Iterable[dict[str, Any]]] = {"inference": map(columns_of, inference)}
            if measured:
                known = (one for one in self._correlations(over, measured) if one.value.dates)
                found["faithfulness"] = map(columns_of, verdicts.measure_methods(measured, self.seed))
                found |= {"curves": verdicts.mean_curves(measured), "agreement": map(columns_of, known)}
            tables["verdict"] += verdict.rows()
            for name, rows in found.items():
                tables[name] += [{"over": over, **row} for row in rows]
        return tables

    def attention_rows(self, volatility_T: FloatArray) -> dict[str, list[dict[str, Any]]]:
        """Rows of ``heads``, ``day_weights`` and ``day_map``; the market's volatility is that up to a day."""
        dates = [date for part in self.parts for date in part.dates]
        weights = [(date.days_NW, date.session) for date in dates if date.days_NW is not None]
        rows = {"heads": attention.head_traits(dates, self.seed)}
        if weights:
            sessions = np.concatenate([np.full(len(days_NW), session) for days_NW, session in weights])
            weights_EW = np.concatenate([days_NW for days_NW, _ in weights])
            rows["day_weights"] = attention.day_profile(weights_EW, sessions, volatility_T, self.seed)
        records = [date.record for date in dates if date.record.days]
        rows["day_map"] = attention.day_map(records) if records else []
        return rows

    def _measured(self, over: Over) -> list[ForecastMeasures]:
        return [one for part in self.parts for one in part.measured[over]]

    @cached_property
    def _inference(self) -> dict[Over, dict[str, verdicts.Inference]]:
        of_parts = {
            over: [part.inference[over] for part in self.parts if over in part.inference] for over in OVERS
        }
        return {over: verdicts.at_inference(parts, self.seed) for over, parts in of_parts.items() if parts}

    @cached_property
    def _agreement(self) -> dict[Over, verdicts.Agreement]:
        days = verdicts.day_agreement(self._measured("days"), self.seed)
        return {"days": days, "peers": verdicts.peer_agreement(self.network, self.seed)}

    def _correlations(
        self, over: Over, measured: Sequence[ForecastMeasures]
    ) -> Iterator[verdicts.Correlation]:
        """Agreement with SHAP, stability, and randomisation, as rank correlations."""
        methods = [name for name in measured[0].importance if name != "shap_once"]
        of_attention = self._agreement[over]
        for method in methods[1:]:
            both = ((one.session, one.importance.get(method), one.importance["shap"]) for one in measured)
            agreed = verdicts.mean_correlation(both, self.seed)
            null = of_attention.null if method == "attention" or over == "days" else None
            agreed = of_attention.found if method == "attention" else agreed
            yield verdicts.Correlation("agreement with SHAP", method, agreed, null)
        yield verdicts.Correlation("explainer seeds", "shap", of_attention.reliability)
        yield from self._day_stability(methods) if over == "days" else self._peer_stability()
        for method in methods:
            yield verdicts.Correlation(
                "shuffled parameters", method, verdicts.randomisation(measured, method, self.seed)
            )

    def _by_fold(self) -> list[list[FaithfulPart]]:
        folds = dict.fromkeys(part.fold for part in self.parts)
        return [[part for part in self.parts if part.fold == fold] for fold in folds]

    def _day_stability(self, methods: Sequence[str]) -> Iterator[verdicts.Correlation]:
        # by session and firm: the same forecasts of several models, and those of consecutive sessions
        by_fold = [
            [{(one.session, one.firm): one for one in part.measured["days"]} for part in same]
            for same in self._by_fold()
        ]
        pairs = {
            "model seeds": [
                (a[key], b[key])
                for same in by_fold
                for a, b in combinations(same, 2)
                for key in sorted(a.keys() & b.keys())
            ],
            "neighbouring days": [
                (one, days[t + 1, n])
                for same in by_fold
                for days in same
                for (t, n), one in days.items()
                if (t + 1, n) in days
            ],
        }
        of_folds = [[one for days in same for one in days.values()] for same in by_fold]
        for method in methods:
            for kind, own in pairs.items():
                both = ((a.session, a.importance.get(method), b.importance.get(method)) for a, b in own)
                yield verdicts.Correlation(kind, method, verdicts.mean_correlation(both, self.seed))
            profiles = (
                np.mean([one.importance[method] for one in fold], axis=0) for fold in of_folds if fold
            )
            yield verdicts.Correlation("folds", method, verdicts.correlation_of_parts(profiles))

    def _peer_stability(self) -> Iterator[verdicts.Correlation]:
        seeds = [
            (one, two)
            for same in self._by_fold()
            for a, b in combinations(same, 2)
            for one, two in product(a.shared, b.shared)
            if one.session == two.session
        ]
        neighbours = [pair for part in self.parts for pair in pairwise(part.shared)]
        pairs = {"model seeds": seeds, "neighbouring days": neighbours}
        of_folds = [
            [date for date, of_date in zip(self.network, self.folds, strict=True) if of_date == fold]
            for fold in dict.fromkeys(self.folds)
        ]
        for method in verdicts.PEER_METHODS:
            for kind, own in pairs.items():
                yield verdicts.Correlation(kind, method, verdicts.peer_stability(own, method, self.seed))
            networks = [
                sum_dates(dates, self.n_firms).network()
                if method == "shap"
                else attention_network(dates, self.n_firms)
                for dates in of_folds
            ]
            weights = (np.where(one.observed, one.weight_NN, np.nan) for one in networks)
            yield verdicts.Correlation("folds", method, verdicts.correlation_of_parts(weights))
