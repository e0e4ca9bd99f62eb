"""What a source is: one origin of tables, and what it could not give."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import polars as pl

Setting = str | int | float


@dataclass(frozen=True, slots=True)
class TickerStatus:
    """What became of one ticker that was asked for.

    ``ok``: new rows came. ``unchanged``: nothing new. ``empty``: the source answered and has nothing, which
    is no evidence of a delisting. ``throttled`` and ``failed``: it did not answer; asked again next time.
    """

    ticker: str
    state: Literal["ok", "unchanged", "empty", "throttled", "failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What the lake holds already, so that a live source asks only for what is missing.

    Attributes
    ----------
    last_price
        Ticker -> date of its last stored price.
    first_price
        Ticker -> date of its first stored price.
    last_close
        Ticker -> its stored close on the date of its last price.
    securities
        The stored rows of ``securities`` that hold still (no valid_to); None if there are none.
    assumed
        The stored rows of ``fundamentals`` whose known_at is assumed, so that a source without filing dates
        can tell a restatement from what it gave before; None if there are none.
    filings
        Ticker -> filing_ids of its stored statements, of those that can stay as they are.
    """

    last_price: Mapping[str, dt.date] = field(default_factory=dict)
    first_price: Mapping[str, dt.date] = field(default_factory=dict)
    last_close: Mapping[str, float] = field(default_factory=dict)
    securities: pl.DataFrame | None = field(default=None, compare=False)
    assumed: pl.DataFrame | None = field(default=None, compare=False)
    filings: Mapping[str, frozenset[str]] = field(default_factory=dict)


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
    statuses
        Of a source that is asked ticker by ticker: what became of each in this delivery.
    market
        Settings that tell this market from others of the same source; empty if there is only one, or if only
        the data tell. A lake that holds prices refuses a market whose settings differ.
    """

    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    statuses: tuple[TickerStatus, ...] = ()
    market: Mapping[str, Setting] = field(default_factory=dict)


class Source(Protocol):
    """An adapter that delivers its whole scope from one origin: what it no longer delivers is withdrawn."""

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


@runtime_checkable
class LiveSource(Protocol):
    """A source that is asked over a network, a batch of tickers at a time.

    Each batch is committed to the lake before the next one is asked for: an interruption loses one at most.
    Nothing that it does not mention is ever withdrawn.
    """

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        ...

    def batches(self, known: Known) -> Iterator[SourceTables]:
        """Deliver batch after batch; ``prices`` may be absent from one.

        Raises
        ------
        DataError
            After the last batch that could be had, if the source went on refusing: what arrived is in the
            lake by then, and the same command continues.
        """
        ...
