"""The verdict on models whose attention is, and is not, what moves their forecasts."""

from __future__ import annotations

import numpy as np
import pytest
from weighted_toys import (
    FIRMS,
    TEST,
    TRAIN,
    W,
    WeightedDays,
    WeightedPeers,
    panel,
    train_values,
    verdict_on_days,
    verdict_on_peers,
)

from models.explain.design import FigureOverDates
from models.explain.faithful.forecasts import (
    RANDOM,
    REMOVALS,
    Curves,
    FaithfulConfig,
    ForecastMeasures,
    MeasuredModel,
    intervene,
    measure,
)
from models.explain.faithful.verdict import (
    Agreement,
    Inference,
    Verdict,
    at_inference,
    day_agreement,
    judge,
    mean_correlation,
    measure_methods,
    randomisation,
)

DAYS_W = 0.6 ** np.arange(W)[::-1]  # the newest day counts most
PEERS_NN = np.exp(np.random.default_rng(4).normal(scale=1.5, size=(FIRMS, FIRMS)))


def outcomes(verdict: object) -> dict[str, str]:
    return {one.name: one.outcome for one in verdict.criteria}  # type: ignore[attr-defined]


def test_attention_that_is_the_true_weights_is_usable() -> None:
    config = FaithfulConfig()
    days = verdict_on_days(WeightedDays(DAYS_W), panel(), config)
    assert days.answer == "yes", outcomes(days)
    assert set(outcomes(days)) == {"agreement", "removal", "use", "learned", "reference"}
    peers = verdict_on_peers(WeightedPeers(PEERS_NN), panel(), config)
    assert peers.answer == "yes", outcomes(peers)


def test_attention_made_uniform_at_inference_is_not() -> None:
    days, peers = WeightedDays(DAYS_W), WeightedPeers(PEERS_NN)
    days.even = peers.even = True
    for verdict in (verdict_on_days(days, panel()), verdict_on_peers(peers, panel())):
        assert verdict.answer == "no"
        # nothing to rank by, and nothing changes when weights are permuted
        assert outcomes(verdict)["agreement"] == "fail"
        assert outcomes(verdict)["use"] == "fail"
        assert verdict.criteria[0].estimate.value == 0.0


def test_values_trained_under_permuted_attention_are_not() -> None:
    """The weights are permuted and frozen. The values learn to undo it, so the forecasts are right."""
    data, rng = panel(), np.random.default_rng(1)
    days = WeightedDays(DAYS_W[[3, 7, 0, 5, 1, 6, 2, 4]])
    train_values(days, DAYS_W, data)
    verdict = verdict_on_days(days, data)
    assert verdict.answer == "no"
    assert outcomes(verdict)["agreement"] == "fail"
    assert outcomes(verdict)["removal"] == "fail"
    mild_NN = np.sqrt(PEERS_NN)
    order_NN = np.array([rng.permutation(FIRMS) for _ in range(FIRMS)])
    peers = WeightedPeers(np.take_along_axis(mild_NN, order_NN, axis=1))
    train_values(peers, mild_NN * (1.0 - np.eye(FIRMS)), data)
    assert verdict_on_peers(peers, data).answer == "no"


def test_a_model_that_weighs_days_alike_is_not_faithful_for_its_block_lengths() -> None:
    """Unequal blocks would agree: the longest gets most weight and moves most. Equal blocks do not."""
    rng = np.random.default_rng(0)
    nearly_W = np.exp(1e-3 * rng.normal(size=W))  # alike, but not to the bit
    for weights_W in (np.ones(W), nearly_W):
        model = WeightedDays(weights_W)
        verdict = verdict_on_days(model, panel())
        assert verdict.answer == "no", outcomes(verdict)
    assert outcomes(verdict)["use"] == "fail"


def test_shapley_values_of_days_recover_planted_weights() -> None:
    data = panel()
    model = WeightedDays(DAYS_W[[3, 7, 0, 5, 1, 6, 2, 4]])
    train_values(model, DAYS_W, data)
    subject = MeasuredModel(model.eval(), data, TRAIN, FaithfulConfig(permutations=2))
    measured = [one for session in TEST for one in measure(subject, "days", int(session), np.arange(FIRMS))]
    mean_P = np.mean([one.importance["shap"] for one in measured], axis=0)  # newest day first
    ranks, planted = np.argsort(np.argsort(mean_P)), np.argsort(np.argsort(DAYS_W[::-1]))
    assert np.corrcoef(ranks, planted)[0, 1] >= 0.8
    attention_P = np.mean([one.importance["attention"] for one in measured], axis=0)
    assert np.corrcoef(np.argsort(np.argsort(attention_P)), planted)[0, 1] < 0.5


def test_few_dates_and_open_criteria_are_inconclusive() -> None:
    model, data = WeightedDays(DAYS_W), panel()
    subject = MeasuredModel(model.eval(), data, TRAIN, FaithfulConfig())
    measured = [one for session in TEST[:3] for one in measure(subject, "days", int(session), np.arange(4))]
    both = ((one.session, one.importance["attention"], one.importance["shap"]) for one in measured)
    assert mean_correlation(both).value > 0.5
    inference = at_inference([intervene(model, data, TEST[:3], "days", seed=0)])
    verdict = judge("days", measured, inference, day_agreement(measured))
    assert verdict.answer == "inconclusive"
    assert {one.outcome for one in verdict.criteria} == {"open"}
    assert verdict.sentence.startswith(
        "attention over days usable as an explanation: inconclusive (open: agr"
    )
    inference = at_inference([intervene(model, data, TEST, "days", seed=0)])
    nothing = judge("days", [], inference, Agreement())
    unknown = dict.fromkeys(("agreement", "removal", "learned", "reference"), "open")
    assert outcomes(nothing) == {**unknown, "use": "pass"}
    assert nothing.answer == "inconclusive"


def test_shares_of_the_gain_are_0_for_chance_and_1_for_shap() -> None:
    model, data = WeightedDays(DAYS_W), panel()
    subject = MeasuredModel(model.eval(), data, TRAIN, FaithfulConfig())
    measured = [one for session in TEST for one in measure(subject, "days", int(session), np.arange(4))]
    found = {(one.method, one.measure): one for one in measure_methods(measured)}
    assert {one.removal for one in found.values()} == {"train"}, "the last removal of each measure"
    for curve in ("deletion", "insertion", "comprehensiveness", "sufficiency", "cumulative"):
        assert found["shap", curve].share == FigureOverDates(1.0, 1.0, 1.0, len(TEST))
        assert found["random", curve].share.value == pytest.approx(0.0)
    better = found["shap", "cumulative"].value.value - found["random", "cumulative"].value.value
    assert better > 0.0
    assert found["shap", "sufficiency"].value.value < found["random", "sufficiency"].value.value


def found(value: float, half: float, dates: int = 20) -> FigureOverDates:
    return FigureOverDates(value, value - half, value + half, dates)


def verdict_of(agreed: FigureOverDates, learned: float = 0.0) -> Verdict:
    """Judge made-up figures: only the agreement and the shuffled parameters are given, the others pass."""
    clear = found(0.9, 0.01)
    curve = dict.fromkeys(("comprehensiveness", "sufficiency"), 1.0)
    share_S = np.linspace(0.0, 1.0, 5)
    early = Curves(share_S, share_S, share_S, np.sqrt(share_S), **curve)
    late = Curves(share_S, share_S, share_S, share_S**2, **curve)
    curves = {
        (method, removal): late if method == RANDOM else early
        for method in ("shap", "attention", RANDOM)
        for removal in REMOVALS
    }
    ranks = np.arange(9.0)
    rng = np.random.default_rng(0)
    measured = [
        ForecastMeasures(t, 0, {"attention": ranks}, None, {"attention": shuffled}, curves)
        for t in range(20)
        for shuffled in [ranks[None] if rng.random() < learned else -ranks[None]]
    ]
    inference = {"permuted": Inference("permuted", clear, clear, clear)}
    return judge("days", measured, inference, Agreement(clear, clear, agreed, clear))


def test_a_verdict_near_a_limit_says_so_with_its_margin() -> None:
    """The same config gave yes on one machine and inconclusive on another: both must have said so."""
    for value, answer, other in ((0.61, "yes", "inconclusive"), (0.59, "inconclusive", "yes")):
        verdict = verdict_of(found(value, 0.1))
        assert verdict.answer == answer
        assert verdict.near == (other,)
        (agreement,) = (one for one in verdict.criteria if one.name == "agreement")
        assert agreement.margin == pytest.approx(0.1), (
            "0.01 beyond or before the limit, of half an interval of 0.1"
        )
        for words in (f"{answer}, but near {other}", f"agreement {value:.2f}", "limit 0.50", "margin 0.10"):
            assert words in verdict.sentence
    near_no = verdict_of(found(0.19, 0.1))  # its interval ends at 0.29, and it fails below 0.3
    assert (near_no.answer, near_no.near) == ("no", ("inconclusive",))
    assert "limit 0.30, margin 0.10" in near_no.sentence


def test_a_clear_verdict_has_no_other_answer() -> None:
    for estimate, answer in (
        (found(0.9, 0.1), "yes"),
        (found(0.45, 0.1), "inconclusive"),
        (found(0.0, 0.1), "no"),
    ):
        verdict = verdict_of(estimate)
        assert (verdict.answer, verdict.near) == (answer, ())
        assert "near" not in verdict.sentence
        assert "margin" in verdict.sentence
    few = verdict_of(found(0.61, 0.1, dates=3))
    assert (few.answer, few.near) == ("inconclusive", ())
    assert "agreement measured on fewer than 5 dates" in few.sentence
    # a failure that is certain is not made uncertain by a criterion near its limit
    assert verdict_of(found(0.61, 0.1), learned=1.0).near == ()


def test_the_interval_of_shuffled_parameters_contains_the_variance_between_shuffles() -> None:
    """Attention whose ranks a shuffle permutes at random: its mean correlation with shuffles is 0.

    The attention is the same on all dates, so one fixed shuffle would give an interval of no width.
    """
    data, firms = panel(), np.arange(1)
    covered = 0
    for seed in range(40):
        model = WeightedDays(DAYS_W).eval()
        config = FaithfulConfig(permutations=1, background=1, random_orders=0, shuffled_shap=False, seed=seed)
        subject = MeasuredModel(model, data, TRAIN, config)
        measured = [one for session in TEST for one in measure(subject, "days", int(session), firms)]
        learned = randomisation(measured, "attention", seed)
        assert learned.low < learned.high
        covered += learned.low <= 0.0 <= learned.high
    assert covered >= 0.83 * 40, "90% is stated"
