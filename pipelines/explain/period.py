"""Which groups of inputs matter over a test period, for all firms and by group of firms."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from models.explain.design import mean_over_sample

ALL = "all"
"""The row of all groups together."""

NOISE = math.sqrt(2.0 / math.pi)
"""Mean absolute value of a standard normal variable."""


def period_table(values: pl.DataFrame) -> pl.DataFrame:
    """Average the values of a sample of forecasts.

    Parameters
    ----------
    values
        session, group (null if unknown), kind, player, value and error (Monte Carlo standard error), one row
        per forecast and player.

    Returns
    -------
    polars.DataFrame
        group (``all`` first), kind, player, ``mean_abs`` (mean absolute value) and its standard error over
        the sample ``error`` (`models.explain.design.mean_over_sample`; null with a single date), ``noise``
        (what ``mean_abs`` would be if all values were zero), ``mean`` (mean value), ``forecasts`` and
        ``dates``.
    """
    everyone = values.with_columns(pl.lit(ALL).alias("group"))
    of_groups = values.filter(pl.col("group").is_not_null()).sort("group", maintain_order=True)
    rows = []
    for (group, kind, player), part in pl.concat([everyone, of_groups]).group_by(
        "group", "kind", "player", maintain_order=True
    ):
        value_E, session_E = part["value"].to_numpy(), part["session"].to_numpy()
        mean_abs, error = mean_over_sample(np.abs(value_E), session_E)
        rows.append(
            {
                "group": group,
                "kind": kind,
                "player": player,
                "mean_abs": mean_abs,
                "error": None if math.isnan(error) else error,
                "noise": NOISE * float(part["error"].to_numpy().mean()),
                "mean": float(value_E.mean()),
                "forecasts": len(value_E),
                "dates": len(np.unique(session_E)),
            }
        )
    return pl.DataFrame(rows, schema_overrides={"error": pl.Float64})
