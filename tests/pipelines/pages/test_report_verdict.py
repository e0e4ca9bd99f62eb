"""The verdict of a report: which model it chooses, the evidence that it gives, and its doubts."""

import re
from typing import Any

import polars as pl
import pytest
from page_data import Page, section_titles
from report_data import (
    make_header,
    make_ladder,
    make_report,
    make_trials,
)

from pipelines.pages.report import render_report as render
from pipelines.pages.report_data import RunReport
from pipelines.pages.verdict import judge_report


def ladder_with(model: str, **values: object) -> pl.DataFrame:
    chosen = (pl.col("model") == model) & (pl.col("delay") == 1)
    return make_ladder().with_columns(
        pl.when(chosen).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def test_the_verdict_chooses_by_validation_not_by_test() -> None:
    ladder = ladder_with(
        "self_peer", valid_rank_ic=0.09, ic=-0.01, ic_lower=-0.02, sharpe_net=-0.4, beats_ridge="no"
    )
    verdict = judge_report(make_report(ladder=ladder))
    assert verdict.best is not None
    assert verdict.best["model"] == "self_peer"
    assert verdict.tone == "bad"
    assert "loses money net of costs" in verdict.headline
    assert "not significantly above zero" in verdict.headline
    assert "does not beat ridge" in verdict.headline
    assert "unclear whether it beats LightGBM" in verdict.headline


def test_the_verdict_gives_the_evidence() -> None:
    verdict = judge_report(make_report())
    assert verdict.tone == "good"
    assert verdict.headline == "temporal_peer leads on validation and beats ridge and LightGBM on the test."
    assert "Validation rank IC 0.045" in verdict.evidence
    assert "sessions at delay 1: IC 0.041 (seed ensemble: t 6.6, [0.029, 0.053])" in verdict.evidence
    assert "Sharpe 1.35 [0.45, 2.25] net and 2.87 before costs" in verdict.evidence
    assert "deflated Sharpe 0.97" in verdict.evidence
    assert (
        "Beats ridge: yes (IC difference 0.0200 [0.0099, 0.0299], net Sharpe difference 1.10 [0.40, 1.80])"
        in verdict.evidence
    )
    assert "Beats lightgbm: yes" in verdict.evidence
    assert "42 trials" in verdict.evidence
    counted = "against earning nothing: p 0.090 (SPA); StepM counts temporal_peer as better. "
    assert counted in verdict.evidence
    assert "Probability of overfitting 13% (8 candidates: results of this evaluation). " in verdict.evidence
    alone = judge_report(make_report(**dict.fromkeys(make_trials()))).evidence
    assert alone == re.sub("All models at once.*(?=42 trials)", "", verdict.evidence)


@pytest.mark.parametrize(
    ("values", "doubt"),
    [
        ({"deflated_sharpe": 0.94}, "its deflated Sharpe ratio of 0.94 is below 0.95"),
        ({"deflated_sharpe": None}, "it has no deflated Sharpe ratio"),
        ({"ic_lower": 0.0}, "its test IC is not significantly above zero"),
        ({"ic_lower": None}, "its test IC has no interval"),
        (
            {"beats_ridge": "unclear", "beats_lightgbm": "unclear"},
            "it is unclear whether it beats ridge or LightGBM",
        ),
        ({"beats_lightgbm": "no"}, "it does not beat LightGBM"),
    ],
)
def test_each_threshold_of_the_verdict_is_a_doubt(values: dict[str, object], doubt: str) -> None:
    verdict = judge_report(make_report(ladder=ladder_with("temporal_peer", **values)))
    assert verdict.tone == "caution"
    assert verdict.headline == f"temporal_peer leads on validation, but {doubt}."


def test_the_verdict_is_about_the_first_delay_that_can_be_traded() -> None:
    trained_at_0 = make_report(header=make_header(label_delay=0, verdict_delay=1))
    assert judge_report(trained_at_0) == judge_report(make_report())
    page = Page(render(trained_at_0)).text
    assert "1.35" in page[: page.index("Hazards")]
    untradable = make_report(header=make_header(label_delay=0, verdict_delay=0, execution_delay=0))
    verdict = judge_report(untradable)
    assert verdict.tone == "caution"
    assert "no delay that can be traded was measured" in verdict.headline
    assert "On the test sessions at delay 0: IC 0.055 (seed ensemble: t 8.9, no interval)" in verdict.evidence
    at_once = judge_report(make_report(header=make_header(execution_delay=0)))
    assert at_once.headline.endswith("but no delay that can be traded was measured.")


def test_the_verdict_names_missing_comparisons_and_winning_baselines() -> None:
    alone = (
        make_ladder()
        .filter(pl.col("model") == "temporal_peer")
        .with_columns(beats_ridge=pl.lit(None, dtype=pl.String), beats_lightgbm=pl.lit(None, dtype=pl.String))
    )
    verdict = judge_report(make_report(ladder=alone, comparisons=None))
    assert verdict.tone == "caution"
    assert "was not compared with ridge" in verdict.headline
    wins = judge_report(make_report(ladder=ladder_with("ridge", valid_rank_ic=0.2)))
    assert wins.tone == "caution"
    assert "it is itself a baseline" in wins.headline
    unscored = judge_report(
        make_report(ladder=make_ladder().with_columns(valid_rank_ic=pl.lit(float("nan"))))
    )
    assert unscored.tone == "bad"
    assert unscored.best is None
    render(make_report(ladder=make_ladder().with_columns(valid_rank_ic=pl.lit(None, dtype=pl.Float64))))


def signal_report(*guard: tuple[str, str, str, str], **values: object) -> RunReport:
    """A report of a file with two signals: no training, no baseline, no validation."""
    chosen = pl.col("model").is_in(["momentum", "reversal"])
    nothing = dict.fromkeys(("beats_ridge", "beats_lightgbm"), pl.lit(None, dtype=pl.String))
    ladder = make_ladder().with_columns(truth_ic=pl.lit(None), truth_rank_ic=pl.lit(None)).filter(chosen)
    ladder = ladder.with_columns(valid_rank_ic=pl.lit(None, dtype=pl.Float64), **nothing)
    first = (pl.col("model") == "reversal") & (pl.col("delay") == 1)
    ladder = ladder.with_columns(
        pl.when(first).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )
    tables: dict[str, Any] = {
        name: frame.filter(chosen) if "model" in frame.columns else frame
        for name, frame in make_report().tables.items()
    }
    rows = [("reversal", "used", 700), ("reversal", "no price", 3), ("momentum", "used", 650)]
    found = guard or (("reversal", "returns", "pass", "No future."), ("momentum", "returns", "pass", "None."))
    own = {
        "ladder": ladder,
        "rows": pl.DataFrame(rows, schema=["signal", "reason", "rows"], orient="row"),
        "guard": pl.DataFrame(found, schema=["signal", "check", "verdict", "sentence"], orient="row"),
    }
    header = make_header(trained=False, libraries={}, stage_seconds={}, seeds=(), git_commit=None)
    without = dict.fromkeys(("folds", "learning", "comparisons"))
    return make_report(header=header, explained=(), file="signals.csv", **tables | own | without)


def test_a_signal_that_fails_the_guard_is_not_believable() -> None:
    good = {"sharpe_net": 1.5, "deflated_sharpe": 0.96, "ic_lower": 0.001}
    bad = ("reversal", "returns", "fail", "It knows <i>tomorrow</i>.")
    one = signal_report(bad, ("momentum", "returns", "pass", "None."), **good)
    verdict = judge_report(one)
    assert verdict.best is not None
    assert verdict.best["model"] == "momentum", "the first that passes"
    assert "Not believable, because look-ahead was found: reversal fails returns." in verdict.evidence
    page = render(one)
    assert "<li><b>reversal, returns</b>: It knows &lt;i&gt;tomorrow&lt;/i&gt;.</li>" in page
    assert "Look-ahead guard: 1 fail, 1 pass." in page
    assert "Look-ahead guard: 1 fail, 1 pass" in page[: page.index('<section id="overview">')], (
        "and at the top"
    )
    later = render(signal_report(("reversal", "returns", "pass", "None."), ("momentum", *bad[1:]), **good))
    assert 'class="audit fail"' in later, "the worst verdict of all signals, not that of the first one"
    every = judge_report(signal_report(bad, ("momentum", "returns", "fail", "So does it."), **good))
    assert (every.tone, every.best) == ("bad", None)
    assert every.headline == "None of the signals is believable: look-ahead was found."


def test_a_signal_file_has_a_report_without_training_and_the_first_signal_is_judged() -> None:
    good = {"sharpe_net": 1.5, "deflated_sharpe": 0.96, "ic_lower": 0.001}
    verdict = judge_report(signal_report(**good))
    assert verdict.tone == "good"
    assert verdict.headline == (
        "The signal reversal earns money net of costs, and its IC is significantly above zero."
    )
    assert verdict.best is not None
    assert verdict.best["model"] == "reversal", "the first, although momentum may be better"
    assert "The first of 2 signals" in verdict.evidence
    assert "42 trials" in verdict.evidence
    page = render(signal_report(**good))
    assert "There is no validation and no baseline" in page
    assert "beats" not in Page(page).text[: Page(page).text.index("Key figures", 2_000)].replace(
        "It beats", ""
    )
    titles = section_titles(page)
    assert not {"folds", "learning", "truth", "attribution"} & set(titles)
    assert {"figures", "books", "rolling", "returns", "signal", "quantiles", "capacity", "trials"} <= set(
        titles
    )
    assert "<h2>Signals</h2>" in page
    assert "<h1>reversal, momentum</h1>" in page, "the names of the signals, not that of the file"
    assert "<title>reversal, momentum, 2021-01-04 to 2023-11-24: Peerglass report</title>" in page
    part = page[page.index('<section id="file">') :]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in part.split("<tr")[2:4]]
    assert rows == [["reversal", "700", "3"], ["momentum", "650", "\N{EN DASH}"]]
    assert "was chosen by validation" not in page
    assert "that all of them forecast" not in page, "a weekly signal has fewer dates than the sessions"
    assert "Each signal is measured on its own dates among the" in page


@pytest.mark.parametrize(
    ("values", "tone", "words"),
    [
        ({"sharpe_net": -0.5}, "bad", "it loses money net of costs"),
        ({"sharpe_net": 1.5, "deflated_sharpe": 0.9, "ic_lower": 0.001}, "caution", "0.90 is below 0.95"),
        (
            {"sharpe_net": 1.5, "deflated_sharpe": 0.96, "ic_lower": -0.001},
            "caution",
            "not significantly above",
        ),
    ],
)
def test_the_thresholds_of_a_signal_are_those_of_a_model(
    values: dict[str, object], tone: str, words: str
) -> None:
    verdict = judge_report(signal_report(**values))
    assert verdict.tone == tone
    assert words in verdict.headline
    assert "ridge" not in verdict.headline
