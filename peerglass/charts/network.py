"""Charts of a peer network: a firm's peers, how they changed, their history, and the strongest edges."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from peerglass.charts.notebook import decorate, to_plotly
from peerglass.network import STORED, PeerNetwork
from pipelines.errors import ConfigError
from pipelines.pages.charts.attribution import one_forecast
from pipelines.pages.charts.network import peer_network as draw_network
from pipelines.pages.contents.attribution import ExampleForecast
from pipelines.pages.theme import BLUE, INK, MUTED, PALETTE, VERMILION, axis, safe, short

if TYPE_CHECKING:
    from peerglass.attribution import Attribution

_PEERS = 12  # bars that can be read
_GROUPS = 7  # colours that can be told apart
_UNKNOWN = "#8a949e"
_MENU = {"x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 26}}
_DIVERGING = [[0.0, VERMILION], [0.5, "#ffffff"], [1.0, BLUE]]


def peers(network: PeerNetwork, ticker: str, date: dt.date) -> go.Figure:
    """Draw what the largest peers contributed to a firm's forecast, with Monte Carlo errors.

    A whisker is 1.96 standard errors of the sampling of coalitions. It says how well the value is computed,
    not how certain the market is. Blue: a peer of the firm's own group. A menu chooses another firm.
    """
    network.peers(ticker, date)  # the error of a firm without peers
    figure = go.Figure({"type": "bar", "orientation": "h", **_bars(network, ticker, date)})
    decorate(figure, f"Peers of {safe(ticker)} on {date}")
    buttons = [
        {
            "label": short(firm, 12),
            "method": "update",
            "args": [
                {name: [value] for name, value in _flat(_bars(network, firm, date)).items()},
                {"title.text": f"Peers of {safe(firm)} on {date}"},
            ],
        }
        for firm in network.followers(date)
    ]
    figure.update_layout(
        height=470,
        xaxis=axis(f"contribution to the forecast ({network.unit})", zeroline=True, zerolinewidth=2),
        yaxis=axis("", type="category", autorange="reversed"),
        updatemenus=[{"buttons": buttons, "active": network.followers(date).index(ticker), **_MENU}],
        annotations=[_key()],
    )
    return figure


def peer_changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> go.Figure:
    """Draw what a firm's peers contributed on an earlier date (ring) and on a date (dot), with errors.

    A peer without a ring, or without a dot, was not among the 20 largest of the date; its value is smaller,
    not zero. A menu chooses another firm.
    """
    network.changes(date, since, ticker)  # the error of a firm without peers
    figure = go.Figure()
    shown = _changes(network, ticker, date, since)
    for trace in shown:
        figure.add_trace(trace)
    both = sorted(set(network.followers(date)) & set(network.followers(since)))
    title = f"from {since} to {date}"
    buttons = []
    for firm in both:
        flat = [_flat(trace) for trace in _changes(network, firm, date, since)]
        fields = ("x", "y", "error_x.array") if flat else ()
        values = {name: [one.get(name) for one in flat] for name in fields}
        buttons.append(
            {
                "label": short(firm, 12),
                "method": "update",
                "args": [values, {"title.text": f"Peers of {safe(firm)}, {title}"}],
            }
        )
    decorate(figure, f"Peers of {safe(ticker)}, {title}")
    figure.update_layout(
        height=500,
        xaxis=axis(f"contribution to the forecast ({network.unit})", zeroline=True, zerolinewidth=2),
        yaxis=axis("", type="category", autorange="reversed"),
        updatemenus=[{"buttons": buttons, "active": both.index(ticker), **_MENU}],
    )
    return figure


def peer_history(network: PeerNetwork, ticker: str) -> go.Figure:
    """Draw a heat map of what a firm's peers contributed on every explained date.

    White cells without a value: the peer was not among the 20 largest of the date.
    """
    own = network.dated.filter((pl.col("follower") == ticker) & (pl.col("rank") <= STORED))
    if own.is_empty():
        raise ConfigError(f"No forecast of {ticker} was explained; choose a firm of network.followers(date).")
    size = own.group_by("leader").agg(size=(pl.col("value") ** 2).sum()).sort("size", descending=True)
    leaders = size["leader"].head(20).to_list()
    grid = np.full((len(leaders), len(network.dates)), np.nan)
    place = {leader: i for i, leader in enumerate(leaders)}
    column = {date: i for i, date in enumerate(network.dates)}
    for leader, date, value in own.select("leader", "date", "value").iter_rows():
        if leader in place:
            grid[place[leader], column[date]] = value
    limit = float(np.nanmax(np.abs(grid)))
    figure = go.Figure(
        {
            "type": "heatmap",
            "z": [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in grid],
            "x": [str(date) for date in network.dates],
            "y": [short(leader, 12) for leader in leaders],
            "colorscale": _DIVERGING,
            "zmin": -limit,
            "zmax": limit,
            "hoverongaps": False,
            "colorbar": {"thickness": 12, "title": {"text": network.unit, "side": "right"}},
            "hovertemplate": "%{y} on %{x}: %{z:.3g}<extra></extra>",
        }
    )
    decorate(figure, f"Contributions to the forecasts of {safe(ticker)}")
    figure.update_layout(
        height=150 + 18 * max(len(leaders), 5),
        xaxis=axis("", type="category", tickangle=-60),
        yaxis=axis("", type="category", autorange="reversed"),
    )
    return figure


def peer_network(network: PeerNetwork, n_edges: int = 40) -> go.Figure:
    """Draw the strongest edges that were found, with arrows from leader to follower, and firms by group.

    The width of an arrow is the weight of the edge; it is blue within a group and vermilion across groups.
    The border of a firm is its group, if that is one of the most frequent ones. Distances have no meaning.
    If no edge was found, the strongest edges are drawn, and the title says so.
    """
    found = network.edges.filter(pl.col("found"))
    edges = found if found.height else network.edges
    figure = to_plotly(draw_network(edges, network.model, n_edges))
    groups = dict(network.firms.select("ticker", "group").iter_rows())
    shown = {name.text for name in figure.layout.annotations if not name.showarrow}
    counted = Counter(group for firm, group in groups.items() if short(firm, 12) in shown and group)
    colours = dict(zip([group for group, _ in counted.most_common(_GROUPS)], PALETTE, strict=False))
    by_text = {short(firm, 12): colours.get(group, _UNKNOWN) for firm, group in groups.items()}
    for name in figure.layout.annotations:
        if not name.showarrow:
            name.update(bordercolor=by_text.get(name.text, _UNKNOWN), borderwidth=2)
    for trace in figure.data:
        trace.showlegend = False
    for group, colour in [*colours.items(), ("other or unknown", _UNKNOWN)]:
        marker = {"color": colour, "size": 10}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=short(group), marker=marker)
    number = min(n_edges, edges.height)
    which = "edges found" if found.height else "edges; none is found against shuffled peers"
    decorate(figure, f"Peer network of {safe(network.model)}: the {number} strongest {which}")
    figure.update_layout(showlegend=True, height=740, margin={"t": 56, "b": 80})
    figure.update_layout(legend={"y": -0.01, "yanchor": "top"})
    return figure


def attention_and_weights(network: PeerNetwork) -> go.Figure:
    """Draw every edge by its mean attention and its weight, on logarithmic axes.

    If attention were an explanation, the points would lie on a rising line. Edges that were found are dark.
    Only stored edges are drawn: the strongest ones of each follower and those that were found.
    """
    figure = go.Figure()
    edges = network.edges.filter((pl.col("attention") > 0) & (pl.col("weight") > 0))
    for found, name, colour in ((False, "not found", "#b5bec8"), (True, "found", BLUE)):
        rows = edges.filter(pl.col("found") == found)
        figure.add_scattergl(
            x=rows["attention"].to_list(),
            y=rows["weight"].to_list(),
            mode="markers",
            name=name,
            marker={"size": 5, "color": colour, "opacity": 0.7},
            text=[
                f"{safe(leader)} \u2192 {safe(follower)}"
                for leader, follower in rows.select("leader", "follower").iter_rows()
            ],
            hovertemplate="%{text}: attention %{x:.3g}, weight %{y:.3g}<extra></extra>",
        )
    decorate(figure, f"Weight against attention, {edges.height:,} edges of {safe(network.model)}")
    figure.update_layout(
        height=460,
        xaxis=axis("mean attention over dates", type="log"),
        yaxis=axis(f"weight ({network.unit})", type="log"),
    )
    return figure


def contributions(attribution: Attribution, ticker: str, date: dt.date | None = None) -> go.Figure:
    """Draw one explained forecast: from the base value over days, features and peers to the forecast.

    A whisker is one Monte Carlo standard error.

    Parameters
    ----------
    attribution
        From :func:`peerglass.explain`.
    ticker
        The firm.
    date
        The session; None: the first one that was explained for the firm.
    """
    rows = attribution.forecasts.with_row_index("row").filter(pl.col("ticker") == ticker)
    rows = rows if date is None else rows.filter(pl.col("date") == date)
    if rows.is_empty():
        raise ConfigError(
            f"The forecast of {ticker}{'' if date is None else f' on {date}'} is not explained."
        )
    row = rows.row(0, named=True)
    factor, unit = (1e4, "bps") if attribution.unit == "return" else (1.0, attribution.unit)
    values = attribution.explanation[row["row"]]
    error = values.error_std
    example = ExampleForecast(
        date=str(row["date"]),
        ticker=ticker,
        base_value=factor * row["base_value"],
        forecast=factor * row["forecast"],
        contributions=pl.DataFrame(
            {
                "player": list(values.feature_names),
                "value": factor * np.asarray(values.values, dtype=np.float64),
                "error": np.zeros(len(values.values)) if error is None else factor * np.asarray(error),
            }
        ),
    )
    return to_plotly(one_forecast(example, attribution.model, unit))


def _bars(network: PeerNetwork, ticker: str, date: dt.date) -> dict[str, Any]:
    rows = network.peers(ticker, date).head(_PEERS)
    same = rows["same_group"].to_list()
    return {
        "x": [round(value, 6) for value in rows["value"]],
        "y": [short(leader, 12) for leader in rows["leader"]],
        "marker": {"color": [_UNKNOWN if one is None else BLUE if one else VERMILION for one in same]},
        "error_x": _whiskers(rows["error"].to_list()),
        "text": [
            f"{safe(group or 'group unknown')}, attention {attention:.3f}"
            for group, attention in rows.select("group", "attention").iter_rows()
        ],
        "textposition": "none",
        "hovertemplate": "%{y}: %{x:.3g} \N{PLUS-MINUS SIGN} %{error_x.array:.2g}<br>%{text}<extra></extra>",
    }


def _changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> list[dict[str, Any]]:
    rows = network.changes(date, since, ticker)
    size = pl.max_horizontal(pl.col("now").abs(), pl.col("before").abs())
    rows = rows.sort(size, descending=True).head(_PEERS)
    names = [short(leader, 12) for leader in rows["leader"]]
    now, before = (network.peers(ticker, day).select("leader", day_error="error") for day in (date, since))
    joined = rows.join(now, on="leader", how="left", maintain_order="left").join(
        before, on="leader", how="left", maintain_order="left", suffix="_before"
    )
    lines_x: list[float | None] = []
    lines_y: list[str | None] = []
    for name, one, other in zip(names, rows["before"], rows["now"], strict=True):
        lines_x += [one, other, None]
        lines_y += [name, name, None]
    link = {"type": "scatter", "mode": "lines", "x": lines_x, "y": lines_y, "hoverinfo": "skip"}
    ends: list[tuple[str, str, str, Mapping[str, Any]]] = [
        ("before", str(since), "day_error_before", {"symbol": "circle-open", "color": MUTED, "size": 11}),
        ("now", str(date), "day_error", {"symbol": "circle", "color": BLUE, "size": 11}),
    ]
    made: list[dict[str, Any]] = [link | {"line": {"color": "#b5bec8", "width": 2}, "showlegend": False}]
    for column, title, error, marker in ends:
        made.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": title,
                "x": joined[column].to_list(),
                "y": names,
                "marker": marker,
                "error_x": _whiskers(joined[error].to_list()),
                "hovertemplate": f"%{{y}}, {title}: %{{x:.3g}}<extra></extra>",
            }
        )
    return made


def _whiskers(errors: Sequence[float | None]) -> dict[str, Any]:
    array = [None if error is None else round(1.96 * error, 6) for error in errors]
    return {"type": "data", "array": array, "color": INK, "thickness": 1.2, "width": 4}


def _flat(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a trace that a menu changes, under their names in plotly.js."""
    found = {"x": trace["x"], "y": trace["y"]}
    if "error_x" in trace:
        found["error_x.array"] = trace["error_x"]["array"]
    if "text" in trace:
        found |= {"text": trace["text"], "marker.color": trace["marker"]["color"]}
    return found


def _key() -> dict[str, Any]:
    """The legend of the colours of bars."""
    return {
        "x": 0.0,
        "y": 1.0,
        "xref": "paper",
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "left",
        "showarrow": False,
        "text": f"<span style='color:{BLUE}'>\u25a0</span> own group  "
        f"<span style='color:{VERMILION}'>\u25a0</span> other group  "
        f"<span style='color:{_UNKNOWN}'>\u25a0</span> unknown",
    }
