"""Settings of the sources: the config's section ``source``."""

import codecs
import datetime as dt
import difflib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from pipelines.settings import PathSetting, Section, by_kind
from pipelines.sources.files.layouts import LAYOUTS
from pipelines.sources.simulated.config import MarketConfig

if TYPE_CHECKING:
    from pipelines.sources.base import Source

Arrangement = Literal["long", "wide", "file_per_ticker"]
ShareCountsAsOf = Literal["period_end", "known_at", "today"]


class SimulatedSourceConfig(Section):
    """The embedded simulated market with planted structure."""

    kind: Literal["simulated"]
    """Selects this source."""
    seed: int = 7
    """Seed of all random draws; the same settings and seed give the same market."""
    market: MarketConfig = MarketConfig()
    """The market."""
    grows_from: dt.date | None = None
    """Session at which the market begins to grow: without ``--date``, the first call of ``peerglass nightly``
    plays this session, and every later call the next one. Null: the whole market is there at once."""


class SampleSourceConfig(Section):
    """Closing prices of 20 S&P 500 firms, 1990 to 2022, bundled with skfolio."""

    kind: Literal["sample"]
    """Selects this source."""


class FilesSourceConfig(Section):
    """Your own CSV, Excel or Parquet files.

    Every path may be a folder, or contain wildcards (``*?[]``), ``~`` and environment variables. CSV files
    may be gzipped or zipped.
    """

    kind: Literal["files"]
    """Selects this source."""
    prices: PathSetting
    """File of prices: at least date, ticker and close; optionally open, high, low, volume, split_ratio and
    dividend."""
    layout: Arrangement = "long"
    """Layout of the prices. ``long``: one row per date and ticker. ``wide``: a date column, then one column
    of closes per ticker, or several under a header of two lines. ``file_per_ticker``: one file per ticker,
    which is named after it."""
    vendor: str | None = None
    """Vendor whose names of columns and conventions of values the prices have, such as ``crsp``,
    ``compustat``, ``jkp``, ``yahoo`` and ``yahoo_history``. Null: no vendor's."""
    securities: PathSetting | None = None
    """File of firms: ticker, and any of name, sector, industry, currency, exchange, valid_from, valid_to,
    listed_on, delisted_on, delisting_return and delisting_reason. Null if there is none."""
    fundamentals: PathSetting | None = None
    """File of statement items: one row per ticker and period with one column per item, or one row per item.
    Null if there is none."""
    membership: PathSetting | None = None
    """File of index membership: ticker and from_date; optionally universe and to_date. Null if there is
    none."""
    renames: PathSetting | None = None
    """File of new tickers: ticker, from_date and new_ticker. A firm keeps its history, and a night what it
    holds of it. Null if there is none."""
    inputs: PathSetting | None = None
    """File of your own numbers by date and ticker; each numeric column becomes an input of its name. Null if
    there is none."""
    columns: dict[str, str] = Field(default={})
    """Peerglass column name -> the column's name in your files. ``fundamentals.ticker`` maps a column for one
    table only."""
    units: dict[str, float] = Field(default={})
    """Column or statement item -> factor by which its values are multiplied."""
    items: dict[str, str] = Field(default={})
    """Peerglass statement item (`pipelines.sources.base`) -> its name in the fundamentals file."""
    zero_means_missing: tuple[str, ...] = ()
    """Statement items in which a zero means "not reported"."""
    statement_months: int | None = Field(default=None, ge=1)
    """Number of months that a flow item covers if the file has no column ``months``. Null if unknown."""
    share_counts_as_of: ShareCountsAsOf = "period_end"
    """Date up to which splits are included in share counts and per-share amounts if the file has no column
    ``stated_on``: the end of the period, the date of publication, or today (the vendor restated the whole
    history; later splits are then undone)."""
    reporting_lag_days: int = Field(default=90, ge=0)
    """Days from the end of a period until its statement is assumed to be known, where the file has no
    ``known_at``."""
    date_format: str | None = None
    """strptime format of the dates, such as ``%m/%d/%Y``. A format without a day, such as
    ``%Y-%m``, dates a month on its last day. Null: ISO dates (2020-01-31 or 20200131)."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Character between two columns of your text files, such as ``;`` or ``"\\t"``."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of numbers in your text files. The other mark may separate thousands."""
    encoding: str = "utf-8"
    """Encoding of your text files: a Python codec, such as ``latin-1``, ``cp1252`` or ``utf-16``."""
    start: dt.date | None = None
    """First date of prices and inputs to read, inclusive. Null: the first date in the file."""
    end: dt.date | None = None
    """Last date of prices and inputs to read, inclusive. Null: the last date in the file."""
    hazards: tuple[str, ...] = ()
    """Known problems of the data, such as survivorship, one sentence each; every report repeats them."""

    @field_validator("vendor")
    @classmethod
    def _check_vendor(cls, vendor: str | None) -> str | None:
        if vendor is not None and vendor not in LAYOUTS:
            near = difflib.get_close_matches(vendor.lower(), list(LAYOUTS), n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"vendor is {vendor!r}, which is not known; {meant}choose from {', '.join(LAYOUTS)}"
            )
        return vendor

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(
                f"encoding is {encoding!r}, which is no encoding; use one such as utf-8, latin-1 or cp1252"
            ) from None
        return encoding


class YFinanceSourceConfig(Section):
    """Yahoo Finance through yfinance: prices, splits, dividends, sectors and quarterly statements."""

    kind: Literal["yfinance"]
    """Selects this source."""
    tickers: tuple[str, ...] | PathSetting
    """Tickers, or the path of a CSV file with a column ``ticker`` (such as those in data/universes/)."""
    start: dt.date = dt.date(2010, 1, 1)
    """First date of prices to download, inclusive."""
    end: dt.date | None = None
    """Last date of prices to download, inclusive. Null: the newest finished session."""
    statements: bool = True
    """Whether to download quarterly statements."""
    renames: PathSetting | None = None
    """File of new tickers, which Yahoo does not tell: ticker, from_date and new_ticker. Null if there is
    none."""
    batch_size: int = Field(default=50, ge=1)
    """Number of tickers per batch; each batch is committed to the lake before the next one is requested."""
    reporting_lag_days: int = Field(default=90, ge=0)
    """Days from the end of a period until its statement is assumed to be known; Yahoo has no filing dates."""
    timeout_seconds: float = Field(default=20.0, gt=0)
    """Seconds to wait for the answer to one request."""
    retries: int = Field(default=5, ge=0)
    """Number of retries of a failed request, with exponentially growing pauses."""


class SecSourceConfig(Section):
    """Statements from the SEC's EDGAR (extra ``sec``), added to a lake that has prices of another source."""

    kind: Literal["sec"]
    """Selects this source."""
    tickers: tuple[str, ...] | PathSetting
    """Tickers, or the path of a CSV file with a column ``ticker``."""
    identity: str
    """Your name and e-mail address, which the SEC requires of every client."""
    start: dt.date = dt.date(2010, 1, 1)
    """First publication date (``known_at``) of the statements to read."""


class OwnSource(Section):
    """Settings of a plugin's source: a subclass has ``kind: Literal["mine"] = "mine"``, and makes it."""

    def make(self) -> "Source":
        """Return the source, which always delivers its whole scope (`pipelines.sources.base.Source`)."""
        raise NotImplementedError


OWN_SOURCES: dict[str, type[OwnSource]] = {}
"""Kind -> class of the settings, of the sources of plugins."""


SourceConfig = Annotated[
    SimulatedSourceConfig | SampleSourceConfig | FilesSourceConfig | YFinanceSourceConfig | SecSourceConfig,
    *by_kind(OWN_SOURCES),
]
