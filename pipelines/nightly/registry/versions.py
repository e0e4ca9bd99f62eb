"""What the run of a model version says about it: completeness, audit, and the last session it has seen."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.nightly.version import ModelVersion
from pipelines.run.checkpoints import checkpoint_exists
from pipelines.run.record import Run, open_run


def open_version(version: ModelVersion, output: Path) -> Run:
    """Open the run of a version.

    Raises
    ------
    ConfigError
        If the run's config has no such model.
    DataError
        If the run's folder is gone or damaged.
    """
    folder = output / version.run_id
    if not (folder / "run.json").is_file():
        raise DataError(
            f"The run of {version} is not under {output.absolute()}; restore its folder, or look "
            "elsewhere with --output FOLDER."
        )
    run = open_run(str(folder))
    if version.model not in run.config.models:
        known = ", ".join(run.config.models)
        raise ConfigError(f"Run {version.run_id} has no model {version.model!r}; it has {known}.")
    return run


def missing_seeds(run: Run, model: str) -> tuple[int, ...]:
    """Return the seeds whose fitted model is not in the run's folder."""
    return tuple(seed for seed in run.config.seeds if not checkpoint_exists(run.checkpoint(model, 0, seed)))


def audit_verdict(run: Run) -> str | None:
    """Return the worst verdict of a run's last audit, and ``None`` if none was made."""
    table = run.read_table("audit")
    if table is None:
        return None
    present = set(table["verdict"])
    return next((one for one in ("fail", "warn", "pass") if one in present), "skipped")


def failed_checks(run: Run) -> tuple[str, ...]:
    """Return the names of the checks that failed in a run's last audit."""
    table = run.read_table("audit")
    return () if table is None else tuple(table.filter(pl.col("verdict") == "fail")["check"])


def trained_through(run: Run) -> dt.date:
    """Return the session at whose close a version was trained: it has seen no label that ends later."""
    folds = run.read_table("folds")
    if folds is None or folds.is_empty():
        raise DataError(f"Run {run.run_id} was not trained yet; run its night again.")
    through: dt.date = folds["valid_to"].max()  # type: ignore[assignment]  # a column of dates
    return through
