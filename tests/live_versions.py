"""Two model versions that were trained for use, and signals of chosen skill that they gave at night."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from features.arrays import FloatArray
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.data import night_data
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.training import train_live
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config
from pipelines.run.locks import Locks
from pipelines.run.record import RecordedRun, open_run


@dataclass(frozen=True)
class Versions:
    """A lake, a config, and two versions of its model.

    ``old`` was trained through session ``at`` of ``days``, ``new`` 5 sessions later.
    """

    file: Path
    config: Config
    lake: Lake
    days: tuple[dt.date, ...]
    at: int
    old: ModelVersion
    new: ModelVersion

    def forget(self) -> None:
        """Remove all signals, aliases and nights."""
        for table in ("signals", "promotions", "nights"):
            shutil.rmtree(Path(self.config.lake) / table, ignore_errors=True)
        shutil.rmtree(Path(self.config.output) / "nights", ignore_errors=True)

    def write_nights(self, version: ModelVersion, skill: float, sessions: range, *, seed: int = 0) -> None:
        """Write nights of sessions ``at + sessions``; signals are ``skill`` times the label, and noise."""
        market = night_data(self.config, self.lake, None, Progress()).market
        label_TN = market.labels[self.config.label.delay]
        rng = np.random.default_rng(seed)
        nights = []
        for after in sessions:
            t = self.at + after
            signal_N = skill * _standardised(label_TN[t]) + rng.standard_normal(label_TN.shape[1])
            inside_N = market.universe_TN[t]
            frame = pl.DataFrame(
                {
                    "config": self.config.name,
                    "session": self.days[t],
                    "ticker": list(market.panel.tickers_N),
                    "version": str(version),
                    "signal": signal_N,
                    "rank": 0.5,
                    "seed_dispersion": 0.0,
                    "in_universe": inside_N,
                    "data_versions": "{}",
                    "revision": 1,
                    "created_at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
                }
            )
            nights.append(frame.with_columns(pl.when("in_universe").then("signal").alias("signal")))
        self.lake.upsert("signals", pl.concat(nights).select(schema("signals").column_names()))
        night = {
            **{"config": self.config.name, "state": "done", "data_versions": "{}", "warnings": "[]"},
            **{"version": str(self.old), "challenger": str(self.new), "rows": 0, "trades": 0},
            **{"seconds": 0.0, "peak_memory_bytes": 0, "created_at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)},
        }
        played = [{**night, "session": self.days[self.at + after]} for after in sessions]
        self.lake.upsert("nights", pl.DataFrame(played, schema=schema("nights").create_empty().schema))


def train_versions(folder: Path, settings: Mapping[str, Any]) -> Versions:
    """Ingest a market into a folder and train two versions of the config's first model."""
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    config = load_config(file)
    ingest_config(config, print)
    lake, progress = open_lake(config), Progress()
    days = tuple(lake.read("prices", columns=["date"])["date"].unique().sort())
    at = 260
    trained = []
    for t in (at, at + 5):
        with Locks(wait=False, notify=progress.note) as locks:
            data = night_data(config, lake, days[t], progress)
            trained.append(train_live(config, data, progress, locks, print))
        write_audit(open_run(trained[-1].run_id, Path(config.output)), "pass")
    return Versions(file, config, lake, days, at, *trained)


def write_audit(run: RecordedRun, verdict: str) -> None:
    """Write the table of an audit with one check; a real one takes longer than the training."""
    row = {"check": "future", "verdict": verdict, "sentence": "as told", "seconds": 0.0}
    run.write_table("audit", pl.DataFrame([row]))


def _standardised(label_N: FloatArray) -> FloatArray:
    """Label in cross-sectional standard deviations; 0 where it is not known."""
    known_N = np.isfinite(label_N)
    score_N = np.zeros_like(label_N)
    if known_N.any():
        score_N[known_N] = (label_N[known_N] - label_N[known_N].mean()) / label_N[known_N].std()
    return score_N
