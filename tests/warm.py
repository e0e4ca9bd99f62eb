"""Processes that start with the libraries already loaded, for tests that start or kill many of them.

A fork server loads torch, polars and the package once for each test process. Every process is forked from
it before any thread exists: it has its own id, its own group and its own memory, and dies alone. What a
test gives as `code` runs in it as by ``python -c``. Loading itself is tested elsewhere (tests/pipelines/cli).
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

PEERGLASS = "from pipelines.cli.main import main; main()"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pipelines.audit.command",
        "pipelines.cli.main",
        "pipelines.stages",
        "pipelines.train.tune",
        "pipelines.nightly.play.telling",
        "mlflow.cli",
        "mlflow.store.model_registry.sqlalchemy_store",
        "mlflow.store.tracking.sqlalchemy_workspace_store",
        "features.arithmetic.kernels",
        "features.panel.kernels",
        "features.panel.kernels",
        "backtest.forecasts.kernels",
        "backtest.forecasts.kernels",
    ]
)


class Process:
    """A process that runs `code`, with the interface of `subprocess.Popen` as far as the tests use it.

    Parameters
    ----------
    code
        What ``python -c`` would get.
    arguments
        ``sys.argv[1:]`` of the process.
    cwd
        Its folder; None: the present one.
    env
        Its environment; None: the present one.
    """

    def __init__(
        self,
        code: str,
        arguments: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.args = ["python", "-c", code, *arguments]
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in pipes]
        self._process = _CONTEXT.Process(
            target=_run,
            args=(code, list(arguments), str(cwd or Path.cwd()), dict(env or os.environ), writers),
        )
        self._process.start()
        self.stdin = None
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = (_text(reader) for reader, _ in pipes)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def __enter__(self) -> Process:
        """Return the process."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the end, as `subprocess.Popen` does."""
        self.communicate()

    @property
    def returncode(self) -> int | None:
        """Exit code, minus a signal's number, or None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both outputs to their end, and wait."""
        texts = {0: "", 1: ""}

        def read(at: int, stream: IO[str]) -> None:
            texts[at] = stream.read()

        readers = [
            threading.Thread(target=read, args=(at, stream), daemon=True)
            for at, stream in enumerate((self.stdout, self.stderr))
            if not stream.closed
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        for stream in (self.stdout, self.stderr):
            stream.close()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def _text(reader: Connection) -> IO[str]:
    """Return the reading end of a pipe as a text file."""
    copy = os.dup(reader.fileno())
    reader.close()
    return io.TextIOWrapper(os.fdopen(copy, "rb"), encoding="utf-8")


def _run(code: str, arguments: list[str], cwd: str, env: dict[str, str], writers: list[Connection]) -> None:
    os.setsid()
    gc.freeze()  # a collection would copy every page of what is loaded
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (the test's own code)
