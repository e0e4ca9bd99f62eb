"""The section on labels and pretraining: fine-tuned against from scratch by the share of the labels."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from pipelines.report.tables import Column, number, percent, table, text
from pipelines.report.theme import DASHES, PALETTE, Style, axis, finish, safe, short

_VALID, _TEST, _GAIN = "validation rank IC", "test rank IC", "test, less scratch"
_COLUMNS = (
    Column("beginning", "begins", text, numeric=False),
    Column("share", "labels %", percent(0), hint="share of the training dates whose labels are used"),
    Column("model", "model", text, numeric=False),
    Column("seeds", "seeds", number(0)),
    Column("valid_rank_ic", "mean", number(3), group=_VALID),
    Column("valid_lowest", "lowest", number(3), group=_VALID),
    Column("valid_highest", "highest", number(3), group=_VALID),
    Column("rank_ic", "mean", number(3), group=_TEST),
    Column("lowest", "lowest", number(3), group=_TEST),
    Column("highest", "highest", number(3), group=_TEST),
)
_GAINS = tuple(
    Column(field, title, number(4), group=_GAIN, hint="by seed: the same labels, begun from scratch")
    for field, title in (("gain", "mean"), ("gain_lowest", "lowest"), ("gain_highest", "highest"))
)
_PANELS = (
    (_VALID, "valid_rank_ic", "valid_lowest", "valid_highest"),
    (_TEST, "rank_ic", "lowest", "highest"),
)
_APART = 1.04  # factor between the lines' places along the logarithmic axis, so that ranges do not overlap


def label_share_blocks(
    frame: pl.DataFrame | None, styles: Mapping[str, Style]
) -> Iterator[str | tuple[go.Figure, str]]:
    """Give a table and a figure for each model with variants to compare; nothing without any."""
    if frame is None or frame.is_empty():
        return
    words = (
        "Variants of one model with the same options, by how they begin and by the share of the training "
        "dates whose labels they were fitted to: mean over seeds, lowest and highest seed. Validation chose "
        "each fit's epoch and flatters; the test was forecast once."
    )
    yield f"<p>{words}</p>"
    for group in frame["group"].unique(maintain_order=True).to_list():
        rows = frame.filter(pl.col("group") == group)
        yield f"<h3>{html.escape(group)}</h3>"
        columns = _COLUMNS if rows["gain"].is_null().all() else (*_COLUMNS, *_GAINS)
        yield table(rows, columns, label=f"Rank IC of {group} by share of the labels", styles=styles)
        yield (
            rank_ic_by_share(rows, group),
            "A line is one way of beginning; bars reach from the lowest to the highest seed. A seed draws "
            "its labels too, the same for every beginning: what one buys, the table's differences tell.",
        )


def rank_ic_by_share(rows: pl.DataFrame, group: str) -> go.Figure:
    """Draw rank IC on validation and on test over the share of the labels, one line a beginning."""
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
                    # two variants that begin alike on the same labels differ in something else: no line
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
