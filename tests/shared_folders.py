"""A folder that is made once for a whole session of tests, although several workers need it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that ``make`` fills; of several workers the first one fills it and the others wait.

    Tests must not change what is in it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers' folders are next to each other
    folder, done = base / f"shared-{name}", base / f"shared-{name}.done"
    with FileLock(base / f"shared-{name}.lock"):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
