"""``init_from``: start a model from the day encoder of an earlier run, without look-ahead.

A run records for each of its folds which sessions its training and validation have seen (``folds.json``). A
fold of the earlier run can be used if its training ended no later than the training of the new fold, and if
nothing that it has seen reaches into the test of the new fold. That includes its validation labels, and
everything that its own warm start has seen. Of these folds, the one whose training ended last is used.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from backtest.splits.folds import Fold
from pipelines.config.load import model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError, DataError
from pipelines.run.record import RecordedRun, open_named_run

if TYPE_CHECKING:
    from models.fitted import FittedState

_FILE = "folds.json"


@dataclass(frozen=True, slots=True)
class SeenSessions:
    """The sessions that the models of a fold have seen."""

    fold: int
    train_to: dt.date  # last training session; the last validation session if a model is refitted on both
    seen_to: dt.date  # last session that influenced the weights: of validation labels or its warm start


_SEEN = TypeAdapter(list[SeenSessions])


def write_folds(run: RecordedRun, dataset: Dataset, folds: Sequence[Fold]) -> None:
    """Record which sessions the folds of a run see, for later runs that start from it."""
    seen = [_seen(run.config, dataset, fold) for fold in folds]
    run.write_text(_FILE, _SEEN.dump_json(seen, indent=1).decode())


def warm_start_runs(config: Config) -> dict[str, str]:
    """Map each model with ``init_from`` to the id of the run whose day encoder it starts from."""
    named = {model: model_settings(config, model).init_from for model in config.models}
    return {model: open_named_run(name, config).run_id for model, name in named.items() if name is not None}


def warm_start_checkpoint(config: Config, dataset: Dataset, fold: Fold, model: str, seed: int) -> Path | None:
    """Return the checkpoint that a model starts from on a fold; None if it has no ``init_from``."""
    name = model_settings(config, model).init_from
    if name is None:
        return None
    run = open_named_run(name, config)
    source_model = _same_model(run, config, model)
    if run.config.features.channels != config.features.channels:
        raise ConfigError(
            f"init_from: run {run.run_id} was trained on different features.channels; use the same in both."
        )
    source_fold = _latest_usable_fold(run, dataset, fold)
    seeds = run.config.seeds
    return run.checkpoint(source_model, source_fold.fold, seed if seed in seeds else seeds[0])


def load_warm_start(checkpoint: Path | None) -> FittedState | None:
    """Read the checkpoint of a warm start, if any; DataError if it is missing or corrupted."""
    if checkpoint is None:
        return None
    from pipelines.run.checkpoints import load_checkpoint  # imports PyTorch

    return load_checkpoint(checkpoint)[0].state()


def _same_model(run: RecordedRun, config: Config, model: str) -> str:
    """Find the model of the earlier run that has the same architecture."""
    registered = registry_name(config, model)
    same = [name for name in run.config.models if registry_name(run.config, name) == registered]
    if model in same:
        return model
    if registered in same:
        return registered
    if len(same) == 1:
        return same[0]
    if same:
        raise ConfigError(
            f"init_from: run {run.run_id} has several models of type {registered} ({', '.join(same)}) and "
            f"none is named {model}; give {model} the name of the model that it should start from."
        )
    raise ConfigError(
        f"init_from: run {run.run_id} has no model {registered!r}, only {', '.join(run.config.models)}; "
        "name a run that has it."
    )


def _seen(config: Config, dataset: Dataset, fold: Fold) -> SeenSessions:
    """Sessions that a fold sees, including those seen by its warm starts."""
    latest = max(int(fold.train[-1]), int(fold.valid[-1]))  # combinatorial folds may train after validation
    last = min(latest + config.label.delay + config.label.horizon, dataset.panel.n_sessions - 1)
    starts = {model_settings(config, model).init_from for model in config.models} - {None}
    runs = [open_named_run(str(name), config) for name in starts]
    seen = [_date(dataset, last), *(_latest_usable_fold(run, dataset, fold).seen_to for run in runs)]
    refits = any(model_settings(config, model).fit.refit for model in config.models)
    trained_to = latest if refits else int(fold.train[-1])
    return SeenSessions(fold.index, _date(dataset, trained_to), max(seen))


def _latest_usable_fold(run: RecordedRun, dataset: Dataset, fold: Fold) -> SeenSessions:
    """Find the fold of an earlier run to start from; ConfigError with the reason if there is none."""
    train_to = _date(dataset, int(fold.train[-1]))
    if len(fold.test):
        test_from = _date(dataset, int(fold.test[0]))
    else:  # a live fold forecasts the sessions after its data
        test_from = _date(dataset, dataset.panel.n_sessions - 1) + dt.timedelta(days=1)
    trained = [seen for seen in read_seen_sessions(run) if seen.train_to <= train_to]
    if not trained:
        raise ConfigError(
            f"init_from: every fold of run {run.run_id} was trained on sessions after {train_to}, where the "
            f"training of fold {fold.index} ends; name a run whose training ended earlier."
        )
    clean = [seen for seen in trained if seen.seen_to < test_from]
    if not clean:
        raise ConfigError(
            f"init_from: run {run.run_id} has seen sessions up to {min(seen.seen_to for seen in trained)}, "
            f"but the test of fold {fold.index} starts on {test_from}; name a run that ended earlier."
        )
    return max(clean, key=lambda seen: (seen.train_to, seen.fold))


def read_seen_sessions(run: RecordedRun) -> list[SeenSessions]:
    """Read which sessions the folds of a run have seen."""
    try:
        seen: list[SeenSessions] = _SEEN.validate_json((run.folder / _FILE).read_bytes())
        return seen
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(
            f"Run {run.run_id} has not recorded which sessions its folds have seen ({reason}); run "
            "'peerglass train' on its config again, which adds the record and keeps finished folds."
        ) from None


def _date(dataset: Dataset, session: int) -> dt.date:
    day: dt.date = dataset.panel.dates_T[session].item()
    return day
