"""Format a sweep for a terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import polars as pl

from backtest.inference.overfitting import Overfitting
from pipelines.results.sweep.grid import Axis
from pipelines.results.sweep.sweep import Sweep

_MOST_BLOCKS = 24


def sentences(sweep: Sweep, axes: Sequence[Axis], trials: int) -> tuple[str, ...]:
    """Say what the sweep as a whole shows: its size, its best variant, and how far that can be believed."""
    frame = sweep.table
    signals = frame["signal"].n_unique()
    said = [
        f"{frame.height:,} variants of {signals} signal{'' if signals == 1 else 's'} on the same sessions; "
        f"{trials:,} trials are in the ledger now, and the deflated Sharpe ratios count all of them."
    ]
    delay = next((axis.name for axis in axes if axis.path == ("delay",)), None)
    tradable = frame if delay is None else frame.filter(pl.col(delay).fill_null(1) > 0)
    ranked = tradable.drop_nulls("sharpe_net").sort("sharpe_net", descending=True)
    if ranked.height:
        best = ranked.row(0, named=True)
        values = ", ".join(f"{axis.name} {_value(best[axis.name])}" for axis in axes)
        where = "" if delay is None else " at a delay of at least 1"
        deflated = "unknown" if best["deflated_sharpe"] is None else f"{best['deflated_sharpe']:.2f}"
        said.append(
            f"The highest net Sharpe ratio{where} is {best['sharpe_net']:.2f} ({best['signal']}, "
            f"{values}). Its deflated Sharpe ratio is {deflated}, and 0.95 or more is strong evidence."
        )
    chosen = any(axis.path[0] == "books" for axis in axes)  # costs and delays are assumptions, not choices
    return (*said, *(_overfitting(sweep.overfitting) if chosen else ()))


def _overfitting(found: Mapping[str, Overfitting | None]) -> list[str]:
    return [
        f"The variant of {name} that is best on one half of the sessions is at or below the median on the "
        f"other half in {one.probability:.0%} of the splits, and loses in {one.loss_probability:.0%} "
        "(probability of overfitting by CSCV; variants without skill give about 50%)."
        for name, one in found.items()
        if one is not None
    ]


def describe_sweep(sweep: Sweep, axes: Sequence[Axis], said: Sequence[str]) -> str:
    """Format a sweep: a block of net and deflated Sharpe ratios per signal and values of further axes."""
    rows, columns = axes[0], axes[1] if len(axes) > 1 else None
    others = [axis.name for axis in axes[2:]]
    parts = sweep.table.partition_by(["signal", *others], as_dict=True, maintain_order=True)
    lines = ["net Sharpe ratio (deflated)"]
    for key, part in list(parts.items())[:_MOST_BLOCKS]:
        fixed = "".join(f", {name} {_value(value)}" for name, value in zip(others, key[1:], strict=True))
        lines += [f"{key[0]}{fixed}", *_block(part, rows, columns)]
    if len(parts) > _MOST_BLOCKS:
        lines.append(f"and {len(parts) - _MOST_BLOCKS} more blocks, which the page shows")
    return "\n".join((*lines, *said))


def _block(part: pl.DataFrame, rows: Axis, columns: Axis | None) -> list[str]:
    cells = {
        (repr(row[rows.name]), None if columns is None else repr(row[columns.name])): (
            "unknown"
            if row["sharpe_net"] is None
            else f"{row['sharpe_net']:.2f} ({row['deflated_sharpe']:.2f})"
            if row["deflated_sharpe"] is not None
            else f"{row['sharpe_net']:.2f} (?)"
        )
        for row in part.iter_rows(named=True)
    }
    values = (None,) if columns is None else columns.values
    corner = rows.name if columns is None else f"{rows.name} \\ {columns.name}"
    width = max(len(corner), *(len(_value(value)) for value in rows.values)) + 2
    heads = "" if columns is None else "".join(f"{_value(value):>15}" for value in values)
    lines = [f"  {corner:<{width}}{heads}"]
    for row in rows.values:
        written = [cells[repr(row), None if columns is None else repr(value)] for value in values]
        lines.append(f"  {_value(row):<{width}}" + "".join(f"{cell:>15}" for cell in written))
    return lines


def sweep_json(sweep: Sweep, axes: Sequence[Axis], said: Sequence[str], place: str) -> str:
    """The sweep as one JSON document: ``axes``, ``variants``, ``overfitting``, ``sentences``, ``folder``."""
    document = {
        "axes": {axis.name: list(axis.values) for axis in axes},
        "variants": sweep.table.to_dicts(),
        "overfitting": {
            name: None if one is None else {"pbo": one.probability, "loss_probability": one.loss_probability}
            for name, one in sweep.overfitting.items()
        },
        "sentences": list(said),
        "folder": place,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _value(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
