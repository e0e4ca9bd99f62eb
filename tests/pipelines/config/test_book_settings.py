"""The settings of books: the rules that a config reads, and the values that they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from backtest.books.book import Book
from backtest.books.registry import BOOKS
from backtest.books.rules.quantile_long_short import QuantileLongShort
from pipelines.config.sections import BookConfig


def read(**given: object) -> Book:
    book: Book = TypeAdapter(BookConfig).validate_python(given)
    return book


def test_every_rule_of_the_folder_can_be_configured() -> None:
    assert len(BOOKS) >= 5
    assert all(read(kind=kind) == rule() for kind, rule in BOOKS.items())


def test_a_config_is_read_into_the_rule_itself() -> None:
    book = read(kind="quantile_long_short", quantiles=3, neutral=["sector"], overlap=True)
    assert book == QuantileLongShort(quantiles=3, neutral=("sector",), overlap=True)
    assert book.needs_sectors
    assert not read(kind="quantile_long_short", neutral=["beta"]).needs_sectors
    assert read(kind="optimised", limits={"max_sector_net": 0.02}).needs_sectors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "top_k_drop", "k": 3, "n_drop": 4}, "n_drop is 4; it must be from 1 to k"),
        ({"kind": "optimised", "limits": {"long_only": True}}, "needs a net exposure above 0"),
        ({"kind": "optimised", "limits": {"min_net": 0.5}}, "min_net must not be larger"),
        ({"kind": "quantile_long_short", "neutral": ["size"]}, "'sector', 'beta' or 'styles'"),
        ({"kind": "rank_weighted", "rebalance_on": "weekly"}, "'monday'"),
        ({"kind": "top_k_long_only", "neutral": ["beta"]}, "neutral is not a known name"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read(**given)
