"""Settings of a book of every kind, for tests of configured books."""

from __future__ import annotations

from typing import Any

EVERY_BOOK: dict[str, dict[str, Any]] = {
    "quantile": {
        "kind": "quantile_long_short",
        "quantiles": 4,
        "neutral": ["sector", "beta"],
        "overlap": True,
        "inverse_volatility": True,
        "target_volatility": 0.1,
    },
    "top": {"kind": "top_k_long_only", "k": 4, "rebalance_on": "month_start"},
    "drop": {"kind": "top_k_drop", "k": 5, "n_drop": 1, "rebalance_every": 2},
    "rank": {"kind": "rank_weighted", "neutral": ["beta"], "rebalance_on": "friday"},
    "weights": {"kind": "forecast_weights", "gross": 1.5},
    "best": {
        "kind": "optimised",
        "limits": {"max_position": 0.3, "max_sector_net": 0.2, "max_turnover": 0.3},
    },
}
