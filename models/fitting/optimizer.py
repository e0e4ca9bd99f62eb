"""The optimizer: AdamW with warm-up and cosine decay, and the running mean of the weights."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from models.attention.encoder import day_encoder
from models.fitting.config import FitConfig


class ParameterGroup(TypedDict):
    """Parameters with a learning rate and a weight decay of their own."""

    params: list[Tensor]
    lr: float
    weight_decay: float


def parameter_groups(module: nn.Module, config: FitConfig) -> list[ParameterGroup]:
    """Group a module's parameters by learning rate and by whether they are decayed.

    A parameter at depth k of the day encoder (:meth:`models.attention.encoder.DayEncoder.depths`) has the
    learning rate ``lr * layer_decay**k``; all others have ``lr``. Vectors are not decayed, nor are the
    parameters that a part of the module lists in ``undecayed``.
    """
    encoder, parameters = day_encoder(module), list(module.parameters())
    named = {
        getattr(part, name, None) for part in module.modules() for name in getattr(part, "undecayed", ())
    }
    undecayed = named | {p for p in parameters if p.ndim < 2}
    depths = {} if encoder is None or config.layer_decay == 1.0 else encoder.depths()
    own = {} if encoder is None else dict(encoder.named_parameters())
    depth_of = {own[name]: depth for name, depth in depths.items()}
    groups: list[ParameterGroup] = []
    for depth in sorted({depth_of.get(p, 0) for p in parameters}):
        layer = [p for p in parameters if depth_of.get(p, 0) == depth]
        lr = config.lr * config.layer_decay**depth
        groups += [
            {
                "params": [p for p in layer if p not in undecayed],
                "lr": lr,
                "weight_decay": config.weight_decay,
            },
            {"params": [p for p in layer if p in undecayed], "lr": lr, "weight_decay": 0.0},
        ]
    return groups


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` by its fused kernel, without torch's compiler.

    Numbers are those of the library with ``fused=True``, to the bit. The library's own methods import
    ``torch._dynamo`` when they are first called, which takes over a second of every process that trains; the
    methods are replaced by the functions that they wrap.

    Parameters
    ----------
    groups
        Parameters that require a gradient, all of one device and type, with their options.
    lr
        Learning rate of groups that have none of their own.

    Notes
    -----
    Loshchilov and Hutter (2019), "Decoupled weight decay regularization", algorithm 2.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, lr=lr, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every parameter that has a gradient."""
        assert closure is None, "gradients are computed before"
        for group in self.param_groups:
            # parameters, gradients, first moments, second moments, largest second moments (unused), steps
            lists: list[list[Tensor]] = [[] for _ in range(6)]
            self._init_group(group, *lists)  # type: ignore[no-untyped-call]
            if not lists[0]:
                continue
            torch._foreach_add_(lists[-1], 1)
            torch._fused_adamw_(
                *lists,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


def make_optimizer(
    groups: Iterable[ParameterGroup], config: FitConfig, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW and its schedule over ``steps`` steps.

    The factor on the learning rate rises linearly to 1 over the first ``warmup * steps`` steps, then falls
    to 0 as ``(1 + cos(pi p)) / 2``, with p the share of the remaining steps that are done.
    """
    optimizer = AdamW([dict(group) for group in groups], lr=config.lr)
    rising = max(1, round(config.warmup * steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class RunningMean:
    """Exponential mean of parameters over the training steps.

    ``m <- m + (1 - d) (w - m)`` with ``d = min(decay, (1 + n) / (10 + n))`` at step n. The smaller d of the
    first steps keeps the initial weights from staying in the mean.

    Parameters
    ----------
    parameters
        Trained in place by an optimizer.
    decay
        In [0, 1); 0 keeps no mean.
    """

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        self.parameters, self.decay, self.steps = list(parameters), decay, 0
        self.means = [p.detach().clone() for p in self.parameters] if decay > 0.0 else []

    def update(self) -> None:
        """Include the parameters after one more step."""
        if not self.means:
            return
        keep = min(self.decay, (1.0 + self.steps) / (10.0 + self.steps))
        self.steps += 1
        torch._foreach_lerp_(self.means, [p.detach() for p in self.parameters], 1.0 - keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the parameters the values of the mean while the block runs."""
        if not self.means:
            yield
            return
        trained = [p.detach().clone() for p in self.parameters]
        self._assign(self.means)
        try:
            yield
        finally:
            self._assign(trained)

    def _assign(self, values: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)
