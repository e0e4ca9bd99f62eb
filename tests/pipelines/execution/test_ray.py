"""The Ray engine on a cluster of two machines (Ray's own cluster utilities), which share no memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from engine_tasks import die_once, fail, own_code, total, where, work_on

from pipelines.config.execution import ExecutionConfig
from pipelines.config.load import load_config
from pipelines.errors import ConfigError
from pipelines.execution.jobs import Completed, Failed, run_jobs
from pipelines.execution.open import open_engine
from pipelines.execution.protocol import Work
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run
from pipelines.stages import train_config

pytest.importorskip("ray", reason="the extra cluster is not installed")
COMMAND = [sys.executable, "-c", "from pipelines.cli.main import main; main()", "train", "tiny.yaml"]
Ended = dict[int, Completed[Any] | Failed]
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # files that Ray leaves open


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

    def config(self, **settings: Any) -> ExecutionConfig:  # noqa: ANN401 (settings)
        return ExecutionConfig(**{"engine": "ray", "workers": 2, "address": self.cluster.address, **settings})


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers find the tasks of this test
        machines = Machines()
        yield machines
        machines.cluster.shutdown()  # type: ignore[no-untyped-call]  # as Ray ships it


def ended(
    config: ExecutionConfig, work: Work[Any, Any, Any], jobs: int, news: list[Any] | None = None
) -> Ended:
    heard = [] if news is None else news
    with open_engine(config, work, jobs) as engine:
        return {
            one.job: one for one in run_jobs(engine, jobs, lambda job: job, lambda *one: heard.append(one))
        }


def test_tasks_run_on_both_machines_and_a_killed_machine_loses_nothing(
    machines: Machines, capfd: pytest.CaptureFixture[str]
) -> None:
    third, killed = machines.add(), list[str]()
    results: Ended = {}

    def hear(_: int, node: str) -> None:
        if node == third.node_id and not killed:  # a task has just begun there
            killed.append(node)
            machines.kill(third)

    work, jobs = work_on(where, np.arange(200_000.0)), 7
    with open_engine(machines.config(workers=3), work, jobs) as engine:
        for one in run_jobs(engine, jobs, lambda job: job, hear):
            assert one.job not in results
            results[one.job] = one
    assert killed, "no task was placed on the machine that was to be killed"
    assert sorted(results) == list(range(jobs))
    nodes = set()
    for job, one in results.items():
        assert isinstance(one, Completed), one
        value, writeable, node = one.result
        assert (value, writeable) == (19999900000.0 * job, False)
        nodes.add(node)
    assert len(nodes - set(killed)) == 2
    assert any(
        "attempt 1 was lost: " in one.log and "attempt 2, process" in one.log for one in results.values()
    )
    assert capfd.readouterr() == ("", ""), "nothing of Ray reaches the terminal"


def test_a_killed_worker_an_error_and_a_print_are_handled_as_in_a_pool(
    machines: Machines, tmp_path: Path
) -> None:
    lost = ended(machines.config(), work_on(die_once, str(tmp_path)), 3)
    assert [one.result for _, one in sorted(lost.items()) if isinstance(one, Completed)] == [0, 10, 20]
    assert "attempt 1 was lost: " in lost[1].log
    raised = ended(machines.config(), work_on(fail, str(tmp_path)), 3)
    failed = raised[2]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ValueError)
    assert "two is not allowed" in failed.log
    assert len((tmp_path / "attempts-1").read_text()) == 2, "the network was down once"


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


def test_a_machine_with_other_code_is_refused(machines: Machines) -> None:
    (one,) = ended(machines.config(), work_on(total, np.ones(3), code=own_code), 1).values()
    assert isinstance(one, Failed)
    assert isinstance(one.error, ConfigError)
    assert "has other code of Peerglass than this one" in str(one.error)


def test_a_driver_that_is_killed_and_started_again_gives_the_forecasts_of_one_process(
    machines: Machines, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **tiny,
        "models": {"ridge": {}, "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}}},
    }
    for name, execution in (("serial", {"engine": "serial"}), ("ray", machines.config().model_dump())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tiny.yaml").write_text(yaml.safe_dump({**settings, "execution": execution}))
        monkeypatch.chdir(tmp_path / name)
        ingest_config(load_config(Path("tiny.yaml")))
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        steps = (line for line in driver.stderr if json.loads(line)["event"] == "step")
        next(steps)
        threading.Thread(target=driver.stderr.read, daemon=True).start()
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    run_id = train_config(load_config(Path("tiny.yaml")))
    monkeypatch.chdir(tmp_path / "serial")
    train_config(load_config(Path("tiny.yaml")))

    lake = Lake(tmp_path / "ray" / "lake")
    forecasts = lake.read("forecasts")
    assert forecasts.equals(Lake("lake").read("forecasts").with_columns(run_id=pl.lit(run_id)))
    assert not forecasts.select("model", "fold", "seed", "date", "ticker").is_duplicated().any()
    assert lake.version("forecasts") == 4, "each task was committed once"
    run = open_run(str(tmp_path / "ray" / "runs" / run_id))
    logs = sorted(path.name for path in (run.folder / "logs").iterdir())
    assert logs == [f"{model}-fold-{fold}-seed-0.log" for model in settings["models"] for fold in range(2)]
    assert not list((run.folder / "snapshots").glob("*"))
    assert len(list((run.folder / "curves").glob("*.jsonl"))) == 4
