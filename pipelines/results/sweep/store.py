"""Sweeps on disk: ``<run>/sweeps/<id>/`` holds the variants, their daily returns, the page and the record."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipelines.results.sweep.sweep import Sweep
from pipelines.run.evaluations import Evaluated

_FOLDER, _RECORD = "sweeps", "sweep.json"


class SweepRecord(BaseModel):
    """What a sweep measured, and how.

    Attributes
    ----------
    sweep
        Id: the digest of the axes, of the section ``backtest``, of the signals and of the code that measures.
    run_id
        Id of the run or of the measured file.
    axes
        Name of each axis -> its values.
    book
        The swept book.
    made_at
        When it was measured.
    trials
        Trials that counted when the sweep was made, its books included.
    sentences
        What the page and the terminal say about the sweep as a whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    run_id: str
    axes: dict[str, tuple[str | int | float | bool | None, ...]]
    book: str
    made_at: dt.datetime
    trials: int
    sentences: tuple[str, ...]


def store_sweep(run: Evaluated, record: SweepRecord, sweep: Sweep, page: str) -> Path:
    """Write a sweep atomically and return its folder; an earlier one with the same id is replaced."""
    folder = run.folder / _FOLDER / record.sweep
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    sweep.table.write_parquet(partial / "variants.parquet")
    sweep.daily.write_parquet(partial / "daily.parquet")
    (partial / "sweep.html").write_text(page, encoding="utf-8")
    (partial / _RECORD).write_text(record.model_dump_json(indent=1), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    partial.replace(folder)
    return folder
