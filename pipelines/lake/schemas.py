"""The schemas of the lake's tables: which table has which, its key, and who writes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import dataframely as dy
import polars as pl

from pipelines.lake.pipeline_tables import (
    Accounts,
    BookLimits,
    Books,
    Flags,
    ForecastPaths,
    Forecasts,
    Holdings,
    Nights,
    Promotions,
    Quarantine,
    Readers,
    Releases,
    Signals,
    Sources,
    TrialReturns,
    Trials,
)
from pipelines.lake.source_tables import (
    Fundamentals,
    Gaps,
    Inputs,
    Membership,
    Prices,
    Renames,
    Securities,
    TruthDays,
    TruthEdges,
    TruthMu,
)

SCHEMAS: Final[Mapping[str, type[dy.Schema]]] = {
    "prices": Prices,
    "gaps": Gaps,
    "securities": Securities,
    "fundamentals": Fundamentals,
    "membership": Membership,
    "renames": Renames,
    "inputs": Inputs,
    "forecasts": Forecasts,
    "forecast_paths": ForecastPaths,
    "quarantine": Quarantine,
    "flags": Flags,
    "releases": Releases,
    "truth_mu": TruthMu,
    "truth_edges": TruthEdges,
    "truth_days": TruthDays,
    "trials": Trials,
    "trial_returns": TrialReturns,
    "sources": Sources,
    "readers": Readers,
    "signals": Signals,
    "books": Books,
    "holdings": Holdings,
    "accounts": Accounts,
    "book_limits": BookLimits,
    "nights": Nights,
    "promotions": Promotions,
}

SOURCE_TABLES: Final = (
    "prices",
    "securities",
    "fundamentals",
    "membership",
    "renames",
    "inputs",
    "truth_mu",
    "truth_edges",
    "truth_days",
)
"""The tables a source may give; the others are written by the pipeline."""

INPUT_TABLES: Final = (*SOURCE_TABLES, "gaps")
"""The tables that a run reads and records: the source's, and what ingest makes of them."""

STAMPS: Final = frozenset({"ingested_at", "first_seen", "flagged_at", "released_at", "created_at"})
"""Columns that hold the time of writing. A row that differs in them only is an unchanged row."""

SUPPLEMENTS: Final = frozenset({"sec"})
"""Live sources without prices: they add statements to the lake of another source."""


def keys(table: str) -> list[str]:
    """Return the key columns of a lake table."""
    return list(_keys(table))


def empty(table: str) -> pl.DataFrame:
    """Return a lake table without rows."""
    return _empty(table).clear()


@functools.cache
def _keys(table: str) -> tuple[str, ...]:
    return tuple(schema(table).primary_key())


@functools.cache
def _empty(table: str) -> pl.DataFrame:
    return pl.DataFrame(schema(table).create_empty())


def schema(table: str) -> type[dy.Schema]:
    """Return the contract of a lake table; ValueError if the lake has no table of that name."""
    if table not in SCHEMAS:
        raise ValueError(f"the lake has no table {table!r}; its tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[table]
