"""The verdict on whether attention is usable as an explanation of a model, for days and for peers.

Every criterion compares a figure and its 90% interval with written limits. It passes if the whole interval is
on the good side of one limit, fails if the whole interval is on the bad side of another, and is open in all
other cases.
The limits were chosen by models whose right answer is known (`benchmarks/verdict_calibration.py`).
Attention is usable if every criterion passes, not usable if one fails, and the verdict is inconclusive if
none fails and one is open. The last criterion is about the Shapley values that attention is compared with: if
they do not repeat themselves, it is open, because nothing can be said, and it never fails.

A figure that is measured again, with other draws or on another machine, moves within its interval. So every
criterion says how far it is from another outcome, as a share of its own uncertainty, and a verdict that a
small move would change says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from models.explain.faithful.forecasts import ForecastMeasures
from models.explain.faithful.statistics import UNKNOWN, FigureOverDates
from models.explain.faithful.summary import (
    Agreement,
    Inference,
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
    """A question, and the limits of its figure: between the two, the criterion is open.

    It passes if the whole interval is on the good side of ``passes``, and fails if the whole interval is on
    the bad side of ``fails``. ``above`` says whether figures above (else below) the limits are good.
    """

    question: str
    passes: float
    fails: float
    above: bool = True


CRITERIA = {
    # rank correlation of attention with |SHAP|, corrected for the noise of SHAP. It cannot be 1 even if the
    # attention is the exact weight of each unit, because an effect is the weight times the unit's value
    "agreement": Limits("Does attention rank the units as |SHAP| does?", 0.5, 0.3),
    # share of SHAP's gain over a random order that removal in the order of attention reaches
    "removal": Limits("Does removal in its order change the forecast as much as in SHAP's?", 0.6, 0.4),
    # change of the forecasts under permuted weights, relative to the removal of everything
    "use": Limits("Do the forecasts depend on who gets which weight?", 0.2, 0.2),
    # rank correlation of attention with that of the same model with shuffled parameters
    "learned": Limits("Does attention change when the parameters are shuffled?", 0.5, 0.5, above=False),
    # reliability of |SHAP|: the rank correlation with a second, independent estimate of itself
    "reference": Limits("Do the Shapley values repeat themselves with other draws?", 0.3, 0.3),
}

MIN_DATES = 5
"""Fewest dates for a criterion to pass or fail: a bootstrap over fewer says little."""

NEAR = 0.25
"""A criterion is near another outcome if a move of its figure by this share of half its interval gives it."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of the verdict."""

    name: str  # a key of `CRITERIA`
    estimate: FigureOverDates  # the figure
    # how far the interval is beyond the limit for passing, and for failing, in halves of the interval on the
    # side of the limit: 0 at the limit, positive beyond it, and -1 if the figure itself is at the limit. NaN
    # if too few dates were measured
    to_pass: float
    to_fail: float

    @property
    def limits(self) -> Limits:
        """The question and the written limits."""
        return CRITERIA[self.name]

    @property
    def outcome(self) -> Outcome:
        """``pass``, ``fail`` or ``open``."""
        return "pass" if self.to_pass >= 0.0 else "fail" if self.to_fail > 0.0 else "open"

    @property
    def margin(self) -> float:
        """Distance to the nearest other outcome, at least 0, in halves of the interval; NaN if not measured.

        Beyond a limit it is the distance that is left, and between the limits that to the nearer one.
        """
        if self.outcome == "open":
            return -max(self.to_pass, self.to_fail)
        return self.to_pass if self.outcome == "pass" else self.to_fail

    @property
    def possible(self) -> set[Outcome]:
        """The outcome, and those that it is :data:`NEAR`."""
        found: set[Outcome] = {self.outcome}
        if abs(self.to_pass) < NEAR:
            found |= {"pass", "open"}
        if abs(self.to_fail) < NEAR:
            found |= {"fail", "open"}
        return found

    @property
    def words(self) -> str:
        """The figure, its interval, the limit that decides, and the distance to it."""
        found = self.estimate
        if found.dates < MIN_DATES:
            return f"{self.name} measured on fewer than {MIN_DATES} dates"
        if math.isnan(self.margin):
            return f"{self.name} unknown"
        limit = self.limits.fails if self.to_fail >= self.to_pass else self.limits.passes
        return (
            f"{self.name} {found.value:.2f} ({found.low:.2f} to {found.high:.2f}), limit {limit:.2f}, "
            f"margin {self.margin:.2f} of half the interval"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for days or for peers, with the criteria that it follows from."""

    over: Over
    answer: Answer
    criteria: tuple[Criterion, ...]

    @property
    def near(self) -> tuple[Answer, ...]:
        """Other answers that criteria which are near another outcome would give."""
        every = {_answer(outcomes) for outcomes in product(*(one.possible for one in self.criteria))}
        return tuple(sorted(every - {self.answer}))

    def rows(self) -> list[dict[str, Any]]:
        """One row per criterion: the columns of the stored table ``verdict``."""
        return [
            {
                "over": self.over,
                "answer": self.answer,
                "criterion": one.name,
                "question": one.limits.question,
                "outcome": one.outcome,
                "value": one.estimate.value,
                "low": one.estimate.low,
                "high": one.estimate.high,
                "threshold": one.limits.passes,
                "fails": one.limits.fails,
                "above": one.limits.above,
                "dates": one.estimate.dates,
                "margin": one.margin,
                "near": " or ".join(self.near) or None,
            }
            for one in self.criteria
        ]

    @property
    def sentence(self) -> str:
        """The answer, its reason and how near another answer is, in one sentence.

        A margin is in halves of a figure's interval.
        """
        said = f"attention over {self.over} usable as an explanation: {self.answer}"
        outcome = {"no": "fail", "inconclusive": "open", "yes": "pass"}[self.answer]
        decisive = [one for one in self.criteria if one.outcome == outcome]
        if self.answer == "yes":  # the criterion that is closest to another outcome
            decisive = [min(decisive, key=lambda one: one.margin)]
        label = {"no": "fails", "inconclusive": "open", "yes": "closest"}[self.answer]
        reason = f"{label}: {'; '.join(one.words for one in decisive)}"
        if not self.near:
            return f"{said} ({reason})"
        others = [one.words for one in self.criteria if len(one.possible) > 1 and one not in decisive]
        also = f"; near a limit: {'; '.join(others)}" if others else ""
        return f"{said}, but near {' and '.join(self.near)} ({reason}{also})"


def _answer(outcomes: Sequence[Outcome]) -> Answer:
    return "no" if "fail" in outcomes else "inconclusive" if "open" in outcomes else "yes"


def judge(
    over: Over,
    measured: Sequence[ForecastMeasures],
    inference: Mapping[str, Inference],
    agreement: Agreement | None = None,
    seed: int = 0,
) -> Verdict:
    """Judge attention by the forecasts that were measured.

    Parameters
    ----------
    over
        Days or peers.
    measured
        Measures of the forecasts; without any, every criterion is open.
    inference
        What replacing the weights at inference does, by the weights (`summary.at_inference`).
    agreement
        Agreement of attention with ``|SHAP|``; None for that of the measured forecasts over days.
    """
    agreement = day_agreement(measured, seed) if agreement is None else agreement
    moved = inference["permuted"].moved
    assert moved is not None, "forecasts under permuted weights are compared with those as trained"
    reference = _criterion("reference", agreement.reliability)
    never = reference.to_fail if math.isnan(reference.to_fail) else -math.inf
    criteria = (
        _criterion("agreement", agreement.corrected),
        _removal(measure_methods(measured, seed)),
        _criterion("use", moved),
        _criterion("learned", randomisation(measured, "attention", seed)),
        replace(reference, to_fail=never),  # values that do not repeat themselves say nothing
    )
    return Verdict(over, _answer([one.outcome for one in criteria]), criteria)


def _removal(found: Sequence[MethodMeasure]) -> Criterion:
    """Judge the cumulative gain: it passes, or fails, if it does so under each of the three removals."""
    by_removal = {
        one.removal: _criterion("removal", one.share)
        for one in found
        if one.method == "attention" and one.measure == "cumulative"
    }
    if not by_removal:
        return _criterion("removal", UNKNOWN)
    every = list(by_removal.values())
    worst = min(every, key=lambda one: one.estimate.value)
    if by_removal.keys() != REMOVALS.keys():
        return replace(worst, to_pass=math.nan, to_fail=math.nan)
    return replace(
        worst,
        to_pass=float(np.min([one.to_pass for one in every])),
        to_fail=float(np.min([one.to_fail for one in every])),
    )


def _criterion(name: str, estimate: FigureOverDates) -> Criterion:
    limits, to_pass, to_fail = CRITERIA[name], math.nan, math.nan
    if estimate.dates >= MIN_DATES:
        sign = 1.0 if limits.above else -1.0
        low, high = (estimate.low, estimate.high) if limits.above else (estimate.high, estimate.low)
        to_pass = _beyond(sign * (low - limits.passes), abs(estimate.value - low))
        to_fail = _beyond(sign * (limits.fails - high), abs(high - estimate.value))
    return Criterion(name, estimate, to_pass, to_fail)


def _beyond(gap: float, half: float) -> float:
    """Distance of the end of an interval beyond a limit, in halves of the interval; -1 if it has no end."""
    if math.isinf(half):
        return -1.0
    if half > 0.0:
        return gap / half
    return gap if math.isnan(gap) or gap == 0.0 else math.copysign(math.inf, gap)
