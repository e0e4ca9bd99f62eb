"""Sections of the configuration: frozen, strict about unknown keys, printed without their secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from pipelines.secrets import masked

Settings = dict[str, Any]
UNKNOWN_KEY = "unknown_key"
"""Type of the error for an unknown key; its context holds the ``key`` and the ``known`` keys."""
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


class Section(BaseModel):
    """A frozen block of the configuration that refuses unknown keys.

    The refusal is a pydantic error of type `UNKNOWN_KEY`, located at the section. pydantic's own
    ``extra_forbidden`` does not name the keys that are allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        if isinstance(given, Mapping):
            for key in given:
                if key not in cls.model_fields:
                    context = {"key": str(key), "known": sorted(cls.model_fields)}
                    raise PydanticCustomError(UNKNOWN_KEY, "{key} is not a known name", context)
        return given

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
