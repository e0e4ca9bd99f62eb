"""The settings of books: the rules that they build, and the values that they refuse."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from backtest.books.optimised import Limits
from backtest.books.quantile_long_short import QuantileLongShort
from backtest.books.registry import BOOKS
from pipelines.config.backtest import (
    BookConfig,
    BookSection,
    LimitsConfig,
    OptimisedBookConfig,
    QuantileBookConfig,
    RankBookConfig,
    TopKBookConfig,
    TopKDropBookConfig,
)

SECTIONS: tuple[type[BookSection], ...] = (
    QuantileBookConfig,
    TopKBookConfig,
    TopKDropBookConfig,
    RankBookConfig,
    OptimisedBookConfig,
)


def read(**given: object) -> BookSection:
    section: BookSection = TypeAdapter(BookConfig).validate_python(given)
    return section


def test_every_kind_has_settings() -> None:
    assert [read(kind=kind).kind for kind in BOOKS] == list(BOOKS)
    assert {type(read(kind=kind)) for kind in BOOKS} == set(SECTIONS)


@pytest.mark.parametrize("kind", BOOKS)
def test_settings_and_rule_have_the_same_defaults(kind: str) -> None:
    assert read(kind=kind).rule(horizon=5) == BOOKS[kind]()


def test_every_field_of_a_rule_can_be_set() -> None:
    translated = {"holding": "overlap"}
    for kind, rule in BOOKS.items():
        names = {translated.get(field.name, field.name) for field in fields(rule)}  # type: ignore[arg-type]
        assert names == set(type(read(kind=kind)).model_fields) - set(BookSection.model_fields)
    assert {field.name for field in fields(Limits)} == set(LimitsConfig.model_fields)


def test_overlapping_decisions_are_held_for_the_horizon() -> None:
    book = read(kind="quantile_long_short", quantiles=3, neutral=["sector"], overlap=True)
    assert book.rule(horizon=5) == QuantileLongShort(3, ("sector",), holding=5)
    assert book.needs_sectors
    assert not read(kind="quantile_long_short", neutral=["beta"]).needs_sectors
    assert read(kind="optimised", limits={"max_sector_net": 0.02}).needs_sectors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "top_k_drop", "k": 3, "n_drop": 4}, "n_drop is 4; it must be from 1 to k"),
        ({"kind": "optimised", "limits": {"long_only": True}}, "needs a net exposure above 0"),
        ({"kind": "optimised", "limits": {"min_net": 0.5}}, "min_net must not be larger"),
        ({"kind": "quantile_long_short", "neutral": ["size"]}, "'sector' or 'beta'"),
        ({"kind": "rank_weighted", "rebalance_on": "weekly"}, "'monday'"),
        ({"kind": "top_k_long_only", "neutral": ["beta"]}, "neutral is not a known name"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read(**given)
