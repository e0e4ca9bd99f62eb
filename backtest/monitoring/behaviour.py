"""The behaviour of signals from session to session: seed dispersion, turnover, and agreement of two versions.

Signals are frames with the columns session, role, version, ticker, signal and seed_dispersion; the role is
``champion`` or ``challenger``, and a signal is known.
"""

from typing import Final

import polars as pl

_UNRELATED: Final = 1.0 / 3.0  # mean absolute difference of two independent ranks that are uniform on [0, 1]


def mean_dispersion(signals: pl.DataFrame) -> pl.DataFrame:
    """Mean seed dispersion by session and role; no row for a single seed."""
    return (
        signals.drop_nulls("seed_dispersion")
        .group_by("session", "role", "version")
        .agg(mean_dispersion=pl.col("seed_dispersion").mean())
        .sort("role", "session")
    )


def rank_turnover(signals: pl.DataFrame) -> pl.DataFrame:
    """Mean absolute change of the rank since the session before, over that of two unrelated signals."""
    size = pl.len().over("session", "role")
    ranked = signals.with_columns(
        rank=(pl.col("signal").rank("average").over("session", "role") - 0.5) / size,
        order=pl.col("session").rank("dense").over("role"),
    )
    before = ranked.select("role", "ticker", order=pl.col("order") + 1, rank_before="rank")
    return (
        ranked.join(before, on=["role", "ticker", "order"], how="inner")
        .group_by("session", "role", "version")
        .agg(
            firms=pl.len().cast(pl.Int64),
            turnover=(pl.col("rank") - pl.col("rank_before")).abs().mean() / _UNRELATED,
        )
        .sort("role", "session")
    )


def agreement_of(signals: pl.DataFrame) -> pl.DataFrame:
    """Rank correlation of the signals of champion and challenger by session."""
    keys = ["session", "ticker"]
    one = signals.filter(pl.col("role") == "champion").select(*keys, champion="signal")
    other = signals.filter(pl.col("role") == "challenger").select(*keys, challenger="signal")
    return (
        one.join(other, on=keys, how="inner")
        .group_by("session")
        .agg(
            firms=pl.len().cast(pl.Int64),
            rank_correlation=pl.corr("champion", "challenger", method="spearman"),
        )
        .with_columns(pl.col("rank_correlation").fill_nan(None))
        .sort("session")
    )
