"""``peerglass tune``: search a model's settings on validation sessions, and track and count every trial.

A trial fits the model on each fold's training sessions and scores it on the fold's validation sessions. With
several folds, those of later folds are test sessions of earlier ones, which the answer says. An interrupted
search continues. Each trial is also a run of the tracking store and a row of the trials ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import torch
import yaml

from backtest.splits.folds import Fold
from models.fitted import Diverged, NoTrainingSignal, best_record
from models.fitting.config import PORTFOLIO
from models.fitting.fit import fit
from models.panel_memory import is_out_of_memory
from models.registry import MODELS
from models.spec import Choice, Range, Space, Value
from pipelines.config import load
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.dataset.memory import most_lags
from pipelines.device import resolve_device
from pipelines.errors import ConfigError, DataError, DivergedError
from pipelines.execution.pool import early_workers, open_engine
from pipelines.execution.protocol import TaskEngine, Tell, run_jobs
from pipelines.progress import Progress
from pipelines.run.identity import forecasting_settings
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run
from pipelines.run.record import RecordedRun
from pipelines.run.warm_start import warm_start_runs
from pipelines.tracking.store import track_trial
from pipelines.train.task import Arrays, Task, collect_arrays, task_device, to_tensors
from pipelines.train.trials import record_trials
from pipelines.train.walkforward import plan_tasks
from pipelines.train.work import work_on_arrays

if TYPE_CHECKING:
    import optuna

_SHOWN = 5


def tune(
    configs: Sequence[Config], model: str, trials: int, as_of: str | None = None, *, wait: bool = False
) -> str:
    """Search until ``trials`` trials are finished, and describe the best ones.

    With several configs, every trial is scored on the validation sessions of all of them, one after another,
    so that each has the free memory to itself.
    """
    registered, space = _searched(configs, model)
    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks, early_workers(), ExitStack() as engines:
        markets = [_Market.open(config, progress, as_of) for config in configs]
        name, *others = names = [study_name(market.run, model, space) for market in markets]
        if others:
            name = f"{configs[0].name}-and-{len(others)}-{model}-{load.digest(names)}"
        folder = markets[0].run.folder.parent / "searches" / name
        locks.lock_file(folder / ".lock", f"The search {name}")
        study = Study(folder, space, len(markets))
        _track(study, configs, name)  # trials that an interruption has left untracked
        remaining = max(0, trials - len(study.finished))
        with progress.stage("tune", total=remaining):
            only = None if others else engines.enter_context(markets[0].engine(registered, progress))
            if study.finished:
                progress.note(f"{len(study.finished)} trials of this search are already finished and count.")
            for _ in range(remaining):
                trial, values = study.propose()
                scores: list[float | None] = []
                for one in markets:
                    with nullcontext(only) if only else one.engine(registered, progress) as engine:
                        scores.append(one.score(model, values, engine))
                study.record(trial, scores)
                _track(study, configs, name)
                said = ", ".join("diverged" if score is None else f"{score:+.4f}" for score in scores)
                progress.step(f"{model}: validation {said}")
        return describe(configs, model, study.finished, [market.folds for market in markets])


def _searched(configs: Sequence[Config], model: str) -> tuple[str, Space]:
    """The registered model that is searched and its space; ConfigError if a config does not suit."""
    for config in configs:
        if model not in config.models:
            raise ConfigError(
                f"The config {config.name} has no model {model!r}; choose one of {', '.join(config.models)}."
            )
        if len(configs) > 1 and config.execution.engine == "ray":
            raise ConfigError(
                f"{config.name} has execution.engine ray, and several configs are searched on this machine; "
                "set it to pool."
            )
    registered = load.registry_name(configs[0], model)
    others = {load.registry_name(config, model) for config in configs} - {registered}
    if others:
        raise ConfigError(f"{model} is a {registered} in one config and a {min(others)} in another.")
    space: Space = MODELS[registered].build.space
    if not space:
        searchable = ", ".join(name for name, entry in MODELS.items() if entry.build.space)
        raise ConfigError(f"{registered} has no search space; choose one of {searchable}.")
    return registered, allowed_space(configs, model, space)


def allowed_space(configs: Sequence[Config], model: str, space: Space) -> Space:
    """The space without choices that the options of a config, or choices before them, do not allow."""
    kept, tried = dict(space), [dict[str, Value]()]
    for name, where in space.items():
        if not isinstance(where, Choice):
            continue
        values = [
            value
            for value in where.values
            if all(_allows(config, model, {**one, name: value}) for config in configs for one in tried)
        ]
        kept[name] = Choice(tuple(values))
        tried = [{**one, name: value} for one in tried for value in values] or tried
        if not values:
            del kept[name]  # what the config says is not searched
    return kept


def _allows(config: Config, model: str, values: dict[str, Value]) -> bool:
    entry = load.merge_settings(config.models[model], nest(values))
    try:
        load.model_settings(config.model_copy(update={"models": {model: entry}}), model)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Market:
    """A config with its data, on which trials are scored."""

    run: RecordedRun
    dataset: Dataset
    folds: list[Fold]

    @classmethod
    def open(cls, config: Config, progress: Progress, as_of: str | None) -> Self:
        """Build the dataset of a config."""
        run, dataset, _ = prepare_run(config, progress, as_of, record=False)
        return cls(run, dataset, plan_folds(dataset, config))

    def engine(
        self, registered: str, progress: Progress
    ) -> AbstractContextManager[TaskEngine[Task, float | None]]:
        """Open an engine that scores the folds of trials."""
        config, device = self.run.config, resolve_device(self.run.config.device)
        arrays = collect_arrays(self.dataset, config.features.window)
        work = work_on_arrays(score_fold, arrays, device, [registered], most_lags(config))
        devices = [task_device(registered, device).partition(":")[0]] * len(self.folds)
        return open_engine(config.execution, work, len(self.folds), note=progress.note, devices=devices)

    def score(
        self, model: str, values: dict[str, Value], engine: TaskEngine[Task, float | None]
    ) -> float | None:
        """Record a trial in the ledger, and score it; None if training diverged."""
        trial_config = with_settings(self.run.config, model, values)
        settings = forecasting_settings(trial_config, self.dataset, warm_start_runs(self.run.config))
        record_trials(self.run.folder.parent, self.run.run_id, trial_config, settings)
        first_seed = trial_config.model_copy(update={"seeds": trial_config.seeds[:1]})
        tasks = list(plan_tasks(replace(self.run, config=first_seed), self.dataset, self.folds))
        return _mean_score(engine, tasks)


def _track(study: Study, configs: Sequence[Config], name: str) -> None:
    """Send the scores that the tracking stores do not have yet, those of one trial on all markets in turn."""
    scores = [(n, trial, m) for n, trial in enumerate(study.finished) for m in range(len(configs))]
    for count, (number, trial, market) in enumerate(scores):
        if count >= study.tracked:
            track_trial(configs[market], name, number, trial.values, trial.scores[market])
            study.tracked = count + 1


def study_name(run: RecordedRun, model: str, space: Space) -> str:
    """Name a search by everything its scores depend on: the run's settings, with this model and one seed."""
    record = run.identity.record()
    models = {model: record["settings"]["models"][model]}
    record["settings"] = {**record["settings"], "models": models, "seeds": run.config.seeds[:1]}
    return f"{run.config.name}-{model}-{load.digest({**record, 'space': str(space)})}"


def with_settings(config: Config, model: str, values: dict[str, Value]) -> Config:
    """Make the config of a trial: this model only, at these settings."""
    raw = config.model_dump(mode="json")
    raw["models"] = {model: load.merge_settings(config.models[model], nest(values))}
    checked = load.check_config(raw, origin=f"tune {model}")
    checked.remember(config.written)
    return checked


def describe(
    configs: Sequence[Config], model: str, done: Sequence[SearchTrial], folds: Sequence[Sequence[Fold]]
) -> str:
    """Describe the best settings, their scores, and the trials; ``folds`` are those of each config.

    Of one config, the settings are complete with those not searched. Of several, they are those with the
    largest smallest share of the best score of each, and only the searched ones, because the others differ.
    """
    first, several = configs[0], len(configs) > 1
    values = shares_of([trial.scores for trial in done]) if several else [trial.scores[0] for trial in done]
    ranked = [(value, trial) for value, trial in zip(values, done, strict=True) if value is not None]
    ranked.sort(key=lambda one: -one[0])
    if not ranked:
        return f"{model}: all {len(done)} trials diverged; lower fit.lr in the config and search again."
    best = ranked[0][1].values
    diverged = f"{len(done) - len(ranked)} of them diverged"
    stop_on = _stop_on(load.model_settings(first, model))
    if several:
        lines = [
            f"{model}: {len(done)} trials on {len(configs)} configs, {diverged}",
            "share: the smallest, over the configs, of a trial's score divided by the best score there",
        ]
        settings: Any = {model: nest(best)}
        warning = (
            f"The best of {len(ranked)} trials on the same validation segments is biased upwards: expect "
            "less on the tests. Every trial is in the ledger of each config and counts against its result."
        )
    else:
        lines = [f"{model}: {len(done)} trials, {diverged}"]
        settings = with_settings(first, model, best).model_dump(mode="json")["models"]
        warning = (
            f"The best of {len(ranked)} scores on the same {len(folds[0])} validation segment(s) is biased "
            "upwards: expect less on the test. Every trial is in the ledger and counts against the result."
        )
    for place, (value, trial) in enumerate(ranked[:_SHOWN], start=1):
        pairs = zip(configs, trial.scores, strict=True)
        own = ", ".join(f"{config.name} {score:+.4f}" for config, score in pairs)
        worth = f"share {value:.3f} ({own})" if several else f"validation {stop_on} {value:+.4f}"
        shown = ((name, f"{x:.3g}" if isinstance(x, float) else x) for name, x in trial.values.items())
        lines.append(f"  {place}. {worth}   {'  '.join(f'{name} {x}' for name, x in shown)}")
    seen = [sentence for pair in zip(configs, folds, strict=True) if (sentence := _seen_tests(*pair))]
    printed = yaml.safe_dump({"models": settings}, sort_keys=False).rstrip()
    return "\n".join([*lines, "", printed, "", warning, *seen])


def _seen_tests(config: Config, folds: Sequence[Fold]) -> str | None:
    """Say how many validation sessions are test sessions of other folds; None if none is."""
    valid, test = ({*np.concatenate([getattr(fold, name) for fold in folds])} for name in ("valid", "test"))
    if not valid & test:
        return None
    return (
        f"{config.name}: {len(valid & test):,} of {len(valid):,} validation sessions are test sessions of "
        "other folds, whose results are no longer out of sample with these settings. Search on data that end "
        "before all tests, such as with an earlier source.end and a hypothesis of its own."
    )


def shares_of(scores: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Smallest share, over the markets, of the best score of a market, for each trial.

    A market whose best score is not positive has no skill to lose and does not count; with such markets alone
    every share is 0. None for a trial that diverged on a market.

    >>> shares_of([(0.04, 0.01), (0.02, 0.02), (None, 0.02), (0.03, 0.018)])
    [0.5, 0.5, None, 0.75]
    """
    whole = [one for one in scores if None not in one]
    best = [max(score for score in market if score is not None) for market in zip(*whole, strict=True)]
    return [
        None
        if None in one
        else min(
            (score / top for score, top in zip(one, best, strict=True) if score is not None and top > 0),
            default=0.0,
        )
        for one in scores
    ]


def score_fold(arrays: Arrays, task: Task, tell: Tell) -> float | None:
    """Best validation score of a fit on a fold; None if it diverges or the device's memory runs out."""
    if task.device == "cpu":
        torch.set_num_threads(1)
    data = to_tensors(arrays, task.inputs, task.device, returns=task.fit.loss in PORTFOLIO)
    on = (data, task.fold.train, task.fold.valid)
    try:
        fitted = fit(
            task.registered, task.options, *on, fit_config=task.fit, seed=task.seed, start=task.start
        )
    except Diverged:
        return None
    except NoTrainingSignal as error:
        raise DivergedError(
            f"{task.model}, fold {task.fold.index}: {error} Finished trials are kept."
        ) from None
    except RuntimeError as error:
        if is_out_of_memory(error):
            return None
        raise
    by = _stop_on(task)
    best = fitted.history[best_record(fitted.history, by)]
    return best.valid_ic if by == "ic" else best.valid_rank_ic


def _mean_score(engine: TaskEngine[Task, float | None], tasks: Sequence[Task]) -> float | None:
    """Mean over folds of the best validation score; None if the training of a fold gives no score."""
    scores: dict[int, float | None] = {}
    devices = [task.device.partition(":")[0] for task in tasks]
    for ended in run_jobs(engine, len(tasks), tasks.__getitem__, devices=devices):
        scores[ended.job] = ended.result
    known = [score for _, score in sorted(scores.items()) if score is not None]  # one order: the same bits
    return sum(known) / len(known) if len(known) == len(tasks) else None


def _stop_on(one: load.ModelSettings | Task) -> Literal["rank_ic", "ic"]:
    """The validation score that early stopping uses, which is what the search maximises."""
    return cast("Literal['rank_ic', 'ic']", getattr(one.options, "stop_on", one.fit.stop_on))


def nest(flat: dict[str, Value]) -> dict[str, Any]:
    """Turn ``fit.lr`` into ``{fit: {lr: ...}}``, as in a config."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        (out.setdefault(section, {}) if section else out)[key] = value
    return out


_FILE = "trials.db"
_DIVERGED = "diverged"
_SCORES = "scores"
_TRACKED = "tracked"


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """One finished trial of a search."""

    values: dict[str, Value]
    scores: tuple[float | None, ...]  # by market, mean validation score over folds; None: diverged


class Study:
    """A search for the highest score, stored in an SQLite database of Optuna.

    8 random trials, then Optuna's multivariate tree-structured Parzen estimator (Bergstra et al. 2011),
    seeded by the number of finished trials: an interrupted search proposes what an uninterrupted one does.
    On several markets it maximises `shares_of`, which are given anew for each proposal, because the best
    score of a market changes during the search.
    """

    def __init__(self, folder: Path, space: Space, markets: int = 1) -> None:
        import optuna

        self._space, self._markets = space, markets
        self._distributions = {name: _distribution(where) for name, where in space.items()}
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder / _FILE}"
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            storage = optuna.storages.RDBStorage(url)
        except RuntimeError as error:
            raise DataError(
                f"{folder / _FILE} was written by another version of Optuna ({error}) Upgrade it with "
                f"'optuna storage upgrade --storage {url}', or delete it to start the search again."
            ) from None
        self._study = optuna.create_study(
            storage=storage, study_name=folder.name, direction="maximize", load_if_exists=True
        )
        state = optuna.trial.TrialState
        for _ in self._study.get_trials(deepcopy=False, states=(state.WAITING,)):
            self._study.ask()  # proposed and never begun
        for trial in self._study.get_trials(states=(state.RUNNING,)):
            self._study.tell(trial.number, state=state.FAIL)  # interrupted: not counted

    @property
    def finished(self) -> list[SearchTrial]:
        """The finished trials, oldest first. Interrupted trials are left out."""
        return [SearchTrial(self._values(trial.params), self._scores(trial)) for trial in self._ended()]

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        known = self._study.get_trials(deepcopy=False)
        return [one for one in known if one.value is not None or one.user_attrs.get(_DIVERGED)]

    @property
    def tracked(self) -> int:
        """Number of finished trials that were sent to the tracking store."""
        return int(self._study.user_attrs.get(_TRACKED, 0))

    @tracked.setter
    def tracked(self, count: int) -> None:
        self._study.set_user_attr(_TRACKED, count)

    def propose(self) -> tuple[optuna.Trial, dict[str, Value]]:
        """Propose the next trial and its settings."""
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate
            sampler = optuna.samplers.TPESampler(
                seed=len(self.finished), n_startup_trials=8, multivariate=True
            )
            if self._markets > 1:
                self._study.enqueue_trial(self._rescored(sampler).ask(self._distributions).params)
            else:
                self._study.sampler = sampler
            trial = self._study.ask(self._distributions)
        return trial, self._values(trial.params)

    def _rescored(self, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
        """A study in memory of the finished trials, with their shares as scores."""
        import optuna

        study = optuna.create_study(direction="maximize", sampler=sampler)
        kept = self._ended()
        shares = shares_of([self._scores(one) for one in kept])
        for one, share in zip(kept, shares, strict=True):
            state = optuna.trial.TrialState.FAIL if share is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=state, value=share, params=one.params, distributions=one.distributions
                )
            )
        return study

    def record(self, trial: optuna.Trial, scores: Sequence[float | None]) -> None:
        """Record the scores of a proposed trial by market; None where training diverged."""
        from optuna.trial import TrialState

        known = [score for score in scores if score is not None]
        if self._markets > 1:
            trial.set_user_attr(_SCORES, list(scores))
        if len(known) < len(scores):
            trial.set_user_attr(_DIVERGED, True)
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, sum(known) / len(known))

    def _scores(self, trial: optuna.trial.FrozenTrial) -> tuple[float | None, ...]:
        return tuple(trial.user_attrs.get(_SCORES, (trial.value,)))

    def _values(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """The settings of a trial, in the order of the space; fractions are rounded to four digits."""
        values = {name: params[name] for name in self._space}
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in values.items()
        }


def _distribution(where: Range | Choice) -> optuna.distributions.BaseDistribution:
    import optuna

    if isinstance(where, Choice):
        return optuna.distributions.CategoricalDistribution(where.values)
    if where.integer:
        return optuna.distributions.IntDistribution(int(where.low), int(where.high), log=where.log)
    return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)
