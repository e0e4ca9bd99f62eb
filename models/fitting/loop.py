"""The training loop, for one seed or for K seeds of a model.

:func:`train_seeds` is the loop: epochs, the order of dates, the schedule, the running mean, validation,
early stopping and snapshots. An :class:`Engine` makes the steps and the forecasts: :class:`SingleSeed` in
this file, `models.fitting.stacked.StackedSeeds` for several seeds at once.

Legend: K seeds, B dates in a batch, D dates of an epoch, V validation dates, N firms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from features.arrays import Float32Array, IntArray
from features.information_coefficient import ic_by_date, mean_known, rank_ic_by_date
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, OnEpoch
from models.fitting.config import FitConfig, matrix_precision
from models.fitting.losses import counted_dates, horizons_loss, quantile
from models.fitting.optimizer import ParameterGroup, RunningMean, make_optimizer, parameter_groups
from models.fitting.snapshot import SeedState, SnapshotStore, TrainingState
from models.forecaster import Forecaster

CPU_CELLS = 2048
"""Number of (date, firm) cells that go through a model at once on a CPU."""


class Engine(Protocol):
    """Training steps and validation forecasts of K >= 1 seeds of a model.

    Attributes
    ----------
    data
        The panel.
    seeds
        K seeds.
    modules
        One module per seed, trained in place.
    generators
        One generator per seed; it draws the order of dates and, with ``firms_per_date``, the firms.
    """

    data: PanelTensors
    seeds: tuple[int, ...]
    modules: list[Forecaster]
    generators: list[torch.Generator]

    def groups(self) -> list[ParameterGroup]:
        """Parameters to train, in the groups of the optimizer."""
        ...

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        """Train each seed on its B dates; return the K losses and the K gradient norms before clipping.

        They stay on the device, and the step does not wait for it.
        """
        ...

    def validate(self, valid: IntArray) -> tuple[Float32Array, list[float]]:
        """Forecasts [K, V, N], NaN outside the universe, and K pinball scores, NaN without quantiles."""
        ...


def train_seeds(
    engine: Engine,
    train: IntArray,
    valid: IntArray | None,
    config: FitConfig,
    *,
    epochs: int | None = None,
    on_epoch: Sequence[OnEpoch] | None = None,
    snapshots: SnapshotStore | None = None,
    pretraining: tuple[EpochRecord, ...] = (),
) -> list[tuple[EpochRecord, ...]]:
    """Train with AdamW on shuffled dates; stop each seed early on its validation score.

    A seed that has stopped keeps its best weights. Its steps are still computed until the last seed stops,
    but their result is ignored.

    Parameters
    ----------
    engine
        The seeds and their modules, which are trained in place and end with their best weights.
    train
        Training sessions.
    valid
        Validation sessions; None skips validation, trains for all epochs and keeps the last weights.
    config
        Options of training.
    epochs
        Number of epochs of the schedule to run; None runs ``config.epochs``.
    on_epoch
        One function per seed. It is called with the record of each epoch, first with the records that a
        snapshot holds.
    snapshots
        Store of the newest snapshot of a single seed. Training resumes from the snapshot in it, with the same
        bits on a CPU as without the interruption, and saves a new one after every epoch.
    pretraining
        Records of the pretraining that came before, kept in the snapshots.

    Returns
    -------
    list of tuple of EpochRecord
        One history per seed. Seconds are those of all seeds together.

    Raises
    ------
    Diverged
        When the loss, the gradient norm or the validation score of a seed that has not stopped is not finite.
    UnusableSnapshot
        When the snapshot belongs to another model or fit.
    """
    train_D = torch.as_tensor(train, dtype=torch.int64)
    per_epoch = min(config.dates_per_epoch or len(train_D), len(train_D))
    groups = engine.groups()
    steps = config.epochs * math.ceil(per_epoch / config.batch_dates)
    optimizer, schedule = make_optimizer(groups, config, steps)
    mean = RunningMean((p for group in groups for p in group["params"]), config.average)
    states = [
        SeedState(seed, module, generator, module.state_dict())
        for seed, module, generator in zip(engine.seeds, engine.modules, engine.generators, strict=True)
    ]
    reports = on_epoch or [_no_report] * len(states)
    if snapshots is not None:
        assert len(states) == 1, "a snapshot holds a single seed"
        resumable = TrainingState(states[0], optimizer, schedule, mean, "fit", pretraining)
        newest = snapshots.load()
        if newest is not None and newest.stage == "fit":
            resumable.restore(newest)
        for record in states[0].history:
            reports[0](record)
    for epoch in range(len(states[0].history), config.epochs if epochs is None else epochs):
        training = [k for k, state in enumerate(states) if epoch - 1 - state.best_epoch < config.patience]
        if not training:
            break
        started = time.perf_counter()
        measured: list[Tensor] = []
        dates_S: list[int] = []
        drawn = [torch.randperm(len(train_D), generator=g)[:per_epoch] for g in engine.generators]
        _set_mode(engine, training=True)
        for dates_KB in torch.split(train_D[torch.stack(drawn)], config.batch_dates, dim=1):
            measured.append(torch.stack(engine.step(dates_KB, optimizer)))
            dates_S.append(dates_KB.shape[1])
            schedule.step()
            mean.update()
        loss_KS, norm_KS = torch.stack(measured, dim=-1).tolist()  # the only wait for the device in the epoch
        for k in training:
            _require_finite(loss_KS[k], norm_KS[k], _of_seed(states, k), config)
        _set_mode(engine, training=False)
        lr = float(schedule.get_last_lr()[0])
        with mean.in_place():
            score_K = _scores(engine, valid)
            seconds = time.perf_counter() - started
            for k in training:
                loss, score = float(np.dot(loss_KS[k], dates_S)) / per_epoch, score_K[k]
                record = EpochRecord(epoch, loss, score.rank_ic, lr, seconds, score.ic, score.pinball)
                if valid is not None:
                    _require_score(record, _of_seed(states, k), config)
                states[k].add(record, None if valid is None else config.stop_on)
        if snapshots is not None:
            snapshots.save(resumable.snapshot())
        for k in training:
            reports[k](states[k].history[-1])
    for state in states:
        state.module.load_state_dict(state.best)
    return [tuple(state.history) for state in states]


def _no_report(record: EpochRecord) -> None:
    """Stand in for a missing ``on_epoch``."""


def _set_mode(engine: Engine, *, training: bool) -> None:
    for module in engine.modules:
        module.train(training)


def _of_seed(states: Sequence[SeedState], k: int) -> str:
    """Name the seed in an error sentence, where there are several."""
    return "" if len(states) == 1 else f" of seed {states[k].seed}"


def _require_finite(losses: list[float], norms: list[float], of_seed: str, config: FitConfig) -> None:
    """Raise Diverged for the first step of an epoch whose loss or gradient norm is not finite."""
    for loss, norm in zip(losses, norms, strict=True):
        if not math.isfinite(loss):
            raise Diverged(
                f"The training loss{of_seed} became {loss}: lower lr (it is {config.lr:g}) or clip "
                f"({config.clip:g}), or look for extreme targets."
            )
        if not math.isfinite(norm):
            raise Diverged(f"The gradient norm{of_seed} became {norm}: lower lr (it is {config.lr:g}).")


def _require_score(record: EpochRecord, of_seed: str, config: FitConfig) -> None:
    if not math.isfinite(record.valid_rank_ic):
        raise Diverged(
            f"Epoch {record.epoch}{of_seed} has no validation rank IC: forecasts not finite, or targets "
            f"constant; lower lr (it is {config.lr:g}), or look at the validation dates."
        )


class _Score(NamedTuple):
    """Mean rank IC, mean IC and pinball score over the validation dates; NaN without."""

    rank_ic: float = math.nan
    ic: float = math.nan
    pinball: float = math.nan


def _scores(engine: Engine, valid: IntArray | None) -> list[_Score]:
    """Score every seed on the validation dates."""
    if valid is None:
        return [_Score() for _ in engine.seeds]
    target_VN = engine.data.target_TN[torch.as_tensor(valid, device=engine.data.device)].cpu().numpy()
    forecast_KVN, pinball_K = engine.validate(valid)
    return [
        _Score(
            mean_known(rank_ic_by_date(forecast_VN, target_VN)),
            mean_known(ic_by_date(forecast_VN, target_VN)),
            pinball,
        )
        for forecast_VN, pinball in zip(forecast_KVN, pinball_K, strict=True)
    ]


class SingleSeed:
    """The :class:`Engine` of one seed.

    Parameters
    ----------
    module
        On the data's device.
    data
        The panel.
    config
        Options of training.
    seed
        Decides the order of dates and the draw of firms.
    train
        Training sessions. On a CPU, the number of firms on them decides how many dates go through the model
        at once.
    """

    def __init__(
        self, module: Forecaster, data: PanelTensors, config: FitConfig, seed: int, train: IntArray
    ) -> None:
        self.data, self.config = data, config
        self.seeds: tuple[int, ...] = (seed,)
        self.modules = [module]
        self.generators = [torch.Generator().manual_seed(seed)]
        self.dates_at_once = dates_at_once(data, config, train)

    def groups(self) -> list[ParameterGroup]:
        """Parameters of the module, in the groups of the optimizer."""
        return parameter_groups(self.modules[0], self.config)

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        """Make one step of the optimizer; return its loss and its gradient norm before clipping, [1] each.

        The loss of a date does not depend on the other dates of the step. On a CPU, the dates go through the
        model in parts that fit its cache, which gives the same gradient sooner.
        """
        module, data, config, (dates_B,) = self.modules[0], self.data, self.config, dates_KB
        optimizer.zero_grad(set_to_none=True)
        parts = [(part_B, self._chosen(part_B)) for part_B in torch.split(dates_B, self.dates_at_once)]
        shares = self._shares(parts) if len(parts) > 1 else [[1.0]]
        losses = []
        for (part_B, chosen_BN), share_K in zip(parts, shares, strict=True):
            batch = data.batch(part_B, chosen_BN)
            known_BN = batch.m_BN & batch.y_BN.isfinite()
            with matrix_precision(config, data.device):
                y_BNK = module.horizons(batch)
            loss = horizons_loss(module, config.loss, y_BNK, batch, known_BN, share_K)
            losses.append(loss.detach())
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip)
        optimizer.step()
        return torch.stack(losses).sum()[None], norm[None]

    def _shares(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> list[list[float]]:
        """Share of the dates that count in each part, for every horizon."""
        data, counts = self.data, []
        for part_B, chosen_BN in parts:
            target_BNK = data.target_TN[part_B][..., None]
            if data.path_TNK is not None:
                target_BNK = torch.cat((data.path_TNK[part_B], target_BNK), dim=-1)
            known_BN = data.known_TN[part_B] if chosen_BN is None else data.known_TN[part_B] & chosen_BN
            counts.append(counted_dates(self.config.loss, target_BNK.cpu(), known_BN))
        count_PK = torch.stack(counts).double()
        shares: list[list[float]] = (count_PK / count_PK.sum(dim=0).clamp(min=1)).tolist()
        return shares

    def _chosen(self, dates_B: Tensor) -> Tensor | None:
        """Bool [B, N] on the host: the firms to train with; None for all, which a model with peers needs."""
        if self.modules[0].uses_peers:
            return None
        known_BN = self.data.known_TN[dates_B]
        listed_N = self.data.listed_TN[dates_B].any(dim=0)
        drawn_BN = draw_firms(known_BN[:, listed_N], self.config.firms_per_date, self.generators[0])
        return known_BN.masked_scatter(listed_N, drawn_BN)

    @torch.inference_mode()
    def validate(self, valid: IntArray) -> tuple[Float32Array, list[float]]:
        """Forecasts [1, V, N] and their pinball score, NaN for a model without quantiles.

        Several dates go through the model at once. Forecasts of a fitted model are made date by date instead
        (:meth:`models.fitted.Fitted.forecast`), and agree with these up to rounding.
        """
        module, data = self.modules[0], self.data
        head, scale = module.quantile_head, module.target_scale
        forecasts, scores = [], []
        for dates_B in torch.split(torch.as_tensor(valid), self.dates_at_once):
            every_BN = torch.full(
                data.listed_TN[dates_B].shape, math.nan, dtype=torch.float32, device=data.device
            )
            if data.listed_TN[dates_B].any():
                batch = data.batch(dates_B)
                y_BN = module(batch)
                given_BN = y_BN.float().masked_fill(~batch.m_BN, math.nan)
                every_BN.scatter_(1, batch.firms_N.expand_as(given_BN), given_BN)
                if head is not None:
                    q_BNQ = module.quantiles_around(y_BN, batch) / scale
                    known_BN = batch.m_BN & batch.y_BN.isfinite()
                    score = quantile(q_BNQ, batch.y_BN / scale, known_BN, head.levels)
                    scores.append(score * known_BN.any(dim=1).sum())
            forecasts.append(every_BN)
        forecast_VN: Float32Array = torch.cat(forecasts).cpu().numpy()
        dates = max(int(data.known_TN[torch.as_tensor(valid)].any(dim=1).sum()), 1)
        pinball = float(torch.stack(scores).sum()) / dates if scores else math.nan
        return forecast_VN[None], [pinball]


def dates_at_once(data: PanelTensors, config: FitConfig, train: IntArray) -> int:
    """Number of dates that go through a model at once.

    It counts the firms of the training dates only: firms that are listed later must not change the order in
    which a gradient is summed.
    """
    if data.device.type != "cpu":
        return config.batch_dates
    return max(1, CPU_CELLS // most_firms(data, train))


def most_firms(data: PanelTensors, train: IntArray) -> int:
    """Largest number of firms in the universe on a training date."""
    return int(data.listed_TN[torch.as_tensor(train)].sum(dim=1).max())


def draw_firms(known_BN: Tensor, firms: int | None, generator: torch.Generator) -> Tensor:
    """Draw ``firms`` of the known firms of each date on the host, or all of a date with fewer; None: all."""
    if firms is None or firms >= known_BN.shape[1]:
        return known_BN
    draw_BN = torch.rand(known_BN.shape, generator=generator).masked_fill(~known_BN, -1.0)
    chosen_BK = draw_BN.topk(firms, dim=1).indices
    return torch.zeros_like(known_BN).scatter(1, chosen_BK, value=True) & known_BN
