"""Tables of the measures of faithfulness, of the verdict, and of what attention looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import polars as pl

from features.panel.derived import market_return
from models.explain.attention import day_profile, head_traits, regimes_of
from models.explain.faithful.forecasts import ForecastMeasures
from models.explain.faithful.statistics import Estimate, rank_correlation
from models.explain.faithful.summary import (
    PEER_METHODS,
    Agreement,
    AtInference,
    agreement,
    at_inference,
    day_agreement,
    fold_stability,
    mean_curves,
    measure_methods,
    pairs_of_models,
    pairs_of_neighbours,
    peer_agreement,
    peer_stability,
    profiles,
    randomisation,
    stability,
)
from models.explain.faithful.unit_games import Over
from models.explain.faithful.verdict import Verdict, judge
from models.explain.peers import PeerAttribution
from pipelines.dataset.build import Dataset
from pipelines.explain.faithfulness import FaithfulPart

SCHEMAS: Mapping[str, Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "verdict": {
        **dict.fromkeys(("model", "over", "answer", "criterion", "question", "outcome"), pl.String),
        **dict.fromkeys(("value", "low", "high", "threshold", "fails"), pl.Float64),
        "above": pl.Boolean,
        "dates": pl.Int64,
        "margin": pl.Float64,
        "near": pl.String,
    },
    "faithfulness": {
        **dict.fromkeys(("model", "over", "method", "removal", "measure"), pl.String),
        **dict.fromkeys(("value", "low", "high", "share", "share_low", "share_high"), pl.Float64),
        "dates": pl.Int64,
    },
    "curves": {
        **dict.fromkeys(("model", "over", "method", "removal"), pl.String),
        **dict.fromkeys(("share", "deletion", "insertion", "cumulative"), pl.Float64),
    },
    "agreement": {
        **dict.fromkeys(("model", "over", "kind", "method"), pl.String),
        **dict.fromkeys(("value", "low", "high", "null", "null_low", "null_high"), pl.Float64),
        "dates": pl.Int64,
    },
    "inference": {
        **dict.fromkeys(("model", "over", "weights"), pl.String),
        **{
            name: pl.Float64
            for figure in ("ic", "lost", "moved")
            for name in (figure, f"{figure}_low", f"{figure}_high")
        },
        "dates": pl.Int64,
    },
    "heads": {
        "model": pl.String,
        "over": pl.String,
        "layer": pl.Int64,
        "head": pl.Int64,
        "trait": pl.String,
        **dict.fromkeys(("value", "low", "high", "null"), pl.Float64),
        "dates": pl.Int64,
    },
    "day_weights": {
        "model": pl.String,
        "day": pl.Int64,
        "regime": pl.String,
        **dict.fromkeys(("weight", "low", "high", "null"), pl.Float64),
        "dates": pl.Int64,
    },
    "day_map": {
        "model": pl.String,
        **dict.fromkeys(("layer", "head", "query", "key"), pl.Int64),
        "weight": pl.Float64,
    },
    "firm_map": {
        **dict.fromkeys(("model", "date", "method", "target", "source"), pl.String),
        "value": pl.Float64,
    },
}
"""Columns of the tables; stored as ``explain_<name>``."""

OVERS: tuple[Over, ...] = ("days", "peers")


@dataclass(frozen=True, slots=True, eq=False)
class Faithfulness:
    """What was measured about the attention of one model.

    Attributes
    ----------
    parts
        The measures of its folds and seeds.
    network, folds
        Shapley values of its peers on the dates of the network, and the fold of each of these dates.
    dataset
        Dataset of the run.
    seed
        Seed of the bootstraps and the nulls.
    """

    parts: Sequence[FaithfulPart]
    network: Sequence[PeerAttribution]
    folds: Sequence[int]
    dataset: Dataset
    seed: int

    def verdicts(self) -> list[Verdict]:
        """Judge attention over days and over peers, where the model has it."""
        found = (_verdict(over, self) for over in OVERS)
        return [one for one in found if one is not None]


def faithful_tables(model: str, found: Faithfulness) -> dict[str, pl.DataFrame]:
    """Build the tables of one model from the measures of its folds and seeds.

    A table without rows is left out: a model without attention has none but those of its rankings.
    """
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for over in OVERS:
        _measures(rows, over, found)
    for name, described in attention_rows(found.parts, found.dataset, found.seed).items():
        rows[name] = described
    return {
        name: pl.DataFrame([{"model": model, **row} for row in own], schema=dict(SCHEMAS[name]))
        for name, own in rows.items()
        if own
    }


def _verdict(over: Over, found: Faithfulness) -> Verdict | None:
    inference = _inference(over, found)
    if inference is None:
        return None
    measured = _measured(over, found.parts)
    return judge(over, measured, inference, _agreement(over, measured, found), found.seed)


def _measured(over: Over, parts: Iterable[FaithfulPart]) -> list[ForecastMeasures]:
    return [one for part in parts for one in (part.days if over == "days" else part.peers)]


def _inference(over: Over, found: Faithfulness) -> AtInference | None:
    every = [part.days_inference if over == "days" else part.peers_inference for part in found.parts]
    known = [one for one in every if one is not None]
    return at_inference(known, found.seed) if known else None


def _agreement(over: Over, measured: Sequence[ForecastMeasures], found: Faithfulness) -> Agreement:
    if over == "days":
        return day_agreement(measured, found.seed)
    return peer_agreement(found.network, found.seed)


def _measures(rows: dict[str, list[Row]], over: Over, found: Faithfulness) -> None:
    """Add the rows about days, or about peers, of the first five tables."""
    measured, inference = _measured(over, found.parts), _inference(over, found)
    verdict = _verdict(over, found)
    if inference is None or verdict is None:
        return
    rows["verdict"] += [
        {
            "over": over,
            "answer": verdict.answer,
            "criterion": one.name,
            "question": one.question,
            "outcome": one.outcome,
            "threshold": one.limits.passes,
            "fails": one.limits.fails,
            "above": one.limits.above,
            "margin": one.margin,
            "near": " or ".join(verdict.near) or None,
            **figures(one.estimate),
        }
        for one in verdict.criteria
    ]
    rows["inference"] += list(_inference_rows(over, inference))
    if not measured:
        return
    for one in measure_methods(measured, found.seed):
        rows["faithfulness"].append(
            {
                "over": over,
                "method": one.method,
                "removal": one.removal,
                "measure": one.measure,
                "share": one.share.value,
                "share_low": one.share.low,
                "share_high": one.share.high,
                **figures(one.value),
            }
        )
    for removal in dict.fromkeys(removal for _, removal in measured[0].curves):
        for method, curve in mean_curves(measured, removal).items():
            columns = (curve.share_S, curve.deletion_S, curve.insertion_S, curve.cumulative_S)
            rows["curves"] += [
                {
                    "over": over,
                    "method": method,
                    "removal": removal,
                    "share": share,
                    "deletion": deletion,
                    "insertion": insertion,
                    "cumulative": cumulative,
                }
                for share, deletion, insertion, cumulative in zip(*columns, strict=True)
            ]
    correlations = _agreement_rows(over, measured, found)
    rows["agreement"] += [row for row in correlations if row["dates"]]  # the others were not measured


def _agreement_rows(over: Over, measured: Sequence[ForecastMeasures], found: Faithfulness) -> Iterable[Row]:
    """Agreement with SHAP, stability, and randomisation, as rank correlations."""
    methods = [name for name in measured[0].importance if name != "shap_once"]
    of_attention = _agreement(over, measured, found)
    for method in methods[1:]:
        agreed, null = agreement(measured, method, "shap", found.seed), None
        if method == "attention":
            agreed = of_attention.found
        if method == "attention" or over == "days":
            null = of_attention.null
        yield _correlation(over, "agreement with SHAP", method, agreed, null)
    yield _correlation(over, "explainer seeds", "shap", of_attention.reliability)
    yield from _day_stability(methods, found) if over == "days" else _peer_stability(found)
    for method in methods:
        yield _correlation(over, "shuffled parameters", method, randomisation(measured, method, found.seed))


def _by_fold(parts: Sequence[FaithfulPart]) -> list[list[FaithfulPart]]:
    folds: dict[int, list[FaithfulPart]] = {}
    for part in parts:
        folds.setdefault(part.fold, []).append(part)
    return list(folds.values())


def _day_stability(methods: Sequence[str], found: Faithfulness) -> Iterable[Row]:
    by_fold = _by_fold(found.parts)
    seeds = [pair for same in by_fold for pair in pairs_of_models([part.days for part in same])]
    neighbours = [pair for part in found.parts for pair in pairs_of_neighbours(part.days)]
    for method in methods:
        yield _correlation("days", "model seeds", method, stability(seeds, method, found.seed))
        yield _correlation("days", "neighbouring days", method, stability(neighbours, method, found.seed))
        means_PP = profiles([_measured("days", same) for same in by_fold], method)
        pairs = [rank_correlation(a[None], b[None])[0] for a, b in combinations(means_PP, 2)]
        if pairs:
            mean = float(np.mean(pairs))
            yield _correlation("days", "folds", method, Estimate(mean, np.nan, np.nan, len(means_PP)))


def _peer_stability(found: Faithfulness) -> Iterable[Row]:
    seeds = [
        (one, two)
        for same in _by_fold(found.parts)
        for a, b in combinations(same, 2)
        for one in a.shared
        for two in b.shared
        if one.session == two.session
    ]
    neighbours = [pair for part in found.parts for pair in pairwise(part.shared)]
    by_fold: dict[int, list[PeerAttribution]] = {}
    for fold, date in zip(found.folds, found.network, strict=True):
        by_fold.setdefault(fold, []).append(date)
    n_firms, networks = found.dataset.panel.n_firms, list(by_fold.values())
    for method in PEER_METHODS:
        yield _correlation("peers", "model seeds", method, peer_stability(seeds, method, found.seed))
        yield _correlation(
            "peers", "neighbouring days", method, peer_stability(neighbours, method, found.seed)
        )
        yield _correlation("peers", "folds", method, fold_stability(networks, n_firms, method))


def _correlation(over: Over, kind: str, method: str, one: Estimate, null: Estimate | None = None) -> Row:
    row: dict[str, Any] = {"over": over, "kind": kind, "method": method, **figures(one)}
    if null is not None:
        row |= {"null": null.value, "null_low": null.low, "null_high": null.high}
    return row


def _inference_rows(over: Over, found: AtInference) -> Iterable[Row]:
    interventions = (
        ("as trained", found.ic, None, None),
        ("uniform", found.ic_uniform, found.lost_uniform, found.used_uniform),
        ("permuted", found.ic_permuted, found.lost_permuted, found.used_permuted),
    )
    for weights, ic, lost, moved in interventions:
        row: dict[str, Any] = {"over": over, "weights": weights, "dates": ic.dates}
        for name, figure in (("ic", ic), ("lost", lost), ("moved", moved)):
            if figure is not None:
                row |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        yield row


_VOLATILITY_DAYS = 21
_MAX_CELLS = 20_000  # of a stored map of days

Row = Mapping[str, Any]


def attention_rows(parts: Sequence[FaithfulPart], dataset: Dataset, seed: int) -> dict[str, list[Row]]:
    """Rows of the tables ``heads``, ``day_weights``, ``day_map`` and ``firm_map``; a seed for all draws."""
    return {
        "heads": list(_heads(parts, seed)),
        "day_weights": list(_day_weights(parts, dataset, seed)),
        "day_map": list(_day_map(parts)),
        "firm_map": list(_firm_map(parts, dataset)),
    }


def figures(estimate: Estimate) -> dict[str, float | int]:
    """The columns of an estimate."""
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "dates": estimate.dates,
    }


def _heads(parts: Sequence[FaithfulPart], seed: int) -> Iterable[Row]:
    for one in head_traits((date for part in parts for date in part.dates), seed):
        yield {
            "over": one.over,
            "layer": one.layer,
            "head": one.head,
            "trait": one.trait,
            "null": one.null,
            **figures(one.estimate),
        }


def _day_weights(parts: Sequence[FaithfulPart], dataset: Dataset, seed: int) -> Iterable[Row]:
    """Weight of each past day, by the volatility of the market over the 21 sessions up to that day."""
    known = [part for part in parts if part.day_weights_EW is not None and part.day_sessions_E is not None]
    if not known:
        return
    weights_EW = np.concatenate([part.day_weights_EW for part in known if part.day_weights_EW is not None])
    session_E = np.concatenate([part.day_sessions_E for part in known if part.day_sessions_E is not None])
    market = pl.Series(market_return(dataset.panel)[:, 0]).fill_nan(None)
    volatility_T = market.rolling_std(_VOLATILITY_DAYS).fill_null(np.nan).to_numpy().copy()
    window = weights_EW.shape[1]
    explained_T = np.zeros(len(volatility_T), dtype=np.bool_)
    for day in range(window):
        explained_T[np.maximum(np.unique(session_E) - day, 0)] = True
    volatility_T[~explained_T] = np.nan
    for one in day_profile(weights_EW, session_E, regimes_of(volatility_T), seed):
        yield {
            "day": one.day,
            "regime": one.regime,
            "weight": one.estimate.value,
            "low": one.estimate.low,
            "high": one.estimate.high,
            "null": 1.0 / window,
            "dates": one.estimate.dates,
        }


def _day_map(parts: Sequence[FaithfulPart]) -> Iterable[Row]:
    """Mean weights of every layer and head of the day encoder; the last may have one query, the pooled."""
    records = [date.record for part in parts for date in part.dates if date.record.days]
    if not records:
        return
    layers = range(len(records[0].days))
    mean = [
        np.mean([record.days[layer].mean(dim=0).double().cpu().numpy() for record in records], axis=0)
        for layer in layers
    ]
    if sum(layer_HQK.size for layer_HQK in mean) > _MAX_CELLS:
        mean = [layer_HQK.mean(axis=0, keepdims=True) for layer_HQK in mean]
    window = records[0].window
    for layer, layer_HQK in enumerate(mean):
        heads, queries, keys = layer_HQK.shape
        for head in range(heads):
            for query in range(queries):
                for key in range(min(keys, window)):
                    yield {
                        "layer": layer + 1,
                        "head": head + 1 if heads > 1 else 0,
                        "query": queries - query,  # 1 is the newest state
                        "key": window - key,
                        "weight": float(layer_HQK[head, query, key]),
                    }


def _firm_map(parts: Sequence[FaithfulPart], dataset: Dataset) -> Iterable[Row]:
    shown = next((part.firms for part in reversed(parts) if part.firms is not None), None)
    if shown is None:
        return
    date = str(dataset.panel.dates_T[shown.session].astype("datetime64[D]"))
    tickers = [dataset.panel.tickers_N[firm] for firm in shown.firms_n]
    for method, matrix_nn in shown.values.items():
        for i, target in enumerate(tickers):
            for j, source in enumerate(tickers):
                if i != j and np.isfinite(matrix_nn[i, j]):
                    yield {
                        "date": date,
                        "method": method,
                        "target": target,
                        "source": source,
                        "value": float(matrix_nn[i, j]),
                    }
