"""A notebook, run and written as one HTML page that needs no network."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from pipelines.errors import ConfigError, DataError, PeerglassError
from pipelines.files import write_text

# Without the scripts that nbconvert's template loads from other hosts; the rule forbids any request.
_TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""
_ERRORS = {error.__name__: error for error in (ConfigError, DataError)}


def write_page(notebook: Path, target: Path, variables: Mapping[str, str]) -> Path:
    """Run a notebook in its folder and write it with its outputs as one HTML page.

    The notebook itself is not changed.

    Parameters
    ----------
    notebook
        Path of the notebook.
    target
        HTML file.
    variables
        Environment variables of the kernel, besides those of this process.

    Returns
    -------
    Path
        The absolute path of the page.

    Raises
    ------
    PeerglassError
        If nbconvert or the kernel is missing, or a cell ends with an error. Nothing is written then.
    """
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
    templates = [
        str(_templates())
    ]  # as names and as paths: nbconvert's templates refer to each other both ways
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]  # partly annotated
        raw_template=_TEMPLATE, extra_template_basedirs=templates, extra_template_paths=templates
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
