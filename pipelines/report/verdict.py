"""The line at the top: which model was chosen, on what evidence, and whether it earns its keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from pipelines.report.data import ReportData

Tone = Literal["good", "caution", "bad"]
BASELINES = {"ridge": "ridge", "lightgbm": "LightGBM"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline and the sentence of evidence under it; plain text, not yet escaped.

    ``best`` is the ladder's row of the chosen model, or None if no model could be chosen.
    """

    tone: Tone
    headline: str
    evidence: str
    best: dict[str, Any] | None


def known(value: float | None) -> bool:
    """Whether a number is there at all: neither None nor NaN."""
    return value is not None and not math.isnan(value)


def baseline_of(row: dict[str, Any]) -> str | None:
    """Which baseline a ladder's row is or is a variant of; None for a richer model."""
    named: str | None = row.get("baseline") or (row["model"] if row["model"] in BASELINES else None)
    return named


def judge(data: ReportData) -> Verdict:
    """Choose the model by validation rank IC alone and say how its test turned out.

    Returns
    -------
    Verdict
        ``good``: a complete run, positive net Sharpe, test IC at least two standard errors above zero, and
        above both baselines net of costs. ``bad``: it loses money net of costs, or nothing could be chosen.
        ``caution``: all else.
    """
    trials = f"{data.header.trial_count:,} trial{'s' if data.header.trial_count != 1 else ''} on record"
    candidates = data.main_ladder.with_columns(
        pl.col("valid_rank_ic").cast(pl.Float64).fill_nan(None)
    ).drop_nulls("valid_rank_ic")
    if candidates.is_empty():
        return Verdict(
            "bad",
            "No model has a validation rank IC, so none was chosen.",
            f"{_incomplete(data)}{trials}.",
            None,
        )
    best = candidates.sort("valid_rank_ic", descending=True, maintain_order=True).row(0, named=True)
    doubts = _doubts(best)
    if data.header.incomplete is not None:
        doubts.append("the run is incomplete")
    model = best["model"]
    loses = known(best["sharpe_net"]) and best["sharpe_net"] <= 0
    if not doubts:
        headline = f"{model} leads on validation and beats ridge and LightGBM net of costs."
    else:
        headline = f"{model} leads on validation, but {_join(doubts)}."
    evidence = (
        f"{_incomplete(data)}Validation rank IC {_number(best['valid_rank_ic'], 3)}. On the test sessions: "
        f"IC {_number(best['ic'], 3)} (t {_number(best['ic_t'], 1)}), "
        f"Sharpe {_number(best['sharpe_net'], 2)} net and {_number(best['sharpe_gross'], 2)} before costs "
        f"({data.header.main_book}). {trials}: the more tries, the less a good one means."
    )
    return Verdict("bad" if loses else "caution" if doubts else "good", headline, evidence, best)


def _incomplete(data: ReportData) -> str:
    """Name what is missing, and the dates that are compared; nothing for a complete run."""
    if data.header.incomplete is None:
        return ""
    return (
        f"Missing: {data.header.incomplete}. Models are compared on the {data.header.measured_on} that all "
        "of them forecast. "
    )


def _doubts(best: dict[str, Any]) -> list[str]:
    doubts = []
    if not known(best["sharpe_net"]):
        doubts.append("has no net Sharpe")
    elif best["sharpe_net"] <= 0:
        doubts.append("loses money net of costs")
    if not known(best["ic_t"]):
        doubts.append("its test IC has no t-statistic")
    elif best["ic_t"] < 2:
        doubts.append("its test IC is not distinguishable from zero")
    beaten_by = []
    for baseline, title in BASELINES.items():
        if baseline_of(best) == baseline:
            doubts.append("it is itself a baseline: no richer model improved on it")
        elif best[f"beats_{baseline}"] is None:
            doubts.append(f"was not compared with {title}")
        elif not best[f"beats_{baseline}"]:
            beaten_by.append(title)
    if beaten_by:
        doubts.append(f"does not beat {' or '.join(beaten_by)} net of costs")
    return doubts


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _number(value: float | None, digits: int) -> str:
    return (
        f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
        if value is not None and known(value)
        else "unknown"
    )
