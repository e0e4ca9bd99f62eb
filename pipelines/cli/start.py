"""Verbs to get started: ``doctor``, ``demo``, ``init``, ``notebook`` and ``validate``."""

import ctypes
import datetime as dt
import os
import platform
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import typer
from packaging.requirements import Requirement

from features.arithmetic.parallel import n_cores
from pipelines.cli import RUNS_FOLDER, load
from pipelines.errors import ConfigError
from pipelines.terminal import say, text_table

# configs/ is next to the packages, both in a checkout and in an installed wheel.
DEMO_CONFIG: Final = Path(__file__).parents[2] / "configs" / "demo.yaml"


def doctor() -> None:
    """Check this machine and installation. Exit code 3 if something that Peerglass needs is missing.

    Checks Python, the libraries, the accelerator, memory, disk, the data folder and the data sources, and
    prints how to fix each problem.
    """
    findings = examine()
    say("\n".join(text_table([(one.verdict, one.name, one.detail) for one in findings], left=3, indent="")))
    if any(finding.verdict == "missing" for finding in findings):
        raise typer.Exit(3)


@dataclass(frozen=True, slots=True)
class Examined:
    """One line of the output: what was looked at, ``ok``, ``note`` or ``missing``, and the cure."""

    name: str
    verdict: str
    detail: str


def examine() -> list[Examined]:
    """Check Python, the libraries, the accelerator, memory, disk, the data folder and the sources."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    system, fine = f"{platform.python_version()} on {platform.system()}", sys.version_info >= (3, 11)
    needed = {
        "python": (system, fine, "install Python 3.11 or later"),
        "machine": (
            f"{n_cores()} cores, {memory:.0f} GiB memory",
            memory >= 4,
            "the demo needs at least 4 GiB of memory",
        ),
        "disk": (
            f"{free:.0f} GiB free in the current folder",
            free >= 2,
            "free at least 2 GiB for the lake and outputs",
        ),
    }
    python, *others = (
        Examined(name, "ok" if fine else "missing", said if fine else f"{said}; {cure}")
        for name, (said, fine, cure) in needed.items()
    )
    checked = [_accelerator(), *others, _data_folder(), *_feature_store(), _network_sources()]
    return [python, *_libraries(), *checked]


def _libraries() -> list[Examined]:
    """Compare the installed libraries with the requirements of the package."""
    wrong = []
    required = [Requirement(text) for text in requires("peerglass") or []]
    required = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    for requirement in required:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            said = "not installed"
        else:
            if requirement.specifier.contains(installed, prereleases=True):
                continue
            said = f"{installed} is installed"
        wrong.append(Examined(requirement.name, "missing", f"{said}; pip install '{requirement}'"))
    return wrong or [Examined("libraries", "ok", f"all {len(required)} present, torch {version('torch')}")]


def _accelerator() -> Examined:
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")  # the driver; without it there is nothing to import torch for
        import torch

        if torch.cuda.is_available():
            gib = torch.cuda.get_device_properties(0).total_memory / 2**30
            return Examined("accelerator", "ok", f"{torch.cuda.get_device_name(0)}, {gib:.0f} GiB")
    return Examined("accelerator", "note", "no CUDA device; training runs on the CPU, one process per core")


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


def demo(overrides: list[str] | None = None, wait: bool = False) -> None:
    """Run the whole pipeline on a simulated market and print the path of the report.

    Needs no data and no network. Everything is written under `data/` in the current folder. The market has
    planted structure, so the report can compare each model's information coefficient with the highest
    possible one, and can check whether the Shapley values find the planted peer edges.
    """
    from pipelines.stages import run_config

    print(run_config(load(DEMO_CONFIG, overrides, root=Path.cwd()), echo=say, wait=wait))


def init(
    file: Path, config: Path | None = None, *, date_format: str | None = None, force: bool = False
) -> None:
    """Look at a price file and write a config that runs on it.

    The file has one row per date and ticker with at least a close, or one column of closes per ticker. A
    folder or a pattern may have one file per ticker, named after it. Vendor, separator, decimal mark,
    encoding, column names and dates are recognised and written into the config, with folds and books that fit
    the length of the history and the number of firms. Read it before you run it: costs and the universe are
    assumptions.

    Example: `peerglass init prices.csv`, then `peerglass run prices.yaml`
    """
    from pipelines.config.draft import write_draft

    stem = re.sub(r"[*?\[\]]", "", file.name.partition(".")[0]).strip() or "prices"
    target = Path(f"{stem}.yaml") if config is None else config
    draft = write_draft(file, target, date_format, force=force)
    say(
        f"{target}: {draft.rows:,} prices of {draft.firms:,} firms, {draft.sessions:,} sessions from "
        f"{draft.first} to {draft.last}"
    )
    if draft.rejected:
        what = "rows cannot be used as prices and will be quarantined"
        say(f"{draft.rejected:,} {what}: {draft.broken}")
    for note in (*draft.notes, *draft.hazards):
        say(f"note: {note}")
    say(f"next: read {target}, then run: peerglass run {target}")


def notebook(
    name: str | None = None,
    *,
    run: str | None = None,
    date: dt.datetime | None = None,
    ticker: str | None = None,
    html: Path | None = None,
    copy: bool = False,
    output: Path = RUNS_FOLDER,
) -> None:
    """Open notebooks in JupyterLab, with the Python of this installation.

    - `01_first_run`: from a config to a backtest and an explained forecast
    - `02_peer_network_review`: a firm's peers on a date, and what changed since last month
    - `03_attention_is_not_explanation`: attention against Shapley values on a market whose truth is known
    - `04_your_own_data`: from a vendor's file to a measured model
    - `05_signal_research`: a signal from the idea to the deflated Sharpe ratio
    - `06_research_in_python`: features, a backtest and a comparison from a frame of prices alone

    The notebooks are copied into the folder `notebooks` here; one that is there already is kept as it is.
    They write below `data`, and need JupyterLab: `pip install 'jupyterlab>=4.3'`. With `--html` no server is
    started; the file needs no network, and its menus still work.

    Example: `peerglass notebook 02 --run latest --html review.html`
    """
    from pipelines.commands.notebooks import copy_notebooks, find_notebook, open_lab, write_page

    if copy and html is not None:
        raise ConfigError("--copy only copies the notebooks, and --html runs one; give one of the two.")
    chosen = None if name is None else find_notebook(name)
    if html is not None and chosen is None:
        raise ConfigError(
            "--html writes one notebook; name it, for example: peerglass notebook 02 --html FILE."
        )
    variables = {}  # the parameters of the notebooks, as environment variables of the kernel
    if run is not None:
        from pipelines.run.record import open_run

        variables["PEERGLASS_RUN"] = str(open_run(run, output, models=False).folder.resolve())
    if date is not None:
        variables["PEERGLASS_DATE"] = str(date.date())
    if ticker is not None:
        variables["PEERGLASS_TICKER"] = ticker
    copies = copy_notebooks(Path.cwd() / "notebooks", chosen)
    if copy:
        print(*copies, sep="\n")
    elif html is not None:
        print(write_page(copies[0], html, variables))
    else:
        open_lab(copies[0] if chosen else copies[0].parent, variables)


def validate(config: Path, overrides: list[str] | None = None) -> None:
    """Check a config and the files that its source names, and print it with every default filled in.

    Files are read as an ingest would read them: missing ones, missing columns and files that were mostly
    misread end with exit code 3. The lake is neither read nor written.
    """
    from pipelines.config.load import to_yaml
    from pipelines.run.fetch import check_source

    checked = load(config, overrides)
    check_source(checked)
    print(to_yaml(checked), end="")


VERBS: Final = (doctor, demo, init, notebook, validate)
