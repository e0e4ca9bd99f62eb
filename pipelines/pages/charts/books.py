"""Charts of the books: value and drawdown, costs, rolling measures, exposures, contributions and capacity."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backtest.analysis.rolling import Z, rolling_mean_ic, rolling_risk
from pipelines.pages import figure as fig

LOG_NAV_RATIO = 8.0  # ratio of the largest to the smallest NAV above which the axis is logarithmic
MAX_NAMES = 10  # firms with the largest gains, and as many with the largest losses
MAX_SECTORS = 15  # with the largest absolute values; the others are added up
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # of benchmarks
_COSTS = {
    "half_spread": ("half-spread", "#33475b"),
    "commission": ("commission", "#7d93a8"),
    "impact": ("impact", "#a8324a"),
    "borrow": ("borrow", "#c9a227"),
    "financing": ("financing", "#5b8c5a"),
}


def net_asset_value(  # noqa: PLR0917  # data, looks, and what is shown
    equity: pl.DataFrame,
    styles: Mapping[str, fig.LineStyle],
    book: str,
    best: str | None,
    benchmarks: pl.DataFrame | None = None,
    title: str = "Net asset value and drawdown",
) -> fig.Figure:
    """Draw one book's NAV and drawdown per model, net and gross of costs; both at once for ``best``.

    ``benchmarks`` are rows of the table ``benchmark_series`` of one model, drawn in grey.
    """
    parts = fig.by_model(equity.filter(pl.col("book") == book), styles)
    if benchmarks is not None and benchmarks.height:
        nav, name = pl.col("nav_benchmark"), pl.col("benchmark") + " (benchmark)"
        rows = benchmarks.filter(pl.col("book") == book).select(
            "date", model=name, nav_net=nav, nav_gross=nav
        )
        names = rows["model"].unique(maintain_order=True)
        dashes = itertools.cycle(_DASHES)
        looks = {one: fig.LineStyle(fig.MUTED, dash) for one, dash in zip(names, dashes, strict=False)}
        parts += fig.by_model(rows, looks)
    limit = fig.points_per_line(4 * len(parts))
    traces: list[fig.Trace] = []
    views: dict[str, list[int]] = {"net of costs": [], "before costs": []}
    extremes: list[float] = []
    for kind, view in zip(("nav_net", "nav_gross"), views, strict=True):
        shown = view == "net of costs"
        for model, style, rows in parts:
            path = rows.select("date", y=pl.col(kind).cast(pl.Float64).fill_nan(None)).drop_nulls("y")
            if path.is_empty():
                continue
            path = fig.thin(path.with_columns(drawdown=pl.col("y") / pl.col("y").cum_max() - 1), limit)
            extremes += path["y"].to_list()
            group: dict[str, Any] = {"legendgroup": model, "visible": shown}
            width = 2.6 if model == best else 1.6
            views[view] += [len(traces), len(traces) + 1]
            traces.append(fig.line(path, model, style, "%{y:.3f}", **group, line=style.line(width)))
            below = {**group, "yaxis": "y2", "showlegend": False, "line": style.line(1.2)}
            traces.append(fig.line(path.select("date", y="drawdown"), model, style, "%{y:.1%}", **below))
            if model == best and not shown:
                views["net of costs"].append(len(traces))
                dotted = {"color": style.colour, "dash": "dot", "width": 1.4}
                of_group = {"legendgroup": "before costs", "line": dotted, "visible": True}
                named = {"name": f"{fig.short(model)}, before costs"}
                traces.append(fig.line(path, model, style, "%{y:.3f}", **of_group) | named)
    wide = bool(extremes) and min(extremes) > 0 and max(extremes) / min(extremes) > LOG_NAV_RATIO
    scale = ("NAV, log scale", "log") if wide else ("NAV (1 at the start)", "linear")
    layout = fig.over_time(fig.axis(scale[0], type=scale[1], domain=[0.36, 1.0])) | {
        "xaxis": fig.axis("", anchor="y2"),
        "yaxis2": fig.axis("drawdown", tickformat=".1~%", domain=[0.0, 0.3], nticks=4),
    }
    shown_by = {view: tuple(indices) for view, indices in views.items()}
    return fig.draw(f"{title}: {book}", 480, traces, layout, shown_by)


def active_value(equity: pl.DataFrame, benchmarks: pl.DataFrame, book: str) -> fig.Figure:
    """Draw the compounded active return of one model's book and its drawdown, one line a benchmark."""
    of_book = pl.col("book") == book
    joined = benchmarks.filter(of_book).join(equity.filter(of_book), on="date").sort("benchmark", "date")
    net, gross, other = (
        pl.col(name) / pl.col(name).shift(1, fill_value=1.0).over("benchmark")
        for name in ("nav_net", "nav_gross", "nav_benchmark")
    )
    active = {"nav_net": 1.0 + net - other, "nav_gross": 1.0 + gross - other}
    compounded = {name: growth.cum_prod().over("benchmark") for name, growth in active.items()}
    frame = joined.select("date", "book", model="benchmark", **compounded)
    names = benchmarks["benchmark"].unique(maintain_order=True).to_list()
    return net_asset_value(frame, fig.model_styles(names), book, None, title="Active return, compounded")


def cost_kinds(costs: pl.DataFrame) -> dict[str, str]:
    """Columns of a cost table that are not zero throughout -> their titles."""
    paid = {
        name: title
        for name, (title, _) in _COSTS.items()
        if name in costs.columns and costs[name].fill_nan(0.0).abs().sum() > 0
    }
    return paid or {"half_spread": _COSTS["half_spread"][0]}


def cost_breakdown(costs: pl.DataFrame, styles: Mapping[str, fig.LineStyle], book: str) -> fig.Figure:
    """Draw the costs of one book per year by kind, one stacked bar per model."""
    order = [model for model in styles if model in set(costs["model"].to_list())]
    frame = pl.DataFrame({"model": order[::-1]}).join(
        costs.filter(pl.col("book") == book), on="model", maintain_order="left"
    )
    names, hover = [fig.short(model) for model in frame["model"]], ": %{x:.0f} bps per year<extra></extra>"
    traces = [
        fig.bar_trace(
            names,
            fig.floats(frame[kind]),
            _COSTS[kind][1],
            name=title,
            hovertemplate=f"%{{y}}, {title}{hover}",
        )
        for kind, title in cost_kinds(costs).items()
    ]
    return fig.draw_rows(
        f"Cost per year: {book}", names, traces, fig.axis("bps of NAV per year"), barmode="stack"
    )


def trading(book: pl.DataFrame, model: str, style: fig.LineStyle, window: int) -> fig.Figure:
    """Draw rolling means of turnover and of unfilled orders (one-way fractions of NAV) of one book."""
    traces, unfilled = [], fig.LineStyle(fig.MUTED, "dot")
    for name, title, look in (("turnover", "traded", style), ("unfilled", "not filled", unfilled)):
        mean = pl.col(name).cast(pl.Float64).rolling_mean(window, min_samples=max(1, window // 2))
        path = fig.thin(book.select("date", y=100 * mean).drop_nulls("y"), fig.points_per_line(2))
        traces.append(fig.line(path, f"{fig.short(model)}, {title}", look, "%{y:.2f}%"))
    title = f"Turnover and unfilled orders, mean of {window} sessions"
    return fig.draw(
        title, 260, traces, fig.over_time(fig.axis("% of NAV / session, one-way", rangemode="tozero"))
    )


def rolling(
    equity: pl.DataFrame,
    ic_series: pl.DataFrame,
    styles: Mapping[str, fig.LineStyle],
    shown: tuple[str, ...],
    *,
    window: int,
    lags: int,
    year: float,
) -> Iterator[fig.Figure]:
    """Draw rolling Sharpe ratio, volatility and rank IC; the first of the models ``shown`` has a band."""
    if not equity.is_empty():
        risk = {model: rolling_risk(rows, window, year) for model, _, rows in fig.by_model(equity, styles)}
        for name, title, label, form in (
            ("sharpe", "net Sharpe ratio", "Sharpe ratio (annual)", ".2f"),
            ("volatility", "volatility net of costs", "volatility (annual)", ".1%"),
        ):
            paths = {
                model: rows.select("date", y=name, error=f"{name}_error") for model, rows in risk.items()
            }
            yield _with_band(f"Rolling {title}, {window} sessions", label, form, paths, styles, shown)
    if not ic_series.is_empty():
        paths = {
            model: rolling_mean_ic(rows, window, lags).rename({"rank_ic": "y"})
            for model, _, rows in fig.by_model(ic_series, styles)
        }
        title = f"Rolling rank IC, {window} sessions"
        yield _with_band(title, "mean daily rank IC", ".3f", paths, styles, shown)


def _with_band(  # noqa: PLR0917
    title: str,
    label: str,
    form: str,
    paths: Mapping[str, pl.DataFrame],
    styles: Mapping[str, fig.LineStyle],
    shown: tuple[str, ...],
) -> fig.Figure:
    traces: list[fig.Trace] = []
    for model, frame in paths.items():
        style, chosen = styles[model], model == shown[0]
        path = fig.thin(frame.drop_nulls("y"), fig.points_per_line(len(paths)))
        if path.is_empty():
            continue
        if chosen:
            traces.append(fig.band(path, Z * path["error"], model, style))
        look = {"line": style.line(2.4 if chosen else 1.4), "legendgroup": model}
        group = look | {"visible": True if model in shown else "legendonly"}
        traces.append(fig.line(path, model, style, f"%{{y:{form}}}", **group))
    percent = {"tickformat": ".1~%"} if form.endswith("%") else {}
    return fig.draw(title, 260, traces, fig.over_time(fig.zero_axis(label, **percent)))


def exposure_ranges(frame: pl.DataFrame, title: str, label: str) -> fig.Figure:
    """Draw mean exposure as a dot, and its range over sessions as a bar, one row per sector or style."""
    rows = frame.reverse()
    names = [fig.short(key) for key in rows["key"]]
    spans = [end for low, high in rows.select("low", "high").iter_rows() for end in (low, high, None)]
    places = [place for name in names for place in (name, name, None)]
    ranges = {"name": "lowest to highest session", "line": {"color": "#9fb3c8", "width": 7}}
    dot = {"name": "mean", "marker": {"color": fig.INK, "size": 8, "symbol": "diamond"}}
    traces = [
        fig.scatter(spans, places, **ranges, hoverinfo="skip"),
        fig.scatter(
            fig.floats(rows["mean"]), names, "markers", **dot, hovertemplate="%{y}: %{x:.3f}<extra></extra>"
        ),
    ]
    ends = [0.0, *(value for name in ("mean", "low", "high") for value in rows[name].drop_nulls())]
    room = 0.05 * (max(ends) - min(ends) or 1.0)
    x = fig.zero_axis(label, range=[min(ends) - room, max(ends) + room])
    return fig.draw_rows(title, names, traces, x, step=20)


def contributions(frame: pl.DataFrame, title: str) -> fig.Figure:
    """Draw net contributions as bars, the largest at the top; the sign also shows in the colour."""
    rows, hover = frame.reverse(), {"hovertemplate": "%{y}: %{x:.2f}%<extra></extra>"}
    names, net = [fig.short(key) for key in rows["key"]], (100 * rows["net"]).to_list()
    colours = [fig.BLUE if value >= 0 else fig.VERMILION for value in net]
    trace = fig.bar_trace(names, net, colours, **hover)
    return fig.draw_rows(title, names, [trace], fig.zero_axis("% of starting capital"), step=20)


def largest_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the names with the largest gains and losses, and add the others up, so that the sum stays."""
    rows = frame.select("key", "gross", "cost", "net").sort("net", descending=True)
    if rows.height <= 2 * MAX_NAMES + 1:
        return rows
    rest = rows.slice(MAX_NAMES, rows.height - 2 * MAX_NAMES)
    return pl.concat([rows.head(MAX_NAMES), _added_up(rest, "names"), rows.tail(MAX_NAMES)])


def largest_sectors(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the sectors with the largest absolute net contributions; add the others up in the last row."""
    kept, rest = _largest(frame.select("key", "gross", "cost", "net"), "net")
    return pl.concat([kept.sort("net", descending=True), _added_up(rest, "sectors")])


def largest_exposures(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Keep the sectors with the largest absolute means; the sum of the others has no range. Return both."""
    kept, rest = _largest(frame.select("key", "mean", "low", "high"), "mean")
    return pl.concat([kept, _added_up(rest.select("key", "mean"), "sectors")], how="diagonal"), rest


def _largest(rows: pl.DataFrame, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows with the largest absolute values, and the others; a single other row is kept as well."""
    rows = rows.sort(pl.col(name).abs(), descending=True)
    count = MAX_SECTORS if rows.height > MAX_SECTORS + 1 else rows.height
    return rows.head(count), rows.slice(count)


def _added_up(rest: pl.DataFrame, noun: str) -> pl.DataFrame:
    """One row with the sum of several, named by their number; no row for none."""
    name = pl.lit(f"{rest.height:,} other {noun}").alias("key")
    return rest.select(name, pl.exclude("key").sum()).head(rest.height)


def capacity_curve(frame: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> fig.Figure:
    """Draw the net Sharpe ratio against the capital, which is on a logarithmic axis."""
    capital, traces = frame["capital"].cast(pl.Float64).to_list(), []
    for model, style, rows in fig.by_model(frame, styles, order="capital"):
        ends = (rows["capital"].cast(pl.Float64).to_list(), rows["sharpe_net"].cast(pl.Float64).to_list())
        look = {"name": fig.short(model), "line": style.line(), "hovertemplate": "%{y:.2f} at %{x:.3s}"}
        traces.append(fig.scatter(*ends, "lines+markers", **look))
    decades = range(math.floor(math.log10(min(capital))), math.ceil(math.log10(max(capital))) + 1)
    ticks = {"tickvals": [10**power for power in decades], "ticktext": _amounts(decades)}
    layout = {
        "xaxis": fig.axis("capital (currency of the prices, log scale)", type="log", **ticks),
        "yaxis": fig.zero_axis("net Sharpe ratio (annual)"),
    }
    return fig.draw("Net Sharpe ratio by capital", 300, traces, layout)


def _amounts(powers: Sequence[int]) -> list[str]:
    """Powers of ten as amounts: 10k, 1M, 100B."""
    steps = [max(0, min(power // 3 * 3, 12)) for power in powers]
    return [
        f"{10 ** (power - step):g}{'kMBT'[step // 3 - 1] if step else ''}"
        for power, step in zip(powers, steps, strict=True)
    ]
