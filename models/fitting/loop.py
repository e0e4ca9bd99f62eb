"""The training loop, for one seed or for K seeds of a model.

:func:`train_seeds` is the loop: epochs, the order of dates, the schedule, the running mean, validation,
early stopping and snapshots. An :class:`Engine` makes the steps and the forecasts: :class:`SingleSeed` in
this file on CPUs, `models.fitting.stacked.StackedSeeds` on GPUs and for several seeds at once.

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

from features.arrays import Float32Array, FloatArray, IntArray
from features.information_coefficient import ic_by_date, mean_known, rank_ic_by_date
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, OnEpoch, no_report
from models.fitting.config import NET_UTILITY, FitConfig, matrix_precision
from models.fitting.losses import dates_that_count, horizons_loss, quantile
from models.fitting.memory import Note, epoch_that_fits, no_note
from models.fitting.optimizer import AdamW, ParameterGroup, parameter_groups
from models.fitting.snapshot import SeedState, SnapshotStore, TrainingState
from models.forecaster import Forecaster
from models.spec import IncompatibleConfig

CPU_CELLS = 2048
"""Number of (date, firm) cells that go through a model at once on a CPU."""


class Validation(NamedTuple):
    """Scores of validation forecasts."""

    rank_ic_KV: FloatArray
    ic_KV: FloatArray
    """By date; NaN where they are undefined (`features.information_coefficient`)."""
    pinball_K: list[float]
    """Mean over dates; NaN without quantiles."""


class Engine(Protocol):
    """Training steps and validation forecasts of K >= 1 seeds of a model.

    Attributes
    ----------
    data
        The panel.
    config
        Options of training.
    dates_at_once
        Number of dates that go through a model at once. It is halved while memory runs out
        (`models.fitting.memory`).
    seeds_at_once
        Number of seeds that are computed at once; 1 after memory has run out.
    seeds
        K seeds.
    modules
        One module per seed, trained in place.
    generators
        One generator per seed; it draws the order of dates and, with ``firms_per_date``, the firms.
    """

    data: PanelTensors
    config: FitConfig
    dates_at_once: int
    seeds_at_once: int
    seeds: tuple[int, ...]
    modules: list[Forecaster]
    generators: list[torch.Generator]

    def groups(self) -> list[ParameterGroup]:
        """Parameters to train, in the groups of the optimizer."""
        ...

    def epoch(self, dates_KD: Tensor, optimizer: AdamW) -> Tensor:
        """Train each seed on its D dates, batch by batch.

        Returns the losses and the gradient norms before clipping, [2, K, S] for the S steps. They stay on the
        device, and no step waits for it.
        """
        ...

    def validate(self, valid: IntArray) -> Validation:
        """Score the forecasts of the validation dates by every seed."""
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
    note: Note = no_note,
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
    note
        Called with a sentence if a step does not fit a GPU's memory as it is.

    Returns
    -------
    list of tuple of EpochRecord
        One history per seed. Seconds are those of all seeds together.

    Raises
    ------
    Diverged
        When the loss, the gradient norm or the validation score of a seed that has not stopped is not finite.
    IncompatibleConfig
        When the loss needs consecutive sessions and there are none.
    UnusableSnapshot
        When the snapshot belongs to another model or fit.
    """
    train_D = torch.as_tensor(train, dtype=torch.int64)
    per_epoch = len(draw_dates(train_D, config, torch.Generator()))
    in_step_S = [len(part) for part in torch.arange(per_epoch).split(config.batch_dates)]
    optimizer = AdamW(engine.groups(), config, config.epochs * len(in_step_S))
    states = [
        SeedState(seed, module, generator, module.state_dict())
        for seed, module, generator in zip(engine.seeds, engine.modules, engine.generators, strict=True)
    ]
    reports = on_epoch or [no_report] * len(states)
    if snapshots is not None:
        assert len(states) == 1, "a snapshot holds a single seed"
        resumable = TrainingState(states[0], optimizer, "fit", pretraining)
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
        drawn = [draw_dates(train_D, config, generator) for generator in engine.generators]
        _set_mode(engine, training=True)
        measured_2KS = epoch_that_fits(engine, torch.stack(drawn), optimizer, note)
        _set_mode(engine, training=False)
        with optimizer.mean.in_place():
            score_K = _scores(None if valid is None else engine.validate(valid), len(states))
            loss_KS, norm_KS = measured_2KS.tolist()  # by now the device has been waited for
            for k in training:
                _require_finite(loss_KS[k], norm_KS[k], _of_seed(states, k), config)
            seconds, lr = time.perf_counter() - started, optimizer.rate((epoch + 1) * len(in_step_S))
            for k in training:
                loss, score = float(np.dot(loss_KS[k], in_step_S)) / per_epoch, score_K[k]
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


def _scores(found: Validation | None, seeds: int) -> list[_Score]:
    """Mean scores of every seed."""
    if found is None:
        return [_Score()] * seeds
    return [
        _Score(mean_known(rank_ic_V), mean_known(ic_V), pinball)
        for rank_ic_V, ic_V, pinball in zip(*found, strict=True)
    ]


class SingleSeed:
    """The :class:`Engine` of one seed on a CPU, and of models whose shapes depend on values on any device.

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
        self.dates_at_once, self.seeds_at_once = dates_at_once(data, config, train), 1

    def groups(self) -> list[ParameterGroup]:
        """Parameters of the module, in the groups of the optimizer."""
        return parameter_groups(self.modules[0], self.config)

    def epoch(self, dates_KD: Tensor, optimizer: AdamW) -> Tensor:
        """Make the steps of an epoch, [2, 1, S] losses and gradient norms."""
        steps = torch.split(dates_KD, self.config.batch_dates, dim=1)
        return torch.stack([torch.stack(self.step(dates_KB, optimizer)) for dates_KB in steps], dim=-1)

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
            loss = horizons_loss(module, config, y_BNK, batch, known_BN, share_K)
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
            counts.append(dates_that_count(self.config.loss, target_BNK.cpu(), known_BN).sum(dim=0))
        count_PK = torch.stack(counts).double()
        shares: list[list[float]] = (count_PK / count_PK.sum(dim=0).clamp(min=1)).tolist()
        return shares

    def _chosen(self, dates_B: Tensor) -> Tensor | None:
        """Bool [B, N] on the host: the firms to train with; None for all, which a model with peers needs."""
        if self.modules[0].uses_peers:
            return None
        known_BN, listed_N = self.data.known_TN[dates_B], self.data.listed_TN[dates_B].any(dim=0)
        return draw_firms(known_BN, listed_N, self.config.firms_per_date, self.generators[0])

    def validate(self, valid: IntArray) -> Validation:
        """Score the forecasts of the validation dates."""
        forecast_VN, pinball = self.forecast(valid)
        target_VN = self.data.target_TN[torch.as_tensor(valid, device=self.data.device)].cpu().numpy()
        rank_ic_V, ic_V = rank_ic_by_date(forecast_VN, target_VN), ic_by_date(forecast_VN, target_VN)
        return Validation(rank_ic_V[None], ic_V[None], [pinball])

    @torch.inference_mode()
    def forecast(self, valid: IntArray) -> tuple[Float32Array, float]:
        """Forecasts [V, N], NaN outside the universe, and their pinball score, NaN without quantiles.

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
        return forecast_VN, pinball


def dates_at_once(data: PanelTensors, config: FitConfig, train: IntArray) -> int:
    """Number of dates that go through a model at once.

    It counts the firms of the training dates only: firms that are listed later must not change the order in
    which a gradient is summed. A block of consecutive sessions is not divided.
    """
    if data.device.type != "cpu" or config.loss == NET_UTILITY:
        return config.batch_dates
    return max(1, CPU_CELLS // most_firms(data, train))


def draw_dates(train_D: Tensor, config: FitConfig, generator: torch.Generator) -> Tensor:
    """Draw the sessions of an epoch on the host, in the order in which they are trained on.

    Single sessions without replacement; for ``net_utility``, blocks of ``batch_dates`` consecutive sessions,
    whose first sessions are drawn without replacement. Blocks may overlap, none spans a gap of the training
    sessions, and there are as many as hold the dates of an epoch.

    Examples
    --------
    >>> train, blocks = torch.tensor([3, 4, 5, 6, 9, 10]), FitConfig(loss="net_utility", batch_dates=3)
    >>> sorted(draw_dates(train, blocks, torch.Generator()).view(-1, 3)[:, 0].tolist())
    [3, 4]
    """
    per_epoch = min(config.dates_per_epoch or len(train_D), len(train_D))
    if config.loss != NET_UTILITY:
        return train_D[torch.randperm(len(train_D), generator=generator)[:per_epoch]]
    size = min(config.batch_dates, per_epoch)
    every_XB = train_D.unfold(0, size, 1)
    block_XB = every_XB[every_XB[:, -1] - every_XB[:, 0] == size - 1]
    if not len(block_XB):
        raise IncompatibleConfig(
            f"loss net_utility needs {size} training sessions in a row, and there are not as many; lower "
            "fit.batch_dates."
        )
    drawn = torch.randperm(len(block_XB), generator=generator)[: -(-per_epoch // size)]
    return block_XB[drawn].flatten()


def most_firms(data: PanelTensors, train: IntArray) -> int:
    """Largest number of firms in the universe on a training date."""
    return int(data.listed_TN[torch.as_tensor(train)].sum(dim=1).max())


def draw_firms(known_BN: Tensor, listed_N: Tensor, firms: int | None, generator: torch.Generator) -> Tensor:
    """Draw ``firms`` of the known firms of each date on the host, or all of a date with fewer; None: all.

    The draw depends only on the firms that are listed on the dates.
    """
    known_BM = known_BN[:, listed_N]
    if firms is None or firms >= known_BM.shape[1]:
        return known_BN
    draw_BM = torch.rand(known_BM.shape, generator=generator).masked_fill(~known_BM, -1.0)
    chosen_BK = draw_BM.topk(firms, dim=1).indices
    drawn_BM = torch.zeros_like(known_BM).scatter(1, chosen_BK, value=True) & known_BM
    return known_BN.masked_scatter(listed_N, drawn_BM)
