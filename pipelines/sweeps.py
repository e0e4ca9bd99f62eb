"""The stage of a sweep: trade forecasts or signals in every combination of settings, each of them a trial."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from features.arrays import FloatArray
from features.panel.panel import to_panel
from pipelines.config.load import digest, override_backtest
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.evaluate_file import MeasureOptions, prepared_file
from pipelines.progress import Progress
from pipelines.results import sweeps
from pipelines.results.recount import read_tried, trials_of
from pipelines.run.evaluations import Evaluated, assumptions_id, evaluation_code
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
        grid = Grid.of(run.config, options)
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
        trials = trials_of(run)
        with progress.stage("sweep"):
            swept = Swept(run, run.config, market, signals, trials)
            echo(measure_sweep(swept, grid).describe(as_json=options.as_json))


def sweep_file(
    target: str, config: Path | None, options: MeasureOptions, echo: Callable[[str], None]
) -> None:
    """Sweep the signals of a file on the lake of a config, also one that fails the look-ahead guard."""
    progress = Progress()
    with prepared_file(target, config, options, progress) as prepared:
        grid = Grid.of(prepared.config, options)
        prepared.measured.save()
        with progress.stage("sweep"):
            echo(measure_sweep(Swept.of(prepared), grid).describe(as_json=options.as_json))


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a sweep, and all combinations of their values."""

    book: str
    axes: tuple[sweeps.Axis, ...]
    variants: tuple[sweeps.VariantSettings, ...]

    @classmethod
    def of(cls, config: Config, options: MeasureOptions) -> Self:
        """Read the grid of a sweep from its options; ConfigError if it is wrong."""
        book = next(iter(config.backtest.books)) if options.book is None else options.book
        return cls.made(sweeps.parse_axes(options.sweep, config.backtest, book), config, book)

    @classmethod
    def made(cls, axes: tuple[sweeps.Axis, ...], config: Config, book: str) -> Self:
        """Combine the values of the axes; ConfigError if a combination is wrong."""
        return cls(book, axes, tuple(sweeps.variants(axes, config.backtest, book)))


@dataclass(frozen=True, slots=True, eq=False)
class Swept:
    """What is swept: signals on a market, and the trial of each without a book."""

    run: Evaluated
    config: Config
    market: Market
    signals: Mapping[str, FloatArray]
    trials: Mapping[str, Trial]

    @classmethod
    def of(cls, prepared: PreparedSignals) -> Self:
        """Sweep the signals of a file or a frame."""
        signals = prepared.placed.signals
        return cls(prepared.measured, prepared.config, prepared.market, signals, prepared.trials)


@dataclass(frozen=True, slots=True, eq=False)
class StoredSweep:
    """A sweep on disk: its tables, what is said about it as a whole, and its folder."""

    result: sweeps.Sweep
    axes: tuple[sweeps.Axis, ...]
    sentences: tuple[str, ...]
    folder: Path

    @property
    def page(self) -> Path:
        """HTML page of the sweep."""
        return self.folder / "sweep.html"

    def describe(self, *, as_json: bool) -> str:
        """Return what the command prints."""
        if as_json:
            return sweeps.sweep_json(self.result, self.axes, self.sentences, str(self.folder))
        return f"{sweeps.describe_sweep(self.result, self.axes, self.sentences)}\n{self.page}"


def measure_sweep(swept: Swept, grid: Grid) -> StoredSweep:
    """Record the books as trials, measure all variants, and store table and page."""
    from pipelines.pages.report import render_sweep

    run, output = swept.run, swept.run.folder.parent
    tried = [
        trial
        for name in swept.signals
        for variant in grid.variants
        for trial in swept.trials[name].traded(variant.backtest.books)
    ]
    record(output, run.run_id, tried)
    scope, delay = Scope.of(swept.config), swept.config.label.delay
    counted = count_trials(output, scope)
    measured = sweeps.sweep(swept.signals, swept.market, swept.config, grid.variants, counted.trials)
    assumptions = [assumptions_id(variant.backtest, delay) for variant in grid.variants] * len(swept.signals)
    returns = {
        (*trial.key, under): measured.daily.select("date", excess_net=str(row))
        for row, (trial, under) in enumerate(zip(tried, assumptions, strict=True))
    }
    record_returns(output, returns)
    result = measured.with_effective(read_tried(output, scope, assumptions[0]).effective)
    said = sweeps.sentences(result, grid.axes, counted)
    axes = {axis.name: axis.values for axis in grid.axes}
    shared = swept.config.backtest.model_dump(mode="json")
    made = sweeps.SweepRecord(
        sweep=digest({"axes": axes, "book": grid.book, "backtest": shared, "code": evaluation_code()}),
        run_id=run.run_id,
        axes=axes,
        book=grid.book,
        made_at=dt.datetime.now(dt.UTC),
        trials=counted.trials,
        sentences=said,
    )
    folder = sweeps.store_sweep(run, made, result, render_sweep(result, grid.axes, made))
    return StoredSweep(result, grid.axes, said, folder)
