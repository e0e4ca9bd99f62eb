"""The source that a lake belongs to, and its notes and hazards: the table ``sources``.

A lake belongs to the source of its prices. A supplement (`pipelines.lake.schemas.SUPPLEMENTS`) adds
statements to any lake and owns none. The record is written before the rows, so that the hazards of an
interrupted ingest are known too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from pipelines.errors import ConfigError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import SUPPLEMENTS
from pipelines.sources.base import Setting

_NUMBER: Final = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,.:-]*")
"""A number or an ISO date, but not a digit inside a name."""


def refuse_other_source(lake: Lake, source: str) -> None:
    """Refuse a source whose prices would be mixed with those of another source.

    Raises
    ------
    ConfigError
        If the lake holds prices of another source.
    """
    owners = _owners(lake)
    if source in SUPPLEMENTS or not owners or owners == [source]:
        return
    raise ConfigError(
        f"The lake {lake.root} belongs to source {' and '.join(owners)}, but this config's is {source}: "
        "name another folder in 'lake', or delete that one."
    )


def refuse_other_market(lake: Lake, source: str, market: Mapping[str, Setting]) -> None:
    """Refuse another market of the same source, identified by its settings.

    A setting that only one of the two markets has is ignored, because a later version may have added it.

    Raises
    ------
    ConfigError
        If the lake holds prices of a market with other settings.
    """
    stored = _stored(lake, source)
    if stored is None or stored["market"] is None or not lake.exists("prices"):
        return
    stored_market = json.loads(stored["market"])
    differing = [
        name for name, value in market.items() if name in stored_market and stored_market[name] != value
    ]
    if differing:
        was = ", ".join(f"{name} {stored_market[name]}" for name in differing)
        now = ", ".join(f"{name} {market[name]}" for name in differing)
        raise ConfigError(
            f"The lake {lake.root} holds the {source} market with {was}, but this config's has {now}: name "
            "another folder in 'lake', or delete that one."
        )


def record_source(
    lake: Lake, source: str, market: Mapping[str, Setting], notes: Iterable[str], hazards: Iterable[str]
) -> None:
    """Store a source's notes and hazards. Hazards accumulate; notes replace those of the previous ingest.

    A hazard that differs from a stored one only in its numbers replaces it. An ingest without notes keeps the
    stored ones.
    """
    stored = _stored(lake, source) or {}
    names = json.dumps(dict(market), sort_keys=True)
    hazards_by_text = {_without_numbers(hazard): hazard for hazard in json.loads(stored.get("hazards", "[]"))}
    hazards_by_text.update({_without_numbers(hazard): hazard for hazard in hazards})
    row = {
        "source": [source],
        "notes": [json.dumps(list(dict.fromkeys(notes)) or json.loads(stored.get("notes", "[]")))],
        "hazards": [json.dumps(list(hazards_by_text.values()))],
        "market": [stored.get("market", names) if source in SUPPLEMENTS else names],
    }
    lake.upsert("sources", pl.DataFrame(row, schema_overrides={"market": pl.String}))


def own_rows(lake: Lake, table: str) -> pl.Expr:
    """Return an expression for the rows of a table from the lake's own source, as opposed to a supplement's.

    A supplement that is recorded without a market added its rows before the column ``fundamentals.source``
    existed. In that case, rows with a filing id and no source are taken to be the supplement's.
    """
    if table != "fundamentals":
        return pl.lit(value=True)
    own = pl.col("source").is_null()
    if any((row := _stored(lake, name)) is not None and row["market"] is None for name in SUPPLEMENTS):
        own &= pl.col("filing_id").is_null()
    return own


def _owners(lake: Lake) -> list[str]:
    if not lake.exists("prices"):
        return []
    if lake.exists("sources"):
        recorded = lake.read("sources", columns=["source"])["source"]
        owners = [name for name in recorded if name not in SUPPLEMENTS]
        if len(owners) == 1:
            return owners
    return lake.read("prices", columns=["source"])["source"].unique().sort().to_list()


def _stored(lake: Lake, source: str) -> dict[str, Any] | None:
    if not lake.exists("sources"):
        return None
    rows = lake.read("sources", filters=pl.col("source") == source)
    return rows.row(0, named=True) if rows.height else None


def _without_numbers(sentence: str) -> str:
    return _NUMBER.sub("#", sentence)
