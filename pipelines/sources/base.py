"""What a source is: one origin of tables, and what it could not give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import polars as pl


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables that a source delivered.

    Attributes
    ----------
    tables
        Lake table name -> rows, not yet held to their contracts; ``prices`` is always there.
    notes
        What could not be had or was assumed, one sentence each.
    hazards
        Why a backtest on this data may flatter, one sentence each.
    """

    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()


class Source(Protocol):
    """An adapter that delivers tables from one origin."""

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        ...

    def fetch(self) -> SourceTables:
        """Deliver the tables.

        Raises
        ------
        ConfigError
            If the source was set up in a way that cannot work.
        DataError
            If the data is missing or lacks what a table needs.
        """
        ...
