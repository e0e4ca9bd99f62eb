"""The page of a sweep: heat maps of the net Sharpe ratio, and a table of all variants, without a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from pipelines.pages.page import Page
from pipelines.pages.report import shade
from pipelines.pages.tables import write
from pipelines.results.sweep_grid import Axis
from pipelines.results.sweeps import Sweep, SweepRecord


def render_sweep(sweep: Sweep, axes: Sequence[Axis], record: SweepRecord) -> str:
    """Render a sweep as one self-contained HTML page.

    The rows of a heat map are the values of the first axis and its columns those of the second; there is one
    heat map for each signal and each combination of the other axes. Blue is above zero, orange below; the
    number of each cell is the net Sharpe ratio, and the small one the deflated Sharpe ratio.
    """
    return Page().render(
        "sweep.jinja",
        title=f"{record.run_id}: sweep of {record.book}",
        sentences=record.sentences,
        maps=list(_maps(sweep.table, axes)),
        variants=sweep.table,
        axes=[(a.name, a.name, _form(sweep.table[a.name].dtype)) for a in axes],
        limit=max((abs(value) for value in sweep.table["sharpe_net"].drop_nulls()), default=0.0) or 1.0,
        shade=shade,
    )


def _maps(frame: pl.DataFrame, axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Title, names of the rows and columns, and the cells of each heat map."""
    rows, columns, others = axes[0], axes[1] if len(axes) > 1 else None, [axis.name for axis in axes[2:]]
    across = (None,) if columns is None else columns.values
    for key, part in frame.partition_by(["signal", *others], as_dict=True, maintain_order=True).items():
        fixed = "".join(f", {name} = {_value(value)}" for name, value in zip(others, key[1:], strict=True))
        found = {
            (repr(row[rows.name]), None if columns is None else repr(row[columns.name])): row
            for row in part.iter_rows(named=True)
        }
        yield {
            "title": f"{key[0]}{fixed}",
            "corner": rows.name if columns is None else f"{rows.name} \\ {columns.name}",
            "across": ["net Sharpe" if columns is None else _value(value) for value in across],
            "lines": [
                (
                    _value(row),
                    [found[repr(row), None if columns is None else repr(value)] for value in across],
                )
                for row in rows.values
            ],
        }


def _value(value: object) -> str:
    """Write a value of an axis."""
    return "none" if value is None else write(value, "g6") if isinstance(value, float) else str(value)


def _form(kind: pl.DataType) -> str:
    """How the values of an axis are written in a table; numbers stand at the right."""
    return "g6" if kind.is_float() else "0" if kind.is_integer() else "text"
