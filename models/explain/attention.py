"""What a model's attention looks at: weights, importance of days and peers, and traits of heads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from models.attention.probe import Site, probing
from models.batch import Batch, PanelTensors
from models.explain.design import mean_over_dates
from models.forecaster import Forecaster, spread_over_firms
from models.peers.reference import size_column


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRecord:
    """Weights that a model used for the forecasts of one date."""

    # one tensor [N, H, Q, K] per layer of the day encoder; empty without one. Keys are the days of the
    # window, oldest first, and last the [CLS] token if there is one. Where only the last state is pooled, the
    # last layer has a single query
    days: tuple[Tensor, ...]
    # weights of the states in the pooled embedding; None if the last state is taken
    pooling_NK: Tensor | None
    # one tensor [N, H, Q, K] per layer of a decoder over the days; its last query is the label's horizon
    memory: tuple[Tensor, ...]
    # one tensor [H, N, N] per peer layer, as [target, source] over the firms of the date; the weight of the
    # null key is left out, so rows sum to at most 1
    peers: tuple[Tensor, ...]
    # whether the sources of every peer layer are the first tokens, so that layers are not stacked
    one_way: bool
    window: int  # W


def record_attention(module: Forecaster, batch: Batch) -> AttentionRecord:
    """Compute the forecasts of one date (else ValueError) and keep all attention weights."""
    with torch.inference_mode():
        _, weights = _forecast(module, batch)
        return _arranged(module, batch, weights)


def record_gradients(module: Forecaster, batch: Batch, target: int) -> AttentionRecord:
    """Multiply every weight by the derivative of one firm's forecast with respect to it.

    ``A * dy/dA`` stands in the place of the weights ``A``, in the unit of the forecast; 0 for a weight that
    the forecast does not depend on.
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
            firms = weight[..., :-1] if site.null_key else weight
            peers.append((firms if position_BM is None else spread_over_firms(firms, position_BM))[0])
    return AttentionRecord(
        days=tuple(weight for site, weight in weights if site.over == "days"),
        pooling_NK=pooling[0] if pooling else None,
        memory=tuple(weight for site, weight in weights if site.over == "memory"),
        peers=tuple(peers),
        one_way=position_BM is not None,
        window=batch.x_BNWC.shape[2],
    )


def rollout_of_days(record: AttentionRecord) -> FloatArray:
    """Attention rollout over the day encoder, [N, W]; rows sum to 1.

    ``A~_l = (A_l + I) / 2``, averaged over heads, where ``I`` stands for the residual connection. The weights
    of the days are the row of the pooled state in ``A~_L ... A~_1``. Abnar and Zuidema (2020), "Quantifying
    attention flow in transformers".
    """
    row_NK = _pooled_row(record, Tensor.double)
    for layer_NHQK in reversed(record.days):  # a single query is the last position
        layer_NQK = layer_NHQK.double().mean(dim=1)
        row_NK = 0.5 * row_NK + 0.5 * (row_NK[:, None, -layer_NQK.shape[1] :] @ layer_NQK)[:, 0]
    days_NW = row_NK[:, : record.window].double()  # without the [CLS] token
    return (days_NW / days_NW.sum(dim=1, keepdim=True).clamp(min=1e-12)).cpu().numpy()


def gradient_of_days(record: AttentionRecord, target: int) -> FloatArray:
    """Importance [W] of a firm's days from the products ``G_l = A_l * dy/dA_l`` of :func:`record_gradients`.

    One layer: ``|sum_h G|`` of the pooled state's query. Several layers: the row of the output in ``(I +
    |G_L|) ... (I + |G_1|) - I``, averaged over heads, after Chefer, Gur and Wolf (2021), "Generic
    attention-model explainability". They keep positive products only, because they explain the score of one
    class; a return has no class, so the size is kept.
    """
    row_K = _pooled_row(record, lambda weight: weight[target : target + 1])[0].abs()
    through_K = row_K.clone()
    for layer_NHQK in reversed(record.days):
        layer_QK = layer_NHQK[target].mean(dim=0).abs()
        through_K = through_K + through_K[-layer_QK.shape[0] :] @ layer_QK
    pooled = record.memory or record.pooling_NK is not None
    reached_K = through_K if pooled else through_K - row_K
    return reached_K[: record.window].double().cpu().numpy()


def _pooled_row(record: AttentionRecord, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights [N, K] of the encoder's last states in the output; ``of`` is applied to recorded weights."""
    if record.memory:
        return torch.stack([of(layer).mean(dim=1)[:, -1] for layer in record.memory]).mean(dim=0)
    if record.pooling_NK is not None:
        return of(record.pooling_NK)
    row_NK = torch.zeros_like(of(record.days[-1])[:, 0, -1])
    row_NK[:, -1] = 1.0
    return row_NK


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


def importance(
    over: Literal["days", "peers"], module: Forecaster, batch: Batch, targets_E: IntArray
) -> dict[str, FloatArray]:
    """Importance [E, W] of days, or [E, N] of peers, by attention, rollout and gradient.

    0 for the firm itself; empty for a model without such attention. A model whose attention is computed
    outside :class:`models.attention.probe.Probed` parts has ``attention`` alone.
    """
    with torch.inference_mode():
        seen = module.attention(batch)
    rollout, gradient, mean_NX = rollout_of_days, gradient_of_days, seen.days_BNW
    if over == "peers":
        rollout, gradient, mean_NX = rollout_of_peers, gradient_of_peers, seen.peers_BLHNN
    if mean_NX is None:
        return {}
    own = mean_NX[0].double()
    found = {"attention": (own if over == "days" else own.mean(dim=(0, 1))).cpu().numpy()[targets_E]}
    record = record_attention(module, batch)
    if record.days if over == "days" else record.peers:
        found["rollout"] = rollout(record)[targets_E]
        own_E = targets_E.tolist()
        found["gradient"] = np.stack([gradient(record_gradients(module, batch, e), e) for e in own_E])
    for importance_EN in found.values() if over == "peers" else ():
        importance_EN[np.arange(len(targets_E)), targets_E] = 0.0
    return found


RECENT = 3  # number of newest days of the trait ``recent_days``
_DRAWS = 20


@dataclass(frozen=True, slots=True, eq=False)
class DateAttention:
    """The attention of one date with what firms are."""

    session: int  # session index
    record: AttentionRecord  # the weights
    group_N: IntArray  # group codes of the firms; 0 means unknown
    size_N: FloatArray | None  # A characteristic that grows with size; None if the panel has none
    days_NW: FloatArray | None = None  # attention over days of each firm's forecast; None without

    @classmethod
    def of(cls, module: Forecaster, data: PanelTensors, session: int) -> Self:
        """Record the attention of a model on a session."""
        batch, size = data.batch(torch.tensor([session])), size_column(data.shape)
        record, days_BNW = record_attention(module, batch), module.attention(batch).days_BNW
        return cls(
            session,
            record,
            batch.s_BN[0].cpu().numpy(),
            None if size is None else batch.z_BNF[0, :, size].double().cpu().numpy(),
            None if days_BNW is None else days_BNW[0].detach().double().cpu().numpy(),
        )


def head_traits(dates: Iterable[DateAttention], seed: int = 0) -> list[dict[str, Any]]:
    """Describe every head of every layer by its traits, averaged over dates; a seed for all draws.

    Rows of the table ``heads``: over (days or peers), layer and head (from 1), trait, value with its
    interval, and null, the figure if the weights of every query were permuted among its keys (NaN if there is
    no such null). Traits: ``own_group``, the share of the weight of peers on the target's group;
    ``large_firms``, the mean size rank of the peers, weighted (1 is the largest firm and 0 the smallest);
    ``no_peer``, the weight of the null key, or of the firm itself where it is its own key; ``recent_days``,
    that of the newest three days;
    ``effective_firms`` and ``effective_days``, ``exp(entropy)`` of the weights, the number of equal weights
    that would be as concentrated.
    """
    found: dict[tuple[str, int, int, str], list[tuple[int, float, float]]] = {}
    for date in dates:
        rng = np.random.default_rng((seed, date.session))
        traits: list[tuple[str, int, int, list[_Trait]]] = []
        for layer, weights_NHQK in enumerate(date.record.days, 1):
            newest_HNW = weights_NHQK[:, :, -1, : date.record.window].double().cpu().numpy().swapaxes(0, 1)
            traits += [("days", layer, h, _of_days(own_NW)) for h, own_NW in enumerate(newest_HNW, 1)]
        for layer, weights_HNN in enumerate(date.record.peers, 1):
            per_head = enumerate(weights_HNN.double().cpu().numpy(), 1)
            traits += [("peers", layer, h, _of_peers(weights_NN, date, rng)) for h, weights_NN in per_head]
        for over, layer, head, rows in traits:
            for trait, value, null in rows:
                found.setdefault((over, layer, head, trait), []).append((date.session, value, null))
    described = []
    for key, figures in found.items():
        session_D, value_D, null_D = (np.array(column) for column in zip(*figures, strict=True))
        row = dict(zip(("over", "layer", "head", "trait"), key, strict=True))
        mean = mean_over_dates(value_D, session_D, seed)
        described.append({**row, **mean.columns("value"), "null": float(null_D.mean())})
    return described


_Trait = tuple[str, float, float]  # name, figure and null


def _of_days(weights_NW: FloatArray) -> list[_Trait]:
    window = weights_NW.shape[1]
    share_NW = weights_NW / np.maximum(weights_NW.sum(axis=1, keepdims=True), 1e-12)
    return [
        ("recent_days", float(share_NW[:, -RECENT:].sum(axis=1).mean()), min(RECENT, window) / window),
        ("effective_days", float(_effective(share_NW).mean()), float("nan")),
    ]


def _of_peers(weights_NN: FloatArray, date: DateAttention, rng: np.random.Generator) -> list[_Trait]:
    n_firms = len(weights_NN)
    weights_NN = np.where(np.eye(n_firms, dtype=np.bool_), 0.0, weights_NN)
    total_N = weights_NN.sum(axis=1)
    share_NN = weights_NN / np.maximum(total_N[:, None], 1e-12)
    used_N = total_N > 0.0
    none, effective = float(1.0 - total_N.mean()), float(_effective(share_NN[used_N]).mean())
    rows: list[_Trait] = [("no_peer", none, np.nan), ("effective_firms", effective, np.nan)]
    if not used_N.any() or n_firms < 3:
        return rows
    mixed_RNN = [_permuted_rows(share_NN, rng) for _ in range(_DRAWS)]
    known_N = (date.group_N > 0) & used_N
    if known_N.any():
        same_NN = date.group_N[:, None] == date.group_N[None, :]

        def own(share: FloatArray) -> float:
            return float((share * same_NN).sum(axis=1)[known_N].mean())

        rows.append(("own_group", own(share_NN), float(np.mean([own(one) for one in mixed_RNN]))))
    if date.size_N is not None:
        rank_N = date.size_N.argsort().argsort() / (n_firms - 1.0)
        mixed = float(np.mean([(one @ rank_N)[used_N].mean() for one in mixed_RNN]))
        rows.append(("large_firms", float((share_NN @ rank_N)[used_N].mean()), mixed))
    return rows


def _effective(share_NK: FloatArray) -> FloatArray:
    logs_NK = np.log(np.where(share_NK > 0.0, share_NK, 1.0))
    return np.asarray(np.exp(-(share_NK * logs_NK).sum(axis=1)))


def _permuted_rows(share_NN: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Permute the weights of every target among the other firms."""
    mixed_NN, other_NN = np.zeros_like(share_NN), ~np.eye(len(share_NN), dtype=np.bool_)
    other_NM = share_NN[other_NN].reshape(len(share_NN), -1)
    mixed_NN[other_NN] = rng.permuted(other_NM, axis=1).reshape(-1)
    return mixed_NN


REGIMES = ("calm", "normal", "turbulent")


def regimes_of(volatility_T: FloatArray) -> IntArray:
    """Divide sessions into terciles of volatility: 0 calm, 1 normal, 2 turbulent; -1 where it is unknown.

    The bounds are those of all given sessions. This describes a sample afterwards; it is not a signal.
    """
    known_T = np.isfinite(volatility_T)
    regime_T = np.full(len(volatility_T), -1, dtype=np.int64)
    if known_T.any():
        bounds = np.quantile(volatility_T[known_T], (1 / 3, 2 / 3))
        regime_T[known_T] = np.searchsorted(bounds, volatility_T[known_T], side="right")
    return regime_T


def day_profile(
    weights_EW: FloatArray, session_E: IntArray, volatility_T: FloatArray, seed: int = 0
) -> list[dict[str, Any]]:
    """Average the weight of each past day, over all dates and by the regime of that day.

    Days of ``weights_EW`` are the oldest first. The regimes are terciles of the market's volatility over the
    days of all windows. Rows of the table ``day_weights``: day (1 is the decision session), regime (of the
    past day itself, one of `REGIMES`, or ``all``), weight with its interval, and null, equal weights.
    """
    window = weights_EW.shape[1]
    seen_T = np.zeros(len(volatility_T), dtype=np.bool_)
    for day in range(window):
        seen_T[np.maximum(np.unique(session_E) - day, 0)] = True
    regime_T = regimes_of(np.where(seen_T, volatility_T, np.nan))
    found = []
    for day in range(1, window + 1):
        weight_E, past_E = weights_EW[:, window - day], session_E - day + 1
        regime_E = np.where(past_E >= 0, regime_T[np.maximum(past_E, 0)], -1)
        for regime, own_E in [("all", regime_E > -2), *((r, regime_E == k) for k, r in enumerate(REGIMES))]:
            if own_E.any():
                mean = mean_over_dates(np.where(own_E, weight_E, np.nan), session_E, seed)
                found.append({"day": day, "regime": regime, **mean.columns("weight"), "null": 1.0 / window})
    return found


def day_map(records: Sequence[AttentionRecord]) -> list[dict[str, Any]]:
    """Average the weights of every layer and head of the day encoder over firms and dates.

    Rows of the table ``day_map``: layer and head (from 1), query and key (1 is the newest), weight. The last
    layer may have one query, the pooled one, and a model may read the newest days of the window alone. With
    more than 20,000 cells, heads are averaged too: head 0.
    """
    mean = [
        np.mean([layer_NHQK.mean(dim=0).double().cpu().numpy() for layer_NHQK in layers], axis=0)
        for layers in zip(*(record.days for record in records), strict=True)
    ]
    if sum(layer_HQK.size for layer_HQK in mean) > 20_000:
        mean = [layer_HQK.mean(axis=0, keepdims=True) for layer_HQK in mean]
    window, rows = records[0].window, []
    for layer, layer_HQK in enumerate(mean, 1):
        heads, queries, days = layer_HQK.shape
        days = min(days, window)  # without the [CLS] token
        for (head, query, key), weight in np.ndenumerate(layer_HQK[:, :, :days]):
            place = {"layer": layer, "head": head + 1 if heads > 1 else 0}
            rows.append({**place, "query": queries - query, "key": days - key, "weight": float(weight)})
    return rows
