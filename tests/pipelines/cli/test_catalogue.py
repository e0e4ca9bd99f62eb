"""`peerglass features`: the table, its filters, and JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from pipelines.cli import data as catalogue
from pipelines.cli.main import app
from pipelines.errors import ConfigError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["features", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_holds_every_field_of_the_registries() -> None:
    records = json.loads(run("--json"))
    assert [record["name"] for record in records] == [*CHANNELS, *CHARACTERISTICS]
    momentum = next(record for record in records if record["name"] == "momentum_252_21")
    assert momentum == {
        "name": "momentum_252_21",
        "family": "momentum",
        "formula": "C[t-21] / C[t-252] - 1",
        "window": 273,
        "warmup": 252,
        "unit": "fraction",
        "nan_rule": "",
        "needs": ["close"],
        "source": "Jegadeesh and Titman 1993; Fama and French 1996",
    }


def test_filters_select_by_family_and_by_required_data() -> None:
    of_statements = json.loads(run("--needs", "statements", "--json"))
    expected = [name for name, entry in CHARACTERISTICS.items() if entry.needs_statements]
    assert [record["name"] for record in of_statements] == expected
    both = json.loads(run("--needs", "volume", "--family", "channel", "--json"))
    assert [record["name"] for record in both] == ["dollar_volume_surprise"]


def test_the_table_shows_every_column_of_a_feature() -> None:
    table = run("--family", "value")
    for text in (
        "book_to_market",
        "549",
        "book_equity[t] / market_equity[t]",
        "Fama and French 1992",
        "ratio",
    ):
        assert text in table
    assert "close, book_equity, shares_outstanding" in table
    assert "momentum_63" not in table
    assert f"{len(catalogue.select('value'))} features." in table


def test_an_unknown_filter_value_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--family value2 does not exist: choose among .*momentum"):
        catalogue.select("value2")
    with pytest.raises(ConfigError, match=r"--needs fundamentals does not exist: choose among .*statements"):
        catalogue.select(None, "fundamentals")
