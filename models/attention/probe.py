"""Probes of attention weights: read or replace the weights of a model while it computes a forecast.

Legend: B sequences or dates, H heads, Q queries, K keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

Over = Literal["days", "memory", "pooling", "peers", "steps"]


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a model where attention weights are used."""

    name: str  # name of the part in the model, as in ``named_modules``
    # what the keys are: ``days`` (in a layer of the day encoder), ``memory`` (days, queried by a decoder),
    # ``pooling`` (days, in the pooled embedding), ``peers`` (firms, in the last column the null key if there
    # is one) or ``steps`` (horizons of a decoder)
    over: Over
    null_key: bool  # whether the last key is a null key, which stands for no firm


Weigh = Callable[[Tensor, Tensor | None], Tensor]
"""Maps weights [B, H, Q, K] and the mask of the keys (False: masked; None: no mask) to the weights to use."""

Probe = Callable[[Site, Tensor, Tensor | None], Tensor]
"""A :data:`Weigh` that is told where it is called."""


class Probed(nn.Module):
    """A part of a model that uses attention weights, and passes them through a probe if one is installed.

    With a probe, a part takes the explicit path, which computes the weights, and does not drop weights in
    training. Without one, nothing changes.
    """

    over: Over = "days"
    null_key: bool = False
    probe: Weigh | None = None

    def weigh(self, weights_BHQK: Tensor, keep: Tensor | None) -> Tensor:
        """Pass weights through the installed probe."""
        return weights_BHQK if self.probe is None else self.probe(weights_BHQK, keep)


@contextmanager
def probing(module: nn.Module, probe: Probe) -> Iterator[None]:
    """Install a probe in every part of a model that uses attention weights, and remove it afterwards.

    Every forward pass inside the context calls the probe once per layer, in the order of the computation, and
    continues with the weights that it returns. Probes are not nested: the innermost is used.
    """
    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, Probed)]
    before = [part.probe for _, part in parts]
    for name, part in parts:
        part.probe = partial(probe, Site(name, part.over, part.null_key))
    try:
        yield
    finally:
        for (_, part), old in zip(parts, before, strict=True):
            part.probe = old


def uniform(site: Site, weights_BHQK: Tensor, keep: Tensor | None) -> Tensor:
    """Probe that gives all keys of a query the same weight; a null key keeps its own.

    The total weight of the other keys stays what it was, so that only the choice among them is lost. Steps of
    a decoder are left alone.
    """
    if site.over == "steps":
        return weights_BHQK
    may = _allowed(site, weights_BHQK, keep)
    total = (weights_BHQK * may).sum(dim=-1, keepdim=True)
    even = total / may.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(may, even, weights_BHQK)


def permuted(generator: torch.Generator) -> Probe:
    """Make a probe that permutes the weights of every query among its keys; a null key keeps its own.

    Every query, head and call draws its own permutation (Jain and Wallace 2019, "Attention is not
    explanation", section 4.1). Steps of a decoder are left alone.
    """

    def permute(site: Site, weights_BHQK: Tensor, keep: Tensor | None) -> Tensor:
        if site.over == "steps":
            return weights_BHQK
        may = _allowed(site, weights_BHQK, keep)
        draw = torch.rand(weights_BHQK.shape, generator=generator).to(weights_BHQK.device)
        # both orders list the allowed keys first; the others keep their places among themselves
        place = torch.arange(weights_BHQK.shape[-1], device=weights_BHQK.device)
        in_order = torch.where(may, place, place + weights_BHQK.shape[-1]).argsort(dim=-1)
        at_random = torch.where(may, draw, place + 1.0).argsort(dim=-1)
        return torch.zeros_like(weights_BHQK).scatter(-1, at_random, weights_BHQK.gather(-1, in_order))

    return permute


def _allowed(site: Site, weights_BHQK: Tensor, keep: Tensor | None) -> Tensor:
    """Bool [B, H, Q, K]: the keys that a query may attend to, without the null key."""
    may = torch.ones_like(weights_BHQK, dtype=torch.bool)
    if keep is not None:
        may = may & keep
    if site.null_key:
        may[..., -1] = False
    return may
