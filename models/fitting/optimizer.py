"""How a step changes the weights: AdamW with warm-up and cosine decay, and the running mean of the weights.

Legend: S steps of a training, G groups of parameters.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict

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
    learning rate ``lr * layer_decay**k``; all others have ``lr``. Vectors and norms are not decayed, nor are
    the parameters that a part of the module lists in ``undecayed``.
    """
    encoder, parameters = day_encoder(module), list(module.parameters())
    named = {
        getattr(part, name, None) for part in module.modules() for name in getattr(part, "undecayed", ())
    }
    norms = {p for part in module.modules() if isinstance(part, nn.LayerNorm) for p in part.parameters()}
    undecayed = named | norms | {p for p in parameters if p.ndim < 2}
    depths = {} if encoder is None or config.layer_decay == 1.0 else encoder.depths()
    own = {} if encoder is None else dict(encoder.named_parameters())
    depth_of = {own[name]: depth for name, depth in depths.items()}
    groups: list[ParameterGroup] = []
    for depth in sorted({depth_of.get(p, 0) for p in parameters}):
        layer = [p for p in parameters if depth_of.get(p, 0) == depth]
        lr = config.lr * config.layer_decay**depth
        for without, decay in ((False, config.weight_decay), (True, 0.0)):
            chosen: list[Tensor] = [p for p in layer if (p in undecayed) == without]
            groups.append({"params": chosen, "lr": lr, "weight_decay": decay})
    return groups


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` by its fused kernel, with its schedule and the running mean of the weights.

    Numbers are those of the library with ``fused=True``, to the bit. The library's own methods import
    ``torch._dynamo`` when they are first called, which takes over a second of every process that trains; the
    methods are replaced by the functions that they wrap. The parameters of ``groups`` require a gradient and
    are all of one device and type.

    The learning rate of step n of S = ``steps`` is that of the group times a factor, which rises linearly to
    1 over the first ``warmup * steps`` steps, then falls to 0 as ``(1 + cos(pi p)) / 2``, with p the share of
    the remaining steps that are done. On a CPU, rates are numbers. On a GPU, those of all steps are in a
    table on it, and so is the number of steps taken: a step reads nothing from the host, so that it can be
    recorded and replayed.

    Loshchilov and Hutter (2019), "Decoupled weight decay regularization", algorithm 2.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    def __init__(self, groups: Iterable[ParameterGroup], config: FitConfig, steps: int) -> None:
        super().__init__([dict(group) for group in groups], lr=config.lr, fused=True)
        self.steps, self.rising = steps, max(1, round(config.warmup * steps))
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.mean = RunningMean(parameters, config.average)
        device = parameters[0].device
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        """Number of steps taken."""
        self._tables: tuple[Tensor, Tensor] | None = None  # rates [S, G], weights of the mean [S]
        if device.type != "cpu":
            factors = [self.factor(step) for step in range(steps)]
            rate_SG = torch.tensor(
                [[group["lr"] * factor for group in self.param_groups] for factor in factors]
            )
            weight_S = torch.tensor([self.mean.weight(step) for step in range(steps)])
            self._tables = rate_SG.to(device), weight_S.to(device)

    def factor(self, step: int) -> float:
        """Factor on the learning rate in a step, counted from 0."""
        if step < self.rising:
            return (step + 1) / self.rising
        return 0.5 * (1.0 + math.cos(math.pi * (step - self.rising) / max(1, self.steps - self.rising)))

    def rate(self, step: int) -> float:
        """Learning rate of the first group in a step."""
        first: float = self.param_groups[0]["lr"]
        return first * self.factor(step)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every parameter that has a gradient, and include the parameters in the running mean."""
        assert closure is None, "gradients are computed before"
        rates: Sequence[float | Tensor]
        weight: float | Tensor
        if self._tables is None:
            taken = int(self.taken)
            factor, weight = self.factor(taken), self.mean.weight(taken)
            rates = [group["lr"] * factor for group in self.param_groups]
        else:
            at_1 = self.taken.clamp(max=self.steps - 1)[None]
            rate_G, weight = (table.index_select(0, at_1)[0] for table in self._tables)
            rates = rate_G.unbind()
        for group, rate in zip(self.param_groups, rates, strict=True):
            # parameters, gradients, first moments, second moments, largest second moments (unused), steps
            lists: list[list[Tensor]] = [[] for _ in range(6)]
            self._init_group(group, *lists)  # type: ignore[no-untyped-call]
            if not lists[0]:
                continue
            torch._foreach_add_(lists[-1], 1)
            torch._fused_adamw_(
                *lists,
                lr=rate,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        self.mean.update(weight)
        self.taken += 1


class RunningMean:
    """Exponential mean of parameters over the training steps.

    ``m <- m + (1 - d) (w - m)`` with ``d = min(decay, (1 + n) / (10 + n))`` at step n. The smaller d of the
    first steps keeps the initial weights from staying in the mean. ``decay`` is in [0, 1); 0 keeps no mean.
    """

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        self.parameters, self.decay = list(parameters), decay
        self.means = [p.detach().clone() for p in self.parameters] if decay > 0.0 else []

    def weight(self, step: int) -> float:
        """Weight of the parameters after a step, counted from 0: 1 - d."""
        return 1.0 - min(self.decay, (1.0 + step) / (10.0 + step))

    def update(self, weight: float | Tensor) -> None:
        """Include the parameters after one more step, with a weight that may be on the device."""
        if not self.means:
            return
        trained = [p.detach() for p in self.parameters]
        if isinstance(weight, Tensor):
            moved = torch._foreach_sub(trained, self.means)
            torch._foreach_mul_(moved, weight)
            torch._foreach_add_(self.means, moved)
        else:
            torch._foreach_lerp_(self.means, trained, weight)

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
