"""Steps of one shape, for several seeds at once (`StackedSeeds`) and for compiled steps (`CompiledSeed`).

Both need a model and its loss as one function of tensors whose shapes do not change from step to step. Every
date has as many places for firms as the largest date needs; empty places are outside the universe.

In a stack, one tensor holds a parameter of all seeds. This is for GPUs, which one small model leaves mostly
idle; on CPUs, one process per core is faster. Each seed has the initial weights, order of dates and draw of
firms that it has alone, so it ends with the same weights as alone, up to rounding. (Float32 training
amplifies rounding: AdamW divides gradients near 0 by their own size.) Dropout masks are drawn for all seeds
together: they differ from those of a seed alone, but are the same whenever the same seeds are trained
together.

The fused attention kernels see the seeds as part of the batch (`models.attention.core`).

Legend: K seeds, B dates in a batch, P places for firms, N firms, V validation dates, W window length, C
channels, F characteristics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from features.arrays import Float32Array, IntArray
from models.batch import Batch, PanelTensors, firms_in_places
from models.fitting.config import FitConfig, matrix_precision
from models.fitting.loop import SingleSeed, dates_at_once, draw_firms, most_firms
from models.fitting.losses import label_loss
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
    defaults = FitConfig().model_copy(update={name: getattr(config, name) for name in STACKED_OPTIONS})
    return config == defaults and bool(MODELS[name].build.stackable)


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


_BACKEND = "inductor"


class Cells(NamedTuple):
    """A dense batch as tensors, with the panel column of each place and a mask of the targets that count."""

    x_BPWC: Tensor
    z_BPF: Tensor
    m_BP: Tensor
    s_BP: Tensor
    y_BP: Tensor
    firms_BP: Tensor
    key_BP: Tensor
    known_BP: Tensor


class DateLoss(nn.Module):
    """A forecaster with its loss as one function of tensors."""

    def __init__(self, module: Forecaster, config: FitConfig) -> None:
        super().__init__()
        self.module = module
        self.config = config

    def forward(self, cells: Cells, *, in_float32: bool = False) -> tuple[Tensor, Tensor]:
        """Forecasts [B, P] in the target's unit, and their loss in standard deviations of the target.

        Matrix products have the precision of the config, or float32 as those of a fitted model.
        """
        x, z, m, s, y, firms, key, known = cells
        batch = Batch(x, z, m, s, y, firms, key_BN=key, dense=True)
        module = self.module
        with nullcontext() if in_float32 else matrix_precision(self.config, x.device):
            y_BP = module(batch)
        return y_BP, label_loss(module, self.config.loss, y_BP, batch, known)


def take(data: PanelTensors, dates: Tensor, chosen: Tensor, places: int) -> Cells:
    """Gather the chosen firms of some dates into the same number of places on each date.

    Parameters
    ----------
    dates
        int64 [..., B] sessions of the panel, on the host.
    chosen
        bool [..., B, N], on the host; at most ``places`` per date.
    places
        P; places that a date does not fill are outside the universe.
    """
    firms, there = firms_in_places(chosen, places)
    on_host = (dates[..., None].expand_as(firms), firms)
    dates, firms, there = (x.to(data.device, non_blocking=True) for x in (dates, firms, there))
    at = (dates[..., None], firms)
    x, z = data.gather_inputs(dates[..., None].expand_as(firms), firms, on_host)
    y = data.target_TN[at]
    return Cells(
        x_BPWC=x,
        z_BPF=z,
        m_BP=there,
        s_BP=data.group_TN[at].long(),
        y_BP=y,
        firms_BP=firms,
        key_BP=data.key_N[firms],
        known_BP=there & y.isfinite(),
    )


class CompiledSeed(SingleSeed):
    """The :class:`models.fitting.loop.Engine` of one seed whose training steps are compiled.

    Every step has the same shapes, so that it is compiled once: each date has as many places as the largest
    training date has firms (or as many as are drawn), and a short last batch is filled up with a date that
    does not count. A step therefore equals that of `SingleSeed` up to rounding; dropout masks are drawn by
    the compiled kernels and differ. Validation is not compiled.

    Parameters
    ----------
    module, data, config, seed, train
        As for `SingleSeed`; the model must be stackable (`models.fitting.stacked.can_stack`).
    """

    def __init__(
        self, module: Forecaster, data: PanelTensors, config: FitConfig, seed: int, train: IntArray
    ) -> None:
        super().__init__(module, data, config, seed, train)
        most, drawn = most_firms(data, train), None if module.uses_peers else config.firms_per_date
        self.places = most if drawn is None else min(most, drawn)
        self._loss = torch.compile(DateLoss(module, config), backend=_BACKEND, dynamic=False)

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        """Make one step of the optimizer; return its loss and its gradient norm before clipping, [1] each."""
        (dates_B,) = dates_KB
        optimizer.zero_grad(set_to_none=True)
        chosen_BN = self._chosen(dates_B)
        if chosen_BN is None:
            chosen_BN = self.data.listed_TN[dates_B]
        missing = self.config.batch_dates - len(dates_B)
        repeated_B = torch.cat((dates_B, dates_B[:1].expand(missing)))
        cells = take(
            self.data, repeated_B, torch.cat((chosen_BN, chosen_BN[:1].expand(missing, -1))), self.places
        )
        if missing:
            cells = cells._replace(known_BP=cells.known_BP.index_fill(0, self._filled(missing, cells), False))
        _, loss = cast("tuple[Tensor, Tensor]", self._loss(cells))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.modules[0].parameters(), self.config.clip)
        optimizer.step()
        return loss.detach()[None], norm[None]

    def _filled(self, missing: int, cells: Cells) -> Tensor:
        first = self.config.batch_dates - missing
        return torch.arange(first, self.config.batch_dates, device=cells.known_BP.device)
