"""The grid of a sweep: the settings of ``backtest`` that change, and all combinations of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.config.backtest import BacktestConfig
from pipelines.errors import ConfigError

MAX_VARIANTS = 10_000

_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting of a sweep: its name as the user wrote it, its keys inside ``backtest``, and values."""

    name: str
    path: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """One combination: values by axis, those that are no setting of the book, and the whole section."""

    values: Mapping[str, Any]
    backtest: BacktestConfig
    assumptions: Mapping[str, Any]


def parse_axes(text: str, backtest: BacktestConfig, book: str) -> tuple[Axis, ...]:
    """Parse ``'quantiles=5,10; delay=0,1,2; half_spread_bps=0,5'``.

    A name is a key of the swept book (``quantiles``), of the costs or the execution (``half_spread_bps``), or
    of the section itself (``delay``); or the dotted path of any of them inside the section
    (``costs.half_spread_bps``). Values are separated by commas and written as in YAML.
    """
    known = _settings(backtest, book)
    axes: list[Axis] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, listed = (piece.strip() for piece in part.partition("="))
        if not (name and equals and listed):
            raise ConfigError(
                f"--sweep has the part {part!r}; write name=value,value, and separate settings by "
                "semicolons, as in 'quantiles=5,10; delay=1,2'."
            )
        paths = [path for path in known if ".".join(path) == name] or [p for p in known if p[-1] == name]
        if len(paths) != 1:
            found = ", ".join(".".join(path) for path in paths or known)
            problem = "more than one setting" if paths else "no setting"
            raise ConfigError(
                f"--sweep names {name!r}, which is {problem} of backtest; choose among: {found}."
            )
        if any(axis.path == paths[0] for axis in axes):
            raise ConfigError(f"--sweep names {name!r} twice; list all its values at once.")
        axes.append(Axis(name, paths[0], _values(name, listed)))
    if not axes:
        raise ConfigError("--sweep is empty; write for example 'delay=0,1,2; half_spread_bps=0,5'.")
    return tuple(axes)


def variants(axes: Sequence[Axis], backtest: BacktestConfig, book: str) -> list[VariantSettings]:
    """All combinations of the axes' values, the last axis changing fastest, with the swept book alone."""
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_VARIANTS:
        raise ConfigError(
            f"--sweep has {count:,} combinations; at most {MAX_VARIANTS:,} are measured at once."
        )
    settings = backtest.model_dump()
    settings["books"] = {book: settings["books"][book]}
    return [_variant(axes, values, settings) for values in itertools.product(*(axis.values for axis in axes))]


def _variant(axes: Sequence[Axis], values: Sequence[Any], settings: Mapping[str, Any]) -> VariantSettings:
    changed: Any = settings
    for axis, value in zip(axes, values, strict=True):
        changed = _replaced(changed, axis.path, value)
    try:
        section = BacktestConfig.model_validate(changed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ConfigError(f"--sweep: backtest.{where}: {first['msg']} (given: {first['input']!r}).") from None
    by_name = {axis.name: value for axis, value in zip(axes, values, strict=True)}
    assumed = {axis.name: by_name[axis.name] for axis in axes if axis.path[0] != "books"}
    return VariantSettings(by_name, section, assumed)


def _replaced(settings: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:  # noqa: ANN401
    """A copy with one setting replaced; the original is shared by all variants."""
    key, *rest = path
    return {**settings, key: _replaced(settings[key], rest, value) if rest else value}


def _values(name: str, listed: str) -> tuple[Any, ...]:
    try:
        values = yaml.safe_load(f"[{listed}]")
    except yaml.YAMLError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, _SCALARS) for value in values):
        raise ConfigError(
            f"--sweep: the values of {name}, {listed!r}, must be plain values separated by commas."
        )
    if len(set(map(repr, values))) < len(values):
        raise ConfigError(f"--sweep lists a value of {name} twice: {listed}; remove one.")
    return tuple(values)


def _settings(backtest: BacktestConfig, book: str) -> list[tuple[str, ...]]:
    """Paths of all plain settings of the section, and of the swept book."""
    if book not in backtest.books:
        raise ConfigError(f"There is no book {book!r}; the books are {', '.join(backtest.books)}.")
    section = backtest.model_dump()
    section["books"] = {book: {k: v for k, v in section["books"][book].items() if k != "kind"}}
    return [path for path in _leaves(section) if path != ("risk_free",)]


def _leaves(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key)
