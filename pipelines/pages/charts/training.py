"""Charts of the training: walk-forward folds and learning curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.charts.series import by_model
from pipelines.pages.theme import Style, axis, short

SEGMENTS = {"train": "train", "valid": "validation", "test": "test"}  # prefix of the columns -> title
_SEGMENT_COLOURS = {"train": "#9fb3c8", "valid": "#E69F00", "test": "#0072B2"}
_CURVES = (("train_loss", "Training loss"), ("valid_rank_ic", "Validation rank IC of the target"))


def fold_timeline(folds: pl.DataFrame) -> Figure:
    """Draw each fold's train, validation and test sessions as bars; the gaps are purge and embargo."""
    frame = folds.sort("fold")
    traces: list[Trace] = []
    for segment, title in SEGMENTS.items():
        x: list[object] = []
        y: list[object] = []
        for row in frame.iter_rows(named=True):
            name = f"fold {row['fold']}"
            spans = row.get(f"{segment}_spans") or [(row[f"{segment}_from"], row[f"{segment}_to"])]
            for start, end in spans:
                x += [str(start), str(end), None]
                y += [name, name, None]
        traces.append(
            {
                "type": "scatter",
                "x": x,
                "y": y,
                "mode": "lines",
                "connectgaps": False,
                "name": title,
                "line": {"color": _SEGMENT_COLOURS[segment], "width": 12},
                "hovertemplate": f"%{{y}}, {title}: %{{x}}<extra></extra>",
            }
        )
    return draw(
        "Walk-forward folds",
        80 + 24 * max(frame.height, 2),
        traces,
        {
            "xaxis": axis("session", type="date"),
            "yaxis": axis("", type="category", range=[frame.height - 0.4, -0.6]),
        },
    )


def learning_curves(learning: pl.DataFrame, styles: Mapping[str, Style]) -> Iterator[Figure]:
    """Draw training loss and validation rank IC by epoch: thin lines are single fits, thick ones medians."""
    for column, title in _CURVES:
        traces: list[Trace] = []
        for model, style, rows in by_model(learning, styles, order="epoch"):
            if rows[column].fill_nan(None).is_null().all():
                continue
            shared: dict[str, Any] = {
                "type": "scatter",
                "name": short(model),
                "legendgroup": model,
                "mode": "lines",
            }
            median = (
                rows.group_by("epoch")
                .agg(pl.col(column).cast(pl.Float64).fill_nan(None).median(), fits=pl.len())
                .sort("epoch")
            )
            # fits stop at different epochs: a median over the few longest ones would distort the curve
            median = median.filter(pl.col("fits") * 2 >= pl.col("fits").max())
            traces.append(
                {
                    **shared,
                    "x": floats(median["epoch"]),
                    "y": floats(median[column]),
                    "line": {"color": style.colour, "width": 2.5, "dash": style.dash},
                    "hovertemplate": "%{y:.4f}",
                }
            )
            x, y = _broken_lines(rows, column)
            traces.append(
                {
                    **shared,
                    "x": x,
                    "y": y,
                    "line": {"color": style.colour, "width": 0.8},
                    "opacity": 0.3,
                    "showlegend": False,
                    "hoverinfo": "skip",
                }
            )
        if traces:
            layout = {"hovermode": "x unified", "xaxis": axis("epoch"), "yaxis": axis(title.lower())}
            yield draw(f"{title} by epoch", 340, traces, layout)


def _broken_lines(rows: pl.DataFrame, column: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """All fits of a model as one line that is interrupted between fits."""
    x: list[npt.NDArray[np.float32]] = []
    y: list[npt.NDArray[np.float32]] = []
    gap = np.array([np.nan], dtype=np.float32)
    for fit in rows.partition_by("fold", "seed", maintain_order=True):
        x += [floats(fit["epoch"]), gap]
        y += [floats(fit[column]), gap]
    return np.concatenate(x), np.concatenate(y)
