"""How a fit is computed on its device, decided from sizes alone before it starts."""

import os
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch

from models.fitting.config import FitConfig
from models.registry import model_entry
from models.spec import IncompatibleConfig

COMPILE_SECONDS = 40.0
"""Time to compile a training step.

On 16 cores it took 34 to 38 s for temporal_peer, 31 s for kernel_regression and 25 s for mlp, and 5 to 7 s if
the same shapes were compiled before.
"""

SAVED_SECONDS: Mapping[str, float] = MappingProxyType({"temporal_peer": 1e-7, "temporal_transformer": 1.9e-7})
"""What compilation saves per firm, date and seed of a step, for the models where it was measured.

On an H200 with 3,000 firms and 8 dates, a step of temporal_peer (its encoder 32 wide) takes 6.1 ms as a graph
and 2.4 compiled, of three seeds 12.2 and 4.7, and one of temporal_transformer 9.3 and 4.4 ms. For tcn (6.2
and 5.1 ms) and mlp (0.45 and 0.3 ms) it saves too little to count.
"""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """How the steps of a fit are computed."""

    # whether all steps have the same shapes (`models.fitting.stacked.StackedSeeds`). On CUDA devices they are
    # then recorded once and replayed.
    fixed_shapes: bool
    compiled: bool  # whether the steps are compiled as well


def plan_of(  # noqa: PLR0917  (a fit and its sizes)
    name: str, config: FitConfig, device: torch.device | str, places: int, steps: int, seeds: int
) -> FitPlan:
    """Decide how a fit is computed: one of so many ``steps`` and ``seeds`` that are trained together.

    ``places`` is the largest number of firms on a training date. Raises `IncompatibleConfig` when the config
    asks for compiled steps of a model that has none.
    """
    device, entry = torch.device(device), model_entry(name)
    on_gpu, stackable = device.type != "cpu", bool(entry.build.stackable)
    compiled = False
    if device.type == "cuda":
        pays = seeds * steps * config.batch_dates * places * SAVED_SECONDS.get(name, 0.0) > COMPILE_SECONDS
        compiled = (pays and can_compile()) if config.compile == "auto" else config.compile
    if compiled and not stackable:
        raise IncompatibleConfig(f"a step of {name} cannot be compiled; remove fit.compile.")
    return FitPlan(fixed_shapes=(on_gpu or seeds > 1) and stackable, compiled=compiled)


def can_compile() -> bool:
    """Whether this machine has what PyTorch compiles for a GPU with: Triton, a C compiler, Python's headers.

    Small container images have no compiler.
    """
    compilers = os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return find_spec("triton") is not None and any(compilers) and headers.is_file()


def why_eager(name: str, device: torch.device | str) -> str:
    """Why the steps of a model are not recorded on a GPU, as one sentence; empty where they are.

    Also empty on a CPU, where no step is recorded, and for baselines and ensembles.
    """
    entry = model_entry(name)
    if torch.device(device).type == "cpu" or entry.kind != "neural" or entry.build.stackable:
        return ""
    return (
        f"The steps of {name} are not recorded and replayed, because shapes in them depend on values: "
        "on a GPU its training takes several times as long."
    )
