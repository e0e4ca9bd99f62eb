"""Importance of days and of peers by attention: last layer, rollout, flow, and weights times gradients.

Legend: N firms of a date, H heads, Q queries, K keys, W window length, L layers, E explained forecasts.

None of these is an explanation. A weight says how much of a value was read, not what the value did to the
forecast; `models.explain.faithful` measures the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from models.batch import Batch
from models.explain.attention.record import AttentionRecord, record_attention, record_gradients
from models.forecaster import Forecaster

MAX_FLOW_WINDOW = 32
"""Longest window for which flow is computed: it solves one flow problem per firm and day."""

_CAPACITY = 1_000_000  # flows are computed with whole numbers


def rollout_of_days(record: AttentionRecord) -> FloatArray:
    """Attention rollout over the day encoder, [N, W]; rows sum to 1.

    ``A~_l = (A_l + I) / 2``, averaged over heads, where ``I`` stands for the residual connection. The weights
    of the days are the row of the pooled state in ``A~_L ... A~_1``. Abnar and Zuidema (2020), "Quantifying
    attention flow in transformers".
    """
    row_NK, layers = _output_row(record)
    for layer_NQK in reversed(layers):
        row_NK = _back(row_NK, layer_NQK)
    return _days_alone(row_NK, record.window)


def flow_of_days(record: AttentionRecord) -> FloatArray:
    """Attention flow over the day encoder, [N, W]: the largest flow from the pooled state to each day.

    The states of every layer are nodes, and ``A~_l`` (see :func:`rollout_of_days`) are the capacities of the
    edges from a layer to the layer below. Rows are scaled to sum to 1. Abnar and Zuidema (2020).

    Raises
    ------
    ValueError
        If the window is longer than :data:`MAX_FLOW_WINDOW`.
    """
    if record.window > MAX_FLOW_WINDOW:
        raise ValueError(
            f"The window has {record.window} days; flow is computed for at most {MAX_FLOW_WINDOW}. "
            "Use rollout."
        )
    start_NK, layers = _output_row(record)
    flow_NK = np.stack(
        [
            _max_flows(
                start_NK[n].double().cpu().numpy(),
                [_square(layer_NQK[n].double().cpu().numpy()) for layer_NQK in reversed(layers)],
            )
            for n in range(len(start_NK))
        ]
    )
    return _days_alone(torch.from_numpy(flow_NK), record.window)


def gradient_of_days(record: AttentionRecord, target: int) -> FloatArray:
    """Importance [W] of a firm's days from the products ``G_l = A_l * dy/dA_l`` of :func:`record_gradients`.

    One layer: ``|sum_h G|`` of the pooled state's query. Several layers: the row of the output in ``(I +
    |G_L|) ... (I + |G_1|) - I``, averaged over heads, after Chefer, Gur and Wolf (2021), "Generic
    attention-model explainability". They keep positive products only, because they explain the score of one
    class; a return has no class, so the size is kept.
    """
    layers = [layer[target].mean(dim=0).abs() for layer in record.days]
    if record.memory:
        row_K = torch.stack([layer[target].mean(dim=0)[-1] for layer in record.memory]).mean(dim=0).abs()
    elif record.pooling_NK is not None:
        row_K = record.pooling_NK[target].abs()
    else:
        row_K = torch.zeros_like(layers[-1][-1])
        row_K[-1] = 1.0
    through_K = row_K.clone()
    for layer_QK in reversed(layers):
        reached_K = through_K[-layer_QK.shape[0] :] @ layer_QK
        through_K = through_K + reached_K
    reached_K = through_K if record.memory or record.pooling_NK is not None else through_K - row_K
    return reached_K[: record.window].double().cpu().numpy()


def attention_to_peers(record: AttentionRecord) -> FloatArray:
    """Attention to firms [N, N] as [target, source], averaged over layers and heads."""
    return torch.stack(record.peers).double().mean(dim=(0, 1)).cpu().numpy()


def rollout_of_peers(record: AttentionRecord) -> FloatArray:
    """Attention rollout over the peer layers, [N, N] as [target, source]; the diagonal is the own part.

    As :func:`rollout_of_days`. The weight of the null key is left out before rows are scaled to sum to 1. In
    a model whose sources are the first tokens in every layer, only the target's own state is passed on.
    """
    own_NN = torch.eye(record.peers[0].shape[-1], dtype=torch.float64, device=record.peers[0].device)
    total_NN = own_NN
    for layer_HNN in record.peers:
        mean_NN = layer_HNN.double().mean(dim=0)
        mean_NN = mean_NN / mean_NN.sum(dim=1, keepdim=True).clamp(min=1e-12)
        total_NN = 0.5 * (mean_NN if record.one_way else mean_NN @ total_NN) + 0.5 * total_NN
    return total_NN.cpu().numpy()


def gradient_of_peers(record: AttentionRecord, target: int) -> FloatArray:
    """Importance [N] of the sources of one target from the products of :func:`record_gradients`."""
    own_NN = torch.eye(record.peers[0].shape[-1], dtype=torch.float64, device=record.peers[0].device)
    total_NN = own_NN
    for layer_HNN in record.peers:
        size_NN = layer_HNN.double().mean(dim=0).abs()
        total_NN = total_NN + size_NN @ (own_NN if record.one_way else total_NN)
    return (total_NN - own_NN)[target].cpu().numpy()


def day_importance(
    module: Forecaster, batch: Batch, targets_E: IntArray, *, flow: bool = False
) -> dict[str, FloatArray]:
    """Compute the importance [E, W] of days by attention, rollout, gradient and, if asked, flow.

    Empty for a model without attention over days. A model whose attention is computed outside
    :class:`models.attention.probe.Probed` parts has ``attention`` alone.
    """
    with torch.inference_mode():
        days_BNW = module.attention(batch).days_BNW
    if days_BNW is None:
        return {}
    found = {"attention": days_BNW[0].double().cpu().numpy()[targets_E]}
    record = record_attention(module, batch)
    if record.looks_at_days:
        found["rollout"] = rollout_of_days(record)[targets_E]
        if flow:
            found["flow"] = flow_of_days(record)[targets_E]
        found["gradient"] = np.stack(
            [gradient_of_days(record_gradients(module, batch, int(e)), int(e)) for e in targets_E]
        )
    return found


def peer_importance(module: Forecaster, batch: Batch, targets_E: IntArray) -> dict[str, FloatArray]:
    """Compute the importance [E, N] of peers by attention, rollout and gradient; 0 for the firm itself.

    Empty for a model without attention over firms.
    """
    with torch.inference_mode():
        peers_BLHNN = module.attention(batch).peers_BLHNN
    if peers_BLHNN is None:
        return {}
    found = {"attention": peers_BLHNN[0].double().mean(dim=(0, 1)).cpu().numpy()[targets_E]}
    record = record_attention(module, batch)
    if record.looks_at_peers:
        found["rollout"] = rollout_of_peers(record)[targets_E]
        found["gradient"] = np.stack(
            [gradient_of_peers(record_gradients(module, batch, int(e)), int(e)) for e in targets_E]
        )
    for importance_EN in found.values():
        importance_EN[np.arange(len(targets_E)), targets_E] = 0.0
    return found


def _output_row(record: AttentionRecord) -> tuple[Tensor, Sequence[Tensor]]:
    """Weights [N, K] of the last states in the output, and the layers' weights averaged over heads."""
    layers = [layer_NHQK.double().mean(dim=1) for layer_NHQK in record.days]
    if record.memory:
        row_NK = torch.stack([layer.double().mean(dim=1)[:, -1] for layer in record.memory]).mean(dim=0)
    elif record.pooling_NK is not None:
        row_NK = record.pooling_NK.double()
    else:
        row_NK = torch.zeros_like(layers[-1][:, -1])
        row_NK[:, -1] = 1.0
    return row_NK, layers


def _back(row_NK: Tensor, layer_NQK: Tensor) -> Tensor:
    """Pass the weights of a layer's outputs on to its inputs; a single query is the last position."""
    return 0.5 * row_NK + 0.5 * (row_NK[:, None, -layer_NQK.shape[1] :] @ layer_NQK)[:, 0]


def _days_alone(row_NK: Tensor, window: int) -> FloatArray:
    """Leave out the [CLS] token, and scale the days to sum to 1."""
    days_NW = row_NK[:, :window].double()
    return (days_NW / days_NW.sum(dim=1, keepdim=True).clamp(min=1e-12)).cpu().numpy()


def _square(layer_QK: FloatArray) -> FloatArray:
    """``(A + I) / 2`` with a row for every position; a position without a query passes on itself alone."""
    full_KK = np.eye(layer_QK.shape[1])
    full_KK[-len(layer_QK) :] = 0.5 * layer_QK + 0.5 * full_KK[-len(layer_QK) :]
    return full_KK


def _max_flows(start_K: FloatArray, layers: Sequence[FloatArray]) -> FloatArray:
    """Largest flow from the output to each input; ``layers`` from the last to the first, [K, K]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    size = len(start_K)
    nodes = 1 + size * (len(layers) + 1)
    capacity = np.zeros((nodes, nodes), dtype=np.int32)
    capacity[0, 1 : 1 + size] = np.round(_CAPACITY * start_K)
    for depth, layer_KK in enumerate(layers):
        at = 1 + depth * size
        capacity[at : at + size, at + size : at + 2 * size] = np.round(_CAPACITY * layer_KK)
    graph = csr_array(capacity)
    inputs = range(nodes - size, nodes)
    return np.array([maximum_flow(graph, 0, sink).flow_value for sink in inputs]) / _CAPACITY
