"""Live training and scoring on a tiny market."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from growing_lakes import Tables, deliver, same_bits, sessions_of

from backtest.splits.fold import Fold
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.lake.lake import Lake
from pipelines.nightly.data import night_data
from pipelines.nightly.signals.score import score
from pipelines.nightly.signals.store import read_signals, write_signals
from pipelines.nightly.training.live import live_config, train_live
from pipelines.nightly.version import ModelVersion
from pipelines.progress import Progress
from pipelines.results.evaluate import ensemble, seed_dispersion
from pipelines.run.locks import Locks
from pipelines.run.record import open_run
from pipelines.train.task import collect_arrays, run_task
from pipelines.train.walkforward import plan_tasks

MODEL = "temporal_peer"


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any], every_model: dict[str, dict[str, Any]]) -> Config:
    return check_config(
        {
            **tiny_settings,
            "models": {MODEL: every_model[MODEL], "ridge": {}},
            "seeds": [0, 1],
            "audit": {"enabled": False},
        },
        origin="tiny",
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(config: Config, lake: Lake, session: Any) -> ModelVersion:  # noqa: ANN401 (a date)
    progress = Progress()
    with Locks(wait=False, notify=progress.note) as locks:
        return train_live(config, night_data(config, lake, session, progress), progress, locks, print)


def test_a_live_version_scores_a_later_session_as_an_evaluation_would(
    config: Config, tiny_tables: Tables, here: Path
) -> None:
    days, lake = sessions_of(tiny_tables), open_lake(config)
    deliver(lake, tiny_tables, days[250])
    version = trained(config, lake, days[240])
    assert version == trained(config, lake, days[240])  # repeated: the same run
    data = night_data(config, lake, None, Progress())
    assert data.session == days[250]
    signals = score(version, config, data)

    # the reference: a task of the ordinary walk-forward, trained on the same sessions and tested on the night
    run = open_run(version.run_id, Path("runs"))
    (live,) = {
        task.fold.index: task.fold for task in plan_tasks(run, data.dataset, _live(run, data))
    }.values()
    tested = Fold(0, live.train, live.valid, np.array([data.dataset.panel.n_sessions - 1]))
    arrays = collect_arrays(data.dataset, config.features.window)
    seeds = {
        task.seed: run_task(task, arrays).test_BN.astype(np.float64)
        for task in plan_tasks(run, data.dataset, [tested])
    }
    listed = ~np.isnan(data.dataset.panel.close_TN[-1])
    assert signals["ticker"].to_list() == list(np.array(data.dataset.panel.tickers_N)[listed])
    expected = pl.Series(ensemble(seeds)[0][listed]).fill_nan(None)
    assert expected.null_count() < len(expected)
    assert same_bits(signals["signal"], expected)
    spread = pl.Series(seed_dispersion(seeds)[0][listed]).fill_nan(None)
    assert same_bits(signals["seed_dispersion"], spread)


def _live(run: Any, data: Any) -> list[Fold]:  # noqa: ANN401 (of this test only)
    from pipelines.dataset.folds import plan_folds

    return plan_folds(data.dataset, run.config)


def test_a_grown_lake_gives_the_same_signals(config: Config, tiny_tables: Tables, here: Path) -> None:
    days, lake = sessions_of(tiny_tables), open_lake(config)
    deliver(lake, tiny_tables, days[250])
    version = trained(config, lake, days[250])
    first = score(version, config, night_data(config, lake, days[250], Progress()))
    assert write_signals(lake, first) == 1
    assert write_signals(lake, first) == 1
    deliver(lake, tiny_tables, days[-1])
    again = score(version, config, night_data(config, lake, days[250], Progress()))
    assert first.drop("data_versions").equals(again.drop("data_versions"))
    assert write_signals(lake, again) == 2
    stored = read_signals(lake, config.name)
    assert stored.drop("revision", "created_at").equals(
        first.select(stored.drop("revision", "created_at").columns)
    )
    assert live_config(config, days[250]).folds.scheme == "live"
