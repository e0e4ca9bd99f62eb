"""The stored signals of a config, and which version was champion on which night."""

from __future__ import annotations

from typing import Final

import polars as pl

from pipelines.config.schema import Config
from pipelines.nightly.data import NightData
from pipelines.nightly.signals.store import read_signals
from pipelines.nightly.table import read_nights
from pipelines.nightly.version import ModelVersion

CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"


def signal_history(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> pl.DataFrame:
    """Read the signals that the nights up to this one made for use: the first revision of each.

    Parameters
    ----------
    config
        Names the config.
    data
        The data of the night.
    champion, challenger
        The versions of the night.

    Returns
    -------
    polars.DataFrame
        session, role, version, ticker, signal, seed_dispersion, in_universe. Rows with the role ``champion``
        are those of the version that was champion on the session's night; with ``challenger``, those of
        today's challenger on every session that it scored.
    """
    first = read_signals(data.lake, config.name, through=data.session)
    nights = read_nights(data.lake, config.name).filter(pl.col("session") < data.session)
    parts = [_sessions_of(nights.select("session", "version"), data, champion, CHAMPION)]
    if challenger is not None:
        own = nights.filter(pl.col("challenger") == str(challenger))
        parts.append(_sessions_of(own.select("session", version="challenger"), data, challenger, CHALLENGER))
    return (
        first.join(pl.concat(parts), on=["session", "version"], how="inner")
        .select("session", "role", "version", "ticker", "signal", "seed_dispersion", "in_universe")
        .sort("role", "session", "ticker")
    )


def _sessions_of(before: pl.DataFrame, data: NightData, version: ModelVersion, role: str) -> pl.DataFrame:
    """Session, version and role on the nights before and on this one, which the table does not hold yet."""
    tonight = pl.DataFrame({"session": [data.session], "version": [str(version)]})
    return pl.concat([before.drop_nulls("version"), tonight]).with_columns(pl.lit(role).alias("role"))
