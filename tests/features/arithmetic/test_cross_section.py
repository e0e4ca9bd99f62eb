"""Universe, targets, cross-sectional transforms and the channel scaler against independent references."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
from scipy import stats

from features.arithmetic.transforms import neutralise, rank_normal, winsorise, zscore
from features.library.scaling import ChannelScaler, fit_channel_scaler
from features.panel.holding import forward_returns, target
from features.panel.panel import Panel, build_panel
from features.panel.universe import UniverseRule, universe, universe_messages

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
nan = float("nan")
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(120)]


def cross_section(seed: int) -> tuple[FloatArray, BoolArray]:
    """Draw values with ties, gaps, infinities and an empty date, and a mask."""
    rng = np.random.default_rng(seed)
    x_TN = np.round(rng.normal(size=(130, 37)), 1)
    x_TN[rng.random(x_TN.shape) < 0.1] = nan
    x_TN[3, :4] = [np.inf, -np.inf, 1e300, -1e300]
    x_TN[5] = nan
    x_TN[7] = 2.5
    mask_TN = rng.random(x_TN.shape) < 0.8
    mask_TN[9] = False
    mask_TN[9, 4] = True
    x_TN[9, 4] = 7.0
    return x_TN, mask_TN


def by_date(x_TN: FloatArray, mask_TN: BoolArray, of: Callable[[FloatArray], FloatArray]) -> FloatArray:
    out_TN = np.full(x_TN.shape, nan)
    for t in range(len(x_TN)):
        use = mask_TN[t] & np.isfinite(x_TN[t])
        if use.any():
            out_TN[t, use] = of(x_TN[t, use])
    return out_TN


def test_rank_normal_equals_scipy_ranks_and_normal_quantiles() -> None:
    x_TN, mask_TN = cross_section(0)
    expected = by_date(x_TN, mask_TN, lambda v: stats.norm.ppf((stats.rankdata(v) - 0.5) / len(v)))
    actual = rank_normal(x_TN, mask_TN)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
    assert actual[9, 4] == 0.0
    assert np.isnan(actual[5]).all()
    np.testing.assert_array_equal(actual[7][mask_TN[7]], 0.0)  # all values are tied


def test_zscore_and_winsorise_equal_numpy_loops() -> None:
    x_TN, mask_TN = cross_section(1)
    x_TN[3, 2:4] = 0.0
    expected = by_date(x_TN, mask_TN, lambda v: (v - v.mean()) / (v.std() or 1.0))
    np.testing.assert_allclose(zscore(x_TN, mask_TN), expected, rtol=1e-5, atol=1e-6)
    expected = by_date(x_TN, mask_TN, lambda v: np.clip(v, *np.quantile(v, [0.05, 0.95])))
    np.testing.assert_allclose(winsorise(x_TN, mask_TN, 0.05), expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"tail is 0\.5; it must be a share"):
        winsorise(x_TN, mask_TN, 0.5)


def test_neutralise_subtracts_group_means() -> None:
    x_TN, mask_TN = cross_section(2)
    x_TN[3] = nan
    group_TN = np.random.default_rng(2).integers(-1, 4, x_TN.shape)
    frame = pd.DataFrame(
        {
            "t": np.repeat(np.arange(len(x_TN)), x_TN.shape[1]),
            "g": group_TN.ravel(),
            "x": np.where(mask_TN, x_TN, nan).ravel(),
        }
    )
    expected = (frame["x"] - frame.groupby(["t", "g"])["x"].transform("mean")).to_numpy().reshape(x_TN.shape)
    expected = np.where(group_TN < 0, nan, expected)  # firms without a group have no group mean
    np.testing.assert_allclose(neutralise(x_TN, group_TN, mask_TN), expected, rtol=1e-5, atol=1e-6)


def test_firms_of_unknown_group_do_not_form_a_group() -> None:
    """Values of ungrouped firms do not change other firms' results, and their own results are NaN."""
    x_TN, mask_TN = cross_section(8)
    group_TN = np.random.default_rng(8).integers(-1, 3, x_TN.shape)
    before = neutralise(x_TN, group_TN, mask_TN)
    assert np.isnan(before[group_TN < 0]).all()
    assert np.isfinite(before[group_TN >= 0]).any()
    moved_TN = np.where(group_TN < 0, 1000.0 * x_TN + 7.0, x_TN)
    np.testing.assert_array_equal(neutralise(moved_TN, group_TN, mask_TN), before)


def test_transforms_of_a_date_are_bitwise_independent_of_other_dates() -> None:
    x_TN, mask_TN = cross_section(3)
    x_TN[3, 2:4] = 0.0
    group_TN = np.random.default_rng(3).integers(-1, 4, x_TN.shape)
    for t in (0, 64, 100, 129):
        one = slice(t, t + 1)
        for transform in (rank_normal, zscore, winsorise):
            assert transform(x_TN, mask_TN)[one].tobytes() == transform(x_TN[one], mask_TN[one]).tobytes()
        whole = neutralise(x_TN, group_TN, mask_TN)[one]
        assert whole.tobytes() == neutralise(x_TN[one], group_TN[one], mask_TN[one]).tobytes()


def test_transforms_treat_each_characteristic_separately() -> None:
    x_TN, mask_TN = cross_section(4)
    x_TNF = np.stack([x_TN, -x_TN], axis=2)
    np.testing.assert_array_equal(rank_normal(x_TNF, mask_TN)[:, :, 1], rank_normal(-x_TN, mask_TN))
    with pytest.raises(ValueError, match=r"shape of the mask is \(129, 37\); it must be \(130, 37\)"):
        rank_normal(x_TNF, mask_TN[1:])


def test_targets_use_only_the_date_and_the_universe() -> None:
    label_TN, universe_TN = cross_section(5)
    label_TN[3] = nan
    inside_TN = np.where(universe_TN, label_TN, nan)
    np.testing.assert_array_equal(target(label_TN, universe_TN, "raw"), inside_TN.astype(np.float32))
    expected = by_date(label_TN, universe_TN, lambda v: v - v.mean())
    np.testing.assert_allclose(target(label_TN, universe_TN, "demean"), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(target(label_TN, universe_TN, "zscore"), zscore(label_TN, universe_TN))
    np.testing.assert_array_equal(target(label_TN, universe_TN, "rank"), rank_normal(label_TN, universe_TN))
    with pytest.raises(ValueError, match="Unknown target 'median': choose raw, demean, zscore or rank"):
        target(label_TN, universe_TN, "median")  # type: ignore[arg-type]  # wrong on purpose


def panel_of(
    close_TN: FloatArray, volume_TN: FloatArray | None, securities: pl.DataFrame | None = None
) -> Panel:
    rows = [
        {
            "date": DAYS[t],
            "ticker": f"F{i}",
            "close": close_TN[t, i],
            "volume": None if volume_TN is None else volume_TN[t, i],
        }
        for t, i in zip(*np.nonzero(~np.isnan(close_TN)), strict=True)
    ]
    prices = pl.DataFrame(rows, schema_overrides={"volume": pl.Float64})
    null = pl.lit(None, dtype=pl.Float64)
    return build_panel(
        prices.with_columns(open=null, high=null, low=null, split_ratio=pl.lit(1.0), dividend=pl.lit(0.0)),
        securities,
    )


def market(seed: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    close_TN = 10 * np.exp(np.cumsum(rng.normal(0, 0.05, (120, 6)), axis=0))
    close_TN[rng.random(close_TN.shape) < 0.1] = nan
    close_TN[:30, 2] = nan
    close_TN[70:, 3] = nan
    close_TN[:, 0] = np.where(np.isnan(close_TN[:, 0]), 10.0, close_TN[:, 0])
    return close_TN, rng.uniform(100, 1000, close_TN.shape)


def test_universe_equals_a_loop_over_firms_and_sessions() -> None:
    close_TN, volume_TN = market(0)
    rule = UniverseRule(min_price=9.0, min_dollar_volume=5_000.0, dollar_volume_window=11, min_history=20)
    membership = pl.DataFrame(
        [
            {"ticker": "F0", "from_date": DAYS[25], "to_date": DAYS[100]},
            *[{"ticker": f"F{i}", "from_date": None, "to_date": None} for i in range(1, 5)],
        ],
        schema_overrides={"from_date": pl.Date, "to_date": pl.Date},
    )
    expected_TN = np.zeros(close_TN.shape, dtype=np.bool_)
    for t, i in np.ndindex(*close_TN.shape):
        traded = (close_TN * volume_TN)[max(t - 10, 0) : t + 1, i]
        traded = traded[~np.isnan(traded)]
        expected_TN[t, i] = (
            close_TN[t, i] >= 9.0
            and (~np.isnan(close_TN[: t + 1, i])).sum() >= 20
            and len(traded) >= 6
            and np.median(traded) >= 5_000.0
            and i != 5
            and (i != 0 or 25 <= t < 100)
        )
    actual_TN = universe(panel_of(close_TN, volume_TN), rule, membership)
    assert 50 < expected_TN.sum() < 400
    np.testing.assert_array_equal(actual_TN, expected_TN)


def test_a_firm_that_is_delisted_tomorrow_is_in_the_universe_today() -> None:
    close_TN = np.full((40, 2), 10.0)
    close_TN[21:, 1] = nan
    delisting = {"ticker": "F1", "valid_from": DAYS[0], "delisted_on": DAYS[21], "delisting_return": -0.3}
    texts = ("sector", "industry", "delisting_reason", "exchange")
    dates = ("delisted_on", "valid_to")
    types = {**dict.fromkeys(texts, pl.String()), **dict.fromkeys(dates, pl.Date())}
    securities = pl.DataFrame([delisting]).with_columns(
        pl.lit(None, dtype=kind).alias(name) for name, kind in types.items() if name not in delisting
    )
    panel = panel_of(close_TN, None, securities)
    inside_TN = universe(panel, UniverseRule(min_history=5))
    assert inside_TN[20, 1]
    assert not inside_TN[21, 1]
    assert forward_returns(panel, 0, 1)[20, 1] == pytest.approx(-0.3)


def test_without_volume_the_dollar_volume_limit_is_reported_as_not_applied() -> None:
    close_TN, _ = market(1)
    panel = panel_of(close_TN, None)
    rule = UniverseRule(min_dollar_volume=1e6, min_history=5)
    np.testing.assert_array_equal(universe(panel, rule), universe(panel, UniverseRule(min_history=5)))
    assert universe_messages(panel, rule) == (
        "min_dollar_volume (1,000,000) is not applied: the data have no volume.",
    )
    assert universe_messages(panel, UniverseRule()) == ()


def test_invalid_universe_input_raises_with_a_remedy() -> None:
    close_TN, _ = market(2)
    rows = [{"universe": u, "ticker": "F0", "from_date": DAYS[0], "to_date": DAYS[9]} for u in ("x", "y")]
    with pytest.raises(ValueError, match=r"several universes \(x, y\): filter it to one"):
        universe(panel_of(close_TN, None), UniverseRule(), pl.DataFrame(rows))
    with pytest.raises(ValueError, match=r"min_history\n.*greater than or equal to 1"):
        UniverseRule(min_history=0)


def test_labels_equal_a_loop_over_orders_for_all_delays_and_horizons() -> None:
    close_TN, _ = market(3)
    panel = panel_of(close_TN, None)
    unfilled = 0
    for delay, horizon in ((0, 1), (1, 1), (1, 5), (2, 21), (100, 10)):
        actual_TN = forward_returns(panel, delay, horizon)
        for t, n in np.ndindex(close_TN.shape):
            buy, end = t + delay, t + delay + horizon
            expected = nan
            if end < 120 and not np.isnan(close_TN[: buy + 1, n]).all():
                if np.isnan(close_TN[buy, n]):
                    expected, unfilled = (
                        0.0,
                        unfilled + 1,
                    )  # the firm does not trade, so the money stays in cash
                else:
                    ended = [s for s in range(buy + 1, end + 1) if panel.delisted_TN[s, n]]
                    expected = panel.total_return_index_TN[min([end, *ended]), n] / close_TN[buy, n] - 1
            assert np.isnan(actual_TN[t, n]) == np.isnan(expected)
            assert np.isnan(expected) or actual_TN[t, n] == pytest.approx(expected, abs=1e-14)
    assert unfilled > 50
    assert np.isnan(forward_returns(panel, 100, 30)).all()
    with pytest.raises(ValueError, match="delay 0 and horizon 0; they must be at least 0 and at least 1"):
        forward_returns(panel, 0, 0)


def test_scaler_is_fitted_only_on_given_sessions_and_universe() -> None:
    rng = np.random.default_rng(0)
    channels_TNC = rng.normal([0.0, 3.0], [1.0, 0.2], (60, 40, 2)).astype(np.float32)
    channels_TNC[rng.random(channels_TNC.shape) < 0.1] = np.nan
    universe_TN = rng.random((60, 40)) < 0.7
    train = np.arange(10, 40)
    scaler = fit_channel_scaler(channels_TNC, universe_TN, train)
    for c in range(2):
        seen = channels_TNC[train, :, c][universe_TN[train]].astype(np.float64)
        seen = seen[np.isfinite(seen)]
        seen = np.clip(seen, np.quantile(seen, 0.001), np.quantile(seen, 0.999))
        assert scaler.mean_C[c] == pytest.approx(seen.mean(), rel=1e-12)
        assert scaler.std_C[c] == pytest.approx(seen.std(), rel=1e-12)
    spoilt_TNC = channels_TNC.copy()
    spoilt_TNC[:10] = 1e6
    spoilt_TNC[40:] = -1e6
    spoilt_TNC[~universe_TN] = 1e9
    other = fit_channel_scaler(spoilt_TNC, universe_TN, train)
    assert scaler.mean_C.tobytes() == other.mean_C.tobytes()
    assert scaler.std_C.tobytes() == other.std_C.tobytes()


def test_scaler_clips_and_replaces_unknown_values_by_the_mean() -> None:
    scaler = ChannelScaler(np.array([1.0, 0.0]), np.array([2.0, 1.0]), clip=3.0)
    scaled = scaler.apply(np.array([[[5.0, np.nan], [100.0, -100.0]]]))
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, [[[2.0, 0.0], [3.0, -3.0]]])
    with pytest.raises(ValueError, match="channels' last axis"):
        scaler.apply(np.zeros((1, 1, 3)))


@pytest.mark.parametrize("value", [nan, 3.0])
def test_channel_constant_in_training_is_zero_afterwards(value: float) -> None:
    channels_TNC = np.random.default_rng(0).normal(size=(9, 3, 2))
    channels_TNC[:5, :, 1] = value
    scaler = fit_channel_scaler(channels_TNC, np.ones((9, 3), dtype=np.bool_), np.arange(5))
    scaled_TNC = scaler.apply(channels_TNC)
    assert (scaled_TNC[..., 1] == 0.0).all()
    assert (scaled_TNC[..., 0] != 0.0).all()
