"""Write the explorer of a run."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.explorer.contents import read_networks
from pipelines.explorer.page import render_explorer
from pipelines.run.record import Run

FILE = "explorer.html"
"""Name of the page in the folder of its run; the report links to it."""


def write_explorer(run: Run, model: str | None = None, out: Path | None = None) -> Path:
    """Write the explorer of a run's peer networks and return its path.

    Parameters
    ----------
    run
        The run.
    model
        The only model to show; None for every model that has a network.
    out
        File to write; None for ``explorer.html`` in the run's folder.

    Raises
    ------
    ConfigError
        If the run has no such model, the model has no network, or ``out`` cannot be written.
    DataError
        If the run has no network, or one of an earlier version.
    """
    text = render_explorer(run, read_networks(run, model))
    if out is None:
        return run.write_text(FILE, text)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{out} cannot be written ({error.strerror}); choose another file.") from error
    return out
