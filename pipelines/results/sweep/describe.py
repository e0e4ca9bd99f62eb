"""Format a sweep for a terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import polars as pl

from pipelines.results.sweep.grid import Axis
from pipelines.results.sweep.sweep import Sweep
from pipelines.train.trials import TrialCount

_MOST_BLOCKS = 24
_MOST_SETS = 6


def sentences(sweep: Sweep, axes: Sequence[Axis], counted: TrialCount) -> tuple[str, ...]:
    """Say what the sweep as a whole shows: its size, its best variant, and how far that can be believed."""
    frame = sweep.table
    signals = frame["signal"].n_unique()
    assumed = [axis.name for axis in axes if axis.path[0] != "books"]
    plural = "" if counted.trials == 1 else "s"
    said = [
        f"{frame.height:,} variants of {signals} signal{'' if signals == 1 else 's'} on the same sessions; "
        f"the deflated Sharpe ratios count {counted.trials:,} trial{plural} in the ledger{counted.reach}. By "
        f"their correlation these are worth {frame['effective_trials'][0]:.1f} independent ones."
    ]
    if assumed:
        said.append(f"{', '.join(assumed)}: assumptions, which make no further trials.")
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
    return (*said, *_overfitting(sweep.overfitting, assumed))


def _overfitting(found: pl.DataFrame, assumed: Sequence[str]) -> Iterator[str]:
    """One sentence per signal, with the probabilities of every set of assumptions, or their range."""
    if found.is_empty():
        return
    for (name,), part in found.partition_by(["signal"], as_dict=True, maintain_order=True).items():
        shares = [
            f"{row['pbo']:.0%}"
            + (f" ({', '.join(f'{axis} {_value(row[axis])}' for axis in assumed)})" if assumed else "")
            for row in part.iter_rows(named=True)
        ]
        said = f"{'; '.join(shares)} of the splits"
        if part.height > _MOST_SETS:
            low, *_, high = sorted(part["pbo"].to_list())
            said = f"{low:.0%} to {high:.0%} of the splits (by set of assumptions)"
        worst = max(part["loss_probability"].to_list())
        yield (
            f"The book of {name} that is best on one half of the sessions is at or below the median on the "
            f"other half in {said}, and loses there in up to {worst:.0%} "
            "(probability of overfitting by CSCV among the books of one set of assumptions; books without "
            "skill give about 50%)."
        )


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
        "overfitting": sweep.overfitting.to_dicts(),
        "sentences": list(said),
        "folder": place,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _value(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
