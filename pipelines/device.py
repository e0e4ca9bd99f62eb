"""The devices that models are trained on, and the threads of the processor."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

VISIBLE = "CUDA_VISIBLE_DEVICES"  # GPUs that a process sees, by number or name, separated by commas
COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # folder of what PyTorch has compiled; by default a temporary one


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, as a process of its own sees it."""

    visible: str | None = None  # `VISIBLE` of a process that sees this GPU alone; None: as it is

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a process that computes on this GPU."""
        return MappingProxyType({} if self.visible is None else {VISIBLE: self.visible})


def resolve_device(setting: str) -> str:
    """Resolve ``auto`` to ``cuda`` if there is a CUDA device and to ``cpu`` if not."""
    if setting != "auto":
        return setting
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus_of(device: str) -> tuple[Gpu, ...]:
    """GPUs over which tasks of a device are spread: of ``cuda`` all, each seen alone, of ``cuda:1`` one."""
    if device == "cpu":
        return ()
    if device != "cuda":
        return (Gpu(),)
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return (Gpu(),)
    given = os.environ.get(VISIBLE, "")
    names = [name.strip() for name in given.split(",")] if given.strip() else [str(k) for k in range(count)]
    return tuple(Gpu(name) for name in names[:count])


def keep_compiled_steps() -> None:
    """Keep compiled training steps in the user's cache, for other processes and later nights."""
    with suppress(RuntimeError):  # the user has no home
        os.environ.setdefault(COMPILED, str(Path.home() / ".cache" / "peerglass" / "compiled"))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread in a ``with`` block, as training does, so that forecasts are equal to the bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
