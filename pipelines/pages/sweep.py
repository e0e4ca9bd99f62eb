"""The page of a sweep: heat maps of the net Sharpe ratio, and a table of all variants, without a script."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipelines.pages.page import Page
from pipelines.pages.report import shade
from pipelines.results.sweep_grid import Axis
from pipelines.results.sweeps import Sweep, SweepRecord, heat_maps


def render_sweep(sweep: Sweep, axes: Sequence[Axis], record: SweepRecord) -> str:
    """Render a sweep as one page: a cell has the net Sharpe ratio, and the deflated one in small."""
    return Page().render(
        "sweep.jinja",
        title=f"{record.run_id}: sweep of {record.book}",
        sentences=record.sentences,
        maps=list(heat_maps(sweep.table, axes)),
        variants=sweep.table,
        axes=[(a.name, a.name, _form(sweep.table[a.name].dtype)) for a in axes],
        limit=max((abs(value) for value in sweep.table["sharpe_net"].drop_nulls()), default=0.0) or 1.0,
        shade=shade,
    )


def _form(kind: pl.DataType) -> str:
    """How the values of an axis are written in a table; numbers stand at the right."""
    return "g6" if kind.is_float() else "0" if kind.is_integer() else "text"
