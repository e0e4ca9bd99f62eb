"""The ladder of a report: intervals and answers of the tests beside the metrics of an evaluation."""

from __future__ import annotations

import polars as pl

from pipelines.pages.report_data import report_ladder

MODELS = {"zero": "zero", "ridge": "ridge", "ridge-strong": "ridge", "lightgbm": "lightgbm", "net": "tcn"}
NAN = float("nan")


def make_ladder() -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"model": model, "delay": delay, "rank_ic": 0.1, "truth_rank_ic": 0.2 if delay else None}
            | {f"book.{key}": NAN if model == "zero" else 0.5 for key in ("sharpe_gross", "sharpe_net")}
            | {f"book.{key}": 0.0 for key in ("turnover", "annual_return_net", "max_drawdown_net")}
            for model in MODELS
            for delay in (0, 1)
        ]
    )


def comparison(model: str, baseline: str, rival: str, beats: str, gap: float) -> dict[str, object]:
    return {
        "model": model,
        "baseline": baseline,
        "rival": rival,
        "delay": 1,
        "beats": beats,
        "ic_difference": gap,
    }


def test_intervals_and_answers_stand_at_the_delay_of_the_tests() -> None:
    comparisons = pl.DataFrame(
        [
            comparison("net", "ridge", "ridge", "yes", 0.02),
            comparison("net", "ridge", "ridge-strong", "unclear", 0.01),
            comparison("net", "lightgbm", "lightgbm", "no", -0.01),
            comparison("zero", "ridge", "ridge", "no", -0.02),
            comparison("zero", "ridge", "ridge-strong", "unclear", -0.03),
            comparison("ridge", "lightgbm", "lightgbm", "yes", 0.01),
        ]
    )
    tested = ("ic_lower", "ic_upper", "sharpe_lower", "sharpe_upper", "deflated_sharpe")
    significance = pl.DataFrame(
        [
            {"model": model, "book": book, "delay": 1, **dict.fromkeys(tested, value)}
            for model in MODELS
            for book, value in (("book", 0.25), ("other", 0.75))
        ]
    )
    shown = report_ladder(
        make_ladder(), "book", MODELS, {"comparisons": comparisons, "significance": significance}
    )
    assert shown.select("model", "delay").rows() == make_ladder().select("model", "delay").rows()
    now = shown.filter(pl.col("delay") == 1)
    assert now["beats_ridge"].to_list() == ["no", None, None, None, "unclear"]
    assert now["beats_lightgbm"].to_list() == [None, "yes", None, None, "no"]
    assert all(now[name].to_list() == [0.25] * len(MODELS) for name in tested)
    assert now["baseline"].to_list() == [None, "ridge", "ridge", "lightgbm", None]
    assert now["sharpe_net"].to_list() == [None, 0.5, 0.5, 0.5, 0.5]
    assert now["share_of_truth"].to_list() == [0.5] * len(MODELS)
    before = shown.filter(pl.col("delay") == 0)
    assert before.select("beats_ridge", "share_of_truth", *tested).null_count().row(0) == (5,) * 7


def test_an_evaluation_without_tests_has_neither_intervals_nor_answers() -> None:
    shown = report_ladder(make_ladder(), "book", {}, {})
    assert shown.height == 10
    names = ("baseline", "beats_ridge", "beats_lightgbm", "deflated_sharpe")
    assert shown.select(names).null_count().row(0) == (10,) * 4
