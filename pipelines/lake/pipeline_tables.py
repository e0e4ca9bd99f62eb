"""Schemas of the tables that the pipeline writes: forecasts, quarantine, flags, trials, nights and others."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from pipelines.lake.source_tables import (
    RUN_ID_PATTERN,
    finite,
    key_date,
    key_text,
    measure,
    named_rule,
)


class Forecasts(dy.Schema):
    """One forecast per date, firm, model, fold and seed. A null label is not known yet."""

    run_id = key_text()
    model = key_text()
    fold = dy.Int64(primary_key=True, min=0)
    seed = dy.Int64(primary_key=True)
    date = key_date()
    ticker = key_text()
    forecast = measure()
    label = measure(nullable=True)

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))
    forecast_is_finite = named_rule(finite("forecast"))
    label_is_finite = named_rule(finite("label"))


class EnsembleForecasts(dy.Schema):
    """A run's seed ensembles: the signal, and its dispersion between seeds (null for a single seed).

    Both are in cross-sectional standard deviations of one date's forecasts.
    """

    model = key_text()
    date = key_date()
    ticker = key_text()
    signal = measure()
    seed_dispersion = measure(nullable=True)
    seeds = dy.Int64(min=1)

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

    table = key_text()
    row_hash = key_text()
    row = dy.String()
    rule = dy.String()
    first_seen = dy.Datetime(time_unit="us", time_zone="UTC")
    resolved_at = dy.Datetime(time_unit="us", time_zone="UTC", nullable=True)


class Flags(dy.Schema):
    """Stored rows that a quality rule flags: rule, evidence, and the date at whose close it was known.

    For a flag of the whole market, ``ticker`` is ``*``, followed by the calendar's code if there is one.
    ``cleared`` is true once the row or its neighbours were corrected, or a user released the row.
    """

    table = key_text()
    ticker = key_text()
    date = key_date()
    rule = key_text()
    row_hash = dy.String()
    evidence = dy.String()
    known_on = dy.Date()
    cleared = dy.Bool()
    flagged_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Releases(dy.Schema):
    """Rows that a user accepted although they broke a rule. Unchanged, they are not checked again."""

    table = key_text()
    row_hash = key_text()
    row = dy.String()
    rule = dy.String()
    released_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Sources(dy.Schema):
    """The sources that were ingested, with their remarks on the data.

    ``notes`` is a JSON list of sentences from the last ingest that had any, ``hazards`` one from all ingests.
    ``market`` is JSON that identifies the market among others of the same source.
    """

    source = key_text()
    notes = dy.String()
    hazards = dy.String()
    market = dy.String(nullable=True)


class Trials(dy.Schema):
    """The ledger of everything that was tried: one row per trial, named hypothesis and run.

    ``forecast`` and ``traded`` are digests of what is forecast and of the book that trades it (empty if it
    was only trained).
    """

    trial_id = key_text()
    run_id = key_text()
    model = dy.String()
    config = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")
    forecast = dy.String(nullable=True)
    traded = dy.String(nullable=True)
    book = dy.String(nullable=True)
    hypothesis = dy.String(nullable=True)
    lake = dy.String(nullable=True)


class TrialReturns(dy.Schema):
    """Daily net returns over the risk-free rate of the ledger's trials, under one set of assumptions each."""

    forecast = key_text()
    traded = key_text()
    assumptions = key_text()
    dates = dy.List(dy.Date())
    returns = dy.List(dy.Float32())
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Readers(dy.Schema):
    """The table versions that runs read from this lake. A vacuum keeps these versions.

    ``table_id`` is the id that Delta gave the table at its creation.
    """

    run_id = key_text()
    table = key_text()
    version = dy.Int64(primary_key=True, min=1)
    table_id = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))


class Signals(dy.Schema):
    """Signals of a model version for every firm that is listed on a session, made for use.

    ``version`` is ``RUN/MODEL``. The signal is the mean over seeds of the forecasts standardised within the
    date; it is null outside the universe. ``rank`` is from 0 (lowest) to 1. A second scoring of a session on
    other data versions is a new revision, and no revision is ever rewritten.
    """

    config = key_text()
    session = key_date()
    ticker = key_text()
    version = key_text()
    revision = dy.Int64(primary_key=True, min=1)
    signal = measure(nullable=True)
    rank = measure(nullable=True)
    seed_dispersion = measure(nullable=True)
    in_universe = dy.Bool()
    data_versions = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    signal_is_finite = named_rule(finite("signal"))
    rank_is_a_share = named_rule(pl.col("rank").is_between(0.0, 1.0))
    only_the_universe_has_signals = named_rule(pl.col("in_universe") | pl.col("signal").is_null())


class Books(dy.Schema):
    """The book decided at the close of a session: one row per firm that is held or to be traded.

    Weights, trades and costs are fractions of the NAV before the order is traded. ``trade`` is ``weight -
    previous``. ``previous`` is the weight before this order is traded: what is held at the close, and at
    delays of 2 or more what earlier orders will have added by then. ``expected_cost`` is null where the firm
    cannot be traded. ``fill_sessions`` counts the sessions that the order takes under the participation cap:
    0 without an order, null where the firm cannot be traded. ``bound`` names the limit that holds the weight
    or the trade back, or why the firm cannot be traded; null if there is none.
    """

    config = key_text()
    session = key_date()
    ticker = key_text()
    book = dy.String()
    version = dy.String()
    weight = measure()
    previous = measure()
    trade = measure()
    expected_cost = measure(nullable=True)
    fill_sessions = dy.Int64(nullable=True, min=0)
    bound = dy.String(nullable=True)
    tradable = dy.Bool()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")


class Holdings(dy.Schema):
    """What a book holds at the close of a night, from which the next night goes on: one row per firm.

    ``weight`` is the value of the position over the NAV, and ``open`` the rest of earlier orders that the
    participation cap left open. Orders that are still to be traded are in neither. ``since`` is the session
    at whose close the position was last traded, and ``growth`` the total return factor from there to this
    session.
    """

    config = key_text()
    session = key_date()
    ticker = key_text()
    weight = measure()
    open = measure()
    since = dy.Date()
    growth = measure()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")


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

    config = key_text()
    session = key_date()
    book = dy.String()
    nav = measure()
    delay = dy.Int64(min=1)
    terms = dy.String()
    schedule = dy.String()
    due = dy.Date(nullable=True)
    decision = dy.String(nullable=True)
    orders = dy.Int64(min=0)
    positions = dy.Int64(min=0)
    waiting = dy.Date(nullable=True)
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    nav_is_finite_and_not_negative = named_rule(finite("nav") & (pl.col("nav") >= 0))
    decision_is_known = named_rule(pl.col("decision").is_in(["made", "kept", "refused"]))


class BookLimits(dy.Schema):
    """The limits of the book's rule and what the decision of a session amounts to: one row per limit.

    ``name`` is the setting, such as ``max_turnover``, or ``neutral sector`` and ``neutral beta``. ``unit`` is
    ``of NAV`` or ``a year`` (both fractions), ``beta`` or ``firms``. ``state`` is ``binds`` if the value is
    at the limit, ``free`` within it and ``exceeded`` beyond it. A session without a decision has no rows.
    """

    config = key_text()
    session = key_date()
    name = key_text()
    book = dy.String()
    value = measure()
    limit = measure()
    unit = dy.String()
    state = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    state_is_known = named_rule(pl.col("state").is_in(["free", "binds", "exceeded"]))


class Nights(dy.Schema):
    """The outcome of every night: one row per session.

    ``state`` is ``done``, ``warned`` (done, with warnings) or ``failed``. ``data_versions`` and ``warnings``
    are JSON. ``rows`` counts signals of the champion, ``trades`` rows of the book with a trade. ``table_ids``
    (JSON) names the Delta tables that the versions belong to, and ``settings`` (JSON) holds the settings that
    decide the orders.
    """

    config = key_text()
    session = key_date()
    state = dy.String()
    version = dy.String(nullable=True)
    challenger = dy.String(nullable=True)
    data_versions = dy.String()
    rows = dy.Int64(min=0)
    trades = dy.Int64(min=0)
    warnings = dy.String()
    error = dy.String(nullable=True)
    seconds = measure()
    peak_memory_bytes = dy.Int64(min=0)
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")
    table_ids = dy.String(nullable=True)
    settings = dy.String(nullable=True)

    state_is_known = named_rule(pl.col("state").is_in(["done", "warned", "failed"]))


class Promotions(dy.Schema):
    """Every change of the aliases ``champion`` and ``challenger`` of a config, numbered from 1.

    ``version`` is ``RUN/MODEL``, or null if the alias was removed. ``session`` is the night that made the
    change; null if a person did. ``evidence`` is JSON.
    """

    config = key_text()
    number = dy.Int64(primary_key=True, min=1)
    alias = dy.String()
    version = dy.String(nullable=True)
    session = dy.Date(nullable=True)
    by = dy.String()
    why = dy.String()
    forced = dy.Bool()
    evidence = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")

    alias_is_known = named_rule(pl.col("alias").is_in(["champion", "challenger"]))
