"""Shapley values of a trained transformer over days, against the weights that days were planted with."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from small_panels import options_of

from features.arrays import BoolArray, FloatArray
from models.batch import PanelTensors
from models.explain.faithful.forecasts import UnitGame, drawn, equal_blocks, unit_game
from models.explain.removal import donors
from models.explain.shapley import Precision, fixed, sample
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit

WINDOW, FIRMS, SESSIONS = 6, 24, 260
PLANTED_W = np.array([0.25, 1.6, 0.1, 0.9, 0.45, 2.4])  # oldest day first; alternating signs below


def planted_panel() -> PanelTensors:
    rng = np.random.default_rng(8)
    x_TN = rng.normal(size=(SESSIONS, FIRMS))
    signs_W = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    target_TN = np.full((SESSIONS, FIRMS), np.nan)
    for t in range(WINDOW - 1, SESSIONS):
        target_TN[t] = (signs_W * PLANTED_W) @ x_TN[t - WINDOW + 1 : t + 1]
    target_TN += 0.5 * rng.normal(size=target_TN.shape)
    return PanelTensors.from_arrays(
        channels_TNC=x_TN[..., None],
        characteristics_TNF=np.zeros((SESSIONS, FIRMS, 1)),
        mask_TN=np.ones((SESSIONS, FIRMS), dtype=bool),
        group_TN=np.zeros((SESSIONS, FIRMS), dtype=int),
        target_TN=target_TN,
        window=WINDOW,
    )


def column_of(play: UnitGame, keep_MP: BoolArray) -> FloatArray:
    return play(keep_MP)[:, None]


@pytest.mark.slow(2)
def test_the_days_that_were_planted_are_found() -> None:
    data = planted_panel()
    train, valid = np.arange(WINDOW, 200), np.arange(200, 230)
    config = FitConfig(epochs=14, batch_dates=8, lr=0.01, weight_decay=0.0)
    options = {"encoder": {"width": 16, "heads": 4, "layers": 1, "dropout": 0.0}}
    fitted = fit(
        "temporal_transformer",
        options_of("temporal_transformer", options),
        data,
        train,
        valid,
        fit_config=config,
        seed=0,
    )
    assert isinstance(fitted, NeuralFitted)
    assert max(record.valid_rank_ic for record in fitted.history) > 0.6, "the model has learned the days"
    sizes = []
    for t in range(232, 258, 5):
        batch = data.batch(torch.tensor([t]))
        background = drawn(donors("date", batch, None, seed=t), batch, 6)
        for firm in range(6):
            play = unit_game("days", fitted.module, batch, firm, equal_blocks(WINDOW, WINDOW), background)
            found = sample(fixed(partial(column_of, play)), WINDOW, Precision(4), seed=t).values()
            sizes.append(np.abs(found.values_PO[:, 0]))
    mean_P = np.mean(sizes, axis=0)  # newest day first
    assert len(mean_P) == WINDOW
    assert spearmanr(mean_P, PLANTED_W[::-1]).statistic >= 0.8
    np.testing.assert_allclose(mean_P / mean_P.sum(), PLANTED_W[::-1] / PLANTED_W.sum(), atol=0.08)
