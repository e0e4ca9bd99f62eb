"""The monitoring on a night's page: realised skill and its CUSUM, drift, and the behaviour of the signals.

Shape suffix: T sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from backtest.analysis.rolling import Z, rolling_mean_ic
from features.arrays import FloatArray
from pipelines.nightly.page.svg import Line, chart
from pipelines.nightly.result import NightResult
from pipelines.pages.tables import Column, number, percent, signed, table, text
from pipelines.pages.theme import BLUE, INK, UNSKILLED, VERMILION

WINDOW = 20
"""Sessions of the rolling mean of the realised rank IC."""
_LAGS = 4  # lags of its Newey-West errors: labels of a week overlap
_SESSIONS = 250  # of a chart
_FEATURES = 12  # of the drift table without unfolding
_ROWS = 10  # sessions of the table of behaviour
CHAMPION, CHALLENGER = "champion", "challenger"


def skill_blocks(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Draw the realised rank IC with its band, and the CUSUM with its limit."""
    realised, cusum = tables.get("realised_ic"), tables.get("cusum")
    charts, words = [], []
    if realised is not None and not realised.is_empty():
        charts.append(_realised_chart(realised))
        words.append("The thin grey line is the rank IC of single sessions whose labels have ended.")
        words.append(
            f"The thick lines are means of {WINDOW} sessions, with a band of 1.96 Newey-West errors."
            if _as_series(realised, CHAMPION).height >= WINDOW
            else f"A mean with its band is drawn from {WINDOW} sessions on."
        )
    if cusum is not None and not cusum.is_empty():
        newest = cusum.sort("session").tail(_SESSIONS)
        lines = (
            Line("CUSUM of the champion", newest["sum"].to_numpy(), BLUE),
            Line("limit", newest["limit"].to_numpy(), VERMILION, dash="5 4"),
        )
        charts.append(chart(newest["session"].to_list(), lines, title="CUSUM of realised rank IC", digits=1))
        words.append(
            "The CUSUM rises while forecasts are worse than in the backtest; at the limit it is an alarm."
        )
    if charts:
        yield f'<div class="columns">{"".join(charts)}</div><p>{" ".join(words)}</p>'


def drift_blocks(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Show the features that are closest to the limits of their drift."""
    drift = tables.get("drift")
    if drift is None or drift.is_empty():
        return
    ordered = drift.sort(
        "drifted", pl.col("psi") / pl.col("psi_limit"), descending=True, nulls_last=True, maintain_order=True
    )
    yield _drift_table(ordered.head(_FEATURES), "Drift of the features")
    rest = ordered.slice(_FEATURES)
    if not rest.is_empty():
        all_others = _drift_table(rest, "Drift of the other features")
        yield f"<details><summary>{rest.height} other features</summary>{all_others}</details>"


def behaviour_blocks(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Show turnover and seed dispersion of the signals, and the agreement of champion and challenger."""
    parts = [
        _of_role(tables.get("turnover"), "turnover", CHAMPION),
        _of_role(tables.get("turnover"), "turnover", CHALLENGER),
        _of_role(tables.get("dispersion"), "mean_dispersion", CHAMPION),
        _of_role(tables.get("dispersion"), "mean_dispersion", CHALLENGER),
        _series(tables.get("agreement"), "rank_correlation", "rank_correlation"),
    ]
    known = [part for part in parts if not part.is_empty()]
    if not known:
        return
    joined = known[0]
    for part in known[1:]:
        joined = joined.join(part, on="session", how="full", coalesce=True)
    titles = {
        f"turnover_{CHAMPION}": ("champion", "turnover of the rank"),
        f"turnover_{CHALLENGER}": ("challenger", "turnover of the rank"),
        f"mean_dispersion_{CHAMPION}": ("champion", "seed dispersion"),
        f"mean_dispersion_{CHALLENGER}": ("challenger", "seed dispersion"),
        "rank_correlation": ("rank correlation", "champion and challenger"),
    }
    columns = [Column("session", "session", text, numeric=False)]
    columns += [
        Column(field, title, signed(2) if field == "rank_correlation" else number(2), group=group)
        for field, (title, group) in titles.items()
        if field in joined.columns
    ]
    yield table(
        joined.sort("session", descending=True).head(_ROWS), columns, label="Behaviour of the signals"
    )


def monitoring_blocks(result: NightResult) -> Iterator[str]:
    """Show everything that the monitoring measured."""
    for title, blocks in (
        ("Realised skill", skill_blocks(result.tables)),
        ("Drift of the features", drift_blocks(result.tables)),
        ("Behaviour of the signals", behaviour_blocks(result.tables)),
    ):
        if filled := "".join(blocks):
            yield f"<h3>{title}</h3>{filled}"


def _realised_chart(realised: pl.DataFrame) -> str:
    own = {
        role: rolling_mean_ic(_as_series(realised, role), WINDOW, _LAGS) for role in (CHAMPION, CHALLENGER)
    }
    dates = pl.concat([_as_series(realised, role)["date"] for role in own]).unique().sort().tail(_SESSIONS)
    daily_T = _on(dates, _as_series(realised, CHAMPION), "rank_ic")
    lines = [Line("champion, daily", daily_T, UNSKILLED["zero"], width=0.8)]
    for role, colour, dash in ((CHAMPION, BLUE, ""), (CHALLENGER, INK, "5 4")):
        mean_T, error_T = _on(dates, own[role], "rank_ic"), _on(dates, own[role], "error")
        if np.isfinite(mean_T).any():
            half_T = Z * error_T if role == CHAMPION else None
            lines.append(Line(f"{role}, mean of {WINDOW} sessions", mean_T, colour, dash, half_T))
    return chart(dates.to_list(), lines, title="Realised rank IC", digits=2)


def _as_series(realised: pl.DataFrame, role: str) -> pl.DataFrame:
    return realised.filter(pl.col("role") == role).select(date="session", rank_ic="rank_ic").sort("date")


def _on(dates: pl.Series, series: pl.DataFrame, column: str) -> FloatArray:
    """A column on given dates; NaN where it has no value."""
    joined = pl.DataFrame({"date": dates}).join(series, on="date", how="left", maintain_order="left")
    values_T: FloatArray = joined[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return values_T


def _of_role(frame: pl.DataFrame | None, column: str, role: str) -> pl.DataFrame:
    own = None if frame is None else frame.filter(pl.col("role") == role)
    return _series(own, column, f"{column}_{role}")


def _series(frame: pl.DataFrame | None, column: str, name: str) -> pl.DataFrame:
    if frame is None:
        return pl.DataFrame(schema={"session": pl.Date, name: pl.Float64})
    return frame.select("session", pl.col(column).alias(name))


def _drift_table(rows: pl.DataFrame, label: str) -> str:
    return table(
        rows,
        (
            Column("feature", "feature", text, numeric=False),
            Column("drifted", "drifted?", yes_no_drift, numeric=False),
            Column("psi", "value", number(2), group="stability index"),
            Column("psi_limit", "limit", number(2), group="stability index"),
            Column("ks", "value", number(2), group="Kolmogorov-Smirnov"),
            Column("ks_limit", "limit", number(2), group="Kolmogorov-Smirnov"),
            Column("missing", "now", percent(1), group="missing, %"),
            Column("missing_in_training", "training", percent(1), group="missing, %"),
        ),
        label=label,
    )


def yes_no_drift(value: object) -> str:
    """Write whether a feature has drifted, with a mark, so that it is found without colour."""
    return "! yes" if value else "no"
