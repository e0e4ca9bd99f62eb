"""The digest of source files is kept in the user's cache, and is the same without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.run import identity as fingerprint
from pipelines.run.identity import source_digest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home" / ".cache" / "peerglass" / "code"


def digest_of(folder: Path, source: str) -> str:
    file = folder / "code.py"
    file.write_text(source)
    return source_digest([file], folder)


def test_a_known_digest_is_read_and_not_parsed_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest_of(tmp_path, "x = 1")
    assert [path.read_text() for path in cache.iterdir()] == [first]
    monkeypatch.setattr(fingerprint, "normalise_source", lambda source: pytest.fail("parsed again"))
    assert digest_of(tmp_path, "x = 1") == first


def test_changed_code_is_never_taken_for_the_old(cache: Path, tmp_path: Path) -> None:
    first = digest_of(tmp_path, "x = 1")
    assert digest_of(tmp_path, "x = 2") != first
    assert digest_of(tmp_path, "x = 1  # a comment") == first
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damaged", ["", "short", "\x00" * 64, "é" * 64])
def test_a_damaged_entry_is_computed_again(cache: Path, tmp_path: Path, damaged: str) -> None:
    first = digest_of(tmp_path, "x = 1")
    (entry,) = cache.iterdir()
    entry.write_text(damaged)
    assert digest_of(tmp_path, "x = 1") == first
    assert entry.read_text() == first


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path, tmp_path: Path) -> None:
    first = digest_of(tmp_path, "x = 1")
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    assert digest_of(tmp_path, "x = 1") == first


def test_a_user_without_a_home_is_served(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest_of(tmp_path, "x = 1")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert digest_of(tmp_path, "x = 1") == first


def test_old_entries_are_removed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_MOST_KEPT", 3)
    for value in range(6):
        digest_of(tmp_path, f"x = {value}")
    assert len(list(cache.iterdir())) == 3
