"""Collects the results of a run into :class:`.contents.report.ReportData`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from pipelines.config.load import to_yaml
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.config.sections import ExplainConfig
from pipelines.dataset.folds import fold_table, plan_folds
from pipelines.dataset.market import Market
from pipelines.dataset.risk_free import describe_rate
from pipelines.lake.lake import Lake
from pipelines.pages.assumptions import assumptions
from pipelines.pages.contents.analysis import BookTables, SignalTables, TrialTables
from pipelines.pages.contents.header import SESSION_SCHEMA, RunHeader
from pipelines.pages.contents.report import ReportData
from pipelines.pages.explained import attributions, simulated_truth
from pipelines.pages.ladder import report_ladder
from pipelines.results.comparisons import tradable_delay
from pipelines.results.describe import describe_flagged
from pipelines.run.evaluations import Evaluated, StoredEvaluation, list_evaluations
from pipelines.run.provenance import (
    AuditMade,
    EvaluationMade,
    Event,
    ExplanationMade,
    TrainingEnded,
    TrainingStarted,
    read_provenance,
    sessions,
)
from pipelines.run.record import Run
from pipelines.run.scores import read_curves


def report_data(run: Run, evaluation: StoredEvaluation, dataset: Market, lake: Lake) -> ReportData:
    """Collect a run's results and one of its evaluations; stages that were not run are None.

    Everything is read from records written when a stage ran, so building the report again gives the same
    report.
    """
    events = read_provenance(run)
    config = _config(run, evaluation, events)
    header = _header(run, config, evaluation=evaluation, events=events, dataset=dataset, lake=lake)
    return replace(
        measured_data(
            evaluation, config, header, {name: registry_name(config, name) for name in config.models}
        ),
        folds=fold_table(dataset, plan_folds(dataset, config)),
        learning=_trained_by_epochs(read_curves(run), config),
        truth=simulated_truth(run, evaluation.table("ladder")),
        attribution=tuple(attributions(run)),
    )


def measured_data(
    evaluation: StoredEvaluation, config: Config, header: RunHeader, registered: Mapping[str, str]
) -> ReportData:
    """Collect the tables of an evaluation: what there is to show without any training.

    Parameters
    ----------
    evaluation
        The evaluation.
    config
        Config with the settings of the evaluation.
    header
        Header of the report.
    registered
        Model -> registered name, to find the baselines.
    """
    main = pl.col("delay") == header.verdict_delay
    comparisons = evaluation.read_table("comparisons")
    return ReportData(
        header=header,
        ladder=report_ladder(
            evaluation.table("ladder"),
            header.main_book,
            registered,
            comparisons=comparisons,
            significance=evaluation.read_table("significance"),
        ),
        equity=evaluation.table("equity").filter(main),
        ic_series=evaluation.table("ic_series").filter(main),
        quantiles=evaluation.table("quantiles").filter(main),
        cost_assumptions=assumptions(config),
        cost_breakdown=evaluation.table("costs").filter(main),
        comparisons=comparisons,
        horizons=evaluation.read_table("horizons"),
        quantile_scores=evaluation.read_table("quantile_scores"),
        endings=evaluation.read_table("endings"),
        books=BookTables(**{name: evaluation.read_table(name) for name in BookTables.__dataclass_fields__}),
        signals=SignalTables(
            **{name: evaluation.read_table(name) for name in SignalTables.__dataclass_fields__}
        ),
        trials=TrialTables(
            **{name: evaluation.read_table(name) for name in TrialTables.__dataclass_fields__}
        ),
    )


def _trained_by_epochs(curves: pl.DataFrame, config: Config) -> pl.DataFrame | None:
    """The learning curves of neural models; those of others have no epochs but penalties or trees."""
    from models.registry import MODELS

    neural = [name for name in config.models if MODELS[registry_name(config, name)].kind == "neural"]
    kept = curves.filter(pl.col("model").is_in(neural)) if curves.height else curves
    return kept if kept.height else None


def _config(run: Run, evaluation: StoredEvaluation, events: Sequence[Event]) -> Config:
    """Combine the run's config with the settings of its evaluation and of its explanation."""
    config = evaluation.record.apply_to(run.config)
    explained = [event for event in events if isinstance(event, ExplanationMade)]
    if explained:
        settings = ExplainConfig.model_validate(explained[-1].settings)
        config = config.model_copy(update={"explain": settings})
    return config


def _header(
    run: Run,
    config: Config,
    *,
    evaluation: StoredEvaluation,
    events: Sequence[Event],
    dataset: Market,
    lake: Lake,
) -> RunHeader:
    measured, verdict_delay = evaluation.record, tradable_delay(config.label.delays)
    trained = [started for started, _ in sessions(events)]
    tested = np.concatenate([fold.test for fold in plan_folds(dataset, config)])
    versions = [
        {"table": table, "version": version, "rows": lake.read(table, version=version).height}
        for table, version in run.versions.items()
    ]
    counted = evaluation.table("trials").row(0, named=True)
    latest = max([measured.made_at, *(event.at for event in events)])
    return RunHeader(
        run_id=run.run_id,
        name=config.name,
        created_at=f"{latest:%Y-%m-%d %H:%M UTC}",
        git_commit=_listed(session.environment.commit for session in trained),
        config_yaml=to_yaml(config),
        config_hash=run.run_id.rpartition("-")[2],
        device=_listed(session.device for session in trained) or "not recorded",
        libraries=_libraries(trained),
        data_versions=pl.DataFrame(versions),
        trial_count=counted["trials"],
        trial_reach=counted["reach"],
        seeds=config.seeds,
        label_delay=config.label.delay,
        verdict_delay=verdict_delay,
        execution_delay=verdict_delay if config.backtest.delay is None else config.backtest.delay,
        label_horizon=config.label.horizon,
        label_transform=config.label.transform,
        universe=describe_universe(config),
        mean_firms_per_date=float(dataset.universe_TN[tested].sum(axis=1).mean()),
        main_book=next(iter(config.backtest.books)),
        stage_seconds=_seconds(events),
        sharpe_rate=describe_rate(config.backtest.risk_free),
        periods_per_year=measured.periods_per_year,
        hazards=(
            *(dict.fromkeys(hazard for session in trained for hazard in session.hazards)),
            *_unrecorded(trained),
            *describe_flagged(evaluation.read_table("flagged_rows")),
        ),
        notes=tuple(dict.fromkeys(note for session in trained for note in session.notes)),
        audit=run.read_table("audit"),
        evaluation=measured.evaluation,
        evaluations=evaluation_list(run, measured.evaluation),
        sessions=_sessions(events),
        incomplete=measured.incomplete,
        coverage=(measured.tested,) if measured.tested else (),
        tables=str(evaluation.folder.relative_to(run.folder)),
        measured_on=f"{measured.dates:,} dates from {measured.first} to {measured.last}",
    )


def _unrecorded(trained: Sequence[TrainingStarted]) -> tuple[str, ...]:
    """Warn if the run has no record of its training."""
    if trained:
        return ()
    return (
        "The training of this run was not recorded, so commit, libraries, device and hazards are unknown; "
        "train its config again.",
    )


def _listed(values: Iterable[str]) -> str | None:
    """Join distinct values in order of appearance; None if there are none."""
    return ", ".join(dict.fromkeys(values)) or None


def _libraries(trained: Sequence[TrainingStarted]) -> dict[str, str]:
    """Library -> versions used in training; several if training sessions used different ones."""
    names = dict.fromkeys(name for session in trained for name in session.environment.libraries)
    return {
        name: _listed(
            session.environment.libraries[name]
            for session in trained
            if name in session.environment.libraries
        )
        or "not recorded"
        for name in names
    }


def _seconds(events: Sequence[Event]) -> dict[str, float]:
    """Sum the recorded seconds by stage."""
    spent: dict[str, float] = {}
    for event in events:
        if isinstance(event, AuditMade | TrainingEnded | EvaluationMade | ExplanationMade):
            stage = "training" if isinstance(event, TrainingEnded) else event.event
            spent[stage] = spent.get(stage, 0.0) + event.seconds
    return spent


def _sessions(events: Sequence[Event]) -> pl.DataFrame:
    rows = [
        {
            "started": f"{one.at:%Y-%m-%d %H:%M UTC}",
            "tasks": tasks,
            "commit": one.environment.commit,
            "code": one.environment.code,
            "device": one.device,
            "torch": one.environment.libraries.get("torch"),
            "trials": one.trials,
        }
        for one, tasks in sessions(events)
    ]
    return pl.DataFrame(rows, schema=SESSION_SCHEMA)


def describe_universe(config: Config) -> str:
    """Describe the rule of the universe in one line."""
    return ", ".join(
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in config.universe.model_dump(exclude_none=True).items()
    )


def evaluation_list(run: Evaluated, shown: str) -> pl.DataFrame:
    """List the evaluations of a run or of a signal file, newest first, and mark the one that is shown."""
    rows = [
        {
            "evaluation": one.record.evaluation,
            "made_at": f"{one.record.made_at:%Y-%m-%d %H:%M UTC}",
            "commit": one.record.commit,
            "assumptions": one.record.assumptions,
            "shown": one.record.evaluation == shown,
        }
        for one in list_evaluations(run)
    ]
    return pl.DataFrame(rows)
