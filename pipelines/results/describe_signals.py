"""The summary of measured signals for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

import polars as pl

from pipelines.config.schema import Config
from pipelines.results.describe import (
    describe_count,
    describe_decisions,
    describe_deflated,
    describe_flagged,
    describe_interval,
)
from pipelines.results.evaluate_signals import USED, failed
from pipelines.run.evaluations import StoredEvaluation

_WIDTH = 110
_CELLS = (  # column, heading, scale, digits
    ("ic", "IC", 1, 4),
    ("ic_t", "t", 1, 1),
    ("rank_ic", "rank IC", 1, 4),
    ("coverage_dates", "dates %", 100, 0),
    ("coverage_firms", "firms %", 100, 0),
    ("tied", "tied %", 100, 0),
)


def describe_signals(evaluation: StoredEvaluation, config: Config) -> str:
    """Format the summary: the rows used, the guard, the results of each delay, and the tests.

    Parameters
    ----------
    evaluation
        Evaluation of measured signals.
    config
        Config with the settings of the evaluation.
    """
    parts = [
        *_rows(evaluation.table("rows")),
        *(textwrap.fill(text, _WIDTH) for text in describe_flagged(evaluation.read_table("flagged_rows"))),
        *_guard(evaluation.table("guard")),
        *_results(evaluation, config),
        describe_decisions(evaluation.table("figures")),
        *_tests(evaluation.table("significance"), evaluation.read_table("trials")),
    ]
    return "\n".join(parts)


def _rows(rows: pl.DataFrame) -> Iterator[str]:
    for (signal,), own in rows.partition_by(["signal"], as_dict=True, maintain_order=True).items():
        counts = dict(own.select("reason", "rows").iter_rows())
        left = [f"{count:,} {reason}" for reason, count in counts.items() if count and reason != USED]
        yield f"{signal}: {counts[USED]:,} of {sum(counts.values()):,} rows used" + (
            f"; left out: {', '.join(left)}" if left else ""
        )


def _guard(guard: pl.DataFrame) -> Iterator[str]:
    bad, warned = failed(guard), guard.filter(pl.col("verdict") == "warn")
    checks = guard.filter(pl.col("verdict") != "skipped").height
    if not bad and warned.is_empty():
        yield f"look-ahead guard: {checks} checks, nothing found"
        return
    yield "look-ahead guard: " + (
        f"NOT BELIEVABLE: {', '.join(bad)}" if bad else f"{checks} checks, nothing that proves look-ahead"
    )
    shown = guard.filter(pl.col("verdict").is_in(["fail", "warn"]))
    for signal, check, verdict, sentence in shown.select(
        "signal", "check", "verdict", "sentence"
    ).iter_rows():
        text = f"{verdict}  {signal}, {check}: {sentence}"
        yield textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="        ")


def _results(evaluation: StoredEvaluation, config: Config) -> Iterator[str]:
    ladder, costs, record = evaluation.table("ladder"), config.backtest.costs, evaluation.record
    yield ""
    yield (
        f"{record.first} to {record.last}, {record.dates:,} sessions; horizon {config.label.horizon}; half-"
        f"spread {costs.half_spread_bps:g} bps, commission {costs.commission_bps:g} bps"
    )
    books = list(config.backtest.books)
    width = max([8, *(len(model) for model in ladder["model"])]) + 2
    heading = "".join(f"{title:>9}" for _, title, _, _ in _CELLS)
    of_books = "".join(f"{f'{book} gross':>{len(book) + 8}}{'net':>7}{'turnover':>10}" for book in books)
    for delay in config.label.delays:
        rows = ladder.filter(pl.col("delay") == delay)
        note = "" if delay >= 1 else " (cannot be traded)"
        traded = config.backtest.delay
        yield f"delay {delay}{note}{'' if traded in (None, delay) else f'; books trade at delay {traded}'}"
        yield f"  {'signal':<{width}}{heading}{of_books}"
        for row in rows.iter_rows(named=True):
            cells = "".join(f"{_number(row[key], digits, scale):>9}" for key, _, scale, digits in _CELLS)
            yield f"  {row['model']:<{width}}{cells}{''.join(_book(row, book) for book in books)}"
    yield (
        f"gross, net: annual Sharpe ratio before and after costs, {record.periods_per_year:g} sessions a "
        "year. turnover: one-way, per session, % of NAV."
    )


def _book(row: dict[str, Any], book: str) -> str:
    gross, net = (_number(row[f"{book}.sharpe_{kind}"], 2) for kind in ("gross", "net"))
    turnover = _number(row[f"{book}.turnover"], 1, 100)
    return f"{gross:>{len(book) + 8}}{net:>7}{turnover:>10}"


def _tests(significance: pl.DataFrame, counted: pl.DataFrame | None) -> Iterator[str]:
    first = significance.row(0, named=True)
    yield ""
    yield f"tests at delay {first['delay']}, intervals at {1 - first['level']:.0%}"
    width = max(len(model) for model in significance["model"]) + 2
    book_width = max(len(book) for book in significance["book"]) + 2
    for row in significance.iter_rows(named=True):
        ic = describe_interval(row["ic"], row["ic_lower"], row["ic_upper"], digits=4)
        sharpe = describe_interval(row["sharpe_net"], row["sharpe_lower"], row["sharpe_upper"], digits=2)
        yield (
            f"  {row['model']:<{width}}{row['book']:<{book_width}}IC {ic}  Sharpe net {sharpe}  "
            f"{describe_deflated(row)}"
        )
    yield from describe_count(first, counted)


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{scale * value:.{digits}f}"
