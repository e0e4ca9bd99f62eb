"""Pretraining a day encoder on the windows of a fold's training span, before the model is fitted.

Legend: N firms, T sessions, P windows.
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from features.arrays import IntArray
from models.attention.encoder import DayEncoder
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, NoTrainingSignal
from models.fitting.config import FitConfig
from models.fitting.objectives import DayPredictor
from models.fitting.optimizer import RunningMean, make_optimizer, parameter_groups
from models.fitting.precision import matrix_precision
from models.fitting.snapshot import SeedState, SnapshotStore, TrainingState


def windows_of(data: PanelTensors, train: IntArray) -> tuple[Tensor, Tensor]:
    """Sessions [P] and firms [P] of the windows that pretraining reads, session by session.

    A window may end on any session from the first training session to the last, whether a forecast is made on
    it or not, so before the first validation session and the gap in front of it. It may belong to any firm
    with a known channel on that session, in the universe or not.

    Raises
    ------
    NoTrainingSignal
        When there is no such window.
    """
    first, last = int(train.min()), int(train.max())
    known_TN = (data.channels_TNC[first : last + 1] != 0).any(dim=-1)
    sessions_P, firms_P = known_TN.nonzero(as_tuple=True)
    if not len(sessions_P):
        raise NoTrainingSignal(
            "No channel is known on any training session: there is nothing to pretrain on."
        )
    return sessions_P + first, firms_P


def pretrain(  # noqa: PLR0917  (what, on what, how)
    encoder: DayEncoder,
    data: PanelTensors,
    train: IntArray,
    config: FitConfig,
    seed: int,
    snapshots: SnapshotStore | None = None,
) -> tuple[EpochRecord, ...]:
    """Pretrain an encoder in place; this changes the state of torch's global generator.

    Parameters
    ----------
    encoder
        On the data's device.
    data
        The panel, its channels scaled with training sessions only. Nothing after the last session of
        ``train`` is read, and no target at all.
    train
        Training sessions of the fold.
    config
        Options of training; ``config.pretrain`` holds those of pretraining.
    seed
        Seed of the fit, used where ``config.pretrain.seed`` is None.
    snapshots
        Store of the newest snapshot, from which pretraining resumes with the same bits on a CPU. If it holds
        a snapshot of the fit that follows, pretraining is already done and only its records are returned.

    Returns
    -------
    tuple of EpochRecord
        ``train_loss`` is the mean squared error in units of the scaled channels (predicting their mean gives
        1); ``valid_rank_ic`` is NaN.

    Raises
    ------
    Diverged
        When the loss is not finite.
    NoTrainingSignal
        When no window of the training span has a known day.
    """
    how = config.pretrain
    assert how is not None, "called for a fit without pretraining"
    newest = None if snapshots is None else snapshots.load()
    if newest is not None and newest.stage == "fit":
        return newest.pretraining
    seed = seed if how.seed is None else how.seed
    torch.manual_seed(seed)
    module = DayPredictor(encoder, how, data.shape.n_channels, data.window).to(data.device)
    sessions_P, firms_P = windows_of(data, train)
    per_epoch = min(how.windows_per_epoch or len(sessions_P), len(sessions_P))
    own_rate = dataclasses.replace(config, lr=how.lr, layer_decay=1.0)
    optimizer, schedule = make_optimizer(
        parameter_groups(module, own_rate), own_rate, how.epochs * math.ceil(per_epoch / how.batch)
    )
    generator = torch.Generator().manual_seed(seed)
    no_mean = RunningMean(module.parameters(), 0.0)
    state = TrainingState(
        SeedState(seed, module, generator, best=module.state_dict()), optimizer, schedule, no_mean, "pretrain"
    )
    history = state.seed_state.history
    if newest is not None:
        state.restore(newest)
    for epoch in range(len(history), how.epochs):
        started = time.perf_counter()
        module.train()
        total = torch.zeros((), dtype=torch.float64, device=data.device)
        values = torch.zeros((), dtype=torch.int64, device=data.device)
        order_P = torch.randperm(len(sessions_P), generator=generator)[:per_epoch].to(sessions_P.device)
        for part_M in torch.split(order_P, how.batch):
            x_MWC = data.gather_windows(sessions_P[part_M], firms_P[part_M])
            with matrix_precision(config, data.device):
                error, count = module.errors(x_MWC, generator)
            total, values = total + error.detach(), values + count
            optimizer.zero_grad(set_to_none=True)
            (error / count.clamp(min=1)).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip)
            optimizer.step()
            schedule.step()
        loss = float(total) / max(1, int(values))
        if not math.isfinite(loss):
            raise Diverged(f"The pretraining loss became {loss}: lower pretrain.lr (it is {how.lr:g}).")
        lr, seconds = float(schedule.get_last_lr()[0]), time.perf_counter() - started
        history.append(EpochRecord(epoch, loss, math.nan, lr, seconds))
        if snapshots is not None:
            snapshots.save(state.snapshot())
    return tuple(history)
