"""A panel on which every model of the registry is fitted within a second, and small options for each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from features.options import Options
from models.batch import PanelTensors
from models.fitted import Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from models.registry import MODELS, model_entry

T, N, C, F, W, S = 90, 24, 2, 3, 5, 3
NAMES = ("return_1", "size", "noise")
TRAIN, VALID, TEST = np.arange(5, 60), np.arange(62, 74), np.arange(76, 90)
SMALL: dict[str, dict[str, Any]] = {
    "zero": {},
    "reversal": {},
    "momentum": {"characteristic": "size"},
    "ridge": {},
    "lightgbm": {"min_data_in_leaf": 20, "rounds": 30, "evaluate_every": 10},
    "double_ensemble": {"min_data_in_leaf": 20, "rounds": 30, "evaluate_every": 10, "sub_models": 2},
    "mlp": {"width": 8},
    "lstm": {"width": 8},
    "gru": {"width": 8, "layers": 1},
    "alstm": {"width": 8, "layers": 1},
    "tcn": {"width": 8},
    "tabm": {"width": 8, "networks": 4, "bins": 4},
    "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
    "seq2seq": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
    "sector_mean": {},
    "kernel_regression": {},
    "cross_peer": {"width": 8, "heads": 2, "reference": {"count": 6, "characteristic": "size"}},
    "self_peer": {"width": 8, "heads": 2, "layers": 1},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2},
    "linear_portfolio_transformer": {},
    "portfolio_transformer": {"width": 8, "heads": 2, "layers": 1},
    "stock_mixer": {"width": 8, "market": 4},
    "master": {"width": 8, "day_heads": 2},
}
FITTED = [name for name, entry in MODELS.items() if entry.kind != "ensemble"]  # on a panel of their own
NEURAL = [name for name, entry in MODELS.items() if entry.kind == "neural"]
QUICK = FitConfig(epochs=2, dates_per_epoch=8, batch_dates=4, firms_per_date=12, valid_dates=4)


def arrays(seed: int = 0) -> dict[str, Any]:
    """Targets linear in the second characteristic, with noise."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(T, N, F)).astype(np.float32)
    mask = rng.random((T, N)) < 0.9
    mask[40] = False
    target = 0.01 * (z[:, :, 1] + rng.normal(size=(T, N)))
    target[rng.random((T, N)) < 0.05] = np.nan
    return {
        "channels_TNC": rng.normal(size=(T, N, C)).astype(np.float32),
        "characteristics_TNF": z,
        "mask_TN": mask,
        "group_TN": np.tile(rng.integers(-1, S, size=N), (T, 1)),
        "target_TN": target,
    }


def panel(given: dict[str, Any] | None = None) -> PanelTensors:
    return PanelTensors.from_arrays(
        **(arrays() if given is None else given), window=W, n_groups=S, characteristic_names=NAMES
    )


def options_of(name: str, given: Mapping[str, Any] = {}) -> Options:
    """Options of a registered model; those that are not given have their defaults."""
    options: Options = model_entry(name).config(**given)
    return options


def fitted(name: str, data: PanelTensors | None = None, seed: int = 0, config: FitConfig = QUICK) -> Fitted:
    data = panel() if data is None else data
    return fit(name, options_of(name, SMALL[name]), data, TRAIN, VALID, fit_config=config, seed=seed)


@functools.cache
def trained(name: str, seed: int = 0) -> Fitted:
    """What `fitted` returns on the panel of all tests, fitted once: for tests that only forecast with it."""
    return fitted(name, seed=seed)
