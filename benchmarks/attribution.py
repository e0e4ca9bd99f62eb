"""Shapley values of 100 forecasts of temporal_peer with 60 players: Peerglass and shap compared.

The players are 8 blocks of days, 12 families of characteristics and 40 sectors of peers. shap's
PermutationExplainer explains one forecast at a time (a row): each permutation evaluates 121 coalitions as one
batch of complete forward passes. Peerglass explains all forecasts of a date with the same coalitions, and
embeds equal windows once. Both average over the same number of antithetic permutations, each with its own
background firms, so they estimate the same values. Time is compared at the same standard error: Peerglass'
time is multiplied by the squared ratio of the standard errors.

The two alternate, one row against one date. The cost of a row, and of a date, does not depend on the others,
so the time of 100 forecasts follows from the number of rows and dates. The target: 10 times faster, on 100
dates with 1 forecast, on 25 dates with 4 and on 1 date with 100. The exit code is 1 if it is missed.

``--device cuda`` runs both on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import shap
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a GPU machine may have only the repository

from features.arrays import BoolArray, FloatArray
from models.batch import Ablation, Batch, PanelTensors
from models.explain.players import Player, PlayerConfig, find_players, repeat_batch
from models.explain.removal import donors, draw_donors, group_game
from models.explain.shapley import Precision, sample
from models.forecaster import Forecaster
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig

WINDOW, CHANNELS, CHARACTERISTICS, SECTORS = 60, 6, 24, 40
DAY_STARTS = (1, 2, 3, 4, 6, 11, 21, 41)
TARGET = 10.0
LAYOUTS = ((100, 1), (25, 4), (1, 100))  # dates, forecasts per date


def panel(firms: int, device: str) -> PanelTensors:
    """Noise in the shape of the demo's features."""
    rng, sessions = np.random.default_rng(0), WINDOW + 20
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(sessions, firms, CHANNELS)),
        characteristics_TNF=rng.normal(size=(sessions, firms, CHARACTERISTICS)),
        mask_TN=np.ones((sessions, firms), dtype=bool),
        group_TN=np.tile(np.arange(firms) % SECTORS, (sessions, 1)),
        target_TN=rng.normal(size=(sessions, firms)),
        window=WINDOW,
        device=device,
    )


def model(data: PanelTensors) -> Forecaster:
    """temporal_peer at its default sizes, with random weights where it starts at zero."""
    torch.manual_seed(0)
    module = TemporalPeer(TemporalPeerConfig(), data.shape).to(data.device).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return module


class Row:
    """One forecast as a model for shap: masks [M, P] -> forecasts [M]."""

    immutable_outputs = True

    def __init__(
        self, module: Forecaster, batch: Batch, players: tuple[Player, ...], firm: int, seed: int
    ) -> None:
        self.module, self.batch, self.players, self.firm = module, batch, players, firm
        self.shape = (1, len(players))
        donor_N = draw_donors(batch.firms_N.numel(), np.random.default_rng(seed))
        self.donated_NF = batch.z_BNF[0][torch.as_tensor(donor_N, device=batch.m_BN.device)]

    def __call__(self, mask_P: BoolArray, _: FloatArray) -> tuple[BoolArray]:
        """Mask a row, as shap's masker: the masked row is the mask."""
        return (mask_P[None, :],)

    def forecast(self, keep_MP: BoolArray) -> FloatArray:
        """Complete forward passes, as many at a time as shap asks for."""
        batch, count = self.batch, len(keep_MP)
        keep = torch.as_tensor(keep_MP, device=batch.m_BN.device)
        days_MW = torch.ones(count, WINDOW, dtype=torch.bool, device=keep.device)
        column_MF = torch.ones(count, CHARACTERISTICS, dtype=torch.bool, device=keep.device)
        peers_MN = torch.ones(count, batch.firms_N.numel(), dtype=torch.bool, device=keep.device)
        for p, player in enumerate(self.players):
            if player.kind == "days":
                days_MW[:, [WINDOW - day for day in player.members]] = keep[:, [p]]
            elif player.kind == "family":
                column_MF[:, list(player.members)] = keep[:, [p]]
            else:
                peers_MN[:, batch.s_BN[0] == player.members[0]] = keep[:, [p]]
        repeated = repeat_batch(batch, count)
        z_MNF = torch.where(column_MF[:, None], batch.z_BNF, self.donated_NF)
        ablated = Batch(repeated.x_BNWC, z_MNF, repeated.m_BN, repeated.s_BN, repeated.y_BN, batch.firms_N)
        with torch.inference_mode():
            y_MN = self.module(ablated, Ablation(days_MW, peers_MN))
        y_M: FloatArray = y_MN[:, self.firm].double().cpu().numpy()
        return y_M


def by_shap(
    module: Forecaster, batch: Batch, players: tuple[Player, ...], firm: int, permutations: int, *, size: int
) -> FloatArray:
    """Values [R, P] of one forecast: one call of shap's explainer per permutation, as each has its donors."""
    values = []
    for r in range(permutations):
        row = Row(module, batch, players, firm, seed=r)
        explainer = shap.PermutationExplainer(row.forecast, row, seed=r)
        found = explainer(
            np.ones((1, len(players))), max_evals=2 * len(players) + 1, batch_size=size, silent=True
        )
        values.append(found.values[0])
    return np.stack(values)


def main() -> None:
    """Time rows and dates in turn; print the ratios for 100 forecasts, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--firms", type=int, default=120, help="a multiple of 40")
    parser.add_argument("--permutations", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=5, help="coalitions per forward pass of shap")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU: use --device cpu")
    torch.set_num_threads(args.threads)
    data = panel(args.firms, args.device)
    module = model(data)
    families = {f"family {f}": [2 * f, 2 * f + 1] for f in range(CHARACTERISTICS // 2)}
    config = PlayerConfig(day_starts=DAY_STARTS, peers="sectors")
    rounds: list[dict[int, tuple[float, float]]] = []
    for round_ in range(args.rounds + 1):
        batch = data.batch(torch.tensor([WINDOW + round_]))
        players = find_players(module, batch, families, config)
        started = time.perf_counter()
        theirs = by_shap(module, batch, players, 0, args.permutations, size=args.batch_size)
        row = time.perf_counter() - started
        theirs_P = theirs.std(axis=0, ddof=1) / np.sqrt(args.permutations)
        done: dict[int, tuple[float, float]] = {}
        for _, forecasts in LAYOUTS:
            started = time.perf_counter()
            game = group_game(
                module, batch, players, np.arange(forecasts), donors("date", batch, None, round_)
            )
            ours = sample(game, len(players), Precision(args.permutations)).values()
            date = time.perf_counter() - started
            squared = float(np.mean(ours.error_PO[:, 0] ** 2) / np.mean(theirs_P**2))
            done[forecasts] = (row / date, squared)
            gap_P = (theirs.mean(axis=0) - ours.values_PO[:, 0]) / np.hypot(theirs_P, ours.error_PO[:, 0])
            if round_:  # the first round compiles and warms up
                print(
                    f"round {round_}: a row by shap {row:.2f} s, a date with {forecasts} forecasts "
                    f"{date:.2f} s; values differ by {np.sqrt(np.mean(gap_P**2)):.2f} standard errors",
                    flush=True,
                )
        if round_:
            rounds.append(done)
    report(rounds, f"{args.permutations} permutations, {args.threads} threads, {args.device}")


def report(rounds: list[dict[int, tuple[float, float]]], settings: str) -> None:
    """Print the ratios of 100 forecasts, and whether the target was met."""
    print(f"\n100 forecasts, 60 players, {settings}: medians of {len(rounds)} rounds")
    least = float("inf")
    for dates, forecasts in LAYOUTS:
        ratios = [done[forecasts][0] * forecasts for done in rounds]
        squared = statistics.mean(done[forecasts][1] for done in rounds)
        faster = statistics.median(ratios) / squared
        least = min(least, faster)
        print(
            f"  {dates:>3} dates with {forecasts:>3} forecasts: {statistics.median(ratios):8.1f} times "
            f"faster ({min(ratios):.1f} to {max(ratios):.1f}) with {np.sqrt(squared):.2f} times the "
            f"standard error; at equal error {faster:.1f} times"
        )
    print(f"the target is {TARGET:.0f}: {'met' if least >= TARGET else 'NOT MET'}")
    sys.exit(int(least < TARGET))


if __name__ == "__main__":
    main()
