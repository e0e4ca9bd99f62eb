"""Training and explanation on a mock of a GPU, each in a process of its own.

PyTorch starts the threads of backward passes once in a process, one for each device that it knows by then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from places import ROOT


@pytest.mark.slow(43)
@pytest.mark.parametrize(
    "file", ["models/models_on_a_device.py", "pipelines/explain/explained_on_a_device.py"]
)
def test_on_a_device(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), done.stdout  # and none was skipped
