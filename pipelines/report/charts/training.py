"""Charts of the training: walk-forward folds and learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from pipelines.report.charts.series import by_model, float32
from pipelines.report.theme import Style, axis, finish, short

SEGMENTS = {"train": "train", "valid": "validation", "test": "test"}  # prefix of the columns -> title
_SEGMENT_COLOURS = {"train": "#9fb3c8", "valid": "#E69F00", "test": "#0072B2"}


def fold_timeline(folds: pl.DataFrame) -> go.Figure:
    """Draw each fold's train, validation and test sessions as bars; the gaps are purge and embargo."""
    frame = folds.sort("fold")
    figure = go.Figure()
    for segment, title in SEGMENTS.items():
        x: list[object] = []
        y: list[object] = []
        for row in frame.iter_rows(named=True):
            name = f"fold {row['fold']}"
            spans = row.get(f"{segment}_spans") or [(row[f"{segment}_from"], row[f"{segment}_to"])]
            for start, end in spans:
                x += [str(start), str(end), None]
                y += [name, name, None]
        bars = go.Scatter(
            x=x,
            y=y,
            mode="lines",
            connectgaps=False,
            name=title,
            line={"color": _SEGMENT_COLOURS[segment], "width": 14},
            hovertemplate=f"%{{y}}, {title}: %{{x}}<extra></extra>",
        )
        figure.add_trace(bars)
    return finish(
        figure,
        "Walk-forward folds",
        130 + 28 * max(frame.height, 2),
        xaxis=axis("session", type="date"),
        yaxis=axis("fold", type="category", range=[frame.height - 0.4, -0.6]),
    )


def learning_curves(learning: pl.DataFrame, styles: Mapping[str, Style]) -> go.Figure:
    """Draw training loss and validation rank IC by epoch: thin lines are single fits, thick ones medians."""
    panels = (("train_loss", "training loss"), ("valid_rank_ic", "validation rank IC"))
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.13)
    for column, (field, _) in enumerate(panels, start=1):
        for model, style, rows in by_model(learning, styles, order="epoch"):
            shared: dict[str, Any] = {"name": short(model), "legendgroup": model, "mode": "lines"}
            x: list[npt.NDArray[np.float32]] = []
            y: list[npt.NDArray[np.float32]] = []
            gap = np.array([np.nan], dtype=np.float32)
            for fit in rows.partition_by("fold", "seed", maintain_order=True):
                x += [float32(fit["epoch"]), gap]
                y += [float32(fit[field]), gap]
            thin_lines = go.Scatter(
                x=np.concatenate(x),
                y=np.concatenate(y),
                line={"color": style.colour, "width": 0.8},
                opacity=0.3,
                showlegend=False,
                hoverinfo="skip",
                **shared,
            )
            median = (
                rows.group_by("epoch")
                .agg(pl.col(field).cast(pl.Float64).fill_nan(None).median(), fits=pl.len())
                .sort("epoch")
            )
            # fits stop at different epochs: a median over the few longest ones would distort the curve
            median = median.filter(pl.col("fits") * 2 >= pl.col("fits").max())
            thick_line = go.Scatter(
                x=float32(median["epoch"]),
                y=float32(median[field]),
                line={"color": style.colour, "width": 2.5, "dash": style.dash},
                showlegend=column == 1,
                hovertemplate="%{y:.4f}",
                **shared,
            )
            figure.add_trace(thin_lines, row=1, col=column)
            figure.add_trace(thick_line, row=1, col=column)
        figure.update_xaxes(**axis("epoch"), row=1, col=column)
        figure.update_yaxes(**axis(panels[column - 1][1]), row=1, col=column)
    return finish(figure, "Training loss and validation rank IC by epoch", 400, hovermode="x unified")
