"""Schemas of the tables that the pipeline writes: forecasts, quarantine, flags, trials, nights and others.

Each class is a table of the lake, named after it (`pipelines.lake.schemas`).
"""

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
    stamp,
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
    """A run's seed ensembles: the signal, and its dispersion between seeds (null for a single seed).

    Both are in cross-sectional standard deviations of one date's forecasts.
    """

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
    ``market`` is JSON that identifies the market among others of the same source.
    """

    source = key_text()
    notes, hazards, market = dy.String(), dy.String(), dy.String(nullable=True)


class Trials(dy.Schema):
    """The ledger of everything that was tried: one row per trial, named hypothesis and run.

    ``forecast`` and ``traded`` are digests of what is forecast and of the book that trades it (empty if it
    was only trained).
    """

    trial_id, run_id = key_text(), key_text()
    model, config, created_at = dy.String(), dy.String(), stamp()
    forecast, traded = dy.String(nullable=True), dy.String(nullable=True)
    book, hypothesis = dy.String(nullable=True), dy.String(nullable=True)
    lake = dy.String(nullable=True)


class TrialReturns(dy.Schema):
    """Daily net returns over the risk-free rate of the ledger's trials, under one set of assumptions each."""

    forecast, traded, assumptions = key_text(), key_text(), key_text()
    dates, returns, created_at = dy.List(dy.Date()), dy.List(dy.Float32()), stamp()


class Readers(dy.Schema):
    """The table versions that runs read from this lake. A vacuum keeps these versions.

    ``table_id`` is the id that Delta gave the table at its creation.
    """

    run_id, table, version = key_text(), key_text(), dy.Int64(primary_key=True, min=1)
    table_id, created_at = dy.String(), stamp()

    run_id_is_plain = named_rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))


class Signals(dy.Schema):
    """Signals of a model version for every firm that is listed on a session, made for use.

    ``version`` is ``RUN/MODEL``. The signal is the mean over seeds of the forecasts standardised within the
    date; it is null outside the universe. ``rank`` is from 0 (lowest) to 1. A second scoring of a session on
    other data versions is a new revision, and no revision is ever rewritten.
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

    Weights, trades and costs are fractions of the NAV before the order is traded. ``trade`` is ``weight -
    previous``. ``previous`` is the weight before this order is traded: what is held at the close, and at
    delays of 2 or more what earlier orders will have added by then. ``expected_cost`` is null where the firm
    cannot be traded. ``fill_sessions`` counts the sessions that the order takes under the participation cap:
    0 without an order, null where the firm cannot be traded. ``bound`` names the limit that holds the weight
    or the trade back, or why the firm cannot be traded; null if there is none.
    """

    config, session, ticker = key_text(), key_date(), key_text()
    book, version, weight = dy.String(), dy.String(), measure()
    previous, trade, expected_cost = measure(), measure(), measure(nullable=True)
    fill_sessions, bound = dy.Int64(nullable=True, min=0), dy.String(nullable=True)
    tradable, created_at = dy.Bool(), stamp()


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
