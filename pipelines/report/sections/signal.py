"""The section on the signal: rank IC over time and returns by quantile of the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipelines.report.charts import performance
from pipelines.report.contents.report import ReportData
from pipelines.report.sections.section import Block
from pipelines.report.theme import Style


def signal_blocks(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    """Draw cumulative and rolling rank IC, and the mean label by quantile of the forecast."""
    if data.ic_series is not None and not data.ic_series.is_empty():
        yield (
            performance.cumulative_rank_ic(data.ic_series, styles),
            "A steady slope means that the signal works all the time. Steps mean that it worked on few "
            "days. A flat end means that it has stopped working.",
        )
        yield (
            performance.rolling_rank_ic(data.ic_series, styles),
            f"Mean over the {performance.rolling_window(data.ic_series)} sessions up to each date. Below "
            "zero, the firms with higher forecasts had lower returns.",
        )
    if data.quantiles is not None and not data.quantiles.is_empty():
        yield (
            performance.quantile_returns(data.quantiles, styles),
            "Bars should rise from left to right. If only the first and the last quantile differ from the "
            "rest, the signal comes from few firms.",
        )
