"""The verdict at the top of the report: which model was chosen, the evidence, and the doubts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from pipelines.report.contents.frames import is_missing
from pipelines.report.contents.report import ReportData

Tone = Literal["good", "caution", "bad"]
BASELINES = {"ridge": "ridge", "lightgbm": "LightGBM"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline and the evidence for it, as plain text that is not escaped.

    ``best`` is the row of the chosen model in the ladder; None if no model could be chosen.
    """

    tone: Tone
    headline: str
    evidence: str
    best: dict[str, Any] | None


def baseline_of(row: dict[str, Any]) -> str | None:
    """The baseline that a row of the ladder is, or is a variant of; None for other models."""
    named: str | None = row.get("baseline") or (row["model"] if row["model"] in BASELINES else None)
    return named


def judge(data: ReportData) -> Verdict:
    """Choose the model by validation rank IC alone and judge it by its test.

    Returns
    -------
    Verdict
        ``good``: the run is complete, net Sharpe is positive and higher than that of both baselines, and the
        t-statistic of the test IC is at least 2. ``bad``: the book loses money net of costs, or no model
        could be chosen. ``caution``: all other cases.
    """
    trials = f"{data.header.trial_count:,} trial{'s' if data.header.trial_count != 1 else ''} in the ledger"
    candidates = data.main_ladder.with_columns(
        pl.col("valid_rank_ic").cast(pl.Float64).fill_nan(None)
    ).drop_nulls("valid_rank_ic")
    if candidates.is_empty():
        return Verdict(
            "bad",
            "No model has a validation rank IC, so no model was chosen.",
            f"{_incomplete(data)}{trials}.",
            None,
        )
    best = candidates.sort("valid_rank_ic", descending=True, maintain_order=True).row(0, named=True)
    doubts = _doubts(best)
    if data.header.incomplete is not None:
        doubts.append("the run is incomplete")
    model = best["model"]
    loses = not is_missing(best["sharpe_net"]) and best["sharpe_net"] <= 0
    if not doubts:
        headline = f"{model} leads on validation and beats ridge and LightGBM net of costs."
    else:
        headline = f"{model} leads on validation, but {_join(doubts)}."
    evidence = (
        f"{_incomplete(data)}Validation rank IC {_number(best['valid_rank_ic'], 3)}. On the test sessions: "
        f"IC {_number(best['ic'], 3)} (t {_number(best['ic_t'], 1)}), "
        f"Sharpe {_number(best['sharpe_net'], 2)} net and {_number(best['sharpe_gross'], 2)} before costs "
        f"({data.header.main_book}). {trials}: the more "
        "trials, the more likely a good result is luck."
    )
    return Verdict("bad" if loses else "caution" if doubts else "good", headline, evidence, best)


def _incomplete(data: ReportData) -> str:
    """Name missing forecasts and the dates compared; empty for a complete run."""
    if data.header.incomplete is None:
        return ""
    return (
        f"Missing: {data.header.incomplete}. Models are compared on the {data.header.measured_on} that all "
        "of them forecast. "
    )


def _doubts(best: dict[str, Any]) -> list[str]:
    doubts = []
    if is_missing(best["sharpe_net"]):
        doubts.append("it has no net Sharpe ratio")
    elif best["sharpe_net"] <= 0:
        doubts.append("it loses money net of costs")
    if is_missing(best["ic_t"]):
        doubts.append("its test IC has no t-statistic")
    elif best["ic_t"] < 2:
        doubts.append("its test IC is not significantly different from zero")
    beaten_by = []
    for baseline, title in BASELINES.items():
        if baseline_of(best) == baseline:
            doubts.append("it is itself a baseline, and no other model did better")
        elif best[f"beats_{baseline}"] is None:
            doubts.append(f"it was not compared with {title}")
        elif not best[f"beats_{baseline}"]:
            beaten_by.append(title)
    if beaten_by:
        doubts.append(f"it does not beat {' or '.join(beaten_by)} net of costs")
    return doubts


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _number(value: float | None, digits: int) -> str:
    return (
        f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
        if value is not None and not is_missing(value)
        else "unknown"
    )
