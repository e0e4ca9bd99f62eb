"""What may not occur in work that a GPU records and replays, checked on a device of shapes without values.

The device is ``meta``: its tensors have no values on the host, as those of a GPU have none until it is waited
for. Tensors on the host are ordinary.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ON_DEVICE = torch.device("meta")
READS = {"nonzero", "masked_select", "unique_consecutive", "_unique2", "equal", "repeat_interleave"}
"""Operations whose result has a shape that depends on values, or is a value."""
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"_to_copy", "to", "copy_"}


class Rules(TorchDispatchMode):
    """Names of the operations that wait for the device; those that read its values get made-up ones.

    These are operations that need its values, copies to the host, copies from it that are not asynchronous,
    and operations on tensors of both places, which a GPU refuses or copies for.

    Parameters
    ----------
    recorded
        Whether the work is to be recorded: then no copy from the host is allowed at all.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        self.recorded, self.names, self.operations = recorded, list[str](), 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        name = func.overloadpacket.__name__
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        if not any(one.device == ON_DEVICE for one in given) and ON_DEVICE not in devices:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.names.append(name)
            return 3
        masks = [one for one in given[1:] if one.dtype == torch.bool]
        if name in READS or (name in INDEXES and masks):
            self.names.append(name)
        copied = name in {"_to_copy", "to"} and any(device != ON_DEVICE for device in devices)
        if copied or (name == "copy_" and given[0].device != ON_DEVICE):
            self.names.append("copy to the host")
            return torch.zeros_like(given[0], device="cpu")
        on_host = any(one.device != ON_DEVICE and one.ndim for one in given)
        if name in COPIES:
            named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
            if on_host and (self.recorded or not named.get("non_blocking")):
                self.names.append("copy to the device")
        elif on_host:
            self.names.append(f"{name} of host and device")
        if name == "_fused_adamw_":  # in place, and unknown on a device without values
            return None
        self.operations += 1
        return func(*args, **kwargs)


def allow_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AdamW take parameters of the device, which it does not know as one with fused kernels."""
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda _: None)
