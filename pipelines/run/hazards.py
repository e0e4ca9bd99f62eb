"""Sentences about what may make a run's numbers wrong: hazards of the source, the data and the label."""

from __future__ import annotations

import json

import polars as pl

from pipelines.config.load import settings_of
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.lake.lake import Lake
from pipelines.run.record import Run


def collect_hazards(run: Run, dataset: Dataset, lake: Lake) -> tuple[list[str], list[str]]:
    """Collect the hazards and notes that hold now: of the source, the quality rules, the panel and the label.

    They are recorded when a run is trained (`pipelines.run.provenance`); a report reads that record.
    """
    hazards: list[str] = []
    notes: list[str] = []
    if lake.exists("sources"):
        for row in lake.read("sources").iter_rows(named=True):
            hazards += json.loads(row["hazards"])
            notes += json.loads(row["notes"])
    hazards += [*_flagged(lake), *dataset.panel.hazards]
    if run.config.label.delay == 0:
        longer = "; see the table of a longer delay" if run.config.label.extra_delays else ""
        hazards.append(
            "Delay 0: the label starts at the very close that the forecast is made from, at which nobody can "
            f"trade. Read it as a forecast, not as a strategy{longer}."
        )
    return hazards, [*notes, *dataset.notes, *_refitted(run.config)]


def _refitted(config: Config) -> list[str]:
    """Name the models whose forecasts come from a second fit; nothing where there are none."""
    names = [model for model in config.models if settings_of(config, model)[1]["refit"]]
    if not names:
        return []
    who = "All models" if len(names) == len(config.models) else ", ".join(names)
    return [
        f"{who}: fitted anew on training and validation sessions before forecasting the test; "
        "validation scores are those of the fit before."
    ]


def _flagged(lake: Lake) -> list[str]:
    """What the quality rules doubt and keep, in one sentence; none if they doubt nothing."""
    flags = lake.read("flags", filters=~pl.col("cleared")) if lake.exists("flags") else None
    if flags is None or flags.is_empty():
        return []
    by_rule = flags.group_by("rule").len().sort("len", "rule", descending=[True, False])
    counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
    return [
        f"{flags.height:,} flag(s) of the quality rules on rows that are kept and used: {counts}; "
        "'peerglass quarantine list CONFIG' shows them."
    ]
