"""Chart of rank IC by the share of the labels that a model was trained on."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from pipelines.report.theme import DASHES, PALETTE, axis, finish, safe, short

_PANELS = (
    ("validation rank IC", "valid_rank_ic", "valid_lowest", "valid_highest"),
    ("test rank IC", "rank_ic", "lowest", "highest"),
)
_APART = 1.04  # factor between the lines' positions on the logarithmic axis, to keep ranges from overlapping


def rank_ic_by_share(rows: pl.DataFrame, group: str) -> go.Figure:
    """Draw rank IC on validation and on test over the share of the labels, one line per initialisation."""
    figure = make_subplots(rows=1, cols=2, shared_yaxes="all", horizontal_spacing=0.1)
    shares = rows["share"].unique().sort().to_list()
    ticks = {"tickvals": shares, "ticktext": [f"{share:.0%}" for share in shares], "type": "log"}
    lines = rows.partition_by("beginning", maintain_order=True)
    for column, (title, mean, lowest, highest) in enumerate(_PANELS, start=1):
        for place, line in enumerate(lines):
            path = line.sort("share", maintain_order=True)
            beginning = path["beginning"][0]
            turn, colour = divmod(place, len(PALETTE))
            style = {"color": PALETTE[colour], "dash": DASHES[turn % len(DASHES)], "width": 2}
            shift = _APART ** (place - (len(lines) - 1) / 2)
            figure.add_trace(
                go.Scatter(
                    x=[share * shift for share in path["share"].to_list()],
                    y=path[mean].to_list(),
                    # variants with the same initialisation and share differ in something else: do not connect
                    # them
                    mode="lines+markers" if path["share"].is_unique().all() else "markers",
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": (path[highest] - path[mean]).to_list(),
                        "arrayminus": (path[mean] - path[lowest]).to_list(),
                        "width": 3,
                        "thickness": 1.2,
                    },
                    line=style,
                    marker={"size": 8, "color": PALETTE[colour]},
                    name=short(beginning, 48),
                    legendgroup=beginning,
                    showlegend=column == 1,
                    text=[
                        f"{safe(model)}, {share:.0%} of the labels"
                        for model, share in path.select("model", "share").iter_rows()
                    ],
                    hovertemplate=f"%{{text}}, {title}: %{{y:.4f}}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        figure.update_xaxes(**axis("share of the labels (log scale)", **ticks), row=1, col=column)
        figure.update_yaxes(**axis(title, zeroline=True, showticklabels=True), row=1, col=column)
    return finish(figure, f"Rank IC by share of the labels: {short(group, 48)}", 400)
