"""``peerglass doctor``: checks of this machine and installation, with a cure for each problem."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer
from packaging.requirements import Requirement

from features.arithmetic.parallel import n_cores
from pipelines.cli import RUNS_FOLDER


def doctor() -> None:
    """Check this machine and installation. Exit code 3 if something that Peerglass needs is missing.

    Checks Python, the libraries, the accelerator, memory, disk, the data folder and the data sources, and
    prints how to fix each problem.
    """
    findings = examine()
    for finding in findings:
        print(finding)
    if any(finding.is_error for finding in findings):
        raise typer.Exit(3)


@dataclass(frozen=True, slots=True)
class Examined:
    """One line of the output: what was looked at, ``ok``, ``note`` or ``missing``, and the cure."""

    name: str
    verdict: str
    detail: str

    @property
    def is_error(self) -> bool:
        """Whether Peerglass cannot work on this machine as it is."""
        return self.verdict == "missing"

    def __str__(self) -> str:
        return f"{self.verdict:<8}{self.name:<16}{self.detail}"


def examine() -> list[Examined]:
    """Check Python, the libraries, the accelerator, memory, disk, the data folder and the sources."""
    return [
        _python(),
        *_libraries(),
        _accelerator(),
        _memory(),
        _disk(),
        _data_folder(),
        *_feature_store(),
        _network_sources(),
    ]


def _judged(name: str, said: str, cure: str, *, fine: bool) -> Examined:
    return Examined(name, "ok" if fine else "missing", said if fine else f"{said}; {cure}")


def _python() -> Examined:
    said, fine = f"{platform.python_version()} on {platform.system()}", sys.version_info >= (3, 11)
    return _judged("python", said, "install Python 3.11 or later", fine=fine)


def _libraries() -> list[Examined]:
    """Compare the installed libraries with the requirements of the package."""
    wrong = []
    required = [Requirement(text) for text in requires("peerglass") or []]
    required = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    for requirement in required:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(Examined(requirement.name, "missing", f"not installed; pip install '{requirement}'"))
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            cure = f"{installed} is installed; pip install '{requirement}'"
            wrong.append(Examined(requirement.name, "missing", cure))
    return wrong or [Examined("libraries", "ok", f"all {len(required)} present, torch {version('torch')}")]


def _accelerator() -> Examined:
    import torch

    if torch.cuda.is_available():
        gib = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Examined("accelerator", "ok", f"{torch.cuda.get_device_name(0)}, {gib:.0f} GiB")
    return Examined("accelerator", "note", "no CUDA device; training runs on the CPU, one process per core")


def _memory() -> Examined:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    said, cure = f"{n_cores()} cores, {gib:.0f} GiB memory", "the demo needs at least 4 GiB of memory"
    return _judged("machine", said, cure, fine=gib >= 4)


def _disk() -> Examined:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    said, cure = f"{free:.0f} GiB free in the current folder", "free at least 2 GiB for the lake and outputs"
    return _judged("disk", said, cure, fine=free >= 2)


def _data_folder() -> Examined:
    folder = Path("data")
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        said = f"{folder.resolve()} is not writable ({error.strerror}); change to a writable folder"
        return Examined("data folder", "missing", said)
    return Examined("data folder", "ok", str(folder.resolve()))


def _feature_store() -> list[Examined]:
    """Describe the stored characteristics; nothing if there are none in the default folder."""
    from pipelines.dataset.feature_store import entries_of

    folder = RUNS_FOLDER.parent / "features"
    sizes = [size for _, size in entries_of(folder)]
    if not sizes:
        return []
    what = "1 entry" if len(sizes) == 1 else f"{len(sizes):,} entries"
    limit = "the least recently used are removed above feature_store.limit_gib; the folder can be deleted"
    said = f"{what}, {sum(sizes) / 2**30:.1f} GiB in {folder.resolve()}; {limit}"
    return [Examined("feature store", "ok", said)]


def _network_sources() -> Examined:
    try:
        sec = f"sec downloads from EDGAR with edgartools {version('edgartools')}"
    except PackageNotFoundError:
        sec = "for sec, run: pip install 'edgartools>=5.62'"
    offline = "simulated and sample work offline; files reads your CSV, Excel or Parquet"
    return Examined("sources", "ok", f"{offline}; {sec}")
