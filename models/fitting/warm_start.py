"""Starting a model with the day encoder of an earlier fit of it."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import nn

from models.attention.encoder import day_encoder
from models.fitted import FittedState
from models.registry import model_entry
from models.spec import IncompatibleConfig, parse_config

FREE_TO_DIFFER = ("dropout", "causal", "pooling")
"""Encoder options that may differ where no tensor's shape does."""


def start_from(module: nn.Module, window: int, state: FittedState) -> None:
    """Give a model the day encoder of an earlier fit; everything else stays as it was drawn.

    Parameters
    ----------
    module
        The model, changed in place.
    window
        W, sessions of its windows.
    state
        The earlier fit.

    Raises
    ------
    IncompatibleConfig
        When one of them has no day encoder, or the earlier one has another window, other options or
        tensors of another shape.
    """
    encoder, name = day_encoder(module), str(state.config["name"])
    entry = model_entry(name)
    if encoder is None or not entry.has_day_encoder:
        raise IncompatibleConfig(
            f"init_from gives {name}'s day encoder, but both need one: take init_from out."
        )
    theirs = asdict(parse_config(entry.config, state.config["config"], name).encoder())
    theirs["window"] = state.config["shape"]["window"]
    for option, ours in {**asdict(encoder.config), "window": window}.items():
        if option not in FREE_TO_DIFFER and theirs[option] != ours:
            raise IncompatibleConfig(
                f"init_from's day encoder has {option} {theirs[option]!r} and this one's is {ours!r}: "
                "set both alike, or take init_from out."
            )
    prefix = next(name for name, part in module.named_modules() if part is encoder) + "."
    given = {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in state.tensors.items()
        if name.startswith(prefix)
    }
    wanted = encoder.state_dict()
    for name in sorted(set(wanted) | set(given)):
        left, right = (tuple(part[name].shape) if name in part else None for part in (given, wanted))
        if left != right:
            raise IncompatibleConfig(
                f"init_from's day encoder has {name} of shape {left} and this one's is {right}: "
                "give both the same channels and pooling, or take init_from out."
            )
    encoder.load_state_dict(given)
