"""Charts of runs, backtests and peer networks as plotly figures, for notebooks and exported pages.

Every function returns a ``plotly.graph_objects.Figure``, which can be changed further. Menus in a figure are
plotly's own and need no Python process, so they also work in a notebook that was exported to HTML. Names from
data are escaped, because plotly reads texts as HTML.
"""

from peerglass.charts.network import (
    attention_and_weights,
    contributions,
    peer_changes,
    peer_history,
    peer_network,
    peers,
)
from peerglass.charts.results import (
    agreement,
    attention_and_values,
    cumulative_ic,
    day_weights,
    embed,
    ic_decay,
    net_asset_value,
    quantiles,
    recovery,
    removal,
    sharpe,
    skill,
)

__all__ = [
    "agreement",
    "attention_and_values",
    "attention_and_weights",
    "contributions",
    "cumulative_ic",
    "day_weights",
    "embed",
    "ic_decay",
    "net_asset_value",
    "peer_changes",
    "peer_history",
    "peer_network",
    "peers",
    "quantiles",
    "recovery",
    "removal",
    "sharpe",
    "skill",
]
