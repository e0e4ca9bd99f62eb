"""Batches against plain indexing, and refused arrays and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from features.library.scaling import ChannelScaler
from models.batch import PanelTensors
from models.forecasters.temporal_peer import TemporalPeerConfig
from models.spec import Shape

T, N, C, F, W = 12, 6, 3, 2, 4


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    mask = rng.random((T, N)) < 0.6
    mask[:, 0] = False
    mask[:, 1] = True
    return {
        "channels_TNC": rng.normal(size=(T, N, C)).astype(np.float32),
        "characteristics_TNF": rng.normal(size=(T, N, F)).astype(np.float32),
        "mask_TN": mask,
        "group_TN": rng.integers(-1, 3, size=(T, N)),
        "target_TN": np.where(rng.random((T, N)) < 0.2, np.nan, rng.normal(size=(T, N))).astype(np.float32),
    }


@pytest.mark.parametrize("dates", [[7], [11, 3, 5], [0, 2]])
def test_a_batch_has_the_windows_and_cross_sections_of_its_dates(dates: list[int]) -> None:
    given = arrays()
    batch = PanelTensors.from_arrays(**given, window=W, n_groups=3).batch(torch.tensor(dates))
    firms_BN = batch.firms_N.numpy().reshape(len(dates), -1)
    own = [np.flatnonzero(given["mask_TN"][t]) for t in dates]
    assert firms_BN.shape[1] == max(len(firms) for firms in own) > 0
    for b, (t, firms) in enumerate(zip(dates, own, strict=True)):
        assert firms_BN[b, : len(firms)].tolist() == firms.tolist()
        assert batch.m_BN[b].tolist() == [i < len(firms) for i in range(firms_BN.shape[1])]
        for i, n in enumerate(firms_BN[b]):
            padding = np.zeros((max(0, W - 1 - t), C), dtype=np.float32)
            window = np.concatenate([padding, given["channels_TNC"][max(0, t - W + 1) : t + 1, n]])
            np.testing.assert_array_equal(batch.x_BNWC[b, i].numpy(), window)
        np.testing.assert_array_equal(batch.z_BNF[b].numpy(), given["characteristics_TNF"][t][firms_BN[b]])
        np.testing.assert_array_equal(batch.s_BN[b].numpy(), given["group_TN"][t][firms_BN[b]] + 1)
        np.testing.assert_array_equal(batch.y_BN[b].numpy(), given["target_TN"][t][firms_BN[b]])


def test_chosen_firms_fill_the_first_places() -> None:
    data = PanelTensors.from_arrays(**arrays(), window=W)
    chosen_BN = torch.zeros((2, N), dtype=torch.bool)
    chosen_BN[0, [5, 2]] = chosen_BN[1, 4] = True
    batch = data.batch(torch.tensor([7, 3]), chosen_BN)
    assert batch.firms_N[0].tolist() == [2, 5]
    assert batch.firms_N[1, 0] == 4
    assert batch.m_BN.tolist() == [[True, True], [True, False]]
    assert batch.x_BNWC.shape == (2, 2, W, C)


def test_windows_equal_plain_indexing() -> None:
    given = arrays()
    data = PanelTensors.from_arrays(**given, window=W)
    np.testing.assert_array_equal(data.channels_TNC.numpy(), given["channels_TNC"])
    rng = np.random.default_rng(1)
    sessions, firms = rng.integers(0, T, (5, 7)), rng.integers(0, N, (5, 7))
    sessions[0, :2], firms[0, :2] = (0, T - 1), (0, N - 1)  # the first and the last window
    windows = data.windows(torch.tensor(sessions), torch.tensor(firms)).numpy()
    assert windows.shape == (5, 7, W, C)
    before = np.concatenate([np.zeros((W - 1, N, C), dtype=np.float32), given["channels_TNC"]])
    for at in np.ndindex(5, 7):
        np.testing.assert_array_equal(windows[at], before[sessions[at] : sessions[at] + W, firms[at]])
    empty = data.windows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert empty.shape == (0, W, C)


@pytest.mark.parametrize(
    ("session", "firm", "message"),
    [
        (T, 0, "session indices are from 12 to 12; the panel has 12"),
        (-1, 0, "session indices are from -1 to -1"),
        (0, N, "firm indices are from 6 to 6; the panel has 6"),
        (0, -1, "firm indices are from -1 to -1"),
    ],
)
def test_a_window_outside_the_panel_is_refused(session: int, firm: int, message: str) -> None:
    data = PanelTensors.from_arrays(**arrays(), window=W)
    with pytest.raises(ValueError, match=message):
        data.windows(torch.tensor([session]), torch.tensor([firm]))


def test_unknown_features_become_0() -> None:
    given = arrays()
    given["channels_TNC"][7, 1, 0] = np.nan
    given["characteristics_TNF"][7, 1, 1] = np.nan
    batch = PanelTensors.from_arrays(**given, window=W).batch(torch.tensor([7]))
    at = batch.firms_N.tolist().index(1)
    assert batch.x_BNWC[0, at, -1, 0] == 0
    assert batch.z_BNF[0, at, 1] == 0
    assert batch.x_BNWC.isfinite().all()


def test_a_date_without_firms_is_refused() -> None:
    given = arrays()
    given["mask_TN"][4] = False
    with pytest.raises(ValueError, match=r"No firm is in the universe at sessions \[4\]"):
        PanelTensors.from_arrays(**given, window=W).batch(torch.tensor([4]))


def test_inconsistent_arrays_are_refused() -> None:
    given = arrays()
    with pytest.raises(ValueError, match="target_TN has shape"):
        PanelTensors.from_arrays(**{**given, "target_TN": given["target_TN"][:-1]}, window=W)
    with pytest.raises(ValueError, match="group_TN has codes"):
        PanelTensors.from_arrays(**given, window=W, n_groups=1)
    with pytest.raises(ValueError, match="channels_TNC has infinite values"):
        PanelTensors.from_arrays(**{**given, "channels_TNC": np.full((T, N, C), np.inf)}, window=W)
    with pytest.raises(ValueError, match="window is 0"):
        PanelTensors.from_arrays(**given, window=0)


def test_shape_counts_the_unknown_group_and_checks_names() -> None:
    data = PanelTensors.from_arrays(**arrays(), window=W, n_groups=3, characteristic_names=("a", "b"))
    assert data.shape == Shape(C, F, W, 4, ("a", "b"))
    with pytest.raises(ValueError, match="1 characteristic names"):
        Shape(C, F, W, 4, ("a",))


def test_options_are_parsed_and_unknown_ones_are_refused() -> None:
    parsed = TemporalPeerConfig.model_validate({"encoder": {"width": 8}})
    assert (parsed.encoder.width, parsed.encoder.layers, parsed.encoder.dropout) == (8, 1, 0.2)
    with pytest.raises(ValueError, match="encodr is not a known name"):
        TemporalPeerConfig.model_validate({"encodr": {}})
    with pytest.raises(ValueError, match="widht is not a known name"):
        TemporalPeerConfig.model_validate({"encoder": {"widht": 8}})
    with pytest.raises(ValueError, match="'identity' or 'token'"):
        TemporalPeerConfig.model_validate({"keys_from": "name"})
    with pytest.raises(ValueError, match="multiple of 4"):
        TemporalPeerConfig.model_validate({"encoder": {"width": 30}})


def test_complete_characteristics_are_read_where_they_are(tmp_path: Path) -> None:
    """Processes share a mapped file only if no tensor copies it."""
    given = arrays()
    mapped = np.memmap(tmp_path / "z", dtype=np.float32, mode="w+", shape=(T, N, F))
    mapped[:] = given["characteristics_TNF"]
    given["characteristics_TNF"] = np.memmap(tmp_path / "z", dtype=np.float32, mode="r", shape=(T, N, F))
    data = PanelTensors.from_arrays(**given, window=W, complete=True)
    assert data.characteristics_TNF.data_ptr() == given["characteristics_TNF"].ctypes.data
    np.testing.assert_array_equal(data.characteristics_TNF.numpy(), mapped)


def test_channels_are_scaled_block_by_block_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arrays()
    given["channels_TNC"][3, 2] = np.nan
    scaler = ChannelScaler(np.array([0.1, -0.2, 0.0]), np.array([2.0, 0.5, np.inf]), clip=1.5)
    scaled = PanelTensors.from_arrays(
        **{**given, "channels_TNC": scaler.apply(given["channels_TNC"])}, window=W
    )
    monkeypatch.setattr("models.panel_memory._BLOCK", 5 * N * C)
    blocks = PanelTensors.from_arrays(**given, window=W, scaler=scaler)
    assert torch.equal(blocks.history_NSC, scaled.history_NSC)
    assert float(scaled.history_NSC.abs().max()) == 1.5
