"""``peerglass features``: the feature library as a table, as JSON, or as the page docs/features.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from features.library.registry import Feature

DOCUMENT = "docs/features.md"
REGENERATE = f"peerglass features --markdown > {DOCUMENT}"
FIELDS = ("close", "open", "high", "low", "volume", "group", "statements")
"""Kinds of data that a feature can need."""
_WIDTH_WITHOUT_TERMINAL = 250  # columns of the table when the output is a pipe or a file


def list_features(
    family: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Only this family, for example momentum.")
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Only features that use this kind of data, for example volume or statements."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the library as Markdown (docs/features.md)."),
    ] = False,
) -> None:
    """List the feature library: formula, window, warm-up, unit, required data and source of each feature."""
    if markdown:
        print(as_markdown(), end="")
    elif as_json:
        print(to_json(select(family, needs)))
    else:
        print_table(select(family, needs))


def select(family: str | None = None, needs: str | None = None) -> list[Feature]:
    """List channels and characteristics, optionally of one family and of those that use one kind of data.

    Raises
    ------
    ConfigError
        If there is no such family or kind of data.
    """
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


def _items(feature: Feature) -> list[str]:
    return sorted(need.partition(":")[2] for need in feature.needs if ":" in need)


def _needs(feature: Feature) -> str:
    kinds = [kind for kind in _kinds(feature) if kind != "statements"]
    return ", ".join([*kinds, *_items(feature)])


def as_table(features: Iterable[Feature]) -> Table:
    """Lay features out as a table for a terminal."""
    from rich.table import Table

    table = Table(show_lines=False, header_style="bold", pad_edge=False)
    for heading in ("name", "family", "formula", "window", "warm-up", "unit", "needs", "source"):
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("window", "warm-up") else "left"
        )
    for one in features:
        numbers = (str(one.window), str(one.warmup))
        table.add_row(one.name, one.family, one.formula, *numbers, one.unit, _needs(one), one.source)
    return table


def print_table(features: Iterable[Feature]) -> None:
    """Print the table in the width of the terminal, and the rules that apply to all features."""
    from rich.console import Console

    from features.library.registry import NAN_RULE

    chosen = list(features)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    console.print(as_table(chosen), markup=False)
    console.print(f"{len(chosen)} features. {NAN_RULE}", markup=False)


def to_json(features: Iterable[Feature]) -> str:
    """Format features as a JSON list of objects."""
    return json.dumps([_record(one) for one in features], indent=2, ensure_ascii=False)


def _record(feature: Feature) -> dict[str, Any]:
    return {
        "name": feature.name,
        "family": feature.family,
        "formula": feature.formula,
        "window": feature.window,
        "warmup": feature.warmup,
        "unit": feature.unit,
        "nan_rule": feature.nan_rule,
        "needs": sorted(feature.needs),
        "source": feature.source,
    }


def as_markdown() -> str:
    """Format the documentation page docs/features.md: every registered feature, by family."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from features.library.registry import NAN_RULE
    from features.panel.asof import STALE_DAYS
    from features.panel.derived import MAX_HALT

    parts = [
        "# Features",
        f"<!-- Generated by `{REGENERATE}`; a test compares it with the registries. -->",
        f"The library has {len(CHARACTERISTICS)} characteristics (one number per firm and session, compared "
        f"within the date) and {len(CHANNELS)} channels (the daily series that windows are made of). All are "
        "known at the close of session `t`. They are causal to the bit: no data after `t` changes a value at "
        "or before `t`.",
        "- **Notation.** `x[t]` is the value of session t. `C` is the close, carried forward through halts "
        f"of at most {MAX_HALT} sessions. `r[t] = close[t] / C[t-1] - 1`. `m` is the equal-weight mean of "
        "`r` over the firms that traded. `dv` is the raw close times volume. Prices are adjusted for splits "
        "and dividends. Averages, sums and moments use known values only.",
        "- **Statements.** `item[t]` is the value known at t. `item[1y]` is the value of the period one year "
        "earlier, also as known at t. Flows cover one year: the sum of four quarters where quarters are "
        "reported, and the value itself where the source does not give the period of a flow. `market_equity` "
        "is shares outstanding times the raw close. A share count is adjusted for the splits between the day "
        "it refers to (cover page, filing or period end) and t. `debt` is short-term plus long-term debt. A "
        f"statement whose period ended more than {STALE_DAYS} days ago is not used.",
        "- **Window.** The value at t depends on the panel's rows `t-window+1..t`, including whole-market "
        "series, and on the statements known at t. A panel with a different first session gives the same "
        "value up to a relative error of 1e-9: forward adjustment starts at the panel's first session, and "
        "the starting level cancels in ratios up to rounding.",
        "- **Warm-up.** Number of sessions between a firm's first price and its first value.",
        f"- **NaN.** {NAN_RULE} The column NaN lists further cases of a feature.",
    ]
    for registry in (CHARACTERISTICS, CHANNELS):
        for family in registry.families:
            entries = [entry for entry in registry.values() if entry.family == family]
            parts.append(f"## {family.capitalize()} ({len(entries)})")
            head = ("name", "formula", "window", "warm-up", "unit", "NaN", "needs", "source")
            lines = [_row(head), _row(("---", "---", "---:", "---:", "---", "---", "---", "---"))]
            lines += [
                _row(
                    (
                        *(f"`{one.name}`", f"`{one.formula}`", str(one.window), str(one.warmup)),
                        *(one.unit, one.nan_rule, _needs(one), one.source),
                    )
                )
                for one in entries
            ]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
