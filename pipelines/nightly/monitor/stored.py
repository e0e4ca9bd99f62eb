"""Tables about a version that are computed once and stored next to it: ``<run>/monitoring/<model>/``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from pipelines.files import write_table
from pipelines.run.record import Run


def computed_once(
    run: Run, model: str, name: str, compute: Callable[[], pl.DataFrame], *, about: str = ""
) -> pl.DataFrame:
    """Return a stored table of a version, or compute and store it.

    Parameters
    ----------
    run, model
        The version.
    name
        Name of the table.
    compute
        Computes it.
    about
        Settings that it depends on, as part of the file's name.
    """
    path = Path(run.folder) / "monitoring" / model / f"{name}{about}.parquet"
    if path.is_file():
        return pl.read_parquet(path)
    frame = compute()
    write_table(path, frame)
    return frame
