"""Charts of runs, backtests and peer networks as plotly figures, for notebooks and exported pages.

Every function returns a ``plotly.graph_objects.Figure``, which can be changed further. Menus in a figure are
plotly's own and need no Python process, so they also work in a notebook that was exported to HTML. Names from
data are escaped, because plotly reads texts as HTML.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import polars as pl
from plotly.io._base_renderers import NotebookRenderer

from backtest.inference.means import mean_test, overlap_of
from peerglass.network import STORED, PeerNetwork
from peerglass.runs import Run
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.pages import figure as fig
from pipelines.pages.charts import books, explained, models
from pipelines.results.evaluate import forecast_steps

if TYPE_CHECKING:
    from peerglass.scoring import Attribution

_PEERS = 12  # bars that can be read
_GROUPS = 7  # colours that can be told apart


class MeasuredTables(Protocol):
    """What `peerglass.backtest` returns."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def polars(self) -> Mapping[str, pl.DataFrame]:
        """Name -> table."""


Results: TypeAlias = Run | MeasuredTables


def skill(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean daily IC of every model or signal with its 95% interval.

    The IC is that of the mean over seeds, and the interval that of `backtest.inference.means.mean_test`. On a
    simulated market, a dashed line shows the IC of the true conditional mean, which no forecast can exceed on
    average.
    """
    ladder, series = (_at_delay(_table(results, name), delay) for name in ("ladder", "ic_series"))
    steps, horizon = forecast_steps(series, _table(results, "equity")), results.config.label.horizon
    tests = {
        model: mean_test(
            series.filter(pl.col("model") == model)["ic"].to_numpy(), overlap=overlap_of(horizon, step)
        )
        for model, step in steps.items()
    }
    return to_plotly(models.skill(ladder, _styles(results), delay, tests))


def cumulative_ic(results: Results, delay: int = 0) -> go.Figure:
    """Draw the cumulative sum of daily rank ICs; a straight line is steady skill."""
    frame = _at_delay(_table(results, "ic_series"), delay)
    return to_plotly(models.cumulative_rank_ic(frame, _styles(results)))


def quantiles(results: Results, delay: int = 0) -> go.Figure:
    """Draw the mean return of the firms in each quantile of the forecasts, in basis points."""
    frame = _at_delay(_table(results, "quantiles"), delay)
    return to_plotly(models.quantile_returns(frame, _styles(results)))


def ic_decay(results: Results) -> go.Figure:
    """Draw the mean rank IC against the number of sessions between the forecast and the trade."""
    frame = _table(results, "ic_decay").filter(pl.col("horizon") == results.config.label.horizon)
    steps = forecast_steps(_table(results, "ic_series"), _table(results, "equity"))
    return to_plotly(
        models.ic_decay(frame, "delay", "Rank IC by delay of the trade", _styles(results), steps)
    )


def net_asset_value(results: Results, book: str, delay: int = 1) -> go.Figure:
    """Draw the NAV and the drawdown of a book; a menu switches between net and gross of costs."""
    frame = _at_delay(_table(results, "equity"), delay)
    _rows_of(frame, "book", book, f"There is no book {book!r}, only")
    return to_plotly(books.net_asset_value(frame, _styles(results), book, None))


def sharpe(results: Results, book: str, delay: int = 1) -> go.Figure:
    """Draw the net Sharpe ratio of every model or signal with its bootstrap interval.

    The numbers at the right are the probabilistic Sharpe ratio, which is the probability that the true Sharpe
    ratio is above 0, and the deflated one, which asks for more than the best of all trials would have by luck
    (Bailey and Lopez de Prado 2014).
    """
    frame = _at_delay(_table(results, "significance"), delay).filter(pl.col("book") == book)
    rows = frame.filter(pl.col("sharpe_net").is_not_null())
    if rows.is_empty():
        raise ConfigError(f"No Sharpe ratio of a book {book!r} at delay {delay} was measured.")
    title = f"Net Sharpe ratio, {book}, delay {delay}, {int(rows['trials'][0])} trials counted"
    return to_plotly(models.sharpe(rows, _styles(results), title))


def _table(results: Results, name: str) -> pl.DataFrame:
    if isinstance(results, Run):
        return results.table(name)
    if name not in results.polars:
        raise ConfigError(f"The backtest has no table {name!r}, only {', '.join(sorted(results.polars))}.")
    return results.polars[name]


def _styles(results: Results) -> dict[str, fig.LineStyle]:
    return fig.model_styles(_table(results, "ladder")["model"].unique(maintain_order=True).to_list())


def _at_delay(frame: pl.DataFrame, delay: int) -> pl.DataFrame:
    in_order = frame.sort("delay", maintain_order=True)
    return _rows_of(in_order, "delay", delay, f"Nothing was measured at delay {delay}, only at")


def _rows_of(frame: pl.DataFrame, column: str, value: object, problem: str) -> pl.DataFrame:
    """Rows that have a value in a column; without any, ConfigError names the values that there are."""
    rows = frame.filter(pl.col(column) == value)
    if rows.is_empty():
        known = ", ".join(map(str, frame[column].unique(maintain_order=True))) or "none"
        raise ConfigError(f"{problem} {known}.")
    return rows


_NAME = "peerglass"
MENU = {"x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 26}}
"""Place of a menu in a figure."""


class _Offline(NotebookRenderer):  # type: ignore[misc]  # plotly carries no annotations
    """Figures as HTML that asks no other host for anything; plotly.js comes from :func:`embed`."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return the figure as HTML; plotly's own renderer would load MathJax from a server."""
        html = pio.to_html(
            fig_dict,
            config={"displaylogo": False, "responsive": True},
            include_plotlyjs=False,
            include_mathjax=False,
            full_html=False,
            default_width="100%",
            validate=False,
        )
        return {"text/html": html}


def embed() -> None:
    """Embed plotly.js in the notebook, so that its figures need no network.

    Call it in the first cell. The output of that cell holds plotly.js (5 MB). Figures are then shown in
    JupyterLab, and kept when the notebook is exported to HTML, without a request to another host. To have a
    smaller file, choose another of plotly's renderers (``plotly.io.renderers``) instead.
    """
    pio.renderers[_NAME] = _Offline()
    pio.renderers.default = f"plotly_mimetype+{_NAME}"  # JupyterLab takes the first, HTML pages the second


def to_plotly(figure: fig.Figure) -> go.Figure:
    """Turn a chart of the pages into a figure of plotly with title and legend; views become a menu."""
    made = go.Figure(list(figure.traces), dict(figure.layout))
    margin = made.layout.margin
    made.update_layout(
        title={"text": fig.safe(figure.title), "x": 0.0, "xanchor": "left", "xref": "container", "y": 0.98},
        title_pad={"l": 8},
        title_font={"size": 16, "family": fig.FONT, "color": fig.INK},
        showlegend=bool(figure.legend),
        legend={"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom"},
        margin={"l": margin.l, "r": max(margin.r, 24), "t": 100, "b": margin.b},
        height=figure.height + 106,
    )
    if figure.views:
        in_views = {index for indices in figure.views.values() for index in indices}
        buttons = [
            {
                "label": name,
                "method": "restyle",
                "args": [{"visible": [i in indices or i not in in_views for i in range(len(figure.traces))]}],
            }
            for name, indices in figure.views.items()
        ]
        made.update_layout(updatemenus=[{"buttons": buttons, **MENU}])
    return made


def recovery(run: Run, model: str) -> go.Figure:
    """Draw how well SHAP, attention, and attention before training find each kind of planted edge.

    The AUC is the probability that a planted edge has a larger weight than another pair of firms; 0.5 is a
    guess. A whisker is 1.96 standard errors.
    """
    return to_plotly(explained.recovery(_own(run, "explain_recovery", model), model))


def attention_and_values(run: Run, model: str, n_firms: int = 30) -> go.Figure:
    """Draw the matrices of |SHAP| and of attention between the firms of one date, side by side.

    A row is a firm whose forecast is made, a column the firm that it attends to. The firms are those that
    receive most attention. A menu puts another method at the right.
    """
    rows = _own(run, "explain_firm_map", model)
    methods = rows["method"].unique(maintain_order=True).to_list()
    if "shap" not in methods or "attention" not in methods:
        raise ConfigError(f"The run {run.id} has no map of firms for {model!r}; explain it again.")
    firms = rows.filter(pl.col("method") == "attention")["target"].unique(maintain_order=True).to_list()
    firms, names = firms[:n_firms], [fig.short(firm, 8) for firm in firms[:n_firms]]
    within = rows.filter(pl.col("target").is_in(firms), pl.col("source").is_in(firms))
    share = within.with_columns(pl.col("value") / pl.col("value").max().over("method"))
    grids = {
        method: fig.matrix(
            share.filter(pl.col("method") == method).select("target", "source", "value"), firms, firms
        )
        for method in methods
    }
    title = f"Who moved whom, and who looked at whom: {model} on {rows['date'][0]}"
    hover = "%{y} from %{x}: %{z:.3f}<extra></extra>"
    one = fig.heat(title, grids["shap"], names, names, "share of the largest", zmax=1, hovertemplate=hover)
    figure = to_plotly(one)
    small: dict[str, Any] = {"tickangle": -90, "tickfont": {"size": 9}}
    other = one.traces[0] | {"z": grids["attention"], "xaxis": "x2"}
    figure.data[0].update(showscale=False)
    figure.add_trace(other)
    others = [method for method in methods if method != "shap"]
    titles = {method: explained.METHODS.get(method, (fig.safe(method),))[0] for method in others}
    buttons = [
        {
            "label": titles[method],
            "method": "update",
            "args": [{"z": [grids["shap"], grids[method]]}, {"xaxis2.title.text": titles[method]}],
        }
        for method in others
    ]
    figure.update_layout(
        height=560,
        xaxis=fig.axis("|SHAP|", type="category", domain=[0.0, 0.475], **small),
        xaxis2=fig.axis("attention", type="category", domain=[0.525, 1.0], **small),
        yaxis=fig.names_axis(autorange="reversed", tickfont={"size": 9}),
        updatemenus=[{"buttons": buttons, "active": others.index("attention"), **MENU}],
    )
    return figure


def agreement(run: Run, model: str, kind: str = "agreement with SHAP") -> go.Figure:
    """Draw rank correlations of methods with their 90% intervals over dates, and their null as a ring.

    Parameters
    ----------
    run
        An explained run.
    model
        A model with attention.
    kind
        ``agreement with SHAP``, or another value of the column ``kind`` of the table ``explain_agreement``,
        such as ``shuffled parameters``: the correlation of a method with itself after the parameters of the
        model were shuffled, which should be near 0.
    """
    every = _own(run, "explain_agreement", model)
    rows = _rows_of(every, "kind", kind, f"{kind!r} was not measured for {model}, only:")
    title = "Rank correlation with |SHAP|" if kind == "agreement with SHAP" else f"Rank correlation: {kind}"
    return to_plotly(explained.agreement_with_shap(rows, title))


def removal(run: Run, model: str, over: str = "peers") -> go.Figure:
    """Draw how much the forecasts have changed after a share of the days or peers was removed.

    A method that ranks well removes first what matters, so its line rises early. The random order is the
    line to beat. A menu chooses how things are removed.
    """
    every = _own(run, "explain_curves", model)
    rows = _rows_of(every, "over", over, f"Removal over {over!r} was not measured for {model}, only over")
    return to_plotly(explained.removal_curves(rows, over))


def day_weights(run: Run, model: str) -> go.Figure:
    """Draw the attention of each past day, by the volatility regime of that day, and equal weights."""
    return to_plotly(explained.weight_of_past_days(_own(run, "explain_day_weights", model)))


def _own(run: Run, table: str, model: str) -> pl.DataFrame:
    return _rows_of(run.table(table), "model", model, f"The table {table} has no rows of {model!r}, only of:")


def peers(network: PeerNetwork, ticker: str, date: dt.date) -> go.Figure:
    """Draw what the largest peers contributed to a firm's forecast, with Monte Carlo errors.

    A whisker is 1.96 standard errors of the sampling of coalitions. It says how well the value is computed,
    not how certain the market is. Blue: a peer of the firm's own group. A menu chooses another firm.
    """
    network.peers(ticker, date)  # the error of a firm without peers
    key = "  ".join(
        f"<span style='color:{colour}'>\u25a0</span> {name}"
        for name, colour in (
            ("own group", fig.BLUE),
            ("other group", fig.VERMILION),
            ("unknown", fig.UNKNOWN),
        )
    )
    at = {"x": 0.0, "y": 1.0, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    notes = [at | {"showarrow": False, "text": key}]
    firms = {firm: [_bars(network, firm, date)] for firm in network.followers(date)}
    return _with_firms(network, 364, firms, ticker, lambda firm: f"Peers of {firm} on {date}", notes)


def peer_changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> go.Figure:
    """Draw what a firm's peers contributed on an earlier date (ring) and on a date (dot), with errors.

    A peer without a ring, or without a dot, was not among the 20 largest of the date; its value is smaller,
    not zero. A menu chooses another firm.
    """
    network.changes(date, since, ticker)  # the error of a firm without peers
    both = sorted(set(network.followers(date)) & set(network.followers(since)))
    firms = {firm: _changes(network, firm, date, since) for firm in both}
    return _with_firms(network, 394, firms, ticker, lambda firm: f"Peers of {firm}, from {since} to {date}")


def peer_history(network: PeerNetwork, ticker: str) -> go.Figure:
    """Draw a heat map of what a firm's peers contributed on every explained date.

    White cells without a value: the peer was not among the 20 largest of the date.
    """
    own = network.dated.filter((pl.col("follower") == ticker) & (pl.col("rank") <= STORED))
    if own.is_empty():
        raise ConfigError(f"No forecast of {ticker} was explained; choose a firm of network.followers(date).")
    size = own.group_by("leader").agg(size=(pl.col("value") ** 2).sum()).sort("size", descending=True)
    leaders = size["leader"].head(20).to_list()
    kept = own.filter(pl.col("leader").is_in(leaders)).select("leader", "date", "value")
    limit = max(abs(value) for value in kept["value"])
    return to_plotly(
        fig.heat(
            f"Contributions to the forecasts of {ticker}",
            fig.matrix(kept, leaders, network.dates),
            [fig.short(leader, 12) for leader in leaders],
            [str(date) for date in network.dates],
            network.unit,
            colorscale=[[0.0, fig.VERMILION], [0.5, "#ffffff"], [1.0, fig.BLUE]],
            zmin=-limit,
            zmax=limit,
            hovertemplate="%{y} on %{x}: %{z:.3g}<extra></extra>",
        )
    )


def peer_network(network: PeerNetwork, n_edges: int = 40) -> go.Figure:
    """Draw the strongest edges that were found, with arrows from leader to follower, and firms by group.

    The width of an arrow is the weight of the edge; it is blue within a group and vermilion across groups.
    The border of a firm is its group, if that is one of the most frequent ones. Distances have no meaning.
    If no edge was found, the strongest edges are drawn, and the title says so.
    """
    found = network.edges.filter(pl.col("found"))
    edges = found if found.height else network.edges
    top = edges.sort("weight", descending=True).head(n_edges)
    groups = dict(network.firms.select("ticker", "group").iter_rows())
    shown = {*top["leader"], *top["follower"]}
    counted = Counter(group for firm, group in groups.items() if group and firm in shown)
    colours = dict(zip([group for group, _ in counted.most_common(_GROUPS)], fig.PALETTE, strict=False))
    borders = {firm: colours.get(group, fig.UNKNOWN) for firm, group in groups.items()}
    drawn = explained.peer_network(edges, network.model, n_edges, borders)
    legend = [
        fig.scatter([None], [None], "markers", name=fig.short(group), marker={"color": colour, "size": 10})
        for group, colour in [*colours.items(), ("other or unknown", fig.UNKNOWN)]
    ]
    hidden = [{**trace, "showlegend": False} for trace in drawn.traces]
    which = "edges found" if found.height else "edges; none is found against shuffled peers"
    title = f"Peer network of {network.model}: the {top.height} strongest {which}"
    figure = to_plotly(replace(drawn, title=title, traces=(*hidden, *legend)))
    figure.update_layout(height=740, margin={"t": 56, "b": 80}, legend={"y": -0.01, "yanchor": "top"})
    return figure


def attention_and_weights(network: PeerNetwork) -> go.Figure:
    """Draw every edge by its mean attention and its weight, on logarithmic axes.

    If attention were an explanation, the points would lie on a rising line. Edges that were found are dark.
    Only stored edges are drawn: the strongest ones of each follower and those that were found.
    """
    edges = network.edges.filter((pl.col("attention") > 0) & (pl.col("weight") > 0))
    traces: list[fig.Trace] = []
    for found, name, colour in ((False, "not found", fig.ZERO), (True, "found", fig.BLUE)):
        rows = edges.filter(pl.col("found") == found)
        pairs = rows.select("leader", "follower").iter_rows()
        points = fig.scatter(
            rows["attention"].to_list(),
            rows["weight"].to_list(),
            "markers",
            name=name,
            marker={"size": 5, "color": colour, "opacity": 0.7},
            text=[f"{fig.safe(leader)} \u2192 {fig.safe(follower)}" for leader, follower in pairs],
            hovertemplate="%{text}: attention %{x:.3g}, weight %{y:.3g}<extra></extra>",
        )
        traces.append(points | {"type": "scattergl"})
    layout = {
        "xaxis": fig.axis("mean attention over dates", type="log"),
        "yaxis": fig.axis(f"weight ({network.unit})", type="log"),
    }
    return to_plotly(
        fig.draw(f"Weight against attention, {edges.height:,} edges of {network.model}", 354, traces, layout)
    )


def contributions(attribution: Attribution, ticker: str, date: dt.date | None = None) -> go.Figure:
    """Draw one explained forecast: from the base value over days, features and peers to the forecast.

    A whisker is one Monte Carlo standard error.

    Parameters
    ----------
    attribution
        From :func:`peerglass.explain`.
    ticker
        The firm.
    date
        The session; None: the first one that was explained for the firm.
    """
    rows = attribution.forecasts.with_row_index("row").filter(pl.col("ticker") == ticker)
    rows = rows if date is None else rows.filter(pl.col("date") == date)
    if rows.is_empty():
        raise ConfigError(
            f"The forecast of {ticker}{'' if date is None else f' on {date}'} is not explained."
        )
    row = rows.row(0, named=True)
    factor, unit = (1e4, "bps") if attribution.unit == "return" else (1.0, attribution.unit)
    values = attribution.explanation[row["row"]]
    error = values.error_std
    example = pl.DataFrame(
        {
            "player": list(values.feature_names),
            "value": np.asarray(values.values, dtype=np.float64),
            "error": np.zeros(len(values.values)) if error is None else np.asarray(error),
        }
    ).with_columns(pl.lit(row[name]).alias(name) for name in ("date", "ticker", "base_value", "forecast"))
    return to_plotly(explained.one_forecast(example, attribution.model, unit, factor))


def _with_firms(  # noqa: PLR0917  (a chart of a firm, and its menu)
    network: PeerNetwork,
    height: int,
    firms: Mapping[str, Sequence[fig.Trace]],
    ticker: str,
    title: Callable[[str], str],
    annotations: Sequence[Mapping[str, Any]] = (),
) -> go.Figure:
    """Draw contributions to the forecast of one firm, with a menu of all firms and their traces."""
    x, y = (
        fig.zero_axis(f"contribution to the forecast ({network.unit})"),
        fig.names_axis(autorange="reversed"),
    )
    layout = {"xaxis": x, "yaxis": y, "annotations": list(annotations)}
    shown = fig.draw(title(ticker), height, firms[ticker], layout)
    buttons = []
    for firm, traces in firms.items():
        fields = [_fields(trace) for trace in traces]
        values = {name: [one.get(name) for one in fields] for one in fields for name in one}
        label = {"label": fig.short(firm, 12), "method": "update"}
        buttons.append(label | {"args": [values, {"title.text": fig.safe(title(firm))}]})
    made = to_plotly(shown)
    made.update_layout(updatemenus=[{"buttons": buttons, "active": list(firms).index(ticker), **MENU}])
    return made


def _fields(trace: fig.Trace) -> dict[str, Any]:
    """The fields of a trace that a menu changes, under their names in plotly.js."""
    found = {"x": trace["x"], "y": trace["y"]}
    if "error_x" in trace:
        found["error_x.array"] = trace["error_x"]["array"]
    if "text" in trace:
        found |= {"text": trace["text"], "marker.color": trace["marker"]["color"]}
    return found


def _bars(network: PeerNetwork, ticker: str, date: dt.date) -> fig.Trace:
    rows = network.peers(ticker, date).head(_PEERS)
    return fig.bar_trace(
        [fig.short(leader, 12) for leader in rows["leader"]],
        [round(value, 6) for value in rows["value"]],
        [explained.group_colour(same) for same in rows["same_group"]],
        error_x=_errors(rows["error"]),
        text=[
            f"{fig.safe(group or 'group unknown')}, attention {attention:.3f}"
            for group, attention in rows.select("group", "attention").iter_rows()
        ],
        textposition="none",
        hovertemplate="%{y}: %{x:.3g} \N{PLUS-MINUS SIGN} %{error_x.array:.2g}<br>%{text}<extra></extra>",
    )


def _changes(network: PeerNetwork, ticker: str, date: dt.date, since: dt.date) -> list[fig.Trace]:
    rows = network.changes(date, since, ticker)
    size = pl.max_horizontal(pl.col("now").abs(), pl.col("before").abs())
    rows = rows.sort(size, descending=True).head(_PEERS)
    for name, day in (("now", date), ("before", since)):
        errors = network.peers(ticker, day).select("leader", pl.col("error").alias(f"{name}_error"))
        rows = rows.join(errors, on="leader", how="left", maintain_order="left")
    names = [fig.short(leader, 12) for leader in rows["leader"]]
    ends = zip(names, rows["before"], rows["now"], strict=True)
    link = [(x, y) for name, one, other in ends for x, y in ((one, name), (other, name), (None, None))]
    look = {"hoverinfo": "skip", "line": {"color": fig.ZERO, "width": 2}, "showlegend": False}
    made = [fig.scatter([x for x, _ in link], [y for _, y in link], **look)]
    ends_of = (("before", since, fig.MUTED, "circle-open"), ("now", date, fig.BLUE, "circle"))
    for name, title, colour, symbol in ends_of:
        made.append(
            fig.scatter(
                rows[name].to_list(),
                names,
                "markers",
                name=str(title),
                marker={"symbol": symbol, "color": colour, "size": 11},
                error_x=_errors(rows[f"{name}_error"]),
                hovertemplate=f"%{{y}}, {title}: %{{x:.3g}}<extra></extra>",
            )
        )
    return made


def _errors(errors: pl.Series) -> fig.Trace:
    return fig.whiskers([None if error is None else round(1.96 * error, 6) for error in errors])
