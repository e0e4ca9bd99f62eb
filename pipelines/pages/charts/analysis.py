"""Charts of the analysis of a book: exposures, contributions, capacity, turnover and fills."""

from __future__ import annotations

import math
from collections.abc import Mapping

import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.charts.series import by_model, line
from pipelines.pages.theme import BLUE, INK, MUTED, VERMILION, Style, axis, points_per_line, short, thin

MAX_NAMES = 10  # firms with the largest gains, and as many with the largest losses
MAX_SECTORS = 15  # with the largest absolute values; the others are added up


def exposure_ranges(frame: pl.DataFrame, title: str, label: str) -> Figure:
    """Draw mean exposure as a dot, and its range over sessions as a bar, one row per sector or style.

    Parameters
    ----------
    frame
        key, mean, low, high in the order from top to bottom. Without a range (null), only the dot is drawn.
    title, label
        Title of the chart and of its axis.
    """
    rows = frame.reverse()
    names = [short(str(key)) for key in rows["key"].to_list()]
    spans: list[object] = []
    places: list[object] = []
    for name, low, high in zip(names, rows["low"].to_list(), rows["high"].to_list(), strict=True):
        spans += [low, high, None]
        places += [name, name, None]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "x": spans,
            "y": places,
            "mode": "lines",
            "line": {"color": "#9fb3c8", "width": 7},
            "name": "lowest to highest session",
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "x": floats(rows["mean"]),
            "y": names,
            "mode": "markers",
            "marker": {"color": INK, "size": 8, "symbol": "diamond"},
            "name": "mean",
            "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
        },
    ]
    ends = [0.0, *(value for field in ("mean", "low", "high") for value in rows[field].drop_nulls())]
    room = 0.05 * (max(ends) - min(ends) or 1.0)
    layout = {
        "xaxis": axis(label, zeroline=True, zerolinewidth=2, range=[min(ends) - room, max(ends) + room]),
        "yaxis": axis("", type="category"),
    }
    return draw(title, 80 + 19 * max(rows.height, 2), traces, layout)


def contributions(frame: pl.DataFrame, title: str) -> Figure:
    """Draw net contributions as bars, the largest at the top; the sign also shows in the colour."""
    rows = frame.reverse()
    net = rows["net"].to_list()
    bars: Trace = {
        "type": "bar",
        "x": [100 * value for value in net],
        "y": [short(str(key)) for key in rows["key"].to_list()],
        "orientation": "h",
        "marker": {"color": [BLUE if value >= 0 else VERMILION for value in net]},
        "hovertemplate": "%{y}: %{x:.2f}%<extra></extra>",
    }
    layout = {
        "xaxis": axis("% of starting capital", zeroline=True, zerolinewidth=2),
        "yaxis": axis("", type="category"),
    }
    return draw(title, 80 + 18 * max(rows.height, 2), [bars], layout)


def largest_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the names with the largest gains and losses, and add the others up, so that the sum stays.

    Parameters
    ----------
    frame
        key, gross, cost, net: one row per firm.
    """
    rows = frame.select("key", "gross", "cost", "net").sort("net", descending=True)
    if rows.height <= 2 * MAX_NAMES + 1:
        return rows
    rest = rows.slice(MAX_NAMES, rows.height - 2 * MAX_NAMES)
    return pl.concat([rows.head(MAX_NAMES), _added_up(rest, "names"), rows.tail(MAX_NAMES)])


def largest_sectors(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the sectors with the largest absolute net contributions; add the others up in the last row.

    Parameters
    ----------
    frame
        key, gross, cost, net: one row per sector.
    """
    rows = frame.select("key", "gross", "cost", "net").sort(pl.col("net").abs(), descending=True)
    kept, rest = _split(rows)
    added = [_added_up(rest, "sectors")] if rest.height else []
    return pl.concat([kept.sort("net", descending=True), *added])


def largest_exposures(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Keep the sectors with the largest absolute means; add the means of the others up in the last row.

    The mean of a sum is the sum of the means. The range of a sum does not follow from the ranges of its
    parts, so the last row has none (null).

    Parameters
    ----------
    frame
        key, mean, low, high: one row per sector.

    Returns
    -------
    tuple of DataFrame
        The rows to draw, and the sectors that the last of them adds up (no rows if there are none).
    """
    rows = frame.select("key", "mean", "low", "high").sort(pl.col("mean").abs(), descending=True)
    kept, rest = _split(rows)
    if rest.is_empty():
        return kept, rest
    return pl.concat([kept, _added_up(rest.select("key", "mean"), "sectors")], how="diagonal"), rest


def _split(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The first rows, and the others; a single other row is kept as well."""
    count = MAX_SECTORS if rows.height > MAX_SECTORS + 1 else rows.height
    return rows.head(count), rows.slice(count)


def _added_up(rest: pl.DataFrame, noun: str) -> pl.DataFrame:
    """One row with the sum of several, named by their number."""
    return rest.select(pl.lit(f"{rest.height:,} other {noun}").alias("key"), pl.exclude("key").sum())


def capacity_curve(frame: pl.DataFrame, styles: Mapping[str, Style]) -> Figure:
    """Draw the net Sharpe ratio against the capital, which is on a logarithmic axis."""
    capital = frame["capital"].cast(pl.Float64)
    smallest, largest = capital.min(), capital.max()
    assert isinstance(smallest, float)
    assert isinstance(largest, float)
    traces: list[Trace] = [
        {
            "type": "scatter",
            "x": rows["capital"].cast(pl.Float64).to_list(),
            "y": rows["sharpe_net"].cast(pl.Float64).to_list(),
            "mode": "lines+markers",
            "name": short(model),
            "line": {"color": style.colour, "dash": style.dash, "width": 2},
            "hovertemplate": "%{y:.2f} at %{x:.3s}",
        }
        for model, style, rows in by_model(frame, styles, order="capital")
    ]
    decades = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    ticks = {"tickvals": [10**power for power in decades], "ticktext": [_amount(power) for power in decades]}
    layout = {
        "xaxis": axis("capital (currency of the prices, log scale)", type="log", **ticks),
        "yaxis": axis("net Sharpe ratio (annual)", zeroline=True, zerolinewidth=2),
    }
    return draw("Net Sharpe ratio by capital", 300, traces, layout)


def trading(book: pl.DataFrame, model: str, style: Style, window: int) -> Figure:
    """Draw rolling means of turnover and of unfilled orders of one book.

    Parameters
    ----------
    book
        date, turnover and unfilled (one-way fractions of NAV per session) in order of time.
    model, style
        The model and its look.
    window
        Sessions in a window.
    """
    limit = points_per_line(2)
    grey = Style(MUTED, "dot")
    traces = []
    for field, title, look in (("turnover", "traded", style), ("unfilled", "not filled", grey)):
        mean = pl.col(field).cast(pl.Float64).rolling_mean(window, min_samples=max(1, window // 2))
        path = thin(book.select("date", y=100 * mean).drop_nulls("y"), limit)
        traces.append(line(path, f"{model}, {title}", look, "%{y:.2f}%"))
    layout = {
        "hovermode": "x unified",
        "xaxis": axis(""),
        "yaxis": axis("% of NAV / session, one-way", rangemode="tozero"),
    }
    return draw(f"Turnover and unfilled orders, mean of {window} sessions", 260, traces, layout)


def _amount(power: int) -> str:
    """A power of ten as an amount: 10k, 1M, 100B."""
    units = {0: "", 3: "k", 6: "M", 9: "B", 12: "T"}
    step = max(0, min(power // 3 * 3, 12))
    return f"{10 ** (power - step):g}{units[step]}"
