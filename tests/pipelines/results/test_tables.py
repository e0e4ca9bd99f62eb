"""Result tables are declared once: what evaluation writes is what is declared, and numbers read the same."""

from __future__ import annotations

import math

import dataframely as dy
import polars as pl
import pytest

from pipelines.columns import COLUMNS, TABLES, table
from pipelines.format import IC, NAMES, PERCENT, RATIO, SCORE, Kind, interval

PATH = {"model": "a", "path": 1, "delay": 1, "book": "b", "dates": 3, "ic": 0.1, "rank_ic": 0.1}


def test_a_table_has_its_columns_in_order_and_null_for_nan() -> None:
    frame = table("paths").frame([{"sharpe_net": math.nan, **PATH}])
    assert frame.columns == list(table("paths").columns)
    assert frame["sharpe_net"].to_list() == [None]
    assert frame.schema == table("paths").schema
    assert table("paths").frame([]).schema == table("paths").schema


def test_a_table_with_other_columns_than_declared_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"needs the columns \['sharpe_net'\]"):
        table("paths").frame([PATH])
    with pytest.raises(AssertionError, match=r"no columns \['sharp'\]"):
        table("paths").frame([{**PATH, "sharpe_net": 1.0, "sharp": 1.0}])
    with pytest.raises(dy.exc.ValidationError):
        table("paths").frame([{**PATH, "sharpe_net": 1.0, "model": None}])


def test_further_columns_follow_the_declared_ones() -> None:
    rows = pl.DataFrame(
        {"signal": ["s"], "quantiles": [5], "variants": [2], "pbo": [0.5], "loss_probability": [0.1]}
    )
    frame = table("sweep_overfitting").frame(rows, "quantiles")
    assert frame.columns == ["signal", "variants", "pbo", "loss_probability", "quantiles"]


def test_every_column_is_declared_and_used() -> None:
    used = {name for one in TABLES.values() for name in one.columns}
    assert used == set(COLUMNS)
    assert all(column.label for column in COLUMNS.values())


@pytest.mark.parametrize(
    ("kind", "value", "text", "page"),
    [
        (IC, -0.01234, "-0.0123", "\N{MINUS SIGN}0.0123"),
        (IC.with_sign, 0.01234, "+0.0123", "+0.0123"),
        (RATIO, -0.001, "0.00", "0.00"),
        (PERCENT, 0.1234, "12.3", "12.3"),
        (SCORE, 0.012, "0.01200", "0.01200"),
        (RATIO, 12345.6, "12,345.60", "12,345.60"),
        (Kind(3, style="#"), 1500.0, "1,500", "1,500"),
        (Kind(3, style="#"), 9.9996, "10.0", "10.0"),
        (Kind(3, style="#"), -0.0012345, "-0.00123", "\N{MINUS SIGN}0.00123"),
        (Kind(4, style="g"), 10_000_000.0, "10,000,000", "10,000,000"),
        (Kind(4, style="g"), 0.5, "0.5", "0.5"),
        (Kind(2, style="#"), 3.1e-7, "3.1e-07", "3.1 \N{MULTIPLICATION SIGN} 10⁻⁷"),
        (Kind(4, style="g"), 0.0, "0", "0"),
        (NAMES, ["A -2%", "B -1%"], "A -2%, B -1%", "A \N{MINUS SIGN}2%, B \N{MINUS SIGN}1%"),
        (RATIO, math.nan, "-", "\N{EN DASH}"),
        (RATIO, None, "-", "\N{EN DASH}"),
    ],
)
def test_numbers_are_written_by_kind(kind: object, value: object, text: str, page: str) -> None:
    assert (kind.text(value), kind.page(value)) == (text, page)  # type: ignore[attr-defined]


def test_an_interval_says_when_it_is_unknown() -> None:
    assert interval(1.2, 0.31, 2.1) == "1.20 [0.31, 2.10]"
    assert interval(0.01, None, None, IC.with_sign) == "+0.0100 (no interval)"
    assert interval(None, None, None) == "-"
