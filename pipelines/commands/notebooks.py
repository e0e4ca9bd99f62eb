"""Copies of the notebooks that come with Peerglass."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from pipelines.errors import ConfigError, DataError, PeerglassError
from pipelines.files import write_text

# notebooks/ is next to the packages, both in a checkout and in an installed wheel.
SHIPPED: Final = Path(__file__).parents[2] / "notebooks"
MARKET: Final = "market.yaml"  # config of the notebooks' market, copied with each of them


def find_notebook(name: str) -> str:
    """Return the notebook whose name begins with ``name``, without its suffix."""
    known = sorted(path.stem for path in SHIPPED.glob("0*.ipynb"))
    found = [one for one in known if one.startswith(name.removesuffix(".ipynb"))]
    if len(found) != 1:
        wrong = "There is no notebook" if not found else "More than one notebook begins with"
        raise ConfigError(f"{wrong} {name!r}; choose among: {', '.join(known)}.")
    return found[0]


def copy_notebooks(folder: Path, name: str | None = None) -> list[Path]:
    """Copy a notebook, or all of them, and return the copies; a file that exists is kept as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = sorted(SHIPPED.glob(f"{name or '0*'}.ipynb"))
    assert shipped, "the notebooks are part of every installation"
    for source in (*shipped, SHIPPED / MARKET):
        if not (folder / source.name).exists():
            shutil.copyfile(source, folder / source.name)
    return [folder / source.name for source in shipped]


def open_lab(path: Path, variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by JupyterLab on a notebook or a folder, with this installation's kernel."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise ConfigError(
            "JupyterLab is not installed; run: pip install 'jupyterlab>=4.3', or write the notebook as a "
            "page with --html FILE."
        )
    environment = {**os.environ, **variables, "JUPYTER_PREFER_ENV_PATH": "1"}
    print(f"JupyterLab opens {path}; end it with Ctrl-C.", flush=True)
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", str(path)], environment)  # noqa: S606  # no shell


_TEMPLATE = Path(__file__).with_name("notebook.html.jinja")
_ERRORS = {error.__name__: error for error in (ConfigError, DataError)}


def write_page(notebook: Path, target: Path, variables: Mapping[str, str]) -> Path:
    """Run a notebook and write it as one HTML page; a cell that ends with an error leaves no page."""
    for package in ("nbclient", "nbconvert", "ipykernel"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"--html needs {package}; run: pip install nbconvert nbclient ipykernel.")
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from nbconvert import HTMLExporter

    content = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]  # partly annotated
    client = NotebookClient(
        content,
        timeout=None,
        startup_timeout=300,  # seconds; on a busy machine a kernel needs more than the library's 60
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
        extra_arguments=["--log-level=40"],  # errors only
    )
    try:
        client.execute(env={**os.environ, **variables})
    except CellExecutionError as error:
        of_ours = _ERRORS.get(error.ename, PeerglassError)
        what = error.evalue if error.ename in _ERRORS else f"a cell ended with {error.ename}: {error.evalue}"
        raise of_ours(f"{notebook.name}: {what}") from None
    templates = [str(_templates())]  # as names and as paths: nbconvert's refer to each other both ways
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]  # partly annotated
        raw_template=_TEMPLATE.read_text("utf-8"),
        extra_template_basedirs=templates,
        extra_template_paths=templates,
    )
    page, _ = exporter.from_notebook_node(content, {"metadata": {"name": notebook.stem}})
    return write_text(target, page).resolve()


def _templates() -> Path:
    """Folder of nbconvert's templates; they are found even if it is installed outside of this environment."""
    from importlib.metadata import files

    (page,) = [
        one for one in files("nbconvert") or () if one.as_posix().endswith("/templates/lab/index.html.j2")
    ]
    return Path(str(page.locate())).resolve().parents[1]
