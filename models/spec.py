"""The inputs for building a model: the shape of the panel, and the kinds of its options."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo

BENCHMARKS: Final[Mapping[str, str]] = {"ridge": "ridge", "lightgbm": "LightGBM"}
"""The models of the registry that every other one is compared with, and their titles."""

Value = int | float | str
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _divides_width(heads: int, info: ValidationInfo) -> int:
    """Check heads against the width before them: ``peer_heads`` against ``peer_width``, others ``width``."""
    width = info.data.get("peer_width" if info.field_name == "peer_heads" else "width", heads)
    if width % heads:
        raise ValueError(f"width is {width} with heads {heads}; the width must be a multiple of {heads}.")
    return heads


Heads = Annotated[Count, AfterValidator(_divides_width), Field(validate_default=True)]
"""Number of attention heads; the width, a field before it, must be a multiple."""


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

FIT_SPACE: Space = {"fit.lr": Range(1e-4, 1e-2, log=True), "fit.weight_decay": Range(1e-4, 1.0, log=True)}
"""Settings of the training of a network that are searched."""

DROPOUT_SPACE = Range(0.0, 0.4)


class IncompatibleConfig(ValueError):  # noqa: N818  (names the condition, as StopIteration does)
    """The options of a model do not fit the data; the message names the option and the solution."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the batches that a model is built for."""

    n_channels: int  # C, number of channels of a window
    n_characteristics: int  # F, number of characteristics of a cross-section
    window: int  # W, number of sessions of a window
    n_groups: int  # number of group codes, including code 0 (unknown): ``len(panel.groups_S) + 1``
    # names of the F characteristics; may be empty if options refer to columns by index only
    characteristic_names: tuple[str, ...] = ()
    n_horizons: int = 1  # K, number of horizons with a target: the shorter ones and, last, the label's

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


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, listing the allowed values, if ``value`` is not one of them."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(allowed)}.")


def firm_key(name: str) -> int:
    """63 bits of the BLAKE2b hash of a name; it does not depend on the machine or on other firms."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
