"""Settings of the sources: what a config's section ``source`` may say."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

from pipelines.settings import Section, Settings


class SimulatedSourceConfig(Section):
    """The embedded market with planted structure; ``market`` overrides fields of MarketConfig."""

    kind: Literal["simulated"]
    seed: int = 7
    market: Settings = Field(default={})


class SampleSourceConfig(Section):
    """Closing prices of 20 S&P 500 firms, 1990 to 2022, that come with skfolio."""

    kind: Literal["sample"]


class FilesSourceConfig(Section):
    """A user's CSV or Parquet files, globs allowed; ``columns`` maps our column names to the files'.

    ``layout: wide`` reads closes, a column a ticker. ``items`` maps canonical statement items
    (`pipelines.sources.items`) to the fundamentals file's names, ``inputs`` names a file of the user's own
    numbers by date and ticker. Statements without a known_at are taken as known ``assumed_lag_days`` after
    the period's end. Share counts and amounts per share contain the splits up to ``stated_on``; without that
    column, up to the day that ``shares_stated`` names: the period's end, that of publication, or today. Dates
    are ISO unless ``date_format`` says how else (``%m/%d/%Y``).
    """

    kind: Literal["files"]
    prices: str
    layout: Literal["long", "wide"] = "long"
    securities: str | None = None
    fundamentals: str | None = None
    membership: str | None = None
    inputs: str | None = None
    columns: dict[str, str] = Field(default={})
    units: dict[str, float] = Field(
        default={}
    )  # our column or item -> factor that its values are multiplied by
    items: dict[str, str] = Field(default={})
    zero_means_missing: tuple[str, ...] = ()  # items of which a zero means "not reported"
    statement_months: int | None = Field(default=None, ge=1)  # span of flows, where the file does not say it
    shares_stated: Literal["period_end", "known_at", "today"] = "period_end"
    assumed_lag_days: int = Field(default=90, ge=0)
    date_format: str | None = None
    start: dt.date | None = None
    end: dt.date | None = None
    hazards: tuple[str, ...] = ()


class YFinanceSourceConfig(Section):
    """Yahoo Finance through yfinance: prices, splits, dividends, sectors, quarterly statements.

    ``tickers`` are symbols, or one path of a CSV with a ``ticker`` column (data/universes/).
    """

    kind: Literal["yfinance"]
    tickers: tuple[str, ...] | str
    start: dt.date = dt.date(2010, 1, 1)
    end: dt.date | None = None
    statements: bool = True
    batch: int = Field(default=50, ge=1)
    assumed_lag_days: int = Field(default=90, ge=0)
    timeout_seconds: float = Field(default=20.0, gt=0)
    retries: int = Field(default=5, ge=0)


class SecSourceConfig(Section):
    """Statements from the SEC's EDGAR (extra ``sec``), added to the prices of another source's lake."""

    kind: Literal["sec"]
    tickers: tuple[str, ...] | str
    identity: str  # name and e-mail address, which the SEC asks of every client
    start: dt.date = dt.date(2010, 1, 1)


SourceConfig = Annotated[
    SimulatedSourceConfig | SampleSourceConfig | FilesSourceConfig | YFinanceSourceConfig | SecSourceConfig,
    Field(discriminator="kind"),
]
