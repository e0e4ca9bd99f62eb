"""The feature store: equal to arrays in memory, made once, noticed when damaged, kept within its limit."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest

from features.library.channels import CHANNELS
from features.library.standardise import transform_characteristics
from features.panel.panel import Panel
from pipelines.cli.start import examine
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset import characteristics
from pipelines.dataset.build import Dataset, add_features
from pipelines.dataset.characteristics import Allocate, raw_characteristics
from pipelines.dataset.feature_store import FeatureStore, MappedArray, entries_of, is_in_use, open_mapped
from pipelines.dataset.market import Market, build_market
from pipelines.errors import DataError
from pipelines.run.identity import features_digest

T, N = 90, 40
SHAPE = (6, 5, 4)
VALUES = np.arange(120, dtype=np.float32).reshape(SHAPE)


def config(**features: Any) -> Config:  # noqa: ANN401
    return check_config(
        {
            "name": "stored",
            "source": {"kind": "sample"},
            "lake": "lake",
            "universe": {"min_history": 20},
            "features": {"window": 5, **features},
            "folds": {"scheme": "expanding", "train": 40, "valid": 10, "test": 10, "embargo": 0},
            "models": {"ridge": {}},
        },
        origin="test",
    )


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(5)
    close = 20 * np.exp(np.cumsum(rng.normal(0, 0.02, (T, N)), axis=0))
    close[30:35, 3] = np.nan
    days = np.arange(T) + np.datetime64("2020-01-01")
    tickers = [f"F{n}" for n in range(N)]
    prices = pl.DataFrame(
        {
            "date": np.repeat(days, N),
            "ticker": tickers * T,
            **{
                name: (close * scale).ravel()
                for name, scale in (("open", 1.0), ("high", 1.02), ("low", 0.98))
            },
            "close": close.ravel(),
            "volume": rng.integers(1000, 2000, T * N).astype(float),
            "split_ratio": np.ones(T * N),
            "dividend": np.zeros(T * N),
        }
    ).fill_nan(None)
    inputs = prices.select("date", "ticker", value=pl.col("close") % 1.0).with_columns(name=pl.lit("mine"))
    return {"prices": prices, "inputs": inputs.drop_nulls()}


@pytest.fixture(scope="module")
def market(tables: dict[str, pl.DataFrame]) -> Market:
    return build_market(tables, config())


def store(folder: Path, notes: list[str] | None = None, limit: int = 2**30) -> FeatureStore:
    return FeatureStore(folder, limit, "code", (notes if notes is not None else []).append)


def fill(allocate: Allocate) -> np.ndarray[Any, np.dtype[np.float32]]:
    allocate((7,))[:] = 0.0  # scratch
    out = allocate(SHAPE)
    out[:] = VALUES
    return out


def refuse(allocate: Allocate) -> np.ndarray[Any, np.dtype[np.float32]]:
    raise AssertionError("made twice")


@pytest.mark.parametrize("features", [{}, {"transform": {"add_indicator": True, "missing": "median"}}])
def test_mapped_features_equal_those_in_memory_to_the_bit(
    features: dict[str, Any],
    tables: dict[str, pl.DataFrame],
    market: Market,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference computes all raw values and then transforms all dates, without blocks and files."""
    settings = config(**features)
    in_memory = add_features(market, tables, settings)
    monkeypatch.setattr(characteristics, "BLOCK", 9 * N * len(in_memory.characteristic_names))
    monkeypatch.setattr("features.arithmetic.parallel._CELLS", 16 * T)  # three tiles of firms
    mapped = add_features(market, tables, settings, store(tmp_path))
    names = [name for name in mapped.characteristic_names if not name.endswith("_missing")]
    raw_TNF = raw_characteristics(market.panel, names, tables, settings)
    rule = settings.features.transform
    expected = transform_characteristics(raw_TNF, market.universe_TN, market.panel.group_TN, rule)
    assert names[-1] == "input_mine"
    assert np.abs(expected[:, :, len(names) - 1]).max() > 1
    np.testing.assert_array_equal(mapped.characteristics_TNF, expected)
    np.testing.assert_array_equal(in_memory.characteristics_TNF, expected)
    assert isinstance(mapped.characteristics_TNF, MappedArray)
    assert isinstance(mapped.channels_TNC, MappedArray)
    np.testing.assert_array_equal(mapped.channels_TNC, in_memory.channels_TNC)
    computes_nothing = mock.Mock(side_effect=AssertionError("made twice"))
    monkeypatch.setattr("features.library.registry.Registry.compute", computes_nothing)
    monkeypatch.setattr("pipelines.dataset.build.make_characteristics", computes_nothing)
    again = add_features(market, tables, settings, store(tmp_path))
    np.testing.assert_array_equal(again.channels_TNC, mapped.channels_TNC)
    np.testing.assert_array_equal(again.characteristics_TNF, mapped.characteristics_TNF)


def test_channels_of_other_names_or_code_are_another_entry(
    tables: dict[str, pl.DataFrame], market: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = add_features(market, tables, config(channels=["return", "intraday_range"]), store(tmp_path))
    one = add_features(market, tables, config(channels=["intraday_range"]), store(tmp_path))
    np.testing.assert_array_equal(one.channels_TNC, both.channels_TNC[:, :, 1:])
    before = features_digest()
    assert features_digest() == before
    changed = dataclasses.replace(CHANNELS["return"], compute=lambda panel: panel.close_TN)
    monkeypatch.setitem(CHANNELS, "return", changed)
    assert features_digest() != before


def test_an_entry_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = store(tmp_path).get("a", SHAPE, fill)
    np.testing.assert_array_equal(made, VALUES)
    np.testing.assert_array_equal(store(tmp_path).get("a", SHAPE, refuse), VALUES)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["entry.json", "values.f32"]
    with pytest.raises(ValueError, match="read-only"):
        made[0, 0, 0] = 1.0


def test_the_key_covers_what_features_depend_on(
    tables: dict[str, pl.DataFrame], market: Market, tmp_path: Path
) -> None:
    one = store(tmp_path)
    inputs = {"mine": tables["inputs"]}
    volume_TN = np.array(market.panel.volume_TN)
    volume_TN[50, 7] += 1.0
    other = build_market(
        {"prices": tables["prices"].with_columns(pl.col("close") + 0.0), "inputs": tables["inputs"]}, config()
    )

    def changed(panel: Panel) -> Panel:
        return dataclasses.replace(panel, volume_TN=volume_TN)

    universe_TN = market.universe_TN
    flipped_TN = universe_TN.copy()
    flipped_TN[40, 2] ^= True
    moved = tables["inputs"].with_columns(
        value=pl.when(pl.col("ticker") == "F3").then(0.5).otherwise("value")
    )
    base = one.key(market.panel, universe_TN, inputs, ("names",))
    assert one.key(other.panel, universe_TN, {"mine": tables["inputs"].reverse()}, ("names",)) == base
    others = [
        one.key(changed(market.panel), universe_TN, inputs, ("names",)),
        one.key(market.panel, flipped_TN, inputs, ("names",)),
        one.key(market.panel, universe_TN, {"mine": moved}, ("names",)),
        one.key(market.panel, universe_TN, inputs, ("others",)),
        FeatureStore(tmp_path, 1, "other code", print).key(market.panel, universe_TN, inputs, ("names",)),
    ]
    assert len({base, *others}) == 6


@pytest.mark.parametrize("damage", ["flip", "cut", "entry", "gone"])
def test_a_damaged_entry_is_noticed_and_made_again(damage: str, tmp_path: Path) -> None:
    store(tmp_path).get("a", SHAPE, fill)
    values, entry = tmp_path / "a" / "values.f32", tmp_path / "a" / "entry.json"
    content = bytearray(values.read_bytes())
    content[200] ^= 1
    if damage == "flip":
        values.write_bytes(content)
    elif damage == "cut":
        values.write_bytes(content[:-4])
    elif damage == "entry":
        entry.write_text("{")
    else:
        values.unlink()
    notes: list[str] = []
    np.testing.assert_array_equal(store(tmp_path, notes).get("a", SHAPE, fill), VALUES)
    assert len(notes) == 1
    assert "damaged" in notes[0]


def test_a_making_that_failed_or_was_killed_leaves_nothing(tmp_path: Path) -> None:
    other = tmp_path / ".making-b"
    left = tmp_path / ".making-a"
    for folder in (left, other):
        folder.mkdir()
        (folder / "0").write_bytes(b"half")
    with pytest.raises(AssertionError, match="made twice"):
        store(tmp_path).get("a", SHAPE, refuse)
    assert not left.exists()
    assert not other.exists()
    np.testing.assert_array_equal(store(tmp_path).get("a", SHAPE, fill), VALUES)


def test_the_least_recently_used_entries_are_removed_but_none_in_use(tmp_path: Path) -> None:
    small = store(tmp_path, limit=3 * (VALUES.nbytes + 200))
    held = small.get("a", SHAPE, fill)
    for key in ("b", "c"):
        small.get(key, SHAPE, fill)
    for seconds, key in enumerate("acb"):  # b was used after c
        os.utime(tmp_path / key / "entry.json", (seconds, seconds))
    small.get("d", SHAPE, fill)
    assert [folder.name for folder, _ in entries_of(small.folder)] == ["a", "b", "d"]
    np.testing.assert_array_equal(held, VALUES)
    assert is_in_use(tmp_path / "a" / "values.f32")
    del held
    assert not is_in_use(tmp_path / "a" / "values.f32")


def test_two_at_once_make_one_entry(tmp_path: Path) -> None:
    """The lock is one of files, so two threads with stores of their own are like two processes."""
    made: list[int] = []

    def slowly(allocate: Allocate) -> np.ndarray[Any, np.dtype[np.float32]]:
        made.append(1)
        time.sleep(0.2)
        return fill(allocate)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: store(tmp_path).get("a", SHAPE, slowly), range(2)))
    assert made == [1]
    for one in found:
        np.testing.assert_array_equal(one, VALUES)


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 2**28 + 100})
    monkeypatch.setattr("pipelines.dataset.feature_store.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"need 0\.0 GiB on the disk .* feature_store\.folder"):
        store(tmp_path).get("a", SHAPE, fill)
    assert not list(tmp_path.glob("a*/*"))


def test_a_mapped_array_is_sent_as_its_path_and_a_view_as_its_values(tmp_path: Path) -> None:
    mapped = store(tmp_path).get("a", SHAPE, fill)
    sent = pickle.dumps(mapped, protocol=5)
    assert len(sent) < 300
    again = pickle.loads(sent)  # noqa: S301 (made above)
    assert isinstance(again, MappedArray)
    np.testing.assert_array_equal(again, VALUES)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(mapped[2:4])), VALUES[2:4])  # noqa: S301
    with pytest.raises(ValueError, match="bytes instead of"):
        open_mapped(tmp_path / "a" / "values.f32", (6, 5, 5))


def test_a_dataset_without_a_store_is_in_memory(market: Market, tables: dict[str, pl.DataFrame]) -> None:
    dataset: Dataset = add_features(market, tables, config())
    assert type(dataset.characteristics_TNF) is np.ndarray
    assert dataset.characteristics_TNF.flags.c_contiguous


def test_the_doctor_says_how_much_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not [finding for finding in examine() if finding.name == "feature store"]
    for key in ("a", "b"):
        store(tmp_path / "data" / "features").get(key, SHAPE, fill)
    (found,) = [finding for finding in examine() if finding.name == "feature store"]
    assert found.detail.startswith(f"2 entries, 0.0 GiB in {tmp_path / 'data' / 'features'}; ")
