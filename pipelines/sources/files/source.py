"""A user's own CSV or Parquet files: prices, and optionally firms, statements, membership and inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import SourceTables
from pipelines.sources.files.hazards import detected_hazards
from pipelines.sources.files.inputs import read_inputs
from pipelines.sources.files.prices import OPTIONAL, REQUIRED, read_bars, read_wide_closes
from pipelines.sources.files.reading import Reading, resolve
from pipelines.sources.files.securities import MEMBERSHIP, SECURITIES, read_membership, read_securities
from pipelines.sources.files.statements import STATEMENTS, StatementFiles, read_statements
from pipelines.sources.items import ITEMS

_OF_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "prices": (*REQUIRED, *OPTIONAL),
    "securities": ("ticker", *SECURITIES),
    "fundamentals": ("ticker", *STATEMENTS),
    "membership": ("ticker", *MEMBERSHIP),
    "inputs": ("date", "ticker"),
}
_NAMES: Final = frozenset(name for names in _OF_TABLE.values() for name in names)
_WITH_UNITS: Final = frozenset(("close", *OPTIONAL, "delisting_return", *ITEMS))


class FilesSource:
    """Prices, and optionally more, from files.

    Paths may be globs; ``~`` and environment variables are expanded. CSV may be gzipped. Dates are ISO
    (2020-01-31 or 20200131) or of ``date_format``.

    Parameters
    ----------
    prices
        Long: at least date, ticker and close. Wide: date and a column of closes a ticker.
    securities
        File with at least ticker, and any of name, sector, industry, currency, exchange, valid_from,
        valid_to, listed_on, delisted_on, delisting_return, delisting_reason (merger, performance, unknown, or
        a CRSP delisting code); None if there is none.
    layout
        Of the prices.
    statements
        Files of statements; None if there are none.
    membership
        File with ticker and from_date, and any of universe and to_date; None if there is none.
    inputs
        File of the user's own numbers, by date and ticker; None if there is none.
    columns
        Our column name -> the files' name, for columns that are named otherwise there. A name that another
        file than the prices lacks falls back on our own name there, so ``ticker`` may be mapped for prices
        alone; ``fundamentals.ticker`` maps it for the file of that table alone.
    units
        Our column or statement item -> factor that its values are multiplied by.
    date_format
        strptime format of dates that are not ISO.
    start, end
        First and last date of prices and inputs to take, both included; None for no bound.
    hazards
        What the user knows to be wrong with the data (survivorship, say), one sentence each.

    Raises
    ------
    ConfigError
        If a mapped name is not one of ours, a factor is not a number that can be multiplied by, start is
        after end, or share counts are restated for splits that prices end before.
    """

    def __init__(
        self,
        prices: Path,
        securities: Path | None = None,
        *,
        layout: Literal["long", "wide"] = "long",
        statements: StatementFiles | None = None,
        membership: Path | None = None,
        inputs: Path | None = None,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        date_format: str | None = None,
        start: date | None = None,
        end: date | None = None,
        hazards: tuple[str, ...] = (),
    ) -> None:
        self._prices, self._securities, self._layout = prices, securities, layout
        self._statements, self._membership, self._inputs = statements, membership, inputs
        self._reading = Reading(dict(columns or {}), dict(units or {}), date_format)
        self._start, self._end, self._hazards = start, end, hazards
        if unknown := sorted(name for name in self._reading.columns if not _is_known(name)):
            raise ConfigError(
                f"columns maps {', '.join(unknown)}, which no table has; map from {', '.join(sorted(_NAMES))}"
            )
        if unknown := sorted(set(self._reading.units) - _WITH_UNITS):
            raise ConfigError(
                f"units names {', '.join(unknown)}, which has no unit; "
                f"choose from {', '.join(sorted(_WITH_UNITS))}"
            )
        if bad := [name for name, by in self._reading.units.items() if by == 0 or not math.isfinite(by)]:
            raise ConfigError(f"units multiplies {bad[0]} by {self._reading.units[bad[0]]}: give a factor")
        mapped = set(self._reading.of("prices").columns)
        if layout == "wide" and (idle := sorted(mapped & {"close", *OPTIONAL})):
            raise ConfigError(
                f"columns maps {', '.join(idle)}, but layout: wide has a column a ticker: take it out"
            )
        if end is not None and statements is not None and statements.share_counts_as_of == "today":
            raise ConfigError(
                f"share_counts_as_of is today, but prices end on {end}, so later splits could not be undone; "
                "remove end"
            )
        if start is not None and end is not None and start > end:
            raise ConfigError(f"start {start} is after end {end}: swap them")

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return "files"

    def fetch(self) -> SourceTables:
        """Read the files.

        Raises
        ------
        ConfigError
            If a path is neither CSV nor Parquet, or names an environment variable that is not set.
        DataError
            If a file is missing, unreadable, lacks a required column, differs from the others of its
            pattern, or has no row within the dates; or a unit is given for what no file has.
        """
        read = read_wide_closes if self._layout == "wide" else read_bars
        prices, notes = read(resolve(self._prices), self._reading.of("prices"), self._start, self._end)
        tables = {"prices": prices}
        hazards: list[str] = []
        if self._securities is None:
            notes.append(
                "No securities file was given: names, sectors, industries and listing dates are unknown."
            )
        else:
            tables["securities"], told, warned = read_securities(
                resolve(self._securities), self._reading.of("securities")
            )
            notes += told
            hazards += warned
            without = (
                prices.select("ticker").unique().join(tables["securities"], on="ticker", how="anti").height
            )
            if without:
                notes.append(f"{without} of the tickers in the prices are not in the securities file.")
        if self._statements is not None:
            tables["fundamentals"], told, warned = read_statements(
                self._statements, self._reading.of("fundamentals"), prices
            )
            notes += told
            hazards += warned
        if self._membership is not None:
            tables["membership"], told, warned = read_membership(
                resolve(self._membership), self._reading.of("membership")
            )
            notes += told
            hazards += warned
        if self._inputs is not None:
            tables["inputs"], told = read_inputs(
                resolve(self._inputs), self._reading.of("inputs"), self._start, self._end
            )
            notes += told
        notes += unpriced_tickers(tables)
        absent = {"fundamentals": "statements", "membership": "index membership"}
        if lacking := [words for table, words in absent.items() if table not in tables]:
            notes.append(f"Files give no {' and no '.join(lacking)}.")
        self._refuse_idle_units(tables)
        hazards += detected_hazards(tables, self._hazards)
        return SourceTables(tables, tuple(notes), (*self._hazards, *hazards))

    def _refuse_idle_units(self, tables: Mapping[str, pl.DataFrame]) -> None:
        there = set(tables["prices"].columns) | set(tables.get("securities", pl.DataFrame()).columns)
        if "fundamentals" in tables:
            there |= set(tables["fundamentals"]["item"].unique())
        if idle := sorted(set(self._reading.units) - there):
            raise DataError(f"units names {', '.join(idle)}, which no file gives: take it out")


def _is_known(name: str) -> bool:
    """Tell whether a mapped name is one of ours, of any table or of the one that it is given for."""
    table, dot, column = name.partition(".")
    return name in _NAMES or (bool(dot) and column in _OF_TABLE.get(table, ()))


def unpriced_tickers(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Count the tickers that are nowhere in the prices, table by table."""
    notes = []
    for table, frame in tables.items():
        if table in ("prices", "securities"):
            continue
        strangers = frame.select("ticker").unique().join(tables["prices"], on="ticker", how="anti").height
        if strangers:
            notes.append(f"{strangers:,} of the tickers in the {table} have no prices.")
    return notes
