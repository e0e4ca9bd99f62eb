"""Paths of a user's files: home folders, environment variables and wildcards."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pipelines.errors import ConfigError, DataError
from pipelines.settings import RELATIVE_PATHS
from pipelines.sources.files.text import EXCEL

_TEXT: Final = (".csv", ".txt", ".tsv")
_EXTENSIONS: Final = (*_TEXT, *(f"{one}.gz" for one in _TEXT), ".zip", *EXCEL, ".parquet", ".pq")


def resolve(path: Path) -> list[Path]:
    """Expand ``~``, environment variables and the wildcards ``*?[]`` of a path into files, sorted by name.

    If a file has exactly the given name, the name is not treated as a pattern. A folder stands for all its
    files that can be read; text files (.txt) beside others are notes. Hidden files are left out.

    Raises
    ------
    ConfigError
        If the path contains an environment variable that is not set, or the extension of a file is not known.
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
    if given.is_dir():
        files = sorted(path for path in given.iterdir() if path.is_file() and _is_data(path))
        if not files:
            raise DataError(f"the folder {given} has no file of prices ({', '.join(_EXTENSIONS)})")
        return [file for file in files if file.suffix.lower() != ".txt"] or files
    pattern = bool(re.search(r"[*?\[]", str(given))) and not given.is_file()
    files = sorted(_matches(given)) if pattern else [given]
    for file in files:
        if not _is_data(file):
            raise ConfigError(
                f"{file} is neither CSV, Excel nor Parquet by its name; the extensions that are read are "
                f"{', '.join(_EXTENSIONS)}: {'narrow the pattern' if pattern else 'convert or rename it'}"
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


def _is_data(file: Path) -> bool:
    return file.name.lower().endswith(_EXTENSIONS) and not _is_hidden(file)


def _is_hidden(file: Path) -> bool:
    return file.name.startswith((".", "~$"))


def _matches(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)  # the current folder where the pattern is relative
    return [
        path
        for path in root.glob(str(pattern.relative_to(pattern.anchor)))
        if path.is_file() and not _is_hidden(path)
    ]
