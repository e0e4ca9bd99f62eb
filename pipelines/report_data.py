"""Filling a report: a run's tables become what :mod:`pipelines.report` draws."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from pipelines.config import Config
from pipelines.config_load import settings_of, to_yaml
from pipelines.dataset import Dataset, plan_folds
from pipelines.device import pick_device
from pipelines.lake import Lake
from pipelines.report.data import (
    ExampleForecast,
    ModelAttribution,
    ReportData,
    RunHeader,
    SimulatedTruth,
)
from pipelines.report.verdict import BASELINES
from pipelines.risk_free import describe_rate
from pipelines.runs import Run, git_commit
from pipelines.tracking import library_versions
from pipelines.trials import trial_count
from pipelines.variants import registry_name
from pipelines.walkforward import read_curves, read_scores

_TOP_EDGES = 15


def report_data(run: Run, dataset: Dataset, lake: Lake, seconds: Mapping[str, float]) -> ReportData:
    """Collect a run's results; stages that were not run are None."""
    ladder = run.read_table("ladder")
    assert ladder is not None, "a report is written after the backtest"
    config = run.config
    book = next(iter(config.backtest.books))
    main = pl.col("delay") == config.label.delay
    equity, costs = run.read_table("equity"), run.read_table("costs")
    ic_series, quantiles = run.read_table("ic_series"), run.read_table("quantiles")
    curves = read_curves(run)
    return ReportData(
        header=_header(run, dataset, lake, seconds, book),
        ladder=_ladder(ladder, book, {name: registry_name(config, name) for name in config.models}),
        folds=fold_table(run, dataset),
        equity=None if equity is None else equity.filter(main),
        ic_series=None if ic_series is None else ic_series.filter(main),
        quantiles=None if quantiles is None else quantiles.filter(main),
        cost_assumptions=_assumptions(config),
        cost_breakdown=None if costs is None else costs.filter(main).rename({"half_spread": "spread"}),
        learning=curves if curves.height else None,
        truth=_truth(run, ladder),
        horizons=run.read_table("horizons"),
        quantile_scores=run.read_table("quantile_scores"),
        label_shares=run.read_table("label_shares"),
        endings=run.read_table("endings"),
        attribution=tuple(_attribution(run)),
    )


def fold_table(run: Run, dataset: Dataset) -> pl.DataFrame:
    """One row a fold: first and last session and number of sessions of each segment."""
    rows = []
    for fold in plan_folds(dataset, run.config):
        row: dict[str, Any] = {"fold": fold.index}
        for name in ("train", "valid", "test"):
            sessions = getattr(fold, name)
            dates = dataset.panel.dates_T[sessions].astype("datetime64[D]")
            row |= {
                f"{name}_from": dates[0].item(),
                f"{name}_to": dates[-1].item(),
                f"n_{name}": len(sessions),
            }
        rows.append(row)
    return pl.DataFrame(rows)


def hazards_of(run: Run, dataset: Dataset, lake: Lake) -> tuple[list[str], list[str]]:
    """Hazards and notes of a run: what the source said, what the panel assumed, what the label allows."""
    hazards: list[str] = []
    notes: list[str] = []
    if lake.exists("sources"):
        for row in lake.read("sources").iter_rows(named=True):
            hazards += json.loads(row["hazards"])
            notes += json.loads(row["notes"])
    hazards += [*_flagged(lake), *dataset.panel.hazards]
    if run.config.label.delay == 0:
        longer = "; see the table of a longer delay" if run.config.label.also_delays else ""
        hazards.append(
            "Delay 0: the label starts at the very close that the forecast is made from, at which nobody can "
            f"trade. Read it as a forecast, not as a strategy{longer}."
        )
    return hazards, [*notes, *dataset.notes, *_refitted(run.config)]


def _refitted(config: Config) -> list[str]:
    """Name the models whose forecasts come from a second fit; nothing where there are none."""
    names = [model for model in config.models if settings_of(config, model)[1]["refit"]]
    if not names:
        return []
    who = "All models" if len(names) == len(config.models) else ", ".join(names)
    return [
        f"{who}: fitted anew on training and validation sessions before forecasting the test; "
        "validation scores are those of the fit before."
    ]


def _flagged(lake: Lake) -> list[str]:
    """What the quality rules doubt and keep, in one sentence; none if they doubt nothing."""
    flags = lake.read("flags", filters=~pl.col("cleared")) if lake.exists("flags") else None
    if flags is None or flags.is_empty():
        return []
    by_rule = flags.group_by("rule").len().sort("len", "rule", descending=[True, False])
    counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
    return [
        f"{flags.height:,} flag(s) of the quality rules on rows that are kept and used: {counts}; "
        "'peerglass quarantine list CONFIG' shows them."
    ]


def _header(run: Run, dataset: Dataset, lake: Lake, seconds: Mapping[str, float], book: str) -> RunHeader:
    config = run.config
    hazards, notes = hazards_of(run, dataset, lake)
    tested = np.concatenate([fold.test for fold in plan_folds(dataset, config)])
    versions = [
        {"table": table, "version": version, "rows": lake.read(table, version=version).height}
        for table, version in run.versions.items()
    ]
    rule = config.universe.model_dump(exclude_none=True)
    return RunHeader(
        run_id=run.run_id,
        name=config.name,
        created_at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        git_commit=git_commit(),
        config_yaml=to_yaml(config),
        config_hash=run.run_id.rpartition("-")[2],
        device=pick_device(config.device),
        libraries=library_versions(),
        data_versions=pl.DataFrame(versions),
        trial_count=trial_count(run.folder.parent),
        seeds=config.seeds,
        label_delay=config.label.delay,
        label_horizon=config.label.horizon,
        label_transform=config.label.transform,
        universe=", ".join(
            f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
            for key, value in rule.items()
        ),
        mean_firms_per_date=float(dataset.universe_TN[tested].sum(axis=1).mean()),
        main_book=book,
        stage_seconds=dict(seconds),
        sharpe_rate=describe_rate(config.backtest.risk_free),
        hazards=tuple(hazards),
        notes=tuple(notes),
        audit=run.read_table("audit"),
    )


def _ladder(ladder: pl.DataFrame, book: str, registered: Mapping[str, str]) -> pl.DataFrame:
    """The report's ladder: the main book's columns under plain names, and who beats whom net of costs.

    A baseline with variants is beaten by what beats the best of them, and its variants are not compared.
    """
    names = ("sharpe_gross", "sharpe_net", "turnover", "annual_return_net", "max_drawdown_net")
    frame = ladder.with_columns(
        *(pl.col(f"{book}.{name}").fill_nan(None).alias(name) for name in names),
        share_of_truth=(pl.col("rank_ic") / pl.col("truth_rank_ic")).cast(pl.Float64),
        baseline=pl.col("model").replace_strict(
            {name: model if model in BASELINES else None for name, model in registered.items()},
            return_dtype=pl.String,
        ),
    )
    for rival in BASELINES:
        own = pl.col("baseline") == rival
        theirs = frame.filter(own).group_by("delay").agg(pl.col("sharpe_net").max().alias("_rival"))
        frame = frame.join(theirs, on="delay", how="left", maintain_order="left").with_columns(
            pl.when(own.fill_null(value=False).not_())
            .then(pl.col("sharpe_net") > pl.col("_rival"))
            .alias(f"beats_{rival}")
        )
        frame = frame.drop("_rival")
    return frame


def _assumptions(config: Config) -> pl.DataFrame:
    costs, label = config.backtest.costs, config.label
    delay = config.backtest.delay if config.backtest.delay is not None else label.delay
    rows = [
        ("half-spread", costs.half_spread_bps, "bps of traded notional"),
        ("commission", costs.commission_bps, "bps of traded notional"),
        ("borrow on shorts", costs.borrow_bps_per_year, "bps a year of short value"),
        ("execution delay", float(delay), "sessions after the decision, at the close"),
        *_risk_free(config.backtest.risk_free),
    ]
    return pl.DataFrame(rows, schema=["assumption", "value", "unit"], orient="row")


def _risk_free(setting: float | str) -> list[tuple[str, float | None, str]]:
    """The rate that Sharpe ratios are over, as a row of the assumptions."""
    if isinstance(setting, str):
        return [("risk-free rate", None, f"a year: {describe_rate(setting)}")]
    return [("risk-free rate", 100 * setting, "per cent a year, on net exposure")]


def _truth(run: Run, ladder: pl.DataFrame) -> SimulatedTruth | None:
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
        roc=None if roc is None else roc.filter(pl.col("model") == model),
        top_edges=None
        if edges is None
        else edges.filter(pl.col("model") == model).sort("weight", descending=True).head(_TOP_EDGES),
        n_planted=fact["n_planted"],
        n_pairs=fact["n_pairs"],
    )


def _best_by_validation(run: Run, models: list[str]) -> str:
    scores = read_scores(run).group_by("model").agg(pl.col("valid_rank_ic").mean())
    score = dict(scores.select("model", "valid_rank_ic").iter_rows())
    return max(models, key=lambda model: score.get(model, float("-inf")))


def _facts(run: Run) -> dict[str, dict[str, Any]]:
    table = run.read_table("explain_facts")
    return {} if table is None else {model: json.loads(facts) for model, facts in table.iter_rows()}


def _attribution(run: Run) -> list[ModelAttribution]:
    players, examples = run.read_table("explain_players"), run.read_table("explain_example")
    edges = run.read_table("explain_edges")
    if players is None or examples is None:
        return []
    result = []
    for model, fact in _facts(run).items():
        own = pl.col("model") == model
        example = examples.filter(own)
        first = example.row(0, named=True)
        agreement = [
            {"kind": kind, "rank_correlation": fact[f"agreement_{kind}"]}
            for kind in ("days", "peers")
            if f"agreement_{kind}" in fact
        ]
        own_edges = None if edges is None else edges.filter(own)
        result.append(
            ModelAttribution(
                model=model,
                n_forecasts=fact["n_forecasts"],
                players=players.filter(own),
                additivity_max_abs=fact["additivity_max_abs"],
                additivity_relative=fact["additivity_relative"],
                monte_carlo_error=fact["monte_carlo_error"],
                agreement=pl.DataFrame(agreement) if agreement else None,
                example=ExampleForecast(
                    date=first["date"],
                    ticker=first["ticker"],
                    base_value=first["base_value"],
                    forecast=first["forecast"],
                    contributions=example.select("player", "value"),
                ),
                edges=own_edges if own_edges is not None and own_edges.height else None,
                homophily=fact.get("homophily"),
                homophily_by_chance=fact.get("homophily_by_chance"),
            )
        )
    return result
