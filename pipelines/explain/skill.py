"""Which group of inputs carries a model's rank IC, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from models.explain.skill import SkillAttribution, mean_and_error

TOTAL = "rank IC"
BASE = "without any player"


def skill_table(model: str, parts: Sequence[SkillAttribution]) -> pl.DataFrame:
    """Average the values of the rank IC over the dates of all folds and seeds.

    Returns
    -------
    polars.DataFrame
        model, kind, player, ``value`` (mean over dates), ``error`` (its standard error over dates, which
        contains the Monte Carlo error; null with a single date), ``t`` (value / error) and ``dates``. The
        kinds ``base`` and ``total`` are the rank IC without any player and of the complete model; the other
        values and the base add up to the total.
    """
    players = parts[0].players
    value_DP = np.concatenate([part.values_DP for part in parts])
    base_D, skill_D = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("base_D", "skill_D")
    )
    if not len(value_DP):
        return pl.DataFrame(schema=_SCHEMA)
    mean_X, error_X = mean_and_error(np.column_stack([value_DP, base_D, skill_D]))
    return pl.DataFrame(
        {
            "model": [model] * len(mean_X),
            "kind": [*(player.kind for player in players), "base", "total"],
            "player": [*(player.name for player in players), BASE, TOTAL],
            "value": mean_X,
            "error": pl.Series(error_X, dtype=pl.Float64).fill_nan(None),
            "dates": [len(value_DP)] * len(mean_X),
        },
        schema={name: kind for name, kind in _SCHEMA.items() if name != "t"},
    ).with_columns(pl.when(pl.col("error") > 0).then(pl.col("value") / pl.col("error")).alias("t"))


_SCHEMA: dict[str, type[pl.DataType]] = {
    "model": pl.String,
    "kind": pl.String,
    "player": pl.String,
    "value": pl.Float64,
    "error": pl.Float64,
    "dates": pl.Int64,
    "t": pl.Float64,
}


def describe_skill(table: pl.DataFrame) -> str:
    """Show the table, the largest values first."""
    width = max(18, *(len(name) for name in table["player"])) + 2
    lines = [f"  {'player':<{width}}{'rank IC':>10}{'error':>10}{'t':>8}"]
    inner = table.filter(~pl.col("kind").is_in(["base", "total"])).sort("value", descending=True)
    ends = table.filter(pl.col("kind").is_in(["base", "total"]))
    for row in pl.concat([inner, ends]).iter_rows(named=True):
        error = "" if row["error"] is None else f"{row['error']:.4f}"
        t = "" if row["t"] is None else f"{row['t']:+.1f}"
        lines.append(f"  {row['player']:<{width}}{row['value']:>+10.4f}{error:>10}{t:>8}")
    return "\n".join(lines)
