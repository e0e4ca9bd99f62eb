"""The files of ``deploy/`` are what their programs accept, and call the command line as it is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from places import ROOT

from pipelines.cli.main import app
from pipelines.config.load import load_config

DEPLOY = ROOT / "deploy"
HOME = "/opt/peerglass"
FIELDS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


def accept(arguments: list[str]) -> dict[str, Any]:
    """Parse the arguments of ``peerglass`` as the command line does; it exits if they are wrong."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands[arguments[0]].make_context(arguments[0], arguments[1:]).params)


def crontab() -> tuple[dict[str, str], list[tuple[list[str], str]]]:
    """Variables, and the times and command of every entry."""
    variables, entries = {}, []
    for line in (DEPLOY / "peerglass.cron").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if variable := re.fullmatch(r"([A-Z]+)=(.*)", line):
            variables[variable[1]] = variable[2]
        else:
            *times, command = line.split(maxsplit=5)
            entries.append((times, command))
    return variables, entries


def test_the_crontab_has_a_log_a_lock_and_a_time_limit_and_its_command_is_accepted() -> None:
    variables, entries = crontab()
    assert len(entries) == 2
    for times, command in entries:
        for (name, (low, high)), text in zip(FIELDS.items(), times, strict=True):
            numbers = [int(number) for number in re.findall(r"\d+", text)]
            assert re.fullmatch(r"\*|\d+(-\d+)?(,\d+(-\d+)?)*", text), name
            assert all(low <= number <= high for number in numbers), name
        assert "%" not in command, "cron reads it as the end of the line"
        change, call = re.sub(r'"\$([A-Z]+)"', lambda name: variables[name[1]], command).split(" && ")
        assert change == f"cd {HOME}"
        words = shlex.split(call)
        assert words[:5] == ["flock", "--nonblock", "--conflict-exit-code", "0", "data/nightly.lock"]
        assert words[5:8] == ["timeout", "--kill-after=60", "4h"]
        assert words[8] == ".venv/bin/peerglass"
        assert words[-2:] == [">>data/logs/nightly.log", "2>&1"]
        assert accept(words[9:-2])["config"] == Path("configs/nightly_yahoo.yaml")
        assert (ROOT / "configs/nightly_yahoo.yaml").is_file()


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock (util-linux) is not installed")
def test_the_line_of_the_crontab_works_in_a_shell_and_starts_nothing_twice(tmp_path: Path) -> None:
    _, entries = crontab()
    stub = tmp_path / ".venv/bin/peerglass"
    stub.parent.mkdir(parents=True)
    stub.write_text('#!/bin/sh\nsleep 1\necho "$@"\necho trouble >&2\nexit 3\n')
    stub.chmod(0o755)
    (tmp_path / "data/logs").mkdir(parents=True)
    environment = {"HOME": str(tmp_path), "CONFIG": "my.yaml", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    both = [subprocess.Popen(["/bin/sh", "-c", entries[0][1]], env=environment) for _ in range(2)]
    assert sorted(one.wait(timeout=300) for one in both) == [0, 3], "one of them finds the lock taken"
    assert (tmp_path / "data/logs/nightly.log").read_text() == "nightly my.yaml\ntrouble\n"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # as configparser documents it
    parser.read(DEPLOY / name)
    return parser


def test_the_service_has_a_log_a_lock_and_a_time_limit_and_its_command_is_accepted() -> None:
    service = unit("peerglass-nightly.service")["Service"]
    assert service["Type"] == "oneshot"
    assert service["TimeoutStartSec"] == "4h"
    assert service["StandardOutput"] == service["StandardError"] == "journal"
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == f"{service['WorkingDirectory']}/.venv/bin/peerglass"
    assert accept(arguments)["config"] == Path("configs/nightly_yahoo.yaml")
    assert unit("peerglass-nightly.timer")["Timer"]["Unit"] == "peerglass-nightly.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    stub = tmp_path / "home/.venv/bin/peerglass"
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    units = [tmp_path / "peerglass-nightly.service", tmp_path / "peerglass-nightly.timer"]
    for path in units:
        path.write_text((DEPLOY / path.name).read_text().replace(HOME, str(tmp_path / "home")))
    verify = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    verified = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=300)
    assert (verified.returncode, verified.stderr) == (0, "")
    units[0].write_text(units[0].read_text().replace("TimeoutStartSec=4h", "TimeoutStartSec=long"))
    refused = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=300)
    assert "TimeoutStartSec" in refused.stderr, "a mistake would be seen"


def instructions() -> list[tuple[str, str]]:
    """Instruction and rest of every line of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_dockerfile_copies_the_whole_project_and_its_command_is_accepted() -> None:
    found = instructions()
    assert found[0][0] == "FROM"
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in found} == known
    copied = [word for name, rest in found if name == "COPY" for word in rest.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, "pyproject.toml", "constraints.txt", project["project"]["readme"], "configs"}
    assert needed <= set(copied)
    (install,) = [rest for name, rest in found if rest.startswith("pip install")]
    extras = re.findall(r"\.\[(.*?)\]", install)
    assert extras
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    version = next(rest for name, rest in found if name == "FROM").partition("python:")[2].partition("-")[0]
    assert version in (ROOT / "Makefile").read_text().partition("SUPPORTED := ")[2].splitlines()[0].split()
    assert install.split()[:2] == ["pip", "install"]
    called = {name: json.loads(rest) for name, rest in found if name in ("ENTRYPOINT", "CMD")}
    assert called["ENTRYPOINT"] == list(project["project"]["scripts"])
    assert (ROOT / accept(called["CMD"])["config"]).is_file()


def test_the_job_on_kubernetes_has_a_log_a_lock_and_a_time_limit_and_its_command_is_accepted(
    tmp_path: Path,
) -> None:
    objects = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    assert {kind: one["apiVersion"] for kind, one in objects.items()} == {
        "ConfigMap": "v1",
        "PersistentVolumeClaim": "v1",
        "CronJob": "batch/v1",
    }
    spec = objects["CronJob"]["spec"]
    job = spec["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    assert len(spec["schedule"].split()) == len(FIELDS)
    assert spec["concurrencyPolicy"] == "Forbid"
    assert job["activeDeadlineSeconds"] == 4 * 3600
    assert pod["restartPolicy"] == "Never", "a failed call keeps its pod and so its log"
    (container,) = pod["containers"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    configs = objects["ConfigMap"]
    assert volumes["config"]["configMap"]["name"] == configs["metadata"]["name"]

    path = accept(container["args"])["config"]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(path.parent) == places["config"]
    written = configs["data"][path.name].replace(HOME, str(ROOT))
    (tmp_path / path.name).write_text(written)
    config = load_config(tmp_path / path.name)
    data = places["data"]
    stored = (config.lake, config.output, config.tracking.artifacts)
    assert all(Path(place).is_relative_to(data) for place in stored), "on the volume"
    assert config.tracking.uri == f"sqlite:///{data}/mlflow.db"


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_objects_of_kubernetes_fit_its_schemas(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="the dev extra is older than this test")
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert len(objects) == 3
    for one in objects:
        kubernetes.validate(one, version, strict=True)
    objects[-1]["spec"]["jobTemplate"]["spec"]["activeDeadline"] = 1
    with pytest.raises(kubernetes.ValidationError, match="activeDeadline"):
        kubernetes.validate(objects[-1], version, strict=True)
