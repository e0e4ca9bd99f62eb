"""Train a model version for use: on everything that is known at the close of a session, without a test."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from pipelines.audit.command import audit_before_training
from pipelines.config.folds import LiveFoldConfig
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.nightly.data import NightData
from pipelines.nightly.version import ModelVersion
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.run.open import create_run
from pipelines.run.record import record_run
from pipelines.train.walkforward import train


def live_config(config: Config, session: dt.date) -> Config:
    """Return the config of a live training: one model, and a live fold through a session.

    The model is ``nightly.model``. The lengths of the segments are ``nightly.train`` and ``nightly.valid``;
    where these are null, those of ``folds`` are used.

    Raises
    ------
    ConfigError
        If the model is not one of ``models``, or the length of the validation is not known.
    """
    model = nightly_model(config)
    folds, night = config.folds, config.nightly
    valid, train = night.valid, night.train
    if valid is None:
        if folds.scheme not in ("expanding", "rolling", "live"):
            raise ConfigError(
                f"nightly.valid is not set, and folds.scheme {folds.scheme} has no length in sessions; set "
                "nightly.valid to the number of validation sessions of a live training."
            )
        valid = folds.valid
    if train is None and folds.scheme in ("rolling", "live"):
        train = folds.train
    live = LiveFoldConfig(scheme="live", through=session, train=train, valid=valid, embargo=folds.embargo)
    return config.model_copy(update={"folds": live, "models": {model: config.models[model]}})


def nightly_model(config: Config) -> str:
    """Entry of ``models`` that is trained and scored every night.

    Raises
    ------
    ConfigError
        If ``nightly.model`` names no model.
    """
    model = config.nightly.model
    if model is None:
        return next(iter(config.models))
    if model not in config.models:
        raise ConfigError(
            f"nightly.model is {model!r}, but models has only {', '.join(config.models)}; name one of them."
        )
    return model


def train_live(
    config: Config, data: NightData, progress: Progress, locks: Locks, echo: Callable[[str], None]
) -> ModelVersion:
    """Train the nightly model of a config on the data of a night; repeating it resumes or does nothing.

    The quick audit comes first, as in ``peerglass run``. The run is not tracked here.

    Parameters
    ----------
    config
        The configuration.
    data
        Data of the night, built for this config.
    progress
        Reports progress and notes.
    locks
        Locks the run's folder.
    echo
        Prints the audit.

    Raises
    ------
    AuditError
        If a check of the audit failed and ``audit.on_failure`` is ``stop``.
    ConfigError, DataError
        If the folds do not fit the data.
    DivergedError
        If the training ended without a model.
    """
    live = live_config(config, data.session)
    run = create_run(live, data.lake, data.versions, data.dataset, progress, locks)
    record_run(run)
    audit_before_training(run, data.dataset, data.lake, progress, echo)
    train(run, data.dataset, data.lake, progress)
    return ModelVersion(run.run_id, nightly_model(config))
