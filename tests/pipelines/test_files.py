"""Files are written whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest

from pipelines.errors import DataError
from pipelines.files import damaged, plain_name, read_json, remove_partial, replacing, write_table, write_text


def interrupt(path: Path, *, folder: bool = False) -> None:
    with replacing(path) as partial:
        assert partial.parent == path.parent
        if folder:
            partial.mkdir()
        (partial / "part" if folder else partial).write_text("half")
        raise InterruptedError


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    file = write_text(tmp_path / "new" / "page.html", "old ä")
    with pytest.raises(InterruptedError):
        interrupt(file)
    assert file.read_text(encoding="utf-8") == "old ä"
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]


def test_a_folder_takes_the_place_of_another_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    for names in (("a", "b"), ("c",)):
        with replacing(folder) as partial:
            partial.mkdir()
            for name in names:
                (partial / name).write_text(name)
    assert [path.name for path in folder.iterdir()] == ["c"]
    with pytest.raises(InterruptedError):
        interrupt(folder, folder=True)
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "deep" / ".folder.7.partial").mkdir(parents=True)
    (tmp_path / "deep" / ".folder.7.partial" / "part").write_text("x")
    (tmp_path / ".file.7.partial").write_text("x")
    kept = write_text(tmp_path / "deep" / "kept", "x")
    remove_partial(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert not list(tmp_path.rglob("*.partial"))


def test_a_folder_is_put_back_when_nothing_took_its_place(tmp_path: Path) -> None:
    for name in ("lost", "made"):
        (tmp_path / f".{name}.7.former.partial").mkdir()
        (tmp_path / f".{name}.7.former.partial" / "old").write_text("x")
    write_text(tmp_path / "made" / "new", "x")
    remove_partial(tmp_path)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["lost", "lost/old", "made", "made/new"]


def test_a_folder_takes_the_place_of_a_link_to_another(tmp_path: Path) -> None:
    write_text(tmp_path / "elsewhere" / "kept", "x")
    (tmp_path / "made").symlink_to(tmp_path / "elsewhere")
    with replacing(tmp_path / "made") as partial:
        partial.mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "made"]
    assert not (tmp_path / "made").is_symlink()
    assert (tmp_path / "elsewhere" / "kept").is_file()


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json"])
def test_a_table_is_written_by_the_ending_of_its_name(tmp_path: Path, ending: str) -> None:
    frame = pl.DataFrame({"date": [dt.date(2020, 1, 31)], "value": [1.5]})
    file = write_table(tmp_path / f"rows{ending}", frame)
    if ending == ".json":
        assert read_json(file) == [{"date": "2020-01-31", "value": 1.5}]
    else:
        read = pl.read_csv(file, try_parse_dates=True) if ending == ".csv" else pl.read_parquet(file)
        assert read.equals(frame)


def test_a_damaged_file_ends_in_one_sentence_with_the_cure(tmp_path: Path) -> None:
    file = write_text(tmp_path / "run.json", json.dumps({"a": 1})[:-2])
    with (
        pytest.raises(DataError, match=r"^The record .*run\.json is damaged \(.*\); delete it\.$"),
        damaged(f"The record {file}", "delete it"),
    ):
        read_json(file)


def test_a_text_becomes_a_plain_name() -> None:
    assert plain_name("Größe/../x (2)") == "gr_e_x_2"
    assert plain_name("../..") == ""
