"""Charts that hold attention against Shapley values, and both against what is known."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from peerglass.charts.notebook import MENU, to_plotly
from peerglass.runs import Run
from pipelines.errors import ConfigError
from pipelines.pages.charts import explained
from pipelines.pages.figure import axis, heat, matrix, names_axis, safe, short


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
    firms, names = firms[:n_firms], [short(firm, 8) for firm in firms[:n_firms]]
    within = rows.filter(pl.col("target").is_in(firms), pl.col("source").is_in(firms))
    share = within.with_columns(pl.col("value") / pl.col("value").max().over("method"))
    grids = {
        method: matrix(
            share.filter(pl.col("method") == method).select("target", "source", "value"), firms, firms
        )
        for method in methods
    }
    title = f"Who moved whom, and who looked at whom: {model} on {rows['date'][0]}"
    hover = "%{y} from %{x}: %{z:.3f}<extra></extra>"
    one = heat(title, grids["shap"], names, names, "share of the largest", zmax=1, hovertemplate=hover)
    figure = to_plotly(one)
    small: dict[str, Any] = {"tickangle": -90, "tickfont": {"size": 9}}
    other = one.traces[0] | {"z": grids["attention"], "xaxis": "x2"}
    figure.data[0].update(showscale=False)
    figure.add_trace(other)
    others = [method for method in methods if method != "shap"]
    titles = {method: explained.METHODS.get(method, (safe(method),))[0] for method in others}
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
        xaxis=axis("|SHAP|", type="category", domain=[0.0, 0.475], **small),
        xaxis2=axis("attention", type="category", domain=[0.525, 1.0], **small),
        yaxis=names_axis(autorange="reversed", tickfont={"size": 9}),
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
    rows = every.filter(pl.col("kind") == kind)
    if rows.is_empty():
        known = ", ".join(every["kind"].unique(maintain_order=True).to_list())
        raise ConfigError(f"{kind!r} was not measured for {model}, only: {known}.")
    title = "Rank correlation with |SHAP|" if kind == "agreement with SHAP" else f"Rank correlation: {kind}"
    return to_plotly(explained.agreement_with_shap(rows, title))


def removal(run: Run, model: str, over: str = "peers") -> go.Figure:
    """Draw how much the forecasts have changed after a share of the days or peers was removed.

    A method that ranks well removes first what matters, so its line rises early. The random order is the
    line to beat. A menu chooses how things are removed.
    """
    every = _own(run, "explain_curves", model)
    rows = every.filter(pl.col("over") == over)
    if rows.is_empty():
        known = ", ".join(every["over"].unique(maintain_order=True).to_list())
        raise ConfigError(f"Removal over {over!r} was not measured for {model}, only over {known}.")
    return to_plotly(explained.removal_curves(rows, over))


def day_weights(run: Run, model: str) -> go.Figure:
    """Draw the attention of each past day, by the volatility regime of that day, and equal weights."""
    return to_plotly(explained.weight_of_past_days(_own(run, "explain_day_weights", model)))


def _own(run: Run, table: str, model: str) -> pl.DataFrame:
    frame = run.table(table)
    rows = frame.filter(pl.col("model") == model)
    if rows.is_empty():
        known = ", ".join(frame["model"].unique(maintain_order=True).to_list()) or "none"
        raise ConfigError(f"The table {table} has no rows of {model!r}, only of: {known}.")
    return rows
