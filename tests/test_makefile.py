"""What ``make`` installs, and with which interpreter: the newest supported or the named one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

FAKE = """#!/bin/sh
case "$1 $2" in
    "-c import ensurepip, venv") exit {without_venv} ;;
    "-c "*) echo {version} ;;
    "-m venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo "venv {version}" >> log
        printf '#!/bin/sh\\necho "peerglass $*" >> log' > .venv/bin/peerglass; chmod +x .venv/bin/peerglass ;;
    "-m pip") for last; do :; done; echo "pip {version} $last" >> log ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile, and a PATH with only the tools that its recipes use."""
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "path").mkdir()
    for tool in ("make", "sh", "rm", "mkdir", "cp", "chmod", "touch", "uname"):
        (tmp_path / "path" / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def interpreter(folder: Path, name: str, version: str, without_venv: bool = False) -> Path:
    path = folder / name
    path.write_text(FAKE.format(version=version, without_venv=int(without_venv)))
    path.chmod(0o755)
    return path


def run_make(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    of_make = ("PYTHON", "MAKEFLAGS", "MAKELEVEL")  # the tests themselves may be run by make
    environment = {key: value for key, value in os.environ.items() if key not in of_make}
    return subprocess.run(
        ["make", *arguments],
        cwd=project,
        env={**environment, "PATH": str(project / "path")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def make(project: Path, *settings: str, target: str = "venv") -> tuple[int, str, list[str]]:
    """Run ``make``; return the exit code, standard error, and the calls of the fake interpreters."""
    log = project / "log"
    log.unlink(missing_ok=True)
    process = run_make(project, target, *settings)
    return process.returncode, process.stderr, log.read_text().splitlines() if log.exists() else []


def test_the_newest_supported_interpreter_is_used_and_then_kept(project: Path) -> None:
    for version in ("3.10", "3.11", "3.12", "3.14"):
        interpreter(project / "path", f"python{version}", version)
    interpreter(project / "path", "python3", "3.14")
    assert make(project) == (0, "", ["venv 3.12", "pip 3.12 .[dev]"])
    assert make(project) == (0, "", [])
    interpreter(project / "path", "python3.13", "3.13")
    assert make(project) == (0, "", []), "a working environment is kept"
    os.utime(project / "constraints.txt", (2e9, 2e9))
    assert make(project) == (0, "", ["pip 3.12 .[dev]"])


def test_the_demo_installs_no_tools_of_developers(project: Path) -> None:
    interpreter(project / "path", "python3", "3.12")
    demo = "peerglass demo"
    assert make(project, target="demo") == (0, "", ["venv 3.12", "pip 3.12 .", demo])
    assert make(project, target="demo") == (0, "", [demo])
    assert make(project) == (0, "", ["pip 3.12 .[dev]"]), "the tools are added"
    os.utime(project / "constraints.txt", (2e9, 2e9))
    os.utime(project / ".venv" / ".up-to-date", (3e9, 3e9))
    assert make(project, target="demo") == (0, "", [demo]), "developers have what users need"


def test_the_first_installation_says_how_large_it_is(project: Path) -> None:
    interpreter(project / "path", "python3", "3.12")
    said = [run_make(project, "demo").stdout for _ in range(2)]
    assert re.match(r"make: installing Peerglass: .* GB to download and .* GB on the disk", said[0])
    assert said[1] == ""


def test_an_interpreter_without_the_venv_module_is_skipped(project: Path) -> None:
    interpreter(project / "path", "python3.13", "3.13", without_venv=True)
    interpreter(project / "path", "python3", "3.11")
    assert make(project) == (0, "", ["venv 3.11", "pip 3.11 .[dev]"])


def test_a_named_interpreter_has_priority_and_replaces_another_environment(project: Path) -> None:
    interpreter(project / "path", "python3.13", "3.13")
    mine = interpreter(project, "mine", "3.11")
    assert make(project, f"PYTHON={mine}") == (0, "", ["venv 3.11", "pip 3.11 .[dev]"])
    assert make(project, f"PYTHON={mine}") == (0, "", [])
    code, error, calls = make(project, "PYTHON=python3.13")
    assert (code, calls) == (0, ["venv 3.13", "pip 3.13 .[dev]"])
    assert error == "make: creating .venv again for Python 3.13.\n"


@pytest.mark.parametrize("left", ["gone", "unsupported"])
def test_an_environment_with_an_unusable_interpreter_is_replaced(project: Path, left: str) -> None:
    interpreter(project / "path", "python3.12", "3.12")
    assert make(project)[0] == 0
    inside = project / ".venv" / "bin" / "python"
    inside.unlink()
    if left == "gone":
        inside.symlink_to(project / "path" / "python3.9")
    else:
        interpreter(inside.parent, "python", "3.14")
    code, error, calls = make(project)
    assert (code, calls) == (0, ["venv 3.12", "pip 3.12 .[dev]"])
    assert error == "make: creating .venv again for Python 3.12.\n"


def test_without_a_supported_interpreter_the_error_names_what_to_install(project: Path) -> None:
    code, error, calls = make(project)
    assert (code, calls) == (2, [])
    assert error.splitlines()[0] == (
        "make: found no Python 3.13, 3.12 or 3.11 with its venv module: install one (on Debian: "
        "apt install python3-venv) or set PYTHON=/path/to/python3."
    )
    interpreter(project / "path", "python3", "3.10")
    code, error, calls = make(project)
    assert (code, calls) == (2, [])
    assert "python3 is not Python 3.13, 3.12 or 3.11 (its version is 3.10): set PYTHON=" in error
    assert not (project / ".venv").exists()
