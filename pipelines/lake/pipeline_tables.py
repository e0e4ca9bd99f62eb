"""Schemas of the tables that the pipeline writes: forecasts, quarantine, flags, trials and others."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from pipelines.lake.columns import (
    ADDED_LATER,
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
    resolved_at = dy.Datetime(time_unit="us", time_zone="UTC", nullable=True, metadata=ADDED_LATER)


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
    market = dy.String(nullable=True, metadata=ADDED_LATER)


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
    forecast = dy.String(nullable=True, metadata=ADDED_LATER)
    traded = dy.String(nullable=True, metadata=ADDED_LATER)
    book = dy.String(nullable=True, metadata=ADDED_LATER)
    hypothesis = dy.String(nullable=True, metadata=ADDED_LATER)
    lake = dy.String(nullable=True, metadata=ADDED_LATER)


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
