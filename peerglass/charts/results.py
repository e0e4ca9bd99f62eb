"""Charts of the models of a run and their attention, or of signals, and plotly without a network."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import plotly.graph_objects as go
import plotly.io as pio
import polars as pl
from plotly.io._base_renderers import NotebookRenderer

from peerglass.runs import Run
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.pages import figure as fig
from pipelines.pages.charts import books, explained, models


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

    The IC is that of the mean over seeds. The interval is 1.96 Newey-West standard errors. On a simulated
    market, a dashed line shows the IC of the true conditional mean, which no forecast can exceed on average.
    """
    ladder = _at_delay(_table(results, "ladder"), delay)
    return to_plotly(models.skill(ladder, _styles(results), delay))


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
    return to_plotly(models.ic_decay(frame, "delay", "Rank IC by delay of the trade", _styles(results)))


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
