"""A source of files from settings whose paths may be `Path` objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.sources.files.opening import COMMAS, TextFormat
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig


def files_source(
    prices: Path,
    securities: Path | None = None,
    *,
    text: TextFormat | None = None,
    **settings: Any,  # noqa: ANN401 (settings hold anything)
) -> FilesSource:
    """Build the source of these files; the settings are those of `FilesSourceConfig`."""
    written = text or COMMAS
    given = {
        "prices": prices,
        "securities": securities,
        "separator": written.separator,
        "decimal": written.decimal,
        "encoding": written.encoding,
        **settings,
    }
    paths = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return FilesSource(FilesSourceConfig.model_validate({"kind": "files", **paths}))
