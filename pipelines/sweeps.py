"""The stage of a sweep: trade forecasts or signals in every combination of settings, each of them a trial."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from features.arrays import FloatArray
from features.panel.panel import to_panel
from pipelines.config.load import digest, override_backtest
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.evaluate_file import MeasureOptions, prepared_file
from pipelines.files import replacing
from pipelines.progress import Progress
from pipelines.results.recount import read_tried, trials_of
from pipelines.results.sweeps import Grid, Sweep, SweepRecord, describe_sweep, sweep, sweep_json
from pipelines.run.evaluations import Evaluated, assumptions_id, evaluation_code, tradable_delay
from pipelines.run.locks import Locks
from pipelines.run.open import load_run_market
from pipelines.run.record import open_run
from pipelines.train.trials import Scope, Trial, count_trials, record, record_returns

if TYPE_CHECKING:
    from pipelines.results.evaluate_signals import PreparedSignals


def sweep_run(name: str, options: MeasureOptions, output: Path, echo: Callable[[str], None]) -> None:
    """Sweep every model of a run, on the data that it recorded."""
    progress = Progress()
    with Locks(wait=options.wait, notify=progress.note) as locks:
        run = open_run(name, output)
        run = replace(run, config=override_backtest(run.config, list(options.overrides)))
        grid = Grid.parse(options.sweep, run.config.backtest, options.book)
        ensembles = run.read_table("ensembles")
        if ensembles is None:
            raise DataError(
                f"Run {run.run_id} has not been evaluated; run 'peerglass backtest {run.run_id}' first."
            )
        locks.lock_run(run.folder)
        market, _ = load_run_market(run, progress)
        signals = {
            str(model): to_panel(rows, "signal", market.panel)
            for (model,), rows in ensembles.partition_by(["model"], as_dict=True, maintain_order=True).items()
        }
        with progress.stage("sweep"):
            made = measure_sweep(run, run.config, market, signals, trials_of(run), grid)
            echo(sweep_json(made) if options.as_json else describe_sweep(made))


def sweep_file(
    target: str, config: Path | None, options: MeasureOptions, echo: Callable[[str], None]
) -> None:
    """Sweep the signals of a file on the lake of a config, also one that fails the look-ahead guard."""
    progress = Progress()
    with prepared_file(target, config, options, progress) as prepared:
        grid = Grid.parse(options.sweep, prepared.config.backtest, options.book)
        prepared.measured.save()
        with progress.stage("sweep"):
            made = sweep_signals(prepared, grid)
            echo(sweep_json(made) if options.as_json else describe_sweep(made))


def sweep_signals(prepared: PreparedSignals, grid: Grid) -> Sweep:
    """Sweep the signals of a file or a frame."""
    signals = prepared.placed.signals
    return measure_sweep(prepared.measured, prepared.config, prepared.market, signals, prepared.trials, grid)


def measure_sweep(  # noqa: PLR0917  # what is swept, and how
    run: Evaluated,
    config: Config,
    market: Market,
    signals: Mapping[str, FloatArray],
    trials: Mapping[str, Trial],
    grid: Grid,
) -> Sweep:
    """Record the books as trials (``trials``: without a book), measure all variants, and store the sweep."""
    from pipelines.pages.report import render_sweep

    output = run.folder.parent
    tried = [
        trial
        for name in signals
        for variant in grid.variants
        for trial in trials[name].traded(variant.backtest.books)
    ]
    record(output, run.run_id, tried)
    scope, delay = Scope.of(config), tradable_delay(config.label.delays)
    counted = count_trials(output, scope)
    axes = {axis.name: axis.values for axis in grid.axes}
    shared = config.backtest.model_dump(mode="json")
    name = digest({"axes": axes, "book": grid.book, "backtest": shared, "code": evaluation_code()})
    measured = sweep(signals, market, config, grid, counted.trials, run.folder / "sweeps" / name)
    assumptions = [assumptions_id(variant.backtest, delay) for variant in grid.variants] * len(signals)
    returns = {
        (*trial.key, under): measured.daily.select("date", excess_net=str(row))
        for row, (trial, under) in enumerate(zip(tried, assumptions, strict=True))
    }
    record_returns(output, returns)
    result = measured.counted(counted, read_tried(output, scope, assumptions[0]).effective)
    made = SweepRecord(
        sweep=name,
        run_id=run.run_id,
        axes=axes,
        book=grid.book,
        made_at=dt.datetime.now(dt.UTC),
        trials=counted.trials,
        sentences=result.sentences,
    )
    with replacing(result.folder) as partial:
        partial.mkdir()
        result.table.write_parquet(partial / "variants.parquet")
        result.daily.write_parquet(partial / "daily.parquet")
        (partial / result.page.name).write_text(render_sweep(run.run_id, result), encoding="utf-8")
        (partial / "sweep.json").write_text(made.model_dump_json(indent=1), encoding="utf-8")
    return result
