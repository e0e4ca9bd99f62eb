"""Chart of rank IC by the share of the labels that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.theme import DASHES, PALETTE, axis, safe, short

_PANELS = (
    ("Validation rank IC", "valid_rank_ic", "valid_lowest", "valid_highest"),
    ("Test rank IC", "rank_ic", "lowest", "highest"),
)
_APART = 1.04  # factor between the lines' positions on the logarithmic axis, to keep ranges from overlapping


def rank_ic_by_share(rows: pl.DataFrame, group: str) -> Iterator[Figure]:
    """Draw rank IC on validation and on test over the share of the labels, one line per initialisation."""
    shares = rows["share"].unique().sort().to_list()
    ticks = {"tickvals": shares, "ticktext": [f"{share:.0%}" for share in shares], "type": "log"}
    lines = rows.partition_by("beginning", maintain_order=True)
    for title, mean, lowest, highest in _PANELS:
        traces: list[Trace] = []
        for place, line in enumerate(lines):
            path = line.sort("share", maintain_order=True)
            turn, colour = divmod(place, len(PALETTE))
            shift = _APART ** (place - (len(lines) - 1) / 2)
            traces.append(
                {
                    "type": "scatter",
                    "x": [share * shift for share in path["share"].to_list()],
                    "y": path[mean].to_list(),
                    # variants with the same initialisation and share differ in something else: do not connect
                    # them
                    "mode": "lines+markers" if path["share"].is_unique().all() else "markers",
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": floats(path[highest] - path[mean]),
                        "arrayminus": floats(path[mean] - path[lowest]),
                        "width": 3,
                        "thickness": 1.2,
                    },
                    "line": {"color": PALETTE[colour], "dash": DASHES[turn % len(DASHES)], "width": 2},
                    "marker": {"size": 8, "color": PALETTE[colour]},
                    "name": short(path["beginning"][0], 48),
                    "text": [
                        f"{safe(model)}, {share:.0%} of the labels"
                        for model, share in path.select("model", "share").iter_rows()
                    ],
                    "hovertemplate": f"%{{text}}, {title}: %{{y:.4f}}<extra></extra>",
                }
            )
        yield draw(
            f"{title} by share of the labels: {group}",
            320,
            traces,
            {
                "xaxis": axis("share of the labels (log scale)", **ticks),
                "yaxis": axis("mean daily rank IC", zeroline=True),
            },
        )
