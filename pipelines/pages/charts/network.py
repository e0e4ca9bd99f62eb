"""A drawing of the strongest edges of the peer network, with arrows from leader to follower."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw
from pipelines.pages.theme import BLUE, INK, VERMILION, axis, short

if TYPE_CHECKING:
    import networkx as nx

MAX_EDGES = 40
HEIGHT = 660
_WIDTH = 760.0  # pixels of the plot on a narrow screen; a layout that fits there fits on wider screens
_INNER_HEIGHT = 540.0
_LAYOUT_SEED = 7
_UNKNOWN = "#8a949e"


def peer_network(edges: pl.DataFrame, model: str, n_edges: int = MAX_EDGES) -> Figure:
    """Draw the ``n_edges`` edges with the largest weights: blue within a group, vermilion across groups.

    A force-directed layout with a fixed seed gives the positions. Firms are then pushed apart until no two
    names overlap. Distances have no meaning, except that connected firms tend to be close.
    """
    import networkx as nx

    frame = edges.sort("weight", descending=True).head(n_edges)
    rows = frame.to_dicts()
    graph: nx.DiGraph[str] = nx.DiGraph()
    for row in rows:
        graph.add_edge(row["leader"], row["follower"])
    firms = list(graph.nodes)
    half_width = np.array([0.5 * (7.2 * min(len(firm), 12) + 12) for firm in firms])
    positions = dict(zip(firms, _positions(graph, half_width), strict=True))
    half = dict(zip(firms, half_width, strict=True))
    heaviest = max((row["weight"] for row in rows), default=1.0) or 1.0
    annotations = [_arrow(row, positions, half, heaviest) for row in rows]
    annotations += [_name(firm, positions[firm]) for firm in firms]
    traces: list[Trace] = []
    for title, colour, value in (("within a group", BLUE, True), ("across groups", VERMILION, False)):
        if any(row["same_group"] is value for row in rows):
            line = {"color": colour, "width": 3}
            traces.append(
                {"type": "scatter", "x": [None], "y": [None], "mode": "lines", "line": line, "name": title}
            )
    traces.append(
        {
            "type": "scatter",
            "x": [float(positions[firm][0]) for firm in firms],
            "y": [float(positions[firm][1]) for firm in firms],
            "mode": "markers",
            "marker": {"size": 24, "opacity": 0},
            "text": [
                f"{short(firm)}: leads {graph.out_degree(firm)}, follows {graph.in_degree(firm)}"
                for firm in firms
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }
    )
    frozen = dict.fromkeys(("showgrid", "zeroline", "showline", "showticklabels", "automargin"), False)
    return draw(
        f"Peer network of {model}: the {frame.height} strongest edges",
        HEIGHT,
        traces,
        {
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "annotations": annotations,
            "xaxis": axis("", **frozen) | {"range": [0, _WIDTH]},
            "yaxis": axis("", **frozen) | {"range": [0, _INNER_HEIGHT]},
        },
    )


def _positions(graph: nx.DiGraph[str], half_width: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Position of every firm in pixels, [n_firms, 2]; names overlap neither each other nor the border."""
    import networkx as nx

    n = graph.number_of_nodes()
    if n == 0:
        return np.zeros((0, 2))
    ideal = 2.2 / math.sqrt(n)
    layout = nx.spring_layout(graph.to_undirected(), seed=_LAYOUT_SEED, k=ideal, iterations=300)
    at = np.array([layout[firm] for firm in graph.nodes])
    # with raw coordinates one distant firm would compress all others: average them with their ranks
    rank = np.argsort(np.argsort(at, axis=0), axis=0) / max(n - 1, 1)
    span = np.ptp(at, axis=0)
    at = 0.5 * rank + 0.5 * (at - at.min(axis=0)) / np.where(span > 0, span, 1.0)
    size = np.array([_WIDTH, _INNER_HEIGHT])
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
    row: dict[str, Any],
    positions: dict[str, npt.NDArray[np.float64]],
    half: dict[str, float],
    heaviest: float,
) -> dict[str, Any]:
    start, end = positions[row["leader"]], positions[row["follower"]]
    colour = _UNKNOWN if row["same_group"] is None else BLUE if row["same_group"] else VERMILION
    width = 1.0 + 2.5 * row["weight"] / heaviest
    return {
        "x": end[0],
        "y": end[1],
        "ax": start[0],
        "ay": start[1],
        "xref": "x",
        "yref": "y",
        "axref": "x",
        "ayref": "y",
        "text": "",
        "showarrow": True,
        "arrowhead": 2,
        "arrowsize": max(0.7, 1.6 / width),
        "arrowwidth": width,
        "arrowcolor": colour,
        "opacity": 0.8,
        "standoff": _clearance(start, end, half[row["follower"]]),
        "startstandoff": _clearance(end, start, half[row["leader"]]) - 2,
    }


def _clearance(start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], half_width: float) -> float:
    """Pixels from the centre of a name to the edge of its box along an arrow, plus a small margin."""
    run, rise = np.abs(end - start) + 1e-9
    length = math.hypot(run, rise)
    return float(min(half_width * length / run, 10 * length / rise) + 3)


def _name(firm: str, at: npt.NDArray[np.float64]) -> dict[str, Any]:
    return {
        "x": at[0],
        "y": at[1],
        "xref": "x",
        "yref": "y",
        "text": short(firm, 12),
        "showarrow": False,
        "font": {"size": 11, "color": INK},
        "bgcolor": "#ffffff",
        "bordercolor": "#9aa5b1",
        "borderwidth": 1,
        "borderpad": 2,
    }
