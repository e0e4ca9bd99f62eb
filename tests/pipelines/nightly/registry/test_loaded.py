"""A stored version is loaded by MLflow in a process without Peerglass, and forecasts as the night did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from live_versions import Versions
from mlflow import MlflowClient

from pipelines.dataset.build import Dataset
from pipelines.nightly.data import NightData, night_data
from pipelines.nightly.loaded import LoadedVersion, _load_pyfunc
from pipelines.nightly.scoring import score
from pipelines.nightly.spool import sync
from pipelines.nightly.versions import Reason, set_alias
from pipelines.progress import Progress
from pipelines.run.record import RecordedRun, open_run
from pipelines.tracking.store import CHANNEL, CHARACTERISTIC

WITHOUT_PEERGLASS = """
import importlib.util
import os
import pickle
import sys

store, frame, answer = sys.argv[1:]
sys.path = [path for path in sys.path if path and not os.path.isdir(os.path.join(path, "pipelines"))]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
assert importlib.util.find_spec("pipelines") is None, "Peerglass must not be importable"
import mlflow
import pandas as pd
import torch


def refuse(*_, **__):
    raise AssertionError("a pickle is loaded")


mlflow.set_tracking_uri(store)
pickle.load = pickle.loads = pickle.Unpickler = refuse
model = mlflow.pyfunc.load_model("models:/tiny.ridge@champion")
import pipelines
assert "peerglass.zip" in pipelines.__file__
model.predict(pd.read_parquet(frame)).to_csv(answer, index=False)
"""


def input_frame(dataset: Dataset, window: int, sessions: int = 1) -> pd.DataFrame:
    """The input of a loaded version for the last sessions of a dataset."""
    panel = dataset.panel
    first = panel.n_sessions - (window - 1) - sessions
    t, n = (index.ravel() for index in np.mgrid[first : panel.n_sessions, 0 : panel.n_firms])
    groups = np.array([*panel.groups_S, None], dtype=object)
    columns: dict[str, Any] = {
        "date": panel.dates_T.astype("datetime64[D]")[t],
        "ticker": np.asarray(panel.tickers_N)[n],
        "group": pl.Series(groups[panel.group_TN[t, n]], dtype=pl.String),
        "in_universe": dataset.universe_TN[t, n],
    }
    for prefix, names_K, value_TNK in (
        (CHANNEL, dataset.channel_names, dataset.channels_TNC),
        (CHARACTERISTIC, dataset.characteristic_names, dataset.characteristics_TNF),
    ):
        columns |= {
            f"{prefix}{name}": value_TNK[t, n, k].astype(np.float64) for k, name in enumerate(names_K)
        }
    frame = pl.DataFrame(columns).with_columns(pl.col("date").cast(pl.Datetime("ns")))
    return frame.to_pandas()


@pytest.fixture
def data(versions: Versions) -> NightData:
    return night_data(versions.config, versions.lake, versions.days[versions.at + 20], Progress())


@pytest.fixture
def run(versions: Versions) -> RecordedRun:
    """The run of the champion, which is in the tracking store."""
    set_alias(versions.lake, "tiny", "champion", versions.new, Reason("first", "ann@desk"))
    sync(versions.config, versions.lake, Progress())
    return open_run(versions.new.run_id, Path(versions.config.output))


@pytest.mark.slow(7)
def test_mlflow_loads_a_version_in_a_process_without_peerglass(
    versions: Versions, run: RecordedRun, data: NightData, tmp_path: Path
) -> None:
    frame = input_frame(data.dataset, run.config.features.window)
    frame.sample(frac=1.0, random_state=0).to_parquet(tmp_path / "frame.parquet")
    arguments = [versions.config.tracking.uri, "frame.parquet", "answer.csv"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_PEERGLASS, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = pl.read_csv(tmp_path / "answer.csv")
    expected = score(versions.new, versions.config, data).drop_nulls("signal").sort("ticker")
    assert answer["ticker"].to_list() == expected["ticker"].to_list()
    assert expected.height >= 10
    assert answer["date"].unique().to_list() == [str(data.session)]
    assert answer["signal"].to_list() == pytest.approx(expected["signal"].to_list(), rel=1e-5, abs=1e-6)


def test_a_loaded_version_forecasts_what_the_night_stores_to_the_bit(
    versions: Versions, run: RecordedRun, data: NightData
) -> None:
    loaded = _load_pyfunc(str(run.folder / "checkpoints" / "ridge"))
    frame = input_frame(data.dataset, loaded.window, sessions=3)
    answer = loaded.predict(frame)
    for back in range(3):
        session = versions.days[versions.at + 20 - back]
        night = night_data(versions.config, versions.lake, session, Progress())
        expected = score(versions.new, versions.config, night).drop_nulls("signal").sort("ticker")
        own = answer[answer["date"] == pd.Timestamp(session)]
        assert own["ticker"].tolist() == expected["ticker"].to_list()
        assert own["signal"].tolist() == expected["signal"].to_list()
    assert answer["date"].nunique() == 3


def test_the_artifacts_of_a_version_hold_no_pickle(
    versions: Versions, run: RecordedRun, tmp_path: Path
) -> None:
    client = MlflowClient(tracking_uri=versions.config.tracking.uri)
    (version,) = client.search_model_versions(f"name='tiny.ridge' and tags.`peerglass.run_id`='{run.run_id}'")
    assert version.run_id is not None
    assert client.get_run(version.run_id).data.tags["peerglass.model"] == "ridge"
    fetched = Path(client.download_artifacts(version.run_id, "model", str(tmp_path)))
    names = {path.relative_to(fetched).as_posix() for path in fetched.rglob("*") if path.is_file()}
    assert names - {"registered_model_meta"} == {  # MLflow adds it where it has loaded the version
        "MLmodel",
        "code/peerglass.zip",
        "fold-0-seed-0/model.json",
        "fold-0-seed-0/model.safetensors",
        "inputs.json",
        "requirements.txt",
    }
    assert "torch==" in (fetched / "requirements.txt").read_text()


def test_a_version_says_what_it_was_made_of(versions: Versions, run: RecordedRun) -> None:
    client = MlflowClient(tracking_uri=versions.config.tracking.uri)
    (version,) = client.search_model_versions(f"name='tiny.ridge' and tags.`peerglass.run_id`='{run.run_id}'")
    assert version.tags["audit"] == "pass"
    assert version.tags["trained_through"] == str(versions.days[versions.at + 5])
    assert '"prices": ' in version.tags["table_versions"]
    assert client.get_model_version_by_alias("tiny.ridge", "champion").version == version.version


def test_wrong_inputs_are_named(run: RecordedRun, data: NightData) -> None:
    loaded: LoadedVersion = _load_pyfunc(str(run.folder / "checkpoints" / "ridge"))
    frame = input_frame(data.dataset, loaded.window)
    with pytest.raises(ValueError, match="has no column 'ticker'"):
        loaded.predict(frame.drop(columns="ticker"))
    with pytest.raises(ValueError, match=f"has no column '{loaded.channels[0]}'"):
        loaded.predict(frame.drop(columns=loaded.channels[0]))
    with pytest.raises(ValueError, match="two rows of one session and firm"):
        loaded.predict(pd.concat([frame, frame.head(1)]))
    column = f"{CHARACTERISTIC}{data.dataset.characteristic_names[0]}"
    with pytest.raises(ValueError, match="infinite values"):
        loaded.predict(frame.assign(**{column: np.inf}))
    last = frame[frame["date"] == frame["date"].max()]
    with pytest.raises(ValueError, match=f"1 sessions, and the model reads windows of {loaded.window}"):
        loaded.predict(last)
