"""Tables of the measures of faithfulness, of the verdict, and of what attention looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from models.explain.faithful.forecasts import ForecastMeasures
from models.explain.faithful.statistics import Estimate, rank_correlation
from models.explain.faithful.summary import (
    Agreement,
    AtInference,
    agreement,
    at_inference,
    between_models,
    day_agreement,
    mean_curves,
    measure_methods,
    pairs_of_models,
    pairs_of_neighbours,
    peer_agreement,
    profiles,
    randomisation,
    stability,
)
from models.explain.faithful.unit_games import Over
from models.explain.faithful.verdict import Verdict, judge
from models.explain.peers import PeerAttribution
from pipelines.dataset.build import Dataset
from pipelines.explain.attention_tables import Row, attention_rows, figures
from pipelines.explain.faithfulness import FaithfulPart

SCHEMAS: Mapping[str, Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "verdict": {
        **dict.fromkeys(("model", "over", "answer", "criterion", "question", "outcome"), pl.String),
        **dict.fromkeys(("value", "low", "high", "threshold", "fails"), pl.Float64),
        "above": pl.Boolean,
        "dates": pl.Int64,
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


def faithful_tables(
    model: str, parts: Sequence[FaithfulPart], network: Sequence[PeerAttribution], dataset: Dataset
) -> dict[str, pl.DataFrame]:
    """Build the tables of one model from the measures of its folds and seeds.

    A table without rows is left out: a model without attention has none but those of its rankings.
    """
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for over in OVERS:
        _measures(rows, model, over, parts, network)
    for name, described in attention_rows(parts, dataset).items():
        rows[name] = described
    return {
        name: pl.DataFrame([{"model": model, **row} for row in own], schema=dict(SCHEMAS[name]))
        for name, own in rows.items()
        if own
    }


def verdicts(parts: Sequence[FaithfulPart], network: Sequence[PeerAttribution]) -> list[Verdict]:
    """Judge attention over days and over peers, where the model has it."""
    found = (_verdict(over, parts, network) for over in OVERS)
    return [one for one in found if one is not None]


def _verdict(over: Over, parts: Sequence[FaithfulPart], network: Sequence[PeerAttribution]) -> Verdict | None:
    inference = _inference(over, parts)
    if inference is None:
        return None
    measured = _measured(over, parts)
    return judge(over, measured, inference, _agreement(over, measured, network))


def _measured(over: Over, parts: Iterable[FaithfulPart]) -> list[ForecastMeasures]:
    return [one for part in parts for one in (part.days if over == "days" else part.peers)]


def _inference(over: Over, parts: Iterable[FaithfulPart]) -> AtInference | None:
    every = [part.days_inference if over == "days" else part.peers_inference for part in parts]
    known = [one for one in every if one is not None]
    return at_inference(known) if known else None


def _agreement(
    over: Over, measured: Sequence[ForecastMeasures], network: Sequence[PeerAttribution]
) -> Agreement:
    return day_agreement(measured) if over == "days" else peer_agreement(network)


def _measures(
    rows: dict[str, list[Row]],
    model: str,
    over: Over,
    parts: Sequence[FaithfulPart],
    network: Sequence[PeerAttribution],
) -> None:
    """Add the rows about days, or about peers, of the first five tables."""
    measured, inference = _measured(over, parts), _inference(over, parts)
    verdict = _verdict(over, parts, network)
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
            **figures(one.estimate),
        }
        for one in verdict.criteria
    ]
    rows["inference"] += list(_inference_rows(over, inference))
    if not measured:
        return
    for found in measure_methods(measured):
        rows["faithfulness"].append(
            {
                "over": over,
                "method": found.method,
                "removal": found.removal,
                "measure": found.measure,
                "share": found.share.value,
                "share_low": found.share.low,
                "share_high": found.share.high,
                **figures(found.value),
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
    correlations = _agreement_rows(over, parts, measured, network)
    rows["agreement"] += [row for row in correlations if row["dates"]]  # the others were not measured


def _agreement_rows(
    over: Over,
    parts: Sequence[FaithfulPart],
    measured: Sequence[ForecastMeasures],
    network: Sequence[PeerAttribution],
) -> Iterable[Row]:
    """Agreement with SHAP, stability, and randomisation, as rank correlations."""
    methods = [name for name in measured[0].importance if name != "shap_once"]
    of_attention = _agreement(over, measured, network)
    for method in methods[1:]:
        found, null = agreement(measured, method, "shap"), None
        if method == "attention":
            found = of_attention.found
        if method == "attention" or over == "days":
            null = of_attention.null
        yield _correlation(over, "agreement with SHAP", method, found, null)
    yield _correlation(over, "explainer seeds", "shap", of_attention.reliability)
    by_fold: dict[int, list[FaithfulPart]] = {}
    for part in parts:
        by_fold.setdefault(part.fold, []).append(part)
    seeds = [
        pair
        for same in by_fold.values()
        for pair in pairs_of_models([_measured(over, [part]) for part in same])
    ]
    neighbours = [pair for part in parts for pair in pairs_of_neighbours(_measured(over, [part]))]
    if over == "peers":
        for method, matrices in (
            ("shap", [(part.session, part.phi_NN) for part in network]),
            ("attention", [(part.session, part.attention_NN) for part in network]),
        ):
            yield _correlation(over, "model seeds", method, between_models(matrices))
    for method in methods:
        if over == "days":
            yield _correlation(over, "model seeds", method, stability(seeds, method))
        yield _correlation(over, "neighbouring days", method, stability(neighbours, method))
        if over == "days":
            means_PP = profiles([_measured(over, same) for same in by_fold.values()], method)
            pairs = [rank_correlation(a[None], b[None])[0] for a, b in combinations(means_PP, 2)]
            if pairs:
                mean = float(np.mean(pairs))
                yield _correlation(over, "folds", method, Estimate(mean, np.nan, np.nan, len(means_PP)))
        yield _correlation(over, "shuffled parameters", method, randomisation(measured, method))


def _correlation(over: Over, kind: str, method: str, found: Estimate, null: Estimate | None = None) -> Row:
    row: dict[str, Any] = {"over": over, "kind": kind, "method": method, **figures(found)}
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
