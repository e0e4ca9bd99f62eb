"""Walks: the forecasts of a date while its firms become peers one after the other.

Along an order of the N firms, the k-th firm's step is the change of all forecasts when its key is no longer
masked and the k - 1 firms before it are peers already. The mean step of a firm over all orders is its Shapley
value.

Legend: N firms of a date, D model width, K leaders whose steps are wanted, n followers, M coalitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import Ablation, Batch
from models.explain.players import repeat_batch
from models.forecaster import Forecaster

_PAIR_CELLS = 500_000  # pairs of firms per forward pass, chosen to fit into a CPU cache
_NESTED_TOKENS = 50_000  # tokens per pass over nested sets of peers
_CUDA_FACTOR = 64


@dataclass(frozen=True, slots=True, eq=False)
class PeerGame:
    """The game of one date in which every firm is a peer of all others.

    Attributes
    ----------
    module
        A model with peers, in eval mode.
    batch
        One date.
    h_1ND
        Tokens of the firms, which do not depend on peers.
    """

    module: Forecaster
    batch: Batch
    h_1ND: Tensor

    @classmethod
    def of(cls, module: Forecaster, batch: Batch) -> PeerGame:
        """Embed the firms of a date."""
        with torch.inference_mode():
            return cls(module, batch, module.embed(batch))

    @property
    def n_firms(self) -> int:
        """N."""
        return self.batch.firms_N.numel()

    @property
    def nested(self) -> bool:
        """Whether a walk costs about as much as one forecast, instead of N + 1."""
        return self._nested(np.arange(self.n_firms), np.arange(1)) is not None

    def forecasts(self, keep_MN: BoolArray) -> FloatArray:
        """Forecasts [M, N] of coalitions of peers."""
        factor = _CUDA_FACTOR if self._device.type == "cuda" else 1
        step = max(1, _PAIR_CELLS * factor // self.n_firms**2)
        parts = []
        with torch.inference_mode():
            for keep_BN in torch.split(torch.as_tensor(keep_MN, device=self._device), step):
                h_BND = self.h_1ND.expand(len(keep_BN), -1, -1)
                repeated = repeat_batch(self.batch, len(keep_BN))
                y_BN = self.module.mix(h_BND, repeated, Ablation(peers_keep_BN=keep_BN))
                parts.append(y_BN.double().cpu().numpy())
        return np.concatenate(parts)

    def steps(self, order_N: IntArray, followers_n: IntArray, leaders_K: IntArray) -> FloatArray:
        """Changes [n, K] of the followers' forecasts when each leader joins the firms before it in an order.

        With nested sets of peers (:attr:`nested`) the cost grows with the number of followers, otherwise with
        the number of leaders.
        """
        nested_Pn = self._nested(order_N, followers_n)
        place_N = np.empty_like(order_N)
        place_N[order_N] = np.arange(len(order_N))
        place_K = place_N[leaders_K]
        if nested_Pn is None:
            # sets of peers that are needed: the first p firms, for p the places before and after each leader
            prefix_P = np.unique(np.concatenate((place_K, place_K + 1)))
            forecast_PN = self.forecasts(place_N[None, :] < prefix_P[:, None])
            before_K = np.searchsorted(prefix_P, place_K)
            step_KN = forecast_PN[before_K + 1] - forecast_PN[before_K]
            return np.ascontiguousarray(step_KN[:, followers_n].T)
        return np.ascontiguousarray((nested_Pn[place_K + 1] - nested_Pn[place_K]).T)

    def _nested(self, order_N: IntArray, followers_n: IntArray) -> FloatArray | None:
        factor = _CUDA_FACTOR if self._device.type == "cuda" else 1
        chunk = max(1, _NESTED_TOKENS * factor // (self.n_firms + 1))
        order = torch.as_tensor(order_N.copy(), device=self._device)
        parts = []
        with torch.inference_mode():
            for followers in torch.split(torch.as_tensor(followers_n, device=self._device), chunk):
                y_Pn = self.module.mix_nested(self.h_1ND, self.batch, order, followers)
                if y_Pn is None:
                    return None
                parts.append(y_Pn.double().cpu().numpy())
        return np.concatenate(parts, axis=1)

    @property
    def _device(self) -> torch.device:
        return self.batch.m_BN.device
