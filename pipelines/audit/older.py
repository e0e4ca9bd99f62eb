"""Earlier deliveries of the same data, to compare histories with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions, read_tables
from pipelines.errors import ConfigError
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.run.fetch import make_source
from pipelines.sources.base import LiveSource
from pipelines.sources.settings import FilesSourceConfig

_FILES = ("prices", "securities", "fundamentals", "membership", "inputs")


def read_older(older: str, config: Config, lake: Lake) -> dict[str, pl.DataFrame]:
    """Read an earlier delivery.

    Parameters
    ----------
    older
        A folder with earlier copies of the files of the config's source, under the same names (files that are
        not there are not compared); or a config whose source reads the earlier delivery; or an earlier state
        of the lake, as for ``--as-of``.
    config
        Config of the data to compare with.
    lake
        Its lake.

    Raises
    ------
    ConfigError
        If ``older`` is none of these, or the source cannot be read again.
    DataError
        If a file cannot be read, or the lake holds no such state.
    """
    path = Path(older)
    if path.is_dir():
        return _from_folder(path, config)
    if path.is_file():
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise ConfigError(
                f"--vintage {older} is a file: give the folder that holds earlier copies of the source's "
                "files, or a config that reads them."
            )
        return _delivered(load_config(path, []))
    return read_tables(lake, input_versions(lake, older), config.through)


def _from_folder(folder: Path, config: Config) -> dict[str, pl.DataFrame]:
    source = config.source
    if not isinstance(source, FilesSourceConfig):
        raise ConfigError(
            f"--vintage {folder} is a folder, but the source of {config.name} is {source.kind}, which reads "
            "no files: give a config or an earlier state of the lake."
        )
    given = {name: getattr(source, name) for name in _FILES if getattr(source, name) is not None}
    copies = {name: folder / Path(str(file)).name for name, file in given.items()}
    found = {name: str(file) for name, file in copies.items() if file.exists()}
    if not found:
        names = ", ".join(file.name for file in copies.values())
        raise ConfigError(f"--vintage {folder} holds none of the source's files ({names}).")
    absent = {name: None for name in given if name not in found and name != "prices"}
    tables = _delivered(config.model_copy(update={"source": source.model_copy(update={**found, **absent})}))
    return {name: frame for name, frame in tables.items() if name in found}


def _delivered(config: Config) -> dict[str, pl.DataFrame]:
    source = make_source(config)
    if isinstance(source, LiveSource):
        raise ConfigError(f"The source of {config.name} is live and cannot deliver an earlier state again.")
    tables: Mapping[str, pl.DataFrame] = source.fetch().tables
    now = pl.lit(dt.datetime.now(dt.UTC)).dt.cast_time_unit("us")
    stamped = {
        name: frame.with_columns(source=pl.lit(config.source.kind), ingested_at=now)
        if name == "prices"
        else frame
        for name, frame in tables.items()
    }
    return {
        name: check(name, frame).valid for name, frame in stamped.items() if not name.startswith("truth_")
    }
