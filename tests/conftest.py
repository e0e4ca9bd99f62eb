"""Fixtures of the pipeline tests: a market small enough to train any model in a second."""

from __future__ import annotations

import datetime as dt
import functools
import gc
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import HealthCheck, settings
from shared_folders import shared_folder

from pipelines import secrets
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.tracking import store

if TYPE_CHECKING:
    from live_versions import Versions

gc.disable()  # what is made until all tests are collected stays until the end

os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")  # tests stop their servers: no pauses
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

MEMORY = Path("/dev/shm")  # noqa: S108  # pytest makes folders of its own in it
"""Where temporary folders are made: a commit of SQLite costs a thirtieth of what it does on a disk."""
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

TINY: Mapping[str, Any] = {
    "name": "tiny",
    "source": {"kind": "simulated", "seed": 3, "market": {"firms": 16, "sessions": 320, "bad_ticks": 4}},
    "lake": "lake",
    "output": "runs",
    "universe": {"min_price": 1.0, "min_history": 30},
    "features": {"set": "peerglass", "window": 5},
    "label": {"horizon": 1, "delay": 0, "transform": "demean", "residualise_factors": 0},
    "folds": {"scheme": "expanding", "train": 120, "valid": 25, "test": 40, "embargo": 1, "max_folds": 2},
    "fit": {"epochs": 2, "batch_dates": 16, "lr": 0.003},
    "models": {"zero": {}},
    "backtest": {
        "books": {
            "long_short": {"kind": "quantile_long_short", "quantiles": 4},
            "long_only": {"kind": "top_k_long_only", "k": 4},
        }
    },
    "explain": {
        "dates": 2,
        "firms_per_date": 2,
        "network_dates": 2,
        "max_peers": 8,
        "permutations": 2,
        "network_permutations": 2,
    },
    "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"},
    "execution": {"engine": "serial"},
    "device": "cpu",
}

FIRST = ("test_accounting.py", "test_characteristics.py", "test_yfinance_refusals.py", "test_lake_places.py")
"""In a new checkout, the first two files compile the loops that others use; the next two need none of them.

So the four processes do not compile the same loops at the same time.
"""

TINY_MODELS: Mapping[str, Mapping[str, Any]] = {
    "lightgbm": {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50},
    "double_ensemble": {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50, "sub_models": 2},
    "momentum": {"characteristic": "return_21"},  # the default has no value in the first year
    "mlp": {"width": 8},
    "lstm": {"width": 8},
    "gru": {"width": 8, "layers": 1},
    "alstm": {"width": 8, "layers": 1},
    "tcn": {"width": 8},
    "tabm": {"width": 8, "networks": 4, "bins": 4},
    "cross_peer": {"width": 8, "heads": 2, "reference": {"count": 6}},
    "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
    "seq2seq": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
    "self_peer": {"width": 8, "heads": 2, "layers": 1},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2},
    "portfolio_transformer": {"width": 8, "heads": 2, "layers": 1},
    "stock_mixer": {"width": 8, "market": 4},
    "master": {"width": 8, "day_heads": 2},
}
"""Settings that make a registered model fast to train; models not listed use their defaults."""


def pytest_configure() -> None:
    """Give each test process its own share of the cores, with the threads and processes that it starts.

    Every polars expression hands its work to a thread and waits. Where the two run on different cores, each
    hand-over interrupts the other core: a fifth of the processor time on a virtual machine.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    at, cores = int(worker.removeprefix("gw")), sorted(os.sched_getaffinity(0))
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.sched_setaffinity(0, set(cores[at::count]) or {cores[at % len(cores)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files with the slowest tests first, so that none is left when the others have ended.

    Files are not split among processes, because each would make the file's fixtures, such as a whole run.
    """
    seconds: dict[Path, dict[str, float]] = {}
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow is not None:
            seconds.setdefault(item.path, {})[item.name.partition("[")[0]] = slow.args[0]
    place = {name: at for at, name in enumerate(FIRST)}

    def key(item: pytest.Item) -> tuple[int, float]:
        return place.get(item.path.name, len(FIRST)), -sum(seconds.get(item.path, {}).values())

    items.sort(key=key)


def pytest_collection_finish() -> None:
    """Look for cycles less often, and not among libraries and tests: this takes 7% off the processor time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory of the temporary folders, unless a test failed."""
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # pytest has no public way
    if exitstatus == 0 and factory._given_basetemp is None and factory._basetemp is not None:
        shutil.rmtree(factory._basetemp, ignore_errors=True)


@pytest.fixture(autouse=True)
def secrets_of_one_test() -> Iterator[None]:
    """Forget the secrets that a test registers, because they are masked in every later message."""
    before = set(secrets._registered)
    yield
    secrets._registered.clear()
    secrets._registered.update(before)


@pytest.fixture(scope="session", autouse=True)
def migrated_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy new SQLite stores from the first one of the session, because MLflow's migrations take a second."""
    create = store._create_database

    def make(folder: Path) -> None:
        create(str(folder / "mlflow.db"))

    @functools.cache
    def keep_revision() -> None:
        from mlflow.store.db import utils

        newest = functools.cache(utils._get_latest_schema_revision)  # MLflow runs 67 files for each new store
        patched.setattr(utils, "_get_latest_schema_revision", newest)

    def copy(file: str) -> None:
        keep_revision()
        path = Path(file)
        if "?" in file or path.name == ":memory:" or path.exists():
            create(file)
            return
        template = shared_folder(tmp_path_factory, "store", make) / "mlflow.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.copy")
        shutil.copyfile(template, partial)
        partial.replace(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "_create_database", copy)
        yield


@pytest.fixture(scope="module")
def untracked() -> Iterator[None]:
    """Track no run: that takes a third of the time of a tiny one, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("_begin", "log_run"):
            patched.setattr(f"pipelines.tracking.runs.{name}", lambda *_, **__: None)
        yield


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Settings of a run that takes seconds. Paths are relative: change to a temporary folder first."""
    return {**TINY}


@pytest.fixture(scope="session")
def tiny_settings() -> Mapping[str, Any]:
    """The same settings for session and module fixtures; do not change them."""
    return TINY


@pytest.fixture(scope="session")
def every_model() -> dict[str, dict[str, Any]]:
    """Every registered model with settings that are fast to fit."""
    from models.registry import MODELS

    return {name: dict(TINY_MODELS.get(name, {})) for name in MODELS}


@pytest.fixture(scope="session")
def tiny_config(every_model: dict[str, dict[str, Any]]) -> Config:
    """A config of the tiny settings with every registered model."""
    return check_config({**TINY, "models": every_model}, origin="tiny")


@pytest.fixture(scope="session")
def tiny_tables(tiny_config: Config) -> dict[str, pl.DataFrame]:
    """The market's tables as the lake returns them: only rows that satisfy their contracts."""
    now = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    source = make_source(tiny_config)
    assert isinstance(source, SimulatedSource)
    tables = dict(source.fetch().tables)
    tables["prices"] = tables["prices"].with_columns(
        pl.lit("simulated").alias("source"), pl.lit(now).dt.cast_time_unit("us").alias("ingested_at")
    )
    return {name: check(name, frame).valid for name, frame in tables.items()}


@pytest.fixture(scope="session")
def api_project(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any], migrated_stores: None
) -> Path:
    """A folder with a finished run of ``api_models.MODELS`` in ``data/runs``."""
    import yaml
    from api_models import MODELS

    import peerglass

    settings = {
        **{key: value for key, value in tiny_settings.items() if key not in ("output", "tracking")},
        "models": dict(MODELS),
        "seeds": [4, 7],
        "audit": {"enabled": False},
    }

    def make(folder: Path) -> None:
        (folder / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        peerglass.run_config(folder / "tiny.yaml")

    return shared_folder(tmp_path_factory, "api", make)


@pytest.fixture(scope="session")
def trained_versions(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Versions:
    """Two versions that were trained for use; they share a lake with the tests of the session."""
    from live_versions import train_versions

    folder = tmp_path_factory.mktemp("versions")
    settings = {
        **tiny_settings,
        "name": "tiny",
        "models": {"ridge": {}},
        "audit": {"enabled": False},
        "lake": str(folder / "lake"),
        "output": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "artifacts")},
    }
    return train_versions(folder, settings)


@pytest.fixture
def versions(trained_versions: Versions) -> Versions:
    """The same versions in a lake without signals, aliases and nights."""
    trained_versions.forget()
    return trained_versions
