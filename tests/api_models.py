"""Models of the run that the tests of the public API share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODELS: Mapping[str, Any] = {
    "ridge": {},
    "lightgbm": {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2, "peer_width": 8},
}
