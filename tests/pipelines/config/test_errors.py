"""Error sentences of configs: paths of unknown keys and of wrong values."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.config.load import check_config
from pipelines.errors import ConfigError

MINIMAL: dict[str, Any] = {
    "name": "tiny",
    "source": {"kind": "files", "prices": "prices.csv"},
    "lake": "data/lake/tiny",
    "folds": {"scheme": "expanding", "train": 100, "valid": 20, "test": 20, "embargo": 1},
    "models": {"zero": {}, "ridge": {}},
}
YAHOO: dict[str, Any] = {"kind": "yfinance", "tickers": ["AAPL"]}


def message_of(**changes: Any) -> str:  # noqa: ANN401 (settings)
    with pytest.raises(ConfigError) as caught:
        check_config({**MINIMAL, **changes}, origin="a.yaml")
    return str(caught.value)


def test_an_unknown_option_of_the_day_encoder_is_named_by_its_path() -> None:
    message = message_of(models={"mine": {"model": "temporal_peer", "encoder": {"widht": 8}}})
    assert message == "a.yaml: models.mine.encoder.widht is not a known name; did you mean 'width'?"
    message = message_of(models={"temporal_peer": {"encoder": {"layers": 0}}})
    assert message.startswith("a.yaml: models.temporal_peer.encoder.layers: ")
    assert "(given: 0)" in message
    message = message_of(models={"temporal_peer": {"encoder": {"layers": "many"}}})
    assert message.startswith("a.yaml: models.temporal_peer.encoder.layers: ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"source": {**MINIMAL["source"], "price": "p"}},
            "source.price is not a known name; did you mean 'prices'?",
        ),
        (
            {"backtest": {"books": {"mine": {"kind": "top_k_long_only", "kk": 3}}}},
            "backtest.books.mine.kk is not a known name; did you mean 'k'?",
        ),
        (
            {"folds": {"scheme": "rolling", "train": 9, "valid": 9, "test": 9}},
            "folds.embargo: Field required.",
        ),
        (
            {"folds": {**MINIMAL["folds"], "train": 0}},
            "folds.train: Input should be greater than or equal to 1 (given: 0).",
        ),
        (
            {"seeds": [0, "x"]},
            "seeds.1: Input should be a valid integer, unable to parse string as an integer (given: 'x').",
        ),
    ],
)
def test_paths_are_those_of_the_file_without_the_kinds_of_unions(
    changes: dict[str, Any], expected: str
) -> None:
    assert message_of(**changes) == f"a.yaml: {expected}"


def test_an_unknown_key_comes_before_other_problems() -> None:
    message = message_of(label={"horizon": 0}, universe={"min_prise": 1})
    assert message == "a.yaml: universe.min_prise is not a known name; did you mean 'min_price'?"
