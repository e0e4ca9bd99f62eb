"""How accurate the weights of the peer network are at the default settings, and how many edges are false.

``python benchmarks/network_accuracy.py [--firms 12]``. A panel of firms with planted leaders is made, and
temporal_peer and self_peer with two layers are explained on 24 dates, with their initial weights (those that
start at zero are drawn, or peers would have no effect) and after a short training. With up to 12 firms the
reference are the exact Shapley values of all coalitions, else those of 100 pairs of orders.
"""

from __future__ import annotations

import argparse
from math import factorial

import numpy as np
import torch
from scipy import stats

from features.arrays import FloatArray
from models.attention.encoder import EncoderConfig
from models.batch import PanelTensors
from models.explain.network import NetworkSums, shuffled_sources, sum_dates
from models.explain.peers import PeerAttribution, PeerGame, PeerGameConfig, explain_peers
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from models.forecaster import Forecaster
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig

SESSIONS, TRAIN, VALID, DATES = 420, 320, 370, 24
EXACT_FIRMS, REFERENCE_PAIRS, SHUFFLES = 12, 100, 1000
MODELS: dict[str, TemporalPeerConfig | SelfPeerConfig] = {
    "temporal_peer": TemporalPeerConfig(encoder=EncoderConfig(width=16)),
    "self_peer": SelfPeerConfig(width=32, layers=2, recent_days=3),
}


def panel(n_firms: int) -> PanelTensors:
    """Firms of four groups; the first two firms of a group lead the others by a session."""
    rng = np.random.default_rng(0)
    return_TN = rng.standard_t(4, size=(SESSIONS, n_firms))
    group_N = np.arange(n_firms) % 4
    led_NN = (group_N[:, None] == group_N[None, :]) & (np.arange(n_firms) < 8)[None, :]
    np.fill_diagonal(led_NN, False)
    target_TN = return_TN @ (0.3 * led_NN.T) + rng.standard_t(4, size=(SESSIONS, n_firms))
    identity_NF = rng.normal(size=(n_firms, 6))
    return PanelTensors.from_arrays(
        channels_TNC=np.stack((return_TN, rng.normal(size=return_TN.shape)), axis=-1),
        characteristics_TNF=identity_NF + 0.3 * rng.normal(size=(SESSIONS, n_firms, 6)),
        mask_TN=np.ones(return_TN.shape, dtype=np.bool_),
        group_TN=np.tile(group_N, (SESSIONS, 1)),
        target_TN=target_TN,
        window=8,
    )


def untrained_module(name: str, data: PanelTensors) -> Forecaster:
    """Initial weights; matrices that start at zero are drawn."""
    torch.manual_seed(0)
    module: Forecaster = (
        TemporalPeer(TemporalPeerConfig(encoder=EncoderConfig(width=16)), data.shape)
        if name == "temporal_peer"
        else SelfPeer(SelfPeerConfig(width=32, layers=2, recent_days=3), data.shape)
    )
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return module.eval()


def trained_module(name: str, data: PanelTensors) -> Forecaster:
    """The model after four epochs."""
    sessions = np.arange(8, TRAIN), np.arange(TRAIN, VALID)
    config = FitConfig(epochs=4, patience=4, batch_dates=16, lr=3e-3)
    fitted = fit(name, MODELS[name], data, *sessions, fit_config=config, seed=0)
    if not isinstance(fitted, NeuralFitted):
        raise TypeError(f"{name} is not a neural model")
    return fitted.module


def exact_values(module: Forecaster, data: PanelTensors, session: int) -> FloatArray:
    """Shapley values [target, source] by their definition, over all coalitions."""
    game = PeerGame.of(module, data.batch(torch.tensor([session])))
    n = game.n_firms
    keep_MN = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
    forecast_MN, size_M = game.forecasts(keep_MN), keep_MN.sum(axis=1)
    values = []
    for j in range(n):
        without = np.flatnonzero(~keep_MN[:, j])
        weight = np.array([factorial(s) * factorial(n - s - 1) / factorial(n) for s in size_M[without]])
        values.append(weight @ (forecast_MN[without + 2**j] - forecast_MN[without]))
    return np.stack(values, axis=1)


def reference(module: Forecaster, data: PanelTensors, sessions: list[int]) -> NetworkSums:
    """Sums of the exact squares, or of those of many orders."""
    n_firms = data.mask_TN.shape[1]
    if n_firms > EXACT_FIRMS:
        config = PeerGameConfig(permutations=REFERENCE_PAIRS, seed=99)
        return sum_dates(explain_peers(module, data, np.array(sessions), config), n_firms)
    sums = NetworkSums(n_firms)
    for session in sessions:
        phi_NN = exact_values(module, data, session)
        sums.add(np.arange(n_firms), phi_NN, phi_NN**2)
    return sums


def report(name: str, weights: str, module: Forecaster, data: PanelTensors) -> None:
    """Print the figures of one model."""
    n_firms, others = data.mask_TN.shape[1], ~np.eye(data.mask_TN.shape[1], dtype=np.bool_)
    sessions = np.linspace(VALID, SESSIONS - 1, DATES).astype(int).tolist()
    true_V = reference(module, data, sessions).network().weight_NN[others]
    runs: list[tuple[PeerAttribution, ...]] = [
        explain_peers(module, data, np.array(sessions), PeerGameConfig(seed=seed)) for seed in (0, 1)
    ]
    first, second = (sum_dates(parts, n_firms).network().weight_NN[others] for parts in runs)
    weak_V = true_V <= np.median(true_V)
    rng, rates, any_found = np.random.default_rng(5), [], []
    for _ in range(SHUFFLES):
        sums = NetworkSums(n_firms)
        for part in runs[0]:
            square_NN = shuffled_sources(part.square_NN, rng)
            sums.add(part.firms_N, square_NN, square_NN)
        tests = sums.tests()
        rates.append(float((tests.p_NN[others] < 0.05).mean()))
        any_found.append(bool(tests.found().any()))
    found = sum_dates(runs[0], n_firms).tests().found()[others].mean()
    print(
        f"{name:14} {weights:10} {n_firms:3} firms: bias {first.sum() / true_V.sum() - 1:+.2%}, weaker half "
        f"{first[weak_V].sum() / true_V[weak_V].sum() - 1:+.2%}, seeds agree "
        f"{stats.spearmanr(first, second).statistic:.4f}, with the reference "
        f"{stats.spearmanr(first, true_V).statistic:.4f}; edges found {found:.1%}; shuffled: p < 5% in "
        f"{np.mean(rates):.2%} of the pairs, any edge in {np.mean(any_found):.1%} of {SHUFFLES} networks",
        flush=True,
    )


def main() -> None:
    """Explain both models, untrained and trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=EXACT_FIRMS)
    torch.set_num_threads(1)
    data = panel(parser.parse_args().firms)
    for name in MODELS:
        report(name, "untrained", untrained_module(name, data), data)
        report(name, "trained", trained_module(name, data), data)


if __name__ == "__main__":
    main()
