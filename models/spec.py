"""What a model needs to be built: the panel's shape, and a configuration checked on construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

ConfigT = TypeVar("ConfigT")


class IncompatibleConfig(ValueError):  # noqa: N818  (what the options are to the data)
    """Options that these data cannot serve; the message names the option and the cure."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the batch a model is built for.

    Attributes
    ----------
    n_channels
        C, channels of a window.
    n_characteristics
        F, characteristics of a cross-section.
    window
        W, sessions of a window.
    n_groups
        Group codes including 0, the unknown one: ``len(panel.groups_S) + 1``.
    characteristic_names
        Names of the F characteristics, or empty when columns are only ever asked for by index.
    n_horizons
        K, horizons that have a target: the label's, and the shorter ones before it.
    """

    n_channels: int
    n_characteristics: int
    window: int
    n_groups: int
    characteristic_names: tuple[str, ...] = ()
    n_horizons: int = 1

    def __post_init__(self) -> None:
        for name in ("n_channels", "n_characteristics", "window", "n_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a shape needs at least 1.")
        named = len(self.characteristic_names)
        if named not in (0, self.n_characteristics):
            raise ValueError(
                f"{named} characteristic names were given for {self.n_characteristics} characteristics: "
                "give one name each, or none."
            )


def parse_config(config_class: type[ConfigT], given: Mapping[str, Any], model: str) -> ConfigT:
    """Build a model's configuration dataclass from plain values, mappings for its nested ones.

    Raises
    ------
    ValueError
        When a key is unknown (the answer lists the allowed ones) or a value is refused.
    """
    allowed = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(
            f"Model {model} has no option {unknown[0]!r}: allowed are {', '.join(allowed) or 'none'}."
        )
    hints, values = get_type_hints(config_class), {}
    for key, value in given.items():
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            values[key] = parse_config(hints[key], value, f"{model}: {key}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return config_class(**values)


def column_of(wanted: str | int, shape: Shape, model: str) -> int:
    """Column of a characteristic given by its name or its place; ValueError names the known ones."""
    names = shape.characteristic_names
    if isinstance(wanted, str):
        if wanted not in names:
            raise IncompatibleConfig(
                f"{model} needs the characteristic {wanted!r} but the data has "
                f"{', '.join(names) or 'no names'}: add it to the features, or set `characteristic`."
            )
        return names.index(wanted)
    if not 0 <= wanted < shape.n_characteristics:
        raise IncompatibleConfig(
            f"{model}'s characteristic is column {wanted} but there are {shape.n_characteristics}: "
            "set a column from 0."
        )
    return wanted


def require_at_least(least: int, **values: int) -> None:
    """Refuse the first value that is smaller, by its name."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}: it must be at least {least}.")


def require_recent(days: int, window: int) -> None:
    """Refuse more recent days than a window has."""
    if days > window:
        raise IncompatibleConfig(
            f"recent_days is {days} but the window has {window} sessions: "
            "lower recent_days or lengthen the window."
        )


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the allowed ones, naming them."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(allowed)}.")


def require_heads(width: int, heads: int, rotary: bool = False) -> None:
    """Refuse a width that its heads cannot share equally (in pairs, for rotary positions)."""
    parts = heads * (2 if rotary else 1)
    if heads < 1 or width < 1 or width % parts:
        raise ValueError(
            f"width is {width} with heads {heads}: the width must be a positive multiple of {parts}."
        )


def require_dropout(dropout: float) -> None:
    """Refuse a dropout that is no probability below 1."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}: it must lie in [0, 1).")
