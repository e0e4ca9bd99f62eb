"""Pretraining a day encoder (masked days, or the next day), and the start from one of an earlier fit.

Both objectives use windows of a fold's training span only, and no label. A scaled value of exactly 0 means
that the value is unknown (0 is the centre of its channel), so a day is known if at least one of its channels
is not 0.

Legend: M windows, W window length, C channels, D model width, N firms, T sessions, P windows, S sessions
including the padding before the first, X days of all windows.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from features.arrays import IntArray
from models.attention.encoder import DayEncoder, day_encoder
from models.attention.layers import Linear
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, FittedState, NoTrainingSignal
from models.fitting.config import FitConfig, PretrainConfig, matrix_precision
from models.fitting.graphs import Replayed, send
from models.fitting.optimizer import AdamW, parameter_groups
from models.fitting.snapshot import SeedState, SnapshotStore, TrainingState
from models.registry import model_entry
from models.spec import IncompatibleConfig


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

    Nothing after the last session of ``train`` is read of the panel, whose channels are scaled with training
    sessions only, and no target at all. ``seed``, that of the fit, is used where ``config.pretrain.seed`` is
    None. From the newest of ``snapshots``, pretraining resumes with the same bits on a CPU; if it is one of
    the fit that follows, pretraining is already done and only its records are returned.

    ``train_loss`` of the records is the mean squared error in units of the scaled channels (predicting their
    mean gives 1); ``valid_rank_ic`` is NaN. Raises `Diverged` when the loss is not finite, and
    `NoTrainingSignal` when no window of the training span has a known day.
    """
    how = config.pretrain
    assert how is not None, "called for a fit without pretraining"
    if how.objective == "next_day" and data.relative is not None:
        raise IncompatibleConfig(
            "fit.pretrain.objective is next_day, but channels are relative to the last session of the "
            "window, which gives the next day away: use masked_days, or other features.channels."
        )
    newest = None if snapshots is None else snapshots.load()
    if newest is not None and newest.stage == "fit":
        return newest.pretraining
    seed = seed if how.seed is None else how.seed
    torch.manual_seed(seed)
    module = DayPredictor(encoder, how, data.shape.n_channels, data.window).to(data.device)
    sessions_P, firms_P = windows_of(data, train)
    per_epoch = min(how.windows_per_epoch or len(sessions_P), len(sessions_P))
    own_rate = config.model_copy(update={"lr": how.lr, "layer_decay": 1.0, "average": 0.0})
    steps = math.ceil(per_epoch / how.batch)
    optimizer = AdamW(parameter_groups(module, own_rate), own_rate, how.epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    state = TrainingState(SeedState(seed, module, generator, best=module.state_dict()), optimizer, "pretrain")
    history = state.seed_state.history
    if newest is not None:
        state.restore(newest)
    engine = _Steps(module, data, sessions_P, firms_P, own_rate, how.batch, optimizer)
    for epoch in range(len(history), how.epochs):
        started = time.perf_counter()
        module.train()
        order_P = torch.randperm(len(sessions_P), generator=generator)[:per_epoch]
        error, values = engine.epoch(order_P, generator)
        loss = error / max(1, values)
        if not math.isfinite(loss):
            raise Diverged(f"The pretraining loss became {loss}: lower pretrain.lr (it is {how.lr:g}).")
        lr, seconds = optimizer.rate((epoch + 1) * steps), time.perf_counter() - started
        history.append(EpochRecord(epoch, loss, math.nan, lr, seconds))
        if snapshots is not None:
            snapshots.save(state.snapshot())
    return tuple(history)


class _Steps:
    """Steps of pretraining on windows of fixed number, recorded and replayed on CUDA devices.

    A short last batch is filled up with windows of which nothing is known, except on a CPU. What is drawn is
    drawn on the host, in the same way for every device.
    """

    def __init__(  # noqa: PLR0917  (a model, its data and how it learns)
        self,
        module: DayPredictor,
        data: PanelTensors,
        sessions_P: Tensor,
        firms_P: Tensor,
        config: FitConfig,
        batch: int,
        optimizer: AdamW,
    ) -> None:
        self.module, self.data, self.config = module, data, config
        self.batch, self.optimizer = batch, optimizer
        self.sessions_P, self.firms_P = sessions_P, firms_P
        self.known_P = known_in_windows(data, sessions_P, firms_P)
        self.error = torch.zeros((), dtype=torch.float64, device=data.device)
        self.values = torch.zeros((), dtype=torch.int64, device=data.device)
        self.given: tuple[Tensor, ...] = ()
        self.replayed = Replayed(data.device)

    def epoch(self, order_P: Tensor, generator: torch.Generator) -> tuple[float, int]:
        """Sum of squared errors over an epoch, and the number of values; this waits for the device."""
        self.error.zero_()
        self.values.zero_()
        for part_M in torch.split(order_P, self.batch):
            self._give(part_M, generator)
            self.replayed(self._learn)
        return float(self.error), int(self.values)

    def _give(self, part_M: Tensor, generator: torch.Generator) -> None:
        """Windows and draws of the next step, as tensors on the device that stay where they are."""
        data, draws = self.data, self.module.draw(len(part_M), int(self.known_P[part_M].sum()), generator)
        if data.device.type == "cpu":
            self.given = (data.gather_windows(self.sessions_P[part_M], self.firms_P[part_M]), *draws)
            return
        missing = self.batch - len(part_M)
        there = part_M.to(self.sessions_P.device, non_blocking=True)
        x_MWC = data.gather_windows(self.sessions_P[there], self.firms_P[there])
        given = [F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) for x in (x_MWC, *draws)]
        if not self.given:
            self.given = tuple(x.to(data.device) for x in given)
        for ours, new in zip(self.given, given, strict=True):
            send(new, ours)

    def _learn(self) -> None:
        x_MWC, *draws = self.given
        self.optimizer.zero_grad(set_to_none=True)
        with matrix_precision(self.config, self.data.device):
            error, count = self.module.errors(x_MWC, tuple(draws))
        self.error += error.detach()
        self.values += count
        (error / count.clamp(min=1)).backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip)
        self.optimizer.step()


MASKED_SHARE = 0.15
"""Share of the known days of a window that are predicted."""
TOKEN_SHARE, OTHER_SHARE = 0.8, 0.1
"""Shares of the predicted days that show the mask token, or another day's values; the rest are unchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Windows with masked days, and which days are predicted."""

    x_MWC: Tensor  # the windows, some of the chosen days replaced by another day's values
    token_MW: Tensor  # bool, days that show the mask token
    chosen_MW: Tensor  # bool, days that are predicted, including those shown unchanged


def known_days(x_MWC: Tensor) -> Tensor:
    """Days [M, W] with at least one known channel."""
    return (x_MWC != 0).any(dim=-1)


def known_in_windows(data: PanelTensors, sessions_P: Tensor, firms_P: Tensor) -> Tensor:
    """Number of known days of each window, int64 [P] on the host."""
    known_NS = known_days(data.history_NSC).cumsum(dim=1)
    last_P = sessions_P + data.window - 1
    before_P = torch.where(sessions_P > 0, known_NS[firms_P, (sessions_P - 1).clamp(min=0)], 0)
    return (known_NS[firms_P, last_P] - before_P).cpu()


def draw_masks(windows: int, days: int, known: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw what :func:`mask_days` needs, on the host, for windows with so many known days altogether.

    Numbers in [0, 1) that order the days of a window, round the number of chosen days, and decide what a
    chosen day shows; and how many known days further the day is whose values it may show.
    """
    size = (windows, days)
    order_MW, round_M = torch.rand(size, generator=generator), torch.rand(windows, generator=generator)
    fate_MW = torch.rand(size, generator=generator)
    if known < 2:
        return order_MW, round_M, fate_MW, torch.zeros(size, dtype=torch.int64)
    return order_MW, round_M, fate_MW, torch.randint(1, known, size, generator=generator)  # never itself


def mask_days(x_MWC: Tensor, draws: tuple[Tensor, ...]) -> Masked:
    """Choose 15% of the known days of each window; mask 80% of them, replace 10%, leave 10% unchanged.

    ``floor(0.15 K + u)`` of the K known days of a window are chosen, u uniform in [0, 1), which makes the
    share 15% on average for every K. A replaced day takes the values of another known day of the batch. ``x``
    are scaled channels (0 unknown), and ``draws`` those of :func:`draw_masks` on their device.
    """
    order_MW, round_M, fate_MW, step_MW = draws
    known_MW = known_days(x_MWC)
    rank_MW = order_MW.masked_fill(~known_MW, 2.0).argsort(dim=1).argsort(dim=1)
    count_M = (MASKED_SHARE * known_MW.sum(dim=1) + round_M).floor()
    chosen_MW = known_MW & (rank_MW < count_M[:, None])
    token_MW = chosen_MW & (fate_MW < TOKEN_SHARE)
    other_MW = chosen_MW & ~token_MW & (fate_MW < TOKEN_SHARE + OTHER_SHARE)
    # the k-th known day of the batch is where the number of known days up to it reaches k
    reached_X = known_MW.flatten().cumsum(0)
    place_MW = (reached_X.view_as(known_MW) - 1 + step_MW) % reached_X[-1].clamp(min=1)
    day_MW = torch.searchsorted(reached_X, place_MW + 1)
    other_MWC = x_MWC.flatten(0, 1)[day_MW.clamp(max=known_MW.numel() - 1)]
    return Masked(torch.where(other_MW[:, :, None], other_MWC, x_MWC), token_MW, chosen_MW)


def squared_errors(predicted_MWC: Tensor, x_MWC: Tensor, chosen_MW: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of squared errors over the known channels of the chosen days, and the number of these values."""
    counted_MWC = chosen_MW[:, :, None] & (x_MWC != 0)
    error_MWC = (predicted_MWC.float() - x_MWC).masked_fill(~counted_MWC, 0.0)
    return error_MWC.square().sum(), counted_MWC.sum()


class DayPredictor(nn.Module):
    """A day encoder with a linear map from the state of a day to its channels, and the mask token.

    ``masked_days``: ``x_k ~ W h_k`` for the chosen days k, where the input of a masked day is a learned
    token in place of ``x_k W_in``. ``next_day``: ``x_(k+1) ~ W h_k`` with causal attention, for the days k
    with a known day at or before k. Only the encoder is kept after pretraining.

    Raises
    ------
    IncompatibleConfig
        For ``next_day`` on windows of a single day.
    """

    def __init__(self, encoder: DayEncoder, config: PretrainConfig, n_channels: int, window: int) -> None:
        super().__init__()
        if config.objective == "next_day" and window < 2:
            raise IncompatibleConfig(
                "fit.pretrain.objective is next_day but the window has one session: lengthen the window."
            )
        self.encoder, self.window = encoder, window
        self.head = Linear(encoder.config.width, n_channels)
        self.token_D = (
            nn.Parameter(0.02 * torch.randn(encoder.config.width))
            if config.objective == "masked_days"
            else None
        )

    def draw(self, windows: int, known: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw what the errors of windows need, on the host; ``known`` days are known in all of them."""
        return () if self.token_D is None else draw_masks(windows, self.window, known, generator)

    def errors(self, x_MWC: Tensor, draws: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Sum of squared errors over the predicted values of the windows, and the number of these values."""
        if self.token_D is None:
            h_MWD = self.encoder.days(self.encoder.input(x_MWC), causal=True)
            seen_MW = known_days(x_MWC).cummax(dim=1).values
            return squared_errors(self.head(h_MWD[:, :-1]), x_MWC[:, 1:], seen_MW[:, :-1])
        masked = mask_days(x_MWC, draws)
        h_MWD = torch.where(masked.token_MW[:, :, None], self.token_D, self.encoder.input(masked.x_MWC))
        h_MWD = self.encoder.days(h_MWD, causal=self.encoder.config.causal)
        return squared_errors(self.head(h_MWD), x_MWC, masked.chosen_MW)


FREE_TO_DIFFER = ("dropout", "causal", "pooling")
"""Encoder options that may differ, as long as all tensors have the same shapes."""


def start_from(module: nn.Module, window: int, state: FittedState) -> None:
    """Copy the day encoder of an earlier fit into a model; all other weights keep their initial values.

    ``window`` is W, the sessions of its windows. Raises `IncompatibleConfig` when the model or the earlier
    fit has no day encoder, or their windows, encoder options or tensor shapes differ.
    """
    encoder, name = day_encoder(module), str(state.config["name"])
    entry = model_entry(name)
    if encoder is None or not entry.has_day_encoder:
        raise IncompatibleConfig(
            f"init_from copies the day encoder of {name}, but both models need one: remove init_from."
        )
    theirs = entry.config(**state.config["config"]).encoder.model_dump()
    theirs["window"] = state.config["shape"]["window"]
    for option, ours in {**encoder.config.model_dump(), "window": window}.items():
        if option not in FREE_TO_DIFFER and theirs[option] != ours:
            raise IncompatibleConfig(
                f"The day encoder of init_from has {option} {theirs[option]!r} and this model has {ours!r}: "
                "set both to the same value, or remove init_from."
            )
    prefix = next(name for name, part in module.named_modules() if part is encoder) + "."
    copied = {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in state.tensors.items()
        if name.startswith(prefix)
    }
    own = encoder.state_dict()
    for name in sorted(set(own) | set(copied)):
        left, right = (tuple(part[name].shape) if name in part else None for part in (copied, own))
        if left != right:
            raise IncompatibleConfig(
                f"The day encoder of init_from has {name} of shape {left} and this model has {right}: "
                "give both the same channels and pooling, or remove init_from."
            )
    encoder.load_state_dict(copied)
