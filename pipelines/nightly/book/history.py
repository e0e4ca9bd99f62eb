"""The signals that the nights traded: the champion of each night."""

from __future__ import annotations

import datetime as dt

import polars as pl

from pipelines.nightly.version import ModelVersion


def champion_signals(
    signals: pl.DataFrame, nights: pl.DataFrame, session: dt.date, champion: ModelVersion
) -> pl.DataFrame:
    """Keep the signals of the champion of each night.

    Parameters
    ----------
    signals
        First revisions of the table ``signals`` of one config, of all model versions.
    nights
        Rows of the table ``nights`` of the same config. A night that failed made no book, so its signals are
        left out.
    session, champion
        Tonight, and tonight's champion.

    Returns
    -------
    polars.DataFrame
        session, ticker, version, signal; one row per session and ticker up to tonight.
    """
    traded = nights.filter((pl.col("session") < session) & (pl.col("state") != "failed")).select(
        "session", "version"
    )
    tonight = pl.DataFrame(
        {"session": [session], "version": [str(champion)]}, schema={"session": pl.Date, "version": pl.String}
    )
    champions = pl.concat([traded, tonight])
    return (
        signals.join(champions, on=["session", "version"], how="semi")
        .select("session", "ticker", "version", "signal")
        .sort("session", "ticker")
    )
