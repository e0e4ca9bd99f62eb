"""The inputs for building a model: the shape of the panel, and a validated configuration."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

ConfigT = TypeVar("ConfigT")
Value = int | float | str


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high`` inclusive, sampled uniformly, or log-uniformly with ``log``."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    values: tuple[Value, ...]


Space = Mapping[str, Range | Choice]
"""Search space: setting -> range or choices; ``fit.lr`` is a setting of the section ``fit``."""

FIT_SPACE: Space = {
    "fit.lr": Range(3e-4, 1e-2, log=True),
    "fit.weight_decay": Range(1e-4, 1.0, log=True),
}
"""Settings of the training of a network that are searched."""

DROPOUT_SPACE = Range(0.0, 0.4)


class IncompatibleConfig(ValueError):  # noqa: N818  (names the condition, as StopIteration does)
    """The options of a model do not fit the data; the message names the option and the solution."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the batches that a model is built for.

    Attributes
    ----------
    n_channels
        C, number of channels of a window.
    n_characteristics
        F, number of characteristics of a cross-section.
    window
        W, number of sessions of a window.
    n_groups
        Number of group codes, including code 0 (unknown): ``len(panel.groups_S) + 1``.
    characteristic_names
        Names of the F characteristics; may be empty if options refer to columns by index only.
    n_horizons
        K, number of horizons with a target: the shorter ones and, last, the label's.
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
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        named = len(self.characteristic_names)
        if named not in (0, self.n_characteristics):
            raise ValueError(
                f"{named} characteristic names were given for {self.n_characteristics} characteristics; "
                "give one per characteristic, or none."
            )


def parse_config(config_class: type[ConfigT], given: Mapping[str, Any], model: str) -> ConfigT:
    """Build a model's configuration dataclass from plain values; nested dataclasses are given as mappings.

    Raises
    ------
    ValueError
        If a key is unknown (the message lists the allowed keys), or a value is not allowed.
    """
    allowed = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(
            f"Model {model} has no option {unknown[0]!r}; allowed options are {', '.join(allowed) or 'none'}."
        )
    hints, values = get_type_hints(config_class), {}
    for key, value in given.items():
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            values[key] = parse_config(hints[key], value, f"{model}.{key}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return config_class(**values)


def column_of(characteristic: str | int, shape: Shape, model: str) -> int:
    """Column of a characteristic given by name or index; an unknown name raises IncompatibleConfig."""
    names = shape.characteristic_names
    if isinstance(characteristic, str):
        if characteristic not in names:
            raise IncompatibleConfig(
                f"{model} needs the characteristic {characteristic!r} but the data has "
                f"{', '.join(names) or 'no names'}; add it to the features, or set `characteristic`."
            )
        return names.index(characteristic)
    if not 0 <= characteristic < shape.n_characteristics:
        raise IncompatibleConfig(
            f"{model} needs characteristic column {characteristic} "
            f"but the data has {shape.n_characteristics}; columns are numbered from 0."
        )
    return characteristic


def require_at_least(least: int, **values: int) -> None:
    """Raise ValueError, naming the value, if one of ``values`` is smaller than ``least``."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}.")


def require_recent(days: int, window: int) -> None:
    """Raise IncompatibleConfig if a model uses more recent days than the window has."""
    if days > window:
        raise IncompatibleConfig(
            f"recent_days is {days} but the window has {window} sessions; "
            "lower recent_days or lengthen the window."
        )


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, listing the allowed values, if ``value`` is not one of them."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(allowed)}.")


def require_heads(width: int, heads: int, rotary: bool = False) -> None:
    """Raise ValueError if the width is not a multiple of the heads (twice the heads for rotary positions)."""
    parts = heads * (2 if rotary else 1)
    if heads < 1 or width < 1 or width % parts:
        raise ValueError(
            f"width is {width} with heads {heads}; the width must be a positive multiple of {parts}."
        )


def require_dropout(dropout: float, name: str = "dropout") -> None:
    """Raise ValueError if ``dropout`` is outside [0, 1)."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"{name} is {dropout}; it must be in [0, 1).")


def firm_key(name: str) -> int:
    """63 bits of the BLAKE2b hash of a name; it does not depend on the machine or on other firms."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
