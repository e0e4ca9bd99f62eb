"""Explained forecasts as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from pipelines.explain.tables import ALL, NOISE

_PER_KIND = 10  # players shown of a kind
_DATES = 20  # newest dates shown
_REASONS = 3  # values shown of a name or a group
_ENDS = 5  # names shown at the top and at the bottom
_HEADS = {
    "family": "characteristics",
    "sector": "peers by sector",
    "firm": "peers",
    "market": "market tokens",
}


def decimals_for(spread: float) -> int:
    """Decimal places that show the standard deviation of the forecasts with four significant digits."""
    return max(3, 3 - math.floor(math.log10(spread))) if spread > 0 else 6


def describe_forecast(frame: pl.DataFrame, decimals: int) -> str:
    """Show the values of one forecast by kind of player, the largest first."""
    base, forecast = frame["base"][0], frame["forecast"][0]
    first = f"forecast {forecast:+.{decimals}f} = base value {base:+.{decimals}f} + the values below"
    return "\n".join([first, *_blocks(frame, decimals)])


def describe_difference(frame: pl.DataFrame, decimals: int) -> str:
    """Show the values of a date minus those of another date."""
    row = frame.row(0, named=True)
    first, second, base = row["forecast"], row["forecast_versus"], row["base"] - row["base_versus"]
    head = (
        f"forecast {first:+.{decimals}f} on {row['date']}, {second:+.{decimals}f} on {row['versus']}: "
        f"difference {first - second:+.{decimals}f} = base value {base:+.{decimals}f} + the differences below"
    )
    return "\n".join([head, *_blocks(frame, decimals)])


def describe_section(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the firms of a date, and the ends of the ranking."""
    ranked = _largest(frame, "ticker").sort("forecast", "ticker", descending=[True, False])
    lines = [_line(row["ticker"], row, decimals) for row in ranked.iter_rows(named=True)]
    if len(lines) > 2 * _ENDS:
        lines = [*lines[:_ENDS], "  ...", *lines[-_ENDS:]]
    return "\n".join([*_means(frame, decimals, "firm"), *_line_heads("ticker"), *lines])


def describe_history(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the dates of a firm, and its newest forecasts."""
    largest = _largest(frame, "date").sort("date")
    lines = [_line(str(row["date"]), row, decimals) for row in largest.tail(_DATES).iter_rows(named=True)]
    if largest.height > _DATES:
        lines.insert(0, f"  {largest.height - _DATES} earlier dates are left out; --out FILE writes them")
    return "\n".join([*_means(frame, decimals, "date"), *_line_heads("date"), *lines])


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
        lines += [
            f"    {row['player']:<24}{row['value']:>+12.{decimals}f}   (error {row['error']:.{decimals}f})"
            for row in _by_size(own).head(_REASONS).iter_rows(named=True)
        ]
    return "\n".join(lines)


def describe_period(table: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over a sample of a period, and the largest of each group."""
    everyone = table.filter(pl.col("group") == ALL).sort("mean_abs", descending=True)
    heads = ("mean |value|", "its error", "if only noise", "mean value")
    lines = [
        f"sample: {everyone['forecasts'][0]} forecasts on {everyone['dates'][0]} dates, in proportion from "
        "every group; errors over dates",
        *_players(everyone.select("player", "mean_abs", "error", "noise", "mean"), heads, decimals),
        "",
        "  the largest players by group",
    ]
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


def describe_skill(table: pl.DataFrame) -> str:
    """Show the values of the rank IC, the largest first."""
    width = max(18, *(len(name) for name in table["player"])) + 2
    lines = [f"  {'player':<{width}}{'rank IC':>10}{'error':>10}{'t':>8}"]
    at_end = pl.col("kind").is_in(["base", "total"])
    inner = table.filter(~at_end).sort("value", descending=True)
    for row in pl.concat([inner, table.filter(at_end)]).iter_rows(named=True):
        error = "" if row["error"] is None else f"{row['error']:.4f}"
        t = "" if row["t"] is None else f"{row['t']:+.1f}"
        lines.append(f"  {row['player']:<{width}}{row['value']:>+10.4f}{error:>10}{t:>8}")
    return "\n".join(lines)


def _means(frame: pl.DataFrame, decimals: int, per: str) -> list[str]:
    """Lines of the players' mean values, the largest mean |value| first."""
    means = (
        frame.group_by("kind", "player", maintain_order=True)
        .agg(size=pl.col("value").abs().mean(), value=pl.col("value").mean(), error=pl.col("error").mean())
        .sort("size", descending=True, maintain_order=True)
        .select(
            "player", "size", NOISE * pl.col("error").alias("noise"), pl.col("value").alias("mean"), "error"
        )
    )
    return _players(means, ("mean |value|", "if only noise", "mean value", f"error, a {per}"), decimals)


def _players(means: pl.DataFrame, heads: tuple[str, ...], decimals: int) -> list[str]:
    """A line per player; the column ``mean`` has a sign."""
    width = max(12, *(len(name) for name in means["player"])) + 2
    lines = ["", f"  {'player':<{width}}" + "".join(f"{head:>15}" for head in heads)]
    for player, *numbers in means.head(2 * _PER_KIND).iter_rows():
        signs = ("+" if name == "mean" else "" for name in means.columns[1:])
        words = (
            "" if x is None else f"{x:{sign}.{decimals}f}" for x, sign in zip(numbers, signs, strict=True)
        )
        lines.append(f"  {player:<{width}}" + "".join(f"{word:>15}" for word in words))
    if means.height > 2 * _PER_KIND:
        lines.append(f"  and {means.height - 2 * _PER_KIND} smaller ones")
    return lines


def _blocks(frame: pl.DataFrame, decimals: int) -> Iterator[str]:
    """A block of lines per kind of player."""
    width = max(12, *(len(name) for name in frame["player"])) + 2
    for (kind,), part in frame.group_by("kind", maintain_order=True):
        ordered = _by_size(part)
        yield from ("", f"  {_HEADS.get(str(kind), str(kind)):<{width}}{'value':>12}{'error':>12}")
        for name, value, error in ordered.head(_PER_KIND).select("player", "value", "error").iter_rows():
            yield f"  {name:<{width}}{value:>+12.{decimals}f}{error:>12.{decimals}f}"
        rest = ordered.slice(_PER_KIND)
        if rest.height:
            yield (
                f"  {f'{rest.height} others':<{width}}{rest['value'].sum():>+12.{decimals}f}"
                f"{rest['error'].sum():>12.{decimals}f}  (error: at most)"
            )


def _line_heads(name: str) -> list[str]:
    return ["", f"  {name:<12}{'forecast':>12}{'base value':>12}   largest value, with its error"]


def _line(name: str, row: Mapping[str, Any], decimals: int) -> str:
    return (
        f"  {name:<12}{row['forecast']:>+12.{decimals}f}{row['base']:>+12.{decimals}f}   "
        f"{row['player']} {row['value']:+.{decimals}f} (error {row['error']:.{decimals}f})"
    )


def _largest(frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """The row with the largest |value| of each firm or date."""
    return _by_size(frame).unique(key, keep="first", maintain_order=True)


def _by_size(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort(pl.col("value").abs(), descending=True, maintain_order=True)
