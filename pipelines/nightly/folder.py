"""The files of nights: ``<output>/nights/<config>/<session>/``."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import polars as pl

from pipelines.config.schema import Config


def nights_folder(config: Config) -> Path:
    """Folder of all nights of a config."""
    return Path(config.output) / "nights" / config.name


def night_folder(config: Config, session: dt.date) -> Path:
    """Folder of one night's files."""
    return nights_folder(config) / session.isoformat()


def write_text(path: Path, text: str) -> Path:
    """Write a text file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def write_frame(path: Path, frame: pl.DataFrame) -> Path:
    """Write a table as CSV or Parquet, by the ending of its name, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.suffix == ".csv":
            frame.write_csv(partial)
        else:
            frame.write_parquet(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def remove_leftovers(folder: Path) -> None:
    """Remove partial files that killed processes left; the caller holds the lock of the nights."""
    for partial in folder.rglob(".*.partial"):
        partial.unlink(missing_ok=True)
