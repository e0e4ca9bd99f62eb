"""What all sources share: the interface, statuses, tickers, statement items, and what was known earlier.

Statement items have canonical names: every source maps to them and every feature reads them. Amounts are in
the statement's currency. ``shares_outstanding`` is a count, and ``eps`` an amount per share; both include the
splits up to the row's ``stated_on``, or up to the end of the period if that is null. Flows cover the number
of months given in the row.
"""

import datetime as dt
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import polars as pl
import yaml

from pipelines.errors import ConfigError, DataError
from pipelines.lake.schemas import TICKER_PATTERN, cut, empty
from pipelines.settings import RELATIVE_PATHS

Setting = str | int | float
STATIC_SINCE: Final = dt.date(1900, 1, 1)  # ``valid_from`` of a classification that always holds


@dataclass(frozen=True, slots=True)
class TickerStatus:
    """Outcome of a request for a ticker; ``empty`` (no data) is no evidence of a delisting."""

    ticker: str
    state: Literal["ok", "unchanged", "empty", "throttled", "failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StoredData:
    """What the lake holds, so that a live source requests only what is missing and detects restatements."""

    last_price: Mapping[str, dt.date] = field(default_factory=dict)
    first_price: Mapping[str, dt.date] = field(default_factory=dict)
    last_close: Mapping[str, float] = field(default_factory=dict)
    securities: pl.DataFrame = field(default_factory=lambda: empty("securities"), compare=False)
    assumed: pl.DataFrame = field(default_factory=lambda: empty("fundamentals"), compare=False)
    filings: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables of one delivery by their names in the lake, not yet checked against their contracts."""

    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()  # why a backtest on this data may look too good
    statuses: tuple[TickerStatus, ...] = ()
    # what tells this market of the source from others, which its lake refuses; empty if only the data can
    market: Mapping[str, Setting] = field(default_factory=dict)
    # by ticker; they were read, have no row in ``fundamentals``, and are not requested again
    unused_filings: Mapping[str, Collection[str]] = field(default_factory=dict)


class Named(Protocol):
    """Something that delivers data."""

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        ...


class Source(Named, Protocol):
    """An adapter that always delivers its whole scope; what it delivers no more is withdrawn."""

    def fetch(self) -> SourceTables:
        """Deliver the tables; ConfigError if a setting is invalid, DataError if data is missing."""
        ...


@runtime_checkable
class LiveSource(Named, Protocol):
    """A source that is queried over a network by batches, which are committed and withdraw nothing."""

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Deliver the batches, some without ``prices``; DataError after the last if it kept refusing."""
        ...


_MAX_UNANSWERED: Final = 0.05  # maximum share of unanswered tickers; above it, a source counts as refusing


def raise_if_refused(who: str, refused: Sequence[TickerStatus], asked: int, when: str) -> None:
    """Raise DataError if a ticker was throttled, or too many had no answer."""
    throttled = [one for one in refused if one.state == "throttled"]
    if throttled or len(refused) > _MAX_UNANSWERED * asked:
        raise DataError(
            f"{who} refused {len(refused):,} of {asked:,} tickers ({(throttled or refused)[0].detail}): what "
            f"arrived is in the lake; repeat the command {when} to continue from there"
        )


@dataclass(frozen=True, slots=True)
class SourceThrough:
    """A source that delivers what it knew at the close of a session, and nothing later."""

    source: Source
    session: dt.date

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return self.source.name

    def fetch(self) -> SourceTables:
        """Deliver the tables up to the session."""
        delivered = self.source.fetch()
        tables = {table: cut(table, frame, self.session) for table, frame in delivered.tables.items()}
        return replace(delivered, tables=tables)


_ISIN = re.compile(r"[A-Z]{2}[A-Z0-9]{9}[0-9]")


def read_tickers(given: Sequence[str] | str) -> tuple[str, ...]:
    """Return the given tickers, or those in the column ``ticker`` of a CSV file, without duplicates."""
    tickers = _ticker_column(given) if isinstance(given, str) else [str(one).strip() for one in given]
    where = f"source.tickers ({given})" if isinstance(given, str) else "source.tickers"
    if not tickers:
        raise ConfigError(f"{where} is empty; give at least one ticker, or a CSV file with a ticker column.")
    for ticker in tickers:
        if not re.fullmatch(TICKER_PATTERN, ticker) or ".." in ticker:
            raise ConfigError(
                f"{where} holds {ticker!r}, which is not a ticker; use letters, digits and . - _ ^ = only."
            )
        if _ISIN.fullmatch(ticker):
            raise ConfigError(f"{where} holds {ticker!r}, which is an ISIN; give the ticker instead.")
    return tuple(dict.fromkeys(tickers))


def plain_tickers(ticker: pl.Expr) -> pl.Expr:
    """Write tickers with letters, digits and ``. - _ ^ =`` alone; paths stay, so that they are rejected."""
    bloomberg = r"^([A-Za-z0-9./-]+) ([A-Z]{2}) (?i:equity)$"
    looks_odd = ~ticker.str.contains(TICKER_PATTERN)
    is_path = ticker.str.contains(r"^[/~]|/.*/|[/\\]$|\\|\.\.|[\x00-\x1f<>\"]")
    plain = (
        ticker.str.replace(r"^['$]", "")
        .str.replace(bloomberg, "${1}.${2}")
        .str.replace_all("/", "-", literal=True)
        .str.replace_all(r"[ &:+,'()$#@!*|;]+", "_")
    )
    return pl.when(looks_odd & ~is_path).then(plain).otherwise(ticker)


def _ticker_column(path: str) -> list[str]:
    file = Path(os.path.expandvars(path)).expanduser()
    if not file.is_file():
        raise DataError(f"there is no file {file}: correct source.tickers ({RELATIVE_PATHS})")
    try:
        rows = pl.read_csv(file, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file} cannot be read as CSV ({reason}): repair or replace it") from error
    if "ticker" not in rows.columns:
        raise DataError(f"{file} has no column 'ticker', but {', '.join(rows.columns)}: rename one of them")
    return [ticker.strip() for ticker in rows["ticker"].drop_nulls() if ticker.strip()]


YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster
_VENDORS: Final[Mapping[str, Any]] = yaml.load(
    # a stored model version imports this file from a zip file
    files("pipelines.sources").joinpath("vendors.yaml").read_text("utf-8"),
    Loader=YAML_LOADER,  # noqa: S506 (a safe one)
)


def vendor_names(section: str) -> Mapping[str, Any]:
    """Return a section of ``vendors.yaml``; names that are separated by spaces are a tuple.

    >>> vendor_names("membership")["action"]
    ('action', 'change', 'event', 'type', 'status')
    """
    entries = _VENDORS[section].items()
    return {name: tuple(words.split()) if isinstance(words, str) else words for name, words in entries}


def remarks_of(source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the notes and hazards that every delivery of a source has (``vendors.yaml``)."""
    remarks = _VENDORS["remarks"][source]
    return tuple(remarks["notes"]), tuple(remarks["hazards"])


FLOWS: Final = (  # capital expenditure and dividends are positive where cash is paid
    "revenue", "cost_of_revenue", "gross_profit", "research_and_development", "selling_general_admin",
    "operating_income", "interest_expense", "income_tax", "net_income", "depreciation",
    "operating_cash_flow", "capital_expenditure", "dividends_paid", "eps",
)  # fmt: skip
STOCKS: Final = (  # cash includes cash equivalents
    "total_assets", "current_assets", "cash", "short_term_investments", "receivables", "inventory",
    "fixed_assets", "total_liabilities", "current_liabilities", "accounts_payable", "short_term_debt",
    "long_term_debt", "book_equity", "retained_earnings", "shares_outstanding",
)  # fmt: skip
ITEMS: Final = (*FLOWS, *STOCKS)
SHARE_COUNT: Final = "shares_outstanding"
SPLIT_ITEMS: Final = (SHARE_COUNT, "eps")  # items that a split rescales
