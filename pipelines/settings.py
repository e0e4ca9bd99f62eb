"""Sections of the configuration, and the types of settings that are places."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

from features.options import Options
from pipelines.secrets import masked

Settings = dict[str, Any]
RELATIVE_PATHS = "a relative path in a config is relative to the config's file, or to its root"
"""How a path was resolved, for the error of a file that is not there."""


class PathKind(Enum):
    """Marks the type of a setting that is a path, so that it is made absolute when a config is read.

    See `pipelines.config.reading`.
    """

    PATH = "path or URL"
    RUN = "name or folder of a run"
    STORE = "URI of a tracking store"


PathSetting = Annotated[str, PathKind.PATH]
"""A path, or a URL where the setting allows one."""
RunSetting = Annotated[str, PathKind.RUN]
"""A run: a name without ``/``, or the path of its folder."""
StoreSetting = Annotated[str, PathKind.STORE]
"""A tracking store: the URI of a server or of an SQLite file, or a path."""


class Section(Options):
    """A block of the configuration that is printed without its secrets."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the settings with their secrets masked."""
        for name, value in super().__repr_args__():
            yield name, masked_settings(value)


def masked_settings(value: Any) -> Any:  # noqa: ANN401 (settings hold anything)
    """Mask the secrets in every string of nested settings."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_settings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked_settings(item) for item in value)
    return value
