"""Alpha360 against its published formulas, qlib's values and prices with splits; its scale and causality."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import torch
from qlib_values import made_prices, values_of_qlib

from features.library.scaling import ChannelScaler, RelativeScale, fit_channel_scaler
from features.library.sets import RELATIVE, alpha360, bases_of, default_channels, default_characteristics
from features.panel.panel import Panel, build_panel
from models.attention.encoder import DayEncoder, EncoderConfig
from models.batch import PanelTensors
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.pretraining import pretrain
from models.spec import IncompatibleConfig

Array = npt.NDArray[np.float64]
W, NAMES = 60, tuple(RELATIVE)
CSI300 = Path(__file__).parents[4] / "shared" / "data" / "csi300_prices.parquet"


def panel_of(frames: dict[str, npt.NDArray[np.floating]], **more: npt.NDArray[np.floating]) -> Panel:
    """The panel of prices [T, N]; NaN is a session without a row."""
    sessions, firms = frames["close"].shape
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=k) for k in range(sessions)]
    columns = {name: x.astype(np.float64).ravel() for name, x in {**frames, **more}.items()}
    cells = {
        "date": [day for day in days for _ in range(firms)],
        "ticker": [f"F{n:02}" for n in range(firms)] * sessions,
    }
    rows = pl.DataFrame({**cells, **columns}).filter(pl.col("close").is_not_nan())
    absent = [pl.lit(value).alias(name) for name, value in (("split_ratio", 1.0), ("dividend", 0.0))]
    return build_panel(rows.with_columns(one for one in absent if one.meta.output_name() not in more))


def tensors(panel: Panel, scaler: ChannelScaler | None = None, **how: Any) -> PanelTensors:  # noqa: ANN401
    """The panel for models; without a scaler, ratios as they are."""
    no_scale = RelativeScale(bases_of(NAMES), np.zeros((W, len(NAMES))), np.ones((W, len(NAMES))))
    unscaled = ChannelScaler(np.zeros(len(NAMES)), np.ones(len(NAMES)), np.inf, no_scale)
    shape = panel.close_TN.shape
    return PanelTensors.from_arrays(
        channels_TNC=alpha360().compute(panel, NAMES),
        characteristics_TNF=np.zeros((*shape, 1)),
        mask_TN=np.ones(shape, dtype=bool),
        group_TN=np.full(shape, -1),
        target_TN=np.full(shape, np.nan),
        window=W,
        scaler=unscaled if scaler is None else scaler,
        **how,
    )


def windows_at(data: PanelTensors, t: int) -> npt.NDArray[np.float32]:
    firms = torch.arange(data.mask_TN.shape[1])
    return data.windows(torch.full_like(firms, t), firms).numpy()


def published(frames: dict[str, npt.NDArray[np.floating]], t: int) -> Array:
    """The values [N, W, C] of the published formulas; 0 where unknown."""
    out = np.zeros((frames["close"].shape[1], W, len(NAMES)))
    for n, w, c in np.ndindex(*out.shape):
        at, name = t - (W - 1 - w), NAMES[c]
        if at >= 0:
            value = frames[name.lower()][at, n] / frames[RELATIVE[name].lower()][t, n]
            out[n, w, c] = value if np.isfinite(value) else 0.0
    return out


def with_halts() -> dict[str, npt.NDArray[np.floating]]:
    """Made prices with two halted sessions of the first firm."""
    frames: dict[str, npt.NDArray[np.floating]] = {**made_prices()}
    for x in frames.values():
        x[[100, 110], 0] = np.nan
    return frames


@pytest.mark.parametrize("t", [129, 110, 70, 30])
def test_windows_equal_the_published_formulas(t: int) -> None:
    frames = with_halts()
    expected = published(frames, t)
    assert (expected[0] == 0.0).all() == (t == 110)
    np.testing.assert_allclose(windows_at(tensors(panel_of(frames)), t), expected, rtol=1e-5, atol=1e-6)


def test_windows_equal_those_of_an_installed_qlib() -> None:
    pytest.importorskip("qlib", reason="qlib is not installed; the extra `peers` installs it")
    frames = with_halts()
    values, data = values_of_qlib(frames, "Alpha360"), tensors(panel_of(frames))
    assert len(values) == W * len(NAMES)
    for t in (129, 110, 90):
        ours = windows_at(data, t)
        for name, (c, w) in {
            f"{n}{W - 1 - w}": (c, w) for c, n in enumerate(NAMES) for w in range(W)
        }.items():
            expected_N = np.nan_to_num(values[name][t])
            np.testing.assert_allclose(ours[:, w, c], expected_N, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.skipif(not CSI300.exists(), reason="the CSI 300 prices are not beside the checkout")
def test_windows_of_the_csi_300_equal_those_of_adjusted_prices() -> None:
    """Prices as quoted with their splits, against prices adjusted backwards from the last session."""
    rows = pl.read_parquet(CSI300).filter(
        pl.col("date").is_between(dt.date(2015, 1, 5), dt.date(2016, 12, 30))
    )
    split = rows.filter(pl.col("split_ratio") != 1.0)["ticker"].unique().sort()[:40]
    rows = (
        rows.filter(pl.col("ticker").is_in(split)).with_columns(dividend=pl.lit(0.0)).sort("ticker", "date")
    )
    factor = pl.col("split_ratio").fill_null(1.0).cum_prod().over("ticker")
    adjusted = rows.with_columns(factor / factor.last().over("ticker"))
    panel, data = build_panel(rows), tensors(build_panel(rows))
    dates = panel.dates_T.astype("datetime64[D]").tolist()
    names = {name.lower() for name in NAMES}
    frames = {name: np.full(panel.close_TN.shape, np.nan) for name in names}
    at = [dates.index(day) for day in adjusted["date"]]
    firm = [panel.tickers_N.index(ticker) for ticker in adjusted["ticker"]]
    for name in names:
        values = (
            adjusted[name] / adjusted["split_ratio"]
            if name == "volume"
            else adjusted[name] * adjusted["split_ratio"]
        )
        frames[name][at, firm] = values
    quiet = frames["volume"] == 0
    frames["volume"][quiet] = np.nan
    for t in range(80, len(dates), 45):
        expected = published(frames, t)
        assert (expected != 0).mean() > 0.5
        np.testing.assert_allclose(windows_at(data, t), expected, rtol=1e-5, atol=1e-6)


def test_every_day_is_scaled_by_the_training_sessions() -> None:
    panel = panel_of(with_halts())
    channels = alpha360().compute(panel, NAMES)
    everyone, train = np.ones(panel.close_TN.shape, dtype=bool), np.arange(60, 100)
    scaler = fit_channel_scaler(channels, everyone, train, bases_of(NAMES), W)
    ratios = np.stack([windows_at(tensors(panel), t) for t in train.tolist()]).reshape(-1, W, len(NAMES))
    known = np.where(ratios == 0, np.nan, ratios).astype(np.float64)
    low, high = np.nanquantile(known, [0.001, 0.999], axis=0)
    known = np.clip(known, low, high)
    assert scaler.relative is not None
    np.testing.assert_allclose(scaler.relative.mean_WC, np.nanmean(known, axis=0), rtol=1e-4)
    deviation = np.nanstd(known, axis=0)
    assert (scaler.relative.std_WC[-1, [0, 4]] == np.inf).all(), "today's close and volume are always 1"
    varies = np.isfinite(scaler.relative.std_WC)
    assert varies.sum() == W * len(NAMES) - 2
    np.testing.assert_allclose(scaler.relative.std_WC[varies], deviation[varies], rtol=1e-3)
    for t in (99, 129):
        raw, scaled = windows_at(tensors(panel), t), windows_at(tensors(panel, scaler), t)
        expected = (raw - scaler.relative.mean_WC) / scaler.relative.std_WC
        np.testing.assert_allclose(scaled, np.where(raw == 0, 0.0, np.clip(expected, -5, 5)), atol=2e-4)
    again = ChannelScaler.of(scaler.arrays(), scaler.clip)
    np.testing.assert_array_equal(
        windows_at(tensors(panel, again), 99), windows_at(tensors(panel, scaler), 99)
    )
    later = channels.copy()
    later[100:] = 7.0
    other = fit_channel_scaler(later, everyone, train, bases_of(NAMES), W)
    for name, value in scaler.arrays().items():
        np.testing.assert_array_equal(other.arrays()[name], value)


def test_windows_do_not_depend_on_later_prices_or_splits() -> None:
    frames = with_halts()
    before = windows_at(tensors(panel_of(frames)), 99)
    later = {name: np.where(np.arange(130)[:, None] > 99, 3.0 * x, x) for name, x in frames.items()}
    split = np.where((np.arange(130)[:, None] == 105) | np.zeros((130, 3), dtype=bool), 2.0, 1.0)
    np.testing.assert_array_equal(windows_at(tensors(panel_of(later, split_ratio=split)), 99), before)


def test_batches_gather_the_same_windows_wherever_the_panel_lies() -> None:
    panel = panel_of(with_halts())
    here, far = tensors(panel), tensors(panel, in_host_memory=True)
    np.testing.assert_array_equal(here.batch(torch.tensor([99])).x_BNWC[0].numpy(), windows_at(here, 99))
    np.testing.assert_array_equal(far.batch(torch.tensor([99])).x_BNWC[0].numpy(), windows_at(here, 99))
    with pytest.raises(ValueError, match="windows of 60 sessions, not 20"):
        PanelTensors.from_arrays(
            channels_TNC=alpha360().compute(panel, NAMES),
            characteristics_TNF=np.zeros((130, 3, 1)),
            mask_TN=np.ones((130, 3), dtype=bool),
            group_TN=np.full((130, 3), -1),
            target_TN=np.full((130, 3), np.nan),
            window=20,
            scaler=fit_channel_scaler(
                alpha360().compute(panel, NAMES), np.ones((130, 3), bool), np.arange(90), bases_of(NAMES), W
            ),
        )


def test_the_next_day_is_not_predicted_from_windows_that_give_it_away() -> None:
    data, how = tensors(panel_of(with_halts())), PretrainConfig(objective="next_day")
    encoder = DayEncoder(EncoderConfig(width=8, heads=2), len(NAMES), W)
    with pytest.raises(IncompatibleConfig, match="next_day, but channels are relative to the last session"):
        pretrain(encoder, data, np.arange(60, 90), FitConfig(pretrain=how), seed=0)


def test_the_set_names_channels_and_refuses_one_without_its_base() -> None:
    assert default_channels("alpha360") == list(NAMES)
    assert default_channels("all")[-len(NAMES) :] == list(NAMES)
    assert not set(NAMES) & set(default_channels("alpha158"))
    assert default_characteristics("alpha360", {"mine": "close"}) == ["return_1", "mine"]
    with pytest.raises(ValueError, match="HIGH is relative to CLOSE: name CLOSE among the channels"):
        bases_of(["return", "HIGH"])
