"""Chart of rolling Sharpe ratio, volatility and rank IC, with bands for the chosen model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from backtest.analysis.rolling import Z, rolling_mean_ic, rolling_risk
from pipelines.pages.charts.figure import Figure, Trace, draw, floats
from pipelines.pages.charts.figure import days as date_axis
from pipelines.pages.charts.series import by_model, line
from pipelines.pages.theme import Style, axis, points_per_line, short, thin


def rolling_charts(
    equity: pl.DataFrame | None,
    ic_series: pl.DataFrame | None,
    styles: Mapping[str, Style],
    shown: tuple[str, ...],
    *,
    window: int,
    lags: int,
    year: float,
) -> Iterator[Figure]:
    """Draw the rolling measures of every model.

    Parameters
    ----------
    equity
        date, model, nav_net and optionally excess_net of one book; None leaves out Sharpe and volatility.
    ic_series
        date, model, rank_ic; None leaves out the IC.
    styles
        Model -> style.
    shown
        Models that are drawn at the start; the first has a band. The others can be switched on.
    window
        Sessions in a window.
    lags
        Lags of the Newey-West errors of the IC.
    year
        Sessions in a year.
    """
    if equity is not None:
        risk = {model: rolling_risk(rows, window, year) for model, _, rows in by_model(equity, styles)}
        for field, title, label, form in (
            ("sharpe", "net Sharpe ratio", "Sharpe ratio (annual)", ".2f"),
            ("volatility", "volatility net of costs", "volatility (annual)", ".1%"),
        ):
            paths = {
                model: frame.select("date", y=field, error=f"{field}_error") for model, frame in risk.items()
            }
            yield _chart(f"Rolling {title}, {window} sessions", (label, form), paths, styles, shown)
    if ic_series is not None:
        paths = {
            model: rolling_mean_ic(rows, window, lags).rename({"rank_ic": "y"})
            for model, _, rows in by_model(ic_series, styles)
        }
        yield _chart(
            f"Rolling rank IC, {window} sessions", ("mean daily rank IC", ".3f"), paths, styles, shown
        )


def _chart(
    title: str,
    label: tuple[str, str],
    paths: Mapping[str, pl.DataFrame],
    styles: Mapping[str, Style],
    shown: tuple[str, ...],
) -> Figure:
    name, form = label
    traces: list[Trace] = []
    limit = points_per_line(len(paths))
    for model, frame in paths.items():
        path = thin(frame.drop_nulls("y"), limit)
        if path.is_empty():
            continue
        style = styles[model]
        chosen = model == shown[0]
        visible = True if model in shown else "legendonly"
        if chosen:
            traces.append(_band(path, model, style))
        width = {"color": style.colour, "dash": style.dash, "width": 2.4 if chosen else 1.4}
        hover = f"%{{y:{form}}}"
        traces.append(line(path, model, style, hover, legendgroup=model, line=width, visible=visible))
    percent = {"tickformat": ".1~%"} if form.endswith("%") else {}
    return draw(
        title,
        260,
        traces,
        {
            "hovermode": "x unified",
            "xaxis": axis(""),
            "yaxis": axis(name, zeroline=True, zerolinewidth=2, **percent),
        },
    )


def _band(path: pl.DataFrame, model: str, style: Style) -> Trace:
    """The area of 1.96 standard errors on either side of the line."""
    date_T, y_T, half_T = date_axis(path["date"]), floats(path["y"]), Z * floats(path["error"])
    half_T = np.nan_to_num(half_T)
    return {
        "type": "scatter",
        "x": np.concatenate([date_T, date_T[::-1]]),
        "y": np.concatenate([y_T + half_T, (y_T - half_T)[::-1]]),
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0, "color": style.colour},
        "opacity": 0.18,
        "fillcolor": style.colour,
        "hoverinfo": "skip",
        "name": short(model),
        "legendgroup": model,
        "showlegend": False,
    }
