"""Live training and scoring on a tiny market."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from growing_lakes import Tables, deliver, same_bits, sessions_of
from nights import MOMENT, store_nights

from backtest.splits.folds import Fold
from features.library.scaling import ChannelScaler
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.folds import FoldInputs
from pipelines.dataset.tables import open_lake
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import Signals
from pipelines.nightly.data import night_data
from pipelines.nightly.result import ModelVersion, count_signals, read_signals, write_signals
from pipelines.nightly.scoring import score
from pipelines.nightly.training import live_config, train_live
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


@pytest.mark.parametrize(
    ("stored", "used"),
    [
        ([("{}", 0)], 1),
        ([('{"prices": 1}', -9), ("{}", -1), ('{"prices": 1}', 1)], 2),  # on the night's data
        ([("{}", -2), ("{}", -1), ("{}", 1)], 2),  # the newest on them when the night ended
        ([('{"prices": 1}', -9), ("{}", 1), ("{}", 2)], 2),  # the clock was set back before it ended
        ([('{"prices": 1}', -9), ('{"prices": 2}', 9)], 1),  # of a version that the night did not score
    ],
)
def test_the_signals_that_a_night_used(
    config: Config, tmp_path: Path, stored: list[tuple[str, int]], used: int
) -> None:
    """A revision is its data versions and when it was written, in minutes after the row of the night."""
    lake, version, day = Lake(tmp_path / "signals"), ModelVersion("tiny-1", "ridge"), dt.date(2024, 1, 2)
    store_nights(lake, config, {day: version})
    shared = {"config": config.name, "session": day, "ticker": "A", "version": str(version)}
    values = {"signal": 0.0, "rank": 0.5, "seed_dispersion": None, "in_universe": True}
    rows = [
        shared
        | values
        | {"revision": n, "data_versions": data, "created_at": MOMENT + dt.timedelta(minutes=at)}
        for n, (data, at) in enumerate(stored, start=1)
    ]
    lake.upsert("signals", pl.DataFrame(rows, schema=Signals.create_empty().schema))
    assert read_signals(lake, config.name)["revision"].to_list() == [used]
    assert count_signals(lake, config.name)["signals"].to_list() == [1]
    tonight = (dt.date(2024, 1, 3), "{}")
    later = pl.DataFrame(rows, schema=Signals.create_empty().schema).with_columns(session=pl.lit(tonight[0]))
    lake.upsert("signals", later)
    newest = max((n for n, (data, _) in enumerate(stored, start=1) if data == "{}"), default=1)
    assert read_signals(lake, config.name, tonight=tonight)["revision"].to_list() == [used, newest]


def test_groups_are_matched_by_name_when_their_codes_change() -> None:
    inputs = FoldInputs(scaler=ChannelScaler(np.zeros(1), np.ones(1), 5.0), groups=("banks", "oil"))
    codes = np.array([[0, 1, 2, 3, -1]])
    known = inputs.known_groups(codes, ("banks", "shops", "oil", "ships"))
    np.testing.assert_array_equal(known, [[0, -1, 1, -1, -1]])
    renumbered = inputs.known_groups(codes, ("oil", "banks", "ships", "shops"))
    np.testing.assert_array_equal(renumbered, [[1, 0, -1, -1, -1]])
    np.testing.assert_array_equal(inputs.known_groups(np.array([[-1]]), ()), [[-1]])


def test_an_earlier_record_of_another_group_changes_no_signal(
    config: Config, tiny_tables: Tables, here: Path
) -> None:
    """A group that is valid before all others gets code 0, and moves the codes of the others."""
    days, lake = sessions_of(tiny_tables), open_lake(config)
    deliver(lake, tiny_tables, days[250])
    version = trained(config, lake, days[250])
    before = score(version, config, night_data(config, lake, days[250], Progress()))
    securities = tiny_tables["securities"]
    firm = securities["ticker"][0]
    first = securities.filter(pl.col("ticker") == firm).sort("valid_from")[:1]
    old = first.with_columns(
        valid_from=pl.col("valid_from").dt.offset_by("-3y"),
        valid_to=pl.col("valid_from"),
        industry=pl.lit("A former industry"),
    )
    lake.upsert("securities", old)
    data = night_data(config, lake, days[250], Progress())
    assert data.market.panel.groups_S[0] == "A former industry"
    again = score(version, config, data)
    assert before.drop("data_versions").equals(again.drop("data_versions"))


def test_a_feature_that_the_data_no_longer_give_is_named(
    config: Config, tiny_tables: Tables, here: Path
) -> None:
    days, lake = sessions_of(tiny_tables), open_lake(config)
    deliver(lake, tiny_tables, days[250])
    version = trained(config, lake, days[250])
    lake.upsert("prices", lake.read("prices").with_columns(volume=pl.lit(None, dtype=pl.Float64)))
    with pytest.raises(DataError, match=f"{version.run_id} cannot score {days[250]}.*no volume.*train a new"):
        score(version, config, night_data(config, lake, days[250], Progress()))


def test_ranks_of_ties_are_averages(config: Config, tiny_tables: Tables, here: Path) -> None:
    days = sessions_of(tiny_tables)
    equal = config.model_copy(update={"models": {"zero": {}}, "seeds": (0,)})
    lake = open_lake(equal)
    deliver(lake, tiny_tables, days[250])
    version = trained(equal, lake, days[250])
    signals = score(version, equal, night_data(equal, lake, days[250], Progress()))
    inside = signals.filter(pl.col("in_universe"))
    assert inside.height > 10
    assert inside["rank"].unique().to_list() == [0.5]
    assert inside["signal"].unique().to_list() == [0.0]
    assert inside["seed_dispersion"].null_count() == inside.height
