"""The tables of a lake: their schemas and keys, who writes them, and when a row of a source becomes known.

Each class is a table, named after it. First come the tables that a source may give, then those that the
pipeline writes: forecasts, quarantine, flags, trials, nights and others.
"""

import datetime as dt
import functools
import re
from collections.abc import Mapping
from typing import Final

import dataframely as dy
import polars as pl

RANGE_TOLERANCE: Final = 0.005  # outside [low, high]: vendors round and adjust the four prices separately
SAME_RETURN: Final = 0.002  # two returns are the same within this; rounding to cents is less above 5
LEAST_SAME: Final = 0.25  # least share of equal returns of one firm; of two, 5% to 10% are equal by chance
EARLIEST: Final = dt.date(1800, 1, 1)
LATEST: Final = dt.date(2200, 1, 1)  # plausible dates of prices; others were read wrongly
TICKER_PATTERN: Final = r"^[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}$"
"""Letters, digits and ``. - _ ^ =``, as in BRK.B, BF-B, ^GSPC, 7203.T and EURUSD=X. A slash, angle bracket,
quote, ampersand or space is refused: a ticker from data must not become a path or HTML."""

INPUT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"  # names of a user's own inputs, which become feature names
RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # run ids, which name partition folders


def plain_ticker(column: str) -> pl.Expr:
    """True where a ticker matches `TICKER_PATTERN` and has no ``..`` in it."""
    return pl.col(column).str.contains(TICKER_PATTERN) & ~pl.col(column).str.contains("..", literal=True)


def finite(column: str) -> pl.Expr:
    """True where a number is neither NaN nor infinite."""
    return pl.col(column).is_finite()


def positive(column: str) -> pl.Expr:
    """True where a number is finite and above 0."""
    return finite(column) & (pl.col(column) > 0)


measure = functools.partial(dy.Float64, allow_nan=True, allow_inf=True)  # named rules check its range
key_date = functools.partial(dy.Date, primary_key=True)
key_text = functools.partial(dy.String, primary_key=True)
stamp = functools.partial(dy.Datetime, time_unit="us", time_zone="UTC")  # a time of writing


def within_range(column: str) -> pl.Expr:
    """Whether a price lies in ``[low, high]`` within `RANGE_TOLERANCE`; true where a bound is unknown."""
    above = (pl.col(column) <= pl.col("high") * (1.0 + RANGE_TOLERANCE)).fill_null(value=True)
    below = (pl.col(column) >= pl.col("low") * (1.0 - RANGE_TOLERANCE)).fill_null(value=True)
    return (above & below) | (pl.col("high") < pl.col("low")).fill_null(value=False)


def named_rule(holds: pl.Expr) -> object:
    """Make a `dataframely.rule`, named after its attribute; a row where it is null satisfies it."""
    return dy.rule()(lambda _: holds)


class Prices(dy.Schema):
    """Daily bars as quoted, one row per session and firm. A null open, high, low or volume is unknown."""

    date, ticker = key_date(), key_text()
    open, high, low = measure(nullable=True), measure(nullable=True), measure(nullable=True)
    close, volume, split_ratio = measure(), measure(nullable=True), measure()
    dividend, source, ingested_at = measure(), dy.String(), stamp()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    date_is_plausible = named_rule(pl.col("date").is_between(EARLIEST, LATEST))
    close_is_positive = named_rule(positive("close"))
    open_is_positive = named_rule(positive("open"))
    high_is_positive = named_rule(positive("high"))
    low_is_positive = named_rule(positive("low"))
    high_not_below_low = named_rule(pl.col("high") >= pl.col("low"))
    close_within_range = named_rule(within_range("close"))
    open_within_range = named_rule(within_range("open"))
    volume_is_finite_and_not_negative = named_rule(finite("volume") & (pl.col("volume") >= 0))
    split_ratio_is_positive = named_rule(positive("split_ratio"))
    dividend_is_finite_and_not_negative = named_rule(finite("dividend") & (pl.col("dividend") >= 0))


class Gaps(dy.Schema):
    """Prices that are missing although the session is known: a row was rejected, or the session is missing.

    Ingest writes this table. A firm without a row here and in ``prices`` is halted. ``split_ratio`` and
    ``dividend`` are those of the rejected row; null is none, or unknown. Rows under the rule
    ``closed_session`` or ``sparse_date`` are of no session, and only keep a split or a dividend.
    """

    date, ticker = key_date(), key_text()
    rule = dy.String()
    split_ratio, dividend = measure(nullable=True), measure(nullable=True)


class Securities(dy.Schema):
    """A firm's name, sector, industry and listing for valid_from <= t < valid_to (null: still valid)."""

    ticker, valid_from = key_text(), key_date()
    name, sector = dy.String(nullable=True), dy.String(nullable=True)
    industry, listed_on = dy.String(nullable=True), dy.Date(nullable=True)
    delisted_on, delisting_return = dy.Date(nullable=True), measure(nullable=True)
    delisting_reason = dy.String(nullable=True)  # merger, performance or unknown; null is unknown
    currency, exchange = dy.String(nullable=True), dy.String(nullable=True)
    valid_to = dy.Date(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))
    delisted_not_before_listed = named_rule(pl.col("delisted_on") >= pl.col("listed_on"))
    delisting_return_at_least_minus_one = named_rule(
        finite("delisting_return") & (pl.col("delisting_return") >= -1.0)
    )
    delisting_reason_is_merger_performance_or_unknown = named_rule(
        pl.col("delisting_reason").is_in(["merger", "performance", "unknown"])
    )


class Fundamentals(dy.Schema):
    """Statement items as published. A restatement is another row with a later known_at.

    ``stated_on`` is for share counts and amounts per share: the last day whose splits they contain. It is
    the cover page's day, the filing's day where statements are restated for splits, or the period's end.
    Null means the period's end, and is used for all other items.
    """

    ticker, period_end, known_at, item = key_text(), key_date(), key_date(), key_text()
    value, unit, filing_id = measure(), dy.String(nullable=True), dy.String(nullable=True)
    # span of a flow (3, 6, 9, 12); null: a balance at a date, or unknown
    months = dy.Int64(nullable=True, min=1)
    stated_on = dy.Date(nullable=True)
    assumed = dy.Bool()  # known_at is period_end plus an assumed lag, not a recorded date of publication
    # the source that added the row to another source's lake; null: the lake's own source
    source = dy.String(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    known_after_period_end = named_rule(pl.col("known_at") >= pl.col("period_end"))
    stated_between_period_end_and_known_at = named_rule(
        pl.col("stated_on").is_between(pl.col("period_end"), pl.col("known_at"))
    )
    value_is_finite = named_rule(finite("value"))


class Membership(dy.Schema):
    """Spells of index membership, from_date <= t < to_date (null: still a member)."""

    universe, ticker, from_date = key_text(), key_text(), key_date()
    to_date = dy.Date(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    to_date_after_from_date = named_rule(pl.col("to_date") > pl.col("from_date"))


class Renames(dy.Schema):
    """New tickers of firms: from ``from_date`` on, the firm that was called ``ticker`` is ``new_ticker``."""

    ticker, from_date = key_text(), key_date()
    new_ticker = dy.String()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    new_ticker_is_plain = named_rule(plain_ticker("new_ticker"))
    new_ticker_differs = named_rule(pl.col("new_ticker") != pl.col("ticker"))


class Inputs(dy.Schema):
    """A user's own numbers by date and firm, as delivered. The audit checks whether they were known then."""

    name, date, ticker = key_text(), key_date(), key_text()
    value = measure()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    name_is_plain = named_rule(pl.col("name").str.contains(INPUT_PATTERN))
    value_is_finite = named_rule(finite("value"))


class TruthMu(dy.Schema):
    """The simulated market's conditional mean return per decision date and firm, and its three parts."""

    date, ticker = key_date(), key_text()
    mu, temporal, peer = measure(), measure(), measure()
    characteristic = measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(finite(c) for c in ("mu", "temporal", "peer", "characteristic"))
    )


class TruthEdges(dy.Schema):
    """The simulated market's graph: what a leader's shock adds to the follower's mean after lag sessions.

    An edge acts on decision dates in [valid_from, valid_to). ``explained`` is true where features reveal it,
    ``rule`` names the rule that made it, ``led_by`` what the rule chose the leader by, and ``via`` is the
    firm between the two when hop = 2.
    """

    leader, follower, lag = key_text(), key_text(), dy.Int64(primary_key=True, min=0)
    hop, valid_from = dy.Int64(primary_key=True, min=1), key_date()
    valid_to, weight, explained = dy.Date(nullable=True), measure(), dy.Bool()
    rule, led_by = dy.String(nullable=True), dy.String(nullable=True)
    via = dy.String(nullable=True)

    weight_is_finite = named_rule(finite("weight"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))


class TruthDays(dy.Schema):
    """The simulated market's temporal part by day: day_k is due to the firm's return k sessions earlier."""

    date, ticker = key_date(), key_text()
    turbulent, shock, day_0 = dy.Bool(), measure(), measure()
    day_1, day_2, day_3 = measure(), measure(), measure()
    day_4 = measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(finite(c) for c in ("shock", "day_0", "day_1", "day_2", "day_3", "day_4"))
    )


class Forecasts(dy.Schema):
    """One forecast per date, firm, model, fold and seed. A null label is not known yet."""

    run_id, model, fold = key_text(), key_text(), dy.Int64(primary_key=True, min=0)
    seed, date, ticker = dy.Int64(primary_key=True), key_date(), key_text()
    forecast, label = measure(), measure(nullable=True)

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))
    forecast_is_finite = named_rule(finite("forecast"))
    label_is_finite = named_rule(finite("label"))


class EnsembleForecasts(dy.Schema):
    """A run's seed ensembles: signal and dispersion, in standard deviations of one date's forecasts."""

    model, date, ticker = key_text(), key_date(), key_text()
    signal, seed_dispersion, seeds = measure(), measure(nullable=True), dy.Int64(min=1)

    signal_is_finite = named_rule(finite("signal"))
    seed_dispersion_is_finite = named_rule(finite("seed_dispersion"))
    seed_dispersion_is_not_negative = named_rule(pl.col("seed_dispersion") >= 0)


class ForecastPaths(Forecasts):
    """Forecasts of horizons shorter than the label's, of models with several: the horizon is in the key."""

    horizon = dy.Int64(primary_key=True, min=1)


class Quarantine(dy.Schema):
    """Rejected rows: the row as JSON with its values as text, and the first rule that it broke.

    ``resolved_at`` is when a later delivery corrected the row or left it out; null while the row is still
    delivered unchanged.
    """

    table, row_hash = key_text(), key_text()
    row, rule, first_seen = dy.String(), dy.String(), stamp()
    resolved_at = stamp(nullable=True)


class Flags(dy.Schema):
    """Stored rows that a quality rule flags: rule, evidence, and the date at whose close it was known.

    For a flag of the whole market, ``ticker`` is ``*``, followed by the calendar's code if there is one.
    ``cleared`` is true once the row or its neighbours were corrected, or a user released the row.
    """

    table, ticker, date, rule = key_text(), key_text(), key_date(), key_text()
    row_hash, evidence, known_on = dy.String(), dy.String(), dy.Date()
    cleared, flagged_at = dy.Bool(), stamp()


class Releases(dy.Schema):
    """Rows that a user accepted although they broke a rule. Unchanged, they are not checked again."""

    table, row_hash = key_text(), key_text()
    row, rule, released_at = dy.String(), dy.String(), stamp()


class Sources(dy.Schema):
    """The sources that were ingested, with their remarks on the data.

    ``notes`` is a JSON list of sentences from the last ingest that had any, ``hazards`` one from all ingests.
    ``market`` is JSON that identifies the market among others of the same source, ``unfinished`` an ingest
    that has begun and not ended (`pipelines.lake.versions.Unfinished`). ``unused_filings`` is JSON: the
    filings by ticker that were read and have no row.
    """

    source = key_text()
    notes, hazards, market = dy.String(), dy.String(), dy.String(nullable=True)
    unfinished, unused_filings = dy.String(nullable=True), dy.String(nullable=True)


class Trials(dy.Schema):
    """The ledger of everything that was tried: one row per trial, named hypothesis and run.

    ``forecast`` and ``traded`` are digests of what is forecast and of the book that trades it (empty if it
    was only trained). ``lake`` is the location of the lake, ``lake_id`` the id of its prices if it is local.
    """

    trial_id, run_id = key_text(), key_text()
    model, config, created_at = dy.String(), dy.String(), stamp()
    forecast, traded = dy.String(nullable=True), dy.String(nullable=True)
    book, hypothesis = dy.String(nullable=True), dy.String(nullable=True)
    lake, lake_id = dy.String(nullable=True), dy.String(nullable=True)


class TrialReturns(dy.Schema):
    """Daily net returns over the risk-free rate of the ledger's trials, under one set of assumptions each."""

    forecast, traded, assumptions = key_text(), key_text(), key_text()
    dates, returns, created_at = dy.List(dy.Date()), dy.List(dy.Float32()), stamp()


class Readers(dy.Schema):
    """The table versions that runs read from this lake, by Delta's id; a vacuum keeps them."""

    run_id, table, version = key_text(), key_text(), dy.Int64(primary_key=True, min=1)
    table_id, created_at = dy.String(), stamp()

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))


class Signals(dy.Schema):
    """Signals of a model version for every firm that is listed on a session, made for use.

    ``version`` is ``RUN/MODEL``. The signal is the mean over seeds of the forecasts standardised within the
    date; it is null outside the universe. ``rank`` is from 0 (lowest) to 1. A second scoring of a session on
    other data versions, or for another universe, is a new revision, and no revision is ever rewritten.
    """

    config, session, ticker, version = key_text(), key_date(), key_text(), key_text()
    revision = dy.Int64(primary_key=True, min=1)
    signal, rank = measure(nullable=True), measure(nullable=True)
    seed_dispersion, in_universe, data_versions = measure(nullable=True), dy.Bool(), dy.String()
    created_at = stamp()

    signal_is_finite = named_rule(finite("signal"))
    rank_is_a_share = named_rule(pl.col("rank").is_between(0.0, 1.0))
    only_the_universe_has_signals = named_rule(pl.col("in_universe") | pl.col("signal").is_null())


class Books(dy.Schema):
    """The book decided at the close of a session: one row per firm that is held or to be traded.

    Weights, trades and costs are fractions of the NAV before the order is traded. ``decided`` is the target
    of the decision, from which the next one goes on, and null without a decision. ``weight`` is what the cash
    pays of it, and ``trade`` is ``weight - previous``. ``previous`` is the weight before this order is
    traded: what is held at the close, and at delays of 2 or more what earlier orders will have added by then.
    ``expected_cost`` is null where the firm cannot be traded. ``fill_sessions`` counts the sessions that the
    order takes under the participation cap: 0 without an order, null where the firm cannot be traded.
    ``bound`` names the limit that holds the weight or the trade back, or why the firm cannot be traded; null
    if there is none. A trade below ``nightly.account.min_trade`` is 0. ``price`` is the close as quoted, or
    after a flagged change of unit in the unit before, and ``shares`` the order at this price, in whole lots
    if the execution has lots; both are null without a price.
    """

    config, session, ticker = key_text(), key_date(), key_text()
    book, version, weight = dy.String(), dy.String(), measure()
    previous, trade, expected_cost = measure(), measure(), measure(nullable=True)
    fill_sessions, bound = dy.Int64(nullable=True, min=0), dy.String(nullable=True)
    tradable, created_at = dy.Bool(), stamp()
    price, shares, decided = measure(nullable=True), measure(nullable=True), measure(nullable=True)


class Holdings(dy.Schema):
    """What a book holds at the close of a night, from which the next night goes on: one row per firm.

    ``weight`` is the value of the position over the NAV, and ``open`` the rest of earlier orders that the
    participation cap left open. Orders that are still to be traded are in neither. ``since`` is the session
    at whose close the position was last traded, and ``growth`` the total return factor from there to this
    session.
    """

    config, session, ticker = key_text(), key_date(), key_text()
    weight, open, since = measure(), measure(), dy.Date()
    growth, created_at = measure(), stamp()


class Accounts(dy.Schema):
    """The account of a book at the close of a night: one row per session.

    ``nav`` is in units of the capital before the first night, and 0 if the account was ruined. ``delay``
    counts the sessions until the order is traded, and ``terms`` are the costs and the execution that it is
    traded under (JSON). ``due`` is the session of the ``schedule`` that the night decided for, null if none
    was due; it is earlier than the session if that decision was missed. ``decision`` is ``made``, ``kept``
    (no weights satisfy the limits), ``refused`` (too few signals), or null. ``orders`` and ``positions``
    count the rows of the night in ``books`` and ``holdings``. ``waiting`` is the session of the oldest
    decision whose order is not traded by this close, null if all are.
    """

    config, session = key_text(), key_date()
    book, nav, delay = dy.String(), measure(), dy.Int64(min=1)
    terms, schedule, due = dy.String(), dy.String(), dy.Date(nullable=True)
    decision, orders, positions = dy.String(nullable=True), dy.Int64(min=0), dy.Int64(min=0)
    waiting, created_at = dy.Date(nullable=True), stamp()

    nav_is_finite_and_not_negative = named_rule(finite("nav") & (pl.col("nav") >= 0))
    decision_is_known = named_rule(pl.col("decision").is_in(["made", "kept", "refused"]))


class Positions(dy.Schema):
    """What the account holds and traded, by session and firm; a booked row is never rewritten.

    Amounts are in the currency of the prices. ``shares`` are held after the trades of the session, and
    ``price`` is the close as quoted, or the last one known, of the session ``priced_on``. ``bought`` shares
    (negative for sales) cost ``paid`` each and ``fee`` in all. ``charge`` is the borrow fee and the interest,
    ``dividend`` what the shares of the previous close received. ``pnl`` is after all of these, and
    ``backtest_pnl`` that of the backtest of the same decisions. ``night`` booked the row.
    """

    config, session, ticker = key_text(), key_date(), key_text()
    shares, price, priced_on = measure(nullable=True), measure(nullable=True), dy.Date(nullable=True)
    value, bought, paid = measure(), measure(nullable=True), measure(nullable=True)
    fee, charge, dividend = measure(), measure(), measure()
    pnl, backtest_pnl = measure(), measure()
    night, created_at = dy.Date(), stamp()


class Profits(dy.Schema):
    """The account of the nights by session; a booked row is never rewritten.

    Amounts are in the currency of the prices. ``filled_by`` is ``rule``, ``fills`` or ``positions``. ``nav``
    is after all costs, ``gross`` the NAV that the same returns without costs would give, and ``backtest_nav``
    that of the backtest of the same decisions; it is null if the prices do not reach back to the first night.
    ``pnl`` is after costs. ``revision`` is by how much data and fills that arrived later change the NAV of
    the session before, whose row stays: ``nav`` is the NAV of that row plus ``revision`` and ``pnl``.
    ``night`` booked the row.
    """

    config, session = key_text(), key_date()
    filled_by, capital, nav, gross = dy.String(), measure(), measure(), measure()
    cash, pnl, revision, backtest_nav = measure(), measure(), measure(), measure(nullable=True)
    fee, charge, dividend, positions = measure(), measure(), measure(), dy.Int64(min=0)
    night, created_at = dy.Date(), stamp()


class BookLimits(dy.Schema):
    """The limits of the book's rule and what the decision of a session amounts to: one row per limit.

    ``name`` is the setting, such as ``max_turnover``, or ``neutral sector`` and ``neutral beta``. ``unit`` is
    ``of NAV`` or ``a year`` (both fractions), ``beta`` or ``firms``. ``state`` is ``binds`` if the value is
    at the limit, ``free`` within it and ``exceeded`` beyond it. A session without a decision has no rows.
    """

    config, session, name = key_text(), key_date(), key_text()
    book, value, limit = dy.String(), measure(), measure()
    unit, state, created_at = dy.String(), dy.String(), stamp()

    state_is_known = named_rule(pl.col("state").is_in(["free", "binds", "exceeded"]))


class Nights(dy.Schema):
    """The outcome of every night: one row per session.

    ``state`` is ``done``, ``warned`` (done, with warnings) or ``failed``. ``data_versions`` and ``warnings``
    are JSON. ``rows`` counts signals of the champion, ``trades`` rows of the book with a trade. ``table_ids``
    (JSON) names the Delta tables that the versions belong to, and ``settings`` (JSON) holds the settings that
    decide the orders.
    """

    config, session = key_text(), key_date()
    state, version, challenger = dy.String(), dy.String(nullable=True), dy.String(nullable=True)
    data_versions, rows, trades = dy.String(), dy.Int64(min=0), dy.Int64(min=0)
    warnings, error, seconds = dy.String(), dy.String(nullable=True), measure()
    peak_memory_bytes, created_at = dy.Int64(min=0), stamp()
    table_ids, settings = dy.String(nullable=True), dy.String(nullable=True)

    state_is_known = named_rule(pl.col("state").is_in(["done", "warned", "failed"]))


class Promotions(dy.Schema):
    """Every change of the aliases ``champion`` and ``challenger`` of a config, numbered from 1.

    ``version`` is ``RUN/MODEL``, or null if the alias was removed. ``session`` is the night that made the
    change; null if a person did. ``evidence`` is JSON.
    """

    config, number = key_text(), dy.Int64(primary_key=True, min=1)
    alias, version, session = dy.String(), dy.String(nullable=True), dy.Date(nullable=True)
    by, why, forced = dy.String(), dy.String(), dy.Bool()
    evidence, created_at = dy.String(), stamp()

    alias_is_known = named_rule(pl.col("alias").is_in(["champion", "challenger"]))


SCHEMAS: Final[Mapping[str, type[dy.Schema]]] = {  # all of this module; ensembles are files of runs
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): one
    for name, one in tuple(globals().items())
    if isinstance(one, type) and issubclass(one, dy.Schema) and one is not EnsembleForecasts
}
SOURCE_TABLES: Final = (  # what a source may give; others are written by the pipeline
    *("prices", "securities", "fundamentals", "membership", "renames", "inputs"),
    *("truth_mu", "truth_edges", "truth_days"),
)
INPUT_TABLES: Final = (*SOURCE_TABLES, "gaps")  # what a run reads: the source's, and what ingest adds
READ_TABLES: Final = tuple(name for name in SCHEMAS if name in {*INPUT_TABLES, "flags"})
"""Tables whose versions belong together, because an ingest changes several of them."""
STAMPS: Final = frozenset({"ingested_at", "first_seen", "flagged_at", "released_at", "created_at"})
"""Columns that hold the time of writing. A row that differs in them only is an unchanged row."""

SUPPLEMENTS: Final = frozenset({"sec"})  # live sources that add statements to another source's lake
KNOWN_FROM: Final[Mapping[str, str]] = {  # table -> day from which a row is known
    **dict.fromkeys(("prices", "inputs", "gaps", "truth_mu", "truth_days"), "date"),
    **dict.fromkeys(("securities", "truth_edges"), "valid_from"),
    **dict.fromkeys(("membership", "renames"), "from_date"),
    "fundamentals": "known_at",
    "flags": "known_on",
}
_LEARNT_LATER: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {  # day -> columns unknown before it
    "membership": {"to_date": ("to_date",)},
    "securities": {
        "valid_to": ("valid_to",),
        "delisted_on": ("delisted_on", "delisting_return", "delisting_reason"),
    },
    "truth_edges": {"valid_to": ("valid_to",)},
}


def rows_known(table: str, through: dt.date) -> pl.Expr:
    """Select the rows of a table that are known at the close of a session, and those without a day."""
    column = pl.col(KNOWN_FROM[table])
    return column.is_null() | (column <= through)


def forget_later(table: str, frame: pl.DataFrame, through: dt.date) -> pl.DataFrame:
    """Set to null what rows say about days after ``through``: ends of spells, and delistings."""
    return frame.with_columns(
        pl.when(_day(frame, day) > through).then(None).otherwise(pl.col(column)).alias(column)
        for day, columns in _LEARNT_LATER.get(table, {}).items()
        for column in columns
        if {day, column} <= {*frame.columns}
    )


def cut(table: str, frame: pl.DataFrame, through: dt.date) -> pl.DataFrame:
    """Cut a table of a source at the close of a session: only known rows, and nothing about later days."""
    day = _day(frame, KNOWN_FROM[table])
    return forget_later(table, frame.filter(day.is_null() | (day <= through)), through)


def _day(frame: pl.DataFrame, column: str) -> pl.Expr:
    day = pl.col(column)
    return day.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else day


def keys(table: str) -> list[str]:
    """Return the key columns of a lake table."""
    return schema(table).primary_key()


@functools.cache
def empty(table: str) -> pl.DataFrame:
    """Return a lake table without rows."""
    return pl.DataFrame(schema(table).create_empty())


def schema(table: str) -> type[dy.Schema]:
    """Return the contract of a lake table; ValueError if the lake has no table of that name."""
    if table not in SCHEMAS:
        raise ValueError(f"the lake has no table {table!r}; its tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[table]
