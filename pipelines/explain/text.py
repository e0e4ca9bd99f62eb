"""Explained forecasts as text for a terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import polars as pl

from pipelines.explain.attribution import ALL, NOISE
from pipelines.explain.shown import by_net

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


def describe_forecast(frame: pl.DataFrame, decimals: int) -> str:
    """Show the values of one forecast, or the differences of two, by kind of player, the largest first."""
    signed, row = _signed(decimals), frame.row(0, named=True)
    forecast, base = row["forecast"], row["base"]
    if "versus" in row:
        other = row["forecast_versus"]
        head = (
            f"forecast {signed(forecast)} on {row['date']}, {signed(other)} on {row['versus']}: difference "
            f"{signed(forecast - other)} = base value {signed(base - row['base_versus'])} + the differences "
            "below"
        )
    else:
        head = f"forecast {signed(forecast)} = base value {signed(base)} + the values below"
    lines: list[Sequence[str]] = []
    for (kind,), part in frame.group_by("kind", maintain_order=True):
        ordered = _by_size(part)
        lines += [(), (_HEADS.get(str(kind), str(kind)), "value", "error")]
        shown = ordered.head(_PER_KIND).select("player", "value", "error")
        lines += [(name, signed(value), f"{error:.{decimals}f}") for name, value, error in shown.iter_rows()]
        if rest := ordered.height - shown.height:
            value, error = ordered.slice(shown.height).select(pl.col("value", "error").sum()).row(0)
            lines.append((f"{rest} others", signed(value), f"{error:.{decimals}f}", "(error: at most)"))
    return f"{head}\n{_grid('lrrl', lines)}"


def describe_section(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the firms of a date, and the ends of the ranking."""
    ranked = _largest(frame, "ticker").sort("forecast", "ticker", descending=[True, False])
    lines = list(_lines(ranked, "ticker", decimals))
    if len(lines) > 2 * _ENDS:
        lines = [*lines[:_ENDS], ("...",), *lines[-_ENDS:]]
    return _means(frame, decimals, "firm") + _grid("lrrl", [(), _line_heads("ticker"), *lines])


def describe_history(frame: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over the dates of a firm, and its newest forecasts."""
    largest = _largest(frame, "date").sort("date")
    text, earlier = _means(frame, decimals, "date"), largest.height - _DATES
    if earlier > 0:
        text += f"\n  {earlier} earlier dates are left out; --out FILE writes them\n"
    lines = _lines(largest.tail(_DATES), "date", decimals)
    return text + _grid("lrrl", [(), _line_heads("date"), *lines])


def describe_ends(frame: pl.DataFrame, decimals: int) -> str:
    """Show the firms at both ends of a date's ranking, each with its largest values."""
    firms = frame.select("ticker", "forecast").unique(maintain_order=True).sort("forecast", descending=True)
    signed, lines = _signed(decimals), list[Sequence[str]]()
    for at, ticker in enumerate(firms["ticker"]):
        own = frame.filter(pl.col("ticker") == ticker)
        if at in (0, firms.height // 2):
            lines += [(), ("highest forecasts" if at == 0 else "lowest forecasts",)]
        base = f"= base value {signed(own['base'][0])} + {own.height} values, the largest:"
        lines.append((ticker, signed(own["forecast"][0]), base))
        lines += [
            (f"  {row['player']}", signed(row["value"]), f"(error {row['error']:.{decimals}f})")
            for row in _by_size(own).head(_REASONS).iter_rows(named=True)
        ]
    return _grid("lrl", lines)


def describe_period(table: pl.DataFrame, decimals: int) -> str:
    """Show the mean |value| of each player over a sample of a period, and the largest of each group."""
    everyone = table.filter(pl.col("group") == ALL).sort("mean_abs", descending=True)
    heads = ("mean |value|", "its error", "if only noise", "mean value")
    means = everyone.select("player", "mean_abs", "error", "noise", "mean")
    lines = [
        f"sample: {everyone['forecasts'][0]} forecasts on {everyone['dates'][0]} dates, in proportion from "
        "every group; errors over dates",
        _players(means, heads, decimals),
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
    at_end = pl.col("kind").is_in(["base", "total"])
    inner = table.filter(~at_end).sort("value", descending=True)
    rows = pl.concat([inner, table.filter(at_end)]).select("player", "value", "error", "t").iter_rows()
    lines = (
        (player, f"{value:+.4f}", "" if error is None else f"{error:.4f}", "" if t is None else f"{t:+.1f}")
        for player, value, error, t in rows
    )
    return _grid("lrrr", [("player", "rank IC", "error", "t"), *lines])


def describe_net(table: pl.DataFrame, year: float) -> str:
    """Show what each player adds to the figures of a book, the largest net return first."""
    lines: list[Sequence[str]] = [("player", "rank IC", "gross", "cost", "turnover", "net", "error", "")]
    lines += [
        (
            row["player"],
            f"{row['ic']:+.4f}",
            *(f"{100 * year * row[name]:+.2f}" for name in ("gross", "cost")),
            f"{100 * row['turnover']:+.1f}",
            f"{100 * year * row['net']:+.2f}",
            f"{100 * year * row['net_error']:.2f}",
            row["verdict"] or "",
        )
        for row in by_net(table).iter_rows(named=True)
    ]
    return _grid("lrrrrrrl", lines)


def _means(frame: pl.DataFrame, decimals: int, per: str) -> str:
    """The players' mean values over the firms or dates of a frame, the largest mean |value| first."""
    means = (
        frame.group_by("kind", "player", maintain_order=True)
        .agg(size=pl.col("value").abs().mean(), mean=pl.col("value").mean(), error=pl.col("error").mean())
        .sort("size", descending=True, maintain_order=True)
        .select("player", "size", (NOISE * pl.col("error")).alias("noise"), "mean", "error")
    )
    return _players(means, ("mean |value|", "if only noise", "mean value", f"error, a {per}"), decimals)


def _players(means: pl.DataFrame, heads: tuple[str, ...], decimals: int) -> str:
    """A line per player; the column ``mean`` has a sign."""
    signs = ["+" if name == "mean" else "" for name in means.columns[1:]]
    lines = [
        (
            player,
            *("" if x is None else f"{x:{sign}.{decimals}f}" for x, sign in zip(own, signs, strict=True)),
        )
        for player, *own in means.head(2 * _PER_KIND).iter_rows()
    ]
    if (rest := means.height - len(lines)) > 0:
        lines.append((f"and {rest} smaller ones",))
    return _grid("lrrrr", [(), ("player", *heads), *lines]) + "\n"


def _line_heads(name: str) -> tuple[str, ...]:
    return (name, "forecast", "base value", "largest value, with its error")


def _lines(largest: pl.DataFrame, name: str, decimals: int) -> Iterator[tuple[str, ...]]:
    signed = _signed(decimals)
    for row in largest.iter_rows(named=True):
        reason = f"{row['player']} {signed(row['value'])} (error {row['error']:.{decimals}f})"
        yield str(row[name]), signed(row["forecast"]), signed(row["base"]), reason


def _largest(frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """The row with the largest |value| of each firm or date."""
    return _by_size(frame).unique(key, keep="first", maintain_order=True)


def _by_size(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort(pl.col("value").abs(), descending=True, maintain_order=True)


def _signed(decimals: int) -> Callable[[float], str]:
    return lambda value: f"{value:+.{decimals}f}"


def _grid(sides: str, rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells under each other, indented; ``sides`` aligns each column to the left or the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
    for side in sides:
        table.add_column(justify="right" if side == "r" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=1000, markup=False, emoji=False, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
