"""A user's own CSV, Excel or Parquet files: prices, and optionally firms, statements, membership, inputs."""

import difflib
import math
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.secrets import masked
from pipelines.sources.base import ITEMS, SourceTables
from pipelines.sources.files import tables as beside
from pipelines.sources.files.layouts import LAYOUTS, PRICE_NAMES, Names
from pipelines.sources.files.opening import resolve
from pipelines.sources.files.prices import DELISTINGS, OPTIONAL, REQUIRED, read_prices
from pipelines.sources.files.reading import GivenFiles, day
from pipelines.sources.files.tables import STATEMENTS, read_statements
from pipelines.sources.settings import FilesSourceConfig

_COLUMNS_BY_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "prices": (*REQUIRED, *OPTIONAL, *DELISTINGS),
    "securities": ("ticker", *beside.SECURITIES),
    "fundamentals": ("ticker", *STATEMENTS),
    "membership": ("ticker", *beside.MEMBERSHIP),
    "renames": ("ticker", *beside.RENAMES),
    "inputs": ("date", "ticker"),
}
_ALL_COLUMNS: Final = frozenset(name for names in _COLUMNS_BY_TABLE.values() for name in names)
_WITH_UNITS: Final = frozenset(("close", *OPTIONAL, "delisting_return", *ITEMS))


class FilesSource:
    """Prices, and optionally other tables, from files; ConfigError if settings contradict each other."""

    name = "files"

    def __init__(self, config: FilesSourceConfig) -> None:
        self._config = config
        self._names = {**PRICE_NAMES, **(LAYOUTS[config.vendor].columns if config.vendor else {})}
        if problem := next(_problems(config), None):
            raise ConfigError(problem)

    def fetch(self) -> SourceTables:
        """Read the files; ConfigError, DataError if one is missing, unreadable or lacks what it needs."""
        config, names = self._config, self._names
        notes: list[str] = []
        hazards: list[str] = []

        def given(table: str, path: str, usual: Names | None = None) -> GivenFiles:
            return GivenFiles(resolve(Path(path)), usual or {}, table, config, notes, hazards)

        usual = names if config.vendor or config.layout == "wide" else None
        files = given("prices", config.prices, usual)
        prices, ended = read_prices(files)
        tables = {"prices": prices}
        if config.securities:
            firms = given(
                "securities", config.securities, {**beside.SECURITY_NAMES, "ticker": names["ticker"]}
            )
            tables["securities"] = beside.read_securities(firms)
            if unclassified := _not_in(prices, tables["securities"]):
                notes.append(f"{unclassified} of the tickers in the prices are not in the securities file.")
        elif ended is not None and ended.height:
            tables["securities"] = beside.delisted_firms(ended)
            notes.append(f"The prices contain the delistings of {tables['securities'].height:,} firms.")
        else:
            notes.append(
                "No securities file was given: names, sectors, industries and listing dates are unknown."
            )
        if config.renames:
            tables["renames"] = beside.read_renames(given("renames", config.renames))
        if config.fundamentals:
            files = given("fundamentals", config.fundamentals)
            tables["fundamentals"] = read_statements(files, prices, tables.get("renames"))
        if config.membership:
            files = given("membership", config.membership, beside.MEMBERSHIP_NAMES)
            tables["membership"] = beside.read_membership(files)
        if config.inputs:
            files = given("inputs", config.inputs, {name: names[name] for name in ("date", "ticker")})
            tables["inputs"] = beside.read_inputs(files)
        for table, frame in tables.items():
            if table in ("fundamentals", "membership", "inputs") and (unpriced := _not_in(frame, prices)):
                notes.append(f"{unpriced:,} of the tickers in the {table} have no prices.")
        absent = {"fundamentals": "statements", "membership": "index membership"}
        missing = [words for table, words in absent.items() if table not in tables]
        notes += [f"The files contain no {' and no '.join(missing)}."] if missing else []
        with_units = {*prices.columns, *tables.get("securities", pl.DataFrame()).columns}
        with_units |= {*tables["fundamentals"]["item"]} if config.fundamentals else set()
        if unused := sorted({*config.units} - with_units):
            raise DataError(f"units names {', '.join(unused)}, which no file contains: remove it")
        told = tuple(masked(hazard) for hazard in config.hazards)
        return SourceTables(tables, tuple(notes), (*told, *hazards, *detected_hazards(tables, told)))


def _problems(config: FilesSourceConfig) -> Iterator[str]:
    """Say what is wrong in the settings of a source of files."""
    of_tables = {f"{table}.{name}" for table, names in _COLUMNS_BY_TABLE.items() for name in names}
    if unknown := sorted({*config.columns} - _ALL_COLUMNS - of_tables):
        near = difflib.get_close_matches(unknown[0].rpartition(".")[2], sorted(_ALL_COLUMNS), n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        yield (
            f"columns maps {', '.join(unknown)}, which is not a column of any table{meant}; "
            f"choose from {', '.join(sorted(_ALL_COLUMNS))}"
        )
    for setting, names, allowed, what in (
        ("units", config.units, sorted(_WITH_UNITS), "has no unit"),
        ("source.items", config.items, ITEMS, "is not a statement item"),
        ("source.zero_means_missing", config.zero_means_missing, ITEMS, "is not a statement item"),
    ):
        if unknown := sorted({*names} - {*allowed}):
            yield f"{setting} names {', '.join(unknown)}, which {what}; choose from {', '.join(allowed)}"
    for name, by in config.units.items():
        if by == 0 or not math.isfinite(by):
            yield f"units multiplies {name} by {by}; the factor must be finite and not 0"
    if config.layout == "file_per_ticker" and {"ticker", "prices.ticker"} & config.columns.keys():
        yield (
            "columns maps ticker, but with layout: file_per_ticker the name of a file is its ticker; "
            "remove the entry, or set layout: long"
        )
    of_statements = config.items or config.zero_means_missing or config.statement_months
    if of_statements and not config.fundamentals:
        yield (
            "source.items, zero_means_missing and statement_months describe source.fundamentals: "
            "name its file as well."
        )
    if config.end is not None and config.fundamentals and config.share_counts_as_of == "today":
        yield (
            f"share_counts_as_of is today, but prices end on {config.end}, so later splits could not be "
            "undone; remove end"
        )
    if config.start is not None and config.end is not None and config.start > config.end:
        yield f"start {config.start} is after end {config.end}: swap them"


def _not_in(frame: pl.DataFrame, other: pl.DataFrame) -> int:
    """Count the tickers of a frame that another one lacks."""
    return frame.select("ticker").unique().join(other, on="ticker", how="anti").height


_MIN_YEARS: Final = 2.0
_MIN_FIRMS: Final = 10
_MIN_INDEX_FIRMS: Final = 50
_STILL_TRADING: Final = timedelta(days=30)
_FEW_LEAVE_PER_YEAR: Final = 0.005  # 5% to 10% of US firms leave their exchange each year
_LATE_START: Final = timedelta(days=365)


def detected_hazards(tables: Mapping[str, pl.DataFrame], known_hazards: tuple[str, ...]) -> list[str]:
    """Detect survivorship, unless the user states it, missing membership, and an incomplete last session."""
    prices = tables["prices"]
    dated = prices.select(day(prices), "ticker").drop_nulls()
    hazards: list[str] = []
    spans = dated.group_by("ticker").agg(first=pl.col("date").min(), last=pl.col("date").max())
    first, last = dated["date"].min(), dated["date"].max()
    if not isinstance(first, date) or not isinstance(last, date):
        return hazards
    years, none = (last - first).days / 365.25, pl.Series(dtype=pl.Date)
    leavers = spans.filter(pl.col("last") < last - _STILL_TRADING).height
    few_leave = (
        years >= _MIN_YEARS
        and spans.height >= _MIN_FIRMS
        and leavers < _FEW_LEAVE_PER_YEAR * years * spans.height
        and tables.get("securities", pl.DataFrame()).get_column("delisted_on", default=none).count() == 0
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
