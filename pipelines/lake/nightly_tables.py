"""Schemas of the tables of the nights: signals, books, holdings, accounts, limits, nights, promotions."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from pipelines.lake.columns import finite, key_date, key_text, measure, named_rule


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
    count the rows of the night in ``books`` and ``holdings``.
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
