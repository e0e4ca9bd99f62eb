"""Charts that hold attention against Shapley values, and both against what is known."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from peerglass.charts.notebook import decorate, to_plotly
from peerglass.runs import Run
from pipelines.errors import ConfigError
from pipelines.pages.charts import faithfulness
from pipelines.pages.charts.faithfulness import METHODS
from pipelines.pages.theme import MUTED, axis, safe, short

_BLUES = [[0.0, "#ffffff"], [0.5, "#7fb3d8"], [1.0, "#08306b"]]
_RECOVERY = {"shap": ("SHAP", "#0072B2"), "attention": ("attention", "#D55E00")}


def recovery(run: Run, model: str) -> go.Figure:
    """Draw how well SHAP, attention, and attention before training find each kind of planted edge.

    The AUC is the probability that a planted edge has a larger weight than another pair of firms; 0.5 is a
    guess. A whisker is 1.96 standard errors.
    """
    rows = _own(run, "explain_recovery", model)
    figure = go.Figure()
    kinds = rows["kind"].str.replace_all("_", " ").unique(maintain_order=True).to_list()
    for method in rows["method"].unique(maintain_order=True).to_list():
        part = rows.filter(pl.col("method") == method)
        name, colour = _RECOVERY.get(method, (method, MUTED))
        figure.add_bar(
            x=part["kind"].str.replace_all("_", " ").to_list(),
            y=part["auc"].to_list(),
            name=short(name),
            marker_color=colour,
            error_y={"type": "data", "array": (1.96 * part["error"]).to_list(), "thickness": 1.2, "width": 4},
            hovertemplate=f"{safe(name)}, %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    decorate(figure, f"Planted edges found by {safe(model)}")
    figure.add_hline(y=0.5, line={"color": MUTED, "dash": "dash"}, annotation_text="a guess")
    figure.update_layout(
        height=430,
        barmode="group",
        xaxis=axis("kind of planted edge", categoryorder="array", categoryarray=kinds),
        yaxis=axis("AUC", range=[0.0, 1.02]),
    )
    return figure


def attention_and_values(run: Run, model: str, n_firms: int = 30) -> go.Figure:
    """Draw the matrices of |SHAP| and of attention between the firms of one date, side by side.

    A row is a firm whose forecast is made, a column the firm that it attends to. The firms are those that
    receive most attention. A menu puts another method at the right.
    """
    rows = _own(run, "explain_firm_map", model)
    firms = rows.filter(pl.col("method") == "attention")["target"].unique(maintain_order=True).to_list()
    firms = firms[:n_firms]
    place = {firm: i for i, firm in enumerate(firms)}
    grids: dict[str, list[list[float | None]]] = {}
    for method in rows["method"].unique(maintain_order=True).to_list():
        grid = np.full((len(firms), len(firms)), np.nan)
        part = rows.filter(pl.col("method") == method)
        for target, source, value in part.select("target", "source", "value").iter_rows():
            if target in place and source in place:
                grid[place[target], place[source]] = value
        top = np.nanmax(grid) if np.isfinite(grid).any() else 1.0
        grids[method] = [[None if np.isnan(v) else round(float(v / top), 5) for v in row] for row in grid]
    others = [method for method in grids if method != "shap"]
    if "shap" not in grids or "attention" not in grids:
        raise ConfigError(f"The run {run.id} has no map of firms for {model!r}; explain it again.")
    names = [short(firm, 8) for firm in firms]
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.05)
    for column, method in ((1, "shap"), (2, "attention")):
        figure.add_heatmap(
            z=grids[method],
            x=names,
            y=names,
            colorscale=_BLUES,
            zmin=0,
            zmax=1,
            showscale=column == 2,
            colorbar={"thickness": 12, "title": {"text": "share of the largest", "side": "right"}},
            hovertemplate="%{y} from %{x}: %{z:.3f}<extra></extra>",
            row=1,
            col=column,
        )
    titles = {method: METHODS.get(method, (method,))[0] for method in others}
    buttons = [
        {
            "label": titles[method],
            "method": "update",
            "args": [{"z": [grids["shap"], grids[method]]}, {"xaxis2.title.text": safe(titles[method])}],
        }
        for method in others
    ]
    decorate(figure, f"Who moved whom, and who looked at whom: {safe(model)} on {safe(rows['date'][0])}")
    figure.update_xaxes(type="category", tickangle=-90, tickfont={"size": 9})
    figure.update_yaxes(type="category", autorange="reversed", tickfont={"size": 9})
    figure.update_layout(
        height=560,
        xaxis_title="|SHAP|",
        xaxis2_title="attention",
        updatemenus=[
            {
                "buttons": buttons,
                "active": others.index("attention"),
                "x": 1.0,
                "xanchor": "right",
                "y": 1.0,
                "yanchor": "bottom",
                "pad": {"b": 26},
            }
        ],
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
    figure = to_plotly(faithfulness.agreement_with_shap(rows))
    if kind != "agreement with SHAP":
        figure.update_layout(title_text=f"Rank correlation: {safe(kind)}")
    return figure


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
    return to_plotly(faithfulness.removal_curves(rows, over))


def day_weights(run: Run, model: str) -> go.Figure:
    """Draw the attention of each past day, by the volatility regime of that day, and equal weights."""
    return to_plotly(faithfulness.weight_of_past_days(_own(run, "explain_day_weights", model)))


def _own(run: Run, table: str, model: str) -> pl.DataFrame:
    frame = run.table(table)
    rows = frame.filter(pl.col("model") == model)
    if rows.is_empty():
        known = ", ".join(frame["model"].unique(maintain_order=True).to_list()) or "none"
        raise ConfigError(f"The table {table} has no rows of {model!r}, only of: {known}.")
    return rows
