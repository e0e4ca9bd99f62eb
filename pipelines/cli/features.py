"""The feature library as a table, as JSON and as a page of the documentation; all from the registries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from features.library.registry import Feature

DOCUMENT = "docs/features.md"
REGENERATE = f"peerglass features --markdown > {DOCUMENT}"
FIELDS = ("close", "open", "high", "low", "volume", "group", "statements")
"""What a feature may need."""
_WIDTH_OF_A_PIPE = 250  # columns, where the output is no terminal and a table is wanted all the same


def select(family: str | None = None, needs: str | None = None) -> list[Feature]:
    """List channels and characteristics, or those of a family, or those that need a kind of data.

    Raises
    ------
    ConfigError
        If the family or the kind of data does not exist.
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
    """Kinds of data that a feature needs, in the order of `FIELDS`."""
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
    """Print the table and what holds for all features, as wide as the terminal is."""
    from rich.console import Console

    from features.library.registry import NAN_RULE

    chosen = list(features)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_WIDTH_OF_A_PIPE)
    console.print(as_table(chosen), markup=False)
    console.print(f"{len(chosen)} features. {NAN_RULE}", markup=False)


def as_json(features: Iterable[Feature]) -> str:
    """Write features as a JSON list of objects."""
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
    """Write the page of the documentation: every registered feature, by family."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from features.library.registry import NAN_RULE
    from features.panel.asof import STALE_DAYS
    from features.panel.derived import MAX_HALT

    parts = [
        "# Features",
        f"<!-- Written by `{REGENERATE}`; a test compares it with the registries. -->",
        f"{len(CHARACTERISTICS)} characteristics (a number a firm and session, compared within the date) "
        f"and {len(CHANNELS)} channels (what windows over days are made of). All are known at the close of "
        "session `t` and causal to the bit: nothing after `t` changes a value at or before it.",
        "- **Notation.** `x[t]` is the value of session t, `C` the close carried through halts of at most "
        f"{MAX_HALT} sessions, `r[t] = close[t] / C[t-1] - 1`, `m` the equal-weight mean of `r` over the "
        "firms that traded, `dv` raw close times volume. Prices are adjusted for splits and dividends. "
        "Averages, sums and moments are over known values.",
        "- **Statements.** `item[t]` is the value known at t, `item[1y]` that of the period a year "
        "earlier as known at t. Flows are those of a year: the sum of four quarters where quarters are "
        "reported, and the value itself where a source does not say what a flow spans. `market_equity` is "
        "shares outstanding times the raw close; a share count is brought to t by the splits since the day "
        "that it is stated as of (cover page, filing, or period's end). `debt` is "
        f"short-term plus long-term debt. A statement whose period ended more than {STALE_DAYS} days ago "
        "is not used.",
        "- **Window.** The value at t is a function of the panel's rows `t-window+1..t`, whole-market "
        "series included, and of the statements known at t. A panel whose history starts elsewhere gives "
        "the same value to a relative 1e-9: forward adjustment starts at the panel's first session, which "
        "cancels in ratios but for rounding.",
        "- **Warm-up.** Sessions after a firm's first price before its first value.",
        f"- **NaN.** {NAN_RULE} The column adds what is particular to a feature.",
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
