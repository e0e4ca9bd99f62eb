"""Tables of an attribution: players, an example, the peer network, and how far to trust them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from features.arrays import BoolArray
from models.explain.network.recovery import compare_edges, edge_auc
from models.explain.network.weights import PeerNetwork, attention_network, mean_network, peer_network
from pipelines.dataset.build import Dataset
from pipelines.explain.faithful_tables import Faithfulness, faithful_tables
from pipelines.explain.fold import ModelExplanation
from pipelines.explain.period import period_table
from pipelines.explain.skill import skill_table

_ROC_POINTS = 200


def explanation_tables(
    explanation: ModelExplanation,
    dataset: Dataset,
    planted_NN: BoolArray | None,
    seed: int = 0,
) -> dict[str, pl.DataFrame]:
    """Build the tables that a report shows of one model's attribution.

    Parameters
    ----------
    explanation
        Results of the model's games.
    dataset
        Dataset of the run.
    planted_NN
        Planted edges of a simulated market; None on real data, and for a model without peers.
    seed
        Seed of the bootstraps and the nulls.

    Returns
    -------
    dict
        ``players`` (mean absolute Shapley value of each player over the test, and the mean Monte Carlo
        standard error of its values), ``period`` (the same by group, with standard errors of the sample),
        ``skill`` (the rank IC by player), ``example`` (the explained forecast that its players moved most)
        and ``facts`` (JSON). A model with peers also has ``roc`` on a simulated market (recovery of the
        planted edges).
    """
    tables = {
        "players": _players(explanation),
        "period": period_table(_values(explanation, dataset)).insert_column(
            0, pl.lit(explanation.model).alias("model")
        ),
        "example": _example(explanation, dataset),
    }
    if explanation.skill:
        tables["skill"] = skill_table(explanation.model, explanation.skill)
    facts: dict[str, Any] = _facts(explanation)
    if planted_NN is not None:
        network = peer_network(explanation.peers, dataset.panel.n_firms)
        recovery = _recovery(explanation, network, planted_NN, seed)
        facts |= recovery.facts
        tables["roc"] = recovery.roc
    tables |= faithful_tables(explanation.model, _faithfulness(explanation, dataset, seed))
    tables["facts"] = pl.DataFrame({"model": explanation.model, "facts": json.dumps(facts)})
    return tables


def _facts(explanation: ModelExplanation) -> dict[str, Any]:
    """Additivity error and Monte Carlo error."""
    sizes = np.array([len(part.firms_E) for part in explanation.groups], dtype=np.float64)
    qualities = [part.quality for part in explanation.groups]
    moved = np.concatenate([np.abs(part.forecast_E - part.base_E) for part in explanation.groups]).mean()
    additivity = max(quality.additivity_max for quality in qualities)
    facts: dict[str, Any] = {
        "engine": explanation.groups[0].engine,
        "removal": explanation.groups[0].removal,
        "absent_days": explanation.groups[0].absent_days,
        "n_forecasts": int(sizes.sum()),
        "additivity_max_abs": additivity,
        "additivity_relative": float(additivity / moved) if moved > 0 else 0.0,
        "monte_carlo_error": float(np.average([q.monte_carlo_mean for q in qualities], weights=sizes)),
    }
    return facts


def _players(explanation: ModelExplanation) -> pl.DataFrame:
    players = explanation.groups[0].players
    mean_abs_P = np.abs(np.concatenate([part.values_EP for part in explanation.groups])).mean(axis=0)
    # forecasts of a date share their coalitions, so their errors do not average out: the mean is the bound
    error_P = np.concatenate([part.error_EP for part in explanation.groups]).mean(axis=0)
    kinds = {"days": "days", "family": "features", "peers": "peers"}
    return pl.DataFrame(
        {
            "model": [explanation.model] * len(players),
            "kind": [kinds[player.kind] for player in players],
            "player": [player.name for player in players],
            "mean_abs_shap": mean_abs_P,
            "error": error_P,
        }
    )


def _values(explanation: ModelExplanation, dataset: Dataset) -> pl.DataFrame:
    """Values of the sampled forecasts: session, group, kind, player, value, error."""
    groups = np.array([*dataset.panel.groups_S, None], dtype=object)
    frames = []
    for part in explanation.groups:
        of_forecast = {
            "session": part.sessions_E,
            "group": pl.Series(
                groups[dataset.panel.group_TN[part.sessions_E, part.firms_E]], dtype=pl.String
            ),
        }
        frames += [
            pl.DataFrame(of_forecast).with_columns(
                pl.lit(player.kind).alias("kind"),
                pl.lit(player.name).alias("player"),
                pl.Series("value", part.values_EP[:, p]),
                pl.Series("error", part.error_EP[:, p]),
            )
            for p, player in enumerate(part.players)
        ]
    return pl.concat(frames)


def _example(explanation: ModelExplanation, dataset: Dataset) -> pl.DataFrame:
    """The explained forecast that its players moved most, with the value of each player."""
    part = max(explanation.groups, key=lambda one: float(np.abs(one.forecast_E - one.base_E).max()))
    e = int(np.argmax(np.abs(part.forecast_E - part.base_E)))
    return pl.DataFrame(
        {
            "model": [explanation.model] * len(part.players),
            "date": [str(dataset.panel.dates_T[part.sessions_E[e]].astype("datetime64[D]"))]
            * len(part.players),
            "ticker": [dataset.panel.tickers_N[part.firms_E[e]]] * len(part.players),
            "base_value": [float(part.base_E[e])] * len(part.players),
            "forecast": [float(part.forecast_E[e])] * len(part.players),
            "player": [player.name for player in part.players],
            "value": part.values_EP[e],
            "error": part.error_EP[e],
        }
    )


@dataclass(frozen=True, slots=True)
class _Recovery:
    """How well the network recovers the planted edges: areas under the ROC curves, and the curves."""

    facts: Mapping[str, float | int]
    roc: pl.DataFrame


def _recovery(
    explanation: ModelExplanation, network: PeerNetwork, planted_NN: BoolArray, seed: int
) -> _Recovery:
    """Compare the network, attention and initial attention with the planted edges."""
    attention = attention_network(explanation.peers, len(planted_NN))
    all_pairs_NN = np.ones_like(planted_NN)
    comparison = compare_edges(network, attention, planted_NN, all_pairs_NN, seed=seed)
    initial = mean_network(explanation.untrained, len(planted_NN))
    by_initial = edge_auc(initial.weight_NN, planted_NN, network.observed & attention.observed)
    curves = []
    for method, roc in (("shap", comparison.shap), ("attention", comparison.attention)):
        step = max(1, len(roc.false_positive_rate_K) // _ROC_POINTS)
        keep = np.unique(
            np.append(np.arange(0, len(roc.false_positive_rate_K), step), len(roc.false_positive_rate_K) - 1)
        )
        curves.append(
            pl.DataFrame(
                {
                    "model": [explanation.model] * len(keep),
                    "method": [method] * len(keep),
                    "fpr": roc.false_positive_rate_K[keep],
                    "tpr": roc.true_positive_rate_K[keep],
                }
            )
        )
    facts = {
        "auc_shap": comparison.shap.auc,
        "auc_attention": comparison.attention.auc,
        "auc_untrained": by_initial.auc,
        "auc_random": comparison.random_mean,
        "n_planted": comparison.shap.n_edges,
        "n_pairs": comparison.shap.n_pairs,
    }
    return _Recovery(facts, pl.concat(curves))


def _faithfulness(explanation: ModelExplanation, dataset: Dataset, seed: int) -> Faithfulness:
    folds = [fold for fold, _ in explanation.fits]
    return Faithfulness(explanation.faithfulness, explanation.peers, folds, dataset, seed)


def summary_line(explanation: ModelExplanation, dataset: Dataset, seed: int = 0) -> str:
    """Summarise the attribution of one model in one line."""
    facts = _facts(explanation)
    parts = [
        f"{explanation.model}: {facts['n_forecasts']} forecasts explained",
        f"additivity error {facts['additivity_max_abs']:.1e}",
    ]
    parts += [one.sentence for one in _faithfulness(explanation, dataset, seed).verdicts()]
    return "; ".join(parts)
