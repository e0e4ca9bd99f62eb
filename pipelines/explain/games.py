"""Attribution of a run: why a sample of its test forecasts came out as they did, and how far to believe it.

Each explained model is taken from its checkpoints, one for every fold and seed, and asked about test sessions
of its own fold alone. Two games are played: days, feature families and peers as groups; and every peer for
itself, which gives the directed network ``j -> i``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from backtest.splits import Fold
from features.library.characteristics import CHARACTERISTICS
from features.library.standardise import MISSING
from models.batch import PanelTensors
from models.explain.groups import GroupAttribution, GroupGameConfig, explain_groups
from models.explain.network import (
    PeerNetwork,
    attention_network,
    compare_edges,
    edge_auc,
    edge_table,
    homophily,
    mean_network,
    peer_network,
)
from models.explain.peers import PeerAttribution, PeerGameConfig, attention_matrices, explain_peers
from models.fitting.fit import Fitted, NeuralFitted, untrained
from models.registry import MODELS
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import INPUT_PREFIX, Dataset, plan_folds
from pipelines.device import pick_device
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.provenance import ExplanationMade, environment, record
from pipelines.run.record import Run
from pipelines.train.plan import collect_arrays
from pipelines.train.task import to_tensors

IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
_STRONGEST = 20  # peers kept for each firm in the stored network
_ROC_POINTS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """The games of one model, over its folds and seeds."""

    model: str
    groups: tuple[GroupAttribution, ...]
    peers: tuple[PeerAttribution, ...]
    untrained: tuple[
        tuple[IntArray, FloatArray], ...
    ]  # firms and attention of the weights that training began with


def explain(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain a run's neural models, keep the tables in its folder, and answer with a summary."""
    names = explained_models(run.config)
    folds = plan_folds(dataset, run.config)
    truth = _planted(run, lake)
    started = time.monotonic()
    tables: dict[str, list[pl.DataFrame]] = {}
    summary: list[str] = []
    with progress.stage("explain", total=len(names) * len(folds) * len(run.config.seeds)):
        for name in names:
            explained = _explain_model(run, dataset, folds, name, progress)
            for table, frame in _tables(explained, dataset, truth).items():
                tables.setdefault(table, []).append(frame)
            summary.append(_sentence(explained))
    for table, frames in tables.items():
        run.write_table(f"explain_{table}", pl.concat(frames))
    if tables:
        event = ExplanationMade(
            environment=environment(),
            device=pick_device(run.config.device),
            settings=run.config.explain.model_dump(mode="json"),
            seconds=round(time.monotonic() - started, 1),
        )
        record(run, event)
    return "\n".join(summary) or "nothing to explain: no neural model, or explain.models names none"


def explained_models(config: Config) -> tuple[str, ...]:
    """The models that a config wants explained: named ones, or every neural one."""
    if config.explain.models is not None:
        return tuple(name for name in config.explain.models if name in config.models)
    return tuple(name for name in config.models if MODELS[registry_name(config, name)].kind == "neural")


def families_of(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Columns of the characteristics by family."""
    families: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        own = name.startswith(INPUT_PREFIX)
        family = "input" if own else CHARACTERISTICS[name.removesuffix(MISSING)].family
        families.setdefault(family, []).append(column)
    return families


def _explain_model(run: Run, dataset: Dataset, folds: list[Fold], name: str, progress: Progress) -> Explained:
    settings = run.config.explain
    families = families_of(dataset.characteristic_names)
    groups: list[GroupAttribution] = []
    peers: list[PeerAttribution] = []
    before: list[tuple[IntArray, FloatArray]] = []
    parts = len(folds) * len(run.config.seeds)
    for fold, seed, fitted, data in _fitted(run, dataset, folds, name):
        where = _with_universe(dataset, fold.test)
        own_seed = settings.seed + 1000 * fold.index + seed
        group_config = GroupGameConfig(
            permutations=settings.permutations, firms_per_date=settings.firms_per_date, seed=own_seed
        )
        sample = _spread_out(where, max(1, settings.dates // parts))
        groups.append(explain_groups(fitted, data, sample, families, group_config))
        if isinstance(fitted, NeuralFitted) and fitted.module.uses_peers:
            peer_config = PeerGameConfig(
                permutations=settings.network_permutations,
                max_peer_players=settings.max_peers,
                seed=own_seed,
            )
            sample = _spread_out(where, max(1, settings.network_dates // parts))
            peers += explain_peers(fitted, data, sample, peer_config)
            before += attention_matrices(untrained(fitted, seed), data, sample)
        progress.step(f"{name} fold {fold.index} seed {seed}")
    return Explained(name, tuple(groups), tuple(peers), tuple(before))


def _fitted(
    run: Run, dataset: Dataset, folds: list[Fold], name: str
) -> Iterator[tuple[Fold, int, Fitted, PanelTensors]]:
    """Every fitted model of a name with its fold's data, on one thread as it was fitted."""
    arrays = collect_arrays(dataset, run.config.features.window)
    device = pick_device(run.config.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for fold in folds:
            data: PanelTensors | None = None
            for seed in run.config.seeds:
                fitted, scaler = load_checkpoint(run.checkpoint(name, fold.index, seed))
                data = to_tensors(arrays, scaler, device) if data is None else data
                yield fold, seed, fitted, data
    finally:
        torch.set_num_threads(threads)


def _with_universe(dataset: Dataset, sessions: IntArray) -> IntArray:
    kept: IntArray = sessions[dataset.universe_TN[sessions].sum(axis=1) >= 2]
    return kept


def _spread_out(sessions: IntArray, count: int) -> IntArray:
    """``count`` sessions in even steps, without the edges of the segment when there is a choice."""
    places = (np.arange(min(count, len(sessions))) + 0.5) * len(sessions) / min(count, len(sessions))
    chosen: IntArray = sessions[places.astype(np.int64)]
    return chosen


def _tables(explained: Explained, dataset: Dataset, truth: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    """Everything that the report shows of one model, as frames."""
    tables = {"players": _players(explained), "example": _example(explained, dataset)}
    facts: dict[str, Any] = _facts(explained)
    if explained.peers:
        network = peer_network(explained.peers, dataset.panel.n_firms)
        sessions = np.array([part.session for part in explained.peers])
        planted_NN = None if truth is None else planted_edges(truth, dataset, sessions)
        tables["edges"] = _edges(explained.model, network, dataset, planted_NN)
        group_N = dataset.panel.group_TN[int(explained.peers[-1].session)].astype(np.int64)
        within = homophily(network, group_N)
        facts |= {"homophily": within.within, "homophily_by_chance": within.expected}
        if planted_NN is not None:
            found = _recovery(explained, network, planted_NN)
            facts |= found.facts
            tables["roc"] = found.roc
    tables["facts"] = pl.DataFrame({"model": explained.model, "facts": json.dumps(facts)})
    return tables


def _facts(explained: Explained) -> dict[str, Any]:
    """How far a model's attribution can be believed."""
    sizes = np.array([len(part.firms_E) for part in explained.groups], dtype=np.float64)
    qualities = [part.quality for part in explained.groups]
    moved = np.concatenate([np.abs(part.forecast_E - part.base_E) for part in explained.groups]).mean()
    additivity = max(quality.additivity_max for quality in qualities)
    facts: dict[str, Any] = {
        "n_forecasts": int(sizes.sum()),
        "additivity_max_abs": additivity,
        "additivity_relative": float(additivity / moved) if moved > 0 else 0.0,
        "monte_carlo_error": float(np.average([q.monte_carlo_mean for q in qualities], weights=sizes)),
    }
    days = [part.attention_days for part in explained.groups if part.attention_days is not None]
    peers = [part.attention_peers for part in explained.peers]
    for kind, agreements in (("days", days), ("peers", peers)):
        known = [one for one in agreements if one.number > 0]
        if known:
            facts[f"agreement_{kind}"] = float(
                np.average([one.mean for one in known], weights=[one.number for one in known])
            )
    return facts


def _players(explained: Explained) -> pl.DataFrame:
    players = explained.groups[0].players
    mean_abs_P = np.abs(np.concatenate([part.values_EP for part in explained.groups])).mean(axis=0)
    kinds = {"days": "days", "family": "features", "peers": "peers"}
    return pl.DataFrame(
        {
            "model": [explained.model] * len(players),
            "kind": [kinds[player.kind] for player in players],
            "player": [player.name for player in players],
            "mean_abs_shap": mean_abs_P,
        }
    )


def _example(explained: Explained, dataset: Dataset) -> pl.DataFrame:
    """The explained forecast that its players moved most."""
    part = max(explained.groups, key=lambda one: float(np.abs(one.forecast_E - one.base_E).max()))
    e = int(np.argmax(np.abs(part.forecast_E - part.base_E)))
    return pl.DataFrame(
        {
            "model": [explained.model] * len(part.players),
            "date": [str(dataset.panel.dates_T[part.sessions_E[e]].astype("datetime64[D]"))]
            * len(part.players),
            "ticker": [dataset.panel.tickers_N[part.firms_E[e]]] * len(part.players),
            "base_value": [float(part.base_E[e])] * len(part.players),
            "forecast": [float(part.forecast_E[e])] * len(part.players),
            "player": [player.name for player in part.players],
            "value": part.values_EP[e],
        }
    )


def _edges(model: str, network: PeerNetwork, dataset: Dataset, planted_NN: BoolArray | None) -> pl.DataFrame:
    """The network as a table: the strongest peers of each firm; ``planted`` is null on real data."""
    table = edge_table(network, top=_STRONGEST)
    tickers = np.asarray(dataset.panel.tickers_N)
    group_N = dataset.panel.group_TN[-1]
    known = (group_N[table.source_E] >= 0) & (group_N[table.target_E] >= 0)
    return pl.DataFrame(
        {
            "model": [model] * len(table.source_E),
            "leader": tickers[table.source_E],
            "follower": tickers[table.target_E],
            "weight": table.weight_E,
            "signed": table.signed_E,
            "share": table.weight_E / network.weight_NN.sum(),
            "rank": table.rank_E,
            "dates": table.dates_E,
            "same_group": pl.Series(group_N[table.source_E] == group_N[table.target_E]).set(
                pl.Series(~known), None
            ),
            "planted": None if planted_NN is None else planted_NN[table.target_E, table.source_E],
        }
    )


@dataclass(frozen=True, slots=True)
class _Recovery:
    facts: Mapping[str, float | int]
    roc: pl.DataFrame


def _recovery(explained: Explained, network: PeerNetwork, planted_NN: BoolArray) -> _Recovery:
    """Compare the network with the planted edges."""
    attention = attention_network(explained.peers, len(planted_NN))
    everything_NN = np.ones_like(planted_NN)
    found = compare_edges(network, attention, planted_NN, everything_NN, seed=0)
    start = mean_network(explained.untrained, len(planted_NN))
    by_start = edge_auc(start.weight_NN, planted_NN, network.observed & attention.observed)
    curves = []
    for method, roc in (("shap", found.shap), ("attention", found.attention)):
        step = max(1, len(roc.false_positive_rate_K) // _ROC_POINTS)
        keep = np.unique(
            np.append(np.arange(0, len(roc.false_positive_rate_K), step), len(roc.false_positive_rate_K) - 1)
        )
        curves.append(
            pl.DataFrame(
                {
                    "model": [explained.model] * len(keep),
                    "method": [method] * len(keep),
                    "fpr": roc.false_positive_rate_K[keep],
                    "tpr": roc.true_positive_rate_K[keep],
                }
            )
        )
    facts = {
        "auc_shap": found.shap.auc,
        "auc_attention": found.attention.auc,
        "auc_untrained": by_start.auc,
        "auc_random": found.random_mean,
        "n_planted": found.shap.n_edges,
        "n_pairs": found.shap.n_pairs,
    }
    return _Recovery(facts, pl.concat(curves))


def planted_edges(truth: pl.DataFrame, dataset: Dataset, sessions: IntArray) -> BoolArray:
    """[target, source]: planted edges, of either hop, that held on at least half of the sessions."""
    column = {ticker: n for n, ticker in enumerate(dataset.panel.tickers_N)}
    dates = dataset.panel.dates_T[sessions].astype("datetime64[D]")
    held_NN = np.zeros((dataset.panel.n_firms, dataset.panel.n_firms), dtype=np.int64)
    spells = truth.select("leader", "follower", "valid_from", "valid_to").unique()
    for leader, follower, start, end in spells.iter_rows():
        if leader in column and follower in column:
            alive = dates >= np.datetime64(start)
            if end is not None:
                alive &= dates < np.datetime64(end)
            held_NN[column[follower], column[leader]] += int(alive.sum())
    return 2 * held_NN >= len(sessions)


def _planted(run: Run, lake: Lake) -> pl.DataFrame | None:
    if "truth_edges" not in run.versions:
        return None
    return lake.read("truth_edges", version=run.versions["truth_edges"])


def _sentence(explained: Explained) -> str:
    facts = _facts(explained)
    parts = [
        f"{explained.model}: {facts['n_forecasts']} forecasts explained",
        f"additivity error {facts['additivity_max_abs']:.1e}",
    ]
    for kind in ("days", "peers"):
        if f"agreement_{kind}" in facts:
            agreement = facts[f"agreement_{kind}"]
            parts.append(f"attention over {kind} and |SHAP| agree at rank correlation {agreement:+.2f}")
    return "; ".join(parts)
