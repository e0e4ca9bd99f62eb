"""Measure how far the attention of the fitted models of a run can be believed, and what it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from features.arrays import FloatArray, IntArray
from models.batch import PanelTensors
from models.explain.attention import DateAttention, record_attention, rollout_of_peers
from models.explain.design import evenly_spaced
from models.explain.faithful.forecasts import (
    MIN_UNITS,
    FaithfulConfig,
    ForecastMeasures,
    Subject,
    measure_days,
    measure_peers,
)
from models.explain.faithful.inference import Intervened, intervene
from models.explain.peers import PeerAttribution, PeerGameConfig, explain_peers
from models.fitting.fit import NeuralFitted
from models.peers.reference import size_column
from pipelines.config.sections import ExplainConfig

_FIRMS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured for every fitted model of a run.

    Attributes
    ----------
    measures
        Options of the measures.
    dates
        Own dates of a fold and seed, in addition to one shared by the seeds and the session after it.
    firms
        Forecasts measured per date.
    peer_dates
        Dates of the network on which the rankings of peers are measured.
    ic_dates
        Dates that are forecast under uniform and permuted attention.
    """

    measures: FaithfulConfig
    dates: int
    firms: int
    peer_dates: int
    ic_dates: int


def effort_of(settings: ExplainConfig) -> Effort:
    """Translate ``explain.faithfulness``."""
    if settings.faithfulness == "thorough":
        measures = FaithfulConfig(permutations=16, background=8, flow=True, seed=settings.seed)
        return Effort(measures, dates=8, firms=8, peer_dates=8, ic_dates=60)
    measures = FaithfulConfig(
        permutations=2,
        background=1,
        random_orders=1,
        steps=5,
        day_units=10,
        shuffled_shap=False,
        seed=settings.seed,
    )
    return Effort(measures, dates=1, firms=1, peer_dates=1, ic_dates=3)


@dataclass(frozen=True, slots=True, eq=False)
class FirmMatrix:
    """Attention, SHAP and their like over some firms of one date, [target, source].

    Attributes
    ----------
    session
        Session index.
    firms_n
        Panel columns of the firms, in the order of their groups.
    values
        Method -> matrix [n, n].
    """

    session: int
    firms_n: IntArray
    values: dict[str, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class FaithfulPart:
    """The measures of one fitted model, that is of one fold and seed.

    Attributes
    ----------
    fold, seed
        Which.
    days, peers
        Measured forecasts.
    days_inference, peers_inference
        Forecasts under uniform and permuted attention; None without such attention.
    dates
        The attention of some dates, for the traits of heads and the maps.
    day_weights_EW, day_sessions_E
        Attention over days of the forecasts of these dates; None without.
    firms
        Matrices over firms of one date; None without peers.
    shared
        Peers on the session that two seeds explain, and for the first seed on the session after it. They
        measure stability and are not part of the network. Empty without peers.
    """

    fold: int
    seed: int
    days: list[ForecastMeasures]
    peers: list[ForecastMeasures]
    days_inference: Intervened | None
    peers_inference: Intervened | None
    dates: tuple[DateAttention, ...]
    day_weights_EW: FloatArray | None
    day_sessions_E: IntArray | None
    firms: FirmMatrix | None
    shared: tuple[PeerAttribution, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FittedPart:
    """A fitted model with its sessions.

    Attributes
    ----------
    fold, seed
        Index of the fold, and the seed.
    place
        Place of the seed among the seeds of the run, from 0.
    fitted, data
        The model and its panel.
    train, test
        Training sessions, and test sessions with a universe.
    drawn
        Firms of the peer network; None for all.
    """

    fold: int
    seed: int
    place: int
    fitted: NeuralFitted
    data: PanelTensors
    train: IntArray
    test: IntArray
    drawn: IntArray | None = None


def measure_part(
    part: FittedPart, network: Sequence[PeerAttribution], settings: ExplainConfig
) -> FaithfulPart:
    """Measure one fitted model.

    Parameters
    ----------
    part
        The model.
    network
        Shapley values of its peers on some test sessions; empty for a model without peers, and if other
        models explain all dates.
    settings
        Section ``explain`` of the config.
    """
    effort, module, data = effort_of(settings), part.fitted.module, part.data
    subject = Subject(module, data, part.train, effort.measures)
    # the first seed explains a session and the next one, the second seed that session again
    shared = _shared(part.test)[: max(0, 2 - part.place)]
    has_peers = module.uses_peers
    sampled = np.unique(np.concatenate([shared, _own(part, effort.dates)]))
    days: list[ForecastMeasures] = []
    dates, weights, sessions = [], [], []
    for session in sampled.tolist():
        days += measure_days(subject, session, _firms(part, session, effort.firms, settings.seed))
        batch = data.batch(torch.tensor([session]))
        record = record_attention(module, batch)
        size = size_column(data.shape)
        size_N = None if size is None else batch.z_BNF[0, :, size].double().cpu().numpy()
        dates.append(DateAttention(session, record, batch.s_BN[0].cpu().numpy(), size_N))
        days_BNW = module.attention(batch).days_BNW
        if days_BNW is not None:
            weights.append(days_BNW[0].detach().double().cpu().numpy())
            sessions.append(np.full(len(weights[-1]), session))
    spread = _own(part, effort.ic_dates)
    return FaithfulPart(
        fold=part.fold,
        seed=part.seed,
        days=days,
        peers=_peers(subject, part, network, effort, settings),
        days_inference=intervene(module, data, spread, "days", settings.seed) if weights else None,
        peers_inference=intervene(module, data, spread, "peers", settings.seed) if has_peers else None,
        dates=tuple(dates),
        day_weights_EW=np.concatenate(weights) if weights else None,
        day_sessions_E=np.concatenate(sessions) if sessions else None,
        firms=_firm_matrix(part, network[-1]) if network and part.place == 0 else None,
        shared=explain_peers(part.fitted, data, shared, _own_orders(part, settings), drawn=part.drawn)
        if has_peers
        else (),
    )


def _peers(
    subject: Subject,
    part: FittedPart,
    network: Sequence[PeerAttribution],
    effort: Effort,
    settings: ExplainConfig,
) -> list[ForecastMeasures]:
    """Measure rankings of peers on dates of the network; if thorough, with shuffled parameters on one."""
    measured: list[ForecastMeasures] = []
    count = min(effort.peer_dates, len(network))
    for k in range(count):
        found = network[(part.place * count + k) % len(network)]  # seeds take turns, and share some dates
        shuffled = (
            explain_peers(
                subject.shuffles(found.session)[0],
                part.data,
                np.array([found.session]),
                _own_orders(part, settings),
                drawn=part.drawn,
            )[0]
            if k == 0 and settings.faithfulness == "thorough"
            else None
        )
        firms = _followers(found, effort.firms, settings.seed)
        measured += measure_peers(
            subject, found.session, firms, found.phi_NN, None if shuffled is None else shuffled.phi_NN
        )
    return measured


def peer_config(settings: ExplainConfig) -> PeerGameConfig:
    """Options of the peer network: the same for all folds and seeds."""
    return PeerGameConfig(settings.network_permutations, settings.max_peers, settings.seed)


def _own_orders(part: FittedPart, settings: ExplainConfig) -> PeerGameConfig:
    """Options with orders of this fit alone, for comparisons: equal orders would have equal noise."""
    seed = (settings.seed, part.fold, part.seed)
    return replace(peer_config(settings), seed=int(np.random.default_rng(seed).integers(2**32)))


def _followers(found: PeerAttribution, count: int, seed: int) -> IntArray:
    """Draw firms whose peers have values: in a large universe only some followers are measured."""
    known_NN = np.isfinite(found.phi_NN)
    np.fill_diagonal(known_NN, val=False)
    measured = found.firms_N[known_NN.sum(axis=1) >= MIN_UNITS]
    rng = np.random.default_rng((seed, found.session))
    return np.sort(rng.permutation(measured)[:count])


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
    record = record_attention(part.fitted.module, batch)
    if len(record.peers) > 1:  # with one layer, rollout ranks peers as attention does
        values["rollout"] = rollout_of_peers(record)[at]
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
    after = test[test == middle + 1]
    return np.concatenate([[middle], after]).astype(np.int64)


def _own(part: FittedPart, count: int) -> IntArray:
    """Sessions of this seed alone, between those of the other seeds."""
    offset = (1 + 2 * part.place) * len(part.test) // 16
    spaced = np.roll(part.test, -offset)
    return evenly_spaced(spaced, count)
