"""Charts of forecasts: validation against test, cumulative IC, and returns by quantile."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.charts.series import by_model, line, rank_ic
from pipelines.pages.theme import Style, axis, points_per_line, short, thin


def validation_against_test(ladder: pl.DataFrame, styles: Mapping[str, Style], delay: int) -> Figure:
    """Draw each model's rank IC on validation (hollow) and on test (filled), one row per model."""
    frame = ladder.filter(pl.col("delay") == delay).reverse()
    traces: list[Trace] = []
    for row in frame.iter_rows(named=True):
        colour = styles[row["model"]].colour
        name = short(row["model"])
        marker = {"size": 11, "symbol": ["circle-open", "circle"], "color": colour}
        traces.append(
            {
                "type": "scatter",
                "x": [row["valid_rank_ic"], row["rank_ic"]],
                "y": [name, name],
                "mode": "lines+markers",
                "line": {"color": colour, "width": 2},
                "marker": marker | {"line": {"width": 2, "color": colour}},
                "text": ["validation", "test"],
                "hovertemplate": f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>",
            }
        )
    return draw(
        "Rank IC on validation (hollow) and on test (filled)",
        80 + 28 * frame.height,
        traces,
        {
            "xaxis": axis("mean daily rank IC (Spearman correlation)", zeroline=True, zerolinewidth=2),
            "yaxis": axis("", type="category"),
        },
    )


def cumulative_rank_ic(
    ic_series: pl.DataFrame, styles: Mapping[str, Style], best: str | None = None
) -> Figure:
    """Draw the cumulative sum of daily rank ICs per model; sessions without a rank IC count as 0."""
    parts = by_model(ic_series, styles)
    limit = points_per_line(len(parts))
    traces: list[Trace] = []
    for model, style, rows in parts:
        if rows.select(rank_ic().is_null().all()).item():
            continue  # without any rank IC, a flat line would look like a measured zero
        path = thin(rows.with_columns(y=rank_ic().fill_null(0.0).cum_sum()), limit)
        colour = {"color": style.colour, "dash": style.dash, "width": 2.6 if model == best else 1.6}
        traces.append(line(path, model, style, "%{y:.2f}", line=colour))
    return draw(
        "Cumulative rank IC on the test sessions",
        340,
        traces,
        {
            "hovermode": "x unified",
            "xaxis": axis(""),
            "yaxis": axis("sum of daily rank ICs", zeroline=True),
        },
    )


def quantile_returns(quantiles: pl.DataFrame, styles: Mapping[str, Style]) -> Figure:
    """Draw the mean label by quantile of the forecast, grouped bars per model."""
    traces: list[Trace] = []
    for model, style, rows in by_model(quantiles, styles, order="quantile"):
        traces.append(
            {
                "type": "bar",
                "x": [f"Q{quantile}" for quantile in rows["quantile"].to_list()],
                "y": floats(rows["mean_return_bps"]),
                "name": short(model),
                "marker": {"color": style.colour},
                "hovertemplate": f"{short(model)}, %{{x}}: %{{y:.1f}} bps<extra></extra>",
            }
        )
    return draw(
        "Mean return by forecast quantile",
        340,
        traces,
        {
            "barmode": "group",
            "bargap": 0.18,
            "xaxis": axis("quantile of the forecasts of a date (Q1 = lowest)", type="category"),
            "yaxis": axis("mean label (bps)", zeroline=True, zerolinewidth=2),
        },
    )


def quantile_curves(series: pl.DataFrame, model: str, horizon: int) -> Figure:
    """Draw the cumulative return of each quantile of one model's forecasts, less the mean of the quantiles.

    The mean label of a date covers ``horizon`` sessions and is divided by it, so that overlapping labels are
    counted once.
    """
    wide = series.sort("date", "quantile").pivot(on="quantile", index="date", values="mean_return_bps")
    names = sorted((name for name in wide.columns if name != "date"), key=float)
    mean = pl.mean_horizontal(*names)
    paths = wide.select(
        "date",
        *(
            ((pl.col(n) - mean).fill_nan(None).fill_null(0.0).cum_sum() / (100.0 * horizon)).alias(n)
            for n in names
        ),
    )
    kept = thin(paths, points_per_line(len(names)))
    traces = []
    for place, name in enumerate(names):
        style = Style(_quantile_colour(place / max(len(names) - 1, 1)), "solid")
        path = kept.select("date", y=name)
        traces.append(line(path, f"Q{name}", style, "%{y:.1f}%"))
    return draw(
        f"Cumulative return by quantile: {model}",
        340,
        traces,
        {
            "hovermode": "x unified",
            "xaxis": axis(""),
            "yaxis": axis("% above the mean quantile, summed", zeroline=True, zerolinewidth=2),
        },
    )


def ic_decay(decay: pl.DataFrame, by: str, title: str, styles: Mapping[str, Style]) -> Figure:
    """Draw the mean rank IC against the horizon or the delay, with 95% intervals from its t-statistic.

    Parameters
    ----------
    decay
        model, rank_ic, rank_ic_t, and the column ``by``, with one row per model and value of it.
    by
        horizon or delay; distances on the axis are those of its places, not of its values.
    title
        Title of the figure.
    styles
        Model -> style.
    """
    order = [str(value) for value in decay[by].unique().sort().to_list()]
    traces: list[Trace] = []
    for model, style, rows in by_model(decay, styles, order=by):
        half = 1.96 * (rows["rank_ic"] / rows["rank_ic_t"]).abs()
        traces.append(
            {
                "type": "scatter",
                "x": [str(value) for value in rows[by].to_list()],
                "y": floats(rows["rank_ic"]),
                "mode": "lines+markers",
                "name": short(model),
                "line": {"color": style.colour, "width": 2, "dash": style.dash},
                "error_y": {"type": "data", "array": floats(half), "thickness": 1, "width": 3},
                "hovertemplate": "%{y:.4f}",
            }
        )
    return draw(
        title,
        300,
        traces,
        {
            "xaxis": axis(f"{by} (sessions)", type="category", categoryorder="array", categoryarray=order),
            "yaxis": axis("mean daily rank IC", zeroline=True, zerolinewidth=2),
        },
    )


def _quantile_colour(place: float) -> str:
    """From vermilion (lowest forecasts) over grey to blue (highest)."""
    ends = ((213, 94, 0), (150, 158, 168), (0, 114, 178))
    low, high = (ends[0], ends[1]) if place < 0.5 else (ends[1], ends[2])
    share = 2 * place if place < 0.5 else 2 * place - 1
    mixed = (round(a + share * (b - a)) for a, b in zip(low, high, strict=True))
    return f"#{''.join(f'{value:02x}' for value in mixed)}"
