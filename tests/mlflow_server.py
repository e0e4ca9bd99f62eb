"""A real ``mlflow server`` on loopback, and a real PostgreSQL server for it. Both end with the test."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from warm import Process

from pipelines.tracking import store

_SERVER = """
import os
log = os.open("server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(log, 1), os.dup2(log, 2)
import uvicorn
from mlflow import server
from mlflow.cli import cli

def serve(command, *, extra_env, **_):
    os.environ.update(extra_env)
    uvicorn.main(command[command.index("uvicorn") + 1 :])

server._exec_cmd = serve
cli()
"""
"""The command ``mlflow server``. It serves itself: a process of its own for that would import all again."""
_PATIENCE = 600  # seconds; a busy machine imports MLflow slowly


@contextmanager
def mlflow_server(folder: Path, backend: str, port: int | None = None) -> Iterator[str]:
    """Start ``mlflow server`` with a database and an artifact store of its own; yield its URL.

    A server that was stopped starts again with the same data if it gets the same arguments.
    """
    port = _free_port() if port is None else port
    url = f"http://127.0.0.1:{port}"
    arguments = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", backend, "--artifacts-destination", (folder / "artifacts").as_uri()]
    if backend.startswith("sqlite:///"):
        store._create_database(backend.removeprefix("sqlite:///"))  # in tests a copy, without migrations
    # the processes for background jobs, which nothing here uses, cost as much as the server
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    server = Process(_SERVER, arguments, cwd=folder, env=environment)
    try:
        _wait_for(lambda: _answers(f"{url}/health"), server, log)
        yield url
    finally:
        server.terminate()
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)
            server.communicate()


def postgres_programs() -> Path | None:
    """Folder of PostgreSQL's server programs (Debian keeps them off the PATH); None if not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("postgres")
    return next((one for one in folders if (one / "initdb").is_file()), Path(found).parent if found else None)


@contextmanager
def postgres_server(folder: Path, programs: Path) -> Iterator[str]:
    """Start PostgreSQL on loopback with a new database; yield its SQLAlchemy URL. Its log is in ``folder``.

    PostgreSQL refuses to run as root. As root, it runs as Debian's user ``postgres``, whose data can't be in
    a folder of pytest: every session of pytest makes the parent of these folders private to root.
    """
    port = _free_port()
    with TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as data:
        as_user: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(data, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        initdb = [str(programs / "initdb"), "-D", data, "-U", "me", "--auth=trust", "-N"]
        subprocess.run([*as_user, *initdb], cwd="/", check=True, stdout=subprocess.DEVNULL)
        # without a socket in a folder, whose path may be too long
        options = ["-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
        log = folder / "postgres.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [*as_user, str(programs / "postgres"), *options], stdout=output, stderr=output, cwd="/"
            )
        try:
            ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
            _wait_for(
                lambda: subprocess.run(ready, check=False, capture_output=True).returncode == 0, server, log
            )
            yield f"postgresql://me@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(timeout=60)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # a loopback address made above
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _wait_for(is_ready: object, server: Process | subprocess.Popen[bytes], log: Path) -> None:
    assert callable(is_ready)
    until = time.monotonic() + _PATIENCE
    while not is_ready():
        assert server.poll() is None, f"the server has ended:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < until, f"the server does not answer:\n{log.read_text()[-2000:]}"
        time.sleep(0.2)
