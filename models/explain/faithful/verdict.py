"""The verdict on whether attention is usable as an explanation of a model, for days and for peers.

Every criterion compares a figure and its 90% interval with one written threshold. It passes if the whole
interval is on the right side, fails if the whole interval is on the wrong side, and is open otherwise.
Attention is usable if every criterion passes, not usable if one fails, and the verdict is inconclusive if
none fails and one is open. The last criterion is about the Shapley values that attention is compared with: if
they do not repeat themselves, it is open, because nothing can be said, and it never fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.explain.faithful.forecasts import ForecastMeasures
from models.explain.faithful.removal import Over
from models.explain.faithful.statistics import Estimate, corrected
from models.explain.faithful.summary import (
    AtInference,
    MethodMeasure,
    agreement,
    measure_methods,
    randomisation,
    reliability,
    repeatability,
)

Outcome = Literal["pass", "fail", "open"]
Answer = Literal["yes", "no", "inconclusive"]

AGREEMENT = 0.7
"""Least rank correlation of attention with ``|SHAP|``, corrected for the noise of SHAP: about half of the
variance of the ranks in common."""

GAIN = 0.8
"""Least share of SHAP's gain over a random order that removal in the order of attention reaches."""

USED = 0.2
"""Least change of the forecasts under permuted weights, relative to the removal of everything. Below it, who
gets which weight hardly matters to the forecast."""

LEARNED = 0.5
"""Largest rank correlation of attention with that of the same model with shuffled parameters."""

REFERENCE = 0.7
"""Least reliability of ``|SHAP|``: the rank correlation with a second, independent estimate of itself."""

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
    threshold
        The written threshold.
    above
        Whether the figure must be above (else below) the threshold.
    outcome
        ``pass``, ``fail`` or ``open``.
    """

    name: str
    question: str
    estimate: Estimate
    threshold: float
    above: bool
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
    agrees: Estimate | None = None,
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
    agrees
        Mean rank correlation of attention with ``|SHAP|``, where it is known for more forecasts than the
        measured ones.
    """
    found = agreement(measured, "attention", "shap") if agrees is None else agrees
    agrees = corrected(found, reliability(measured))
    criteria = [
        _criterion("agreement", "Does attention rank the units as |SHAP| does?", agrees, AGREEMENT),
        _gain(measure_methods(measured)),
        _criterion("use", "Do the forecasts depend on who gets which weight?", inference.used_permuted, USED),
        _criterion(
            "learned",
            "Does attention change when the parameters are shuffled?",
            randomisation(measured, "attention"),
            LEARNED,
            above=False,
        ),
        _reference(measured),
    ]
    outcomes = {one.outcome for one in criteria}
    answer: Answer = "no" if "fail" in outcomes else "inconclusive" if "open" in outcomes else "yes"
    return Verdict(over, answer, tuple(criteria))


def _reference(measured: Sequence[ForecastMeasures]) -> Criterion:
    once, repeats = repeatability(measured), reliability(measured)
    estimate = Estimate(repeats, float("nan"), float("nan"), once.dates)
    outcome: Outcome = "pass" if repeats >= REFERENCE else "open"
    question = "Do the Shapley values repeat themselves with another seed?"
    return Criterion("reference", question, estimate, REFERENCE, above=True, outcome=outcome)


def _gain(found: Sequence[MethodMeasure]) -> Criterion:
    """Judge the cumulative gain under every removal: it passes, or fails, if it does so under all of them."""
    name, question = "removal", "Does removal in its order change the forecast as much as in SHAP's?"
    by_removal = [
        _criterion(name, question, one.share, GAIN)
        for one in found
        if one.method == "attention" and one.measure == "cumulative"
    ]
    if not by_removal:
        return _criterion(name, question, Estimate(float("nan"), float("nan"), float("nan"), 0), GAIN)
    outcomes = {one.outcome for one in by_removal}
    worst = min(by_removal, key=lambda one: one.estimate.value)
    outcome: Outcome = outcomes.pop() if len(outcomes) == 1 else "open"
    return Criterion(name, question, worst.estimate, GAIN, above=True, outcome=outcome)


def _criterion(
    name: str, question: str, estimate: Estimate, threshold: float, *, above: bool = True
) -> Criterion:
    enough = estimate.dates >= MIN_DATES
    over, under = estimate.low >= threshold, estimate.high < threshold
    outcome: Outcome = "open"
    if enough and (over if above else under):
        outcome = "pass"
    elif enough and (under if above else over):
        outcome = "fail"
    return Criterion(name, question, estimate, threshold, above, outcome)
