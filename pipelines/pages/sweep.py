"""The page of a sweep: heat maps of the net Sharpe ratio, and a table of all variants, without a script."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from importlib.resources import files

import polars as pl

from pipelines.pages.tables import DASH, Column, number, percent, plain, table, text
from pipelines.results.sweep_grid import Axis
from pipelines.results.sweeps import Sweep, SweepRecord

_POSITIVE, _NEGATIVE = (0, 114, 178), (213, 94, 0)  # Okabe and Ito's blue and vermilion
_DARKEST = 0.75
_FIGURES = (
    Column("sharpe_net", "net Sharpe", number(2)),
    Column("sharpe_lower", "from", number(2), hint="95% interval of the net Sharpe ratio"),
    Column("sharpe_upper", "to", number(2), hint="95% interval of the net Sharpe ratio"),
    Column("deflated_sharpe", "deflated Sharpe", number(2), hint="probability of skill, given all trials"),
    Column("deflated_effective", "effective", number(2), hint="the same with the effective number of trials"),
    Column("sharpe_gross", "gross Sharpe", number(2)),
    Column("annual_return_net", "net return % / year", percent(1)),
    Column("annual_volatility_net", "volatility % / year", percent(1)),
    Column("max_drawdown_net", "max drawdown %", percent(1)),
    Column("turnover", "one-way turnover % / session", percent(1)),
    Column("cost_bps_per_year", "costs bps / year", number(0)),
    Column("unfilled", "unfilled % / session", percent(2)),
)


def render_sweep(sweep: Sweep, axes: Sequence[Axis], record: SweepRecord) -> str:
    """Render a sweep as one self-contained HTML page.

    The rows of a heat map are the values of the first axis and its columns those of the second; there is one
    heat map for each signal and each combination of the other axes. Blue is above zero, orange below; the
    number of each cell is the net Sharpe ratio, and the small one the deflated Sharpe ratio.
    """
    title = html.escape(f"{record.run_id}: sweep of {record.book}")
    columns = [
        Column("signal", "signal", text, numeric=False),
        *(Column(axis.name, axis.name, _value) for axis in axes),
        *(column for column in _FIGURES if sweep.table[column.field].drop_nulls().len()),
    ]
    body = [
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in record.sentences),
        "<p>Each cell shows the net Sharpe ratio, and below it the deflated Sharpe ratio.</p>",
        f'<div class="maps">{"".join(_heat_maps(sweep.table, axes))}</div>',
        "<h2>All variants</h2>",
        table(sweep.table, columns, label="All variants of the sweep"),
    ]
    css = files("pipelines.pages").joinpath("templates/report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>\n{css}\n{_CSS}</style>\n</head>\n'
        f"<body>\n<main>\n{chr(10).join(body)}\n</main>\n</body>\n</html>\n"
    )


_CSS = """
body { display: block; max-width: 70rem; margin: 0 auto; padding: 0 1rem; }
.maps { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.maps > div { max-width: 100%; break-inside: avoid; }
.heat { width: auto; }
.heat td { text-align: center; min-width: 3.5rem; }
.heat td small { display: block; opacity: 0.75; }
"""


def _heat_maps(frame: pl.DataFrame, axes: Sequence[Axis]) -> Iterator[str]:
    """One table for each signal and each combination of the axes after the second."""
    limit = max((abs(value) for value in frame["sharpe_net"].drop_nulls()), default=0.0) or 1.0
    rows, columns, others = axes[0], axes[1] if len(axes) > 1 else None, [axis.name for axis in axes[2:]]
    for key, part in frame.partition_by(["signal", *others], as_dict=True, maintain_order=True).items():
        fixed = "".join(f", {name} = {_value(value)}" for name, value in zip(others, key[1:], strict=True))
        label = f"{key[0]}{fixed}: net Sharpe ratio, and deflated Sharpe ratio below it"
        title = f"<h3>{html.escape(f'{key[0]}{fixed}')}</h3>"
        yield f"<div>{title}{_heat_map(part, rows, columns, limit, label)}</div>"


def _heat_map(part: pl.DataFrame, rows: Axis, columns: Axis | None, limit: float, label: str) -> str:
    found = {
        (repr(row[rows.name]), None if columns is None else repr(row[columns.name])): row
        for row in part.iter_rows(named=True)
    }
    values = (None,) if columns is None else columns.values
    corner = html.escape(rows.name if columns is None else f"{rows.name} \\ {columns.name}")
    head = "".join(
        f'<th scope="col">{"net Sharpe" if columns is None else html.escape(_value(value))}</th>'
        for value in values
    )
    body = ""
    for row in rows.values:
        cells = "".join(
            _cell(found[repr(row), None if columns is None else repr(value)], limit) for value in values
        )
        body += f'<tr><th scope="row">{html.escape(_value(row))}</th>{cells}</tr>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f'<table class="heat"><thead><tr><th scope="col">{corner}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(row: dict[str, float | None], limit: float) -> str:
    sharpe, deflated = row["sharpe_net"], row["deflated_sharpe"]
    if sharpe is None:
        return f"<td>{DASH}</td>"
    red, green, blue = _POSITIVE if sharpe >= 0 else _NEGATIVE
    alpha = _DARKEST * abs(sharpe) / limit
    below = DASH if deflated is None else number(2)(deflated)
    return (
        f'<td style="background:rgba({red},{green},{blue},{alpha:.2f})">{number(2)(sharpe)}'
        f"<small>{below}</small></td>"
    )


def _value(value: object) -> str:
    """Write a value of an axis."""
    if value is None:
        return "none"
    return plain(6)(value) if isinstance(value, float) else str(value)
