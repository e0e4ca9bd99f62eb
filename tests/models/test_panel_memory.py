"""A panel in the host's memory gives the same batches, fits and forecasts as one on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_panels import options_of
from torch import Tensor

from models.batch import PanelTensors
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.fit import fit, fit_stacked
from models.panel_memory import Upload, exceeds_device

T, N, C, F, W, S = 60, 14, 2, 4, 5, 3
TRAIN, VALID, TEST = np.arange(5, 38), np.arange(40, 48), np.arange(50, 60)


class Recorded(Upload):
    """Upload that notes the shapes that it copies."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, *host: Tensor) -> tuple[Tensor, ...]:
        self.shapes += [tuple(one.shape) for one in host]
        return super().__call__(*host)


def panel_in(*, in_host_memory: bool, windows: bool = True) -> PanelTensors:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(T, N, F))
    data = PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, N)) < 0.9,
        group_TN=rng.integers(0, S, (T, N)),
        target_TN=rng.normal(size=(T, N)) + z[..., 0],
        window=W,
        n_groups=S,
        windows=windows,
        in_host_memory=in_host_memory,
    )
    if in_host_memory:
        assert data.upload is not None
        object.__setattr__(data, "upload", Recorded())
    return data


def copied(data: PanelTensors) -> list[tuple[int, ...]]:
    assert isinstance(data.upload, Recorded)
    return data.upload.shapes


def test_batches_are_the_same() -> None:
    dates_B = torch.tensor([3, 20, 59])
    near, far = (panel_in(in_host_memory=where) for where in (False, True))
    one, other = near.batch(dates_B), far.batch(dates_B)
    for name in ("x_BNWC", "z_BNF", "m_BN", "s_BN", "y_BN", "firms_N"):
        assert torch.equal(getattr(one, name).nan_to_num(9.0), getattr(other, name).nan_to_num(9.0)), name
    assert copied(far) == [tuple(one.x_BNWC.shape), tuple(one.z_BNF.shape)]


def test_without_windows_the_zeros_take_no_memory() -> None:
    far = panel_in(in_host_memory=True, windows=False)
    assert far.history_NSC.untyped_storage().nbytes() == 4
    batch = far.batch(torch.tensor([20]))
    assert batch.x_BNWC.shape == (1, len(batch.firms_N), W, C)
    assert batch.x_BNWC.untyped_storage().nbytes() == 4
    assert batch.z_BNF.any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("temporal_peer", {}),
        ("temporal_transformer", {"pretrain": PretrainConfig(epochs=1)}),
        ("ridge", {}),
        ("lightgbm", {}),
    ],
)
def test_fits_are_the_same(name: str, options: dict[str, Any]) -> None:
    config, found = FitConfig(epochs=2, batch_dates=4, **options), []
    for in_host_memory in (False, True):
        data = panel_in(in_host_memory=in_host_memory)
        settings = {"rounds": 5} if name == "lightgbm" else {}
        fitted = fit(name, options_of(name, settings), data, TRAIN, VALID, fit_config=config, seed=0)
        found.append(fitted.forecast(data, TEST))
        if in_host_memory:
            assert copied(data)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isfinite(found[0]).any()


def test_stacked_seeds_are_the_same() -> None:
    config, found = FitConfig(epochs=2, batch_dates=4), []
    for in_host_memory in (False, True):
        data = panel_in(in_host_memory=in_host_memory)
        stack = fit_stacked(
            "temporal_transformer",
            options_of("temporal_transformer"),
            data,
            TRAIN,
            VALID,
            fit_config=config,
            seeds=(0, 1),
        )
        found.append(np.stack([one.forecast(data, TEST) for one in stack]))
        if in_host_memory:
            assert copied(data)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isfinite(found[0]).any(axis=(1, 2)).all()


def test_a_panel_exceeds_a_device_at_half_of_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    assert not exceeds_device("cuda", 500)
    assert exceeds_device("cuda:1", 501)
    assert not exceeds_device("cpu", 10**15)
