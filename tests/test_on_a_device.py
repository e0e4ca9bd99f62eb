"""Training and explanation on a mock of a GPU, in a process of their own.

PyTorch starts the threads of backward passes once in a process, one for each device that it knows by then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

FILES = ("models/models_on_a_device.py", "pipelines/explain/explained_on_a_device.py")


@pytest.mark.slow(30)
def test_on_a_device() -> None:
    files = [f"tests/{file}" for file in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), done.stdout  # and none was skipped
