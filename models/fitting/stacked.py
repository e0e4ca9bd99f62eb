"""Several seeds of one model, trained as one: their weights lie in one tensor each, and one pass serves all.

Meant for GPUs, which one small model leaves idle; on CPUs one process a core is faster. Every seed has its
own first weights, order of dates and draw of firms, those that it has alone, so that it ends where it ends
alone, to rounding (which float32 training amplifies: AdamW divides gradients near 0 by their own size).
Dropout is drawn for all seeds together: a seed's masks are not those that it draws alone, but the same for
the same seeds together. A seed that stops early keeps its best weights, and goes on being computed, unheard,
until the last one stops.

Under `vmap` the fused attention kernel of CPUs has no batching rule (torch 2.13 falls back to a loop over the
seeds, and warns), and nobody has tried those of GPUs. So attention takes the explicit path here
(`SDPBackend.MATH`): the weights of every query, key and head, a seed, are kept for the backward pass.

Legend: K seeds, B dates in a batch, P places for firms, N firms, D dates of an epoch, V validation dates.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from features.information_coefficient import ic_by_date, mean_known, rank_ic_by_date
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, FloatArray32, IntArray
from models.fitting.dense import Cells, DateLoss, take
from models.fitting.fit import NeuralFitted, evenly, with_targets
from models.fitting.loop import CPU_CELLS, FitConfig, OnEpoch, make_optimizer, target_scale_of, thin
from models.fitting.losses import QUANTILE
from models.fitting.snapshot import RunningMean
from models.forecaster import Forecaster
from models.quantiles import QuantileHead
from models.registry import MODELS, model_entry
from models.spec import parse_config

KNOWN = (
    *("epochs", "dates_per_epoch", "batch_dates", "firms_per_date", "lr", "weight_decay", "warmup", "clip"),
    *("patience", "stop_on", "loss", "quantiles", "valid_dates", "average", "autocast"),
)
"""Options of the training loop that a stack has too; with any other in use, seeds are trained in turn."""


def can_stack(name: str, config: FitConfig) -> bool:
    """Whether seeds of a model can be trained as one with these options."""
    defaults = FitConfig()
    plain = all(
        getattr(config, option.name) == getattr(defaults, option.name)
        for option in dataclasses.fields(config)
        if option.name not in KNOWN
    )
    return plain and bool(getattr(MODELS[name].build, "stackable", False))


def fit_stacked(
    name: str,
    config: Mapping[str, Any],
    data: PanelTensors,
    train: IntArray,
    valid: IntArray,
    *,
    fit_config: FitConfig,
    seeds: Sequence[int],
    on_epoch: Sequence[OnEpoch] | None = None,
) -> list[NeuralFitted]:
    """Fit several seeds of a model as one; arguments and errors are those of `models.fitting.fit.fit`.

    Parameters
    ----------
    seeds
        Each decides its own first weights, order of dates and draw of firms.
    on_epoch
        One for each seed, called after each of its evaluations.

    Returns
    -------
    list of NeuralFitted
        In the order of the seeds.  The seconds of an epoch are those of all seeds together.

    Raises
    ------
    ValueError
        When the model or an option cannot be stacked (:func:`can_stack`), or as for one seed.
    Diverged
        When the loss of a seed that has not stopped is not finite; the message names the seed.
    """
    entry = model_entry(name)
    if not can_stack(name, fit_config):
        raise ValueError(f"{name} cannot be trained as a stack of seeds with these options: fit each seed.")
    parsed = parse_config(entry.config, config, name)
    train = with_targets(data, train, "training", fewest=1)
    valid = evenly(with_targets(data, valid, "validation", fewest=3), fit_config.valid_dates)
    scale = target_scale_of(data, train)
    modules: list[Forecaster] = []
    with torch.random.fork_rng(devices=[data.device] if data.device.type == "cuda" else []):
        for seed in seeds:
            torch.manual_seed(seed)
            module = entry.build(parsed, data.shape)
            assert isinstance(module, Forecaster), "baselines do not stack"
            if fit_config.loss == QUANTILE:
                module.quantile_head = QuantileHead(fit_config.quantiles, data.shape.n_characteristics)
            module.require(data)
            module.target_scale.copy_(scale)
            modules.append(module.to(data.device))
        torch.manual_seed(seeds[0])  # dropout's
        stack = Stack(modules, data, fit_config, seeds)
        histories = stack.run(train, valid, on_epoch)
    options = dataclasses.asdict(parsed)
    return [
        NeuralFitted(name, options, data.shape, history, module)
        for history, module in zip(histories, modules, strict=True)
    ]


@dataclass(eq=False)
class _Seed:
    """Where one seed of a stack stands."""

    seed: int
    module: Forecaster
    generator: torch.Generator
    on_epoch: OnEpoch | None
    best: Mapping[str, Tensor]
    best_epoch: int = -1
    best_score: float = -math.inf
    history: list[EpochRecord] = field(default_factory=list)

    def goes_on(self, epoch: int, patience: int) -> bool:
        """Whether it is still training in that epoch."""
        return epoch - 1 - self.best_epoch < patience


class Stack:
    """The training loop of K modules whose weights become views of stacked ones.

    Parameters
    ----------
    modules
        K of one architecture, on the data's device; trained in place.
    data, config
        As for :class:`models.fitting.loop.Trainer`.
    seeds
        Each decides an order of dates and a draw of firms.
    """

    def __init__(
        self, modules: Sequence[Forecaster], data: PanelTensors, config: FitConfig, seeds: Sequence[int]
    ) -> None:
        self.data, self.config, self.seeds = data, config, tuple(seeds)
        self.parts = [DateLoss(module, config) for module in modules]
        self.parameters, self.buffers = stack_module_state(self.parts)
        for k, part in enumerate(self.parts):
            for name, parameter in part.named_parameters():
                parameter.data = self.parameters[name].detach()[k]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.uses_peers = modules[0].uses_peers

    def run(
        self, train: IntArray, valid: IntArray, on_epoch: Sequence[OnEpoch] | None = None
    ) -> list[tuple[EpochRecord, ...]]:
        """Train; leave in each module the weights of its best epoch on validation."""
        data, config = self.data, self.config
        callbacks: Sequence[OnEpoch | None] = on_epoch or [None] * len(self.parts)
        states = [
            _Seed(seed, part.module, generator, callback, part.module.state_dict())
            for seed, part, generator, callback in zip(
                self.seeds, self.parts, self.generators, callbacks, strict=True
            )
        ]
        train_D = torch.as_tensor(train, dtype=torch.int64)
        valid_VN = data.target_TN[torch.as_tensor(valid, device=data.device)].cpu().numpy()
        per_epoch = min(config.dates_per_epoch or len(train_D), len(train_D))
        self.prepare(train)
        optimizer, schedule = self.optimizer(config.epochs * math.ceil(per_epoch / config.batch_dates))
        mean = RunningMean(nn.ParameterList(self.parameters.values()), config.average)
        for epoch in range(config.epochs):
            training = [state for state in states if state.goes_on(epoch, config.patience)]
            if not training:
                break
            started = time.perf_counter()
            self.parts[0].train()
            drawn = [torch.randperm(len(train_D), generator=g)[:per_epoch] for g in self.generators]
            dates_KD = train_D[torch.stack(drawn)]
            total_K = np.zeros(len(states))
            for dates_KB in torch.split(dates_KD, config.batch_dates, dim=1):
                loss_K, norm_K = self.step(dates_KB, optimizer)
                for state, loss, norm in zip(states, loss_K, norm_K, strict=True):
                    if state in training and not (math.isfinite(loss) and math.isfinite(norm)):
                        raise Diverged(
                            f"In seed {state.seed} the training loss became {loss} and the gradient's norm "
                            f"{norm}: lower lr (it is {config.lr:g}) or clip ({config.clip:g}), or look for "
                            "extreme targets."
                        )
                total_K += np.array(loss_K) * dates_KB.shape[1]
                schedule.step()
                mean.update()
            self.parts[0].eval()
            lr = float(schedule.get_last_lr()[0])
            with mean.in_place():
                forecast_KVN, loss_K = self.validate(valid)
                for k, state in enumerate(states):
                    if state not in training:
                        continue
                    record = EpochRecord(
                        epoch,
                        float(total_K[k]) / per_epoch,
                        mean_known(rank_ic_by_date(forecast_KVN[k], valid_VN)),
                        lr,
                        time.perf_counter() - started,
                        mean_known(ic_by_date(forecast_KVN[k], valid_VN)),
                        valid_pinball=math.nan if state.module.quantile_head is None else loss_K[k],
                    )
                    self._close_epoch(state, record)
        for state in states:
            state.module.load_state_dict(state.best)
        return [tuple(state.history) for state in states]

    def prepare(self, train: IntArray) -> None:
        """Fix the number of places, so that every step has the same shapes."""
        at = torch.as_tensor(train, device=self.data.device)
        most = int(self.data.mask_TN[at].sum(dim=1).max())
        # what one seed alone draws firms for at a time, see Trainer.run
        self.dates_at_once = (
            max(1, CPU_CELLS // most) if self.data.device.type == "cpu" else self.config.batch_dates
        )
        thinned = None if self.uses_peers else self.config.firms_per_date
        self.places = most if thinned is None else min(most, thinned)

    def optimizer(self, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """One AdamW over the stacked parameters, in the groups and with the schedule of one module's."""
        names = {id(parameter): name for name, parameter in self.parts[0].named_parameters()}
        one, schedule = make_optimizer(self.parts[0].module, self.config, steps)
        groups = [
            {
                "params": [self.parameters[names[id(parameter)]] for parameter in group["params"]],
                "lr": group["initial_lr"],
                "weight_decay": group["weight_decay"],
            }
            for group in one.param_groups
        ]
        optimizer = torch.optim.AdamW(groups)
        rates = cast("torch.optim.lr_scheduler.LambdaLR", schedule).lr_lambdas
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[list[float], list[float]]:
        """Make one step of every seed; return the losses and the gradients' norms before clipping."""
        optimizer.zero_grad(set_to_none=True)
        on_device_KB = dates_KB.to(self.data.device)
        cells = take(self.data, on_device_KB, self._chosen(on_device_KB), self.places)
        _, loss_K = self._call(cells, own_dates=True)
        loss_K.sum().backward()
        norm_K = self._clip()
        loss, norm = torch.stack((loss_K.detach(), norm_K)).tolist()
        optimizer.step()
        return loss, norm

    def validate(self, valid: IntArray) -> tuple[FloatArray32, list[float]]:
        """Forecasts [K, V, N] of the same dates by every seed, NaN outside the universe; mean losses."""
        data, size = self.data, self.config.batch_dates
        parts, total_K = [], torch.zeros(len(self.parts), device=data.device)
        with torch.no_grad():
            for dates_B in torch.split(torch.as_tensor(valid, device=data.device), size):
                mask_BN = data.mask_TN[dates_B]
                cells = take(data, dates_B, mask_BN, int(mask_BN.sum(dim=1).max()))
                y_KBP, loss_K = self._call(cells, own_dates=False)
                y_KBP = y_KBP.masked_fill(~cells.m_BP, math.nan)
                every_KBN = y_KBP.new_full((len(self.parts), *mask_BN.shape), math.nan)
                parts.append(every_KBN.scatter(-1, cells.firms_BP.expand_as(y_KBP), y_KBP).cpu())
                total_K += loss_K * len(dates_B)
        forecast_KVN: FloatArray32 = torch.cat(parts, dim=1).numpy()
        return forecast_KVN, (total_K / len(valid)).tolist()

    def _call(self, cells: Cells, *, own_dates: bool) -> tuple[Tensor, Tensor]:
        """Forecasts [K, B, P] and losses [K], of dates of each seed's own or of the same for all."""

        def one(parameters: Any, buffers: Any, own: Cells) -> Any:  # noqa: ANN401 (vmap's own types)
            return functional_call(self.parts[0], (parameters, buffers), (own,))

        with sdpa_kernel(SDPBackend.MATH):
            every = vmap(one, in_dims=(0, 0, 0 if own_dates else None), randomness="different")
            y_KBP, loss_K = every(self.parameters, self.buffers, cells)
        return y_KBP, loss_K

    def _chosen(self, dates_KB: Tensor) -> Tensor:
        """Bool [K, B, N]: the firms that each seed is trained with."""
        data, firms = self.data, self.config.firms_per_date
        mask_KBN = data.mask_TN[dates_KB]
        if self.uses_peers:
            return mask_KBN
        known_KBN = mask_KBN & data.target_TN[dates_KB].isfinite()
        if firms is None:
            return known_KBN
        chosen_KBN = torch.zeros_like(known_KBN)
        for k, generator in enumerate(self.generators):
            for first in range(0, dates_KB.shape[1], self.dates_at_once):
                part = slice(first, first + self.dates_at_once)
                seen_N = mask_KBN[k, part].any(dim=0)
                chosen_KBN[k, part, seen_N] = thin(known_KBN[k, part][:, seen_N], firms, generator)
        return chosen_KBN

    def _clip(self) -> Tensor:
        """Clip each seed's gradient at its own norm, as `clip_grad_norm_` does; return the norms."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in grads]
        norm_K: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        shrink_K = (self.config.clip / (norm_K + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(shrink_K.view(-1, *[1] * (g.ndim - 1)))
        return norm_K

    def _close_epoch(self, state: _Seed, record: EpochRecord) -> None:
        """Keep a seed's record, and its weights if they are the best so far."""
        if not math.isfinite(record.valid_rank_ic):
            raise Diverged(
                f"In seed {state.seed}, epoch {record.epoch} has no validation rank IC: forecasts not "
                f"finite, or targets constant; lower lr (it is {self.config.lr:g}), or look at the "
                "validation dates."
            )
        state.history.append(record)
        score = record.valid_rank_ic if self.config.stop_on == "rank_ic" else record.valid_ic
        if score > state.best_score:
            state.best_score, state.best_epoch = score, record.epoch
            state.best = {key: value.clone() for key, value in state.module.state_dict().items()}
        if state.on_epoch is not None:
            state.on_epoch(record)
