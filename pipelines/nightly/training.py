"""Training of model versions for use: whether one is due, and on what it is trained."""

import datetime as dt
from collections.abc import Callable, Sequence

import polars as pl

from backtest.splits.folds import LivePlan
from pipelines.audit.command import audit_before_training
from pipelines.config.load import members_of
from pipelines.config.nights import RetrainConfig
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.nightly.data import NightData
from pipelines.nightly.result import ModelVersion, Retraining, read_warnings
from pipelines.nightly.settings import nightly_model
from pipelines.nightly.versions import named
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.run.open import create_run
from pipelines.run.record import record_run
from pipelines.train.walkforward import train

DRIFT_CHECKS = ("cusum", "drift")  # checks whose warnings are alarms of the monitoring


def retraining_due(
    config: RetrainConfig, sessions: Sequence[dt.date], promotions: pl.DataFrame, nights: pl.DataFrame
) -> Retraining | None:
    """Why a version is trained: the first night of another month, or once, the night after an alarm."""
    why, session, trained = None, sessions[-1], last_training(promotions)
    if named(promotions, "champion") is None:
        return Retraining(why="first version", alias="champion")
    if config.when != "never" and trained is None:
        why = "no training by a night is recorded"
    elif config.when == "sessions" and trained is not None:
        since = sum(one > trained for one in sessions)
        why = f"{since} sessions since the training of {trained}" if since >= config.every else None
    elif config.when == "monthly" and trained is not None and session.replace(day=1) > trained:
        why = f"first night of {session:%Y-%m}"
    if why is None and config.on_drift:
        last, before = (_alarms(nights[i : i + 1]) for i in (0, 1))
        new = sorted(f"{check} of {subject}" if subject else check for check, subject in last - before)
        why = f"alarm of {', '.join(new)}" if new else None
    return None if why is None else Retraining(why=why, alias="challenger")


def last_training(promotions: pl.DataFrame) -> dt.date | None:
    """Return the session of the night that trained the newest version; None if no night did."""
    known = promotions.drop_nulls("version").sort("number")
    newest = known.unique("version", keep="first", maintain_order=True)["session"].max()
    return newest if isinstance(newest, dt.date) else None


def _alarms(night: pl.DataFrame) -> set[tuple[str, str | None]]:
    return {one.key for text in night["warnings"] for one in read_warnings(text) if one.check in DRIFT_CHECKS}


def live_config(config: Config, session: dt.date) -> Config:
    """Return the config of a live training: ``nightly.model`` with its members, if any, and a live fold."""
    model = nightly_model(config)
    folds, valid, train = config.folds, config.nightly.valid, config.nightly.train
    if valid is None:
        if folds.scheme not in ("expanding", "rolling", "live"):
            raise ConfigError(
                f"nightly.valid is not set, and folds.scheme {folds.scheme} has no length in sessions; set "
                "nightly.valid to the number of validation sessions of a live training."
            )
        valid = folds.valid
    if train is None and folds.scheme in ("rolling", "live"):
        train = folds.train
    live = LivePlan(through=session, train=train, valid=valid, embargo=folds.embargo)
    models = {name: config.models[name] for name in (model, *members_of(config, model))}
    return config.model_copy(update={"folds": live, "models": models})


def train_live(
    config: Config, data: NightData, progress: Progress, locks: Locks, echo: Callable[[str], None]
) -> ModelVersion:
    """Audit and train the nightly model on the data of a night; repeating it resumes or does nothing."""
    live = live_config(config, data.session)
    run = create_run(live, data.lake, data.versions, data.dataset, progress, locks)
    record_run(run)
    audit_before_training(run, data.dataset, data.lake, progress, echo)
    train(run, data.dataset, data.lake, progress)
    return ModelVersion(run.run_id, nightly_model(config))
