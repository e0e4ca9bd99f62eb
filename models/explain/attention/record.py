"""The attention weights of one date, layer by layer and head by head, and their gradients.

Legend: N firms of a date, L layers, H heads, Q queries, K keys, W window length, E explained forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from models.attention.probe import Site, probing
from models.batch import Batch
from models.forecaster import Forecaster


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRecord:
    """Weights that a model used for the forecasts of one date.

    Attributes
    ----------
    days
        One tensor [N, H, Q, K] per layer of the day encoder; empty without one. Keys are the days of the
        window, oldest first, and last the [CLS] token if there is one. Where only the last state is pooled,
        the last layer has a single query.
    pooling_NK
        Weights of the states in the pooled embedding; None if the last state is taken.
    memory
        One tensor [N, H, Q, K] per layer of a decoder over the days; its last query is the label's horizon.
    peers
        One tensor [H, N, N] per peer layer, as [target, source] over the firms of the date; the weight of
        the null key is left out, so rows sum to at most 1.
    one_way
        Whether the sources of every peer layer are the first tokens, so that layers are not stacked.
    window
        W.
    """

    days: tuple[Tensor, ...]
    pooling_NK: Tensor | None
    memory: tuple[Tensor, ...]
    peers: tuple[Tensor, ...]
    one_way: bool
    window: int

    @property
    def looks_at_days(self) -> bool:
        """Whether the model attends over days."""
        return bool(self.days)

    @property
    def looks_at_peers(self) -> bool:
        """Whether the model attends over firms."""
        return bool(self.peers)


def record_attention(module: Forecaster, batch: Batch) -> AttentionRecord:
    """Compute the forecasts of one date and keep all attention weights.

    Raises
    ------
    ValueError
        If the batch holds more than one date.
    """
    with torch.inference_mode():
        _, weights = _forecast(module, batch)
        return _arranged(module, batch, weights)


def record_gradients(module: Forecaster, batch: Batch, target: int) -> AttentionRecord:
    """Multiply every weight by the derivative of one firm's forecast with respect to it.

    Parameters
    ----------
    module
        The model, in eval mode.
    batch
        One date.
    target
        Position of the firm in the batch.

    Returns
    -------
    AttentionRecord
        ``A * dy/dA`` in the place of the weights ``A``; in the unit of the forecast. A weight that the
        forecast does not depend on has 0.
    """
    with torch.enable_grad():
        y_N, weights = _forecast(module, batch)
        tensors = [weight for _, weight in weights]
        if not tensors or not y_N.requires_grad:
            return _arranged(module, batch, [(site, torch.zeros_like(weight)) for site, weight in weights])
        slopes = torch.autograd.grad(y_N[target], tensors, allow_unused=True)
    products = [
        (site, torch.zeros_like(weight) if slope is None else (weight * slope).detach())
        for (site, weight), slope in zip(weights, slopes, strict=True)
    ]
    return _arranged(module, batch, products)


def _forecast(module: Forecaster, batch: Batch) -> tuple[Tensor, list[tuple[Site, Tensor]]]:
    if len(batch.m_BN) != 1:
        raise ValueError(f"The batch holds {len(batch.m_BN)} dates; attention is recorded date by date.")
    seen: dict[str, tuple[Site, Tensor]] = {}

    def keep(site: Site, weights: Tensor, _: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() and not weights.requires_grad:
            weights = weights.detach().requires_grad_()
        seen.pop(site.name, None)  # a decoder calls its layers once per horizon; the label's is the last
        seen[site.name] = (site, weights)
        return weights

    with probing(module, keep):
        y_N = module(batch)[0]
    return y_N, list(seen.values())


def _arranged(module: Forecaster, batch: Batch, weights: list[tuple[Site, Tensor]]) -> AttentionRecord:
    pooling = [weight[:, 0, 0] for site, weight in weights if site.over == "pooling"]
    position_BM = module.peer_positions(batch)
    peers = []
    for site, weight in weights:
        if site.over == "peers":
            weight_HNK = weight[0, ..., :-1] if site.null_key else weight[0]
            peers.append(_every_firm(weight_HNK, position_BM))
    return AttentionRecord(
        days=tuple(weight for site, weight in weights if site.over == "days"),
        pooling_NK=pooling[0] if pooling else None,
        memory=tuple(weight for site, weight in weights if site.over == "memory"),
        peers=tuple(peers),
        one_way=position_BM is not None,
        window=batch.x_BNWC.shape[2],
    )


def _every_firm(weight_HNM: Tensor, position_BM: Tensor | None) -> Tensor:
    """Spread the weights of reference firms over all firms of the date."""
    if position_BM is None:
        return weight_HNM
    every_HNN = F.pad(torch.zeros_like(weight_HNM[..., :1]), (0, weight_HNM.shape[1] - 1))
    return every_HNN.scatter(-1, position_BM[0].expand_as(weight_HNM), weight_HNM)
