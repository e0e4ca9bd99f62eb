"""Collects the attribution of a run and its comparison with the truth of a simulated market."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from pipelines.explain.tables import START
from pipelines.explain.unit import unit_of_run
from pipelines.pages.contents.attribution import ExampleForecast, ModelAttribution
from pipelines.pages.contents.faithfulness import ModelFaithfulness
from pipelines.pages.contents.truth import SimulatedTruth
from pipelines.run.record import Run
from pipelines.run.scores import read_scores

_TOP_EDGES = 15


def simulated_truth(run: Run, ladder: pl.DataFrame) -> SimulatedTruth | None:
    """Collect the ceiling of the IC and the recovery of planted edges; None on real data."""
    known = ladder.filter(pl.col("truth_ic").is_not_null())
    if known.is_empty():
        return None
    ceiling = known.group_by("delay", maintain_order=True).first()
    ceiling = ceiling.select(
        "delay", pl.col("truth_ic").alias("ic"), pl.col("truth_rank_ic").alias("rank_ic")
    )
    facts = {model: fact for model, fact in _facts(run).items() if "auc_shap" in fact}
    if not facts:
        return SimulatedTruth(ceiling=ceiling)
    model = _best_by_validation(run, list(facts))
    fact = facts[model]
    roc, edges = run.read_table("explain_roc"), run.read_table("explain_edges")
    return SimulatedTruth(
        ceiling=ceiling,
        edge_model=model,
        edge_auc=pl.DataFrame(
            {
                "method": ["shap", "attention", "attention before training", "random"],
                "auc": [fact[f"auc_{by}"] for by in ("shap", "attention", "untrained", "random")],
            }
        ),
        recovery=_recovery(run, model),
        roc=None if roc is None else roc.filter(pl.col("model") == model),
        top_edges=None
        if edges is None
        else edges.filter(pl.col("model") == model).sort("weight", descending=True).head(_TOP_EDGES),
        n_planted=fact["n_planted"],
        n_pairs=fact["n_pairs"],
    )


def _skill(run: Run, model: str) -> pl.DataFrame | None:
    """None if the run has no such table, or too few dates for an error."""
    stored = run.read_table("explain_skill")
    own = None if stored is None else stored.filter(pl.col("model") == model)
    return None if own is None or own["error"].drop_nulls().is_empty() else own


def _recovery(run: Run, model: str) -> pl.DataFrame | None:
    """One row per kind of edge; None if a run was explained before kinds were told apart."""
    stored = run.read_table("explain_recovery")
    if stored is None:
        return None
    own = stored.filter(pl.col("model") == model)
    by = {method: own.filter(pl.col("method") == method) for method in own["method"].unique()}
    if "shap" not in by:
        return None
    auc = pl.col("auc")
    return (
        by["shap"]
        .select("kind", "n_edges", auc.alias("shap"), "error", "lift", "lift_error")
        .join(by["attention"].select("kind", auc.alias("attention")), on="kind", maintain_order="left")
        .join(by[START].select("kind", auc.alias("start")), on="kind", maintain_order="left")
    )


def _best_by_validation(run: Run, models: list[str]) -> str:
    scores = read_scores(run).group_by("model").agg(pl.col("valid_rank_ic").mean())
    score = dict(scores.select("model", "valid_rank_ic").iter_rows())
    return max(models, key=lambda model: score.get(model, float("-inf")))


def _facts(run: Run) -> dict[str, dict[str, Any]]:
    table = run.read_table("explain_facts")
    return {} if table is None else {model: json.loads(facts) for model, facts in table.iter_rows()}


def _faithfulness(run: Run, model: str) -> ModelFaithfulness | None:
    """The verdict on a model's attention and the tables behind it.

    None without attention, or if the run was explained before criteria had a margin.
    """

    def own(name: str) -> pl.DataFrame | None:
        frame = run.read_table(f"explain_{name}")
        rows = None if frame is None else frame.filter(pl.col("model") == model).drop("model")
        return None if rows is None or rows.is_empty() else rows

    verdict = own("verdict")
    if verdict is None or "margin" not in verdict.columns:
        return None
    return ModelFaithfulness(
        verdict=verdict,
        curves=own("curves"),
        agreement=own("agreement"),
        inference=own("inference"),
        heads=own("heads"),
        day_weights=own("day_weights"),
        day_map=own("day_map"),
        firm_map=own("firm_map"),
    )


def attributions(run: Run) -> list[ModelAttribution]:
    """Collect the Shapley values of every explained model; empty if none was explained."""
    players, examples = run.read_table("explain_players"), run.read_table("explain_example")
    networks = {name: run.read_table(f"explain_{name}") for name in ("edges", "network", "evidence")}
    if networks["network"] is None:  # a network of an earlier version has neither errors nor tests
        networks = dict.fromkeys(networks)
    if players is None or examples is None:
        return []
    # tables that were stored without Monte Carlo errors: nothing is drawn without its error
    players, examples = (
        frame if "error" in frame.columns else frame.with_columns(error=pl.lit(None, dtype=pl.Float64))
        for frame in (players, examples)
    )
    result = []
    for model, fact in _facts(run).items():
        own, unit = pl.col("model") == model, unit_of_run(run, model)
        example = examples.filter(own).with_columns(
            pl.col("base_value", "forecast", "value", "error") * unit.factor
        )
        first = example.row(0, named=True)
        of_model = {
            name: None if frame is None or frame.filter(own).is_empty() else frame.filter(own)
            for name, frame in networks.items()
        }
        if of_model["edges"] is not None:
            of_model["edges"] = of_model["edges"].with_columns(pl.col("weight", "error") * unit.factor)
        result.append(
            ModelAttribution(
                model=model,
                unit=f"{unit.name} of return" if unit.name else "unit of the forecast",
                unit_sentence=unit.sentence,
                n_forecasts=fact["n_forecasts"],
                players=players.filter(own).with_columns(pl.col("mean_abs_shap", "error") * unit.factor),
                additivity_max_abs=unit.factor * fact["additivity_max_abs"],
                additivity_relative=fact["additivity_relative"],
                monte_carlo_error=unit.factor * fact["monte_carlo_error"],
                removal=fact.get("removal"),
                absent_days=fact.get("absent_days"),
                skill=_skill(run, model),
                faithfulness=_faithfulness(run, model),
                example=ExampleForecast(
                    date=first["date"],
                    ticker=first["ticker"],
                    base_value=first["base_value"],
                    forecast=first["forecast"],
                    contributions=example.select("player", "value", "error"),
                ),
                **of_model,
            )
        )
    return result
