"""The sections on the signal: IC over time, by horizon and delay, exposures, and returns by quantile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts import signal
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import (
    MODEL_COLUMN,
    Block,
    beside,
    count_sessions,
    has_values,
    main_model,
    paragraph,
    shown_rows,
)
from pipelines.pages.tables import Column, number, percent, signed, table, text
from pipelines.pages.theme import Style
from pipelines.results.comparisons import BASELINES

_DECAY_COLUMNS = (
    Column("horizon", "horizon", number(0), group="sessions"),
    Column("delay", "delay", number(0), group="sessions"),
    Column("ic", "IC", number(4)),
    Column("ic_t", "t (NW)", number(1)),
    Column("rank_ic", "rank IC", number(4)),
    Column("rank_ic_t", "t (NW)", number(1)),
    Column("dates", "dates", number(0)),
)
_MAX_EXPOSURES = 12
_PERSISTENCE_COLUMNS = (
    Column("lag", "lag (sessions)", number(0)),
    Column("rank_autocorrelation", "rank autocorrelation", number(3)),
    Column("top_turnover", "top quantile replaced %", percent(1)),
    Column("bottom_turnover", "bottom quantile replaced %", percent(1)),
)
_SPREAD_COLUMNS = (
    MODEL_COLUMN,
    Column("quantiles", "quantiles", number(0)),
    Column("spread_bps", "top less bottom, bps", signed(1)),
    Column("lower_bps", "from", signed(1)),
    Column("upper_bps", "to", signed(1)),
    Column("t", "t (NW)", signed(1)),
)
_EXPOSURE_COLUMNS = (
    Column("kind", "kind", text, numeric=False),
    Column("key", "sector or style", text, numeric=False),
    Column("mean", "mean exposure", signed(3)),
    Column("t", "t", signed(1)),
)


def signal_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Draw the cumulative rank IC and the IC by horizon and delay; show persistence and exposures."""
    model = main_model(data, best)
    decay, persistence, exposures = (
        pl.DataFrame() if frame is None else frame.filter(pl.col("model") == model)
        for frame in (data.signals.ic_decay, data.signals.persistence, data.signals.signal_exposures)
    )
    figures: list[Block] = []
    if data.ic_series is not None and not data.ic_series.is_empty():
        figures.append(
            (
                signal.cumulative_rank_ic(data.ic_series, styles, best),
                "A steady slope means that the signal works all the time. Steps mean that it worked on few "
                "days. A flat end means that it has stopped working.",
            )
        )
    figures += _decay_figures(data, styles, model)
    if figures:
        yield from beside(figures)
    tables = []
    if not decay.is_empty():
        tables.append(_decay_table(decay))
    if not persistence.is_empty():
        written = table(persistence.sort("lag"), _PERSISTENCE_COLUMNS, label="Persistence of the signal")
        tables.append(
            f"<div><h4>Persistence: the slower the signal, the cheaper to trade</h4>{written}</div>"
        )
    if not exposures.is_empty():
        tables.append(_exposure_table(exposures))
    if tables:
        yield from beside(tables)


def _decay_figures(data: ReportData, styles: Mapping[str, Style], model: str) -> Iterator[Block]:
    """IC by horizon at the delay of the verdict, and by delay at the label's horizon."""
    if data.signals.ic_decay is None:
        return
    shown = data.signals.ic_decay.filter(pl.col("model").is_in([model, *BASELINES]))
    delay, horizon = data.header.verdict_delay, data.header.label_horizon
    for by, fixed, title, caption in (
        (
            "horizon",
            pl.col("delay") == delay,
            f"Rank IC by horizon, at a delay of {count_sessions(delay)}",
            "Models are trained on the label's horizon alone. Whiskers are 95% intervals.",
        ),
        (
            "delay",
            pl.col("horizon") == horizon,
            f"Rank IC by delay, over {count_sessions(horizon)}",
            "An IC that is gone after one session of delay cannot be traded; one that lasts can be traded "
            "slowly and cheaply.",
        ),
    ):
        rows = shown.filter(fixed)
        if not rows.is_empty():
            yield signal.ic_decay(rows, by, title, styles), caption


def _decay_table(decay: pl.DataFrame) -> str:
    """IC and rank IC with their t-statistics, one row per horizon and delay."""
    written = table(decay.sort("horizon", "delay"), _DECAY_COLUMNS, label="IC by horizon and delay")
    return f"<div><h4>IC by horizon and delay</h4>{written}</div>"


def _exposure_table(exposures: pl.DataFrame) -> str:
    """The exposures of the signal with the largest t-statistics."""
    largest = exposures.sort(pl.col("t").abs(), descending=True, nulls_last=True).head(_MAX_EXPOSURES)
    left = exposures.height - largest.height
    title = f"Exposure of the signal{f': the {largest.height} largest |t|' if left else ''}"
    written = table(largest, _EXPOSURE_COLUMNS, label="Exposure of the signal")
    return f"<div><h4>{title}</h4>{written}</div>"


def quantile_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Draw mean and cumulative returns by quantile, and show the spread of top less bottom."""
    model = main_model(data, best)
    figures: list[Block] = []
    series = shown_rows(data.signals.quantile_series, data, model)
    if not series.is_empty() and has_values(series, "mean_return_bps"):
        figures.append(
            (
                signal.quantile_curves(series, model, data.header.label_horizon),
                "Curves should fan out in order and keep doing so. Returns are summed, not compounded.",
            )
        )
    if data.quantiles is not None and not data.quantiles.is_empty():
        figures.append(
            (
                signal.quantile_returns(data.quantiles, styles),
                "Bars should rise from left to right. If only the first and the last quantile differ from "
                "the rest, the signal comes from few firms.",
            )
        )
    if figures:
        yield from beside(figures)
    spread = shown_rows(data.signals.quantile_spread, data)
    if not spread.is_empty():
        yield "<h4>Top less bottom quantile</h4>"
        yield paragraph(
            f"Mean label over {count_sessions(data.header.label_horizon)}, before costs, with 95% intervals."
        )
        yield table(spread, _SPREAD_COLUMNS, label="Quantile spread", styles=styles, highlight=best)
