"""The reference universe: the firms that others attend to, chosen by size, by group, or by name.

Legend: B dates, N firms, M largest number of reference firms on a date, F characteristics.
"""

from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from features.options import Options
from models.batch import Batch, PanelTensors
from models.spec import Count, IncompatibleConfig, Shape, column_of, firm_key

SIZES: tuple[str, ...] = ("log_market_equity", "log_dollar_volume_21")
"""Characteristics that measure the size of a firm, in order of preference."""


class ReferenceConfig(Options):
    """Which firms are the reference universe of a date, chosen with data known at its close."""

    by: Literal["size", "group", "list"] = "size"
    """``size``: the largest firms of the universe; ``group``: the largest firms of each group, without firms
    of unknown group; ``list``: the firms in ``tickers``."""
    count: Count = 100
    """Number of firms, in total or per group; firms tied with the last one are included."""
    characteristic: str | int | None = None
    """Name or column of the characteristic that measures size. Null: the first of
    `models.peers.reference.SIZES` that exists."""
    tickers: tuple[str, ...] = ()
    """The firms for ``list``; on dates when a firm is outside the universe, it is not used."""

    @model_validator(mode="after")
    def _check_tickers(self) -> Self:
        if (self.by == "list") != bool(self.tickers):
            raise ValueError(
                f"reference.by is {self.by!r} with {len(self.tickers)} reference.tickers; "
                "list needs tickers, and size and group do not allow them."
            )
        return self


class Reference:
    """Selects the reference firms of a batch."""

    def __init__(self, config: ReferenceConfig, shape: Shape, model: str) -> None:
        self.config = config
        self.model = model
        self.keys = [firm_key(ticker) for ticker in config.tickers]
        self.size = None
        if config.by != "list":
            self.size = size_column(shape)
            if config.characteristic is not None:
                self.size = column_of(config.characteristic, shape, model)
            if self.size is None:
                raise IncompatibleConfig(
                    f"{model} chooses its reference firms by size, but the data has neither "
                    f"{' nor '.join(SIZES)}; add one to the features, or set reference.characteristic."
                )

    def require(self, data: PanelTensors) -> None:
        """Raise IncompatibleConfig if the panel lacks a firm of ``tickers``."""
        known = set(data.key_N.tolist())
        missing = [t for t, key in zip(self.config.tickers, self.keys, strict=True) if key not in known]
        if missing:
            raise IncompatibleConfig(
                f"{self.model} needs {missing[0]!r} of reference.tickers"
                f"{f' (and {len(missing) - 1} others)' if len(missing) > 1 else ''} "
                "but the panel does not have it; correct the ticker, ingest it, or remove it."
            )

    def choose(self, batch: Batch) -> Tensor:
        """Bool [B, N]: the reference firms, all of them in the universe."""
        if self.config.by == "list":
            assert batch.key_BN is not None, "batches of a panel have keys"
            keys = torch.tensor(self.keys, dtype=torch.int64, device=batch.m_BN.device)
            return batch.m_BN & torch.isin(batch.key_BN, keys)
        within_BN = batch.s_BN if self.config.by == "group" else torch.zeros_like(batch.s_BN)
        within_BN = torch.where(batch.m_BN, within_BN, -1)  # absent firms are ranked separately
        assert self.size is not None, "only by=list needs no size"
        chosen_BN = count_larger_firms(batch.z_BNF[..., self.size], within_BN) < self.config.count
        if self.config.by == "group":
            chosen_BN = chosen_BN & (batch.s_BN > 0)
        return batch.m_BN & chosen_BN


def size_column(shape: Shape) -> int | None:
    """Column of the first of :data:`SIZES` among the characteristics; None if there is none."""
    known = [name for name in SIZES if name in shape.characteristic_names]
    return shape.characteristic_names.index(known[0]) if known else None


def has_size_rank(size: int | None, shape: Shape) -> bool:
    """Whether firms have an inverse size rank, which needs a size and groups."""
    return size is not None and shape.n_groups > 1


def inverse_size_rank(batch: Batch, size: int | None) -> Tensor | None:
    """``1 / (1 + number of larger firms in the group)``, float [B, N]: 1 for the largest, then 1/2, 1/3.

    0 outside the universe and for firms of unknown group. None if ``size``, the column of the characteristic
    that measures size, is None. The large firms of an industry lead its small firms (Hou 2007, "Industry
    information diffusion and the lead-lag effect in stock returns"). A slope on size cannot express this,
    because the size of the leader and its distance from the second firm differ between industries.
    """
    return None if size is None else _inverse_ranks(batch.z_BNF[..., size : size + 1], batch)[..., 0]


def inverse_ranks(batch: Batch) -> Tensor:
    """Inverse rank within the group by every characteristic, from above and from below, float [B, N, 2F].

    ``1 / (1 + number of firms of the group with a larger value)`` for the characteristics, then for the same
    with reversed sign. 0 outside the universe and for firms of unknown group. An unknown characteristic has
    the value 0, the middle of the cross-section.
    """
    return _inverse_ranks(torch.cat((batch.z_BNF, -batch.z_BNF), dim=-1), batch)


def _inverse_ranks(value_BNY: Tensor, batch: Batch) -> Tensor:
    """Inverse rank within the group by each of some values."""
    ranked_BN = batch.m_BN & (batch.s_BN > 0)
    group_BN = torch.where(ranked_BN, batch.s_BN, -1)
    ranks = value_BNY.shape[-1]
    larger_RN = count_larger_firms(
        value_BNY.transpose(1, 2).flatten(0, 1), group_BN.repeat_interleave(ranks, dim=0)
    )
    inverse_BNY = 1.0 / (1.0 + larger_RN.unflatten(0, (-1, ranks)).transpose(1, 2))
    return torch.where(ranked_BN[..., None], inverse_BNY, 0.0)


def firm_slot(batch: Batch, slots: int) -> Tensor | None:
    """Slot of each firm's own bias, int64 [B, N]: its key modulo ``slots``; None without slots.

    The key is a hash of the firm's name, so a firm keeps its slot in other panels and on other machines.
    Firms that share a slot by chance share the bias; with n firms, a given firm is alone with a probability
    of about ``exp(-n / slots)``.
    """
    if not slots:
        return None
    assert batch.key_BN is not None, "batches of a panel have keys"
    return torch.remainder(batch.key_BN, slots)


def count_larger_firms(size_BN: Tensor, group_BN: Tensor) -> Tensor:
    """Number of strictly larger firms in the group of each firm, int64 [B, N]."""
    by_size_BN = size_BN.argsort(dim=1, descending=True, stable=True)
    by_group_BN = group_BN.gather(1, by_size_BN).argsort(dim=1, stable=True)
    order_BN = by_size_BN.gather(1, by_group_BN)  # by group, the largest first
    group_BN, size_BN = group_BN.gather(1, order_BN), size_BN.gather(1, order_BN)
    place_BN = torch.arange(size_BN.shape[1], device=size_BN.device).expand_as(size_BN)
    new_group_BN = torch.ones_like(group_BN, dtype=torch.bool)
    new_group_BN[:, 1:] = group_BN[:, 1:] != group_BN[:, :-1]
    new_size_BN = new_group_BN.clone()
    new_size_BN[:, 1:] |= size_BN[:, 1:] != size_BN[:, :-1]
    first_BN = torch.where(new_group_BN, place_BN, 0).cummax(dim=1).values
    equal_BN = torch.where(new_size_BN, place_BN, 0).cummax(dim=1).values
    return torch.empty_like(place_BN).scatter(1, order_BN, equal_BN - first_BN)
