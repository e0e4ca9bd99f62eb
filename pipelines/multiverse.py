"""``peerglass multiverse``: the result of a config under the design choices that papers vary.

A design takes one value of every choice. Designs are drawn evenly (`backtest.inference.designs`). Those that
differ only in their book or in settings of ``backtest`` share a fit, and those with the same market and
features share a dataset. Fits and results are stored as soon as they are known, so an interrupted multiverse
continues, and a larger one starts from a smaller one. Every design is a trial of the ledger.

Results are of validation sessions, as those of `pipelines.train.tune`; only with ``test`` is the test opened.

Shape suffixes: D designs, K choices, T sessions, N firms.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import polars as pl

from backtest.inference.designs import sample_designs
from features.arrays import FloatArray
from models.fitting.config import NET_UTILITY
from models.registry import model_entry
from pipelines.config import load
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.device import resolve_device
from pipelines.errors import ConfigError, DataError, DivergedError
from pipelines.execution.pool import early_workers
from pipelines.files import damaged, remove_partial, replacing, write_table, write_text
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results.evaluate import ensemble
from pipelines.results.multiverse import daily_results, summarise
from pipelines.run.evaluations import assumptions_id, evaluation_code, return_settings, tradable_delay
from pipelines.run.identity import forecasting_settings
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run, read_dataset
from pipelines.run.record import RecordedRun, TaskKey
from pipelines.run.warm_start import warm_start_runs
from pipelines.train.task import Task, collect_arrays
from pipelines.train.trials import (
    Scope,
    Trial,
    count_trials,
    model_trials,
    record,
    record_returns,
)
from pipelines.train.walkforward import plan_tasks
from pipelines.train.work import groups_of, run_groups

Choices = Mapping[str, tuple[Any, ...]]  # path of a setting -> its values

MODEL: Final = "model"  # chooses an entry of ``models``; ``model.X`` is an option of the chosen one
BOOK: Final = "book"  # chooses an entry of ``backtest.books``; ``book.X`` is a setting of the chosen one
_OF_DATASET: Final = {"universe", "features", "label"}
_ALLOWED: Final = _OF_DATASET | {MODEL, BOOK, "models", "fit", "folds", "seeds", "backtest"}
_BATCH: Final = 16  # designs between two looks at the clock


def default_choices(config: Config) -> dict[str, tuple[Any, ...]]:
    """Return the choices of a config that names none; the config's own values are among them.

    They are what Chen, Hanauer and Kalsbach (2024) and the papers that they compare vary, where the config's
    models and books have such a choice.
    """
    label, features, folds = config.label, config.features, config.folds
    learned = _learned(config)
    chosen = [model_entry(load.registry_name(config, name)) for name in learned]
    neural = [name for name, entry in zip(learned, chosen, strict=True) if entry.kind == "neural"]
    losses = [load.model_settings(config, name).fit.loss for name in neural]
    own: dict[str, tuple[Any, ...]] = {
        MODEL: tuple(learned),
        "label.transform": (label.transform, "zscore", "rank", "demean"),
        "label.horizon": (1,) if NET_UTILITY in losses else (label.horizon, 1, 5),
        "label.delay": (label.delay, label.delay + 1),
        "features.transform.missing": (features.transform.missing, "zero", "median"),
        "universe.min_history": (config.universe.min_history, 2 * config.universe.min_history),
        BOOK: tuple(config.backtest.books),
    }
    if any(entry.build.reads_windows for entry in chosen):
        own["features.window"] = (features.window, 2 * features.window)
    if folds.scheme in ("expanding", "rolling"):
        own["folds.scheme"] = ("expanding", "rolling")
        if folds.max_folds is None and folds.step is None and folds.test > 1:
            own["folds.test"] = (folds.test, folds.test // 2)
    if neural and not any("loss" in config.models[name].get("fit", {}) for name in neural):
        own["fit.loss"] = (*losses, "mse", "huber", "ic")
    if neural or any(entry.build.threaded for entry in chosen):
        own["seeds"] = ((config.seeds[0],), (config.seeds[0] + 1,))
    if all("inverse_volatility" in type(book).model_fields for book in config.backtest.books.values()):
        own["book.inverse_volatility"] = (False, True)
    distinct = {path: tuple(dict.fromkeys(values)) for path, values in own.items()}
    return {path: values for path, values in distinct.items() if len(values) > 1}


def _learned(config: Config) -> list[str]:
    """Entries of ``models`` that have something to fit and are no ensembles."""
    kinds = {name: model_entry(load.registry_name(config, name)) for name in config.models}
    return [name for name, one in kinds.items() if one.kind != "ensemble" and one.build.learns]


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """One value of every choice, and the config that has them, with one model and one book."""

    values: Mapping[str, Any]
    config: Config

    @classmethod
    def of(cls, config: Config, values: Mapping[str, Any]) -> Self:
        """Set the values; ConfigError names a choice that the config does not allow."""
        raw = config.model_dump(mode="json", exclude={"multiverse"})
        model = values.get(MODEL, next(iter(_learned(config) or config.models)))
        book = values.get(BOOK, next(iter(config.backtest.books)))
        origin = f"multiverse with {describe_values(values)}"
        for name, entries in ((model, raw["models"]), (book, raw["backtest"]["books"])):
            if name not in entries:
                raise ConfigError(f"{origin}: there is no {name!r}; choose among {', '.join(entries)}.")
        if model_entry(load.registry_name(config, model)).kind == "ensemble":
            raise ConfigError(f"{origin}: {model} is an ensemble, which has no fit of its own; leave it out.")
        places = {MODEL: ("models", model), BOOK: ("backtest", "books", book)}
        for path, value in values.items():
            first, *rest = path.split(".")
            if first not in _ALLOWED:
                allowed = ", ".join(sorted(_ALLOWED))
                raise ConfigError(
                    f"multiverse.{path} is no choice of a design; choose settings of {allowed}."
                )
            if rest or first not in places:
                way, section = [*places.get(first, (first,)), *rest], raw
                for key in way[:-1]:
                    if not isinstance(section.get(key), dict):
                        section[key] = {}
                    section = section[key]
                section[way[-1]] = value
        raw["models"] = {model: raw["models"][model]}
        raw["backtest"]["books"] = {book: raw["backtest"]["books"][book]}
        checked = load.check_config(raw, origin=origin)
        checked.remember(config.written)
        return cls(values, checked)

    @property
    def name(self) -> str:
        """Name of the design's file."""
        return load.digest(self.values)

    @property
    def dataset(self) -> str:
        """The settings that decide its dataset."""
        return self.config.model_dump_json(include=set(_OF_DATASET))


def describe_values(values: Mapping[str, Any]) -> str:
    """Write a design as ``label.horizon 5, book long_short``."""
    return ", ".join(f"{path} {write_value(value)}" for path, value in values.items())


def write_value(value: object) -> str:
    """Write a value of a choice as in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def multiverse(
    config: Config,
    designs: int,
    minutes: float | None = None,
    as_of: str | None = None,
    *,
    test: bool = False,
    wait: bool = False,
) -> str:
    """Measure designs, at most for some minutes, and say how much the choices move the result."""
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    choices = config.multiverse or default_choices(config)
    if not choices:
        raise ConfigError("The config leaves nothing to choose; name choices and their values in multiverse.")
    level_DK = sample_designs([len(values) for values in choices.values()], designs)
    drawn = [
        Design.of(config, {path: values[at] for at, (path, values) in zip(row, choices.items(), strict=True)})
        for row in level_DK.tolist()
    ]
    if config.folds.scheme in ("live", "combinatorial"):
        raise ConfigError(f"folds.scheme is {config.folds.scheme}; a multiverse needs walk-forward folds.")
    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks, early_workers():
        run, _, lake = prepare_run(config, progress, as_of, record=False)
        about = {"choices": choices, "test": test, "code": evaluation_code(), "run": run.identity.digest}
        about |= {"returns": return_settings(config.backtest), "delays": config.label.delays}
        name = f"{config.name}-{load.digest(about)}"
        folder = run.folder.parent / "multiverses" / name
        locks.lock_file(folder / ".lock", f"The multiverse {name}")
        remove_partial(folder)
        study = _Study(replace(run, run_id=name), lake, folder, test, progress)
        left = [design for design in drawn if not study.file(design).is_file()]
        with progress.stage("multiverse", total=len(left)):
            if len(left) < len(drawn):
                progress.note(f"{len(drawn) - len(left)} of {len(drawn)} designs were already measured.")
            size = _BATCH if minutes else max(len(left), 1)
            for first in range(0, len(left), size):
                study.measure(left[first : first + size], until)
        return study.summarise(choices, drawn)


@dataclass(frozen=True, slots=True, eq=False)
class _Study:
    """Where designs are measured: a run that says which data are read, and the folder of the results."""

    run: RecordedRun
    lake: Lake
    folder: Path
    test: bool
    progress: Progress

    @property
    def output(self) -> Path:
        """Folder of the runs, which has the ledger."""
        return self.folder.parents[1]

    def file(self, design: Design) -> Path:
        """File with the daily results of a design."""
        return self.folder / "designs" / f"{design.name}.parquet"

    def measure(self, designs: Sequence[Design], until: float) -> None:
        """Measure designs, one dataset after the other, until the time is up."""
        by_dataset: dict[str, list[Design]] = {}
        for design in designs:
            by_dataset.setdefault(design.dataset, []).append(design)
        for group in by_dataset.values():
            if time.monotonic() >= until:
                return
            try:
                dataset = read_dataset(group[0].config, self.lake, self.run.versions, self.progress)
                self._measure_on(dataset, group)
            except DataError as error:  # for example, a universe without firms
                self.progress.note(f"Without a result: {error}")

    def _measure_on(self, dataset: Dataset, designs: Sequence[Design]) -> None:
        """Charge the designs of a dataset to the ledger, compute their fits, and measure them."""
        tasks: dict[str, list[Task]] = {}
        fits: dict[str, list[tuple[Design, Trial]]] = {}
        for design in designs:
            settings = forecasting_settings(design.config, dataset, warm_start_runs(design.config))
            (trial,) = model_trials(design.config, settings).values()
            key = replace(self.run.identity, settings=settings).digest
            if key not in tasks:
                tasks[key] = self._tasks(design.config, dataset)
            if tasks[key]:
                fits.setdefault(key, []).extend(
                    (design, one) for one in trial.traded(design.config.backtest.books)
                )
        record(self.output, self.run.run_id, [one for members in fits.values() for _, one in members])
        failed = self._compute(tasks, dataset, designs[0].config)
        for key, members in fits.items():
            if key in failed:
                continue
            forecasts = self._forecasts(key, tasks[key], dataset)
            for design, trial in members:
                daily = daily_results(forecasts, dataset, design.config)
                forecast, traded = trial.key
                daily = daily.with_columns(forecast=pl.lit(forecast), traded=pl.lit(traded))
                if self.test:
                    delay = tradable_delay(design.config.label.delays)
                    under = assumptions_id(design.config.backtest, delay)
                    record_returns(self.output, {(*trial.key, under): daily.select("date", "excess_net")})
                write_table(self.file(design), daily)
                self.progress.step(describe_values(design.values))

    def summarise(self, choices: Choices, designs: Sequence[Design]) -> str:
        """Store the tables and the page of all measured designs, and return what the command prints."""
        from pipelines.pages.report import render_multiverse

        known = [design for design in designs if self.file(design).is_file()]
        if not known:
            raise DataError("No design has a result: give more --minutes, or read the messages above.")
        result = summarise(
            {path: tuple(map(write_value, values)) for path, values in choices.items()},
            [{path: write_value(value) for path, value in design.values.items()} for design in known],
            [pl.read_parquet(self.file(design)) for design in known],
            count_trials(self.output, Scope.of(self.run.config)),
        )
        missing = len(designs) - len(known)
        sentences = (
            f"{len(known):,} designs of {len(choices)} choices, on the {result.designs['sessions'][0]:,} "
            f"{'test' if self.test else 'validation'} sessions that all of them have."
            + (f" {missing:,} have no result." if missing else ""),
            *result.sentences,
            "The test was opened: every design counts against every result on it."
            if self.test
            else "Training stops, and penalties are chosen, on the same validation sessions, so levels are "
            "biased upwards: compare designs, and expect less on the test, which no design has forecast.",
        )
        for name in ("designs", "outcomes", "shares"):
            write_table(self.folder / f"{name}.parquet", getattr(result, name))
        page = render_multiverse(self.run.config.name, replace(result, sentences=sentences))
        return "\n".join((*sentences, str(write_text(self.folder / "multiverse.html", page).resolve())))

    def _tasks(self, config: Config, dataset: Dataset) -> list[Task]:
        """Tasks of a fit, none if no fold fits; without ``test``, no test session is forecast."""
        try:
            folds = plan_folds(dataset, config)
        except DataError as error:
            self.progress.note(f"Without a result: {error}")
            return []
        if not self.test:
            folds = [replace(fold, test=fold.test[:0]) for fold in folds]
        tasks = [
            replace(one, is_member=True)
            for one in plan_tasks(replace(self.run, config=config), dataset, folds)
        ]
        if self.test:
            return tasks
        return [replace(one, fit=one.fit.model_copy(update={"refit": False})) for one in tasks]

    def _compute(self, tasks: Mapping[str, Sequence[Task]], dataset: Dataset, config: Config) -> set[str]:
        """Compute the tasks that are not stored, and return the fits without a result."""
        groups = {
            id(group): (key, group)
            for key, planned in tasks.items()
            for group in groups_of(planned, self._stored(key, planned), config.stack_seeds)
        }
        failed = set[str]()
        for group, ended in run_groups(
            [group for _, group in groups.values()],
            collect_arrays(dataset, config.features.window),
            config.execution,
            device=resolve_device(config.device),
            note=self.progress.note,
        ):
            key, _ = groups[id(group)]
            if isinstance(ended.error, DivergedError):
                failed.add(key)
                self.progress.note(f"Without a result: {ended.error}")
                continue
            for task, outcome in zip(group, ended.result, strict=True):
                forecast_BN = outcome.test_BN if self.test else outcome.valid_BN
                assert forecast_BN is not None, "a member of an ensemble keeps its validation forecasts"
                with replacing(self._forecast_file(key, task)) as partial, partial.open("wb") as file:
                    np.save(file, forecast_BN)
        return failed

    def _forecast_file(self, fit: str, task: Task) -> Path:
        return self.folder / "fits" / f"{fit}-fold-{task.fold.index}-seed-{task.seed}.npy"

    def _stored(self, fit: str, tasks: Sequence[Task]) -> set[TaskKey]:
        return {task.key for task in tasks if self._forecast_file(fit, task).is_file()}

    def _forecasts(self, fit: str, tasks: Sequence[Task], dataset: Dataset) -> FloatArray:
        """Forecasts of the newest fold of each session, combined over seeds; NaN where there are none."""
        seeds: dict[int, FloatArray] = {}
        for task in tasks:
            forecast_TN = seeds.setdefault(task.seed, np.full(dataset.universe_TN.shape, np.nan))
            sessions = task.fold.test if self.test else task.fold.valid
            with damaged("A stored forecast", f"delete {self.folder} and repeat the command"):
                forecast_TN[sessions] = np.load(self._forecast_file(fit, task), allow_pickle=False)
        return ensemble(seeds)
