"""The trial ledger: everything that was tried in an output folder, and the runs that tried it.

There is one ledger per ``output`` folder, even if its runs read different lakes, because a user selects among
all results in that folder. Three things are trials:

- a model with its settings, features, label, universe and folds on one market, with every default filled in.
  Other seeds, newer data, newer code or a different name of the model do not make a new trial;
- a signal of a user's file, by the digest of its values, its name, and the label, universe, books and delay
  that it is measured with on one market. Measuring it again, or with other costs, is not a new trial;
- a variant of either, by the settings that a sweep changes.

The ledger lists all runs of a trial.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.load import build_settings, digest
from pipelines.config.models import KEY
from pipelines.config.schema import Config
from pipelines.config.sections import OutputStoreConfig
from pipelines.lake.lake import Lake
from pipelines.settings import Settings

FOLDER = "ledger"
"""Name of the ledger in an output folder. It is a Delta table, so that processes can write concurrently."""

_PATHS = ("prices", "securities", "fundamentals", "membership", "inputs")
_NOT_THE_MARKET = {"end", "hazards", "timeout_seconds", "retries", "batch_size", "identity"}
"""Settings of a source that do not identify the market: how it is queried, and how long its history is."""


def record_trials(output: Path, run_id: str, config: Config, settings: Settings) -> None:
    """Record every model of a run as a trial, before it is trained.

    Parameters
    ----------
    output
        Folder of the runs.
    run_id
        Id of the run.
    config
        Config of the run.
    settings
        `pipelines.run.identity.forecasting_settings` of the config.
    """
    record(output, run_id, model_trials(config, settings).values())


def model_trials(config: Config, settings: Mapping[str, Any]) -> dict[str, Trial]:
    """Return the trial of every model of a run, by the model's name in the config.

    The arguments are those of `record_trials`.
    """
    shared = {key: settings[key] for key in ("universe", "features", "label", "folds")}
    shared["folds"] = {key: value for key, value in settings["folds"].items() if key != "test_to"}
    shared["market"] = _market(config)
    return {name: Trial(model[KEY], {**model, **shared}) for name, model in settings["models"].items()}


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried.

    Attributes
    ----------
    name
        Name of the model or of the signal, for display.
    settings
        Everything that makes it another trial than its neighbour, as plain JSON values.
    """

    name: str
    settings: Settings

    def variant(self, changed: Settings) -> Trial:
        """Return the trial of a variant: the same with the settings that a sweep changes."""
        return Trial(self.name, {**self.settings, "variant": changed})


def signal_trial(name: str, content: str, config: Config) -> Trial:
    """Return the trial of a signal that is measured with a config.

    Parameters
    ----------
    name
        Name of the signal.
    content
        Digest of its values (`pipelines.results.signals.reading.SignalTable.content`).
    config
        Market, universe, label, books and delay.
    """
    measured = config.model_dump(mode="json", include={"universe", "label", "backtest"})
    backtest = {key: measured["backtest"][key] for key in ("books", "delay")}
    settings = {"universe": measured["universe"], "label": measured["label"], "backtest": backtest}
    return Trial(name, {"signal": name, "content": content, **settings, "market": _market(config)})


def record(output: Path, run_id: str, trials: Iterable[Trial]) -> None:
    """Record trials in the ledger of an output folder; a trial that is there already is not counted again.

    Parameters
    ----------
    output
        Folder of the runs.
    run_id
        Id of the run or of the measured signal.
    trials
        What is about to be tried.
    """
    now = dt.datetime.now(dt.UTC)
    rows = {
        digest(trial.settings): {
            "trial_id": digest(trial.settings),
            "run_id": run_id,
            "model": trial.name,
            "config": json.dumps(trial.settings, sort_keys=True, default=str),
            "created_at": now,
        }
        for trial in trials
    }
    if rows:
        _ledger(output).upsert("trials", pl.DataFrame(list(rows.values())))


def read_trials(output: Path) -> pl.DataFrame:
    """Read all trials, oldest first.

    Returns
    -------
    polars.DataFrame
        trial_id, model, config (the settings as JSON), first_tried, runs (run ids, oldest first). Empty if
        nothing has been trained.
    """
    ledger = _ledger(output)
    schema = pl.Schema(
        {
            "trial_id": pl.String(),
            "model": pl.String(),
            "config": pl.String(),
            "first_tried": pl.Datetime("us", "UTC"),
            "runs": pl.List(pl.String()),
        }
    )
    if not ledger.exists("trials"):
        return pl.DataFrame(schema=schema)
    rows = ledger.read("trials").sort("created_at", "run_id")
    return (
        rows.group_by("trial_id", maintain_order=True)
        .agg(
            pl.col("model", "config").first(),
            pl.col("created_at").first().alias("first_tried"),
            pl.col("run_id").alias("runs"),
        )
        .select(schema.names())
    )


def share_trials(output: Path, store: OutputStoreConfig) -> None:
    """Exchange the trials of an output folder with the ledger of its copy, so that both hold all of them.

    Parameters
    ----------
    output
        Folder of the runs.
    store
        Section ``output_store``; without a URL, nothing is exchanged.
    """
    if store.url is None:
        return
    keys = ["trial_id", "run_id"]
    here, there = _ledger(output), Lake(f"{store.url.rstrip('/')}/{FOLDER}", store.options)
    for source, target in ((there, here), (here, there)):
        if source.exists("trials"):
            rows = source.read("trials")
            if target.exists("trials"):
                rows = rows.join(target.read("trials"), on=keys, how="anti")
            if rows.height:
                target.upsert("trials", rows)


def trial_count(output: Path) -> int:
    """Count the trials in the ledger of an output folder."""
    return read_trials(output).height


def _ledger(output: Path) -> Lake:
    return Lake(output / FOLDER)


def _market(config: Config) -> Settings:
    """Settings that identify the market of a source; files are identified by their absolute paths."""
    written = config.without_secrets()["source"]
    source = {key: value for key, value in written.items() if key not in _NOT_THE_MARKET}
    if config.source.kind == "simulated":
        from dataclasses import asdict

        from pipelines.sources.simulated.source import MarketConfig

        market = asdict(build_settings(MarketConfig, config.source.market, "source.market"))
        return source | {"market": {key: value for key, value in market.items() if key != "sessions"}}
    if config.source.kind == "files":
        paths = {key: source[key] for key in _PATHS if source[key] is not None and "://" not in source[key]}
        source |= {key: str(Path(path).resolve()) for key, path in paths.items()}
    return source
