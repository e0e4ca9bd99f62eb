"""Cutting a lake that has grown gives what was known: the same features, and no later knowledge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from counted import cut_tables
from growing_lakes import Tables, sessions_of
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import build_dataset
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.source import SimulatedSource


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any]) -> Config:
    market = {"firms": 16, "sessions": 420, "bad_ticks": 0, "delistings_per_year": 0.5}
    source = {"kind": "simulated", "seed": 10, "market": market}
    return check_config({**tiny_settings, "source": source}, origin="cut")


@pytest.fixture(scope="module")
def tables(config: Config) -> Tables:
    source = make_source(config)
    assert isinstance(source, SimulatedSource)
    return {name: frame for name, frame in source.fetch().tables.items() if not name.startswith("truth")}


@pytest.mark.parametrize("session", [270, 340])
def test_features_are_equal_to_the_bit_with_and_without_the_cut(
    config: Config, tables: Tables, session: int
) -> None:
    """Firms that list later change the number of columns and nothing else."""
    whole = build_dataset(tables, config)
    cut = build_dataset(cut_tables(tables, sessions_of(tables)[session]), config)
    assert cut.panel.n_firms < whole.panel.n_firms
    own = [whole.panel.tickers_N.index(ticker) for ticker in cut.panel.tickers_N]
    until = slice(0, session + 1)
    assert cut.channel_names == whole.channel_names
    assert cut.characteristic_names == whole.characteristic_names
    np.testing.assert_array_equal(cut.universe_TN, whole.universe_TN[until][:, own])
    assert cut.universe_TN[-1].sum() > 10

    def bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
        return np.ascontiguousarray(array).view(np.int32)

    np.testing.assert_array_equal(bits(cut.channels_TNC), bits(whole.channels_TNC[until][:, own]))
    np.testing.assert_array_equal(
        bits(cut.characteristics_TNF), bits(whole.characteristics_TNF[until][:, own])
    )


def day(number: int) -> dt.date:
    return dt.date(2020, 1, 1) + dt.timedelta(days=number)


def test_what_a_row_says_about_later_days_is_not_known() -> None:
    securities = pl.DataFrame(
        {
            "ticker": ["A", "B", "C", "D"],
            "valid_from": [day(0), day(0), day(0), day(9)],
            "valid_to": [day(5), day(6), None, None],
            "delisted_on": [day(5), day(6), None, None],
            "delisting_return": [-0.3, -0.4, None, None],
            "delisting_reason": ["performance", "merger", None, None],
        }
    )
    membership = pl.DataFrame(
        {
            "universe": ["u"] * 3,
            "ticker": ["A", "B", "C"],
            "from_date": [day(0), day(1), day(6)],
            "to_date": [day(5), day(6), day(8)],
        }
    )
    statements = pl.DataFrame({"ticker": ["A", "A"], "known_at": [day(5), day(6)], "value": [1.0, 2.0]})
    later = pl.DataFrame({"ticker": ["A"], "date": [day(6)]})
    given = {"securities": securities, "membership": membership, "fundamentals": statements, "inputs": later}
    cut = cut_tables(given, day(5))
    assert list(cut) == ["securities", "membership", "fundamentals"], "a table without known rows is left out"
    assert cut["securities"].rows() == [
        ("A", day(0), day(5), day(5), -0.3, "performance"),
        ("B", day(0), None, None, None, None),
        ("C", day(0), None, None, None, None),
    ]
    assert cut["membership"].rows() == [("u", "A", day(0), day(5)), ("u", "B", day(1), None)]
    assert cut["fundamentals"]["value"].to_list() == [1.0]


def test_a_row_with_an_unreadable_date_is_kept_for_its_contract() -> None:
    texts = ["2020-01-02", "2020-13-01", "2020-01-09", None]
    cut = cut_tables({"prices": pl.DataFrame({"date": texts, "ticker": "A"})}, day(5))
    assert cut["prices"]["date"].to_list() == ["2020-01-02", "2020-13-01", None]
    spell = {"ticker": "A", "from_date": [day(0), day(0)], "to_date": ["2020-01-09", "soon"]}
    assert cut_tables({"membership": pl.DataFrame(spell)}, day(5))["membership"]["to_date"].to_list() == [
        None,
        "soon",
    ]


rows_of = st.lists(
    st.tuples(st.integers(0, 12), st.none() | st.integers(1, 12), st.none() | st.integers(0, 14)), max_size=8
)


@given(rows=rows_of, first=st.integers(0, 14), second=st.integers(0, 14))
@settings(max_examples=60)
def test_a_second_cut_adds_nothing(
    rows: list[tuple[int, int | None, int | None]], first: int, second: int
) -> None:
    """Cutting twice is cutting at the earlier day, and nothing of a later day remains."""
    securities = pl.DataFrame(
        {
            "ticker": [f"F{n}" for n in range(len(rows))],
            "valid_from": [day(start) for start, _, _ in rows],
            "valid_to": [None if length is None else day(start + length) for start, length, _ in rows],
            "delisted_on": [None if end is None else day(end) for _, _, end in rows],
            "delisting_return": [None if end is None else -0.1 for _, _, end in rows],
            "delisting_reason": [None if end is None else "merger" for _, _, end in rows],
        },
        schema={
            "ticker": pl.String,
            "valid_from": pl.Date,
            "valid_to": pl.Date,
            "delisted_on": pl.Date,
            "delisting_return": pl.Float64,
            "delisting_reason": pl.String,
        },
    )
    earlier, later = sorted((day(first), day(second)))
    once = cut_tables({"securities": securities}, earlier)
    twice = cut_tables(cut_tables({"securities": securities}, later), earlier)
    assert once.keys() == twice.keys()
    for name, frame in once.items():
        assert frame.equals(twice[name])
        for column in ("valid_from", "valid_to", "delisted_on"):
            assert not (frame[column] > earlier).any()
        assert (
            frame.filter(pl.col("delisted_on").is_null())["delisting_return"].null_count()
            == frame["delisted_on"].null_count()
        )
