"""What a search may change about a model: ranges around its defaults, one place for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``log``: equally likely per factor, not per step."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    values: tuple[Value, ...]


Space = dict[str, Range | Choice]
"""Setting -> where to look; ``fit.lr`` is a setting of the fitting."""

_FITTING: Space = {
    "fit.lr": Range(3e-4, 1e-2, log=True),
    "fit.weight_decay": Range(1e-4, 1.0, log=True),
    "dropout": Range(0.0, 0.4),
}

SPACES: dict[str, Space] = {
    "lightgbm": {
        "learning_rate": Range(0.01, 0.1, log=True),
        "num_leaves": Range(7, 127, log=True, whole=True),
        "min_data_in_leaf": Range(100, 5000, log=True, whole=True),
        "feature_fraction": Range(0.3, 1.0),
        "lambda_l2": Range(0.1, 100.0, log=True),
    },
    "temporal_transformer": {
        **_FITTING,
        "width": Choice((16, 32, 64)),
        "layers": Range(1, 3, whole=True),
        "positions": Choice(("learned", "rotary", "relative")),
        "pooling": Choice(("last", "mean", "attention")),
    },
    "self_peer": {**_FITTING, "width": Choice((32, 64, 128)), "layers": Range(1, 3, whole=True)},
    "temporal_peer": {
        **_FITTING,
        "width": Choice((16, 32)),
        "peer_width": Choice((16, 32, 64)),
        "day_layers": Range(1, 2, whole=True),
        "recent_days": Range(1, 5, whole=True),
    },
}


def space_of(model: str) -> Space:
    """Look up what is searched; ValueError for a model with nothing to search."""
    if model not in SPACES:
        raise ValueError(f"{model} has nothing to search: choose one of {', '.join(SPACES)}.")
    return SPACES[model]


def nested(flat: dict[str, Value]) -> dict[str, Any]:
    """Turn ``fit.lr`` into ``{fit: {lr: ...}}``, as a config holds it."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            out.setdefault(section, {})[key] = value
        else:
            out[name] = value
    return out
