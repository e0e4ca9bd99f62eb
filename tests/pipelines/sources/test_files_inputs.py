"""A user's own numbers and index membership: what is read, and which hazards are detected."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from given_files import files_source

from pipelines.errors import DataError
from pipelines.lake.contracts import check
from pipelines.sources.base import SourceTables

PRICES = "date,ticker,close\n2020-01-02,AAA,1\n2020-01-03,AAA,1\n2020-01-02,BBB,1\n2020-01-03,BBB,1\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def inputs(folder: Path, text: str, **dates: date) -> SourceTables:
    source = files_source(
        write(folder, "prices.csv", PRICES),
        inputs=write(folder, "inputs.csv", text),
        start=dates.get("start"),
        end=dates.get("end"),
    )
    return source.fetch()


def test_every_numeric_column_becomes_an_input_with_its_name(tmp_path: Path) -> None:
    text = (
        "date,ticker,MA 5,comment,52w-High,Nothing\n"
        "2020-01-03,AAA,0.5,up,,\n2020-01-02,AAA,nan,1,2,\n2020-01-02,CCC,inf,2,3,\n"
    )
    fetched = inputs(tmp_path, text)
    rows = fetched.tables["inputs"]
    assert rows.rows() == [
        ("ma_5", date(2020, 1, 2), "CCC", float("inf")),
        ("ma_5", date(2020, 1, 3), "AAA", 0.5),
        ("x_52w_high", date(2020, 1, 2), "AAA", 2.0),
        ("x_52w_high", date(2020, 1, 2), "CCC", 3.0),
    ]
    assert check("inputs", rows).by_rule() == {"value_is_finite": 1}
    notes = " ".join(fetched.notes)
    assert "not numeric and are ignored: comment" in notes
    assert "5 empty values of inputs.csv are ignored" in notes
    assert "1 of the tickers in the inputs have no prices" in notes


def test_inputs_are_limited_to_the_dates_and_files_are_concatenated(tmp_path: Path) -> None:
    text = "date,ticker,a\n2020-01-02,AAA,1\n2020-01-03,AAA,2\n2020-01-06,AAA,3\n"
    rows = inputs(tmp_path, text, start=date(2020, 1, 3), end=date(2020, 1, 3)).tables["inputs"]
    assert rows["value"].to_list() == [2.0]
    pl.DataFrame({"date": [date(2020, 1, 7)], "ticker": ["AAA"], "a": [4], "b": [5.0]}).write_parquet(
        tmp_path / "inputs2.parquet"
    )
    source = files_source(tmp_path / "prices.csv", inputs=tmp_path / "inputs*")
    assert source.fetch().tables["inputs"].select("name", "value").rows() == [
        ("a", 1.0),
        ("a", 2.0),
        ("a", 3.0),
        ("a", 4.0),
        ("b", 5.0),
    ]


def test_duplicate_and_invalid_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'MA 5' and 'ma_5', which would both be named ma_5"):
        inputs(tmp_path, "date,ticker,MA 5,ma_5\n2020-01-02,AAA,1,2\n")
    with pytest.raises(DataError, match="which cannot be the name of an input"):
        inputs(tmp_path, "date,ticker,äö\n2020-01-02,AAA,1\n")
    with pytest.raises(DataError, match="which cannot be the name of an input"):
        inputs(tmp_path, f"date,ticker,{'a' * 42}\n2020-01-02,AAA,1\n")
    with pytest.raises(DataError, match="no numeric column besides date and ticker"):
        inputs(tmp_path, "date,ticker,word\n2020-01-02,AAA,one\n")


def members(folder: Path, text: str) -> SourceTables:
    source = files_source(
        write(folder, "prices.csv", PRICES),
        membership=write(folder, "sp500.csv", text),
        columns={"membership.from_date": "added"},
        date_format="%m/%d/%Y",
    )
    return source.fetch()


def test_membership_spells_are_read_and_a_file_without_universe_is_named_after_the_file(
    tmp_path: Path,
) -> None:
    fetched = members(tmp_path, "ticker,added,to_date\nAAA,3/7/2011,2015-02-01\nBBB,,\n")
    assert check("membership", fetched.tables["membership"]).valid.sort("ticker").rows() == [
        ("sp500", "AAA", date(2011, 3, 7), date(2015, 2, 1)),
        ("sp500", "BBB", date(1900, 1, 1), None),
    ]
    output = " ".join(fetched.notes)
    assert "it is read as one universe, named sp500" in output
    assert "1 rows of sp500.csv have no from_date: these firms are members from the start" in output
    assert fetched.hazards == ()
    named = members(tmp_path, "universe,ticker,added\nbig,AAA,2011-03-07\n")
    assert named.tables["membership"]["universe"].to_list() == ["big"]


def test_a_membership_without_leavers_is_a_hazard(tmp_path: Path) -> None:
    (hazard,) = members(tmp_path, "ticker,added\nAAA,3/7/2011\nBBB,3/7/2012\n").hazards
    assert hazard.startswith("Membership without leavers")


def test_static_groups_are_a_hazard_and_static_names_are_not(tmp_path: Path) -> None:
    prices = write(tmp_path, "prices.csv", PRICES)
    named = write(tmp_path, "n.csv", "ticker,name\nAAA,Alpha\nBBB,Beta\n")
    assert files_source(prices, named).fetch().hazards == ()
    grouped = write(tmp_path, "g.csv", "ticker,sector\nAAA,Energy\nBBB,Energy\n")
    (hazard,) = files_source(prices, grouped).fetch().hazards
    assert hazard.startswith("Static groups: sector as of the date of g.csv are applied")
    dated = write(
        tmp_path, "d.csv", "ticker,sector,valid_from\nAAA,Energy,2001-01-01\nBBB,Energy,2001-01-01\n"
    )
    assert files_source(prices, dated).fetch().hazards == ()


def test_a_list_that_looks_like_an_index_without_membership_is_a_hazard(tmp_path: Path) -> None:
    days = [date(2010, 1, 4) + timedelta(days=91 * quarter) for quarter in range(20)]
    rows = [f"{day},F{firm:02},10" for i, day in enumerate(days) for firm in range(60) if firm < 40 + i]
    prices = write(tmp_path, "prices.csv", "date,ticker,close\n" + "\n".join(rows) + "\n")
    message = ("Survivorship: the list is that of 2014.",)
    warned = files_source(prices, hazards=message).fetch().hazards
    assert len(warned) == 2
    assert "No membership was given for what looks like an index: each of 59 firms" in warned[1]
    assert "15 of them start more than a year after the first session" in warned[1]
    spells = write(tmp_path, "m.csv", "ticker,from_date,to_date\nF00,2009-01-01,2015-01-01\n")
    assert files_source(prices, membership=spells, hazards=message).fetch().hazards == message
