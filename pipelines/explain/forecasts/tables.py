"""Explained forecasts as tables, one row per firm and player.

Legend: P players, E explained firms.
"""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from pipelines.explain.forecasts.values import Explained


def value_table(explained: Explained, model: str) -> pl.DataFrame:
    """Make a table of values.

    Returns
    -------
    polars.DataFrame
        date, ticker, group, model, fold, engine, removal, kind, player, value, error (Monte Carlo standard
        error), base and forecast; the last four in the unit of the forecast. Per firm, values and base add up
        to the forecast.
    """
    rows = [
        {
            "date": explained.date,
            "ticker": ticker,
            "group": explained.groups[e],
            "model": model,
            "fold": explained.fold,
            "engine": explained.engine,
            "removal": explained.removal,
            "kind": kind,
            "player": name,
            "value": float(explained.values_PE[p, e]),
            "error": float(explained.error_PE[p, e]),
            "base": float(explained.base_E[e]),
            "forecast": float(explained.forecast_E[e]),
        }
        for e, ticker in enumerate(explained.tickers)
        for p, (kind, name) in enumerate(explained.players)
    ]
    return pl.DataFrame(rows, schema_overrides={"group": pl.String})


def difference_table(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Subtract the values of another date from those of a date, for one firm.

    Draws of the two dates are independent, so the error of a difference is ``sqrt(e_new^2 + e_old^2)``. A
    peer that is in the universe on one date only has no value on the other; it contributed nothing there, so
    the difference is its value on the one date.

    Returns
    -------
    polars.DataFrame
        ticker, model, date, versus, engine, removal, kind, player, value (the difference), error, value_date
        and value_versus (null where there was no such player), base, base_versus, forecast and
        forecast_versus.
    """
    key = ["kind", "player"]
    joined = new.select(*key, "value", "error").join(
        old.select(*key, "value", "error"),
        on=key,
        how="full",
        coalesce=True,
        suffix="_versus",
        maintain_order="left_right",
    )
    first, second = new.row(0, named=True), old.row(0, named=True)

    def known(name: str) -> pl.Expr:
        return pl.col(name).fill_null(0.0)

    return joined.select(
        pl.lit(first["ticker"]).alias("ticker"),
        pl.lit(first["model"]).alias("model"),
        pl.lit(first["date"]).alias("date"),
        pl.lit(second["date"]).alias("versus"),
        pl.lit(first["engine"]).alias("engine"),
        pl.lit(first["removal"]).alias("removal"),
        *key,
        (known("value") - known("value_versus")).alias("value"),
        (known("error") ** 2 + known("error_versus") ** 2).sqrt().alias("error"),
        pl.col("value").alias("value_date"),
        "value_versus",
        pl.lit(first["base"]).alias("base"),
        pl.lit(second["base"]).alias("base_versus"),
        pl.lit(first["forecast"]).alias("forecast"),
        pl.lit(second["forecast"]).alias("forecast_versus"),
    )


def write_values(frame: pl.DataFrame, path: Path) -> Path:
    """Write a table as CSV, Parquet or JSON, by the suffix of the file; the write is atomic."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    if path.suffix.lower() == ".parquet":
        frame.write_parquet(partial)
    elif path.suffix.lower() == ".csv":
        frame.write_csv(partial)
    else:
        dates = [name for name, kind in frame.schema.items() if kind == pl.Date]
        partial.write_text(
            frame.with_columns(pl.col(dates).dt.to_string("iso")).write_json(), encoding="utf-8"
        )
    partial.replace(path)
    return path
