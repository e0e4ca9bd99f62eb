"""The Ray engine on a cluster of two machines (Ray's own cluster utilities), which share no memory."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from engine_tasks import by_value, code, total, where, work_on
from object_store import CREDENTIALS, object_store, options_of
from warm import PEERGLASS, Process

from pipelines.config.load import load_config
from pipelines.config.sections import EngineConfig
from pipelines.dataset.feature_store import create_mapped, open_mapped
from pipelines.errors import ConfigError
from pipelines.execution.pool import open_engine
from pipelines.execution.protocol import Report, Ticket, Work, run_jobs
from pipelines.execution.ray import _attempt
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config
from pipelines.stages import train_config

Results = dict[int, Report[Any]]
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # files that Ray leaves open
]


class Machines:
    """The cluster; a machine of it can be added and killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.size: dict[str, Any] = {"num_cpus": 1, "memory": 2**30, "object_store_memory": 2**27}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self.size, "include_dashboard": False})
        self.add()

    def add(self) -> Any:  # noqa: ANN401 (a node of Ray)
        return self.cluster.add_node(**self.size)

    def kill(self, node: Any) -> None:  # noqa: ANN401 (a node of Ray)
        self.cluster.remove_node(node, allow_graceful=False)

    def config(self, **settings: Any) -> EngineConfig:  # noqa: ANN401 (settings)
        return EngineConfig(**{"engine": "ray", "workers": 2, "address": self.cluster.address, **settings})


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_worker_niceness", "0")  # other tests run beside this one
        patched.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers find the tasks of this test
        machines = Machines()
        yield machines
        machines.cluster.shutdown()  # type: ignore[no-untyped-call]  # as Ray ships it


def ended(
    config: EngineConfig, work: Work[Any, Any, Any], jobs: int, news: list[Any] | None = None
) -> Results:
    heard = [] if news is None else news
    with open_engine(config, work, jobs) as engine:
        return {
            one.job: one for one in run_jobs(engine, jobs, lambda job: job, lambda *one: heard.append(one))
        }


@pytest.mark.slow(8)
def test_a_killed_machine_and_a_killed_worker_lose_nothing(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Task 1 kills its worker, task 2 raises an error; the shared array is in a file that is gone."""
    third, killed, started = machines.add(), list[str](), set[str]()
    results: Results = {}

    def hear(_: int, node: str) -> None:
        started.add(node)
        if node == third.node_id and not killed:  # a task has just begun there
            killed.append(node)
            machines.kill(third)
            (tmp_path / f"killed-{node}").touch()

    create_mapped(tmp_path / "values", (50_000,))[:] = np.arange(50_000)
    mapped = open_mapped(tmp_path / "values", (50_000,))
    (tmp_path / "values").unlink()
    work = work_on(where, (str(tmp_path), mapped), portable=by_value)
    with open_engine(machines.config(workers=3), work, 6) as engine:
        for one in run_jobs(engine, 6, lambda job: job, hear):
            assert one.job not in results
            results[one.job] = one
    assert killed, "no task was placed on the machine that was to be killed"
    assert sum(one.log.count("was lost: ") for one in results.values()) >= 2, "a worker, and a machine"
    failed = results.pop(2)
    assert failed.error is not None
    assert isinstance(failed.error, ValueError)
    assert "two is not allowed" in failed.log
    for job, one in results.items():
        assert one.error is None, one
        value, writeable, node = one.result
        assert (value, writeable) == (1249975000.0 * job, False)
        assert f"printed by {job}" in one.log
        assert node not in killed
    assert sorted(results) == [0, 1, 3, 4, 5]
    assert started - set(killed), "others than the killed machine computed"
    assert "attempt 1 was lost: " in results[1].log
    assert capfd.readouterr() == ("", ""), "nothing of Ray reaches the terminal"


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        (
            {},
            {"memory": 2**33},
            r"A task needs 1 core, 0 GPU\(s\) and about 8.0 GiB of memory, and no machine",
        ),
        ({"gpus_per_task": 1}, {"device": "cuda"}, r"1 GPU\(s\) .* no machine of the cluster offers that"),
        ({}, {"device": "cuda"}, "set execution.gpus_per_task"),
        ({"gpus_per_task": 0.5}, {}, "set device: cuda, or gpus_per_task: 0"),
    ],
)
def test_a_task_that_no_machine_can_hold_is_refused(
    machines: Machines, settings: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ended(machines.config(**settings), work_on(total, **changes), 1)


def test_a_machine_with_other_code_is_refused() -> None:
    shared = (total, np.ones(3), "another digest")
    report = _attempt(shared, 1, Ticket(0, 1), None, code)
    assert report.error is not None
    assert isinstance(report.error, ConfigError)
    assert "has other code of Peerglass than this one" in str(report.error)


@pytest.mark.slow(15)
def test_a_killed_driver_is_continued_on_another_machine_with_the_forecasts_of_one_process(
    machines: Machines, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake and the copy of the output are on an object store; the two drivers share no folder."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with object_store() as address:
        options = options_of(address)
        shared = {
            "lake": "s3://bucket/lake",
            "lake_options": options,
            "output_store": {"url": "s3://bucket/runs", "options": options},
            "execution": machines.config().model_dump(),
        }
        model = {"temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}}}
        one_by_one = {**shared, "execution": machines.config(workers=1).model_dump()}
        for name, settings in (("serial", {}), ("first", one_by_one), ("second", shared)):
            (tmp_path / name).mkdir()
            text = yaml.safe_dump({**tiny, "models": model, **settings})
            (tmp_path / name / "tiny.yaml").write_text(text)
        monkeypatch.chdir(tmp_path / "serial")
        ingest_config(load_config(Path("tiny.yaml")))
        train_config(load_config(Path("tiny.yaml")))
        monkeypatch.chdir(tmp_path / "first")
        ingest_config(load_config(Path("tiny.yaml")))
        with Process(PEERGLASS, ["train", "tiny.yaml"]) as driver:
            steps = (line for line in driver.stderr if json.loads(line)["event"] == "step")
            next(steps)
            threading.Thread(target=driver.stderr.read, daemon=True).start()
            driver.send_signal(signal.SIGKILL)
            assert driver.wait() == -signal.SIGKILL
        monkeypatch.chdir(tmp_path / "second")
        run_id = train_config(load_config(Path("tiny.yaml")))
        lake = Lake("s3://bucket/lake", options)
        forecasts = lake.read("forecasts")
        expected = Lake(tmp_path / "serial" / "lake").read("forecasts")
        assert forecasts.equals(expected.with_columns(run_id=pl.lit(run_id)))
        assert not forecasts.select("model", "fold", "seed", "date", "ticker").is_duplicated().any()
        assert lake.version("forecasts") == 2, "each task was committed once"
    first, second = (tmp_path / name / "runs" / run_id for name in ("first", "second"))
    logs = [f"temporal_transformer-fold-{fold}-seed-0.log" for fold in range(2)]
    assert sorted(path.name for path in (second / "logs").iterdir()) == logs
    assert len(list((second / "curves").glob("*.jsonl"))) == 2
    assert not list((second / "snapshots").glob("*"))
    assert len(list((first / "logs").iterdir())) == 1, "the second driver has not computed both tasks"
