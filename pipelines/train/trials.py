"""The trial ledger: every configuration that was tried on one output folder's results, and by which runs.

It belongs to the folder that runs are written to (``output``), whatever lakes they read: whoever looks at the
results there chooses among all of them. A trial is a model with its settings, features, label, universe and
folds on one market, every default filled in. Seeds repeat a trial, newer data or newer code continue it, and
a name of its own does not change it, so none of them counts again. A trial keeps every run that tried it.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.load import build_settings, digest
from pipelines.config.models import KEY
from pipelines.config.schema import Config
from pipelines.lake.lake import Lake
from pipelines.settings import Settings

FOLDER = "ledger"
"""Where an output folder keeps it: a Delta table, so that processes can write at once."""

_PATHS = ("prices", "securities", "fundamentals", "membership", "inputs")
_NOT_THE_MARKET = {"end", "hazards", "timeout_seconds", "retries", "batch", "identity"}
"""Settings of a source that say how it is asked, or how far the history goes, and not what market it is."""


def record_trials(output: Path, run_id: str, config: Config, settings: Settings) -> None:
    """Enter every configuration that is about to be trained.

    Parameters
    ----------
    output
        Folder of the runs.
    run_id
        The run that tries them.
    config
        Its configuration.
    settings
        `pipelines.run.identity.forecasting_settings` of that.
    """
    rows: dict[str, dict[str, Any]] = {}
    shared = {key: settings[key] for key in ("universe", "features", "label", "folds")}
    shared["folds"] = {key: value for key, value in settings["folds"].items() if key != "test_to"}
    for model in settings["models"].values():
        trial = {**model, **shared, "market": _market(config)}
        rows[digest(trial)] = {
            "trial_id": digest(trial),
            "run_id": run_id,
            "model": model[KEY],
            "config": json.dumps(trial, sort_keys=True, default=str),
            "created_at": dt.datetime.now(dt.UTC),
        }
    _ledger(output).upsert("trials", pl.DataFrame(list(rows.values())))


def read_trials(output: Path) -> pl.DataFrame:
    """Every trial, oldest first.

    Returns
    -------
    polars.DataFrame
        trial_id, model, config (the settings as JSON), first_tried, runs (ids, in the order in which they
        tried it). Empty where nothing was trained yet.
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


def trial_count(output: Path) -> int:
    """How many different configurations were tried on the results of an output folder so far."""
    ledger = _ledger(output)
    if not ledger.exists("trials"):
        return 0
    return ledger.read("trials", columns=["trial_id"])["trial_id"].n_unique()


def _ledger(output: Path) -> Lake:
    return Lake(output / FOLDER)


def _market(config: Config) -> Settings:
    """What market a source gives; files by their absolute paths."""
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
