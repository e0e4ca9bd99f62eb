"""``init_from``: beginning with the day encoder of an earlier run's fold that knew nothing of the test.

A run writes down what each of its folds saw (``folds.json``). Of the earlier run's folds that one is taken
whose training ended last among those that ended no later than this fold's, and that saw nothing of this
fold's test: neither its own validation labels nor what it was itself begun with reach there.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from backtest.splits import Fold
from models.fitting.fit import FittedState
from pipelines.config.load import init_from_of, settings_of
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError, DataError
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import Run, open_run

_FILE = "folds.json"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a fold's fits saw.

    Attributes
    ----------
    fold
        Its index.
    train_to
        Last training session; that of validation where a model is fitted again on both.
    seen_to
        Last session that reached the weights: the end of the last validation label, or what they were
        started from if that saw more.
    """

    fold: int
    train_to: dt.date
    seen_to: dt.date


def write_folds(run: Run, dataset: Dataset, folds: Sequence[Fold]) -> None:
    """Write down what the folds of a run see, for runs that will start from it."""
    rows = [asdict(_seen(run.config, dataset, fold)) for fold in folds]
    run.write_text(_FILE, json.dumps(rows, indent=1, default=str))


def warm_start_runs(config: Config) -> dict[str, str]:
    """Model -> id of the run whose day encoder it begins with; models that begin anew are left out.

    Raises
    ------
    ConfigError
        If there is no such run.
    """
    named = {model: init_from_of(config, model) for model in config.models}
    return {
        model: open_run(name, Path(config.output)).run_id for model, name in named.items() if name is not None
    }


def warm_start_checkpoint(config: Config, dataset: Dataset, fold: Fold, model: str, seed: int) -> Path | None:
    """Give the checkpoint that a model begins with on a fold; None where the config names no run.

    The same model of the earlier run is taken (:func:`_same_model`), with the same seed or, where it has not
    that, its first.

    Raises
    ------
    ConfigError
        If the earlier run has not the model or other channels, or each of its folds saw too much.
    DataError
        If the earlier run does not say what it saw.
    """
    name = init_from_of(config, model)
    if name is None:
        return None
    run = open_run(name, Path(config.output))
    theirs = _same_model(run, config, model)
    if run.config.features.channels != config.features.channels:
        raise ConfigError(
            f"init_from: run {run.run_id} was trained on other features.channels; set both alike."
        )
    earlier = _allowed(run, dataset, fold)
    seeds = run.config.seeds
    return run.checkpoint(theirs, earlier.fold, seed if seed in seeds else seeds[0])


def load_warm_start(checkpoint: Path | None) -> FittedState | None:
    """Read a starting checkpoint; DataError if it is missing or corrupted."""
    return None if checkpoint is None else load_checkpoint(checkpoint)[0].state()


def _same_model(run: Run, config: Config, model: str) -> str:
    """The earlier run's entry for a model: of the same name, named as the registry does, or the only one."""
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
            f"init_from: run {run.run_id} has {registered} as {', '.join(same)} and none of them as {model}; "
            "give this model the name of the one that it begins with."
        )
    raise ConfigError(
        f"init_from: run {run.run_id} has no model {registered!r} but {', '.join(run.config.models)}; "
        "name a run that has it."
    )


def _seen(config: Config, dataset: Dataset, fold: Fold) -> Seen:
    """What a fold sees, its starting points included."""
    last = min(int(fold.valid[-1]) + config.label.delay + config.label.horizon, dataset.panel.n_sessions - 1)
    seen = _date(dataset, last)
    for name in sorted({init_from_of(config, model) or "" for model in config.models} - {""}):
        seen = max(seen, _allowed(open_run(name, Path(config.output)), dataset, fold).seen_to)
    refits = any(settings_of(config, model)[1]["refit"] for model in config.models)
    trained = fold.valid if refits else fold.train
    return Seen(fold.index, _date(dataset, int(trained[-1])), seen)


def _allowed(run: Run, dataset: Dataset, fold: Fold) -> Seen:
    """The fold of an earlier run to start from, or in one sentence why there is none."""
    train_to, test_from = _date(dataset, int(fold.train[-1])), _date(dataset, int(fold.test[0]))
    trained = [seen for seen in _read(run) if seen.train_to <= train_to]
    if not trained:
        raise ConfigError(
            f"init_from: every fold of run {run.run_id} was trained beyond {train_to}, where the training of "
            f"fold {fold.index} ends; name a run that ended earlier."
        )
    clean = [seen for seen in trained if seen.seen_to < test_from]
    if not clean:
        raise ConfigError(
            f"init_from: run {run.run_id} saw sessions up to {min(seen.seen_to for seen in trained)} and the "
            f"test of fold {fold.index} starts on {test_from}; name a run that ended earlier."
        )
    return max(clean, key=lambda seen: (seen.train_to, seen.fold))


def _read(run: Run) -> list[Seen]:
    try:
        rows = json.loads((run.folder / _FILE).read_text(encoding="utf-8"))
        return [
            Seen(
                int(row["fold"]),
                dt.date.fromisoformat(row["train_to"]),
                dt.date.fromisoformat(row["seen_to"]),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Run {run.run_id} does not say which sessions its folds saw ({error}); run 'peerglass train' on "
            "its config again, which keeps finished folds."
        ) from None


def _date(dataset: Dataset, session: int) -> dt.date:
    day: dt.date = dataset.panel.dates_T[session].astype("datetime64[D]").item()
    return day
