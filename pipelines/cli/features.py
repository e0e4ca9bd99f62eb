"""``peerglass features``: the feature library as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli import JsonOption
from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from features.library.registry import Feature

FIELDS = ("close", "open", "high", "low", "volume", "group", "statements")
"""Kinds of data that a feature can need."""
_WIDTH_WITHOUT_TERMINAL = 250  # columns of the table when the output is a pipe or a file


def features(
    family: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Only this family, for example momentum.")
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Only features that use this kind of data, for example volume or statements."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the feature library: formula, window, warm-up, unit, required data and source of each feature."""
    if as_json:
        print(to_json(select(family, needs)))
    else:
        print_table(select(family, needs))


def select(family: str | None = None, needs: str | None = None) -> list[Feature]:
    """List channels and characteristics, optionally of one family and of those that use one kind of data."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS

    families = (*CHANNELS.families, *CHARACTERISTICS.families)
    if family is not None and family not in families:
        raise ConfigError(f"--family {family} does not exist: choose among {', '.join(families)}.")
    if needs is not None and needs not in FIELDS:
        raise ConfigError(f"--needs {needs} does not exist: choose among {', '.join(FIELDS)}.")
    return [
        feature
        for feature in (*CHANNELS.values(), *CHARACTERISTICS.values())
        if family in (None, feature.family) and (needs is None or needs in _kinds(feature))
    ]


def _kinds(feature: Feature) -> tuple[str, ...]:
    """Kinds of data that a feature uses, in the order of `FIELDS`."""
    kinds = {need.partition(":")[0] for need in feature.needs}
    return tuple(field for field in FIELDS if field in kinds)


def needed(feature: Feature) -> str:
    """List the data that a feature uses, items of statements by name."""
    kinds = (kind for kind in _kinds(feature) if kind != "statements")
    return ", ".join([*kinds, *sorted(need.partition(":")[2] for need in feature.needs if ":" in need)])


def as_table(features: Iterable[Feature]) -> Table:
    """Lay features out as a table for a terminal."""
    from rich.table import Table

    table = Table(show_lines=False, header_style="bold", pad_edge=False)
    for heading in ("name", "family", "formula", "window", "warm-up", "unit", "needs", "source"):
        numeric = heading in ("window", "warm-up")
        table.add_column(heading, overflow="fold", justify="right" if numeric else "left")
    for one in features:
        numbers = (str(one.window), str(one.warmup))
        table.add_row(one.name, one.family, one.formula, *numbers, one.unit, needed(one), one.source)
    return table


def print_table(features: Iterable[Feature]) -> None:
    """Print the table in the width of the terminal, and the rules that apply to all features."""
    from rich.console import Console

    from features.library.registry import NAN_RULE

    chosen, terminal = list(features), Console().is_terminal
    console = Console(markup=False, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL)
    console.print(as_table(chosen), markup=False)
    console.print(f"{len(chosen)} features. {NAN_RULE}", markup=False)


def to_json(features: Iterable[Feature]) -> str:
    """Format features as a JSON list of objects."""
    names = ("name", "family", "formula", "window", "warmup", "unit", "nan_rule", "needs", "source")
    records = [{name: getattr(one, name) for name in names} for one in features]
    return json.dumps(records, indent=2, ensure_ascii=False, default=sorted)  # needs are a set
