"""The only part that reads or writes: config, sources, lake, walk-forward, tracking, reports, commands.

Importing it imports ``features``, ``models`` and ``backtest`` from the same folder, so that the modules
below get these packages even if the current folder, which may come first in ``sys.path``, has others of
these names.
"""

import importlib
import sys
from pathlib import Path


def _import_own_packages() -> None:
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root))
    try:
        packages = [importlib.import_module(name) for name in ("features", "models", "backtest")]
    finally:
        sys.path.remove(str(root))
    for package in packages:
        name, file = package.__name__, package.__file__
        if Path(file or "").parent != root / name:
            raise ImportError(
                f"Peerglass has a package named {name}, but another module of this name is already imported "
                f"({file}): rename that module, or use Peerglass in a process of its own."
            )


_import_own_packages()
