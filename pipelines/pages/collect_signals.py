"""Collects the results of a measured signal file into :class:`.contents.report.ReportData`."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from pipelines.config.load import to_yaml
from pipelines.dataset.risk_free import describe_rate
from pipelines.pages.collect import describe_universe, evaluation_list, measured_data
from pipelines.pages.contents.header import RunHeader
from pipelines.pages.contents.report import ReportData
from pipelines.pages.contents.signal_file import SignalFile
from pipelines.results.comparisons import tradable_delay
from pipelines.results.describe import describe_flagged
from pipelines.results.signal_record import MeasuredSignals
from pipelines.run.evaluations import StoredEvaluation


def signal_report_data(measured: MeasuredSignals, evaluation: StoredEvaluation) -> ReportData:
    """Collect one evaluation of measured signals.

    Everything is read from the folder, so that building the report again gives the same report.
    """
    record, shown = measured.record, evaluation.record
    config = shown.apply_to(measured.config)
    delay = tradable_delay(config.label.delays)
    ladder, counted = evaluation.table("ladder"), evaluation.table("trials").row(0, named=True)
    header = RunHeader(
        run_id=measured.run_id,
        name=measured.run_id.rpartition("-")[0],
        created_at=f"{shown.made_at:%Y-%m-%d %H:%M UTC}",
        git_commit=shown.commit,
        config_yaml=to_yaml(config),
        config_hash=measured.run_id.rpartition("-")[2],
        device="",
        libraries=record.libraries,
        data_versions=pl.DataFrame(
            [(table, version, rows) for table, (version, rows) in record.tables.items()],
            schema=["table", "version", "rows"],
            orient="row",
        ),
        trial_count=counted["trials"],
        trial_reach=counted["reach"],
        seeds=(),
        label_delay=config.label.delay,
        verdict_delay=delay,
        execution_delay=delay if config.backtest.delay is None else config.backtest.delay,
        label_horizon=config.label.horizon,
        label_transform="raw",
        universe=describe_universe(config),
        mean_firms_per_date=record.firms,
        main_book=next(iter(config.backtest.books)),
        stage_seconds={},
        sharpe_rate=describe_rate(config.backtest.risk_free),
        periods_per_year=shown.periods_per_year,
        hazards=(*record.hazards, *describe_flagged(evaluation.read_table("flagged_rows"))),
        notes=record.notes,
        evaluation=shown.evaluation,
        evaluations=evaluation_list(measured, shown.evaluation),
        trained=False,
        tables=str(evaluation.folder.relative_to(measured.folder)),
        measured_on=f"{shown.dates:,} dates from {shown.first} to {shown.last}",
    )
    data = measured_data(evaluation, config, header, dict.fromkeys(ladder["model"].unique(), ""))
    file = SignalFile(record.file, evaluation.table("rows"), evaluation.table("guard"))
    return replace(data, file=file)
