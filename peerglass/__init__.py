"""The public API of Peerglass: make and open runs, backtest signals, load stored models, and explain them.

``import peerglass`` imports nothing heavy; a name below is loaded when it is first used.

Peerglass consists of the packages ``features``, ``models``, ``backtest`` and ``pipelines``. They are
imported from the folder of this installation, even if the current folder has modules of the same names. In
one Python process a name stands for one package only: after ``import peerglass``, ``import models`` gives
Peerglass's. If another ``models`` was imported before, ``import peerglass`` raises ``ImportError``.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peerglass.measures import audit_signal, features, forecast_metrics, run_book
    from peerglass.network import PeerNetwork, peer_network
    from peerglass.runs import Run, ingest, init, list_runs, open_run, prices, run_config
    from peerglass.scoring import Attribution, Model, explain, explain_net, load_model
    from peerglass.signals import Backtest, backtest, compare
    from pipelines.errors import PeerglassError

__all__ = [
    "Attribution",
    "Backtest",
    "Model",
    "PeerNetwork",
    "PeerglassError",
    "Run",
    "audit_signal",
    "backtest",
    "compare",
    "explain",
    "explain_net",
    "features",
    "forecast_metrics",
    "ingest",
    "init",
    "list_runs",
    "load_model",
    "open_run",
    "peer_network",
    "prices",
    "run_book",
    "run_config",
]

_MODULES = {
    "pipelines.errors": ("PeerglassError",),
    "peerglass.measures": ("audit_signal", "features", "forecast_metrics", "run_book"),
    "peerglass.network": ("PeerNetwork", "peer_network"),
    "peerglass.runs": ("Run", "ingest", "init", "list_runs", "open_run", "prices", "run_config"),
    "peerglass.scoring": ("Attribution", "Model", "explain", "explain_net", "load_model"),
    "peerglass.signals": ("Backtest", "backtest", "compare"),
}
"""Module -> names of the public API that it defines."""


def _import_own_pipelines() -> None:
    """Import ``pipelines`` from this installation; it does the same with the other packages."""
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root))
    try:
        package = importlib.import_module("pipelines")
    finally:
        sys.path.remove(str(root))
    if Path(package.__file__ or "").parent != root / "pipelines":
        raise ImportError(
            f"Peerglass has a package named pipelines, but another module of this name is already imported "
            f"({package.__file__}): rename that module, or use Peerglass in a process of its own."
        )


_import_own_pipelines()


def __getattr__(name: str) -> Any:  # noqa: ANN401 (any public name)
    if name == "__version__":
        from importlib.metadata import version

        return version("peerglass")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'peerglass' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
