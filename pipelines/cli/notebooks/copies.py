"""Copies of the notebooks that come with Peerglass."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pipelines.errors import ConfigError

# notebooks/ is next to the packages, both in a checkout and in an installed wheel.
SHIPPED: Final = Path(__file__).parents[3] / "notebooks"
MARKET: Final = "market.yaml"
"""Config of the simulated market that the notebooks use; it is copied with each of them."""


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
