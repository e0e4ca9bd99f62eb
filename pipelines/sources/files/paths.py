"""Paths of a user's files: home folders, environment variables and wildcards."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pipelines.errors import ConfigError, DataError
from pipelines.settings import RELATIVE_PATHS

_EXTENSIONS: Final = (".csv", ".csv.gz", ".parquet", ".pq")


def resolve(path: Path) -> list[Path]:
    """Expand ``~``, environment variables and the wildcards ``*?[]`` of a path into files, sorted by name.

    If a file has exactly the given name, the name is not treated as a pattern.

    Raises
    ------
    ConfigError
        If the path contains an environment variable that is not set, or a file is neither CSV nor Parquet.
    DataError
        If no such file exists.
    """
    expanded = os.path.expandvars(str(path))
    if unset := re.search(r"\$\{?\w+\}?", expanded):
        raise ConfigError(
            f"path {path} contains the environment variable {unset.group()}, which is not set: set it"
        )
    try:
        given = Path(expanded).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"path {path} contains a home folder that cannot be found: write the full path"
        ) from error
    pattern = bool(re.search(r"[*?\[]", str(given))) and not given.is_file()
    files = sorted(_matches(given)) if pattern else [given]
    for file in files:
        if not file.name.lower().endswith(_EXTENSIONS):
            raise ConfigError(
                f"{file} is neither CSV (.csv, .csv.gz) nor Parquet (.parquet, .pq): "
                f"{'narrow the pattern' if pattern else 'convert it'}"
            )
    if pattern and not files:
        raise DataError(
            f"no file matches {given}: correct the path in the config's source ({RELATIVE_PATHS})"
        )
    if not pattern and not given.is_file():
        raise DataError(
            f"there is no file {given}: correct the path in the config's source ({RELATIVE_PATHS})"
        )
    return files


def _matches(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)  # the current folder where the pattern is relative
    return [path for path in root.glob(str(pattern.relative_to(pattern.anchor))) if path.is_file()]
