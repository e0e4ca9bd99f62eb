"""Charts of a peer network: a firm's peers, how they changed, their history, and the strongest edges."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from peerglass.charts.results import MENU, to_plotly
from peerglass.network import STORED, PeerNetwork
from pipelines.errors import ConfigError
from pipelines.pages import figure as fig
from pipelines.pages.charts import explained

if TYPE_CHECKING:
    from peerglass.attribution import Attribution

_PEERS = 12  # bars that can be read
_GROUPS = 7  # colours that can be told apart


def peers(network: PeerNetwork, ticker: str, date: dt.date) -> go.Figure:
    """Draw what the largest peers contributed to a firm's forecast, with Monte Carlo errors.

    A whisker is 1.96 standard errors of the sampling of coalitions. It says how well the value is computed,
    not how certain the market is. Blue: a peer of the firm's own group. A menu chooses another firm.
    """
    network.peers(ticker, date)  # the error of a firm without peers
    key = "  ".join(
        f"<span style='color:{colour}'>\u25a0</span> {name}"
        for name, colour in (
            ("own group", fig.BLUE),
            ("other group", fig.VERMILION),
            ("unknown", fig.UNKNOWN),
        )
    )
    at = {"x": 0.0, "y": 1.0, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    notes = {"annotations": [at | {"showarrow": False, "text": key}]}
    firms = {firm: [_bars(network, firm, date)] for firm in network.followers(date)}
    return _with_firms(network, 364, firms, ticker, lambda firm: f"Peers of {firm} on {date}", notes)


def peer_changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> go.Figure:
    """Draw what a firm's peers contributed on an earlier date (ring) and on a date (dot), with errors.

    A peer without a ring, or without a dot, was not among the 20 largest of the date; its value is smaller,
    not zero. A menu chooses another firm.
    """
    network.changes(date, since, ticker)  # the error of a firm without peers
    both = sorted(set(network.followers(date)) & set(network.followers(since)))
    firms = {firm: _changes(network, firm, date, since) for firm in both}
    return _with_firms(network, 394, firms, ticker, lambda firm: f"Peers of {firm}, from {since} to {date}")


def peer_history(network: PeerNetwork, ticker: str) -> go.Figure:
    """Draw a heat map of what a firm's peers contributed on every explained date.

    White cells without a value: the peer was not among the 20 largest of the date.
    """
    own = network.dated.filter((pl.col("follower") == ticker) & (pl.col("rank") <= STORED))
    if own.is_empty():
        raise ConfigError(f"No forecast of {ticker} was explained; choose a firm of network.followers(date).")
    size = own.group_by("leader").agg(size=(pl.col("value") ** 2).sum()).sort("size", descending=True)
    leaders = size["leader"].head(20).to_list()
    kept = own.filter(pl.col("leader").is_in(leaders)).select("leader", "date", "value")
    limit = max(abs(value) for value in kept["value"])
    return to_plotly(
        fig.heat(
            f"Contributions to the forecasts of {ticker}",
            fig.matrix(kept, leaders, network.dates),
            [fig.short(leader, 12) for leader in leaders],
            [str(date) for date in network.dates],
            network.unit,
            colorscale=[[0.0, fig.VERMILION], [0.5, "#ffffff"], [1.0, fig.BLUE]],
            zmin=-limit,
            zmax=limit,
            hovertemplate="%{y} on %{x}: %{z:.3g}<extra></extra>",
        )
    )


def peer_network(network: PeerNetwork, n_edges: int = 40) -> go.Figure:
    """Draw the strongest edges that were found, with arrows from leader to follower, and firms by group.

    The width of an arrow is the weight of the edge; it is blue within a group and vermilion across groups.
    The border of a firm is its group, if that is one of the most frequent ones. Distances have no meaning.
    If no edge was found, the strongest edges are drawn, and the title says so.
    """
    found = network.edges.filter(pl.col("found"))
    edges = found if found.height else network.edges
    top = edges.sort("weight", descending=True).head(n_edges)
    groups = dict(network.firms.select("ticker", "group").iter_rows())
    shown = {*top["leader"], *top["follower"]}
    counted = Counter(group for firm, group in groups.items() if group and firm in shown)
    colours = dict(zip([group for group, _ in counted.most_common(_GROUPS)], fig.PALETTE, strict=False))
    borders = {firm: colours.get(group, fig.UNKNOWN) for firm, group in groups.items()}
    drawn = explained.peer_network(edges, network.model, n_edges, borders)
    legend = [
        fig.scatter([None], [None], "markers", name=fig.short(group), marker={"color": colour, "size": 10})
        for group, colour in [*colours.items(), ("other or unknown", fig.UNKNOWN)]
    ]
    hidden = [{**trace, "showlegend": False} for trace in drawn.traces]
    which = "edges found" if found.height else "edges; none is found against shuffled peers"
    title = f"Peer network of {network.model}: the {top.height} strongest {which}"
    figure = to_plotly(replace(drawn, title=title, traces=(*hidden, *legend)))
    figure.update_layout(height=740, margin={"t": 56, "b": 80}, legend={"y": -0.01, "yanchor": "top"})
    return figure


def attention_and_weights(network: PeerNetwork) -> go.Figure:
    """Draw every edge by its mean attention and its weight, on logarithmic axes.

    If attention were an explanation, the points would lie on a rising line. Edges that were found are dark.
    Only stored edges are drawn: the strongest ones of each follower and those that were found.
    """
    edges = network.edges.filter((pl.col("attention") > 0) & (pl.col("weight") > 0))
    traces: list[fig.Trace] = []
    for found, name, colour in ((False, "not found", fig.ZERO), (True, "found", fig.BLUE)):
        rows = edges.filter(pl.col("found") == found)
        pairs = rows.select("leader", "follower").iter_rows()
        points = fig.scatter(
            rows["attention"].to_list(),
            rows["weight"].to_list(),
            "markers",
            name=name,
            marker={"size": 5, "color": colour, "opacity": 0.7},
            text=[f"{fig.safe(leader)} \u2192 {fig.safe(follower)}" for leader, follower in pairs],
            hovertemplate="%{text}: attention %{x:.3g}, weight %{y:.3g}<extra></extra>",
        )
        traces.append(points | {"type": "scattergl"})
    layout = {
        "xaxis": fig.axis("mean attention over dates", type="log"),
        "yaxis": fig.axis(f"weight ({network.unit})", type="log"),
    }
    return to_plotly(
        fig.draw(f"Weight against attention, {edges.height:,} edges of {network.model}", 354, traces, layout)
    )


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
    example = pl.DataFrame(
        {
            "player": list(values.feature_names),
            "value": np.asarray(values.values, dtype=np.float64),
            "error": np.zeros(len(values.values)) if error is None else np.asarray(error),
        }
    ).with_columns(pl.lit(row[name]).alias(name) for name in ("date", "ticker", "base_value", "forecast"))
    return to_plotly(explained.one_forecast(example, attribution.model, unit, factor))


def _with_firms(  # noqa: PLR0917  (a chart of a firm, and its menu)
    network: PeerNetwork,
    height: int,
    firms: Mapping[str, Sequence[fig.Trace]],
    ticker: str,
    title: Callable[[str], str],
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> go.Figure:
    """Draw contributions to the forecast of one firm, with a menu of all firms and their traces."""
    x, y = (
        fig.zero_axis(f"contribution to the forecast ({network.unit})"),
        fig.names_axis(autorange="reversed"),
    )
    shown = fig.draw(title(ticker), height, firms[ticker], {"xaxis": x, "yaxis": y, **changes})
    buttons = []
    for firm, traces in firms.items():
        fields = [_fields(trace) for trace in traces]
        values = {name: [one.get(name) for one in fields] for one in fields for name in one}
        label = {"label": fig.short(firm, 12), "method": "update"}
        buttons.append(label | {"args": [values, {"title.text": fig.safe(title(firm))}]})
    made = to_plotly(shown)
    made.update_layout(updatemenus=[{"buttons": buttons, "active": list(firms).index(ticker), **MENU}])
    return made


def _fields(trace: fig.Trace) -> dict[str, Any]:
    """The fields of a trace that a menu changes, under their names in plotly.js."""
    found = {"x": trace["x"], "y": trace["y"]}
    if "error_x" in trace:
        found["error_x.array"] = trace["error_x"]["array"]
    if "text" in trace:
        found |= {"text": trace["text"], "marker.color": trace["marker"]["color"]}
    return found


def _bars(network: PeerNetwork, ticker: str, date: dt.date) -> fig.Trace:
    rows = network.peers(ticker, date).head(_PEERS)
    return fig.bar_trace(
        [fig.short(leader, 12) for leader in rows["leader"]],
        [round(value, 6) for value in rows["value"]],
        [explained.group_colour(same) for same in rows["same_group"]],
        error_x=_errors(rows["error"]),
        text=[
            f"{fig.safe(group or 'group unknown')}, attention {attention:.3f}"
            for group, attention in rows.select("group", "attention").iter_rows()
        ],
        textposition="none",
        hovertemplate="%{y}: %{x:.3g} \N{PLUS-MINUS SIGN} %{error_x.array:.2g}<br>%{text}<extra></extra>",
    )


def _changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> list[fig.Trace]:
    rows = network.changes(date, since, ticker)
    size = pl.max_horizontal(pl.col("now").abs(), pl.col("before").abs())
    rows = rows.sort(size, descending=True).head(_PEERS)
    for name, day in (("now", date), ("before", since)):
        errors = network.peers(ticker, day).select("leader", pl.col("error").alias(f"{name}_error"))
        rows = rows.join(errors, on="leader", how="left", maintain_order="left")
    names = [fig.short(leader, 12) for leader in rows["leader"]]
    ends = zip(names, rows["before"], rows["now"], strict=True)
    link = [(x, y) for name, one, other in ends for x, y in ((one, name), (other, name), (None, None))]
    look = {"hoverinfo": "skip", "line": {"color": fig.ZERO, "width": 2}, "showlegend": False}
    made = [fig.scatter([x for x, _ in link], [y for _, y in link], **look)]
    ends_of = (("before", since, fig.MUTED, "circle-open"), ("now", date, fig.BLUE, "circle"))
    for name, title, colour, symbol in ends_of:
        made.append(
            fig.scatter(
                rows[name].to_list(),
                names,
                "markers",
                name=str(title),
                marker={"symbol": symbol, "color": colour, "size": 11},
                error_x=_errors(rows[f"{name}_error"]),
                hovertemplate=f"%{{y}}, {title}: %{{x:.3g}}<extra></extra>",
            )
        )
    return made


def _errors(errors: pl.Series) -> fig.Trace:
    return fig.whiskers([None if error is None else round(1.96 * error, 6) for error in errors])
