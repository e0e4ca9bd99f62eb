"""Models whose attention and whose true importances are known, and a panel for them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from models.attention.probe import Probed
from models.batch import Ablation, AttentionMaps, Batch, PanelTensors
from models.explain.faithful.forecasts import FaithfulConfig, MeasuredModel, intervene, measure
from models.explain.faithful.verdict import Verdict, at_inference, day_agreement, judge, peer_agreement
from models.explain.peers import PeerGameConfig, explain_peers
from models.forecaster import Forecaster

W, FIRMS, SESSIONS = 8, 9, 30
TRAIN, TEST = np.arange(W, 20), np.arange(20, 28)


def panel(seed: int = 0) -> PanelTensors:
    """Independent normal inputs: no day and no firm is special."""
    rng = np.random.default_rng(seed)
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(SESSIONS, FIRMS, 1)),
        characteristics_TNF=rng.normal(size=(SESSIONS, FIRMS, 2)),
        mask_TN=np.ones((SESSIONS, FIRMS), dtype=bool),
        group_TN=np.zeros((SESSIONS, FIRMS), dtype=int),
        target_TN=rng.normal(size=(SESSIONS, FIRMS)),
        window=W,
    )


class WeightedDays(Forecaster, Probed):
    """``y = sum_d a_d v_d x_d``: attention ``a``, the same for all firms, and values ``v_d x_d``.

    With ``renormalise``, the weights of masked days pass to the others, as in a softmax, so days interact.
    """

    uses_peers: ClassVar[bool] = False

    def __init__(self, weights_W: np.ndarray, *, renormalise: bool = False) -> None:
        super().__init__()
        self.renormalise = renormalise
        self.logits_W = nn.Parameter(torch.tensor(np.log(weights_W), dtype=torch.float32))
        self.value_W = nn.Parameter(torch.ones(len(weights_W)))
        self.even = False

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        kept_BW = torch.ones(batch.x_BNWC.shape[0], batch.x_BNWC.shape[2])
        if ablation is not None and ablation.days_keep_BW is not None:
            kept_BW = ablation.days_keep_BW.float()
        weights_BNW = self._weights(batch) * kept_BW[:, None, :]
        if self.renormalise:
            weights_BNW = weights_BNW / weights_BNW.sum(dim=-1, keepdim=True).clamp_min(1e-12)
        return (weights_BNW * self.value_W * batch.x_BNWC[..., 0]).sum(dim=-1, keepdim=True)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        return self.scaled(h_BND[..., 0], batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        return AttentionMaps(days_BNW=self._weights(batch))

    def _weights(self, batch: Batch) -> Tensor:
        weights_W = self.logits_W.softmax(dim=0)
        if self.even:  # uniform at inference
            weights_W = torch.full_like(weights_W, 1.0 / len(weights_W))
        every_BNW = weights_W.expand(*batch.m_BN.shape, -1)
        return self.weigh(every_BNW.flatten(0, 1)[:, None, None], None)[:, 0, 0].view_as(every_BNW)


class WeightedPeers(Forecaster, Probed):
    """``y_i = x_i + sum_j A_ij v_j x_j``: attention ``A`` over firms and values ``v_j x_j``.

    With ``renormalise``, the weights of masked firms pass to the others, as in a softmax, so peers interact.
    """

    uses_peers: ClassVar[bool] = True
    over = "peers"

    def __init__(self, weights_NN: np.ndarray, *, renormalise: bool = False) -> None:
        super().__init__()
        self.renormalise = renormalise
        self.logits_NN = nn.Parameter(torch.tensor(np.log(weights_NN), dtype=torch.float32))
        self.value_NN = nn.Parameter(torch.ones(weights_NN.shape))
        self.even = False

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        return batch.x_BNWC[:, :, -1, :1]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        weights_BNN = self._weights(batch)
        if ablation is not None and ablation.peers_keep_BN is not None:
            weights_BNN = weights_BNN * ablation.peers_keep_BN[:, None, :]
            if self.renormalise:
                weights_BNN = weights_BNN / weights_BNN.sum(dim=-1, keepdim=True).clamp_min(1e-12)
        message_BN1 = (weights_BNN * self.value_NN) @ h_BND
        return self.scaled((h_BND + message_BN1)[..., 0], batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        return AttentionMaps(peers_BLHNN=self._weights(batch)[:, None, None])

    def _weights(self, batch: Batch) -> Tensor:
        other_NN = ~torch.eye(len(self.logits_NN), dtype=torch.bool)
        logits_NN = self.logits_NN * 0.0 if self.even else self.logits_NN
        weights_NN = logits_NN.masked_fill(~other_NN, -torch.inf).softmax(dim=1)
        return self.weigh(weights_NN.expand(len(batch.m_BN), -1, -1)[:, None], other_NN)[:, 0]


def train_values(model: WeightedDays | WeightedPeers, true: np.ndarray, data: PanelTensors) -> None:
    """Fit the values, and nothing else, to the forecasts of the same model with the weights ``true``."""
    weights = torch.tensor(true / true.sum(axis=-1, keepdims=True), dtype=torch.float32)
    values = model.value_W if isinstance(model, WeightedDays) else model.value_NN
    optimizer = torch.optim.LBFGS(
        [values],
        max_iter=300,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        history_size=100,
        line_search_fn="strong_wolfe",
    )
    batch = data.batch(torch.as_tensor(TRAIN))
    x_BNW = batch.x_BNWC[..., 0]
    wanted_BN = (
        (x_BNW * weights).sum(dim=-1)
        if isinstance(model, WeightedDays)
        else x_BNW[..., -1] + x_BNW[..., -1] @ weights.T
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        error: Tensor = ((model(batch) - wanted_BN) ** 2).mean()
        error.backward()
        return error

    optimizer.step(loss)
    assert float(loss().detach()) < 1e-4, "the values have learned the true forecasts"


def verdict_on_days(
    model: Forecaster,
    data: PanelTensors,
    config: FaithfulConfig | None = None,
    *,
    sessions: np.ndarray = TEST,
    firms: int = 4,
) -> Verdict:
    """Judge attention over days on some test sessions."""
    subject = MeasuredModel(model.eval(), data, TRAIN, FaithfulConfig() if config is None else config)
    measured = [one for t in sessions for one in measure(subject, "days", int(t), np.arange(firms))]
    inference = at_inference([intervene(model, data, sessions, "days", seed=0)])
    return judge("days", measured, inference, day_agreement(measured))


def verdict_on_peers(
    model: Forecaster,
    data: PanelTensors,
    config: FaithfulConfig | None = None,
    *,
    sessions: np.ndarray = TEST,
    permutations: int = 2,
    firms: int = 3,
) -> Verdict:
    """Judge attention over peers on some test sessions."""
    options = PeerGameConfig(permutations=permutations)
    network = explain_peers(model.eval(), data, sessions, options)
    subject = MeasuredModel(model, data, TRAIN, FaithfulConfig() if config is None else config)
    measured = []
    for found in network:
        shuffled_model = subject.shuffles(found.session)[0]
        (shuffled,) = explain_peers(shuffled_model, data, np.array([found.session]), options)
        measured += measure(
            subject, "peers", found.session, np.arange(firms), (found.phi_NN, shuffled.phi_NN)
        )
    inference = at_inference([intervene(model, data, sessions, "peers", seed=0)])
    return judge("peers", measured, inference, peer_agreement(network))
