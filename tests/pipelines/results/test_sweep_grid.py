"""The grid of a sweep: names, values, combinations and mistakes."""

from __future__ import annotations

import pytest

from pipelines.config.sections import BacktestConfig
from pipelines.errors import ConfigError
from pipelines.results.sweeps import Grid

SECTION = BacktestConfig.model_validate(
    {
        "books": {
            "mine": {"kind": "quantile_long_short", "quantiles": 5},
            "other": {"kind": "top_k_long_only", "k": 3},
        }
    }
)


def test_short_and_dotted_names_find_the_same_setting() -> None:
    short = Grid.parse("quantiles=5,10; delay=0,1,2; half_spread_bps=0,2.5", SECTION, "mine").axes
    dotted = Grid.parse(
        "books.mine.quantiles=5,10;delay=0,1,2;costs.half_spread_bps=0,2.5", SECTION, "mine"
    ).axes
    assert [axis.path for axis in short] == [axis.path for axis in dotted]
    assert [axis.values for axis in short] == [(5, 10), (0, 1, 2), (0, 2.5)]


def test_every_combination_is_a_variant_with_the_swept_book_alone() -> None:
    variants = Grid.parse("quantiles=4,5; delay=null,2", SECTION, "mine").variants
    found = [
        (one.backtest.books["mine"].quantiles, one.backtest.delay, dict(one.values))  # type: ignore[attr-defined]
        for one in variants
    ]
    assert found == [
        (4, None, {"quantiles": 4, "delay": None}),
        (4, 2, {"quantiles": 4, "delay": 2}),
        (5, None, {"quantiles": 5, "delay": None}),
        (5, 2, {"quantiles": 5, "delay": 2}),
    ]
    assert all(list(one.backtest.books) == ["mine"] for one in variants)
    assert SECTION.books["mine"].quantiles == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "The sweep is empty"),
        ("quantiles", "write name=value,value"),
        ("k=1,2", "'k', which is no setting"),  # of the other book
        ("quantile=5", "no setting"),
        ("benchmarks.market.weights=equal", "no setting"),  # changes no book
        ("delay=1; delay=2", "twice"),
        ("delay=1,1", "lists a value of delay twice"),
        ("delay=[1", "plain values"),
        ("delay={a: 1}", "plain values"),
        ("delay=-1", "backtest.delay"),
        ("quantiles=1", "quantiles"),
        ("kind=top_k_long_only", "no setting"),
        (f"delay={','.join(map(str, range(200)))}; quantiles={','.join(map(str, range(2, 103)))}", "at most"),
    ],
)
def test_mistakes_are_named(text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        Grid.parse(text, SECTION, "mine")


def test_an_unknown_book_is_refused() -> None:
    with pytest.raises(ConfigError, match="There is no book 'none'; the books are mine, other"):
        Grid.parse("delay=1", SECTION, "none")
