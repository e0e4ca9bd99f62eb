"""Index membership in the layouts that users have; every layout gives the spells of one index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from pipelines.errors import DataError
from pipelines.sources.base import STATIC_SINCE
from pipelines.sources.files.reading import GivenFiles
from pipelines.sources.files.tables import MEMBERSHIP_NAMES, read_membership

SPELLS = [
    ("AAA", date(2020, 1, 1), date(2020, 3, 1)),
    ("AAA", date(2020, 5, 1), None),
    ("BBB", date(2020, 1, 1), None),
    ("CCC", date(2020, 3, 1), date(2020, 5, 1)),
]
LAYOUTS: Mapping[str, str] = {
    "spells": "ticker,from_date,to_date\nAAA,2020-01-01,2020-03-01\nAAA,2020-05-01,\nBBB,2020-01-01,\n"
    "CCC,2020-03-01,2020-05-01\n",
    "last days": "permno,start,ending\nAAA,2020-01-01,2020-02-29\nAAA,2020-05-01,\nBBB,2020-01-01,\n"
    "CCC,2020-03-01,2020-04-30\n",
    "dated rows": "date,ticker,weight\n2020-01-01,AAA,1\n2020-01-01,BBB,1\n2020-03-01,BBB,1\n"
    "2020-03-01,CCC,1\n2020-05-01,AAA,1\n2020-05-01,BBB,1\n",
    "lists": 'date,tickers\n2020-01-01,"AAA,BBB"\n2020-03-01,"BBB,CCC"\n2020-05-01,"AAA,BBB"\n',
    "flags": "Date,AAA,BBB,CCC\n2020-01-01,1,1,0\n2020-03-01,0,1,1\n2020-05-01,1,1,0\n",
    "words": "Date,AAA,BBB,CCC\n1/1/2020,True,True,False\n3/15/2020,False,True,True\n"
    "5/1/2020,True,True,False\n",
}


def given(path: Path) -> GivenFiles:
    return GivenFiles([path], MEMBERSHIP_NAMES)


def spells(path: Path) -> list[tuple[object, ...]]:
    rows = read_membership(given(path))
    return rows.sort("ticker", "from_date").select("ticker", "from_date", "to_date").rows()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_spells(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "index.csv"
    path.write_text(LAYOUTS[layout])
    march = date(2020, 3, 15) if layout == "words" else date(2020, 3, 1)
    expected = [tuple(march if x == date(2020, 3, 1) else x for x in row) for row in SPELLS]
    assert spells(path) == expected
    files = given(path)
    rows = read_membership(files)
    assert rows["universe"].unique().to_list() == ["index"]
    assert not files.hazards


@pytest.mark.parametrize(
    "text",
    [
        "Date,Added,Removed\n2020-03-01,CCC,AAA\n2020-05-01,AAA,CCC\n2020-05-01,,DDD\n",
        "date,ticker,action\n2020-03-01,CCC,add\n2020-03-01,AAA,Removed\n2020-05-01,AAA,added\n"
        "2020-05-01,CCC,remove\n2020-05-01,DDD,out\n",
    ],
)
def test_changes_give_spells_and_who_is_removed_first_was_a_member_from_the_start(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "index.csv"
    path.write_text(text)
    assert spells(path) == [
        ("AAA", STATIC_SINCE, date(2020, 3, 1)),
        ("AAA", date(2020, 5, 1), None),
        ("CCC", date(2020, 3, 1), date(2020, 5, 1)),
        ("DDD", STATIC_SINCE, date(2020, 5, 1)),
    ]


def test_an_action_that_is_neither_is_quoted_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.csv"
    path.write_text("date,ticker,action\n2020-03-01,CCC,perhaps\n")
    with pytest.raises(DataError, match="the action 'perhaps' of CCC, which is neither"):
        spells(path)
    path.write_text("date,text,remark\n2020-03-01,a,b\n")
    with pytest.raises(
        DataError, match="has no layout of index membership; its columns are date, text, remark"
    ):
        spells(path)


def test_universes_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    pl.DataFrame(
        {
            "universe": ["x", "y", "x"],
            "date": [date(2020, 1, 1), date(2020, 2, 1), date(2020, 3, 1)],
            "ticker": ["A", "A", "B"],
        }
    ).write_parquet(path)
    rows = read_membership(given(path))
    assert rows.sort("universe", "ticker").select("universe", "ticker", "from_date", "to_date").rows() == [
        ("x", "A", date(2020, 1, 1), date(2020, 3, 1)),
        ("x", "B", date(2020, 3, 1), None),
        ("y", "A", date(2020, 2, 1), None),
    ]
