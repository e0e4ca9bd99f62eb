"""The verdict on whether attention is usable as an explanation of a model, for days and for peers.

Every criterion compares a figure and its 90% interval with written limits. It passes if the whole interval is
on the good side of one limit, fails if the whole interval is on the bad side of another, and is open in all
other cases.
The limits were chosen by models whose right answer is known (`benchmarks/verdict_calibration.py`).
Attention is usable if every criterion passes, not usable if one fails, and the verdict is inconclusive if
none fails and one is open. The last criterion is about the Shapley values that attention is compared with: if
they do not repeat themselves, it is open, because nothing can be said, and it never fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from models.explain.faithful.forecasts import ForecastMeasures
from models.explain.faithful.statistics import UNKNOWN, Estimate
from models.explain.faithful.summary import (
    Agreement,
    AtInference,
    MethodMeasure,
    day_agreement,
    measure_methods,
    randomisation,
)
from models.explain.faithful.unit_games import REMOVALS, Over

Outcome = Literal["pass", "fail", "open"]
Answer = Literal["yes", "no", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a criterion passes and when it fails; between the two it is open.

    Attributes
    ----------
    passes, fails
        A figure passes if its whole interval is on the good side of ``passes``, and fails if its whole
        interval is on the bad side of ``fails``.
    above
        Whether figures above (else below) the limits are good.
    """

    passes: float
    fails: float
    above: bool = True


AGREEMENT = Limits(0.5, 0.3)
"""Rank correlation of attention with ``|SHAP|``, corrected for the noise of SHAP. It cannot be 1 even if the
attention is the exact weight of each unit, because an effect is the weight times the unit's value."""

GAIN = Limits(0.6, 0.4)
"""Share of SHAP's gain over a random order that removal in the order of attention reaches."""

USED = Limits(0.2, 0.2)
"""Change of the forecasts under permuted weights, relative to the removal of everything. Below it, who gets
which weight hardly matters to the forecast."""

LEARNED = Limits(0.5, 0.5, above=False)
"""Rank correlation of attention with that of the same model with shuffled parameters."""

REFERENCE = Limits(0.3, 0.3)
"""Reliability of ``|SHAP|``: the rank correlation with a second, independent estimate of itself."""

MIN_DATES = 5
"""Fewest dates for a criterion to pass or fail: a bootstrap over fewer says little."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of the verdict.

    Attributes
    ----------
    name, question
        What is asked.
    estimate
        The figure.
    limits
        The written limits.
    outcome
        ``pass``, ``fail`` or ``open``.
    """

    name: str
    question: str
    estimate: Estimate
    limits: Limits
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for days or for peers, with the criteria that it follows from."""

    over: Over
    answer: Answer
    criteria: tuple[Criterion, ...]

    @property
    def sentence(self) -> str:
        """The answer and its reason in one sentence."""
        reasons = [one.name for one in self.criteria if one.outcome == "fail"]
        if self.answer == "no":
            return f"attention over {self.over} usable as an explanation: no (fails: {', '.join(reasons)})"
        unknown = [one.name for one in self.criteria if one.outcome == "open"]
        if self.answer == "inconclusive":
            return (
                f"attention over {self.over} usable as an explanation: inconclusive "
                f"(open: {', '.join(unknown)})"
            )
        return f"attention over {self.over} usable as an explanation: yes"


def judge(
    over: Over,
    measured: Sequence[ForecastMeasures],
    inference: AtInference,
    agreement: Agreement | None = None,
) -> Verdict:
    """Judge attention by the forecasts that were measured.

    Parameters
    ----------
    over
        Days or peers.
    measured
        Measures of the forecasts; without any, every criterion is open.
    inference
        What replacing the weights at inference does.
    agreement
        Agreement of attention with ``|SHAP|``; None for that of the measured forecasts over days.
    """
    agreement = day_agreement(measured) if agreement is None else agreement
    criteria = [
        _criterion(
            "agreement", "Does attention rank the units as |SHAP| does?", agreement.corrected, AGREEMENT
        ),
        _gain(measure_methods(measured)),
        _criterion("use", "Do the forecasts depend on who gets which weight?", inference.used_permuted, USED),
        _criterion(
            "learned",
            "Does attention change when the parameters are shuffled?",
            randomisation(measured, "attention"),
            LEARNED,
        ),
        _reference(agreement.reliability),
    ]
    outcomes = {one.outcome for one in criteria}
    answer: Answer = "no" if "fail" in outcomes else "inconclusive" if "open" in outcomes else "yes"
    return Verdict(over, answer, tuple(criteria))


def _reference(reliability: Estimate) -> Criterion:
    """Pass if the Shapley values repeat themselves, and stay open otherwise: nothing can be said then."""
    question = "Do the Shapley values repeat themselves with other draws?"
    found = _criterion("reference", question, reliability, REFERENCE)
    return found if found.outcome == "pass" else replace(found, outcome="open")


def _gain(found: Sequence[MethodMeasure]) -> Criterion:
    """Judge the cumulative gain: it passes, or fails, if it does so under each of the three removals."""
    name, question = "removal", "Does removal in its order change the forecast as much as in SHAP's?"
    by_removal = {
        one.removal: _criterion(name, question, one.share, GAIN)
        for one in found
        if one.method == "attention" and one.measure == "cumulative"
    }
    if not by_removal:
        return _criterion(name, question, UNKNOWN, GAIN)
    outcomes = {one.outcome for one in by_removal.values()}
    agreed = len(outcomes) == 1 and by_removal.keys() == REMOVALS.keys()
    worst = min(by_removal.values(), key=lambda one: one.estimate.value)
    return replace(worst, outcome=outcomes.pop() if agreed else "open")


def _criterion(name: str, question: str, estimate: Estimate, limits: Limits) -> Criterion:
    outcome: Outcome = "open"
    if estimate.dates >= MIN_DATES:
        sign = 1.0 if limits.above else -1.0
        worst, best = sorted((sign * estimate.low, sign * estimate.high))
        if worst >= sign * limits.passes:
            outcome = "pass"
        elif best < sign * limits.fails:
            outcome = "fail"
    return Criterion(name, question, estimate, limits, outcome)
