"""The losses of a portfolio: against Markowitz, a ledger, finite differences and a market with a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_panels import TEST, TRAIN, VALID, T, W, arrays, fitted, options_of, panel
from torch import Tensor

from backtest.books.book import BookInputs
from backtest.books.rules.forecast_weights import ForecastWeights
from backtest.books.schedules import every_session
from models.batch import Batch, PanelTensors
from models.fitted import Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from models.fitting.loop import SingleSeed, draw_dates
from models.fitting.losses import label_loss, net_utility, sharpe
from models.fitting.memory import what_fits
from models.forecaster import Forecaster
from models.spec import IncompatibleConfig

B, N, PLACES = 5, 9, 7


def block(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, returns, known cells and firms of consecutive dates whose firms come and go."""
    rng = np.random.default_rng(seed)
    firms = torch.tensor(np.stack([rng.permutation(N)[:PLACES] for _ in range(B)]))
    y, r = (torch.tensor(rng.normal(scale=scale, size=(B, PLACES))) for scale in (1.0, 0.03))
    known = torch.tensor(rng.random((B, PLACES)) < 0.8)
    return y, torch.where(known, r, torch.nan), known, firms


def by_ledger(risk_aversion: float, cost: float, of: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    """Minus the utility, from a ledger of money by firm."""
    y, r, known, firms = (one.detach().numpy() for one in of)
    before: dict[int, float] | None = None
    utilities = []
    for b in range(len(y)):
        if not known[b].any():
            before = None
            continue
        centred = y[b] - y[b][known[b]].mean()
        gross = np.abs(centred[known[b]]).sum()
        weights = {int(firms[b, i]): 2 * centred[i] / gross for i in np.flatnonzero(known[b])}
        earned = sum(weights[int(firms[b, i])] * r[b, i] for i in np.flatnonzero(known[b]))
        traded = 0.0
        if before is not None:
            names = {*weights, *before}
            traded = sum(abs(weights.get(name, 0.0) - before.get(name, 0.0)) for name in names)
        utilities.append(earned - risk_aversion / 2 * earned**2 - cost * traded)
        before = {
            int(firms[b, i]): weights[int(firms[b, i])] * (1 + r[b, i]) / (1 + earned)
            for i in np.flatnonzero(known[b])
        }
    return -float(np.mean(utilities))


@pytest.mark.parametrize("seed", range(3))
def test_net_utility_is_that_of_a_ledger(seed: int) -> None:
    of = block(seed)
    if seed == 2:
        of[2][2] = False  # a date without a known return
    for risk_aversion, cost in ((0.0, 0.0), (5.0, 0.0), (5.0, 0.01)):
        ours = float(net_utility(*of, risk_aversion, cost))
        assert ours == pytest.approx(by_ledger(risk_aversion, cost, of), rel=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    y, r, known, firms = block()
    y.requires_grad_()
    assert torch.autograd.gradcheck(lambda y: sharpe(y, r, known), (y,))
    assert torch.autograd.gradcheck(lambda y: net_utility(y, r, known, firms, 5.0, 0.01), (y,))


def test_a_network_without_outputs_has_no_book_and_a_finite_gradient() -> None:
    _, r, known, firms = block()
    y = torch.zeros(r.shape, dtype=torch.float64, requires_grad=True)
    loss = net_utility(y, r, known, firms, 5.0, 0.01)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert y.grad is not None
    assert y.grad.isfinite().all()
    assert (y.grad[~known] == 0).all()


def test_the_optimum_of_sharpe_is_markowitz() -> None:
    """Weights that are the same on every date end at the tangency portfolio of the sample, dollar-neutral."""
    rng = np.random.default_rng(0)
    firms, dates = 6, 4000
    mean, root = rng.normal(0.05, 0.1, firms), rng.normal(size=(firms, firms))
    r = torch.tensor(mean + rng.normal(size=(dates, firms)) @ root.T)
    y = torch.zeros(firms, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([y], lr=1.0, max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = sharpe(y.expand(dates, -1), r, torch.ones(dates, firms, dtype=torch.bool))
        loss.backward()
        return loss

    solver.step(closure)
    ours = (y - y.mean()).detach().numpy()
    # dollar-neutral weights are combinations of firms against the last one
    spread = np.vstack((np.eye(firms - 1), -np.ones(firms - 1)))
    of_spreads = r.numpy() @ spread
    want = spread @ np.linalg.solve(np.cov(of_spreads.T), of_spreads.mean(axis=0))
    assert ours @ want / np.linalg.norm(ours) / np.linalg.norm(want) == pytest.approx(1.0, abs=1e-6)
    planted = spread @ np.linalg.solve(spread.T @ root @ root.T @ spread, spread.T @ mean)
    assert ours @ planted / np.linalg.norm(ours) / np.linalg.norm(planted) > 0.9


def test_the_portfolio_earns_the_raw_return_and_not_the_target() -> None:
    given = arrays()
    ranked = np.sign(given["target_TN"])
    data = panel({**given, "target_TN": ranked, "return_TN": given["target_TN"]})
    config = FitConfig(loss="sharpe")
    module = linear(data)
    batch = data.batch(torch.arange(8, 12))
    known = batch.m_BN & batch.y_BN.isfinite()
    y = batch.z_BNF[..., 1]
    assert batch.r_BN is not None
    assert not torch.equal(batch.r_BN[known], batch.y_BN[known])
    module.return_scale.fill_(0.02)
    want = sharpe(y, batch.r_BN / 0.02, known)
    outputs = y * module.target_scale
    torch.testing.assert_close(label_loss(module, config, outputs, batch, known), want)
    by_default = replace(data, return_TN=None).batch(torch.arange(8, 12))
    ours = label_loss(module, config, outputs, by_default, known)
    torch.testing.assert_close(ours, sharpe(y, by_default.y_BN / 0.02, known))
    model = fit("mlp", options_of("mlp", {}), data, TRAIN, VALID, fit_config=replaced(config), seed=0)
    assert isinstance(model, NeuralFitted)
    assert float(model.module.target_scale) > 0.9
    assert float(model.module.return_scale) == pytest.approx(0.0141, abs=0.001)
    assert "return_scale" not in model.state().tensors


def replaced(config: FitConfig, **options: Any) -> FitConfig:  # noqa: ANN401 (settings of the training)
    return config.model_copy(update={"epochs": 2, "batch_dates": 4, "dates_per_epoch": 8, **options})


def linear(data: PanelTensors) -> Forecaster:
    model = fitted("mlp", data)
    assert isinstance(model, NeuralFitted)
    return model.module


def test_blocks_are_consecutive_sessions_and_span_no_gap() -> None:
    train = torch.tensor([*range(10, 30), *range(33, 50), 60, 61])
    config = FitConfig(loss="net_utility", batch_dates=6)
    seen = set()
    for seed in range(20):
        drawn = draw_dates(train, config, torch.Generator().manual_seed(seed)).view(-1, 6)
        assert len(drawn) == 7, "as many blocks as hold the 39 sessions"
        assert (drawn.diff(dim=1) == 1).all()
        assert len(set(drawn[:, 0].tolist())) == 7
        seen |= set(drawn.flatten().tolist())
    assert seen == {*range(10, 30), *range(33, 50)}
    few = config.model_copy(update={"dates_per_epoch": 4})
    assert draw_dates(train, few, torch.Generator()).shape == (4,)
    with pytest.raises(IncompatibleConfig, match="needs 25 training sessions in a row"):
        draw_dates(train, config.model_copy(update={"batch_dates": 25}), torch.Generator())
    alone = draw_dates(train, FitConfig(), torch.Generator().manual_seed(3))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(alone, train[order])


@pytest.mark.parametrize("more", [{"firms_per_date": 3}, {"label_share": 0.5}])
def test_what_breaks_a_block_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="follows firms over consecutive sessions"):
        FitConfig(loss="net_utility", **more)


@pytest.mark.parametrize("more", [{"batch_dates": 1}, {"dates_per_epoch": 1}])
def test_a_block_of_one_session_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="between two sessions of a batch"):
        FitConfig(loss="net_utility", **more)
    FitConfig(loss="sharpe", **more)


def test_settings_of_net_utility_decide_nothing_else() -> None:
    assert "risk_aversion" not in FitConfig().deciding()
    assert FitConfig(loss="net_utility", risk_aversion=3.0).deciding()["risk_aversion"] == 3.0


def test_a_block_is_never_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.fitting.loop.CPU_CELLS", 1)
    data = panel()
    for loss, at_once in (("sharpe", 1), ("net_utility", 8)):
        config = FitConfig.model_validate({"loss": loss})
        assert SingleSeed(linear(data), data, config, 0, TRAIN).dates_at_once == at_once
        sizes = data.shape, 24, 2, data.device
        assert what_fits(linear(data), config, *sizes, free=0.0) == (1, at_once)


def slow_and_fast(seed: int = 0) -> dict[str, Any]:
    """Returns follow a characteristic that hardly changes and, more so, one that is new every session."""
    rng = np.random.default_rng(seed)
    given = arrays()
    z = given["characteristics_TNF"]
    slow = np.cumsum(rng.normal(size=z.shape[:2]) * 0.05, axis=0) + rng.normal(size=z.shape[1])
    z[:, :, 0] = slow / slow.std()
    given["mask_TN"][:] = True
    given["target_TN"] = 0.01 * (0.5 * z[:, :, 0] + 0.8 * z[:, :, 1] + 0.3 * rng.normal(size=z.shape[:2]))
    return given


def turnover(model: Fitted, data: PanelTensors) -> float:
    weight = ForecastWeights().targets(
        BookInputs(model.forecast(data, np.arange(T - 20, T)), every_session(20))
    )
    return float(np.abs(np.diff(weight.target_TN, axis=0)).sum(axis=1).mean())


def test_net_utility_trades_less_the_more_it_costs() -> None:
    data = PanelTensors.from_arrays(**slow_and_fast(), window=W, n_groups=3)
    found = []
    for cost in (0.0, 40.0, 400.0):
        config = FitConfig(
            loss="net_utility", turnover_cost_bps=cost, epochs=12, patience=12, batch_dates=10, lr=2e-2
        )
        # the last weights count here, and not those with the best IC
        model = fit(
            "sector_mean",
            options_of("sector_mean", {"recent_days": 0}),
            data,
            TRAIN,
            VALID,
            fit_config=config,
            seed=0,
        )
        found.append((turnover(model, data), model))
    traded = [one for one, _ in found]
    assert traded[0] > 1.0
    assert traded[2] < traded[1] < traded[0]
    assert traded[2] < 0.6 * traded[0]


@pytest.mark.parametrize("loss", ["sharpe", "net_utility"])
def test_bf16_has_nearly_the_loss_of_float32(loss: str) -> None:
    data, losses = panel(), []
    for precision in ("float32", "bf16"):
        config = FitConfig.model_validate({"loss": loss, "precision": precision, "batch_dates": 6})
        torch.manual_seed(0)
        module = linear(data).train(mode=False)
        module.return_scale.fill_(0.014)
        engine = SingleSeed(module, data, config, 0, TRAIN)
        step = engine.step(torch.arange(20, 26)[None], torch.optim.SGD(module.parameters(), lr=0.0))
        assert step[0].dtype == torch.float32
        losses.append(float(step[0]))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert losses[1] != losses[0]


def test_one_date_alone_pays_nothing() -> None:
    data = panel()
    batch: Batch = data.batch(torch.tensor([20]))
    known = batch.m_BN & batch.y_BN.isfinite()
    free, dear = (
        label_loss(
            linear(data),
            FitConfig(loss="net_utility", turnover_cost_bps=cost),
            batch.z_BNF[..., 1],
            batch,
            known,
        )
        for cost in (0.0, 1000.0)
    )
    assert float(free) == float(dear) < 0


def test_the_book_holds_the_weights_that_were_trained() -> None:
    """Calibration moves and stretches the outputs of a date; centred and scaled they are the same weights."""
    data = panel()
    model = fitted("mlp", data, config=replaced(FitConfig(loss="net_utility")))
    assert isinstance(model, NeuralFitted)
    assert model.module.calibration is not None
    signal = model.forecast(data, TEST)
    model.module.calibration = None
    ours = ForecastWeights().targets(BookInputs(signal, every_session(len(TEST)))).target_TN
    raw = model.forecast(data, TEST).astype(np.float64)
    centred = raw - np.nanmean(raw, axis=1, keepdims=True)
    want = np.nan_to_num(2 * centred / np.nansum(np.abs(centred), axis=1, keepdims=True))
    np.testing.assert_allclose(ours, want, atol=2e-4)
