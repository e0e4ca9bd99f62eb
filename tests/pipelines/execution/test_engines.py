"""Engines on this machine: results, shared arrays, logs, lost workers, and the death of the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_tasks import (
    always_die,
    die_once,
    fail,
    made_ready,
    new_pages,
    plugins_of_a_worker,
    seen_gpus,
    total,
    work_on,
)

from pipelines import plugins
from pipelines.config import sections
from pipelines.config.sections import EngineConfig
from pipelines.device import Gpu, gpus_of
from pipelines.errors import DivergedError
from pipelines.execution import pool
from pipelines.execution import pool as opening
from pipelines.execution import ray as on_ray
from pipelines.execution.pool import (
    PoolEngine,
    SerialEngine,
    early_workers,
    in_own_process,
    keep_freed,
    open_engine,
)
from pipelines.execution.protocol import Report, Work, run_jobs
from pipelines.execution.worker import read_shared, write_shared
from pipelines.machine import Machine

POOL, SERIAL = EngineConfig(workers=2), EngineConfig(engine="serial")
Results = dict[int, Report[Any]]


def ended(
    config: EngineConfig, work: Work[Any, Any, Any], jobs: int, news: list[Any] | None = None
) -> Results:
    heard = [] if news is None else news
    with open_engine(config, work, jobs) as engine:
        return {
            one.job: one for one in run_jobs(engine, jobs, lambda job: job, lambda *one: heard.append(one))
        }


def test_a_pool_gives_the_results_of_one_process_and_shares_the_arrays(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shared, news = np.arange(1000.0), list[Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = ended(SERIAL, work_on(total, shared), 5)
    capfd.readouterr()
    pooled = ended(POOL, work_on(total, shared), 5, news)
    assert len(pooled) == len(alone) == 5
    for job in range(5):
        left, right = alone[job], pooled[job]
        assert left.error is None
        assert right.error is None
        assert left.result == (499500.0 * job, True, os.getpid())
        assert right.result[:2] == (499500.0 * job, False), "a read-only view"
        assert right.result[2] != os.getpid()
        for words in (
            f"printed by {job}",
            f"warned by {job}",
            f"process {right.result[2]} on ",
            "attempt 1, ",
        ):
            assert words in right.log
    assert sorted(news) == [(job, f"news of {job}") for job in range(5)]
    assert capfd.readouterr() == ("", ""), "what workers print is in their logs"


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="settings of the GNU C library")
@pytest.mark.parametrize("given", [None, "65536"])
def test_a_worker_uses_freed_memory_again_unless_the_user_says_otherwise(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
        if given is not None:
            monkeypatch.setenv(name, given)
    pages = [one.result for one in ended(POOL, work_on(new_pages), 2).values()]
    assert len(pages) == 2
    assert all(number > 10_000 if given else number < 100 for number in pages), pages


def test_an_older_c_library_gets_sizes_that_it_accepts() -> None:
    """It would ignore a larger first one, and the second one alone makes it worse than by default."""
    sizes = {
        version: keep_freed(version)["MALLOC_MMAP_THRESHOLD_"] for version in ("2.36", "2.41", "2.34", "")
    }
    assert sizes == {"2.36": str(2**30), "2.41": str(2**30), "2.34": str(2**25), "": str(2**25)}


def test_a_worker_that_dies_is_replaced_and_its_task_repeated(tmp_path: Path) -> None:
    results = ended(POOL, work_on(die_once, str(tmp_path)), 4)
    assert {job: one.result for job, one in results.items() if one.error is None} == {
        job: job * 10 for job in range(4)
    }
    assert "attempt 1 was lost: its process was ended by SIGKILL, as the system does" in results[1].log
    assert "attempt 2, process" in results[1].log


def test_a_task_that_always_kills_its_worker_is_reported_and_the_others_are_kept() -> None:
    results = ended(POOL, work_on(always_die), 3)
    failed = results[1]
    assert failed.error is not None
    assert isinstance(failed.error, DivergedError)
    assert "lost in each of 3 attempts" in str(failed.error)
    assert all(results[job].error is None for job in (0, 2))


@pytest.mark.parametrize("config", [SERIAL, POOL], ids=["serial", "pool"])
def test_errors_keep_their_type_and_their_traceback(config: EngineConfig, tmp_path: Path) -> None:
    results = ended(config, work_on(fail, str(tmp_path)), 4)
    failed = results[2]
    assert failed.error is not None
    assert isinstance(failed.error, ValueError)
    assert "two is not allowed" in failed.log
    assert [one.result for one in results.values() if one.error is None].count(10) == 1
    attempts = {job: len((tmp_path / f"attempts-{job}").read_text()) for job in range(4)}
    assert attempts == {0: 1, 1: 2, 2: 1, 3: 1}, "only what may pass is repeated"


@pytest.mark.parametrize(
    ("settings", "device", "jobs", "expected"),
    [
        ({"workers": 2}, "cpu", 2, PoolEngine),
        ({"workers": 2}, "cpu", 1, SerialEngine),
        ({"workers": 1}, "cpu", 2, SerialEngine),
        ({"workers": 2}, "cuda", 2, SerialEngine),
        ({"engine": "serial"}, "cpu", 2, SerialEngine),
    ],
)
def test_a_pool_is_used_if_there_is_something_to_share_out(
    settings: dict[str, Any], device: str, jobs: int, expected: type
) -> None:
    with open_engine(EngineConfig(**settings), work_on(total, device=device), jobs) as engine:
        assert isinstance(engine, expected)


def test_without_a_number_of_workers_every_core_computes_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "cores", lambda: 5)
    for jobs, expected in ((9, 5), (3, 3)):
        with open_engine(EngineConfig(), work_on(total), jobs) as engine:
            assert isinstance(engine, PoolEngine)
            assert engine.workers == expected
    monkeypatch.setattr(sections, "cores", lambda: 1)
    with open_engine(EngineConfig(), work_on(total), 9) as engine:
        assert isinstance(engine, SerialEngine)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"address": "auto"}, 9), ({"address": "auto", "workers": 4}, 4), ({}, 3), ({"workers": 4}, 4)],
)
def test_a_cluster_of_ones_own_gets_every_task_and_a_local_ray_one_for_each_core(
    settings: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def engine(config: EngineConfig, work: object, workers: int) -> AbstractContextManager[None]:
        asked.append(workers)
        return nullcontext()

    monkeypatch.setattr(on_ray, "RayEngine", engine)
    monkeypatch.setattr(sections, "cores", lambda: 3)
    with open_engine(EngineConfig(engine="ray", **settings), work_on(total), 9):
        assert asked == [expected]


def test_a_pool_has_as_many_workers_as_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(2**60, 10.0 * 2**30)
    monkeypatch.setattr(opening, "this_machine", lambda: machine)
    notes: list[str] = []

    def slots(workers: int, jobs: int, needs: list[float] | None = None, memory: int = 0) -> int:
        work = work_on(total, memory=memory)
        with open_engine(EngineConfig(workers=workers), work, jobs, needs, note=notes.append) as engine:
            return engine.workers if isinstance(engine, PoolEngine) else 1

    gib = 2**30
    assert slots(2, 3, memory=5 * gib) == 2
    assert slots(2, 3, [5.0 * gib, 1.0 * gib, 4.0 * gib], memory=6 * gib) == 2
    assert not notes
    assert slots(3, 3, memory=5 * gib) == 2
    assert slots(3, 2, memory=6 * gib) == 1
    assert [note.partition("; ")[2] for note in notes] == ["2 are used.", "1 is used."]
    with early_workers() as start:
        start(1, "engine_tasks:become_ready")
        held = pool.memory_of_waiting()
        assert (held > 0) == (sys.platform == "linux")
        machine = Machine(2**60, 10.0 * gib - held / 2)
        assert slots(2, 2, memory=5 * gib) == 2, "the memory of a waiting worker is available"


def two_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None = None) -> None:
    """A machine of six cores and two GPUs, of those that the environment names."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(pool, "cores", lambda: 6)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", None, ["0", "1"]),
        ("cuda", "3,GPU-5f", ["3", "GPU-5f"]),
        ("cuda:1", None, [None]),
        ("cpu", None, []),
    ],
)
def test_a_process_sees_one_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, expected: list[str | None]
) -> None:
    two_gpus(monkeypatch, visible)
    assert [gpu.visible for gpu in gpus_of(device)] == expected


def test_tasks_are_spread_over_the_gpus_and_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch)
    devices = ["cuda"] * 30 + ["cpu"] * 6
    work = work_on(seen_gpus, device="cuda")
    with open_engine(EngineConfig(workers=4), work, 36, devices=devices) as engine:
        assert isinstance(engine, PoolEngine)
        assert (engine.workers, len(engine.gpus), engine.threads) == (2, 2, 2)
        ended = {one.job: one for one in run_jobs(engine, 36, lambda job: job, devices=devices)}
    assert ended[3].error is not None
    seen = {job: one.result for job, one in ended.items() if one.error is None}
    on_gpus, here = ([seen[job] for job in range(*span) if job != 3] for span in ((0, 30), (30, 36)))
    assert {gpu for _, gpu in on_gpus} == {"0", "1"}
    assert len({pid for pid, _ in on_gpus}) == 3, "a GPU's process ends with an error"
    assert {gpu for _, gpu in here} == {None}
    assert {pid for pid, _ in here}.isdisjoint(pid for pid, _ in on_gpus)


@pytest.mark.parametrize(
    ("devices", "gpus", "most", "expected"),
    [
        ("cpu cpu cpu", 0, 2, (2, 0)),
        ("cuda cuda", 1, 4, (0, 1)),
        ("cuda cuda cuda", 2, 4, (0, 2)),
        ("cuda cpu cpu", 1, 2, (1, 1)),
        ("cuda cuda cpu cpu", 2, 2, (1, 1)),
        ("cuda cuda cpu", 2, 4, (1, 2)),
        ("cuda cpu", 1, 1, (0, 1)),
        ("", 1, 4, (0, 0)),
    ],
)
def test_places_of_tasks(devices: str, gpus: int, most: int, expected: tuple[int, int]) -> None:
    names, enough = devices.split(), Machine(2.0**50, 2.0**50)
    of_gpus = [Gpu(str(k)) for k in range(gpus)]
    workers, used, _ = opening.share_out([1.0] * len(names), names, of_gpus, most, enough)
    assert (workers, len(used)) == expected


def test_workers_of_gpus_are_made_ready_and_end_with_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch)
    work = work_on(made_ready, device="cuda")
    with early_workers() as start:
        start(1, "")
        start(0, "engine_tasks:become_ready", gpus_of("cuda"))
        start(0, "", gpus_of("cuda"))
        processes = {worker.process.pid: worker.gpu for worker in pool._early.workers}
        assert len(processes) == 3
        devices = ["cuda", "cuda", "cpu"]
        with open_engine(EngineConfig(workers=3), work, 3, devices=devices) as engine:
            ended = {one.job: one for one in run_jobs(engine, 3, lambda job: job, devices=devices)}
        results = [one.result for _, one in sorted(ended.items()) if one.error is None]
        assert {pid for pid, _ in results} == set(processes)
        assert [ready for _, ready in results] == [True, True, False]
        assert [worker.gpu for worker in pool._early.workers] == [None], "a GPU's memory is given back"


def test_a_pool_takes_the_workers_that_were_made_ready_and_replaces_one_that_died() -> None:
    with early_workers() as start:
        start(2, "engine_tasks:become_ready")
        start(2, "engine_tasks:become_ready")
        first, second = (worker.process for worker in pool._early.workers)
        second.kill()
        second.wait()
        results = [one.result for one in ended(POOL, work_on(made_ready), 6).values() if one.error is None]
    assert len(results) == 6
    assert (first.pid, True) in results
    assert {ready for pid, ready in results if pid != first.pid} <= {False}
    assert second.pid not in {pid for pid, _ in results}
    assert first.poll() is not None


def test_a_worker_that_could_not_be_made_ready_computes_tasks_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with early_workers() as start:
        start(1, "engine_tasks:fail_loudly")
        (process,) = (worker.process for worker in pool._early.workers)
        results = [one.result for one in ended(POOL, work_on(made_ready), 4).values() if one.error is None]
    assert (process.pid, False) in results
    assert capfd.readouterr() == ("", "")


def test_a_pool_leaves_its_workers_for_the_next_one_only_where_workers_wait() -> None:
    def processes(shared: float) -> set[int]:
        work = work_on(total, np.full(3, shared))
        with PoolEngine(work, 2) as engine:
            results = [one.result for one in run_jobs(engine, 4, lambda job: job) if one.error is None]
        assert sorted(value for value, _, _ in results) == [3.0 * shared * job for job in range(4)]
        return {pid for _, _, pid in results}

    with early_workers():
        first = processes(1.0)
        assert processes(2.0) == first, "the second pool has another shared object"
        waiting = [worker.process for worker in pool._early.workers]
        assert {process.pid for process in waiting} == first
    assert all(process.returncode == -signal.SIGKILL for process in waiting)
    processes(1.0)
    assert not pool._early.workers


def test_workers_know_the_plugins_of_their_parent_and_do_without_one_that_is_gone(tmp_path: Path) -> None:
    files = [tmp_path / "kept.py", tmp_path / "gone.py"]
    names = [str(file) for file in files]
    work = work_on(plugins_of_a_worker)

    def seen(engine: PoolEngine[Any, int, Any]) -> dict[int, list[str]]:
        reports = list(run_jobs(engine, 2, lambda job: job))
        assert all(one.error is None for one in reports), reports
        return dict(one.result for one in reports if one.result is not None)

    with early_workers() as start:
        start(1, "")
        (early,) = (worker.process.pid for worker in pool._early.workers)
        for file in files:
            file.write_text("")
        plugins.load(names)
        files[1].unlink()
        try:
            with PoolEngine(work, 2) as engine:
                found = seen(engine)
        finally:
            for name in names:
                plugins._forget(plugins._LOADED[name])
        assert early not in found, "it was started before the plugins were known"
        assert found
        assert list(found.values()) == [names[:1]] * len(found)


def test_a_pool_of_large_tasks_ends_its_workers() -> None:
    work = work_on(total, np.ones(3), memory=2**31)
    with early_workers() as start:
        start(1, "")
        (process,) = (worker.process for worker in pool._early.workers)
        with PoolEngine(work, 2) as engine:
            assert len(list(run_jobs(engine, 4, lambda job: job))) == 4
        assert not pool._early.workers
        assert process.returncode == -signal.SIGKILL


def test_workers_that_no_pool_takes_end_with_the_block() -> None:
    with early_workers() as start:
        start(1, "")
        (process,) = (worker.process for worker in pool._early.workers)
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL
    assert not pool._early.workers


def test_a_function_in_its_own_process_ends_with_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT_FILE", str(tmp_path / "left"))
    with in_own_process("engine_tasks:leave_a_file"):
        while not Path(os.environ["LEFT_FILE"]).is_file():
            time.sleep(0.01)
    pid = int(Path(os.environ["LEFT_FILE"]).read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_shared_object_is_read_as_it_was_written() -> None:
    values: dict[str, Any] = {
        "c": np.arange(24.0).reshape(2, 3, 4),
        "f": np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        "strided": np.arange(10)[::2],
        "empty": np.zeros((0, 3), dtype=np.float32),
        "text": ("a", None),
    }
    with write_shared(values) as file:
        read = read_shared(file.fileno())
    assert set(read) == set(values)
    assert read["text"] == values["text"]
    for name in ("c", "f", "strided", "empty"):
        np.testing.assert_array_equal(read[name], values[name])
        assert read[name].dtype == values[name].dtype
    assert not read["c"].flags.writeable
    assert read["c"].ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        read["c"][0] = 1


PARENT = """
import sys, time
from engine_tasks import busy, work_on
from pipelines.config.sections import EngineConfig
from pipelines.execution.protocol import run_jobs
from pipelines.execution.pool import open_engine
import numpy as np
with open_engine(EngineConfig(workers=2), work_on(busy, np.zeros(1000)), 4) as engine:
    for _ in run_jobs(engine, 4, lambda job: job, lambda job, pid: print(pid, flush=True)):
        pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_survives_its_parent(how: signal.Signals) -> None:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(_is_alive(worker) for worker in workers)
        parent.send_signal(how)
        parent.wait(timeout=40)  # the tasks take longer
        deadline = time.monotonic() + 10
        while any(_is_alive(worker) for worker in workers):
            assert time.monotonic() < deadline, "a worker is left after ten seconds"
            time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    status = Path(f"/proc/{pid}/status")
    if not Path("/proc").is_dir():  # macOS
        return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0
    try:
        return "\nState:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
