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

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np

from features.arrays import FloatArray
from models.explain.design import (
    UNKNOWN,
    FigureOverDates,
    corrected_over_dates,
    mean_over_dates,
    rank_correlation,
    ratio_over_dates,
)
from models.explain.faithful.forecasts import (
    CHANGED,
    RANDOM,
    SHAP,
    Curves,
    ForecastMeasures,
    Intervened,
    Over,
)
from models.explain.peers import PeerAttribution
from models.explain.removal import draw_donors

MEASURES: dict[str, Callable[[Curves], float]] = {
    "deletion": lambda one: one.area("deletion"),
    "insertion": lambda one: one.area("insertion"),
    "comprehensiveness": lambda one: one.comprehensiveness,
    "sufficiency": lambda one: one.sufficiency,
    "cumulative": lambda one: one.area("cumulative"),
}
"""Measures of a curve. Larger is more faithful, except for sufficiency, where smaller is."""


@dataclass(frozen=True, slots=True)
class MethodMeasure:
    """One measure of one method's order under one removal, with the share of the gain of SHAP."""

    method: str  # what was measured; measures are the keys of :data:`MEASURES`
    removal: str
    measure: str
    value: FigureOverDates  # mean, in the unit of the forecast or, if cumulative, as a share
    # ``(value - random) / (SHAP - random)``: 0 for an order as good as a random one, 1 for one as good as
    # that of the Shapley values
    share: FigureOverDates


def measure_methods(measured: Sequence[ForecastMeasures], seed: int = 0) -> list[MethodMeasure]:
    """Summarise the curves of every method, removal and measure; the seed is that of the bootstrap."""
    if not measured:
        return []
    session_E = np.array([one.session for one in measured])
    found = []
    for method, removal in measured[0].curves:
        for name, of in MEASURES.items():
            value_E, random_E, shap_E = (
                np.array([of(one.curves[by, removal]) for one in measured]) for by in (method, RANDOM, SHAP)
            )
            sign = -1.0 if name == "sufficiency" else 1.0
            share = ratio_over_dates(sign * (value_E - random_E), sign * (shap_E - random_E), session_E, seed)
            value = mean_over_dates(value_E, session_E, seed)
            found.append(MethodMeasure(method, removal, name, value, share))
    return found


def mean_curves(measured: Sequence[ForecastMeasures]) -> list[dict[str, Any]]:
    """Average the curves of the forecasts by method, removal and share of the units.

    Deletion and insertion are divided by the mean change of all units; the cumulative curve is a share.
    Forecasts with another number of steps (of peers, on dates with more or fewer firms) are interpolated to
    the shares of the first.
    """
    found = []
    for removal in dict.fromkeys(how for _, how in measured[0].curves):
        share_S = measured[0].curves[SHAP, removal].share_S
        scale = float(np.mean([one.curves[SHAP, removal].deletion_S[-1] for one in measured])) or 1.0
        for method in dict.fromkeys(by for by, how in measured[0].curves if how == removal):
            own = [one.curves[method, removal] for one in measured]
            columns = {"share": share_S}
            for name, unit in (("deletion", scale), ("insertion", scale), ("cumulative", 1.0)):
                every = [np.interp(share_S, one.share_S, getattr(one, f"{name}_S")) for one in own]
                columns[name] = np.mean(every, axis=0) / unit
            for point in zip(*(value_S.tolist() for value_S in columns.values()), strict=True):
                named = dict(zip(columns, point, strict=True))
                found.append({"method": method, "removal": removal, **named})
    return found


@dataclass(frozen=True, slots=True)
class Correlation:
    """A mean rank correlation of importances."""

    # ``agreement with SHAP``; ``explainer seeds``, ``model seeds``, ``folds`` and ``neighbouring days`` are
    # correlations of an importance with itself; ``shuffled parameters``
    kind: str
    method: str  # whose importance
    value: FigureOverDates  # the correlation
    # what it would be if attention knew nothing of the forecast; None where there is no such null
    null: FigureOverDates | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of attention with ``|SHAP|``."""

    # mean rank correlation, and what it would be if attention knew nothing of the forecast
    found: FigureOverDates = UNKNOWN
    null: FigureOverDates = UNKNOWN
    # ``found`` without the noise of the Shapley values; its interval contains the error of the correction
    corrected: FigureOverDates = UNKNOWN
    # rank correlation of the Shapley values with a second, independent estimate of themselves
    reliability: FigureOverDates = UNKNOWN


# session, and two importances [P] or [E, P]; None where there is none
Pairs = Iterable[tuple[int, FloatArray | None, FloatArray | None]]


def mean_correlation(pairs: Pairs, seed: int = 0) -> FigureOverDates:
    """Mean rank correlation of pairs of importances of the same units; other pairs are left out."""
    rows, sessions = [], []
    for session, first, second in pairs:
        if first is not None and second is not None and first.shape[-1] == second.shape[-1]:
            rows.append(rank_correlation(*np.broadcast_arrays(np.atleast_2d(first), np.atleast_2d(second))))
            sessions.append(np.full(len(rows[-1]), session))
    return mean_over_dates(np.concatenate(rows), np.concatenate(sessions), seed) if rows else UNKNOWN


def correlation_of_parts(parts: Iterable[FloatArray]) -> FigureOverDates:
    """Mean rank correlation over all pairs of parts, such as folds; these are too few for an interval."""
    every = [np.atleast_2d(part) for part in parts]
    rows = [rank_correlation(a, b) for a, b in combinations(every, 2)]
    means = [float(row_E[np.isfinite(row_E)].mean()) for row_E in rows if np.isfinite(row_E).any()]
    return FigureOverDates(float(np.mean(means)), np.nan, np.nan, len(every)) if means else UNKNOWN


def randomisation(measured: Sequence[ForecastMeasures], method: str, seed: int = 0) -> FigureOverDates:
    """Mean rank correlation of an importance with those of the same model with shuffled parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps": near 1, the importance does not depend on what
    the model has learned. The shuffles of different dates are independent, so the interval over dates
    contains the variance between shuffles.
    """
    both = ((one.session, one.importance.get(method), one.shuffled.get(method)) for one in measured)
    return mean_correlation(both, seed)


PEER_METHODS = ("shap", "attention")  # importances of peers of which whole matrices are known


def peer_stability(
    pairs: Iterable[tuple[PeerAttribution, PeerAttribution]], method: str, seed: int = 0
) -> FigureOverDates:
    """Mean rank correlation of the peers of a follower over pairs of attributions.

    The two are of one session and two models, or of one model and two sessions. Followers and peers that are
    in one of them only are left out. The size of the Shapley values is used.
    """

    def common(one: PeerAttribution, two: PeerAttribution) -> tuple[int, FloatArray, FloatArray]:
        _, *places = np.intersect1d(one.firms_N, two.firms_N, return_indices=True)
        values = (part.phi_NN if method == "shap" else part.attention_NN for part in (one, two))
        sizes = (np.abs(value_NN[np.ix_(at, at)]) for value_NN, at in zip(values, places, strict=True))
        first_NN, second_NN = map(_without_own, sizes)
        return one.session, first_NN, second_NN

    return mean_correlation((common(one, two) for one, two in pairs), seed)


def day_agreement(measured: Sequence[ForecastMeasures], seed: int = 0) -> Agreement:
    """Agreement over the days of the measured forecasts; the null is uniform attention, which ranks none."""
    known = [(one, one.again_P) for one in measured if one.again_P is not None]
    if not known:
        return Agreement()
    session_E = np.array([one.session for one, _ in known])
    attention_EP, shap_EP, once_EP = (
        np.stack([one.importance[name] for one, _ in known]) for name in ("attention", SHAP, "shap_once")
    )
    repeat_E = rank_correlation(once_EP, np.stack([again_P for _, again_P in known]))
    agreed_E = rank_correlation(attention_EP, shap_EP)
    found = mean_over_dates(agreed_E, session_E, seed)
    null = FigureOverDates(0.0, 0.0, 0.0, found.dates)
    return Agreement(found, null, *corrected_over_dates(agreed_E, repeat_E, session_E, seed))


def peer_agreement(network: Sequence[PeerAttribution], seed: int = 0) -> Agreement:
    """Agreement over the peers of all targets on the dates of a network.

    The null compares the attention of one target with the Shapley values of another, drawn at random. It
    keeps what every target has in common: the same few firms lead everyone. An agreement that is not above
    it does not speak of the pair.
    """
    rows = []
    for part in network:
        size_NN = np.abs(_without_own(part.phi_NN))
        if np.isfinite(size_NN).sum(axis=1).max(initial=0) < 3:
            continue
        partner_N = draw_donors(len(size_NN), np.random.default_rng((seed, part.session)))
        agreed_N = rank_correlation(part.attention_NN, size_NN)
        null_N = rank_correlation(_without_own(part.attention_NN), size_NN[partner_N])
        rows.append((np.full(len(size_NN), part.session), agreed_N, part.repeat_N, null_N))
    if not rows:
        return Agreement()
    session_E, agreed_E, repeat_E, null_E = (np.concatenate(column) for column in zip(*rows, strict=True))
    found, null = (mean_over_dates(one_E, session_E, seed) for one_E in (agreed_E, null_E))
    return Agreement(found, null, *corrected_over_dates(agreed_E, repeat_E, session_E, seed))


@dataclass(frozen=True, slots=True)
class Inference:
    """Forecasts under other weights at inference."""

    weights: str  # ``as trained``, ``uniform`` or ``permuted``
    ic: FigureOverDates  # mean rank IC of the forecasts
    lost: FigureOverDates | None = None  # mean of ``IC as trained - IC`` over the same dates; None as trained
    # mean change of the forecast, divided by the change when everything is removed; None as trained
    moved: FigureOverDates | None = None


def at_inference(parts: Sequence[Intervened], seed: int = 0) -> dict[str, Inference]:
    """Summarise the interventions on all folds and seeds, at least one, by the weights."""
    session_E = np.concatenate([part.session_D for part in parts])
    ic = {name: np.concatenate([part.ic[name] for part in parts]) for name in parts[0].ic}
    moved = {name: np.concatenate([part.moved[name] for part in parts]) for name in parts[0].moved}
    own_E = ic["as trained"]
    found = {"as trained": Inference("as trained", mean_over_dates(own_E, session_E, seed))}
    for weights in CHANGED:
        found[weights] = Inference(
            weights,
            mean_over_dates(ic[weights], session_E, seed),
            mean_over_dates(own_E - ic[weights], session_E, seed),
            ratio_over_dates(moved[weights], moved["removed"], session_E, seed),
        )
    return found


def _without_own(weights_NN: FloatArray) -> FloatArray:
    """NaN on the diagonal: a firm's own weight is 0 by construction, and would agree with another's."""
    return np.where(np.eye(len(weights_NN), dtype=np.bool_), np.nan, weights_NN)


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

MIN_DATES = 5  # fewest dates for a criterion to pass or fail: a bootstrap over fewer says little

NEAR = 0.25  # near another outcome: a move by this share of half the interval gives it


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
        """Distance (at least 0) to the nearest other outcome in halves of the interval; NaN: not measured."""
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
        near = " or ".join(self.near) or None
        return [
            {
                **{"over": self.over, "answer": self.answer, "criterion": one.name},
                **{"question": one.limits.question, "outcome": one.outcome},
                **{name: getattr(one.estimate, name) for name in ("value", "low", "high")},
                **{"threshold": one.limits.passes, "fails": one.limits.fails, "above": one.limits.above},
                **{"dates": one.estimate.dates, "margin": one.margin, "near": near},
            }
            for one in self.criteria
        ]

    @property
    def sentence(self) -> str:
        """The answer, its reason and how near another is; a margin is in halves of a figure's interval."""
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
    agreement: Agreement,
    seed: int = 0,
) -> Verdict:
    """Judge attention by the forecasts that were measured; without any, every criterion is open.

    ``inference`` is what replacing the weights does (:func:`at_inference`).
    """
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
    own = [one for one in found if one.method == "attention" and one.measure == "cumulative"]
    if not own:
        return _criterion("removal", UNKNOWN)
    every = [_criterion("removal", one.share) for one in own]
    worst = min(every, key=lambda one: one.estimate.value)
    ends = np.min([(one.to_pass, one.to_fail) for one in every], axis=0)
    return replace(worst, to_pass=float(ends[0]), to_fail=float(ends[1]))


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
