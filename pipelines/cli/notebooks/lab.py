"""JupyterLab with the Python of this installation."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from pipelines.errors import ConfigError


def open_lab(path: Path, variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by JupyterLab on a notebook or a folder.

    The kernel ``python3`` is that of this installation, even if the user has another one of this name.

    Raises
    ------
    ConfigError
        If JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise ConfigError(
            "JupyterLab is not installed; run: pip install 'jupyterlab>=4.3', or write the notebook as a "
            "page with --html FILE."
        )
    environment = {**os.environ, **variables, "JUPYTER_PREFER_ENV_PATH": "1"}
    print(f"JupyterLab opens {path}; end it with Ctrl-C.", flush=True)
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", str(path)], environment)  # noqa: S606  # no shell
