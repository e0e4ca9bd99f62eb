"""Search spaces of the models: for each setting, a range around its default or a few choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high`` inclusive, sampled uniformly, or log-uniformly with ``log``."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    values: tuple[Value, ...]


Space = dict[str, Range | Choice]
"""Setting -> range or choices; a name such as ``fit.lr`` is a setting of the section ``fit``."""

_FIT: Space = {
    "fit.lr": Range(3e-4, 1e-2, log=True),
    "fit.weight_decay": Range(1e-4, 1.0, log=True),
}
_DROPOUT = Range(0.0, 0.4)

SPACES: dict[str, Space] = {
    "lightgbm": {
        "learning_rate": Range(0.01, 0.1, log=True),
        "num_leaves": Range(7, 127, log=True, integer=True),
        "min_data_in_leaf": Range(100, 5000, log=True, integer=True),
        "feature_fraction": Range(0.3, 1.0),
        "lambda_l2": Range(0.1, 100.0, log=True),
    },
    "temporal_transformer": {
        **_FIT,
        "encoder.dropout": _DROPOUT,
        "encoder.width": Choice((16, 32, 64)),
        "encoder.layers": Range(1, 3, integer=True),
        "encoder.positions": Choice(("learned", "rotary", "relative")),
        "encoder.pooling": Choice(("last", "mean", "attention")),
    },
    "self_peer": {
        **_FIT,
        "dropout": _DROPOUT,
        "width": Choice((32, 64, 128)),
        "layers": Range(1, 3, integer=True),
    },
    "temporal_peer": {
        **_FIT,
        "encoder.dropout": _DROPOUT,
        "encoder.width": Choice((16, 32)),
        "encoder.layers": Range(1, 2, integer=True),
        "peer_dropout": _DROPOUT,
        "peer_width": Choice((16, 32, 64)),
        "recent_days": Range(1, 5, integer=True),
        "leader_slope": Choice((1.0, 4.0)),
        "leader_ranks": Choice(("size", "all")),
        "firm_slots": Choice((0, 4096)),
    },
}


def space_of(model: str) -> Space:
    """Look up the search space of a registered model; ValueError if it has none."""
    if model not in SPACES:
        raise ValueError(f"{model} has no search space; choose one of {', '.join(SPACES)}.")
    return SPACES[model]


def nest(flat: dict[str, Value]) -> dict[str, Any]:
    """Turn ``fit.lr`` into ``{fit: {lr: ...}}``, as in a config."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            out.setdefault(section, {})[key] = value
        else:
            out[name] = value
    return out
