"""A user's own CSV, Excel or Parquet files: prices, and optionally firms, statements, membership, inputs."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import ITEMS, SourceTables
from pipelines.sources.files.layouts import LAYOUTS, PRICE_NAMES
from pipelines.sources.files.opening import COMMAS, TextFormat, resolve
from pipelines.sources.files.prices import DELISTINGS, OPTIONAL, REQUIRED, Arrangement, day, read_prices
from pipelines.sources.files.reading import ReadOptions
from pipelines.sources.files.statements import STATEMENTS, StatementFiles, read_statements
from pipelines.sources.files.tables import (
    MEMBERSHIP,
    RENAMES,
    SECURITIES,
    SECURITY_NAMES,
    delisted_firms,
    read_inputs,
    read_membership,
    read_renames,
    read_securities,
)

_COLUMNS_BY_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "prices": (*REQUIRED, *OPTIONAL, *DELISTINGS),
    "securities": ("ticker", *SECURITIES),
    "fundamentals": ("ticker", *STATEMENTS),
    "membership": ("ticker", *MEMBERSHIP),
    "renames": ("ticker", *RENAMES),
    "inputs": ("date", "ticker"),
}
_ALL_COLUMNS: Final = frozenset(name for names in _COLUMNS_BY_TABLE.values() for name in names)
_WITH_UNITS: Final = frozenset(("close", *OPTIONAL, "delisting_return", *ITEMS))


class FilesSource:
    """Prices, and optionally other tables, from files.

    The arguments are the settings of the same names (`pipelines.sources.settings.FilesSourceConfig`).
    ``statements`` is the fundamentals file with the settings that interpret it, and ``text`` how all text
    files are written. If a file other than the prices lacks a mapped name, Peerglass's own name is tried
    there, so ``ticker`` may be mapped for prices alone.

    Raises ConfigError if a mapped name is not a Peerglass column, a factor is zero or not finite, start is
    after end, or share counts are restated as of today but prices end earlier.
    """

    def __init__(
        self,
        prices: Path,
        securities: Path | None = None,
        *,
        layout: Arrangement = "long",
        vendor: str | None = None,
        statements: StatementFiles | None = None,
        membership: Path | None = None,
        renames: Path | None = None,
        inputs: Path | None = None,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        date_format: str | None = None,
        text: TextFormat | None = None,
        start: date | None = None,
        end: date | None = None,
        hazards: tuple[str, ...] = (),
    ) -> None:
        self._prices, self._securities, self._layout, self._vendor = prices, securities, layout, vendor
        self._statements, self._membership, self._inputs = statements, membership, inputs
        self._renames = renames
        self._options = ReadOptions(dict(columns or {}), dict(units or {}), date_format, text=text or COMMAS)
        self._start, self._end, self._hazards = start, end, hazards
        if unknown := sorted(name for name in self._options.columns if not _is_column(name)):
            raise ConfigError(
                f"columns maps {', '.join(unknown)}, which is not a column of any table{_meant(unknown[0])}; "
                f"choose from {', '.join(sorted(_ALL_COLUMNS))}"
            )
        if unknown := sorted(set(self._options.units) - _WITH_UNITS):
            raise ConfigError(
                f"units names {', '.join(unknown)}, which has no unit; "
                f"choose from {', '.join(sorted(_WITH_UNITS))}"
            )
        if bad := [name for name, by in self._options.units.items() if by == 0 or not math.isfinite(by)]:
            raise ConfigError(
                f"units multiplies {bad[0]} by {self._options.units[bad[0]]}; the factor must be finite and "
                "not 0"
            )
        mapped = set(self._options.for_table("prices").columns)
        if layout == "file_per_ticker" and "ticker" in mapped:
            raise ConfigError(
                "columns maps ticker, but with layout: file_per_ticker the name of a file is its ticker; "
                "remove the entry, or set layout: long"
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

        Raises ConfigError if the extension of a file is not known, or a path contains an environment variable
        that is not set, and DataError if a file is missing, unreadable, lacks a required column, differs from
        the others of its pattern, or has no row within the dates; or if a unit is given for a column that no
        file has.
        """
        names = PRICE_NAMES if self._vendor is None else {**PRICE_NAMES, **LAYOUTS[self._vendor].columns}
        prices, ended, notes = read_prices(
            resolve(self._prices),
            self._options.for_table("prices", names if self._vendor or self._layout == "wide" else None),
            self._start,
            self._end,
            arrangement=self._layout,
            layout=self._vendor,
        )
        tables = {"prices": prices}
        hazards: list[str] = []
        if self._securities is None and ended is not None and ended.height:
            tables["securities"] = delisted_firms(ended)
            notes.append(f"The prices contain the delistings of {tables['securities'].height:,} firms.")
        elif self._securities is None:
            notes.append(
                "No securities file was given: names, sectors, industries and listing dates are unknown."
            )
        else:
            tables["securities"], table_notes, table_hazards = read_securities(
                resolve(self._securities),
                self._options.for_table("securities", {**SECURITY_NAMES, "ticker": names["ticker"]}),
            )
            notes += table_notes
            hazards += table_hazards
            unclassified = (
                prices.select("ticker").unique().join(tables["securities"], on="ticker", how="anti").height
            )
            if unclassified:
                notes.append(f"{unclassified} of the tickers in the prices are not in the securities file.")
        if self._statements is not None:
            tables["fundamentals"], table_notes, table_hazards = read_statements(
                self._statements, self._options.for_table("fundamentals"), prices
            )
            notes += table_notes
            hazards += table_hazards
        if self._membership is not None:
            tables["membership"], table_notes, table_hazards = read_membership(
                resolve(self._membership), self._options
            )
            notes += table_notes
            hazards += table_hazards
        if self._renames is not None:
            tables["renames"] = read_renames(resolve(self._renames), self._options.for_table("renames"))
        if self._inputs is not None:
            tables["inputs"], table_notes = read_inputs(
                resolve(self._inputs),
                self._options.for_table("inputs", {c: names[c] for c in ("date", "ticker")}),
                self._start,
                self._end,
            )
            notes += table_notes
        notes += unpriced_tickers(tables)
        absent = {"fundamentals": "statements", "membership": "index membership"}
        if missing := [words for table, words in absent.items() if table not in tables]:
            notes.append(f"The files contain no {' and no '.join(missing)}.")
        self._refuse_unused_units(tables)
        hazards += detected_hazards(tables, self._hazards)
        return SourceTables(tables, tuple(notes), (*self._hazards, *hazards))

    def _refuse_unused_units(self, tables: Mapping[str, pl.DataFrame]) -> None:
        available = set(tables["prices"].columns) | set(tables.get("securities", pl.DataFrame()).columns)
        if "fundamentals" in tables:
            available |= set(tables["fundamentals"]["item"].unique())
        if unused := sorted(set(self._options.units) - available):
            raise DataError(f"units names {', '.join(unused)}, which no file contains: remove it")


def _is_column(name: str) -> bool:
    """Return whether a mapped name is a Peerglass column of any table, or of the table in its prefix."""
    table, dot, column = name.partition(".")
    return name in _ALL_COLUMNS or (bool(dot) and column in _COLUMNS_BY_TABLE.get(table, ()))


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name.rpartition(".")[2], sorted(_ALL_COLUMNS), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def unpriced_tickers(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return a note per table with the number of its tickers that have no prices."""
    notes = []
    for table, frame in tables.items():
        if table in ("prices", "securities", "renames"):
            continue
        unpriced = frame.select("ticker").unique().join(tables["prices"], on="ticker", how="anti").height
        if unpriced:
            notes.append(f"{unpriced:,} of the tickers in the {table} have no prices.")
    return notes


_MIN_YEARS: Final = 2.0
_MIN_FIRMS: Final = 10
_MIN_INDEX_FIRMS: Final = 50
_STILL_TRADING: Final = timedelta(days=30)
_FEW_LEAVE_PER_YEAR: Final = 0.005
"""Share of firms; about 5% to 10% of US listed firms leave their exchange each year, by merger or failure."""
_LATE_START: Final = timedelta(days=365)


def detected_hazards(tables: Mapping[str, pl.DataFrame], known_hazards: tuple[str, ...]) -> list[str]:
    """Detect survivorship, missing membership dates, and an incomplete last session.

    ``tables``: the tables that the source delivers, including ``prices``. ``known_hazards``: hazards that the
    user has already stated.
    """
    prices = tables["prices"]
    dated = prices.select(day(prices), "ticker").drop_nulls()
    hazards: list[str] = []
    spans = dated.group_by("ticker").agg(
        pl.col("date").min().alias("first"), pl.col("date").max().alias("last")
    )
    first, last = dated["date"].min(), dated["date"].max()
    if not isinstance(first, date) or not isinstance(last, date):
        return hazards
    years = (last - first).days / 365.25
    leavers = spans.filter(pl.col("last") < last - _STILL_TRADING).height
    few_leave = (
        years >= _MIN_YEARS
        and spans.height >= _MIN_FIRMS
        and leavers < _FEW_LEAVE_PER_YEAR * years * spans.height
        and not _records_delistings(tables.get("securities"))
    )
    if few_leave and not any("surviv" in hazard.lower() for hazard in known_hazards):
        hazards.append(
            f"Survivorship is likely: {leavers or 'none'} of {spans.height:,} firms stop trading in "
            f"{years:.1f} years, so the list was probably compiled with hindsight."
        )
    if few_leave and spans.height >= _MIN_INDEX_FIRMS and "membership" not in tables:
        late_starters = spans.filter(pl.col("first") > first + _LATE_START).height
        hazards.append(
            f"No membership was given for what looks like an index: each of {spans.height:,} firms is used "
            f"from its first price, even before it joined; {late_starters:,} of them start more than a year "
            "after the first session."
        )
    sessions = dated.group_by("date").len().sort("date").tail(2)["len"].to_list()
    if len(sessions) == 2 and sessions[1] < 0.8 * sessions[0]:
        hazards.append(
            f"The last session, {last}, has {sessions[1]:,} firms and the one before has {sessions[0]:,}: "
            "it may be incomplete."
        )
    return hazards


def _records_delistings(securities: pl.DataFrame | None) -> bool:
    if securities is None or "delisted_on" not in securities.columns:
        return False
    return securities["delisted_on"].drop_nulls().len() > 0
