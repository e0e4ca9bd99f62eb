"""Warm start: a model starts with the day encoder of an earlier fit."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import nn

from models.attention.encoder import day_encoder
from models.fitted import FittedState
from models.registry import model_entry
from models.spec import IncompatibleConfig, parse_config

FREE_TO_DIFFER = ("dropout", "causal", "pooling")
"""Encoder options that may differ, as long as all tensors have the same shapes."""


def start_from(module: nn.Module, window: int, state: FittedState) -> None:
    """Copy the day encoder of an earlier fit into a model; all other weights keep their initial values.

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
        When the model or the earlier fit has no day encoder, or their windows, encoder options or tensor
        shapes differ.
    """
    encoder, name = day_encoder(module), str(state.config["name"])
    entry = model_entry(name)
    if encoder is None or not entry.has_day_encoder:
        raise IncompatibleConfig(
            f"init_from copies the day encoder of {name}, but both models need one: remove init_from."
        )
    theirs = asdict(parse_config(entry.config, state.config["config"], name).encoder)
    theirs["window"] = state.config["shape"]["window"]
    for option, ours in {**asdict(encoder.config), "window": window}.items():
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
