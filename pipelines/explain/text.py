"""Explained forecasts as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from pipelines.explain.forecasts import Explained
from pipelines.explain.tables import ALL, NOISE

_PER_KIND = 10  # players shown of a kind
_DATES = 20  # newest dates shown
_REASONS = 3  # values shown of a name or a group
_ENDS = 5  # names shown at the top and at the bottom
_HEADS = {
    "days": "days",
    "family": "characteristics",
    "peers": "peers",
    "sector": "peers by sector",
    "firm": "peers",
    "market": "market tokens",
}


def describe_forecast(frame: pl.DataFrame, decimals: int) -> str:
    """Show the values of one forecast by kind of player, the largest first."""
    base, forecast = (_number(frame[name][0], decimals) for name in ("base", "forecast"))
    lines = [f"forecast {forecast} = base value {base} + the values below"]
    return "\n".join([*lines, *_blocks(frame, decimals)])


def describe_difference(frame: pl.DataFrame, decimals: int) -> str:
    """Show the values of a date minus those of another date."""
    row = frame.row(0, named=True)
    first, second = row["forecast"], row["forecast_versus"]
    lines = [
        f"forecast {_number(first, decimals)} on {row['date']}, "
        f"{_number(second, decimals)} on {row['versus']}: "
        f"difference {_number(first - second, decimals)} = base value "
        f"{_number(row['base'] - row['base_versus'], decimals)} + the differences below"
    ]
    return "\n".join([*lines, *_blocks(frame, decimals)])


def describe_section(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the firms of a date, and the ends of the ranking."""
    lines = _means(frame, decimals, "firm")
    ranked = _largest(frame, "ticker").sort("forecast", "ticker", descending=[True, False])
    shown = ranked if ranked.height <= 2 * _ENDS else pl.concat([ranked.head(_ENDS), ranked.tail(_ENDS)])
    lines += ["", f"  {'ticker':<12}{'forecast':>12}{'base value':>12}   largest value, with its error"]
    for at, row in enumerate(shown.iter_rows(named=True)):
        if at == _ENDS and ranked.height > 2 * _ENDS:
            lines.append("  ...")
        lines.append(_line(row["ticker"], row, decimals))
    return "\n".join(lines)


def describe_ends(frame: pl.DataFrame, decimals: int) -> str:
    """Show the firms at both ends of a date's ranking, each with its largest values."""
    firms = frame.select("ticker", "forecast").unique(maintain_order=True).sort("forecast", descending=True)
    lines = []
    for at, ticker in enumerate(firms["ticker"]):
        own = frame.filter(pl.col("ticker") == ticker)
        if at in (0, firms.height // 2):
            lines += ["", "  highest forecasts" if at == 0 else "  lowest forecasts"]
        base, forecast = own["base"][0], own["forecast"][0]
        lines.append(
            f"  {ticker:<12}{forecast:>+12.{decimals}f} = base value {base:+.{decimals}f} + "
            f"{own.height} values, the largest:"
        )
        ordered = own.sort(pl.col("value").abs(), descending=True, maintain_order=True).head(_REASONS)
        lines += [
            f"    {row['player']:<24}{row['value']:>+12.{decimals}f}   (error {row['error']:.{decimals}f})"
            for row in ordered.iter_rows(named=True)
        ]
    return "\n".join(lines)


def describe_period(table: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over a sample of a period, and the largest of each group."""
    everyone = table.filter(pl.col("group") == ALL).sort("mean_abs", descending=True)
    width = max(12, *(len(name) for name in table["player"])) + 2
    heads = ("mean |value|", "its error", "if only noise", "mean value")
    lines = [
        f"sample: {everyone['forecasts'][0]} forecasts on {everyone['dates'][0]} dates, in proportion from "
        "every group; errors over dates",
        "",
        f"  {'player':<{width}}" + "".join(f"{head:>15}" for head in heads),
    ]
    for row in everyone.head(2 * _PER_KIND).iter_rows(named=True):
        error = "" if row["error"] is None else f"{row['error']:.{decimals}f}"
        lines.append(
            f"  {row['player']:<{width}}{row['mean_abs']:>15.{decimals}f}{error:>15}"
            f"{row['noise']:>15.{decimals}f}{row['mean']:>+15.{decimals}f}"
        )
    if everyone.height > 2 * _PER_KIND:
        lines.append(f"  and {everyone.height - 2 * _PER_KIND} smaller ones")
    lines += ["", "  the largest players by group"]
    groups = table.filter(pl.col("group") != ALL)
    for (group,), part in groups.group_by("group", maintain_order=True):
        largest = part.sort("mean_abs", descending=True, maintain_order=True).head(_REASONS)
        words = ", ".join(
            f"{row['player']} {row['mean_abs']:.{decimals}f}"
            + ("" if row["error"] is None else f" (error {row['error']:.{decimals}f})")
            for row in largest.iter_rows(named=True)
        )
        lines.append(f"  {group} ({part['forecasts'][0]} forecasts): {words}")
    return "\n".join(lines)


def describe_history(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the dates of a firm, and its newest forecasts."""
    lines = _means(frame, decimals, "date")
    largest = _largest(frame, "date").sort("date")
    lines += ["", f"  {'date':<12}{'forecast':>12}{'base value':>12}   largest value, with its error"]
    if largest.height > _DATES:
        lines.append(f"  {largest.height - _DATES} earlier dates are left out; --out FILE writes them")
    lines += [_line(str(row["date"]), row, decimals) for row in largest.tail(_DATES).iter_rows(named=True)]
    return "\n".join(lines)


def _means(frame: pl.DataFrame, decimals: int, per: str) -> list[str]:
    """Lines of the players' mean values, the largest mean |value| first."""
    means = (
        frame.group_by("kind", "player", maintain_order=True)
        .agg(
            pl.col("value").abs().mean().alias("size"),
            pl.col("value").mean().alias("value"),
            pl.col("error").mean().alias("error"),
        )
        .sort("size", descending=True, maintain_order=True)
    )
    width = max(12, *(len(name) for name in means["player"])) + 2
    heads = ("mean |value|", "if only noise", "mean value", f"error, a {per}")
    lines = ["", f"  {'player':<{width}}" + "".join(f"{head:>15}" for head in heads)]
    for row in means.head(2 * _PER_KIND).iter_rows(named=True):
        lines.append(
            f"  {row['player']:<{width}}{row['size']:>15.{decimals}f}{NOISE * row['error']:>15.{decimals}f}"
            f"{row['value']:>+15.{decimals}f}{row['error']:>15.{decimals}f}"
        )
    if means.height > 2 * _PER_KIND:
        lines.append(f"  and {means.height - 2 * _PER_KIND} smaller ones")
    return lines


def _largest(frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """The row with the largest |value| of each firm or date."""
    ordered = frame.sort(pl.col("value").abs(), descending=True, maintain_order=True)
    return ordered.unique(key, keep="first", maintain_order=True)


def _line(name: str, row: Mapping[str, Any], decimals: int) -> str:
    return (
        f"  {name:<12}{row['forecast']:>+12.{decimals}f}{row['base']:>+12.{decimals}f}   "
        f"{row['player']} {row['value']:+.{decimals}f} (error {row['error']:.{decimals}f})"
    )


def decimals_for(spread: float) -> int:
    """Decimal places that show the standard deviation of the forecasts with four significant digits."""
    return max(3, 3 - math.floor(math.log10(spread))) if spread > 0 else 6


def _blocks(frame: pl.DataFrame, decimals: int) -> list[str]:
    """A block of lines per kind of player."""
    width = max(12, *(len(name) for name in frame["player"])) + 2
    lines = []
    for (kind,), part in frame.group_by("kind", maintain_order=True):
        ordered = part.sort(pl.col("value").abs(), descending=True, maintain_order=True)
        lines += ["", f"  {_HEADS[str(kind)]:<{width}}{'value':>12}{'error':>12}"]
        for name, value, error in ordered.head(_PER_KIND).select("player", "value", "error").iter_rows():
            lines.append(f"  {name:<{width}}{value:>+12.{decimals}f}{error:>12.{decimals}f}")
        rest = ordered.slice(_PER_KIND)
        if rest.height:
            lines.append(
                f"  {f'{rest.height} others':<{width}}{rest['value'].sum():>+12.{decimals}f}"
                f"{rest['error'].sum():>12.{decimals}f}  (error: at most)"
            )
    return lines


def _number(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}"


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
