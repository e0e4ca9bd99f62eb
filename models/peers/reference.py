"""The reference universe: the firms that others look up, chosen by size, by group, or by name.

Legend: B dates, N firms, M most reference firms on a date, F characteristics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from models.batch import Batch, PanelTensors, firm_key
from models.spec import IncompatibleConfig, Shape, column_of, require_at_least, require_choice

SIZES: tuple[str, ...] = ("log_market_equity", "log_dollar_volume_21")
"""Characteristics that say how large a firm is, the best known first."""


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Which firms are looked up on a date, decided with what is known at its close.

    Attributes
    ----------
    by
        ``size``: the largest of the universe; ``group``: the largest of each group, and none of the firms
        whose group is unknown; ``list``: the firms that are named.
    count
        How many, in all or of each group; firms as large as the last one are in as well.
    characteristic
        Name or column of what large means; the first known one of :data:`SIZES` by default.
    tickers
        The firms, for ``list``; one that is not in the universe at a date is not looked up at it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # read where a file's settings are

    by: Literal["size", "group", "list"] = "size"
    count: int = 100
    characteristic: str | int | None = None
    tickers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_choice("reference.by", self.by, ("size", "group", "list"))
        require_at_least(1, **{"reference.count": self.count})
        if (self.by == "list") != bool(self.tickers):
            raise ValueError(
                f"reference.by is {self.by!r} with {len(self.tickers)} reference.tickers: "
                "a list needs tickers, and nothing else takes them."
            )


class Reference:
    """Chooses the reference firms of a batch."""

    def __init__(self, config: ReferenceConfig, shape: Shape, model: str) -> None:
        self.config = config
        self.model = model
        self.keys = [firm_key(ticker) for ticker in config.tickers]
        self.size = None if config.by == "list" else _size_column(config, shape, model)

    def require(self, data: PanelTensors) -> None:
        """Refuse a panel that lacks a firm of the list."""
        there = set(data.key_N.tolist())
        missing = [t for t, key in zip(self.config.tickers, self.keys, strict=True) if key not in there]
        if missing:
            raise IncompatibleConfig(
                f"{self.model}'s reference.tickers names {missing[0]!r}, which the panel does not have"
                f"{f' (nor {len(missing) - 1} others)' if len(missing) > 1 else ''}: "
                "correct the ticker, ingest it, or take it out."
            )

    def choose(self, batch: Batch) -> Tensor:
        """Bool [B, N]: the firms of the universe that are looked up."""
        if self.config.by == "list":
            assert batch.key_BN is not None, "a panel's batch has keys"
            keys = torch.tensor(self.keys, dtype=torch.int64, device=batch.m_BN.device)
            return batch.m_BN & torch.isin(batch.key_BN, keys)
        within_BN = batch.s_BN if self.config.by == "group" else torch.zeros_like(batch.s_BN)
        within_BN = torch.where(batch.m_BN, within_BN, -1)  # the absent are ranked among themselves
        assert self.size is not None, "only a list is chosen without a size"
        chosen_BN = larger_firms(batch.z_BNF[..., self.size], within_BN) < self.config.count
        if self.config.by == "group":
            chosen_BN = chosen_BN & (batch.s_BN > 0)
        return batch.m_BN & chosen_BN


def size_column(shape: Shape) -> int | None:
    """Column of the first known one of :data:`SIZES`; None where the characteristics have neither."""
    known = [name for name in SIZES if name in shape.characteristic_names]
    return shape.characteristic_names.index(known[0]) if known else None


def has_size_rank(size: int | None, shape: Shape) -> bool:
    """Whether firms have a standing: where a size is known and there are groups."""
    return size is not None and shape.n_groups > 1


def standing(batch: Batch, size: int | None) -> Tensor | None:
    """``1 / (1 + firms of its group that are larger)`` as float [B, N]: 1 for the largest, then 1/2, 1/3.

    0 outside the universe and where the group is unknown; None without a size, the column of the
    characteristic that says what is large.  The large firms of an industry lead its small ones (Hou 2007,
    "Industry information diffusion and the lead-lag effect in stock returns").  A slope on size alone cannot
    say so: how large a leader is, and how far ahead of the second, differs from industry to industry.
    """
    if size is None:
        return None
    there_BN = batch.m_BN & (batch.s_BN > 0)
    larger_BN = larger_firms(batch.z_BNF[..., size], torch.where(there_BN, batch.s_BN, -1))
    return torch.where(there_BN, 1.0 / (1.0 + larger_BN), 0.0)


def larger_firms(size_BN: Tensor, group_BN: Tensor) -> Tensor:
    """How many firms of its group are strictly larger than each firm, as int64 [B, N]."""
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


def _size_column(config: ReferenceConfig, shape: Shape, model: str) -> int:
    if config.characteristic is not None:
        return column_of(config.characteristic, shape, model)
    known = size_column(shape)
    if known is None:
        raise IncompatibleConfig(
            f"{model} chooses its reference firms by size, and the data has neither {' nor '.join(SIZES)}: "
            "add one to the features, or set reference.characteristic."
        )
    return known
