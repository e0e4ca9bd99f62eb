"""Features on tiles of firms are equal to the bit to those on all firms, for any tiles and threads."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from alpha_formulas import EXPRESSIONS
from counted import cut_tables
from places import ROOT
from threadpoolctl import threadpool_info, threadpool_limits

from features.arithmetic import parallel
from features.arithmetic.parallel import firm_blocks, for_each, map_in_order, n_threads, one_blas_thread
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.registry import Registry
from features.library.sets import alpha158, characteristics_of
from features.panel import derived
from features.panel.derived import (
    cached,
    daily_return,
    forget,
    full_panel,
    group_mean,
    market_return,
    row_mean,
    take_firms,
    take_sessions,
)
from features.panel.panel import Panel, build_panel
from pipelines.config.load import check_config
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.source import SimulatedSource


@functools.cache
def simulated_tables() -> Mapping[str, pl.DataFrame]:
    """Forty firms with statements, listings, delistings and halts, over three years."""
    market = {"kind": "simulated", "seed": 5, "market": {"firms": 40, "sessions": 820, "bad_ticks": 4}}
    settings = {
        "name": "tiles",
        "source": market,
        "lake": "lake",
        "output": "runs",
        "folds": {"scheme": "expanding", "train": 120, "valid": 25, "test": 40, "embargo": 1},
        "models": {"zero": {}},
    }
    source = make_source(check_config(settings, origin="tiles"))
    assert isinstance(source, SimulatedSource)
    return source.fetch().tables


@pytest.fixture(scope="module", name="panel")
def simulated_panel() -> Panel:
    tables = simulated_tables()
    return build_panel(tables["prices"], tables["securities"], tables["fundamentals"])


@pytest.mark.parametrize(
    "registry",
    [CHANNELS, CHARACTERISTICS, alpha158(), characteristics_of(EXPRESSIONS)],
    ids=["channels", "characteristics", "alpha158", "expressions"],
)
@pytest.mark.parametrize("last", [819, 816, 803])
def test_features_are_equal_on_the_sessions_that_they_depend_on(
    panel: Panel, registry: Registry, last: int
) -> None:
    names = [name for name, entry in registry.items() if entry.needs <= panel.fields]
    names = [name for name in names if name in EXPRESSIONS] or names
    assert len(names) >= 8
    until, shorter = take_sessions_until(panel, last), 0
    for name in names:
        whole_TN = registry[name].compute(until)
        first = max(last + 1 - registry[name].window, 0)
        shorter += first > 0
        recent_TN = registry[name].compute(take_sessions(until, first))
        np.testing.assert_array_equal(recent_TN[-1].view(np.int64), whole_TN[-1].view(np.int64), err_msg=name)
        assert np.isfinite(whole_TN[-1]).any(), name
    assert shorter >= len(names) - 2


def take_sessions_until(panel: Panel, last: int) -> Panel:
    """The panel without its sessions after ``last``, from the simulated tables cut there."""
    day = panel.dates_T[last].astype("datetime64[D]").item()
    return build_panel(
        *(cut_tables(simulated_tables(), day)[n] for n in ("prices", "securities", "fundamentals"))
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_characteristics_are_equal_on_tiles(
    panel: Panel, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = characteristics_of(EXPRESSIONS)
    names = [name for name, entry in every.items() if entry.needs <= panel.fields]
    assert len(names) >= 220
    at_once_TNK = np.stack([every[name].compute(panel) for name in names], axis=2)
    monkeypatch.setattr(parallel, "_CELLS", 1)
    monkeypatch.setattr(parallel, "n_threads", lambda: threads)
    tiled_TNK = every.compute(replace(panel), names)
    for k, name in enumerate(names):
        single_TN = at_once_TNK[:, :, k].astype(np.float32)
        np.testing.assert_array_equal(tiled_TNK[:, :, k], single_TN, err_msg=name)
        assert not np.isnan(single_TN).all(), name


def test_channels_are_equal_on_tiles(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, entry in CHANNELS.items() if entry.needs <= panel.fields]
    at_once_TNK = np.stack([CHANNELS[name].compute(panel) for name in names], axis=2).astype(np.float32)
    monkeypatch.setattr(parallel, "_CELLS", 1)
    np.testing.assert_array_equal(CHANNELS.compute(replace(panel), names), at_once_TNK)


def test_tile_has_its_firms_and_full_panel(panel: Panel) -> None:
    tile = take_firms(panel, slice(5, 9), frozenset({"close"}))
    assert tile.tickers_N == panel.tickers_N[5:9]
    np.testing.assert_array_equal(tile.close_TN, panel.close_TN[:, 5:9])
    np.testing.assert_array_equal(tile.group_TN, panel.group_TN[:, 5:9])
    for item in panel.statements:
        np.testing.assert_array_equal(tile.statements[item], panel.statements[item][:, 5:9])
    assert tile.close_TN.flags.c_contiguous
    assert not tile.close_TN.flags.writeable
    assert full_panel(tile) is panel
    assert full_panel(take_firms(tile, slice(1, 2))) is panel
    assert full_panel(panel) is panel


def test_means_on_a_tile_are_over_all_firms(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_CELLS", 1)
    assert len(firm_blocks(panel.n_sessions, panel.n_firms)) == 3
    r_TN = daily_return(panel)
    expected_T = np.array([np.mean(r[~np.isnan(r)]) if (~np.isnan(r)).any() else np.nan for r in r_TN])
    tile = take_firms(panel, slice(17, 20))
    np.testing.assert_allclose(market_return(tile)[:, 0], expected_T, rtol=1e-12)
    group_TN = group_mean(tile, daily_return)
    for t in (50, 200, 379):
        for n in range(17, 20):
            same = (panel.group_TN[t] == panel.group_TN[t, n]) & ~np.isnan(r_TN[t])
            mean = r_TN[t, same].mean() if same.sum() >= 2 and panel.group_TN[t, n] >= 0 else np.nan
            np.testing.assert_allclose(group_TN[t, n - 17], mean, rtol=1e-12)


def test_unlisted_firms_do_not_affect_means(panel: Panel) -> None:
    close_TN = panel.close_TN.copy()
    close_TN[:, 10:13] = np.nan  # as if three firms listed after the panel's end
    with_TN = market_return(replace(panel, close_TN=close_TN))
    kept = [n for n in range(panel.n_firms) if n not in range(10, 13)]
    without = replace(
        panel,
        close_TN=np.ascontiguousarray(close_TN[:, kept]),
        raw_close_TN=panel.raw_close_TN[:, kept],
        group_TN=panel.group_TN[:, kept],
        tickers_N=tuple(panel.tickers_N[n] for n in kept),
        open_TN=None,
        high_TN=None,
        low_TN=None,
        volume_TN=None,
        total_return_index_TN=panel.total_return_index_TN[:, kept],
        delisted_TN=panel.delisted_TN[:, kept],
        gap_TN=panel.gap_TN[:, kept],
        unknown_TN=panel.unknown_TN[:, kept],
    )
    assert market_return(without).tobytes() == with_TN.tobytes()
    x_TN = np.random.default_rng(4).normal(size=(50, 300))
    x_TN[x_TN > 1.0] = np.nan
    with_unlisted_TN = np.insert(x_TN, [10] * 3, np.nan, axis=1)
    assert row_mean(with_unlisted_TN).tobytes() == row_mean(x_TN).tobytes()
    known = [row_N[~np.isnan(row_N)].tolist() for row_N in x_TN]
    np.testing.assert_array_equal(
        row_mean(x_TN)[:, 0], [functools.reduce(float.__add__, one) / len(one) for one in known]
    )


def test_series_is_computed_once_across_threads(panel: Panel) -> None:
    fresh, calls = replace(panel), []

    def slow() -> int:
        calls.append(1)
        time.sleep(0.05)
        return 42

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(cached(fresh, "slow", slow))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [42] * 6
    assert len(calls) == 1


def test_cache_is_freed_with_its_panel(panel: Panel) -> None:
    before = len(derived._cache)
    fresh = replace(panel)
    daily_return(fresh)
    assert len(derived._cache) == before + 1
    del fresh
    assert len(derived._cache) == before


def test_block_results_are_in_order_and_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "n_threads", lambda: 4)
    parts = [slice(k, k + 1) for k in range(20)]

    def late_first(part: slice) -> int:
        time.sleep(0.01 if part.start % 4 == 0 else 0.0)
        return int(part.start)

    assert list(map_in_order(late_first, parts)) == list(range(20))

    def fail(part: slice) -> None:
        if part.start == 7:
            raise ValueError("firm 7")

    with pytest.raises(ValueError, match="firm 7"):
        for_each(fail, parts)


def test_threads_use_the_callers_error_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "n_threads", lambda: 2)

    def divide(part: slice) -> float:
        return float(np.ones(1)[0] / np.zeros(1)[0])

    with np.errstate(divide="ignore"):
        assert list(map_in_order(divide, [slice(0, 1), slice(1, 2)])) == [np.inf, np.inf]


def test_the_environment_limits_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert n_threads() == 8
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert n_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert n_threads() == 1


def test_one_thread_of_blas_is_used_in_the_block_only() -> None:
    def blas_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_blocks_cover_all_firms_once_and_share_no_cache_line() -> None:
    for sessions, firms in ((1, 1), (2520, 3000), (9000, 50), (3, 7), (0, 5)):
        runs = firm_blocks(sessions, firms)
        assert [n for run in runs for n in range(run.start, run.stop)] == list(range(firms))
        assert all(run.start % 16 == 0 for run in runs)
    assert firm_blocks(10, 0) == []


@pytest.mark.slow(2)
def test_features_import_without_numba_and_work_on_read_only_disks() -> None:
    light = """
import sys, features.arithmetic.rolling, features.library.characteristics, features.arithmetic.transforms
sys.exit("numba" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", light], check=True, cwd=ROOT)
    unwritable = """
import warnings
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from features.arithmetic.rolling import rolling_sum
    assert rolling_sum(np.ones((3, 1)), 2).ravel().tolist() == [1, 2, 2]
assert "set NUMBA_CACHE_DIR" in str(caught[0].message)
"""
    subprocess.run([sys.executable, "-c", unwritable], check=True, cwd=ROOT)


def test_forgotten_series_are_computed_again_with_the_same_values(panel: Panel) -> None:
    panel = replace(panel)  # with series of its own
    before = daily_return(panel)
    assert daily_return(panel) is before
    forget(panel)
    again = daily_return(panel)
    assert again is not before
    np.testing.assert_array_equal(again, before)


def test_who_joins_the_universe_later_changes_no_feature_of_its_members_before() -> None:
    """Firms are in a lake because they join one day, so their rise until then was in the means of others."""
    tables, join = simulated_tables(), 700
    whole = build_panel(tables["prices"], tables["securities"], tables["fundamentals"])
    members_TN = np.ones((whole.n_sessions, whole.n_firms), dtype=np.bool_)
    members_TN[:join, 3::5] = False
    joiners, kept = whole.tickers_N[3::5], np.flatnonzero(members_TN[0])
    prices, securities, statements = (
        tables[name].filter(~pl.col("ticker").is_in(joiners))
        for name in ("prices", "securities", "fundamentals")
    )
    few = build_panel(prices, securities, statements)
    few = replace(few, members_TN=np.ones((few.n_sessions, few.n_firms), dtype=np.bool_))
    ours = replace(whole, members_TN=members_TN)
    every = {**CHARACTERISTICS, **CHANNELS}
    changed, unknown = set(), set()
    for name in (name for name, entry in every.items() if entry.needs <= whole.fields):
        given_TN, blind_TN = every[name].compute(ours), every[name].compute(whole)
        expected_TN = every[name].compute(few)[:join]
        np.testing.assert_allclose(given_TN[:join, kept], expected_TN, rtol=1e-6, atol=1e-9, err_msg=name)
        if not np.allclose(given_TN[:join, kept], blind_TN[:join, kept], equal_nan=True):
            changed.add(name)
        if (np.isfinite(blind_TN) & ~np.isfinite(given_TN))[:, 3::5].mean() > 0.01:
            unknown.add(name)  # a firm has its own history when it joins
    assert {"group_return_126", "beta_252", "factor_residual_2", "factor_residual"} <= changed
    assert not unknown
