"""A device that behaves as a GPU does towards the host, for tests on machines without one.

Its tensors keep their values in a tensor of the CPU that only this module reads. As on a GPU, numpy cannot
read them, and an operation on tensors of the device and of the host raises. So code that runs on this device
puts every tensor where it belongs. It computes with the operations of the CPU: speed, streams and kernels are
not tested.

The device takes the place that PyTorch reserves for other backends (``PrivateUse1``). It must be registered
before the first backward pass of a process and stays until its end, so its tests run in processes of their
own (`tests/test_on_a_device.py`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "mock"
_COPIES = {"_to_copy", "to", "copy_"}
_INDEXES = {"index", "index_put_", "_index_put_impl_"}
"""CUDA copies an index on the host to the device, and waits for it."""


class OnDevice(Tensor):
    """A tensor of the mock device."""

    hidden: Tensor

    @staticmethod
    def __new__(cls: type[OnDevice], hidden: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            hidden.size(),
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            device=torch.device(NAME, 0),
        )
        made.hidden = hidden
        return made

    @property
    def data(self) -> Tensor:
        """The tensor without its history; what is assigned takes the place of the values."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, OnDevice), "the values of a tensor stay on its device"
        self.hidden = other.hidden

    def tolist(self) -> Any:  # noqa: ANN401 (lists of numbers)
        """Copy to the host; PyTorch has no ``tolist`` of subclasses."""
        return self.detach().cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without the function
        cls,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Compute on the hidden values."""
        return _compute(func, args, kwargs or {})


class MockDevice(TorchDispatchMode):
    """Context in which tensors can be made on the mock device, and copied to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        _register()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Pass on what concerns the mock device."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(one, OnDevice) or _is_mock(one) for one in leaves):
            return _compute(func, args, kwargs)
        return func(*args, **kwargs)


@torch.inference_mode(mode=False)  # a tensor of inference cannot be a view of another one
def _compute(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    name, leaves = func.overloadpacket.__name__, tree_leaves((args, kwargs))
    there = any(isinstance(one, OnDevice) for one in leaves)
    here = any(isinstance(one, Tensor) and not isinstance(one, OnDevice) and one.ndim for one in leaves)
    if there and here and name not in _COPIES | _INDEXES:
        raise RuntimeError(f"{name} has tensors of the mock device and of the host.")
    devices = [one for one in leaves if isinstance(one, torch.device)]
    hidden_args, hidden_kwargs = tree_map(_hidden, (args, kwargs))
    found = func(*hidden_args, **hidden_kwargs)
    if name == "copy_":
        return args[0]
    if any(_is_mock(one) for one in devices) if devices else there:
        found = tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, found)
    if not there or name in _COPIES:
        return found
    return return_and_correct_aliasing(func, args, kwargs, found)


def _is_mock(one: Any) -> bool:  # noqa: ANN401
    return isinstance(one, torch.device) and one.type == NAME


def _hidden(one: Any) -> Any:  # noqa: ANN401
    if isinstance(one, OnDevice):
        return one.hidden
    return torch.device("cpu") if _is_mock(one) else one


@functools.cache
def _register() -> torch.library.Library:
    """Make the device known to PyTorch, with the operations that `torch.tensor` calls past the mode."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")

    def on_host(options: dict[str, Any]) -> dict[str, Any]:
        return {"dtype": options.get("dtype")}

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        _hidden(target).copy_(_hidden(source))
        return target

    library.impl("empty.memory_format", lambda n, **o: OnDevice(torch.empty(n, **on_host(o))), "PrivateUse1")
    library.impl(
        "empty_strided", lambda n, s, **o: OnDevice(torch.empty_strided(n, s, **on_host(o))), "PrivateUse1"
    )
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return library
