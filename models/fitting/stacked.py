"""Several seeds of one model, trained at once: one tensor holds a parameter of all seeds.

This is for GPUs, which one small model leaves mostly idle; on CPUs, one process per core is faster. Each seed
has the initial weights, order of dates and draw of firms that it has alone, so it ends with the same weights
as alone, up to rounding. (Float32 training amplifies rounding: AdamW divides gradients near 0 by their own
size.) Dropout masks are drawn for all seeds together: they differ from those of a seed alone, but are the
same whenever the same seeds are trained together.

The fused attention kernels see the seeds as part of the batch (`models.attention.core`).

Legend: K seeds, B dates in a batch, P places for firms, N firms, V validation dates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from features.arrays import Float32Array, IntArray
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.dense import Cells, DateLoss, take
from models.fitting.loop import dates_at_once, draw_firms, most_firms
from models.fitting.optimizer import ParameterGroup, parameter_groups
from models.forecaster import Forecaster
from models.registry import MODELS

STACKED_OPTIONS = (
    *("epochs", "dates_per_epoch", "batch_dates", "firms_per_date", "lr", "weight_decay", "warmup", "clip"),
    *("patience", "stop_on", "loss", "quantiles", "valid_dates", "average", "precision"),
)
"""Fields of `FitConfig` that a stack supports; seeds with any other in use are trained one by one."""


def can_stack(name: str, config: FitConfig) -> bool:
    """Whether the seeds of a model can be trained at once with these options."""
    defaults = FitConfig()
    plain = all(
        getattr(config, option.name) == getattr(defaults, option.name)
        for option in dataclasses.fields(config)
        if option.name not in STACKED_OPTIONS
    )
    return plain and bool(getattr(MODELS[name].build, "stackable", False))


class StackedSeeds:
    """The :class:`models.fitting.loop.Engine` of K seeds; the parameters of a module become views of stacks.

    Parameters
    ----------
    modules
        K modules of one architecture, on the data's device; trained in place.
    data
        The panel.
    config
        Options of training.
    seeds
        Each decides an order of dates and a draw of firms.
    train
        Training sessions. The largest number of firms on them fixes the number of places, so every step has
        the same shapes.
    """

    def __init__(
        self,
        modules: Sequence[Forecaster],
        data: PanelTensors,
        config: FitConfig,
        seeds: Sequence[int],
        train: IntArray,
    ) -> None:
        self.data, self.config, self.seeds, self.modules = data, config, tuple(seeds), list(modules)
        self.losses = [DateLoss(module, config) for module in modules]
        self.parameters, self.buffers = stack_module_state(self.losses)
        for k, one in enumerate(self.losses):
            for name, parameter in one.named_parameters():
                parameter.data = self.parameters[name].detach()[k]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.uses_peers = modules[0].uses_peers
        self.dates_at_once = dates_at_once(data, config, train)
        most, drawn = most_firms(data, train), None if self.uses_peers else config.firms_per_date
        self.places = most if drawn is None else min(most, drawn)

    def groups(self) -> list[ParameterGroup]:
        """Stacked parameters, in the groups that one module's parameters have."""
        names = {id(parameter): name for name, parameter in self.losses[0].named_parameters()}
        return [
            {**group, "params": [self.parameters[names[id(one)]] for one in group["params"]]}
            for group in parameter_groups(self.modules[0], self.config)
        ]

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        """Make one step of every seed; return the losses and the gradient norms before clipping, [K] each."""
        optimizer.zero_grad(set_to_none=True)
        cells = take(self.data, dates_KB, self._chosen(dates_KB), self.places)
        _, loss_K = self._call(cells, training=True)
        loss_K.sum().backward()
        norm_K = self._clip()
        optimizer.step()
        return loss_K.detach(), norm_K

    def validate(self, valid: IntArray) -> tuple[Float32Array, list[float]]:
        """Forecasts [K, V, N] of the same dates by every seed, NaN outside the universe; pinball scores."""
        data, K = self.data, len(self.modules)
        parts, total_K = [], torch.zeros(K, device=data.device)
        with torch.no_grad():
            for dates_B in torch.split(torch.as_tensor(valid), self.config.batch_dates):
                listed_BN = data.listed_TN[dates_B]
                cells = take(data, dates_B, listed_BN, int(listed_BN.sum(dim=1).max()))
                y_KBP, loss_K = self._call(cells, training=False)
                y_KBP = y_KBP.masked_fill(~cells.m_BP, math.nan)
                every_KBN = y_KBP.new_full((K, *listed_BN.shape), math.nan)
                parts.append(every_KBN.scatter(-1, cells.firms_BP.expand_as(y_KBP), y_KBP))
                total_K += loss_K * cells.known_BP.any(dim=1).sum()
        forecast_KVN: Float32Array = torch.cat(parts, dim=1).cpu().numpy()
        without_quantiles = self.modules[0].quantile_head is None
        dates = max(int(data.known_TN[torch.as_tensor(valid)].any(dim=1).sum()), 1)
        return forecast_KVN, [math.nan] * K if without_quantiles else (total_K / dates).tolist()

    def _call(self, cells: Cells, *, training: bool) -> tuple[Tensor, Tensor]:
        """Forecasts [K, B, P] and losses [K].

        In training, every seed has its own dates and matrix products have the precision of the config. In
        validation, the dates are the same for all seeds and the precision is float32.
        """

        def one(parameters: Any, buffers: Any, own: Cells) -> Any:  # noqa: ANN401 (vmap's own types)
            return functional_call(
                self.losses[0], (parameters, buffers), (own,), {"in_float32": not training}
            )

        every = vmap(one, in_dims=(0, 0, 0 if training else None), randomness="different")
        y_KBP, loss_K = every(self.parameters, self.buffers, cells)
        return y_KBP, loss_K

    def _chosen(self, dates_KB: Tensor) -> Tensor:
        """Bool [K, B, N] on the host: the firms of each seed, drawn as a seed alone draws them."""
        data, firms = self.data, self.config.firms_per_date
        mask_KBN = data.listed_TN[dates_KB]
        if self.uses_peers:
            return mask_KBN
        known_KBN = data.known_TN[dates_KB]
        if firms is None:
            return known_KBN
        chosen_KBN = torch.zeros_like(known_KBN)
        for k, generator in enumerate(self.generators):
            for first in range(0, dates_KB.shape[1], self.dates_at_once):
                part = slice(first, first + self.dates_at_once)
                present_N = mask_KBN[k, part].any(dim=0)
                chosen_KBN[k, part, present_N] = draw_firms(
                    known_KBN[k, part][:, present_N], firms, generator
                )
        return chosen_KBN

    def _clip(self) -> Tensor:
        """Clip the gradient of each seed by its own norm, as `clip_grad_norm_` does; return the norms."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in grads]
        norm_K: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        shrink_K = (self.config.clip / (norm_K + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(shrink_K.view(-1, *[1] * (g.ndim - 1)))
        return norm_K
