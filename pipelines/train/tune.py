"""``peerglass tune``: search a model's settings on validation alone, every trial tracked and counted.

A trial fits the model on each fold's training sessions and scores it on the fold's validation sessions. No
test session is ever forecast here. Each trial is a run of the tracking store and a row of the trials ledger:
a search that is interrupted continues, and no winner is reported without the number of its losers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from backtest.splits import Fold
from models.fitted import NoTrainingSignal
from models.fitting.fit import Diverged, FitConfig, fit
from pipelines.config.load import build_settings, check_config, digest, settings_of
from pipelines.config.models import KEY, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import FoldInputs, fit_inputs, plan_folds
from pipelines.device import pick_device
from pipelines.errors import ConfigError, DivergedError
from pipelines.progress import Progress
from pipelines.run.identity import forecasting_settings
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run
from pipelines.run.record import Run
from pipelines.run.warm_start import load_warm_start, warm_start_checkpoint, warm_start_runs
from pipelines.tracking.store import TrialLog
from pipelines.train.plan import collect_arrays
from pipelines.train.search import Choice, Range, Space, Value, nested, space_of
from pipelines.train.task import Arrays, to_tensors
from pipelines.train.trials import record_trials

if TYPE_CHECKING:
    import optuna

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that was tried.

    Attributes
    ----------
    values
        Searched setting -> value.
    score
        Mean over folds of the validation score that the fitting stops on; None where training diverged.
    """

    values: dict[str, Value]
    score: float | None


def tune(config: Config, model: str, trials: int, as_of: str | None = None, *, wait: bool = False) -> str:
    """Search until ``trials`` trials are done in all, earlier ones included; answer with what was found.

    ``as_of`` reads the lake as it was; None reads the newest.

    Raises
    ------
    ConfigError
        If the config does not have the model, or the model has nothing to search.
    """
    if model not in config.models:
        raise ConfigError(f"the config has no model {model!r}; it has {', '.join(config.models)}.")
    try:
        space = space_of(registry_name(config, model))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks:
        run, dataset, _ = prepare_run(config, progress, as_of, locks)
        began = warm_start_runs(config)
        folds = plan_folds(dataset, config)
        inputs = [fit_inputs(dataset, fold) for fold in folds]
        arrays = collect_arrays(dataset, config.features.window)
        log = TrialLog(config, study_of(run, model, space))
        done = [Trial(json.loads(values), score) for values, score in log.finished()]
        left = max(0, trials - len(done))
        with _quiet(), progress.stage("tune", total=left):
            if done:
                progress.note(f"{len(done)} trials of this search were already done and count.")
            for _ in range(left):
                study, asked = _ask(space, done)
                values = {name: _suggest(asked, name, where) for name, where in space.items()}
                wanted = with_settings(config, model, values)
                record_trials(
                    run.folder.parent, run.run_id, wanted, forecasting_settings(wanted, dataset, began)
                )
                starts = [
                    warm_start_checkpoint(wanted, dataset, fold, model, config.seeds[0]) for fold in folds
                ]
                score = _score(wanted, model, arrays, folds, inputs, starts)
                study.tell(asked, score, state=None if score is not None else _failed())
                done.append(Trial(values, score))
                log.add(len(done) - 1, values, score)
                progress.step(f"{model}: validation {'diverged' if score is None else f'{score:+.4f}'}")
        return describe(config, model, done, len(folds))


def study_of(run: Run, model: str, space: Space) -> str:
    """Name a search by what its scores depend on: the run, but of its models this one alone, and one seed."""
    assert run.identity is not None, "a search has an identity"
    record = run.identity.record()
    models = {model: record["settings"]["models"][model]}
    record["settings"] = {**record["settings"], "models": models, "seeds": run.config.seeds[:1]}
    return f"{run.config.name}-{model}-{digest({**record, 'space': str(space)})}"


def with_settings(config: Config, model: str, values: dict[str, Value]) -> Config:
    """The config with one model alone, at these settings."""
    own = dict(config.models[model])
    found = nested(values)
    merged = {**own, **found, "fit": {**own.get("fit", {}), **found.get("fit", {})}}
    raw = config.model_dump(mode="json") | {"models": {model: merged}}
    checked = check_config(raw, origin=f"tune {model}")
    checked.remember(config.written)
    return checked


def describe(config: Config, model: str, done: Sequence[Trial], folds: int) -> str:
    """Say which settings won, by how much, and out of how many."""
    stop_on = _stop_on(config, model)
    scored = sorted(
        (trial for trial in done if trial.score is not None), key=lambda trial: -(trial.score or 0.0)
    )
    if not scored:
        return f"{model}: all {len(done)} trials diverged; lower fit.lr in the config and search again."
    lines = [f"{model}: {len(done)} trials, {len(done) - len(scored)} of them diverged"]
    for place, trial in enumerate(scored[:_SHOWN], start=1):
        cells = "  ".join(f"{name} {_plain(value)}" for name, value in trial.values.items())
        lines.append(f"  {place}. validation {stop_on} {trial.score:+.4f}   {cells}")
    which = {key: value for key, value in config.models[model].items() if key == KEY}
    best = yaml.safe_dump({"models": {model: which | nested(scored[0].values)}}, sort_keys=False).rstrip()
    lines += [
        "",
        best,
        "",
        f"The best of {len(scored)} scores on the same {folds} validation segment(s) flatters: expect less "
        "on the test. Every trial is in the ledger and counts against the result.",
    ]
    return "\n".join(lines)


def _ask(space: Space, done: Sequence[Trial]) -> tuple[optuna.Study, optuna.Trial]:
    """Let a sampler that has seen all finished trials propose the next; the same history asks the same."""
    import optuna

    sampler = optuna.samplers.TPESampler(seed=len(done), n_startup_trials=8, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {name: _distribution(where) for name, where in space.items()}
    for trial in done:
        if trial.score is not None:
            study.add_trial(
                optuna.trial.create_trial(params=trial.values, distributions=distributions, value=trial.score)
            )
    return study, study.ask()


def _distribution(where: Range | Choice) -> optuna.distributions.BaseDistribution:
    import optuna

    if isinstance(where, Choice):
        return optuna.distributions.CategoricalDistribution(where.values)
    if where.whole:
        return optuna.distributions.IntDistribution(int(where.low), int(where.high), log=where.log)
    return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)


def _suggest(asked: optuna.Trial, name: str, where: Range | Choice) -> Value:
    if isinstance(where, Choice):
        return cast("Value", asked.suggest_categorical(name, where.values))
    if where.whole:
        return asked.suggest_int(name, int(where.low), int(where.high), log=where.log)
    return float(f"{asked.suggest_float(name, where.low, where.high, log=where.log):.4g}")


def _score(  # noqa: PLR0917  (what is scored, on what)
    config: Config,
    model: str,
    arrays: Arrays,
    folds: Sequence[Fold],
    inputs: Sequence[FoldInputs],
    starts: Sequence[Path | None],
) -> float | None:
    """Mean over folds of the best validation score; None if training diverges, or does not fit the device."""
    import torch

    device = pick_device(config.device)
    if device == "cpu":
        torch.set_num_threads(1)
    settings, fit_settings = settings_of(config, model)
    scores = []
    for fold, fixed, start in zip(folds, inputs, starts, strict=True):
        data = to_tensors(arrays, fixed, device)
        try:
            fitted = fit(
                registry_name(config, model),
                settings,
                data,
                data.shape,
                fold.train,
                fold.valid,
                fit_config=build_settings(FitConfig, fit_settings, f"models.{model}.fit"),
                seed=config.seeds[0],
                start=load_warm_start(start),
            )
        except (Diverged, torch.OutOfMemoryError):
            return None
        except NoTrainingSignal as error:
            raise DivergedError(f"{model}, fold {fold.index}: {error} Finished trials are kept.") from None
        by_ic = _stop_on(config, model) == "ic"
        scores.append(max(record.valid_ic if by_ic else record.valid_rank_ic for record in fitted.history))
    return sum(scores) / len(scores)


def _stop_on(config: Config, model: str) -> str:
    """What the model's fitting stops on, which is what the search maximises."""
    settings, fit_settings = settings_of(config, model)
    return str(settings.get("stop_on", fit_settings["stop_on"]))


def _failed() -> Any:  # noqa: ANN401 (an enum of optuna's, imported late)
    from optuna.trial import TrialState

    return TrialState.FAIL


def _plain(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's own log out of ours while a search runs."""
    import warnings

    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
