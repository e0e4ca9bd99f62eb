"""Players of a forecast: disjoint groups of its inputs.

Legend: B dates, N firms of a date, W window length, F characteristics, P players.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import AnyFloatArray, FloatArray, IntArray
from models.attention.encoder import day_encoder
from models.batch import Ablation, Batch
from models.ensemble import EnsembleFitted
from models.fitted import Fitted
from models.forecaster import Forecaster, lags_of
from models.peers.layer import PeerLayer
from models.spec import require_choice

Kind = Literal["days", "family", "peers", "sector", "firm", "market"]
PEER_KINDS = ("peers", "sector", "firm")  # kinds of players that are firms
ForecastDate = Callable[[Batch], AnyFloatArray]
Unwrapped = Forecaster | EnsembleFitted | ForecastDate
Explainable = Fitted | Forecaster | ForecastDate  # the last maps a one-date batch to N forecasts


@dataclass(frozen=True, slots=True)
class Player:
    """A player."""

    # ``days``: days of the windows; ``family``: characteristics; ``peers``: all firms as peers; ``sector``
    # and ``firm``: some firms as peers; ``market``: a market token of the model
    kind: Kind
    name: str  # name in tables and plots
    # days counted backwards (1 is the decision session), columns of characteristics, the group code of a
    # sector in a batch, the panel column of a firm, or the index of a token
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlayerConfig:
    """How the inputs of a model are divided into players."""

    # first day of each block of days, counted backwards from the decision session, which is day 1
    day_starts: tuple[int, ...] = (1, 2, 3, 6, 11)
    # ``all``: all peers are one player. ``sectors``: the firms of each group are one. ``firms``: every firm
    # is one if the date has at most ``max_firms`` firms, otherwise every group
    peers: Literal["all", "sectors", "firms"] = "all"
    max_firms: int = 100  # largest number of single firms
    # names of the groups by the panel's group code, and tickers by panel column; players without a name are
    # numbered
    groups: tuple[str, ...] = ()
    firms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_choice("peers", self.peers, ("all", "sectors", "firms"))


def day_blocks(window: int, starts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split a window into blocks of days, counted backwards from the decision session (day 1).

    ``day_blocks(8, (1, 2, 3, 6))`` gives days 1, 2, 3 to 5 and 6 to 8. Starts beyond the window are ignored.

    Raises ValueError if the starts do not begin with 1 or are not increasing.
    """
    if not starts or starts[0] != 1 or any(b <= a for a, b in pairwise(starts)):
        raise ValueError(f"day_starts is {tuple(starts)}; it must increase from 1, the decision session.")
    edges = [start for start in starts if start <= window] + [window + 1]
    return tuple(tuple(range(a, b)) for a, b in pairwise(edges))


def unwrap(model: Explainable) -> Unwrapped:
    """The neural module of a model, else its forecast function; ValueError in training mode (dropout)."""
    inner: Unwrapped
    if isinstance(model, Fitted) and not isinstance(model, EnsembleFitted):
        module = getattr(model, "module", None)
        inner = module if isinstance(module, Forecaster) else model.forecast_date
    else:
        inner = model
    if isinstance(inner, Forecaster) and inner.training:
        raise ValueError("The module is in training mode, so its dropout is random; call eval() first.")
    return inner


def repeat_batch(batch: Batch, times: int) -> Batch:
    """Repeat a one-date batch along the date axis, as views."""
    return each_tensor(batch, lambda tensor: tensor.expand(times, *tensor.shape[1:]))


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Change every tensor of a batch, but not the firms."""
    return Batch(
        x_BNWC=change(batch.x_BNWC),
        z_BNF=change(batch.z_BNF),
        m_BN=change(batch.m_BN),
        s_BN=change(batch.s_BN),
        y_BN=change(batch.y_BN),
        firms_N=batch.firms_N,
        key_BN=None if batch.key_BN is None else change(batch.key_BN),
    )


def find_players(
    model: Unwrapped, batch: Batch, families: Mapping[str, Sequence[int]], config: PlayerConfig | None = None
) -> tuple[Player, ...]:
    """List the players of a model: windows from the most recent day, families, peers, market tokens.

    A model has no players of inputs that it does not use, and an ensemble has those of all its members.
    Families with a single column each make every characteristic a player.

    Raises ValueError if there is no player.
    """
    config = PlayerConfig() if config is None else config
    if isinstance(model, EnsembleFitted):
        inner = map(unwrap, model.members.values())
        kept = [one for one in inner if families or isinstance(one, Forecaster) or _lags(one)]
        found = dict.fromkeys(player for one in kept for player in find_players(one, batch, families, config))
        if found:
            return tuple(sorted(found, key=lambda player: _ORDER.index(player.kind)))
    players: list[Player] = []
    if _reads_days(model, batch):
        for days in day_blocks(batch.x_BNWC.shape[2], config.day_starts):
            name = f"day {days[0]}" if len(days) == 1 else f"days {days[0]}-{days[-1]}"
            players.append(Player("days", name, days))
    players += [Player("family", name, tuple(columns)) for name, columns in families.items()]
    if isinstance(model, Forecaster) and model.uses_peers:
        players += _peers(batch, config)
        players += [Player("market", f"market token {g + 1}", (g,)) for g in range(_market_tokens(model))]
    if not players:
        raise ValueError("The model has neither days nor peers; give the families of its characteristics.")
    return tuple(players)


_ORDER = ("days", "family", *PEER_KINDS, "market")


def players_of(model: Unwrapped, batch: Batch, players: Sequence[Player]) -> IntArray:
    """Positions of the players whose inputs a model reads, among those of an ensemble that it is part of."""

    def reads(player: Player) -> bool:
        if player.kind == "days":
            return _reads_days(model, batch)
        if player.kind == "family" or not isinstance(model, Forecaster):
            return player.kind == "family"
        return player.members[0] < _market_tokens(model) if player.kind == "market" else model.uses_peers

    return np.array([p for p, player in enumerate(players) if reads(player)], dtype=np.int64)


def _market_tokens(model: Forecaster) -> int:
    layers = [part for part in model.modules() if isinstance(part, PeerLayer)]
    return max((part.market_tokens for part in layers), default=0)


def _peers(batch: Batch, config: PlayerConfig) -> list[Player]:
    if config.peers == "all":
        return [Player("peers", "peers")]
    if config.peers == "firms" and batch.firms_N.numel() <= config.max_firms:
        return [
            Player("firm", config.firms[firm] if config.firms else f"firm {firm}", (firm,))
            for firm in batch.firms_N.tolist()
        ]
    players = []
    for code in torch.unique(batch.s_BN[batch.m_BN]).tolist():  # a batch's codes are the panel's plus 1
        name = config.groups[code - 1] if config.groups else f"sector {code - 1}"
        players.append(Player("sector", name if code else "firms of unknown sector", (code,)))
    return players


def absent_days(model: Unwrapped) -> str:
    """What becomes of absent days in a model, in words; "masked" for a model without days."""
    if isinstance(model, EnsembleFitted):
        days = [
            one for one in map(unwrap, model.members.values()) if isinstance(one, Forecaster) or _lags(one)
        ]
        return ", or ".join(dict.fromkeys(map(absent_days, days))) or "masked"
    zero = "set to 0, the centre of each channel"
    if not isinstance(model, Forecaster):
        return zero if _lags(model) else "masked"
    if not model.zeroed_days:
        return "masked"
    return zero if day_encoder(model) is None else f"masked, and in the messages to peers {zero}"


def _reads_days(model: Unwrapped, batch: Batch) -> bool:
    if not isinstance(model, Forecaster):
        return _lags(model) > 0
    with torch.inference_mode():
        return model.uses_days or model.attention(batch).days_BNW is not None


def _lags(model: Unwrapped) -> int:
    """Number of days that a baseline reads, of which :func:`unwrap` returns the method; 0 for others."""
    return lags_of(getattr(getattr(model, "__self__", None), "options", None))


def check_families(families: Mapping[str, Sequence[int]], n_characteristics: int) -> None:
    """Raise ValueError unless every column belongs to exactly one family, or there are no families."""
    columns = sorted(column for of_family in families.values() for column in of_family)
    if families and columns != list(range(n_characteristics)):
        raise ValueError(
            f"The families have the columns {columns}; "
            f"each of the {n_characteristics} characteristics must belong to exactly one family."
        )


def forecast(
    model: Unwrapped, batch: Batch, ablation: Ablation | None, targets_E: IntArray | None = None
) -> FloatArray:
    """Forecasts [B, E] of some firms, or [B, N] of all; a plain function is called with a date at a time."""
    if isinstance(model, Forecaster):
        with torch.inference_mode():
            if targets_E is None:
                y_BE = model(batch, ablation)
            else:
                y_BE = model.forecast_targets(
                    batch, ablation, torch.as_tensor(targets_E, device=batch.m_BN.device)
                )
            return y_BE.double().cpu().numpy()  # type: ignore[no-any-return]
    if ablation is not None and ablation.days_keep_BW is not None:
        batch = replace(batch, x_BNWC=batch.x_BNWC * ablation.days_keep_BW[:, None, :, None])
    dates = (each_tensor(batch, operator.itemgetter(slice(b, b + 1))) for b in range(len(batch.m_BN)))
    rows = np.asarray([model(date) for date in dates], dtype=np.float64)
    return rows if targets_E is None else rows[:, targets_E]


def player_data(player: Player, batch: Batch) -> FloatArray:
    """[N]: mean of a family's characteristics or of the first channel, number of peers (of a sector), NaN."""
    n_firms, window = batch.x_BNWC.shape[1:3]
    if player.kind == "family":
        data_N = batch.z_BNF[0, :, list(player.members)].mean(dim=1)
    elif player.kind == "days":
        data_N = batch.x_BNWC[0, :, [window - day for day in player.members], 0].mean(dim=1)
    elif player.kind == "market":
        data_N = torch.full((n_firms,), torch.nan)
    else:
        member_N = batch.m_BN[0] & peer_members(player, batch)
        data_N = member_N.sum() - member_N.to(torch.int64)
    return data_N.double().cpu().numpy()


def peer_members(player: Player, batch: Batch) -> Tensor:
    """Bool [N]: the firms of a player of kind ``peers``, ``sector`` or ``firm``."""
    if player.kind == "peers":
        return torch.ones_like(batch.m_BN[0])
    return (
        batch.s_BN[0] == player.members[0] if player.kind == "sector" else batch.firms_N == player.members[0]
    )
