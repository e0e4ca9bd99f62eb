"""Charts of models: their forecasts' skill, returns by quantile, folds and learning curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from pipelines.pages.figure import (
    INK,
    MUTED,
    Figure,
    LineStyle,
    Trace,
    axis,
    bar_trace,
    by_model,
    draw,
    floats,
    line,
    names_axis,
    over_time,
    points_per_line,
    scatter,
    short,
    thin,
    whiskers,
    zero_axis,
)
from pipelines.pages.tables import write

SEGMENTS = {"train": ("train", "#9fb3c8"), "valid": ("validation", "#E69F00"), "test": ("test", "#0072B2")}
_CURVES = (("train_loss", "Training loss"), ("valid_rank_ic", "Validation rank IC of the target"))
_CORRELATION = "mean daily rank IC (Spearman correlation)"


def skill(ladder: pl.DataFrame, styles: Mapping[str, LineStyle], delay: int) -> Figure:
    """Draw every model's mean daily IC with its 95% interval, and the true mean's on a simulated market."""
    rows = ladder.with_columns(pl.col("ensemble_ic", "ic_t").fill_nan(None)).reverse()
    pairs = rows.select("ensemble_ic", "ic_t").iter_rows()
    trace = bar_trace(
        [short(name) for name in rows["model"]],
        rows["ensemble_ic"].to_list(),
        [styles[name].colour for name in rows["model"]],
        error_x=whiskers([None if ic is None or not t else 1.96 * abs(ic / t) for ic, t in pairs]),
        hovertemplate="%{y}: %{x:.4f}<extra></extra>",
    )
    truth = ladder["truth_ic"].drop_nulls().to_list() if "truth_ic" in ladder.columns else []
    layout = {
        "xaxis": zero_axis("mean daily correlation of forecast and return"),
        "yaxis": names_axis(),
        **(_true_mean(float(truth[0])) if len(truth) else {}),
    }
    title = f"Mean daily IC on the test, delay {delay}, with 95% intervals"
    return draw(title, 44 + 34 * max(rows.height, 2), [trace], layout)


def share_of_ceiling(ladder: pl.DataFrame, styles: Mapping[str, LineStyle], ceiling_ic: float) -> Figure:
    """Draw each model's test rank IC as a bar, with the rank IC of the true conditional mean as a line."""
    frame = ladder.reverse()
    share = frame["share_of_truth"].cast(pl.Float64).fill_nan(None).to_list()
    trace = bar_trace(
        [short(model) for model in frame["model"]],
        floats(frame["rank_ic"]),
        [styles[model].colour for model in frame["model"]],
        text=["" if value is None else f"{value:.0%}" for value in share],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.4f}<extra></extra>",
    )
    layout = {
        "margin": {"l": 56, "r": 34, "t": 28, "b": 44},
        "xaxis": axis(_CORRELATION, zeroline=True),
        "yaxis": names_axis(),
        **_true_mean(ceiling_ic),
    }
    title = "Test rank IC against that of the true mean"
    return draw(title, 110 + 28 * max(frame.height, 2), [trace], layout)


def _true_mean(value: float) -> dict[str, Any]:
    """A dashed vertical line at the IC of the true conditional mean."""
    look = {"color": INK, "width": 2, "dash": "dash"}
    shape = {"type": "line", "x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper", "line": look}
    place = {"x": value, "y": 1.0, "yref": "paper", "yanchor": "bottom", "xanchor": "right"}
    text = {"showarrow": False, "text": f"true mean {value:.3f}"}
    return {"shapes": [shape], "annotations": [place | text]}


def validation_against_test(ladder: pl.DataFrame, styles: Mapping[str, LineStyle]) -> Figure:
    """Draw each model's rank IC on validation (hollow) and on test (filled), one row per model."""
    traces: list[Trace] = []
    for row in ladder.reverse().iter_rows(named=True):
        colour, name = styles[row["model"]].colour, short(row["model"])
        edge = {"width": 2, "color": colour}
        marker = {"size": 11, "symbol": ["circle-open", "circle"], "color": colour, "line": edge}
        shown = {
            "text": ["validation", "test"],
            "hovertemplate": f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>",
        }
        ends = [row["valid_rank_ic"], row["rank_ic"]]
        traces.append(scatter(ends, [name, name], "lines+markers", line=edge, marker=marker, **shown))
    layout = {"xaxis": zero_axis(_CORRELATION), "yaxis": names_axis()}
    title = "Rank IC on validation (hollow) and on test (filled)"
    return draw(title, 80 + 28 * ladder.height, traces, layout)


def cumulative_rank_ic(
    ic_series: pl.DataFrame, styles: Mapping[str, LineStyle], best: str | None = None
) -> Figure:
    """Draw the cumulative sum of daily rank ICs per model; sessions without a rank IC count as 0."""
    parts = by_model(ic_series, styles)
    daily = pl.col("rank_ic").cast(pl.Float64).fill_nan(None)
    traces: list[Trace] = []
    for model, style, rows in parts:
        if rows.select(daily.is_null().all()).item():
            continue  # without any rank IC, a flat line would look like a measured zero
        path = thin(rows.with_columns(y=daily.fill_null(0.0).cum_sum()), points_per_line(len(parts)))
        width = 2.6 if model == best else 1.6
        traces.append(line(path, model, style, "%{y:.2f}", line=style.line(width)))
    y = axis("sum of daily rank ICs", zeroline=True)
    return draw("Cumulative rank IC on the test sessions", 340, traces, over_time(y))


def quantile_returns(quantiles: pl.DataFrame, styles: Mapping[str, LineStyle]) -> Figure:
    """Draw the mean label by quantile of the forecast, grouped bars per model."""
    traces: list[Trace] = [
        {
            "type": "bar",
            "x": [f"Q{quantile}" for quantile in rows["quantile"]],
            "y": floats(rows["mean_return_bps"]),
            "name": short(model),
            "marker": {"color": style.colour},
            "hovertemplate": f"{short(model)}, %{{x}}: %{{y:.1f}} bps<extra></extra>",
        }
        for model, style, rows in by_model(quantiles, styles, order="quantile")
    ]
    layout = {
        "barmode": "group",
        "bargap": 0.18,
        "xaxis": axis("quantile of the forecasts of a date (Q1 = lowest)", type="category"),
        "yaxis": zero_axis("mean label (bps)"),
    }
    return draw("Mean return by forecast quantile", 340, traces, layout)


def quantile_curves(series: pl.DataFrame, model: str, horizon: int) -> Figure:
    """Draw the cumulative return of each quantile of one model's forecasts, less the mean of the quantiles.

    The mean label of a date covers ``horizon`` sessions and is divided by it, so that overlapping labels are
    counted once.
    """
    wide = series.sort("date", "quantile").pivot(on="quantile", index="date", values="mean_return_bps")
    names = sorted((name for name in wide.columns if name != "date"), key=float)
    above = pl.col(*names) - pl.mean_horizontal(*names)
    paths = wide.select("date", above.fill_nan(None).fill_null(0.0).cum_sum() / (100.0 * horizon))
    kept = thin(paths, points_per_line(len(names)))
    traces = [
        line(
            kept.select("date", y=name),
            f"Q{name}",
            LineStyle(_between(at / max(len(names) - 1, 1))),
            "%{y:.1f}%",
        )
        for at, name in enumerate(names)
    ]
    y = zero_axis("% above the mean quantile, summed")
    return draw(f"Cumulative return by quantile: {model}", 340, traces, over_time(y))


def _between(place: float) -> str:
    """From vermilion (lowest forecasts) over grey to blue (highest)."""
    colours = np.array([[213, 94, 0], [150, 158, 168], [0, 114, 178]], dtype=float)
    mixed = (round(float(np.interp(2 * place, [0, 1, 2], channel))) for channel in colours.T)
    return f"#{''.join(f'{value:02x}' for value in mixed)}"


def ic_decay(decay: pl.DataFrame, by: str, title: str, styles: Mapping[str, LineStyle]) -> Figure:
    """Draw the mean rank IC against ``by`` (horizon or delay), with 95% intervals from its t-statistic."""
    order = [str(value) for value in decay[by].unique().sort()]
    traces = [
        scatter(
            [str(value) for value in rows[by]],
            floats(rows["rank_ic"]),
            "lines+markers",
            name=short(model),
            line=style.line(),
            error_y=whiskers(1.96 * (rows["rank_ic"] / rows["rank_ic_t"]).abs(), thickness=1),
            hovertemplate="%{y:.4f}",
        )
        for model, style, rows in by_model(decay, styles, order=by)
    ]
    x = axis(f"{by} (sessions)", type="category", categoryorder="array", categoryarray=order)
    return draw(title, 300, traces, {"xaxis": x, "yaxis": zero_axis("mean daily rank IC")})


def sharpe(rows: pl.DataFrame, styles: Mapping[str, LineStyle], title: str) -> Figure:
    """Draw net Sharpe ratios with intervals; probabilistic and deflated values stand at the right."""
    rows = rows.reverse()
    names, value = [short(name) for name in rows["model"]], rows["sharpe_net"]
    error = whiskers(
        (rows["sharpe_upper"] - value).to_list(), (value - rows["sharpe_lower"]).to_list(), color=MUTED
    )
    marker = {"size": 12, "color": [styles[name].colour for name in rows["model"]]}
    hover = {"hovertemplate": "%{y}: %{x:.2f}<extra></extra>"}
    trace = scatter(value.to_list(), names, "markers", marker=marker, error_x=error, **hover)
    at = {"x": 1.0, "xref": "paper", "xanchor": "left", "showarrow": False, "align": "left"}
    shares = rows.select("probabilistic_sharpe", "deflated_sharpe").iter_rows()
    notes = [
        at | {"y": name, "text": f"  P(>0) {write(single, '2')}, deflated {write(deflated, '2')}"}
        for name, (single, deflated) in zip(names, shares, strict=True)
    ]
    layout = {
        "margin": {"l": 56, "r": 190, "t": 14, "b": 44},
        "annotations": notes,
        "xaxis": zero_axis("annualised net Sharpe ratio, 95% bootstrap interval", zerolinecolor=INK),
        "yaxis": names_axis(),
    }
    return draw(title, 44 + 34 * max(rows.height, 2), [trace], layout)


def fold_timeline(folds: pl.DataFrame) -> Figure:
    """Draw each fold's train, validation and test sessions as bars; the gaps are purge and embargo."""
    frame = folds.sort("fold")
    traces: list[Trace] = []
    for segment, (title, colour) in SEGMENTS.items():
        x: list[object] = []
        y: list[object] = []
        for row in frame.iter_rows(named=True):
            name = f"fold {row['fold']}"
            spans = row.get(f"{segment}_spans") or [(row[f"{segment}_from"], row[f"{segment}_to"])]
            for start, end in spans:
                x += [str(start), str(end), None]
                y += [name, name, None]
        look = {"name": title, "line": {"color": colour, "width": 12}, "connectgaps": False}
        traces.append(scatter(x, y, **look, hovertemplate=f"%{{y}}, {title}: %{{x}}<extra></extra>"))
    layout = {"xaxis": axis("session", type="date"), "yaxis": names_axis(range=[frame.height - 0.4, -0.6])}
    return draw("Walk-forward folds", 80 + 24 * max(frame.height, 2), traces, layout)


def learning_curves(learning: pl.DataFrame, styles: Mapping[str, LineStyle]) -> Iterator[Figure]:
    """Draw training loss and validation rank IC by epoch: thin lines are single fits, thick ones medians."""
    for column, title in _CURVES:
        traces: list[Trace] = []
        for model, style, rows in by_model(learning, styles, order="epoch"):
            if rows[column].fill_nan(None).is_null().all():
                continue
            group = {"name": short(model), "legendgroup": model}
            value = pl.col(column).cast(pl.Float64).fill_nan(None)
            median = rows.group_by("epoch").agg(value.median(), fits=pl.len()).sort("epoch")
            # fits stop at different epochs: a median over the few longest ones would distort the curve
            median = median.filter(pl.col("fits") * 2 >= pl.col("fits").max())
            ends = (floats(median["epoch"]), floats(median[column]))
            traces.append(scatter(*ends, **group, line=style.line(2.5), hovertemplate="%{y:.4f}"))
            # all fits as one line, which is interrupted after each of them
            fits = rows.partition_by("fold", "seed", maintain_order=True)
            gap = pl.DataFrame(schema={"epoch": pl.Float32, column: pl.Float32}).clear(1)
            single = [fit.select("epoch", column).cast(pl.Float32) for fit in fits]
            broken = pl.concat([part for fit in single for part in (fit, gap)])
            fine = {"line": {"color": style.colour, "width": 0.8}, "opacity": 0.3}
            hidden = {"showlegend": False, "hoverinfo": "skip"}
            traces.append(scatter(floats(broken["epoch"]), floats(broken[column]), **group, **fine, **hidden))
        if traces:
            layout = {"hovermode": "x unified", "xaxis": axis("epoch"), "yaxis": axis(title.lower())}
            yield draw(f"{title} by epoch", 340, traces, layout)
