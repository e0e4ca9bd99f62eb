"""Steps of fixed shapes, for K >= 1 seeds of a model: every step on a GPU, and stacks of seeds anywhere.

A model and its loss are one function of tensors whose shapes do not change from step to step. Every date has
as many places for firms as the largest date needs; empty places are outside the universe. A short last batch
is filled up with a date that does not count. On a GPU, the dates of an epoch and the firms of every date are
in tables on it, so that a whole step is recorded once and replayed (`models.fitting.graphs`).

Several seeds share a step: on a GPU, each is computed on a stream of its own, because one small model leaves
the GPU mostly idle; on CPUs, one process per core is faster. Each seed has the initial weights, order of
dates and draw of firms that it has alone, so without dropout it ends with the same weights, up to rounding.
Dropout masks are drawn for one seed after the other: they differ from those of a seed alone, but are the
same whenever the same seeds are trained together.

Legend: K seeds, B dates in a batch, D dates of an epoch, R rows of a table, one for each date, S steps of an
epoch, P places for firms, N firms, V validation dates, W window length, C channels, F characteristics,
H horizons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from features.arrays import IntArray
from features.information_coefficient import MIN_FIRMS
from models.batch import Batch, PanelTensors, firms_in_places
from models.fitting.config import FitConfig, matrix_precision
from models.fitting.graphs import Replayed, send, stream_of
from models.fitting.loop import Validation, dates_at_once, draw_firms, most_firms
from models.fitting.losses import dates_that_count, horizons_loss, label_loss
from models.fitting.memory import what_fits
from models.fitting.optimizer import AdamW, ParameterGroup, parameter_groups
from models.forecaster import Forecaster
from models.panel_memory import is_out_of_memory
from models.registry import MODELS

ALONE = ("label_share", "layer_decay", "pretrain", "refit")
"""Fields of `FitConfig` that a stack does not support: with one in use, seeds are trained one by one."""

_BACKEND = "inductor"
_ROWS = 256  # dates whose firms are ordered at a time
_SHAPES = 256  # that one process compiles a step for; PyTorch would stop after 8, and each fold has its own


def can_stack(name: str, config: FitConfig) -> bool:
    """Whether the seeds of a model can be trained at once with these options."""
    in_use = any(getattr(config, field) != FitConfig.model_fields[field].default for field in ALONE)
    return not in_use and bool(MODELS[name].build.stackable)


class Cells(NamedTuple):
    """A dense batch as tensors, with the panel column of each place and what counts in the loss."""

    x_BPWC: Tensor
    z_BPF: Tensor
    m_BP: Tensor
    s_BP: Tensor
    y_BP: Tensor
    path_BPH: Tensor  # targets of the shorter horizons; none for models without
    r_BP: Tensor  # returns over the label's span
    firms_BP: Tensor
    key_BP: Tensor
    known_BP: Tensor  # bool, the targets that count

    def dates(self, first: int, last: int) -> Cells:
        """Select dates, which are the last dimension but one of a mask, whatever comes before it."""
        at = self.m_BP.ndim - 2
        return Cells(*(one.narrow(at, first, last - first) for one in self))


class DateLoss(nn.Module):
    """A forecaster with its loss as one function of tensors."""

    def __init__(self, module: Forecaster, config: FitConfig) -> None:
        super().__init__()
        self.module = module
        self.config = config

    def forward(self, cells: Cells, share_H: Tensor | None) -> tuple[Tensor, Tensor]:
        """Forecasts [B, P] of the label in the target's unit, and a loss in its standard deviations.

        In training, the loss is that of all horizons, ``share_H`` the share of their dates that are among
        these, and matrix products have the precision of the config. Without ``share_H``, the loss is that of
        the label alone, in float32, as in a fitted model.
        """
        x, z, m, s, y, path, r, firms, key, known = cells
        path_BPH = path if path.shape[-1] else None
        batch = Batch(x, z, m, s, y, firms, key_BN=key, dense=True, path_BNK=path_BPH, r_BN=r)
        module, config = self.module, self.config
        if share_H is None:
            y_BP = module(batch)
            return y_BP, label_loss(module, config, y_BP, batch, known)
        with matrix_precision(config, x.device):
            y_BPH = module.horizons(batch)
        return y_BPH[..., -1], horizons_loss(module, config, y_BPH, batch, known, share_H)


def _compiled(loss: DateLoss) -> Callable[..., Any]:
    from torch._dynamo import config  # this takes a second

    config.recompile_limit = _SHAPES
    compiled: Callable[..., Any] = torch.compile(loss, backend=_BACKEND, dynamic=False)
    return compiled


@dataclass(frozen=True, slots=True, eq=False)
class DateTable:
    """The dates of R rows and the firms in their places."""

    date_R: Tensor  # int64, sessions
    firm_RP: Tensor  # int32, those that count as present first, then others
    count_R: Tensor  # int64, how many are present

    @classmethod
    def of(cls, date_R: Tensor, chosen_RN: Tensor, places: int) -> DateTable:
        """Give the chosen firms of each date a place."""
        firms = [firms_in_places(part, places)[0].to(torch.int32) for part in chosen_RN.split(_ROWS)]
        return cls(date_R.to(chosen_RN.device), torch.cat(firms), chosen_RN.sum(dim=1))

    def at(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Dates [..., B], firms [..., B, P] and whether they are present, for rows [..., B]."""
        firm = self.firm_RP[row].long()
        there = torch.arange(firm.shape[-1], device=firm.device) < self.count_R[row][..., None]
        return self.date_R[row], firm, there

    def cpu(self) -> DateTable:
        """Copy the table to the host."""
        return DateTable(self.date_R.cpu(), self.firm_RP.cpu(), self.count_R.cpu())


class Walk:
    """Batch after batch of the rows [..., D] of a table, as work of fixed shapes (`models.fitting.graphs`).

    The table is on the panel's device. A batch has B rows; except on a CPU, a short last one is filled up
    with the first row, which does not count there. With ``horizons`` it has targets of the shorter horizons.
    """

    def __init__(
        self, data: PanelTensors, table: DateTable, rows: Sequence[int], batch: int, *, horizons: bool
    ) -> None:
        self.data, self.table, self.batch, self.horizons = data, table, batch, horizons
        self.steps = -(-rows[-1] // batch)
        self.filled = 0 if data.device.type == "cpu" else self.steps * batch - rows[-1]
        size, device = rows[-1] + self.filled, data.device
        self.order = torch.zeros((*rows[:-1], size), dtype=torch.int64, device=device)
        self.counts_D = torch.arange(size, device=device) < rows[-1]
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        """The step that was taken last, counted from 0."""
        self.place_B = torch.arange(batch, device=device)
        """Places of its batch in the walk."""
        self._on_host: DateTable | None = None
        self._batches: Iterator[Tensor] = iter(())
        self._fetched: Cells | None = None

    def replace(self, table: DateTable) -> None:
        """Replace the firms of the rows."""
        for name in ("date_R", "firm_RP", "count_R"):
            getattr(self.table, name).copy_(getattr(table, name))
        self._on_host = None

    def start(self, rows: Tensor) -> None:
        """Begin at the first of some rows, on the host."""
        rows = torch.cat((rows, rows[..., :1].expand(*rows.shape[:-1], self.filled)), dim=-1)
        send(rows, self.order)
        self.step.fill_(-1)
        self._batches = iter(rows.split(self.batch, dim=-1))

    def fetch(self) -> None:
        """Copy the next batch from the host, if the panel is in its memory; before :meth:`take`."""
        if self.data.upload is None:
            return
        self._on_host = self._on_host or self.table.cpu()
        on_host = self._on_host.at(next(self._batches))
        date, firm, there = (one.to(self.data.device, non_blocking=True) for one in on_host)
        cells = self._gather(date, firm, there, on_host[:2])
        if self._fetched is None or self._fetched.m_BP.shape != cells.m_BP.shape:
            self._fetched = Cells(*(one.clone() for one in cells))
        for ours, new in zip(self._fetched, cells, strict=True):
            ours.copy_(new)

    def take(self) -> Cells:
        """Gather the next batch; this may be recorded."""
        self.step += 1
        place_B = self.step * self.batch + torch.arange(self.batch, device=self.data.device)
        if self.data.device.type == "cpu":
            place_B = place_B[: len(self.counts_D) - int(place_B[0])]
        self.place_B = place_B
        cells = self._fetched
        if cells is None:
            date, firm, there = self.table.at(self.order.index_select(-1, place_B))
            cells = self._gather(date, firm, there, (date, firm))
        return cells._replace(known_BP=cells.known_BP & self.counts_D[place_B][:, None])

    def _gather(self, date: Tensor, firm: Tensor, there: Tensor, on_host: tuple[Tensor, Tensor]) -> Cells:
        """Gather the firms in the places of some dates.

        Dates are sessions of the panel, int64 [..., B], and firms its columns, int64 [..., B, P], of which
        those that are ``there`` are in the universe. ``on_host`` has both on the host; they are read if the
        panel is in its memory.
        """
        data, at = self.data, (date[..., None].expand_as(firm), firm)
        x, z = data.gather_inputs(*at, (on_host[0][..., None].expand_as(on_host[1]), on_host[1]))
        y = data.target_TN[at]
        path = data.path_TNK[at] if self.horizons and data.path_TNK is not None else y[..., None][..., :0]
        return Cells(
            x_BPWC=x,
            z_BPF=z,
            m_BP=there,
            s_BP=data.group_TN[at].long(),
            y_BP=y,
            path_BPH=path,
            r_BP=y if data.return_TN is None else data.return_TN[at],
            firms_BP=firm,
            key_BP=data.key_N[firm],
            known_BP=there & y.isfinite(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One way over dates that is repeated: an epoch, or a validation."""

    of: tuple[Any, ...]  # what it was made for
    walk: Walk
    found: tuple[Tensor, ...]  # where its results are
    replayed: Replayed

    def run(self, rows: Tensor, work: Callable[[], None]) -> None:
        """Walk over rows once, with the same work on each batch."""
        self.walk.start(rows)
        for _ in range(self.walk.steps):
            self.walk.fetch()
            self.replayed(work)


class StackedSeeds:
    """The :class:`models.fitting.loop.Engine` of K >= 1 seeds with steps of one shape.

    The K ``modules`` of one architecture, on the data's device, are trained in place. Each of ``seeds``
    decides an order of dates and a draw of firms. The largest number of firms on the ``train`` sessions fixes
    the number of places. With ``compiled``, the compiled kernels draw the dropout masks, which then differ;
    validation is not compiled.
    """

    def __init__(
        self,
        modules: Sequence[Forecaster],
        data: PanelTensors,
        config: FitConfig,
        seeds: Sequence[int],
        train: IntArray,
        *,
        compiled: bool = False,
    ) -> None:
        self.data, self.config, self.seeds, self.modules = data, config, tuple(seeds), list(modules)
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.losses = [DateLoss(module, config) for module in modules]
        self._compiled = [_compiled(loss) for loss in self.losses] if compiled else self.losses
        self.uses_peers, self.has_path = modules[0].uses_peers, modules[0].n_horizons > 1
        drawn = None if self.uses_peers else config.firms_per_date
        self.draws, self.draw_at_once = drawn is not None, dates_at_once(data, config, train)
        most = most_firms(data, train)
        self.places = most if drawn is None else min(most, drawn)
        sizes = data.shape, self.places, len(modules), data.device
        self.seeds_at_once, self.dates_at_once = what_fits(modules[0], config, *sizes)
        """Seeds, and dates of each, that are computed at once. Fewer need less memory and give the same
        gradient."""
        self._validated_at_once = self.dates_at_once
        self.train_R = torch.as_tensor(train, dtype=torch.int64)
        self._epochs: _Pass | None = None
        self._validations: _Pass | None = None

    def groups(self) -> list[ParameterGroup]:
        """Parameters of all seeds, in the groups that one module's parameters have."""
        groups, *others = (parameter_groups(module, self.config) for module in self.modules)
        for more in others:
            for group, same in zip(groups, more, strict=True):
                group["params"] += same["params"]
        return groups

    def epoch(self, dates_KD: Tensor, optimizer: AdamW) -> Tensor:
        """Make the steps of an epoch; return losses and gradient norms before clipping, [2, K, S]."""
        of = (dates_KD.shape, optimizer, self.seeds_at_once, self.dates_at_once)
        if self._epochs is None or self._epochs.of != of:
            data = self.data
            walk = Walk(
                data, self._table(dates_KD), dates_KD.shape, self.config.batch_dates, horizons=self.has_path
            )
            measured_2KS = torch.zeros((2, len(self.modules), walk.steps), device=data.device)
            self._epochs = _Pass(of, walk, (measured_2KS,), Replayed(data.device))
        elif self.draws:
            self._epochs.walk.replace(self._table(dates_KD))
        rows = torch.arange(dates_KD.numel()).view_as(dates_KD)
        if not self.draws:
            row_T = torch.zeros(len(self.data.listed_TN), dtype=torch.int64)
            row_T[self.train_R] = torch.arange(len(self.train_R))
            rows = row_T[dates_KD]
        (measured_2KS,) = self._epochs.found
        self._epochs.run(rows, partial(self._learn, self._epochs.walk, optimizer, measured_2KS))
        return measured_2KS.clone()

    def validate(self, valid: IntArray) -> Validation:
        """Score the forecasts of the same dates by every seed; fewer dates at once where memory runs out."""
        while True:
            at_once = min(self.dates_at_once, self._validated_at_once)
            try:
                return self._validate(valid, at_once)
            except RuntimeError as error:
                if at_once == 1 or not is_out_of_memory(error):
                    raise
            self._validations, self._validated_at_once = None, -(-at_once // 2)

    def _validate(self, valid: IntArray, at_once: int) -> Validation:
        data, K = self.data, len(self.modules)
        of = (tuple(valid.tolist()), self.seeds_at_once, at_once)
        if self._validations is None or self._validations.of != of:
            at = torch.as_tensor(valid, dtype=torch.int64, device=data.device)
            table = DateTable.of(at, data.mask_TN[at], most_firms(data, valid))
            walk = Walk(data, table, (len(valid),), at_once, horizons=False)
            ic_2KV = torch.zeros((2, K, len(walk.counts_D)), dtype=torch.float64, device=data.device)
            total_K = torch.zeros(K, device=data.device)
            self._validations = _Pass(of, walk, (ic_2KV, total_K), Replayed(data.device))
        ic_2KV, total_K = self._validations.found
        total_K.zero_()
        work = partial(self._look, self._validations.walk, ic_2KV, total_K)
        self._validations.run(torch.arange(len(valid)), work)
        rank_ic_KV, ic_KV = ic_2KV[..., : len(valid)].cpu().numpy()
        if self.modules[0].quantile_head is None:
            return Validation(rank_ic_KV, ic_KV, [math.nan] * K)
        dates = max(int(data.known_TN[torch.as_tensor(valid)].any(dim=1).sum()), 1)
        return Validation(rank_ic_KV, ic_KV, (total_K / dates).tolist())

    def _learn(self, walk: Walk, optimizer: torch.optim.Optimizer, measured_2KS: Tensor) -> None:
        """Make one step of every seed."""
        optimizer.zero_grad(set_to_none=True)
        cells = walk.take()
        found = self._each(lambda k: self._differentiate(k, Cells(*(one[k] for one in cells))))
        optimizer.step()
        measured_2KS.index_copy_(2, walk.step[None], torch.stack(found, dim=1)[..., None])

    def _differentiate(self, k: int, cells: Cells) -> Tensor:
        """Compute the clipped gradient of a seed; its loss and the norm before clipping, [2]."""
        dates, horizons = cells.m_BP.shape[0], 1 + cells.path_BPH.shape[-1]
        loss = torch.zeros((), device=self.data.device)
        for first in range(0, dates, self.dates_at_once):
            part = cells.dates(first, min(first + self.dates_at_once, dates))
            share_H = loss.new_ones(horizons)
            if self.dates_at_once < dates:
                share_H = self._dates_that_count(part) / self._dates_that_count(cells).clamp(min=1)
            _, of_part = self._compiled[k](part, share_H)
            of_part.backward()
            loss = loss + of_part.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.modules[k].parameters(), self.config.clip)
        return torch.stack((loss, norm))

    def _look(self, walk: Walk, ic_2KV: Tensor, total_K: Tensor) -> None:
        """Score one batch of validation dates by every seed."""
        cells = walk.take()
        with torch.no_grad():
            found = self._each(lambda k: self.losses[k](cells, None))
            y_KBP = torch.stack([y_BP for y_BP, _ in found])
            ic_2KV.index_copy_(2, walk.place_B, coefficients(y_KBP.float(), cells.y_BP, cells.known_BP))
            total_K += torch.stack([loss for _, loss in found]) * cells.known_BP.any(dim=1).sum()

    def _each(self, compute: Callable[[int], Any]) -> list[Any]:
        """Compute something for every seed: on a GPU on streams of their own, if all fit at once."""
        device, seeds = self.data.device, range(len(self.modules))
        if device.type != "cuda" or self.seeds_at_once == 1:
            return [compute(k) for k in seeds]
        begun, found, streams = torch.cuda.current_stream(device), [], list[torch.cuda.Stream]()
        try:
            for k in seeds:
                streams.append(stream_of(device, 1 + k))
                streams[k].wait_stream(begun)
                with torch.cuda.stream(streams[k]):
                    found.append(compute(k))
        finally:  # also if memory runs out: a recording must not end before its streams are joined
            for stream in streams:
                begun.wait_stream(stream)
        return found

    def _dates_that_count(self, cells: Cells) -> Tensor:
        """Number of dates that count in the loss of each horizon, float [H]."""
        target_BPH = torch.cat((cells.path_BPH, cells.y_BP[..., None]), dim=-1)
        return dates_that_count(self.config.loss, target_BPH, cells.known_BP).sum(dim=0).float()

    def _table(self, dates_KD: Tensor) -> DateTable:
        """Firms of all training dates; if firms are drawn, those of the dates of each seed."""
        data = self.data
        if self.draws:
            chosen_KDN = self._drawn(dates_KD).to(data.device)
            return DateTable.of(dates_KD.flatten(), chosen_KDN.flatten(0, 1), self.places)
        at = self.train_R.to(data.device)
        chosen_RN = data.mask_TN[at]
        if not self.uses_peers:
            chosen_RN = chosen_RN & data.target_TN[at].isfinite()
        return DateTable.of(at, chosen_RN, self.places)

    def _drawn(self, dates_KD: Tensor) -> Tensor:
        """Bool [K, D, N] on the host: the firms of each seed, drawn as a seed alone draws them."""
        data, chosen_KDN = self.data, self.data.known_TN[dates_KD]
        for k, generator in enumerate(self.generators):
            for batch_B in torch.arange(dates_KD.shape[1]).split(self.config.batch_dates):
                for part_B in batch_B.split(self.draw_at_once):
                    listed_N = data.listed_TN[dates_KD[k, part_B]].any(dim=0)
                    drawn = draw_firms(chosen_KDN[k, part_B], listed_N, self.config.firms_per_date, generator)
                    chosen_KDN[k, part_B] = drawn
        return chosen_KDN


def coefficients(forecast_BN: Tensor, target_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Rank IC and IC of every date, float64 [2, B], by the definitions of `features.information_coefficient`.

    Cells outside of ``known`` do not enter. A forecast that is not finite counts as unknown.
    """
    known_BN = known_BN & forecast_BN.isfinite()
    target_BN = target_BN.expand_as(known_BN)
    forecast_rank_BN, target_rank_BN = (_average_ranks(x_BN, known_BN) for x_BN in (forecast_BN, target_BN))
    rank_ic_B = _correlation(forecast_rank_BN, target_rank_BN, known_BN)
    return torch.stack((rank_ic_B, _correlation(forecast_BN, target_BN, known_BN)))


def _average_ranks(x_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Ranks of the known values within each date, from 1; ties share their mean rank."""
    x_BN = x_BN.masked_fill(~known_BN, math.inf).contiguous()
    sorted_BN = x_BN.sort(dim=-1).values
    below_BN = torch.searchsorted(sorted_BN, x_BN)
    up_to_BN = torch.searchsorted(sorted_BN, x_BN, right=True)
    return 0.5 * (below_BN + up_to_BN + 1).double()


def _correlation(x_BN: Tensor, y_BN: Tensor, known_BN: Tensor) -> Tensor:
    """Pearson correlation within each date; 0 where x is constant, NaN where y is or few are known."""
    count_B = known_BN.sum(dim=-1)

    def centred(x_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Deviations from the date's mean, and their sum of squares, exactly 0 where all values are equal."""
        x_BN = x_BN.double().masked_fill(~known_BN, 0.0)
        mean_B1 = (x_BN.sum(dim=-1) / count_B.clamp(min=1))[..., None]
        deviation_BN = (x_BN - mean_B1).masked_fill(~known_BN, 0.0)
        high_B = x_BN.masked_fill(~known_BN, -math.inf).amax(dim=-1)
        varies_B = high_B > x_BN.masked_fill(~known_BN, math.inf).amin(dim=-1)
        return deviation_BN, torch.where(varies_B, deviation_BN.square().sum(dim=-1), 0.0)

    (x_BN, x_B), (y_BN, y_B) = centred(x_BN), centred(y_BN)
    size_B = x_B.sqrt() * y_B.sqrt()
    out_B = torch.where(size_B > 0, (x_BN * y_BN).sum(dim=-1) / size_B, 0.0).clamp(-1.0, 1.0)
    return torch.where((count_B >= MIN_FIRMS) & (y_B > 0), out_B, math.nan)
