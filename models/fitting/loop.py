"""The one training loop of the neural models.

Legend: B dates in a batch, N firms, T sessions, D dates of an epoch.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from features.information_coefficient import ic_by_date, mean_known, rank_ic_by_date
from models.attention.encoder import day_encoder
from models.batch import Batch, PanelTensors
from models.fitted import Diverged, EpochRecord, FloatArray32, IntArray, NoTrainingSignal
from models.fitting.losses import LOSSES, QUANTILE, quantile
from models.fitting.objectives import PretrainConfig
from models.fitting.snapshot import RunningMean, SnapshotStore, TrainingState
from models.forecaster import Forecaster
from models.quantiles import require_levels
from models.spec import require_choice

BASELINES_READ = ("valid_dates", "label_share", "refit")
"""Fields of `FitConfig` that baselines read as well."""

OnEpoch = Callable[[EpochRecord], None]

CPU_CELLS = 1024
"""About so many (date, firm) cells go through a model at once on a CPU."""


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How neural models are trained; baselines read the fields in `BASELINES_READ` alone.

    Attributes
    ----------
    epochs
        Most epochs.
    dates_per_epoch
        Training dates drawn anew for each epoch; None takes all.
    batch_dates
        Dates whose mean loss makes one step.
    firms_per_date
        Firms drawn per training date, for models without peers; None takes all.
    lr, weight_decay
        AdamW's; decay touches matrices, not norms and biases, those of attention's logits among them.
    warmup
        Share of the steps over which the learning rate rises linearly; it then falls to 0 as a
        cosine.
    clip
        Largest norm of the gradient.
    patience
        Epochs without a better validation score before stopping.
    stop_on
        That score: ``rank_ic``, or ``ic`` where the tails of the target are what is wanted.
    loss
        ``mse``, ``huber``, ``ic``, ``pairwise`` or ``quantile``; the mean over horizons where a model has
        several (``quantile`` is the label's, ``mse`` the shorter ones').
    quantiles
        Levels of the quantile loss; the forecast is the median.
    valid_dates
        Validation dates used for early stopping, evenly spaced; None takes all.
    average
        Decay a step of the running mean of the weights that is validated and kept, in [0, 1); 0 keeps
        the last weights themselves. Where noise drowns the gradient, the mean is the better model
        (Polyak and Juditsky 1992).
    autocast
        bf16 matrix products, on CUDA alone.
    label_share
        Share of the training dates whose labels are used, whole dates drawn by the seed; of two shares
        the smaller one's dates are among the larger one's. Baselines use it as well.
    layer_decay
        Of a day encoder, each layer's learning rate is that of the layer above it times this: the last
        block has ``lr * layer_decay``, the input and its positions have the smallest rate. 1 is off.
    pretrain
        Of models with a day encoder: pretrain it on the fold's training span first; None: do not.
    refit
        Once validation has chosen (epochs, a penalty, rounds), fit anew on training and validation dates with
        that choice: what forecasts has then seen all there is before the test (`models.fitting.fit.refit`).
        Twice the work; baselines do it as well.
    """

    epochs: int = 20
    dates_per_epoch: int | None = None
    batch_dates: int = 8
    firms_per_date: int | None = None
    lr: float = 1e-3
    weight_decay: float = 1e-4
    warmup: float = 0.1
    clip: float = 1.0
    patience: int = 4
    stop_on: Literal["rank_ic", "ic"] = "rank_ic"
    loss: str = "mse"
    quantiles: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    valid_dates: int | None = None
    average: float = 0.0
    autocast: bool = True
    label_share: float = 1.0
    layer_decay: float = 1.0
    pretrain: PretrainConfig | None = None
    refit: bool = False

    def __post_init__(self) -> None:
        require_choice("loss", self.loss, (*LOSSES, QUANTILE))
        require_levels(self.quantiles)
        require_choice("stop_on", self.stop_on, ("rank_ic", "ic"))
        for name in ("epochs", "dates_per_epoch", "batch_dates", "firms_per_date", "patience", "valid_dates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1.")
        for name in ("lr", "clip"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is {self.weight_decay}: it must not be negative.")
        if not 0.0 <= self.average < 1.0:
            raise ValueError(f"average is {self.average}: it is a decay a step, in [0, 1).")
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError(f"warmup is {self.warmup}: it is a share of the steps, in [0, 1).")
        for name in ("label_share", "layer_decay"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must lie in (0, 1].")


class Trainer:
    """AdamW over shuffled dates, stopped early on validation.

    Parameters
    ----------
    module
        The model, on the data's device; trained in place.
    data
        The panel.
    config
        The loop's options.
    seed
        Decides the order of dates and the draw of firms.
    """

    def __init__(self, module: Forecaster, data: PanelTensors, config: FitConfig, seed: int) -> None:
        self.module = module
        self.data = data
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.pretraining: tuple[EpochRecord, ...] = ()  # what came before, kept with the snapshots
        self.dates_at_once = config.batch_dates

    def run(
        self,
        train: IntArray,
        valid: IntArray,
        forecast: Callable[[IntArray], FloatArray32],
        on_epoch: OnEpoch | None,
        snapshots: SnapshotStore | None = None,
    ) -> tuple[EpochRecord, ...]:
        """Train; leave the weights of the best epoch on validation in the module.

        ``forecast`` answers [D, N] for validation dates, the way the fitted model will. With a keeper,
        training goes on from its snapshot and leaves one after every epoch.
        """
        valid_DN = self.data.target_TN[torch.as_tensor(valid, device=self.data.device)].cpu().numpy()

        def judge(epoch: int) -> tuple[float, float, float]:
            forecast_DN = forecast(valid)
            rank_ic = mean_known(rank_ic_by_date(forecast_DN, valid_DN))
            ic = mean_known(ic_by_date(forecast_DN, valid_DN))
            if not math.isfinite(rank_ic):
                raise Diverged(
                    f"Epoch {epoch} has no validation rank IC: forecasts not finite, or targets constant; "
                    f"lower lr (it is {self.config.lr:g}), or look at the validation dates."
                )
            return rank_ic, ic, self._pinball(valid, forecast_DN)

        return self._train(train, self.config.epochs, judge, on_epoch, snapshots)

    def run_for(self, train: IntArray, epochs: int, snapshots: SnapshotStore | None = None) -> None:
        """Train for so many epochs of the same schedule, judged by nothing; leave the last weights."""
        self._train(train, epochs, None, None, snapshots)

    def _train(
        self,
        train: IntArray,
        epochs: int,
        judge: Callable[[int], tuple[float, float, float]] | None,
        on_epoch: OnEpoch | None,
        snapshots: SnapshotStore | None,
    ) -> tuple[EpochRecord, ...]:
        """Judge each epoch by rank IC, IC and pinball score; without a judge, the last is the best."""
        module, config = self.module, self.config
        module.target_scale.copy_(target_scale_of(self.data, train))
        train_D = torch.as_tensor(train, dtype=torch.int64)
        if self.data.device.type == "cpu":
            # counted over the training dates: firms that are listed later must not change a sum's order
            most_firms = int(self.data.mask_TN[train_D].sum(dim=1).max())
            self.dates_at_once = max(1, CPU_CELLS // most_firms)
        per_epoch = min(config.dates_per_epoch or len(train_D), len(train_D))
        optimizer, schedule = make_optimizer(
            module, config, config.epochs * math.ceil(per_epoch / config.batch_dates)
        )
        mean = RunningMean(module, config.average)
        state = TrainingState(module, optimizer, schedule, mean, self.generator, module.state_dict())
        state.pretraining = self.pretraining
        kept = None if snapshots is None else snapshots.load()
        if kept is not None and kept.stage == "fit":
            state.restore(kept)
            if on_epoch is not None:
                for record in state.history:
                    on_epoch(record)
        for epoch in range(len(state.history), epochs):
            if epoch - 1 - state.best_epoch >= config.patience:
                break
            started = time.perf_counter()
            module.train()
            dates_D = train_D[torch.randperm(len(train_D), generator=self.generator)[:per_epoch]]
            total = 0.0
            for dates_B in torch.split(dates_D, config.batch_dates):
                total += self._step(dates_B, optimizer) * len(dates_B)
                schedule.step()
                mean.update()
            module.eval()
            with mean.in_place():
                rank_ic, ic, pinball = (math.nan,) * 3 if judge is None else judge(epoch)
                weights = {key: value.clone() for key, value in module.state_dict().items()}
            lr = float(schedule.get_last_lr()[0])
            seconds = time.perf_counter() - started
            record = EpochRecord(epoch, total / per_epoch, rank_ic, lr, seconds, ic, valid_pinball=pinball)
            state.history.append(record)
            score = rank_ic if config.stop_on == "rank_ic" else ic
            if judge is None or score > state.best_score:
                state.best_score, state.best_epoch, state.best = score, epoch, weights
            if snapshots is not None:
                snapshots.save(state.snapshot())
            if on_epoch is not None:
                on_epoch(record)
        module.load_state_dict(state.best)
        return tuple(state.history)

    def _step(self, dates_B: Tensor, optimizer: torch.optim.Optimizer) -> float:
        """Make one step of the optimizer, and return its loss, the mean over its dates."""
        module, data, config = self.module, self.data, self.config
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        # A date's loss does not depend on the other dates of the step: on a CPU, going through them in
        # parts that fit its cache gives the same gradient sooner.
        parts = torch.split(dates_B, self.dates_at_once)
        for part_B in parts:
            batch = data.batch(part_B)
            known_BN = batch.m_BN & batch.y_BN.isfinite()
            if not module.uses_peers:
                known_BN = thin(known_BN, config.firms_per_date, self.generator)
                batch = dataclasses.replace(batch, m_BN=known_BN)
            use_bf16 = config.autocast and data.device.type == "cuda"
            with torch.autocast(data.device.type, dtype=torch.bfloat16, enabled=use_bf16):
                y_BNK = module.horizons(batch)
            loss = self._loss(y_BNK, batch, known_BN) * (len(part_B) / len(dates_B))
            total += float(loss.detach())
            if not math.isfinite(total):
                raise Diverged(
                    f"The training loss became {total}: lower lr (it is {config.lr:g}) or clip "
                    f"({config.clip:g}), or look for extreme targets."
                )
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip)
        if not math.isfinite(float(norm)):
            raise Diverged(f"The gradient's norm became {float(norm)}: lower lr (it is {config.lr:g}).")
        optimizer.step()
        return total

    def _loss(self, y_BNK: Tensor, batch: Batch, known_BN: Tensor) -> Tensor:
        """Return the mean loss of the horizons' forecasts, in units of the label's standard deviation."""
        loss, K = label_loss(self.module, self.config.loss, y_BNK[..., -1], batch, known_BN), y_BNK.shape[-1]
        if K == 1:
            return loss
        assert batch.path_BNK is not None, "a model has no more horizons than its panel"
        scale, measure = self.module.target_scale, LOSSES.get(self.config.loss, LOSSES["mse"])
        for y_BN, target_BN in zip(y_BNK.unbind(-1), batch.path_BNK.unbind(-1), strict=False):
            loss = loss + measure(y_BN / scale, target_BN / scale, known_BN & target_BN.isfinite())
        return loss / K

    def _pinball(self, valid: IntArray, forecast_DN: FloatArray32) -> float:
        """Mean over validation dates of the pinball score, around forecasts that are already there."""
        head, scale = self.module.quantile_head, self.module.target_scale
        if head is None:
            return math.nan
        total = 0.0
        with torch.inference_mode():
            for row, date in enumerate(valid):
                batch = self.data.batch(torch.tensor([int(date)]))
                y_BN = torch.as_tensor(forecast_DN[row], device=self.data.device)[batch.firms_N][None]
                q_BNQ = self.module.quantiles_around(y_BN, batch) / scale
                known_BN = batch.m_BN & batch.y_BN.isfinite()
                total += float(quantile(q_BNQ, batch.y_BN / scale, known_BN, head.levels))
        return total / len(valid)


def label_loss(module: Forecaster, loss: str, y_BN: Tensor, batch: Batch, known_BN: Tensor) -> Tensor:
    """Return the loss of forecasts of the label, in units of its standard deviation."""
    scale = module.target_scale
    if module.quantile_head is not None:
        q_BNQ = module.quantiles_around(y_BN, batch) / scale
        return quantile(q_BNQ, batch.y_BN / scale, known_BN, module.quantile_head.levels)
    return LOSSES[loss](y_BN / scale, batch.y_BN / scale, known_BN)


def thin(known_BN: Tensor, firms: int | None, generator: torch.Generator) -> Tensor:
    """Draw so many of the known firms of each date, all of those that have fewer; None keeps all."""
    if firms is None or firms >= known_BN.shape[1]:
        return known_BN
    draw_BN = torch.rand(known_BN.shape, generator=generator).to(known_BN.device).masked_fill(~known_BN, -1.0)
    chosen_BK = draw_BN.topk(firms, dim=1).indices
    return torch.zeros_like(known_BN).scatter(1, chosen_BK, value=True) & known_BN


def make_optimizer(
    module: nn.Module, config: FitConfig, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with its schedule over ``steps`` steps; a day encoder's layers have rates of their own.

    A parameter at depth k of the encoder (`models.attention.encoder.DayEncoder.depths`) has ``lr *
    layer_decay^k``, all others have ``lr``. Vectors are not decayed, nor what a part of the module names in
    ``undecayed``.
    """
    encoder, parameters = day_encoder(module), list(module.parameters())
    named = {
        getattr(part, name, None) for part in module.modules() for name in getattr(part, "undecayed", ())
    }
    undecayed = named | {p for p in parameters if p.ndim < 2}
    depths = {} if encoder is None or config.layer_decay == 1.0 else encoder.depths()
    own = {} if encoder is None else dict(encoder.named_parameters())
    depth_of = {own[name]: depth for name, depth in depths.items()}
    groups = []
    for depth in sorted({depth_of.get(p, 0) for p in parameters}):
        at = [p for p in parameters if depth_of.get(p, 0) == depth]
        lr = config.lr * config.layer_decay**depth
        groups += [
            {"params": [p for p in at if p not in undecayed], "weight_decay": config.weight_decay, "lr": lr},
            {"params": [p for p in at if p in undecayed], "weight_decay": 0.0, "lr": lr},
        ]
    optimizer = torch.optim.AdamW(groups, lr=config.lr)
    rising = max(1, round(config.warmup * steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def target_scale_of(data: PanelTensors, train: IntArray) -> Tensor:
    """Standard deviation of the known training targets; NoTrainingSignal if they are all the same."""
    dates_D = torch.as_tensor(train, device=data.device)
    target_DN, mask_DN = data.target_TN[dates_D], data.mask_TN[dates_D]
    known = target_DN[mask_DN & target_DN.isfinite()].double()
    scale = known.std(correction=0)
    if not float(scale) > 0:
        raise NoTrainingSignal("The training targets are all the same: there is nothing to learn from them.")
    return scale.float()
