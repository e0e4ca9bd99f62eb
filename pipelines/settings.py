"""Blocks of settings: frozen, strict about unknown keys, and shown without their secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipelines.secrets import masked

Settings = dict[str, Any]


class Section(BaseModel):
    """A frozen block of the configuration that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the settings with their secrets masked."""
        for name, value in super().__repr_args__():
            yield name, masked_settings(value)


def masked_settings(value: Any) -> Any:  # noqa: ANN401 (settings hold anything)
    """Mask the secrets in every text of nested settings."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_settings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked_settings(item) for item in value)
    return value
