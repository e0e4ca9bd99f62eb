"""Tables of an attribution: players, an example, the peer network, and how far to trust them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from features.arrays import BoolArray, IntArray
from models.explain.design import mean_over_sample
from models.explain.network.recovery import compare_edges, edge_auc, edge_recovery
from models.explain.network.weights import PeerNetwork, attention_network, mean_network, peer_network
from models.explain.skill import SkillAttribution, mean_and_error
from pipelines.dataset.build import Dataset
from pipelines.explain.faithful_tables import Faithfulness, faithful_tables
from pipelines.explain.games import ModelExplanation

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


START = "attention before training"
_RECOVERY_SCHEMA = {
    "model": pl.String,
    "method": pl.String,
    "kind": pl.String,
    "auc": pl.Float64,
    "error": pl.Float64,
    "lift": pl.Float64,
    "lift_error": pl.Float64,
    "n_edges": pl.Int64,
    "n_pairs": pl.Int64,
}


def recovery_table(explanation: ModelExplanation, truth: pl.DataFrame, dataset: Dataset) -> pl.DataFrame:
    """Measure how well SHAP, attention and attention before training find each kind of planted edge.

    Parameters
    ----------
    explanation
        Results of the games of a model with peers.
    truth
        Planted edges: leader, follower, valid_from, valid_to, and rule, the kind.
    dataset
        Dataset of the run.

    Returns
    -------
    DataFrame
        One row per method and kind, with the fields of :class:`models.explain.network.recovery.EdgeRecovery`.
        Empty if no edge is among the compared pairs.
    """
    sessions = np.array([part.session for part in explanation.peers])
    kinds = truth["rule"].fill_null("edge").unique().sort().to_list()
    planted = {
        kind: planted_edges(truth.filter(pl.col("rule").fill_null("edge") == kind), dataset, sessions)
        for kind in kinds
    }
    methods = {
        "shap": [(part.firms_N, part.square_NN) for part in explanation.peers],
        "attention": [(part.firms_N, part.attention_NN) for part in explanation.peers],
        START: list(explanation.untrained),
    }
    found = edge_recovery(methods, planted, start=START) if planted else []
    rows = [{"model": explanation.model, **dataclasses.asdict(one)} for one in found]
    return pl.DataFrame(rows, schema=_RECOVERY_SCHEMA)


def planted_edges(truth: pl.DataFrame, dataset: Dataset, sessions: IntArray) -> BoolArray:
    """Find the planted edges, direct or over two hops, that are valid on at least half of the sessions.

    Parameters
    ----------
    truth
        leader, follower, valid_from, valid_to: edges of a simulated market.
    dataset
        Panel with dates and tickers.
    sessions
        Indices of the explained sessions.

    Returns
    -------
    ndarray of bool, shape (N, N)
        Indexed by [target, source].
    """
    column = {ticker: n for n, ticker in enumerate(dataset.panel.tickers_N)}
    dates = dataset.panel.dates_T[sessions].astype("datetime64[D]")
    valid_NN = np.zeros((dataset.panel.n_firms, dataset.panel.n_firms), dtype=np.int64)
    spells = truth.select("leader", "follower", "valid_from", "valid_to").unique()
    for leader, follower, start, end in spells.iter_rows():
        if leader in column and follower in column:
            valid = dates >= np.datetime64(start)
            if end is not None:
                valid &= dates < np.datetime64(end)
            valid_NN[column[follower], column[leader]] += int(valid.sum())
    return 2 * valid_NN >= len(sessions)


TOTAL = "rank IC"
BASE = "without any player"


def skill_table(model: str, parts: Sequence[SkillAttribution]) -> pl.DataFrame:
    """Average the values of the rank IC over the dates of all folds and seeds.

    Returns
    -------
    polars.DataFrame
        model, kind, player, ``value`` (mean over dates), ``error`` (its standard error over dates, which
        contains the Monte Carlo error; null with a single date), ``t`` (value / error) and ``dates``. The
        kinds ``base`` and ``total`` are the rank IC without any player and of the complete model; the other
        values and the base add up to the total.
    """
    players = parts[0].players
    value_DP = np.concatenate([part.values_DP for part in parts])
    base_D, skill_D = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("base_D", "skill_D")
    )
    if not len(value_DP):
        return pl.DataFrame(schema=_SKILL_SCHEMA)
    mean_X, error_X = mean_and_error(np.column_stack([value_DP, base_D, skill_D]))
    return pl.DataFrame(
        {
            "model": [model] * len(mean_X),
            "kind": [*(player.kind for player in players), "base", "total"],
            "player": [*(player.name for player in players), BASE, TOTAL],
            "value": mean_X,
            "error": pl.Series(error_X, dtype=pl.Float64).fill_nan(None),
            "dates": [len(value_DP)] * len(mean_X),
        },
        schema={name: kind for name, kind in _SKILL_SCHEMA.items() if name != "t"},
    ).with_columns(pl.when(pl.col("error") > 0).then(pl.col("value") / pl.col("error")).alias("t"))


_SKILL_SCHEMA: dict[str, type[pl.DataType]] = {
    "model": pl.String,
    "kind": pl.String,
    "player": pl.String,
    "value": pl.Float64,
    "error": pl.Float64,
    "dates": pl.Int64,
    "t": pl.Float64,
}


def describe_skill(table: pl.DataFrame) -> str:
    """Show the table, the largest values first."""
    width = max(18, *(len(name) for name in table["player"])) + 2
    lines = [f"  {'player':<{width}}{'rank IC':>10}{'error':>10}{'t':>8}"]
    inner = table.filter(~pl.col("kind").is_in(["base", "total"])).sort("value", descending=True)
    ends = table.filter(pl.col("kind").is_in(["base", "total"]))
    for row in pl.concat([inner, ends]).iter_rows(named=True):
        error = "" if row["error"] is None else f"{row['error']:.4f}"
        t = "" if row["t"] is None else f"{row['t']:+.1f}"
        lines.append(f"  {row['player']:<{width}}{row['value']:>+10.4f}{error:>10}{t:>8}")
    return "\n".join(lines)


ALL = "all"
"""The row of all groups together."""

NOISE = math.sqrt(2.0 / math.pi)
"""Mean absolute value of a standard normal variable."""


def period_table(values: pl.DataFrame) -> pl.DataFrame:
    """Average the values of a sample of forecasts.

    Parameters
    ----------
    values
        session, group (null if unknown), kind, player, value and error (Monte Carlo standard error), one row
        per forecast and player.

    Returns
    -------
    polars.DataFrame
        group (``all`` first), kind, player, ``mean_abs`` (mean absolute value) and its standard error over
        the sample ``error`` (`models.explain.design.mean_over_sample`; null with a single date), ``noise``
        (what ``mean_abs`` would be if all values were zero), ``mean`` (mean value), ``forecasts`` and
        ``dates``.
    """
    everyone = values.with_columns(pl.lit(ALL).alias("group"))
    of_groups = values.filter(pl.col("group").is_not_null()).sort("group", maintain_order=True)
    rows = []
    for (group, kind, player), part in pl.concat([everyone, of_groups]).group_by(
        "group", "kind", "player", maintain_order=True
    ):
        value_E, session_E = part["value"].to_numpy(), part["session"].to_numpy()
        mean_abs, error = mean_over_sample(np.abs(value_E), session_E)
        rows.append(
            {
                "group": group,
                "kind": kind,
                "player": player,
                "mean_abs": mean_abs,
                "error": None if math.isnan(error) else error,
                "noise": NOISE * float(part["error"].to_numpy().mean()),
                "mean": float(value_E.mean()),
                "forecasts": len(value_E),
                "dates": len(np.unique(session_E)),
            }
        )
    return pl.DataFrame(rows, schema_overrides={"error": pl.Float64})
