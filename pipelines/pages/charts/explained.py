"""Charts of Shapley values and of attention, of the peer network, and of both against what is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from features.arrays import FloatArray
from pipelines.pages import figure as fig
from pipelines.pages.tables import write

if TYPE_CHECKING:
    import networkx as nx

METHODS = {
    "shap": ("SHAP", fig.BLUE, "solid"),
    "integrated_gradients": ("integrated gradients", "#009E73", "solid"),
    "attention": ("attention", fig.VERMILION, "solid"),
    "rollout": ("rollout", "#E69F00", "dash"),
    "gradient": ("attention x gradient", "#CC79A7", "dash"),
    "random": ("random order", fig.UNKNOWN, "dot"),
}
_LOOKS = "%{y} looks at %{x}: %{z:.4f}<extra></extra>"
MAX_PLAYERS = 24
MAX_CONTRIBUTIONS = 12
MAX_EDGES = 40
_KINDS = {"days": fig.BLUE, "features": "#009E73", "family": "#009E73", "peers": fig.VERMILION}
_OTHERS = ("#882255", "#E69F00", "#332288", "#56B4E9")
_REGIMES = {"all": fig.INK, "calm": fig.BLUE, "normal": fig.UNKNOWN, "turbulent": fig.VERMILION}
_REMOVALS = {"mask": "masked keys", "date": "other firms of the date", "train": "training data"}
_WIDTH, _HEIGHT = 760.0, 540.0  # pixels of the network on a narrow screen; it fits wider ones


def edge_roc(roc: pl.DataFrame, auc: Mapping[str, float]) -> fig.Figure:
    """Draw one ROC curve per way of ranking the pairs of firms, with planted edges as positives."""
    traces: list[fig.Trace] = []
    spare = iter(_OTHERS * 4)
    for part in roc.partition_by("method", maintain_order=True):
        method, curve = str(part["method"][0]), fig.thin(part, 300)
        colour = METHODS[method][1] if method in ("shap", "attention", "random") else next(spare)
        look = {"color": colour, "width": 2.5, "dash": "dot" if method == "random" else "solid"}
        name = f"{fig.short(method)} (AUC {auc[method]:.2f})" if method in auc else fig.short(method)
        hover = "true positive rate %{y:.0%} at false positive rate %{x:.0%}"
        ends = (fig.floats(curve["fpr"]), fig.floats(curve["tpr"]))
        traces.append(fig.scatter(*ends, name=name, line=look, hovertemplate=hover))
    x = fig.axis("false positive rate (share of other pairs)", range=[-0.01, 1.01], tickformat=".0%")
    y = fig.axis("true positive rate", range=[-0.01, 1.03], tickformat=".0%")
    return fig.draw("Planted edges recovered", 400, traces, {"xaxis": x, "yaxis": y})


def recovery(rows: pl.DataFrame, model: str) -> fig.Figure:
    """Draw the AUC of each way of ranking pairs by kind of planted edge, with 1.96 standard errors."""
    rows = rows.with_columns(pl.col("kind").str.replace_all("_", " "))
    traces: list[fig.Trace] = []
    for (method,), part in rows.partition_by("method", as_dict=True, maintain_order=True).items():
        name, colour = METHODS[str(method)][:2] if method in ("shap", "attention") else (method, fig.MUTED)
        error = fig.whiskers((1.96 * part["error"]).to_list())
        bars = fig.columns(part["kind"].to_list(), part["auc"].to_list(), name, colour, "%{y:.3f}")
        traces.append(bars | {"error_y": error})
    guess = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.5, "y1": 0.5}
    note = {"xref": "paper", "x": 1, "y": 0.5, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    kinds = rows["kind"].unique(maintain_order=True).to_list()
    layout = {
        "barmode": "group",
        "shapes": [guess | {"line": {"color": fig.MUTED, "dash": "dash"}}],
        "annotations": [note | {"text": "a guess"}],
        "xaxis": fig.axis("kind of planted edge", categoryorder="array", categoryarray=kinds),
        "yaxis": fig.axis("AUC", range=[0.0, 1.02]),
    }
    return fig.draw(f"Planted edges found by {model}", 324, traces, layout)


def player_importance(players: pl.DataFrame, model: str, unit: str) -> fig.Figure:
    """Draw mean |SHAP| per player with its Monte Carlo error, the largest at the top, coloured by kind."""
    frame = players.sort("mean_abs_shap", descending=True).head(MAX_PLAYERS).reverse()
    spare = iter(_OTHERS * 4)
    traces = []
    for kind in players["kind"].unique(maintain_order=True):
        rows = frame.filter(pl.col("kind") == kind)
        names, colour = [fig.short(player) for player in rows["player"]], _KINDS.get(kind) or next(spare)
        look = {"name": fig.short(kind), "error_x": fig.whiskers(rows["error"])}
        traces.append(fig.bar_trace(names, fig.floats(rows["mean_abs_shap"]), colour, **look))
    order = [fig.short(player) for player in frame["player"]]
    x, y = fig.axis(f"mean |SHAP| ({unit})"), fig.names_axis(categoryorder="array", categoryarray=order)
    title = f"Mean absolute effect on the forecasts of {model}"
    return fig.draw_rows(title, order, traces, x, yaxis=y, barmode="stack")


def skill_by_player(skill: pl.DataFrame, model: str) -> fig.Figure:
    """Draw the rank IC that each player carries, with its standard error over dates, the largest on top."""
    players = skill.filter(~pl.col("kind").is_in(["base", "total"]))
    frame = players.sort("value", descending=True).head(MAX_PLAYERS).reverse()
    total = skill.filter(pl.col("kind") == "total").row(0, named=True)
    title = f"Rank IC of {model} by player: {total['value']:+.3f} in total, on {total['dates']} dates"
    names = [fig.short(player) for player in frame["player"]]
    colours = [_KINDS.get(kind, _OTHERS[0]) for kind in frame["kind"]]
    look = {"error_x": fig.whiskers(frame["error"]), "hovertemplate": "%{y}: %{x:.4f}<extra></extra>"}
    trace = fig.bar_trace(names, fig.floats(frame["value"]), colours, **look)
    x = fig.axis("rank IC (Shapley value, mean over dates)", zeroline=True)
    return fig.draw_rows(title, names, [trace], x)


def net_by_player(net: pl.DataFrame, model: str, year: float) -> fig.Figure:
    """Draw what each player adds to gross return and costs of the book, and to the net return, per year."""
    frame = net.filter(~pl.col("kind").is_in(["base", "total"])).sort("net", descending=True)
    frame = frame.head(MAX_PLAYERS).reverse().with_columns(pl.col("gross", "cost", "net", "net_error") * year)
    names = [fig.short(player) for player in frame["player"]]
    hover = "%{y}: %{x:.2%}<extra></extra>"
    traces = [
        fig.bar_trace(names, fig.floats(frame["gross"]), fig.BLUE, name="gross", hovertemplate=hover),
        fig.bar_trace(names, fig.floats(-frame["cost"]), fig.VERMILION, name="cost", hovertemplate=hover),
    ]
    mark = {"size": 9, "color": fig.INK, "symbol": "diamond"}
    error = {"error_x": fig.whiskers(frame["net_error"]), "hovertemplate": hover}
    traces.append(fig.scatter(fig.floats(frame["net"]), names, "markers", name="net", marker=mark, **error))
    x = fig.axis("return per year (Shapley value)", zeroline=True, tickformat=".0%")
    return fig.draw_rows(f"Net return of {model} by player", names, traces, x, barmode="relative")


def one_forecast(example: pl.DataFrame, model: str, unit: str, factor: float = 1.0) -> fig.Figure:
    """Draw a waterfall from the base value to the forecast, with the Monte Carlo error of each player."""
    head = example.row(0, named=True)
    base, forecast = factor * head["base_value"], factor * head["forecast"]
    frame = example.select("player", pl.col("value", "error") * factor)
    frame = frame.sort(pl.col("value").abs(), descending=True)
    shown = frame.height if frame.height <= MAX_CONTRIBUTIONS + 1 else MAX_CONTRIBUTIONS
    top, rest = frame.head(shown), frame.slice(shown)
    names = [fig.short(player, 20) for player in top["player"]]
    values, errors = top["value"].to_list(), top["error"].to_list()
    if not rest.is_empty():
        names.append(f"{rest.height} other players")
        values.append(float(rest["value"].sum()))
        errors.append(math.sqrt(float((rest["error"] ** 2).sum())))
    steps = [base, *values, forecast]
    levels = list(accumulate(steps[:-1]))
    ends = [0.0, *levels, forecast]
    room = 0.03 * (max(ends) - min(ends) or 1.0)
    # numbers beside the bars would run into the names on a phone
    labels = zip(["base value", *names, "forecast"], steps, strict=True)
    written = [f"{name}  {write(value, '+g3')}" for name, value in labels]
    waterfall: fig.Trace = {
        "type": "waterfall",
        "orientation": "h",
        "y": written,
        "x": steps,
        "measure": ["absolute", *["relative"] * len(values), "total"],
        "increasing": {"marker": {"color": fig.BLUE}},
        "decreasing": {"marker": {"color": fig.VERMILION}},
        "totals": {"marker": {"color": fig.MUTED}},
        "connector": {"line": {"color": fig.ZERO, "width": 1}},
        "hovertemplate": "%{y}<extra></extra>",
    }
    error = {"error_x": fig.whiskers(pl.Series(errors, dtype=pl.Float64)), "hoverinfo": "skip"}
    ranges = fig.scatter(levels[1:], written[1:-1], "markers", marker={"size": 1, "color": fig.INK}, **error)
    margin, y = {"l": 56, "r": 20, "t": 14, "b": 44}, fig.names_axis(autorange="reversed")
    x = fig.axis(f"forecast ({unit})", zeroline=True, range=[min(ends) - room, max(ends) + room])
    title = f"{head['ticker']} on {head['date']}: one forecast of {model}"
    return fig.draw_rows(title, written, [waterfall, ranges], x, yaxis=y, margin=margin)


def removal_curves(curves: pl.DataFrame, over: str) -> fig.Figure:
    """Draw the cumulative share of the change against the share of removed units, one line per method."""
    traces: list[fig.Trace] = []
    views: dict[str, tuple[int, ...]] = {}
    for removal in curves["removal"].unique(maintain_order=True):
        first = len(traces)
        for method, (name, colour, dash) in METHODS.items():
            rows = curves.filter((pl.col("removal") == removal) & (pl.col("method") == method)).sort("share")
            if not rows.is_empty():
                ends = (fig.floats(rows["share"]), fig.floats(rows["cumulative"]), "lines+markers")
                hover = "%{y:.0%} of the change after %{x:.0%} of the " + fig.safe(over)
                look = {"name": name, "line": {"color": colour, "width": 2.5, "dash": dash}}
                # the other removals are views
                traces.append(fig.scatter(*ends, **look, visible=not views, hovertemplate=hover))
        views[_REMOVALS.get(removal, removal)] = tuple(range(first, len(traces)))
    x = fig.axis(f"share of the {fig.safe(over)} removed", tickformat=".0%", range=[-0.02, 1.02])
    y = fig.axis("cumulative share of the change", tickformat=".0%", range=[-0.02, 1.04])
    title = f"Change of the forecasts as {over} are removed"
    return fig.draw(title, 380, traces, {"xaxis": x, "yaxis": y}, views if len(views) > 1 else None)


def agreement_with_shap(agreement: pl.DataFrame, title: str = "Rank correlation with |SHAP|") -> fig.Figure:
    """Draw each method's rank correlation with |SHAP| with its 90% interval, and its null as a ring."""
    names = [
        fig.short(f"{over}: {METHODS.get(method, (method,))[0]}", 34)
        for over, method in agreement.select("over", "method").iter_rows()
    ]
    sides = (agreement["high"] - agreement["value"], agreement["value"] - agreement["low"])
    measured = fig.scatter(
        fig.floats(agreement["value"]),
        names,
        "markers",
        name="measured",
        marker={"size": 10, "color": fig.BLUE},
        error_x=fig.whiskers(*(side.fill_nan(0.0) for side in sides)),
        hovertemplate="%{y}: %{x:.2f}<extra></extra>",
    )
    ring = {"size": 11, "color": fig.MUTED, "symbol": "circle-open", "line": {"width": 2}}
    shown = {"name": "null", "marker": ring, "hovertemplate": "%{y}, null: %{x:.2f}<extra></extra>"}
    null = fig.scatter(fig.floats(agreement["null"]), names, "markers", **shown)
    x = fig.axis("mean Spearman correlation over forecasts", zeroline=True, range=[-1.02, 1.02])
    y = fig.names_axis(autorange="reversed")
    return fig.draw_rows(title, names, [measured, null], x, yaxis=y, step=30)


def weight_of_past_days(days: pl.DataFrame) -> fig.Figure:
    """Draw the mean weight of each past day by the volatility regime of that day, and equal weights."""
    traces: list[fig.Trace] = []
    for regime, colour in _REGIMES.items():
        rows = days.filter(pl.col("regime") == regime).sort("day")
        if not rows.is_empty():
            sides = (rows["high"] - rows["weight"], rows["weight"] - rows["low"])
            error = fig.whiskers(*(side.fill_nan(0.0) for side in sides), thickness=1, color=colour)
            line = {"color": colour, "width": 3 if regime == "all" else 1.6}
            named = {"name": f"{regime} days", "hovertemplate": "day %{x}: %{y:.3f}"}
            ends = (rows["day"].to_list(), fig.floats(rows["weight"]))
            traces.append(fig.scatter(*ends, "lines+markers", line=line, error_y=error, **named))
    null = float(days["null"][0])
    look = {"color": fig.MUTED, "width": 1.5, "dash": "dash"}
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": null, "y1": null, "line": look}
    x = fig.axis("day before the forecast (1 is the decision session)")
    layout = {"xaxis": x, "yaxis": fig.axis("mean weight (dashed: equal weights)"), "shapes": [shape]}
    return fig.draw("Attention to past days", 360, traces, layout)


def day_map(rows: pl.DataFrame) -> fig.Figure:
    """Draw the mean weights from the state of each day to each day, or by head if one state is pooled."""
    by_head = rows["query"].n_unique() == 1
    by, what = ("head", "head") if by_head else ("query", "state of day")
    last = rows.filter(pl.col("layer") == rows["layer"].max())
    mean = last.group_by(by, "key").agg(pl.col("weight").mean())
    levels, keys = (mean[name].unique().sort().to_list() for name in (by, "key"))
    title = f"Attention {'to days by head' if by_head else 'from day to day'}, last layer"
    names, days = [f"{what} {level}" for level in levels], [str(key) for key in keys]
    cells, look = fig.matrix(mean, levels, keys), "%{y} looks at day %{x}: %{z:.4f}<extra></extra>"
    return fig.heat(title, cells, names, days, "weight", across="day", hovertemplate=look)


def firm_map(rows: pl.DataFrame, method: str) -> fig.Figure:
    """Draw the matrix of one method over the firms of one date; rows are targets, columns sources."""
    firms = rows["target"].unique(maintain_order=True).to_list()
    name = METHODS[method][0] if method != "shap" else "|SHAP|"
    labels, title = [fig.short(firm, 10) for firm in firms], f"{name} between firms on {rows['date'][0]}"
    cells = rows.filter(pl.col("method") == method).select("target", "source", "value")
    return fig.heat(title, fig.matrix(cells, firms, firms), labels, labels, name, hovertemplate=_LOOKS)


def peer_network(
    edges: pl.DataFrame, model: str, n_edges: int = MAX_EDGES, colours: Mapping[str, str] | None = None
) -> fig.Figure:
    """Draw the edges with the largest weights, by a layout with forces and a fixed seed, without overlaps."""
    import networkx as nx

    frame = edges.sort("weight", descending=True).head(n_edges)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from(frame.select("leader", "follower").iter_rows())
    firms = list(graph.nodes)
    half_width = np.array([0.5 * (7.2 * min(len(firm), 12) + 12) for firm in firms])
    at = dict(zip(firms, _positions(graph, half_width), strict=True))
    half = dict(zip(firms, half_width.tolist(), strict=True))
    heaviest = max(frame["weight"], default=0.0) or 1.0
    notes = [_arrow(row, at, half, heaviest) for row in frame.iter_rows(named=True)]
    borders = {} if colours is None else colours
    notes += [
        _name(firm, at[firm], borders.get(firm, fig.UNKNOWN), 1 if colours is None else 2) for firm in firms
    ]
    traces = [
        fig.scatter([None], [None], line={"color": colour, "width": 3}, name=title)
        for title, colour, value in (
            ("within a group", fig.BLUE, True),
            ("across groups", fig.VERMILION, False),
        )
        if (frame["same_group"] == value).any()
    ]
    degrees = [(fig.short(firm), graph.out_degree(firm), graph.in_degree(firm)) for firm in firms]
    shown = {"marker": {"size": 24, "opacity": 0}, "hovertemplate": "%{text}<extra></extra>"}
    x, y = ([float(at[firm][side]) for firm in firms] for side in (0, 1))
    text = [f"{firm}: leads {out}, follows {into}" for firm, out, into in degrees]
    traces.append(fig.scatter(x, y, "markers", text=text, **shown))
    frozen = dict.fromkeys(("showgrid", "zeroline", "showline", "showticklabels", "automargin"), False)
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "annotations": notes,
        "xaxis": fig.axis("", **frozen) | {"range": [0, _WIDTH]},
        "yaxis": fig.axis("", **frozen) | {"range": [0, _HEIGHT]},
    }
    return fig.draw(f"Peer network of {model}: the {frame.height} strongest edges", 660, traces, layout)


def _positions(graph: nx.DiGraph[str], half_width: FloatArray) -> FloatArray:
    """Position of every firm in pixels, [n_firms, 2]; names overlap neither each other nor the border."""
    import networkx as nx

    n = graph.number_of_nodes()
    if n == 0:
        return np.zeros((0, 2))
    ideal = 2.2 / math.sqrt(n)
    layout = nx.spring_layout(graph.to_undirected(), seed=7, k=ideal, iterations=300)
    at = np.array([layout[firm] for firm in graph.nodes])
    # with raw coordinates one distant firm would compress all others: average them with their ranks
    rank = np.argsort(np.argsort(at, axis=0), axis=0) / max(n - 1, 1)
    span = np.ptp(at, axis=0)
    at = 0.5 * rank + 0.5 * (at - at.min(axis=0)) / np.where(span > 0, span, 1.0)
    size = np.array([_WIDTH, _HEIGHT])
    low = np.stack([half_width + 4, np.full(n, 14.0)], axis=1)
    at = low + at * (size - 2 * low)
    need_x = half_width[:, None] + half_width[None, :] + 34
    for _ in range(400):
        gap_x, gap_y = (at[:, None, side] - at[None, :, side] for side in (0, 1))
        over_x, over_y = need_x - np.abs(gap_x), 44.0 - np.abs(gap_y)
        one, other = np.nonzero((over_x > 0) & (over_y > 0))
        one, other = one[one != other], other[one != other]
        if not len(one):
            break
        push = np.zeros_like(at)
        along_x = over_x[one, other] < over_y[one, other]
        for side, over, gap, moved in ((0, over_x, gap_x, along_x), (1, over_y, gap_y, ~along_x)):
            i, j = one[moved], other[moved]
            sign = np.where(gap[i, j] == 0, np.sign(i - j), np.sign(gap[i, j]))
            np.add.at(push[:, side], i, 0.3 * sign * over[i, j])
        at = np.clip(at + push, low, size - low)
    return np.asarray(at, dtype=np.float64)


def _arrow(
    row: Mapping[str, Any], at: Mapping[str, FloatArray], half: Mapping[str, float], heaviest: float
) -> dict[str, Any]:
    leader, follower = row["leader"], row["follower"]
    width = 1.0 + 2.5 * row["weight"] / heaviest
    ends = dict(zip(("x", "y", "ax", "ay"), (*at[follower], *at[leader]), strict=True))
    axes = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    head = {"showarrow": True, "arrowhead": 2, "arrowsize": max(0.7, 1.6 / width), "arrowwidth": width}
    gaps = {
        "standoff": _clearance(at[leader], at[follower], half[follower]),
        "startstandoff": _clearance(at[follower], at[leader], half[leader]) - 2,
    }
    look = {"text": "", "arrowcolor": group_colour(row["same_group"]), "opacity": 0.8}
    return {**ends, **axes, **head, **gaps, **look}


def group_colour(same: bool | None) -> str:
    """Colour of an edge or a peer: within a group, across groups, or unknown."""
    return fig.UNKNOWN if same is None else fig.BLUE if same else fig.VERMILION


def _clearance(start: FloatArray, end: FloatArray, half_width: float) -> float:
    """Pixels from the centre of a name to the edge of its box along an arrow, plus a small margin."""
    run, rise = np.abs(end - start) + 1e-9
    length = math.hypot(run, rise)
    return float(min(half_width * length / run, 10 * length / rise) + 3)


def _name(firm: str, at: Sequence[float] | FloatArray, border: str, width: int) -> dict[str, Any]:
    place = {"x": at[0], "y": at[1], "xref": "x", "yref": "y", "showarrow": False}
    box = {"bgcolor": "#ffffff", "bordercolor": border, "borderwidth": width, "borderpad": 2}
    return {**place, **box, "text": fig.short(firm, 12), "font": {"size": 11, "color": fig.INK}}
