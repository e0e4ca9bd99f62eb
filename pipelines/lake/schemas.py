"""The tables of the lake as dataframely schemas: columns, types, keys, and the rules that a row must keep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import dataframely as dy
import polars as pl
from dataframely._rule import RuleFactory

RANGE_TOLERANCE: Final = 0.005
"""How far, relative to the bound, a close or an open may lie outside [low, high]: vendors round and adjust
the four prices separately. In the Nasdaq files 78 closes of 3.7 million are outside, 48 by more than this."""

EARLIEST: Final = date(1800, 1, 1)
LATEST: Final = date(2200, 1, 1)
"""A price of another date was not quoted on it: the date was read wrongly."""

TICKER_PATTERN: Final = r"^[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}$"
"""Letters, digits and ``. - _ ^ =``: admits BRK.B, BF-B, ^GSPC, 7203.T, EURUSD=X; no slash, angle bracket,
quote, ampersand or space, so that a name from data is never a path and never markup."""

INPUT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"
"""Names of a user's own inputs become feature names."""

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Run ids name partition folders, so they are as plain as tickers."""


def _plain_ticker(column: str) -> pl.Expr:
    return pl.col(column).str.contains(TICKER_PATTERN) & ~pl.col(column).str.contains("..", literal=True)


def _finite(column: str) -> pl.Expr:
    return pl.col(column).is_finite()


def _positive(column: str) -> pl.Expr:
    return _finite(column) & (pl.col(column) > 0)


def _measure(*, nullable: bool = False) -> dy.Float64:
    """Make a float column whose range is checked by a named rule of the schema rather than by dataframely."""
    return dy.Float64(nullable=nullable, allow_nan=True, allow_inf=True)


def _key_date() -> dy.Date:
    return dy.Date(primary_key=True)


def _key_text() -> dy.String:
    return dy.String(primary_key=True)


def within_range(column: str) -> pl.Expr:
    """Tell whether a price lies in ``[low (1 - tol), high (1 + tol)]``, tol = `RANGE_TOLERANCE`.

    True where the bound in question or the price is null, or where high < low (another rule's matter).
    """
    above = (pl.col(column) <= pl.col("high") * (1.0 + RANGE_TOLERANCE)).fill_null(value=True)
    below = (pl.col(column) >= pl.col("low") * (1.0 - RANGE_TOLERANCE)).fill_null(value=True)
    return (above & below) | (pl.col("high") < pl.col("low")).fill_null(value=False)


ADDED_LATER: Final = {"added_later": True}
"""``metadata`` of a nullable column that a table gained after lakes were written. Tables without it are read
with null in it (`pipelines.lake.storage`). A null in it is no part of a row's hash, so that a row that was
quarantined or released before is still the same row."""


def named_rule(holds: pl.Expr) -> RuleFactory:
    """Make a rule of a schema, named by the attribute that it is assigned to; null counts as holding."""

    def validate(cls: type[dy.Schema]) -> pl.Expr:
        return holds

    return dy.rule()(validate)


class Prices(dy.Schema):
    """Daily bars as quoted, one row a session and firm; null open, high, low or volume = not known."""

    date = _key_date()
    ticker = _key_text()
    open = _measure(nullable=True)
    high = _measure(nullable=True)
    low = _measure(nullable=True)
    close = _measure()
    volume = _measure(nullable=True)
    split_ratio = _measure()
    dividend = _measure()
    source = dy.String()
    ingested_at = dy.Datetime(time_unit="us", time_zone="UTC")

    ticker_is_plain = named_rule(_plain_ticker("ticker"))
    date_is_plausible = named_rule(pl.col("date").is_between(EARLIEST, LATEST))
    close_is_positive = named_rule(_positive("close"))
    open_is_positive = named_rule(_positive("open"))
    high_is_positive = named_rule(_positive("high"))
    low_is_positive = named_rule(_positive("low"))
    high_not_below_low = named_rule(pl.col("high") >= pl.col("low"))
    close_within_range = named_rule(within_range("close"))
    open_within_range = named_rule(within_range("open"))
    volume_is_finite_and_not_negative = named_rule(_finite("volume") & (pl.col("volume") >= 0))
    split_ratio_is_positive = named_rule(_positive("split_ratio"))
    dividend_is_finite_and_not_negative = named_rule(_finite("dividend") & (pl.col("dividend") >= 0))


class Securities(dy.Schema):
    """What a firm was called and where it belonged, for valid_from <= t < valid_to (null = still)."""

    ticker = _key_text()
    valid_from = _key_date()
    name = dy.String(nullable=True)
    sector = dy.String(nullable=True)
    industry = dy.String(nullable=True)
    listed_on = dy.Date(nullable=True)
    delisted_on = dy.Date(nullable=True)
    delisting_return = _measure(nullable=True)
    # merger, performance or unknown; null is unknown
    delisting_reason = dy.String(nullable=True, metadata=ADDED_LATER)
    currency = dy.String(nullable=True)
    exchange = dy.String(nullable=True)
    valid_to = dy.Date(nullable=True)

    ticker_is_plain = named_rule(_plain_ticker("ticker"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))
    delisted_not_before_listed = named_rule(pl.col("delisted_on") >= pl.col("listed_on"))
    delisting_return_at_least_minus_one = named_rule(
        _finite("delisting_return") & (pl.col("delisting_return") >= -1.0)
    )
    delisting_reason_is_merger_performance_or_unknown = named_rule(
        pl.col("delisting_reason").is_in(["merger", "performance", "unknown"])
    )


class Fundamentals(dy.Schema):
    """Statement items as published; a restatement is another row with a later known_at.

    ``stated_on`` is the last day whose splits a share count or an amount per share contains: the cover page's
    day, the filing's day where statements give retroactive effect to splits, or the period's end. Null stands
    for the period's end, and for other items.
    """

    ticker = _key_text()
    period_end = _key_date()
    known_at = _key_date()
    item = _key_text()
    value = _measure()
    unit = dy.String(nullable=True)
    filing_id = dy.String(nullable=True)
    months = dy.Int64(nullable=True, min=1)  # span of a flow (3, 6, 9, 12); null: an instant, or not said
    stated_on = dy.Date(nullable=True, metadata=ADDED_LATER)
    assumed = dy.Bool()  # known_at is period_end plus an assumed lag, not a date on which somebody published
    # who added the row to another source's lake; null: the lake's own source
    source = dy.String(nullable=True, metadata=ADDED_LATER)

    ticker_is_plain = named_rule(_plain_ticker("ticker"))
    known_after_period_end = named_rule(pl.col("known_at") >= pl.col("period_end"))
    stated_between_period_end_and_known_at = named_rule(
        pl.col("stated_on").is_between(pl.col("period_end"), pl.col("known_at"))
    )
    value_is_finite = named_rule(_finite("value"))


class Membership(dy.Schema):
    """Spells of index membership, from_date <= t < to_date (null = still)."""

    universe = _key_text()
    ticker = _key_text()
    from_date = _key_date()
    to_date = dy.Date(nullable=True)

    ticker_is_plain = named_rule(_plain_ticker("ticker"))
    to_date_after_from_date = named_rule(pl.col("to_date") > pl.col("from_date"))


class Inputs(dy.Schema):
    """A user's own numbers by date and firm, as delivered; whether known by then is for the audit."""

    name = _key_text()
    date = _key_date()
    ticker = _key_text()
    value = _measure()

    ticker_is_plain = named_rule(_plain_ticker("ticker"))
    name_is_plain = named_rule(pl.col("name").str.contains(INPUT_PATTERN))
    value_is_finite = named_rule(_finite("value"))


class Forecasts(dy.Schema):
    """One forecast a date, firm, model, fold and seed; null label = not known yet."""

    run_id = _key_text()
    model = _key_text()
    fold = dy.Int64(primary_key=True, min=0)
    seed = dy.Int64(primary_key=True)
    date = _key_date()
    ticker = _key_text()
    forecast = _measure()
    label = _measure(nullable=True)

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))
    forecast_is_finite = named_rule(_finite("forecast"))
    label_is_finite = named_rule(_finite("label"))


class EnsembleForecasts(dy.Schema):
    """A run's seed ensembles: the signal, and its dispersion between seeds (null for a single seed).

    Both are in cross-sectional standard deviations of one date's forecasts.
    """

    model = _key_text()
    date = _key_date()
    ticker = _key_text()
    signal = _measure()
    seed_dispersion = _measure(nullable=True)
    seeds = dy.Int64(min=1)

    signal_is_finite = named_rule(_finite("signal"))
    seed_dispersion_is_finite = named_rule(_finite("seed_dispersion"))
    seed_dispersion_is_not_negative = named_rule(pl.col("seed_dispersion") >= 0)


class ForecastPaths(Forecasts):
    """Forecasts of the horizons below the label's, of models that make several: one more key, the horizon."""

    horizon = dy.Int64(primary_key=True, min=1)


class Quarantine(dy.Schema):
    """Rejected rows: the row as JSON with its values as text, and the first rule that it broke.

    ``resolved_at``: when a later delivery had a sound row in its place, or had it no more; null while it is
    still delivered as it was.
    """

    table = _key_text()
    row_hash = _key_text()
    row = dy.String()
    rule = dy.String()
    first_seen = dy.Datetime(time_unit="us", time_zone="UTC")
    resolved_at = dy.Datetime(time_unit="us", time_zone="UTC", nullable=True, metadata=ADDED_LATER)


class Flags(dy.Schema):
    """Stored rows that a quality rule doubts: which rule, why, and the date at whose close that was known.

    ``ticker`` is ``*``, followed by the calendar's code if there is one, where the whole market is meant.
    ``cleared``: no longer in doubt, because the row or its neighbours were corrected, or a user released it.
    """

    table = _key_text()
    ticker = _key_text()
    date = _key_date()
    rule = _key_text()
    row_hash = dy.String()
    evidence = dy.String()
    known_on = dy.Date()
    cleared = dy.Bool()
    flagged_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Releases(dy.Schema):
    """Rows that a user accepted despite the rule they broke; no rule judges them while they stay as is."""

    table = _key_text()
    row_hash = _key_text()
    row = dy.String()
    rule = dy.String()
    released_at = dy.Datetime(time_unit="us", time_zone="UTC")


class TruthMu(dy.Schema):
    """The simulated market's conditional mean return per decision date and firm, and its three parts."""

    date = _key_date()
    ticker = _key_text()
    mu = _measure()
    temporal = _measure()
    peer = _measure()
    characteristic = _measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(_finite(c) for c in ("mu", "temporal", "peer", "characteristic"))
    )


class TruthEdges(dy.Schema):
    """The simulated market's graph: what the leader's shock adds to the follower's mean after lag sessions.

    The edge acts on decision dates in [valid_from, valid_to); ``explained`` says that features show it,
    ``rule`` why it is there and ``via`` which firm lies between when hop = 2.
    """

    leader = _key_text()
    follower = _key_text()
    lag = dy.Int64(primary_key=True, min=0)
    hop = dy.Int64(primary_key=True, min=1)
    valid_from = _key_date()
    valid_to = dy.Date(nullable=True)
    weight = _measure()
    explained = dy.Bool()
    rule = dy.String(nullable=True)
    via = dy.String(nullable=True)

    weight_is_finite = named_rule(_finite("weight"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))


class TruthDays(dy.Schema):
    """What the firm's own return k sessions before the decision date adds to its temporal part: day_k."""

    date = _key_date()
    ticker = _key_text()
    turbulent = dy.Bool()
    shock = _measure()
    day_0 = _measure()
    day_1 = _measure()
    day_2 = _measure()
    day_3 = _measure()
    day_4 = _measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(_finite(c) for c in ("shock", "day_0", "day_1", "day_2", "day_3", "day_4"))
    )


class Sources(dy.Schema):
    """The sources that were ingested, and what they said of their data.

    ``notes``: JSON list of sentences, of the last ingest that had any. ``hazards``: JSON list of sentences,
    of all ingests. ``market``: JSON of what tells this market from others of the same source.
    """

    source = _key_text()
    notes = dy.String()
    hazards = dy.String()
    market = dy.String(nullable=True, metadata=ADDED_LATER)


class Trials(dy.Schema):
    """The ledger of every configuration that was trained and evaluated, once for each run that tried it."""

    trial_id = _key_text()
    run_id = _key_text()
    model = dy.String()
    config = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Readers(dy.Schema):
    """Which runs read which version of which table of this lake; a vacuum keeps those versions.

    ``table_id`` is the id that Delta gave the table when it was made.
    """

    run_id = _key_text()
    table = _key_text()
    version = dy.Int64(primary_key=True, min=1)
    table_id = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))


SCHEMAS: Final[Mapping[str, type[dy.Schema]]] = {
    "prices": Prices,
    "securities": Securities,
    "fundamentals": Fundamentals,
    "membership": Membership,
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
    "sources": Sources,
    "readers": Readers,
}

SOURCE_TABLES: Final = (
    "prices",
    "securities",
    "fundamentals",
    "membership",
    "inputs",
    "truth_mu",
    "truth_edges",
    "truth_days",
)
"""The tables a source may give; the others are written by the pipeline itself."""

STAMPS: Final = frozenset({"ingested_at", "first_seen", "flagged_at", "released_at", "created_at"})
"""Columns that say when a row was written; a different stamp alone is not a change of the row."""


SUPPLEMENTS: Final = frozenset({"sec"})
"""Names of live sources that give no prices: they add statements to the lake of another source."""


def keys(table: str) -> list[str]:
    """Return the key columns of a lake table.

    Raises
    ------
    ValueError
        If the lake has no table of that name.
    """
    return list(schema(table).primary_key())


def added_later(table: str) -> list[str]:
    """Return the columns that a table gained after lakes were written."""
    return [name for name, column in schema(table).columns().items() if column.metadata == ADDED_LATER]


def schema(table: str) -> type[dy.Schema]:
    """Return the contract of a lake table; ValueError if the lake has no table of that name."""
    if table not in SCHEMAS:
        raise ValueError(f"the lake has no table {table!r}; its tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[table]
