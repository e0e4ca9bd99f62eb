"""The interface of a source: the tables that it delivers, and what it could not deliver."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import polars as pl

Setting = str | int | float


@dataclass(frozen=True, slots=True)
class TickerStatus:
    """The outcome of a request for one ticker.

    ``ok``: new rows were delivered. ``unchanged``: there was nothing new. ``empty``: the source answered that
    it has no data, which is no evidence of a delisting. ``throttled`` and ``failed``: there was no answer;
    the ticker is requested again next time.
    """

    ticker: str
    state: Literal["ok", "unchanged", "empty", "throttled", "failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StoredData:
    """What the lake already holds, so that a live source requests only what is missing.

    Attributes
    ----------
    last_price
        Ticker -> date of its last stored price.
    first_price
        Ticker -> date of its first stored price.
    last_close
        Ticker -> stored close on the date of its last price.
    securities
        The stored rows of ``securities`` that are still valid (``valid_to`` is null); None if there are none.
    assumed
        The stored rows of ``fundamentals`` with an assumed ``known_at``. A source without filing dates
        compares them with new values to detect restatements. None if there are none.
    filings
        Ticker -> filing ids of its stored statements that need not be read again.
    """

    last_price: Mapping[str, dt.date] = field(default_factory=dict)
    first_price: Mapping[str, dt.date] = field(default_factory=dict)
    last_close: Mapping[str, float] = field(default_factory=dict)
    securities: pl.DataFrame | None = field(default=None, compare=False)
    assumed: pl.DataFrame | None = field(default=None, compare=False)
    filings: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables of one delivery.

    Attributes
    ----------
    tables
        Lake table name -> rows, not yet checked against their contracts. A `Source` always delivers
        ``prices``.
    notes
        What is missing or was assumed, one sentence each.
    hazards
        Why a backtest on this data may look too good, one sentence each.
    statuses
        The outcome for each ticker, if the source is queried ticker by ticker.
    market
        Settings that distinguish this market from others of the same source; empty if there is only one
        market, or if only the data can tell. A lake that holds prices refuses a market with different
        settings.
    """

    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    statuses: tuple[TickerStatus, ...] = ()
    market: Mapping[str, Setting] = field(default_factory=dict)


class Source(Protocol):
    """An adapter that always delivers its whole scope. Rows that it no longer delivers are withdrawn."""

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        ...

    def fetch(self) -> SourceTables:
        """Deliver the tables.

        Raises
        ------
        ConfigError
            If the source's settings are invalid.
        DataError
            If data is missing or lacks what a table needs.
        """
        ...


@runtime_checkable
class LiveSource(Protocol):
    """A source that is queried over a network, one batch of tickers at a time.

    Each batch is committed to the lake before the next one is requested, so an interruption loses at most one
    batch. Rows that a delivery does not contain are never withdrawn.
    """

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        ...

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Deliver the batches one after another; a batch may lack ``prices``.

        Raises
        ------
        DataError
            After the last batch that could be delivered, if the source kept refusing. What arrived is then in
            the lake, and repeating the command continues from there.
        """
        ...
