"""Sentences about known risks to a run's numbers: hazards of the source, the data and the label."""

from __future__ import annotations

import json

import polars as pl

from pipelines.config.load import settings_of
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.lake.lake import Lake
from pipelines.run.record import Run


def collect_hazards(run: Run, dataset: Dataset, lake: Lake) -> tuple[list[str], list[str]]:
    """Collect the current hazards and notes of the source, the quality rules, the panel and the label.

    They are recorded when a run is trained (`pipelines.run.provenance`), and a report reads that record.

    Returns
    -------
    hazards : list of str
        Sentences about what may make the run's numbers wrong.
    notes : list of str
        Sentences about what was left out or done differently.
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
            "Delay 0: the label starts at the same close that the forecast is made from, and no order can be "
            f"executed at that close. Read the result as a forecast, not as a strategy{longer}."
        )
    if run.config.folds.scheme == "combinatorial":
        hazards.append(
            "Combinatorial folds: models are trained on sessions before and after their tests, so no result "
            "could have been earned. The tables show the first of several paths; read how much the paths "
            "differ."
        )
    return hazards, [*notes, *dataset.notes, *_refitted(run.config)]


def _refitted(config: Config) -> list[str]:
    """Name the models that are refitted before they forecast the test (``fit.refit``)."""
    names = [model for model in config.models if settings_of(config, model)[1]["refit"]]
    if not names:
        return []
    models = "All models" if len(names) == len(config.models) else ", ".join(names)
    return [
        f"{models}: refitted to training and validation sessions before forecasting the test; "
        "validation scores are those of the fit to training sessions alone."
    ]


def _flagged(lake: Lake) -> list[str]:
    """Count the flagged rows by quality rule in one sentence; empty if there are none."""
    flags = lake.read("flags", filters=~pl.col("cleared")) if lake.exists("flags") else None
    if flags is None or flags.is_empty():
        return []
    by_rule = flags.group_by("rule").len().sort("len", "rule", descending=[True, False])
    counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
    return [
        f"The quality rules have set {flags.height:,} flag(s) on rows that are kept: {counts}; "
        "'peerglass quarantine list CONFIG' shows them."
    ]
