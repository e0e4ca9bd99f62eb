"""The verdict at the top of the report: which model was chosen, the evidence, and the doubts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from models.spec import BENCHMARKS
from pipelines.format import is_unknown
from pipelines.pages.report_data import RunReport
from pipelines.pages.tables import write
from pipelines.results.comparisons import MIN_DEFLATED_SHARPE, deciding_rows


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """A headline and its evidence as plain text, and the chosen model's row of the ladder, if any."""

    tone: Literal["good", "caution", "bad"]
    headline: str
    evidence: str
    best: dict[str, Any] | None

    def as_dict(self) -> dict[str, str]:
        """Tone, headline and evidence, for the JSON document of an evaluation."""
        return {"tone": self.tone, "headline": self.headline, "evidence": self.evidence}


def baseline_of(row: Mapping[str, Any]) -> str | None:
    """The baseline that a row of the ladder is, or is a variant of; None for other models."""
    named: str | None = row.get("baseline") or (row["model"] if row["model"] in BENCHMARKS else None)
    return named


def deciding_comparisons(report: RunReport, model: str) -> dict[str, dict[str, Any]]:
    """Baseline -> the row of the table ``comparisons`` that decides whether a model beats it."""
    every = report.tables.get("comparisons")
    own = [] if every is None else deciding_rows(every.filter(pl.col("model") == model))
    return {row["baseline"]: row for row in own}


def judge_report(report: RunReport) -> ReportVerdict:
    """Judge the best model on validation, or the first signal that passes: the test must not choose."""
    failed = report.failed_signals
    if not failed:
        return _judge(report, report.models)
    refused = "; ".join(f"{signal} fails {', '.join(checks)}" for signal, checks in failed.items())
    believable = tuple(model for model in report.models if model not in failed)
    if not believable:
        words = f"{next(iter(failed))} is not" if len(failed) == 1 else "None of the signals is"
        evidence = f"{refused}. The figures below are those of a signal that knows later prices."
        return ReportVerdict("bad", f"{words} believable: look-ahead was found.", evidence, None)
    verdict = _judge(report, believable)
    found = f"{verdict.evidence} Not believable, because look-ahead was found: {refused}."
    return replace(verdict, evidence=found)


def _judge(report: RunReport, models: tuple[str, ...]) -> ReportVerdict:
    header = report.header
    plural = "s" if header.trial_count != 1 else ""
    trials = f"{header.trial_count:,} trial{plural} in the ledger{header.trial_reach}"
    candidates = report.verdict_ladder.filter(pl.col("model").is_in(models))
    if header.trained:
        score = pl.col("valid_rank_ic").cast(pl.Float64).fill_nan(None)
        candidates = candidates.with_columns(score).drop_nulls("valid_rank_ic")
        candidates = candidates.sort("valid_rank_ic", descending=True, maintain_order=True)
    if candidates.is_empty():
        headline = "No model has a validation rank IC, so no model was chosen."
        return ReportVerdict("bad", headline, f"{_incomplete(report)}{trials}.", None)
    best = candidates.row(0, named=True)
    doubts = _doubts(best) + (_doubts_on_baselines(best) if header.trained else [])
    if header.execution_delay < 1:
        doubts.append("no delay that can be traded was measured")
    if header.record.incomplete is not None:
        doubts.append("the run is incomplete")
    model = best["model"]
    loses = not is_unknown(best["sharpe_net"]) and best["sharpe_net"] <= 0
    if header.trained:
        leads = f"{model} leads on validation"
        praise = f"{leads} and beats ridge and LightGBM on the test."
        chosen = f"Validation rank IC {_number(best['valid_rank_ic'], 3)}. "
    else:
        leads = f"The signal {model} was tested"
        praise = f"The signal {model} earns money net of costs, and its IC is significantly above zero."
        others = len(models) - 1
        chosen = f"The first of {others + 1} signals; the others are beside it. " if others else ""
    headline = praise if not doubts else f"{leads}, but {_join(doubts)}."
    traded = header.execution_delay
    at = f", traded at delay {traded}" if traded != header.verdict_delay else ""
    evidence = (
        f"{_incomplete(report)}{chosen}On the test sessions at delay {header.verdict_delay}: "
        f"IC {_number(best['ic'], 3)} ({'seed ensemble: ' if header.trained else ''}t "
        f"{_number(best['ic_t'], 1)},{_interval(best, 'ic', 3) or ' no interval'}), "
        f"Sharpe {_number(best['sharpe_net'], 2)}{_interval(best, 'sharpe', 2)} net and "
        f"{_number(best['sharpe_gross'], 2)} before costs ({header.main_book}{at}), deflated Sharpe "
        f"{_number(best['deflated_sharpe'], 2)}. {_compared(report, model)}{_counted(report, model)}"
        f"{trials}: the more trials, the more likely a good result is luck."
    )
    return ReportVerdict("bad" if loses else "caution" if doubts else "good", headline, evidence, best)


def _compared(report: RunReport, model: str) -> str:
    """One sentence per baseline with both differences; empty if there is no comparison."""
    return "".join(
        f"Beats {row['rival']}: {row['beats']} (IC difference {_number(row['ic_difference'], 4)}"
        f"{_interval(row, 'ic', 4)}, net Sharpe difference {_number(row['sharpe_difference'], 2)}"
        f"{_interval(row, 'sharpe', 2)}). "
        for row in deciding_comparisons(report, model).values()
    )


def _counted(report: RunReport, model: str) -> str:
    """The tests that count all models, and the probability of overfitting; empty where they do not exist."""
    sentences = [
        f"All models at once against earning nothing: p {_number(row['spa_p'], 3)} (SPA); StepM "
        f"{'counts' if row['in_stepm'] else 'does not count'} {model} as better. "
        for row in report.table("multiple_tests", model).head(1).iter_rows(named=True)
        if row["spa_p"] is not None
    ]
    sentences += [
        f"Probability of overfitting {row['pbo']:.0%} ({row['variants']} candidates: {row['candidates']}). "
        for row in report.table("overfitting").tail(1).iter_rows(named=True)
    ]
    return "".join(sentences)


def _incomplete(report: RunReport) -> str:
    """Name missing forecasts and the dates compared; empty for a complete run."""
    missing = report.header.record.incomplete
    if missing is None:
        return ""
    compared = f"Models are compared on the {report.header.measured_on} that all of them forecast. "
    return f"Missing: {missing}. {compared}"


def _doubts(best: Mapping[str, Any]) -> list[str]:
    doubts = []
    if is_unknown(best["sharpe_net"]):
        doubts.append("it has no net Sharpe ratio")
    elif best["sharpe_net"] <= 0:
        doubts.append("it loses money net of costs")
    elif is_unknown(best["deflated_sharpe"]):
        doubts.append("it has no deflated Sharpe ratio")
    elif best["deflated_sharpe"] < MIN_DEFLATED_SHARPE:
        deflated = _number(best["deflated_sharpe"], 2)
        doubts.append(f"its deflated Sharpe ratio of {deflated} is below {MIN_DEFLATED_SHARPE}")
    if is_unknown(best["ic_lower"]):
        doubts.append("its test IC has no interval")
    elif best["ic_lower"] <= 0:
        doubts.append("its test IC is not significantly above zero")
    return doubts


def _doubts_on_baselines(best: Mapping[str, Any]) -> list[str]:
    doubts, titles = [], dict[str, list[str]]()
    for baseline, title in BENCHMARKS.items():
        if baseline_of(best) == baseline:
            doubts.append("it is itself a baseline")
        elif (answer := best[f"beats_{baseline}"]) is None:
            doubts.append(f"it was not compared with {title}")
        else:
            titles.setdefault(answer, []).append(title)
    for answer, words in (("no", "it does not beat"), ("unclear", "it is unclear whether it beats")):
        if answer in titles:
            doubts.append(f"{words} {' or '.join(titles[answer])}")
    return doubts


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _interval(row: Mapping[str, Any], name: str, digits: int) -> str:
    """Write an interval after its estimate, as in " [0.31, 2.10]"; empty if it is unknown."""
    bounds = (row[f"{name}_lower"], row[f"{name}_upper"])
    known = not any(map(is_unknown, bounds))
    return f" [{', '.join(_number(bound, digits) for bound in bounds)}]" if known else ""


def _number(value: float | None, digits: int) -> str:
    return "unknown" if is_unknown(value) else write(value, str(digits))
