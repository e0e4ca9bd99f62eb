"""Charts of models: their forecasts' skill, returns by quantile, folds, learning curves and other designs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from backtest.inference.means import MeanTest, critical_value, mean_test_lags, overlap_of
from pipelines.columns import COLUMNS
from pipelines.pages import figure as fig
from pipelines.pages.tables import write

SEGMENTS = {"train": ("train", "#9fb3c8"), "valid": ("validation", "#E69F00"), "test": ("test", "#0072B2")}
_CURVES = (("train_loss", "Training loss"), ("valid_rank_ic", "Validation rank IC of the target"))
_SHARES = 15  # largest shares in a chart
_CURVE, _ROW = 300, 17  # heights of a curve and of a row below it, in pixels
_CORRELATION = "mean daily rank IC (Spearman correlation)"


def skill(
    ladder: pl.DataFrame, styles: Mapping[str, fig.LineStyle], delay: int, tests: Mapping[str, MeanTest]
) -> fig.Figure:
    """Draw every model's mean daily IC with its 95% interval, and the true mean's on a simulated market."""
    rows = ladder.with_columns(pl.col("ensemble_ic").fill_nan(None)).reverse()
    error = fig.whiskers(pl.Series([tests[one].upper - tests[one].mean for one in rows["model"]]))
    truth = ladder["truth_ic"].drop_nulls().to_list() if "truth_ic" in ladder.columns else []
    title = f"Mean daily IC on the test, delay {delay}, with 95% intervals"
    x = fig.zero_axis("mean daily correlation of forecast and return")
    layout = _true_mean(float(truth[0])) if truth else {}
    return _bars(title, rows, "ensemble_ic", styles, x, layout, error_x=error)


def _bars(  # noqa: PLR0917  (what is drawn, and how)
    title: str,
    rows: pl.DataFrame,
    column: str,
    styles: Mapping[str, fig.LineStyle],
    x: fig.Trace,
    layout: Mapping[str, Any],
    **look: object,
) -> fig.Figure:
    """One bar per model, the last row at the top."""
    names, colours = [fig.short(one) for one in rows["model"]], [styles[one].colour for one in rows["model"]]
    trace = fig.bar_trace(
        names, rows[column].to_list(), colours, hovertemplate="%{y}: %{x:.4f}<extra></extra>", **look
    )
    return fig.draw_rows(title, names, [trace], x, step=34, **layout)


def share_of_ceiling(
    ladder: pl.DataFrame, styles: Mapping[str, fig.LineStyle], ceiling_ic: float
) -> fig.Figure:
    """Draw each model's test rank IC as a bar, with the rank IC of the true conditional mean as a line."""
    frame = ladder.reverse()
    share = frame["share_of_truth"].cast(pl.Float64).fill_nan(None).to_list()
    text = {"text": ["" if value is None else f"{value:.0%}" for value in share], "textposition": "outside"}
    layout = {"margin": {"l": 56, "r": 34, "t": 28, "b": 44}, **_true_mean(ceiling_ic)}
    title, x = "Test rank IC against that of the true mean", fig.axis(_CORRELATION, zeroline=True)
    return _bars(title, frame, "rank_ic", styles, x, layout, cliponaxis=False, **text)


def _true_mean(value: float) -> dict[str, Any]:
    """A dashed vertical line at the IC of the true conditional mean."""
    look = {"color": fig.INK, "width": 2, "dash": "dash"}
    shape = {"type": "line", "x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper", "line": look}
    place = {"x": value, "y": 1.0, "yref": "paper", "yanchor": "bottom", "xanchor": "right"}
    text = {"showarrow": False, "text": f"true mean {value:.3f}"}
    return {"shapes": [shape], "annotations": [place | text]}


def validation_against_test(ladder: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> fig.Figure:
    """Draw each model's rank IC on validation (hollow) and on test (filled), one row per model."""
    traces: list[fig.Trace] = []
    for row in ladder.reverse().iter_rows(named=True):
        colour, name = styles[row["model"]].colour, fig.short(row["model"])
        edge, hover = {"width": 2, "color": colour}, f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>"
        marker = {"size": 11, "symbol": ["circle-open", "circle"], "color": colour, "line": edge}
        shown = {"text": ["validation", "test"], "hovertemplate": hover}
        ends = [row["valid_rank_ic"], row["rank_ic"]]
        traces.append(fig.scatter(ends, [name, name], "lines+markers", line=edge, marker=marker, **shown))
    title = "Rank IC on validation (hollow) and on test (filled)"
    return fig.draw_rows(title, ladder["model"].to_list(), traces, fig.zero_axis(_CORRELATION))


def cumulative_rank_ic(
    ic_series: pl.DataFrame, styles: Mapping[str, fig.LineStyle], best: str | None = None
) -> fig.Figure:
    """Draw the cumulative sum of daily rank ICs per model; sessions without a rank IC count as 0."""
    parts = fig.by_model(ic_series, styles)
    daily = pl.col("rank_ic").cast(pl.Float64).fill_nan(None)
    traces: list[fig.Trace] = []
    for model, style, rows in parts:
        if rows.select(daily.is_null().all()).item():
            continue  # without any rank IC, a flat line would look like a measured zero
        path = fig.thin(rows.with_columns(y=daily.fill_null(0.0).cum_sum()), fig.points_per_line(len(parts)))
        width = 2.6 if model == best else 1.6
        traces.append(fig.line(path, model, style, "%{y:.2f}", line=style.line(width)))
    y = fig.axis("sum of daily rank ICs", zeroline=True)
    return fig.draw("Cumulative rank IC on the test sessions", 230, traces, fig.over_time(y))


def quantile_returns(quantiles: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> fig.Figure:
    """Draw the mean label by quantile of the forecast, grouped bars per model."""
    traces = []
    for model, style, rows in fig.by_model(quantiles, styles, order="quantile"):
        names, means = [f"Q{quantile}" for quantile in rows["quantile"]], fig.floats(rows["mean_return_bps"])
        traces.append(fig.columns(names, means, model, style.colour, "%{y:.1f} bps"))
    x = fig.axis("quantile of the forecasts of a date (Q1 = lowest)", type="category")
    layout = {"barmode": "group", "bargap": 0.18, "xaxis": x, "yaxis": fig.zero_axis("mean label (bps)")}
    return fig.draw("Mean return by forecast quantile", 230, traces, layout)


def quantile_curves(series: pl.DataFrame, model: str, horizon: int, step: float) -> fig.Figure:
    """Draw each quantile's cumulative return over their mean; every session counts once.

    Labels span ``horizon`` sessions, and one forecast follows another after ``step`` sessions.
    """
    wide = series.sort("date", "quantile").pivot(on="quantile", index="date", values="mean_return_bps")
    names = sorted((name for name in wide.columns if name != "date"), key=float)
    above = pl.col(*names) - pl.mean_horizontal(*names)
    known = above.fill_nan(None).fill_null(0.0)
    paths = wide.select("date", known.cum_sum() / (100.0 * max(horizon / step, 1.0)))
    kept = fig.thin(paths, fig.points_per_line(len(names)))
    colours = [fig.LineStyle(_between(at / max(len(names) - 1, 1))) for at in range(len(names))]
    traces = [
        fig.line(kept.select("date", y=name), f"Q{name}", style, "%{y:.1f}%")
        for name, style in zip(names, colours, strict=True)
    ]
    y = fig.zero_axis("% above the mean quantile, summed")
    return fig.draw(f"Cumulative return by quantile: {model}", 340, traces, fig.over_time(y))


def _between(place: float) -> str:
    """From vermilion (lowest forecasts) over grey to blue (highest)."""
    colours = np.array([[213, 94, 0], [150, 158, 168], [0, 114, 178]], dtype=float)
    mixed = (round(float(np.interp(2 * place, [0, 1, 2], channel))) for channel in colours.T)
    return f"#{''.join(f'{value:02x}' for value in mixed)}"


def ic_decay(
    decay: pl.DataFrame,
    by: str,
    title: str,
    styles: Mapping[str, fig.LineStyle],
    steps: Mapping[str, float],
) -> fig.Figure:
    """Draw the mean rank IC against ``by`` (horizon or delay), with 95% intervals from its t-statistic.

    ``steps`` are the sessions from one forecast of a model to the next.
    """
    order = [str(value) for value in decay[by].unique().sort()]
    traces = [
        fig.scatter(
            [str(value) for value in rows[by]],
            fig.floats(rows["rank_ic"]),
            "lines+markers",
            name=fig.short(model),
            line=style.line(),
            error_y=fig.whiskers(_half_widths(rows, steps[model]), thickness=1, color=style.colour),
            hovertemplate="%{y:.4f}",
        )
        for model, style, rows in fig.by_model(decay, styles, order=by)
    ]
    x = fig.axis(f"{by} (sessions)", type="category", categoryorder="array", categoryarray=order)
    return fig.draw(title, 300, traces, {"xaxis": x, "yaxis": fig.zero_axis("mean daily rank IC")})


def _half_widths(decay: pl.DataFrame, step: float) -> pl.Series:
    """Half-width of the interval of `backtest.inference.means.mean_test` of the rank IC in each row."""
    critical = [
        critical_value(dates, mean_test_lags(dates, overlap_of(horizon, step))) if dates else None
        for dates, horizon in decay.select("dates", "horizon").iter_rows()
    ]
    return pl.Series(critical, dtype=pl.Float64) * (decay["rank_ic"] / decay["rank_ic_t"]).abs()


def sharpe(rows: pl.DataFrame, styles: Mapping[str, fig.LineStyle], title: str) -> fig.Figure:
    """Draw net Sharpe ratios with intervals; probabilistic and deflated values stand at the right."""
    rows = rows.reverse()
    names, value = [fig.short(name) for name in rows["model"]], rows["sharpe_net"]
    error = fig.whiskers(
        (rows["sharpe_upper"] - value).to_list(), (value - rows["sharpe_lower"]).to_list(), color=fig.MUTED
    )
    marker = {"size": 12, "color": [styles[name].colour for name in rows["model"]]}
    hover = {"hovertemplate": "%{y}: %{x:.2f}<extra></extra>"}
    trace = fig.scatter(value.to_list(), names, "markers", marker=marker, error_x=error, **hover)
    at = {"x": 1.0, "xref": "paper", "xanchor": "left", "showarrow": False, "align": "left"}
    shares = rows.select("probabilistic_sharpe", "deflated_sharpe").iter_rows()
    notes = [
        at | {"y": name, "text": f"  P(>0) {write(single, '2')}, deflated {write(deflated, '2')}"}
        for name, (single, deflated) in zip(names, shares, strict=True)
    ]
    layout = {"margin": {"l": 56, "r": 190, "t": 14, "b": 44}, "annotations": notes}
    axis = fig.zero_axis("annualised net Sharpe ratio, 95% bootstrap interval", zerolinecolor=fig.INK)
    return fig.draw_rows(title, names, [trace], axis, step=34, **layout)


def fold_timeline(folds: pl.DataFrame) -> fig.Figure:
    """Draw each fold's train, validation and test sessions as bars; the gaps are purge and embargo."""
    frame = folds.sort("fold")
    traces: list[fig.Trace] = []
    for segment, (title, colour) in SEGMENTS.items():
        spans = [
            (f"fold {row['fold']}", span)
            for row in frame.iter_rows(named=True)
            for span in row.get(f"{segment}_spans") or [(row[f"{segment}_from"], row[f"{segment}_to"])]
        ]
        x = [place for _, (start, end) in spans for place in (str(start), str(end), None)]
        y = [place for name, _ in spans for place in (name, name, None)]
        look = {"name": title, "line": {"color": colour, "width": 12}, "connectgaps": False}
        traces.append(fig.scatter(x, y, **look, hovertemplate=f"%{{y}}, {title}: %{{x}}<extra></extra>"))
    rows, sessions = fig.names_axis(range=[frame.height - 0.4, -0.6]), fig.axis("session", type="date")
    return fig.draw_rows("Walk-forward folds", frame["fold"].to_list(), traces, sessions, yaxis=rows)


def learning_curves(learning: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> Iterator[fig.Figure]:
    """Draw training loss and validation rank IC by epoch: thin lines are single fits, thick ones medians."""
    for column, title in _CURVES:
        traces: list[fig.Trace] = []
        for model, style, rows in fig.by_model(learning, styles, order="epoch"):
            if rows[column].fill_nan(None).is_null().all():
                continue
            group = {"name": fig.short(model), "legendgroup": model}
            value = pl.col(column).cast(pl.Float64).fill_nan(None)
            median = rows.group_by("epoch").agg(value.median(), fits=pl.len()).sort("epoch")
            # fits stop at different epochs: a median over the few longest ones would distort the curve
            median = median.filter(pl.col("fits") * 2 >= pl.col("fits").max())
            ends = (fig.floats(median["epoch"]), fig.floats(median[column]))
            traces.append(fig.scatter(*ends, **group, line=style.line(2.5), hovertemplate="%{y:.4f}"))
            # all fits as one line, which is interrupted after each of them
            fits = rows.partition_by("fold", "seed", maintain_order=True)
            gap = pl.DataFrame(schema={"epoch": pl.Float32, column: pl.Float32}).clear(1)
            single = [fit.select("epoch", column).cast(pl.Float32) for fit in fits]
            broken = pl.concat([part for fit in single for part in (fit, gap)])
            fine = {"line": {"color": style.colour, "width": 0.8}, "opacity": 0.3}
            hidden = {"showlegend": False, "hoverinfo": "skip"}
            traces.append(
                fig.scatter(
                    fig.floats(broken["epoch"]), fig.floats(broken[column]), **group, **fine, **hidden
                )
            )
        if traces:
            last = int(learning["epoch"].max())  # type: ignore[arg-type]  # there are epochs
            whole = fig.axis("epoch", tick0=0, dtick=max(1, -(-last // 10)))  # no epoch 0.4
            layout = {"hovermode": "x unified", "xaxis": whole, "yaxis": fig.axis(title.lower())}
            yield fig.draw(f"{title} by epoch", 340, traces, layout)


def specification_curve(
    designs: pl.DataFrame, choices: Mapping[str, Sequence[str]], figure: str
) -> fig.Figure:
    """Draw the sorted results of designs with their intervals, and a dot for every value that a design takes.

    A specification curve (Simonsohn, Simmons and Nelson 2020).
    """
    lower, upper = (f"{figure.removesuffix('_net')}_{end}" for end in ("lower", "upper"))
    known = designs.sort(figure)
    place_D, y, name = np.arange(1, known.height + 1), known[figure], COLUMNS[figure].label
    words = [[f"{fig.safe(path)} {fig.safe(row[path])}" for path in choices] for row in known.to_dicts()]
    error = fig.whiskers(known[upper] - y, y - known[lower], color=fig.ZERO, thickness=1, width=0)
    look = {"marker": {"size": 5, "color": fig.PALETTE[0]}, "error_y": error}
    hover = f"{name} %{{y:.4~g}}<br>%{{text}}<extra></extra>"
    text = list(map("<br>".join, words))
    traces = [fig.scatter(place_D, y, "markers", **look, text=text, hovertemplate=hover)]
    rows: list[str] = []
    for at, (path, values) in enumerate(choices.items()):
        square = {"size": 4, "symbol": "square", "color": fig.PALETTE[at % 2]}
        x, names = list[int](), list[str]()
        for value in values:
            rows.append(f"{fig.short(path, 40)} = {fig.short(value, 20)}")
            taken = place_D[(known[path] == value).to_numpy()].tolist()
            x += taken
            names += rows[-1:] * len(taken)
        traces.append(fig.scatter(x, names, "markers", yaxis="y2", marker=square, hoverinfo="skip"))
    height = _CURVE + _ROW * len(rows)
    below = _ROW * len(rows) / height
    layout = {
        "xaxis": fig.axis("designs", anchor="y2", zeroline=False),
        "yaxis": fig.zero_axis(name, domain=[below + 0.02, 1.0]),
        "yaxis2": fig.names_axis(
            domain=[0.0, below],
            categoryarray=rows,
            categoryorder="array",
            autorange="reversed",
            gridcolor=fig.GRID,
        ),
    }
    return fig.draw(f"Specification curve: {name}", height, traces, layout)


def share_bars(shares: pl.DataFrame, outcome: str) -> fig.Figure:
    """Draw the largest shares in the variance of a result with their intervals."""
    own = shares.head(_SHARES).reverse().with_columns(pl.col("share", "share_lower", "share_upper") * 100)
    up, down = own["share_upper"] - own["share"], own["share"] - own["share_lower"]
    sides = {"error_x": fig.whiskers(up, down), "hovertemplate": "%{y}: %{x:.1f}%<extra></extra>"}
    names = [fig.short(effect, 60) for effect in own["effect"]]
    bars = fig.bar_trace(names, own["share"], fig.PALETTE[0], **sides)
    return fig.draw_rows(f"What moves the {outcome}", names, [bars], fig.zero_axis("% of the variance"))
