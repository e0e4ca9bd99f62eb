"""Charts of the books: value and drawdown, returns, costs, rolling measures, exposures and capacity."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import norm

from backtest.analysis.history import Z, rolling_mean_ic, rolling_risk, rolling_window
from pipelines.pages import figure as fig

LOG_NAV_RATIO = 8.0  # ratio of the largest to the smallest NAV above which the axis is logarithmic
MAX_NAMES = 10  # firms with the largest gains, and as many with the largest losses
MAX_SECTORS = 15  # with the largest absolute values; the others are added up
_PLURAL = {"sector": "sectors", "industry": "industries"}
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
        nav = pl.col("nav_benchmark")
        rows = benchmarks.filter(pl.col("book") == book)
        rows = rows.select("date", model="benchmark", nav_net=nav, nav_gross=nav)
        parts += _benchmark_lines(rows)
    limit = fig.points_per_line(4 * len(parts))
    traces: list[fig.Trace] = []
    views: dict[str, list[int]] = {"net of costs": [], "before costs": []}
    extremes: list[float] = []
    for kind, view in zip(("nav_net", "nav_gross"), views, strict=True):
        shown = view == "net of costs"
        for model, style, rows in parts:
            path = _value_path(rows, kind, limit)
            if path.is_empty():
                continue
            extremes += path["y"].to_list()
            views[view] += [len(traces), len(traces) + 1]
            traces += _value_and_drawdown(path, model, style, 2.6 if model == best else 1.6, visible=shown)
            if model == best and not shown:
                views["net of costs"].append(len(traces))
                dotted = {"color": style.colour, "dash": "dot", "width": 1.4}
                of_group = {"legendgroup": "before costs", "line": dotted, "visible": True}
                named = {"name": f"{fig.short(model)}, before costs"}
                traces.append(fig.line(path, model, style, "%{y:.3f}", **of_group) | named)
    layout = _value_above_drawdown(extremes)
    shown_by = {view: tuple(indices) for view, indices in views.items()}
    return fig.draw(f"{title}: {book}", 480, traces, layout, shown_by)


def _value_path(rows: pl.DataFrame, name: str, limit: int = fig.MAX_POINTS) -> pl.DataFrame:
    """Columns date, y and drawdown of a NAV, thinned; the starting capital of 1 is the first peak."""
    path = rows.select("date", y=pl.col(name).cast(pl.Float64).fill_nan(None)).drop_nulls("y")
    return fig.thin(
        path.with_columns(drawdown=pl.col("y") / pl.col("y").cum_max().clip(lower_bound=1.0) - 1), limit
    )


def _value_and_drawdown(
    path: pl.DataFrame, name: str, style: fig.LineStyle, width: float, **changes: object
) -> list[fig.Trace]:
    """Two lines that are switched together."""
    group = {"legendgroup": name, **changes}
    below = {**group, "yaxis": "y2", "showlegend": False, "line": style.line(1.2)}
    return [
        fig.line(path, name, style, "%{y:.3f}", **group, line=style.line(width)),
        fig.line(path.select("date", y="drawdown"), name, style, "%{y:.1%}", **below),
    ]


def _benchmark_lines(rows: pl.DataFrame) -> list[tuple[str, fig.LineStyle, pl.DataFrame]]:
    """Split rows whose ``model`` is a benchmark, each with a name and a grey line of its own."""
    rows = rows.with_columns(pl.col("model") + " (benchmark)")
    dashes = itertools.cycle(_DASHES)
    names = rows["model"].unique(maintain_order=True)
    return fig.by_model(
        rows, {one: fig.LineStyle(fig.MUTED, dash) for one, dash in zip(names, dashes, strict=False)}
    )


def _value_above_drawdown(values: Sequence[float]) -> dict[str, Any]:
    """Layout of a chart of NAV with the drawdown below it."""
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_NAV_RATIO
    scale = ("NAV, log scale", "log") if wide else ("NAV (1 at the start)", "linear")
    return fig.over_time(fig.axis(scale[0], type=scale[1], domain=[0.36, 1.0])) | {
        "xaxis": fig.axis("", anchor="y2"),
        "yaxis2": fig.axis("drawdown", tickformat=".1~%", domain=[0.0, 0.3], nticks=4),
    }


def against_benchmarks(
    equity: pl.DataFrame, benchmarks: pl.DataFrame, model: str, style: fig.LineStyle
) -> fig.Figure:
    """Draw one model's book, net and before costs, and the benchmarks, with the drawdown of each below.

    ``equity`` and ``benchmarks`` (rows of ``benchmark_series``, or none) are those of one model and book.
    """
    parts = [(model, style, equity.sort("date").select("date", y="nav_net"))]
    if benchmarks.height:
        rows = benchmarks.select("date", model="benchmark", y="nav_benchmark")
        parts += _benchmark_lines(rows)
    traces, extremes = list[fig.Trace](), list[float]()
    gross = fig.LineStyle(style.colour, "dot")
    parts.insert(1, (f"{model}, before costs", gross, equity.sort("date").select("date", y="nav_gross")))
    for name, look, rows in parts:
        path = _value_path(rows, "y")
        extremes += path["y"].to_list()
        both = _value_and_drawdown(path, name, look, 2.6 if name == model else 1.4)
        traces += both[:1] if look is gross else both  # its drawdown would hide that after costs
    return fig.draw("Value and drawdown", 330, traces, _value_above_drawdown(extremes))


def annual_returns(years: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> fig.Figure:
    """Draw the returns of calendar years (columns year, name and net) as bars, one colour a name."""
    traces = []
    for (name,), rows in years.group_by("name", maintain_order=True):
        of_years, net = rows["year"].cast(pl.String).to_list(), (100 * rows["net"]).to_list()
        traces.append(fig.columns(of_years, net, name, styles[name].colour, "%{y:.1f}%"))
    axes = {"xaxis": fig.axis("", type="category", tickangle=0), "yaxis": fig.zero_axis("% in the year")}
    return fig.draw("Return by year", 260, traces, {"barmode": "group", "bargap": 0.25, **axes})


def return_distribution(returns: pl.Series, style: fig.LineStyle) -> fig.Figure:
    """Draw how often net returns of sessions fall into bins, and a normal distribution of their moments.

    Bins are as wide as Freedman and Diaconis (1981) advise, ``2 IQR / n^(1/3)``, between 15 and 60 of them.
    """
    percent = 100.0 * returns.drop_nulls().to_numpy()
    spread = np.subtract(*np.percentile(percent, [75, 25]))
    range_of = float(np.ptp(percent)) or 1.0
    step = 2.0 * spread / len(percent) ** (1 / 3)
    bins = int(np.clip(math.ceil(range_of / step) if step > 0 else 0, 15, 60))
    count, edges = np.histogram(percent, bins=bins)
    middle, width = (edges[:-1] + edges[1:]) / 2, edges[1] - edges[0]
    mean, deviation = percent.mean(), percent.std(ddof=1) or 1.0
    normal = len(percent) * width * norm.pdf(middle, mean, deviation)
    bars = {"type": "bar", "x": middle, "y": count, "width": width, "name": "sessions"}
    bars |= {
        "marker": {"color": style.colour},
        "hovertemplate": "%{y} sessions around %{x:.2f}%<extra></extra>",
    }
    look = {"name": "normal distribution", "line": {"color": fig.INK, "width": 1.6, "dash": "dash"}}
    curve = fig.scatter(middle, normal, **look, hovertemplate="%{y:.1f}<extra>normal</extra>")
    layout = {"bargap": 0.02, "xaxis": fig.axis("net return of a session (%)"), "yaxis": fig.axis("sessions")}
    return fig.draw("Distribution of the returns of sessions", 260, [bars, curve], layout)


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
    traces = []
    for kind, title in cost_kinds(costs).items():
        look = {"name": title, "hovertemplate": f"%{{y}}, {title}{hover}"}
        traces.append(fig.bar_trace(names, fig.floats(frame[kind]), _COSTS[kind][1], **look))
    x = fig.axis("bps of NAV per year")
    return fig.draw_rows(f"Cost per year: {book}", names, traces, x, barmode="stack")


def trading(book: pl.DataFrame, model: str, style: fig.LineStyle, window: int) -> fig.Figure:
    """Draw rolling means of turnover and of unfilled orders (one-way fractions of NAV) of one book."""
    traces, unfilled = [], fig.LineStyle(fig.MUTED, "dot")
    for name, title, look in (("turnover", "traded", style), ("unfilled", "not filled", unfilled)):
        mean = pl.col(name).cast(pl.Float64).rolling_mean(window, min_samples=max(1, window // 2))
        path = fig.thin(book.select("date", y=100 * mean).drop_nulls("y"), fig.points_per_line(2))
        traces.append(fig.line(path, f"{fig.short(model)}, {title}", look, "%{y:.2f}%"))
    title = f"Turnover and unfilled orders, mean of {window} sessions"
    y = fig.axis("% of NAV / session, one-way", rangemode="tozero")
    return fig.draw(title, 260, traces, fig.over_time(y))


def rolling(
    equity: pl.DataFrame,
    ic_series: pl.DataFrame,
    styles: Mapping[str, fig.LineStyle],
    shown: tuple[str, ...],
    *,
    window: int,
    overlaps: Mapping[str, int],
    year: float,
) -> Iterator[fig.Figure]:
    """Draw rolling Sharpe ratio, volatility and rank IC; the first of the models ``shown`` has a band.

    ``window`` is in sessions; that of the ICs is in forecasts, ``overlaps`` of which share data, by model. It
    fits the first model.
    """
    if not equity.is_empty():
        risk = {model: rolling_risk(rows, window, year) for model, _, rows in fig.by_model(equity, styles)}
        for name, title, label, form in (
            ("sharpe", "net Sharpe ratio", "Sharpe ratio (annual)", ".2f"),
            ("volatility", "volatility net of costs", "volatility (annual)", ".1%"),
        ):
            paths = {
                model: rows.select("date", y=name, half=Z * pl.col(f"{name}_error"))
                for model, rows in risk.items()
            }
            yield _with_band(f"Rolling {title}, {window} sessions", label, form, paths, styles, shown)
    if not ic_series.is_empty():
        window = rolling_window(ic_series.filter(pl.col("model") == shown[0]).height)
        paths = {
            model: rolling_mean_ic(rows, window, overlaps[model]).rename({"rank_ic": "y"})
            for model, _, rows in fig.by_model(ic_series, styles)
        }
        title = f"Rolling rank IC, {window} forecasts"
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
        if chosen and not (known := path.drop_nulls("half")).is_empty():
            traces.append(fig.band(known, known["half"], model, style))
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
    dot["hovertemplate"] = "%{y}: %{x:.3f}<extra></extra>"
    traces = [
        fig.scatter(spans, places, **ranges, hoverinfo="skip"),
        fig.scatter(fig.floats(rows["mean"]), names, "markers", **dot),
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


def largest_sectors(frame: pl.DataFrame, group: str) -> pl.DataFrame:
    """Keep the groups with the largest absolute net contributions; add the others up in the last row."""
    kept, rest = _largest(frame.select("key", "gross", "cost", "net"), "net")
    return pl.concat([kept.sort("net", descending=True), _added_up(rest, _PLURAL[group])])


def largest_exposures(frame: pl.DataFrame, group: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Keep the groups with the largest absolute means; the sum of the others has no range. Return both."""
    kept, rest = _largest(frame.select("key", "mean", "low", "high"), "mean")
    others = _added_up(rest.select("key", "mean"), _PLURAL[group])
    return pl.concat([kept, others], how="diagonal"), rest


def _largest(rows: pl.DataFrame, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows with the largest absolute values, and the others; a single other row is kept as well."""
    rows = rows.sort(pl.col(name).abs(), descending=True)
    count = MAX_SECTORS if rows.height > MAX_SECTORS + 1 else rows.height
    return rows.head(count), rows.slice(count)


def _added_up(rest: pl.DataFrame, noun: str) -> pl.DataFrame:
    """One row with the sum of several, named by their number; no row for none."""
    name = pl.lit(f"{rest.height:,} other {noun}").alias("key")
    return rest.select(name, pl.exclude("key").sum()).head(rest.height)


def predicted_risk(series: pl.DataFrame) -> fig.Figure:
    """Draw the predicted volatility of a book and its two parts through time."""
    parts = {"volatility": "all", "factor_volatility": "factors", "specific_volatility": "specific"}
    traces = []
    for (name, words), colour in zip(parts.items(), fig.PALETTE, strict=False):
        percent = series.select("date", y=pl.col(name) * 100)
        traces.append(fig.line(percent, words, fig.LineStyle(colour), "%{y:.1f}%"))
    y = fig.axis("% per year", rangemode="tozero")
    return fig.draw("Predicted volatility", 300, traces, fig.over_time(y))


def capacity_curve(frame: pl.DataFrame, styles: Mapping[str, fig.LineStyle]) -> fig.Figure:
    """Draw the net Sharpe ratio against the capital, which is on a logarithmic axis."""
    capital, traces = frame["capital"].cast(pl.Float64).to_list(), []
    for model, style, rows in fig.by_model(frame, styles, order="capital"):
        ends = (rows["capital"].cast(pl.Float64).to_list(), rows["sharpe_net"].cast(pl.Float64).to_list())
        look = {"name": fig.short(model), "line": style.line(), "hovertemplate": "%{y:.2f} at %{x:,.3~r}"}
        traces.append(fig.scatter(*ends, "lines+markers", **look))
    decades = range(math.floor(math.log10(min(capital))), math.ceil(math.log10(max(capital))) + 1)
    ticks = {"tickvals": [10**power for power in decades], "ticktext": [_amount(power) for power in decades]}
    layout = {
        "xaxis": fig.axis("capital (currency of the prices, log scale)", type="log", **ticks),
        "yaxis": fig.zero_axis("net Sharpe ratio (annual)"),
    }
    return fig.draw("Net Sharpe ratio by capital", 300, traces, layout)


def _amount(power: int) -> str:
    """A power of ten as an amount: 10k, 1M, 100B."""
    step = max(0, min(power // 3, 4))
    return f"{10 ** (power - 3 * step):g}{('', *'kMBT')[step]}"
