"""The audit catches code that looks ahead after the features: labels, executors, ensembles and books.

Each leak replaces one function of the pipeline, and the check that must find it names its cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from audit_markets import Array, Tables, ahead, make_subject, market, with_shorter_horizons

from backtest.splits.folds import LivePlan
from features.library.channels import CHANNELS
from features.panel.delistings import DelistingRule, Delistings, find_delistings
from features.panel.derived import daily_return
from features.panel.holding import forward_returns
from features.panel.panel import Panel
from models.batch import Batch, PanelTensors
from pipelines.audit.checks.features import draw_of_every_kind, kinds_of_dates, same_up_to_rounding
from pipelines.audit.checks.labels import holder_values
from pipelines.audit.registry import CHECKS
from pipelines.audit.subject import Subject
from pipelines.config.schema import Config
from pipelines.config.sections import EngineConfig
from pipelines.dataset import market as markets
from pipelines.execution.pool import SerialEngine
from pipelines.execution.protocol import Work
from pipelines.results import books, evaluate
from pipelines.train.task import run_stack

Market = tuple[Config, Tables]
FEW = {"channels": ["return"], "window": 5, "characteristics": ["return_5", "group_return_1"]}


@pytest.fixture(scope="module")
def base(tiny_settings: Mapping[str, Any], every_model: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = ("ridge", "temporal_peer", "self_peer")
    return {**tiny_settings, "models": {name: every_model[name] for name in names}, "features": FEW}


@pytest.fixture(scope="module")
def honest(base: dict[str, Any]) -> Market:
    return market(base)


def changed(honest: Market, **settings: object) -> Market:
    config, tables = honest
    return config.model_copy(update=settings), tables


def on_the_test(task: Any) -> Any:  # noqa: ANN401 (a task)
    """The task, with a fold that trains on its validation and test as well."""
    wide = np.concatenate([task.fold.train, task.fold.valid, task.fold.test])
    return dataclasses.replace(task, fold=dataclasses.replace(task.fold, train=wide))


@pytest.mark.parametrize("name", ["labels", "ensembles", "books", "dates", "fit_scope", "forecasts"])
def test_honest_code_passes(name: str, honest: Market) -> None:
    config, tables = changed(with_shorter(honest), stack_seeds=True, seeds=(0, 1))
    result = CHECKS[name](make_subject(config, tables))
    assert result.verdict == "pass", result.sentence


def with_shorter(honest: Market) -> Market:
    config, tables = honest
    return with_shorter_horizons(config), tables


def test_pretraining_before_a_refit_reads_windows_between_training_and_validation(honest: Market) -> None:
    fit = {"refit": True, "pretrain": {"epochs": 1, "windows_per_epoch": 64}}
    models = {"temporal_peer": {**honest[0].models["temporal_peer"], "fit": fit}}
    result = CHECKS["fit_scope"](make_subject(*changed(honest, models=models)))
    assert result.verdict == "pass", result.sentence


class GreedyPool(SerialEngine[Any, Any, Any]):
    """A pool whose workers train on the test as well."""

    def __init__(self, planned: Work[Any, Any, Any], workers: int, gpus: Any) -> None:  # noqa: ANN401 (as the pool)
        def call(arrays: Any, item: Any, tell: Any) -> Any:  # noqa: ANN401 (patched)
            group = tuple(on_the_test(task) for task in item.group)
            return planned.call(arrays, dataclasses.replace(item, group=group), tell)

        super().__init__(dataclasses.replace(planned, call=call))

    def __enter__(self) -> GreedyPool:
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""


def workers(count: int) -> EngineConfig:
    return EngineConfig(engine="pool", workers=count)


def test_a_pool_that_trains_on_the_test_is_caught(honest: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.execution.pool.PoolEngine", GreedyPool)
    alone = CHECKS["fit_scope"](make_subject(*changed(honest, execution=workers(1))))
    assert alone.verdict == "pass", alone.sentence
    result = CHECKS["fit_scope"](make_subject(*changed(honest, execution=workers(2))))
    assert result.verdict == "fail"
    assert "sessions outside its training and validation sessions" in result.sentence


@pytest.mark.slow(6)
def test_the_pool_itself_is_used_and_passes(honest: Market) -> None:
    config, tables = honest
    models = {"ridge": config.models["ridge"]}
    result = CHECKS["fit_scope"](
        make_subject(*changed((config, tables), execution=workers(2), models=models))
    )
    assert result.verdict == "pass", result.sentence


def test_stacked_seeds_that_train_on_the_test_are_caught(
    honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = run_stack

    def greedy(stack: Any, arrays: Any, *rest: Any) -> Any:  # noqa: ANN401 (patched)
        return original([on_the_test(task) for task in stack], arrays, *rest)

    monkeypatch.setattr("pipelines.train.work.run_stack", greedy)
    config = changed(honest, seeds=(0, 1))[0]
    assert CHECKS["fit_scope"](make_subject(config, honest[1])).verdict == "pass", "no stack on a CPU"
    stacked = config.model_copy(update={"stack_seeds": True})
    result = CHECKS["fit_scope"](make_subject(stacked, honest[1]))
    assert result.verdict == "fail"
    assert "sessions outside its training and validation sessions" in result.sentence


@pytest.mark.parametrize(
    ("sessions", "words"), [(1, "begins 1 session too early"), (-1, "begins 1 session too late")]
)
def test_labels_one_session_off_at_every_horizon_are_caught(
    sessions: int, words: str, honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(panel: Panel, delay: int, horizon: int) -> Array:
        moved: Array = np.roll(forward_returns(panel, delay, horizon), sessions, axis=0)
        return moved

    monkeypatch.setattr(markets, "forward_returns", off)
    result = CHECKS["labels"](make_subject(*with_shorter(honest)))
    assert result.verdict == "fail"
    assert words in result.sentence
    assert result.evidence.height == 3, "all three horizons"


def test_labels_without_firms_that_stop_trading_are_caught(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def survivors(panel: Panel, delay: int, horizon: int) -> Array:
        gone_TN = panel.delisted_TN
        label_TN = forward_returns(panel, delay, horizon)
        label_TN[: -delay - horizon][gone_TN[delay + horizon :]] = np.nan
        return label_TN

    label = {"horizon": 40, "delay": 1, "transform": "demean"}
    folds = {**base["folds"], "train": 60, "max_folds": 1}
    honest = market({**base, "label": label, "folds": folds}, 3, {"delistings_per_year": 0.8})
    assert CHECKS["labels"](make_subject(*honest)).verdict == "pass"
    monkeypatch.setattr(markets, "forward_returns", survivors)
    result = CHECKS["labels"](make_subject(*honest))
    assert result.verdict == "fail"
    assert "must not be dropped because its later return is missing" in result.sentence


def test_values_of_a_holder_follow_splits_and_dividends() -> None:
    days = pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 4), eager=True)
    rows = {"date": days, "ticker": ["A"] * 4, "close": [10.0, 5.0, None, 6.0]}
    prices = pl.DataFrame({**rows, "split_ratio": [1.0, 2.0, 1.0, 1.0], "dividend": [0.0, 0.5, 0.6, 0.0]})
    panel = dataclasses.make_dataclass("P", ["dates_T", "tickers_N", "n_sessions"])(
        days.to_numpy(), ("A",), 4
    )
    value_TN = holder_values({"prices": prices}, panel, np.array([0]), DelistingRule()).value_TN
    # two shares of 5 and a dividend of 0.5 each; then 0.6 each, reinvested at 6
    assert value_TN[:, 0] == pytest.approx([10.0, 11.0, np.nan, 11.0 / 5.0 * 1.1 * 6.0], nan_ok=True)


def test_a_recorded_delisting_pays_the_last_price_and_its_return() -> None:
    days = pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 5), eager=True)
    rows = {"date": days[:2], "close": [10.0, 8.0], "split_ratio": [1.0, 1.0], "dividend": [0.0, 0.0]}
    firms = {"A": (-0.5, None), "B": (None, "performance"), "C": (None, "merger"), "D": (None, None)}
    prices = pl.concat([pl.DataFrame({**rows, "ticker": [name] * 2}) for name in firms])
    securities = pl.DataFrame(
        {
            "ticker": list(firms),
            "valid_from": [days[0]] * 4,
            "delisted_on": [days[3]] * 4,
            "delisting_return": pl.Series([paid for paid, _ in firms.values()], dtype=pl.Float64),
            "delisting_reason": pl.Series([reason for _, reason in firms.values()], dtype=pl.String),
            "exchange": ["NYSE", "Nasdaq", "NYSE", "NYSE"],
        }
    )
    panel = dataclasses.make_dataclass("P", ["dates_T", "tickers_N", "n_sessions"])(
        days.to_numpy(), tuple(firms), 5
    )
    tables, rule = {"prices": prices, "securities": securities}, DelistingRule(unknown_return=-0.2)
    paid_TN = holder_values(tables, panel, np.arange(4), rule).paid_TN
    assert np.isnan(paid_TN[:3]).all(), "before the day of the delisting"
    assert paid_TN[3] == pytest.approx([4.0, 8.0 * 0.45, 8.0, 6.4])
    assert paid_TN[4] == pytest.approx(paid_TN[3])


def test_payouts_without_the_delisting_return_are_caught(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folds = {**base["folds"], "train": 60, "max_folds": 1}
    settings = {**base, "label": {"horizon": 20, "delay": 1, "transform": "demean"}, "folds": folds}

    def last_prices(*arguments: Any, **named: Any) -> Delistings:  # noqa: ANN401 (passed on)
        found = find_delistings(*arguments, **named)
        return dataclasses.replace(found, value_ratio_TN=np.ones_like(found.value_ratio_TN))

    for seed in (3, 4):
        changes = {"delistings_per_year": 0.8}
        honest = CHECKS["labels"](make_subject(*market(settings, seed, changes)))
        assert honest.verdict == "pass", honest.sentence
        with monkeypatch.context() as patch:
            patch.setattr("features.panel.panel.find_delistings", last_prices)
            result = CHECKS["labels"](make_subject(*market(settings, seed, changes)))
        assert result.verdict == "fail"
        assert "does not pay what the securities table records for delistings" in result.sentence


@pytest.mark.parametrize("shift", ["the delay", "the targets"])
def test_a_book_that_trades_before_its_decision_is_caught(
    shift: str, honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = books.book_orders

    def early(*arguments: Any) -> Iterator[Any]:  # noqa: ANN401 (passed on)
        for orders in original(*arguments):
            if shift == "the delay":
                yield dataclasses.replace(orders, delay=orders.delay - 1)
            else:
                yield dataclasses.replace(orders, target_TN=np.roll(orders.target_TN, -1, axis=0))

    config, tables = honest
    label = config.label.model_copy(update={"delay": 1})
    subject = make_subject(*changed((config, tables), label=label))
    monkeypatch.setattr(evaluate, "book_orders", early)
    result = CHECKS["books"](subject)
    assert result.verdict == "fail"
    assert "trades before its decision" in result.sentence


def test_a_book_that_earns_the_return_before_its_trade_is_caught(
    honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = books.book_market

    def early(panel: Panel, held: slice, *rest: Any) -> Any:  # noqa: ANN401 (passed on)
        index_TN = panel.total_return_index_TN.copy()
        index_TN[:-1] = panel.total_return_index_TN[1:]
        return original(panel, held, index_TN)

    monkeypatch.setattr(books, "book_market", early)
    result = CHECKS["books"](make_subject(*honest))
    assert result.verdict == "fail"
    assert "earns what its positions did not" in " ".join(result.evidence["sentence"])


@pytest.mark.parametrize("live", [False, True])
def test_an_ensemble_whose_sign_follows_the_test_is_caught(
    live: bool, honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live fold has no test: dates of its validation are used."""
    config, tables = honest
    if live:
        plan = LivePlan(through=max(tables["prices"]["date"].to_list()), valid=60, embargo=0)
        config = config.model_copy(update={"folds": plan})
    subject = make_subject(config, tables)
    label_TN = np.where(subject.dataset.universe_TN, subject.dataset.labels[0], np.nan)
    original = evaluate.ensemble

    def turned(seeds: Mapping[int, Array]) -> Array:
        signal_TN = original(seeds)
        sign = np.sign(np.nansum(signal_TN * label_TN))
        return np.asarray(sign * signal_TN)

    monkeypatch.setattr(evaluate, "ensemble", turned)
    result = CHECKS["ensembles"](subject)
    assert result.verdict == "fail"
    assert "contradict the labels" in result.sentence
    assert "chosen by the IC of the test" in result.sentence


def peek(dates: Callable[[Array], Array]) -> Callable[[Panel], Array]:
    """The day's return, and that of the next session on some dates."""

    def compute(panel: Panel) -> Array:
        return_TN = daily_return(panel)
        on_T1 = dates(panel.dates_T.astype("datetime64[D]"))[:, None]
        return np.where(on_T1, ahead(return_TN), return_TN)

    return compute


def fridays(dates_T: Array) -> Array:
    return np.asarray((dates_T.astype(np.int64) + 3) % 7 == 4)


def first_of_month(dates_T: Array) -> Array:
    month_T = dates_T.astype("datetime64[M]")
    return np.append(False, month_T[1:] != month_T[:-1])


def with_seed(subject: Subject, seed: int, cuts: int) -> Subject:
    return dataclasses.replace(subject, seed=seed, budget=dataclasses.replace(subject.budget, cuts=cuts))


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("dates", "kind"), [(fridays, "Fridays"), (first_of_month, "first sessions of a month")]
)
def test_a_peek_on_some_dates_alone_is_caught_with_every_seed(
    dates: Callable[[Array], Array], kind: str, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {**base, "models": {"ridge": {}}, "features": {**FEW, "characteristics": ["return_5"]}}
    entry = dataclasses.replace(CHANNELS["return"], compute=peek(dates))
    monkeypatch.setitem(CHANNELS, "return", entry)
    subject = make_subject(*market(one))
    on_T = kinds_of_dates(subject)[kind]
    for seed in range(12):
        drawn = draw_of_every_kind(with_seed(subject, seed, 60), 60)
        assert len(drawn) == 60
        assert on_T[drawn].sum() >= 5
    for seed in (0, 1):
        result = CHECKS["dates"](with_seed(subject, seed, 20))
        assert result.verdict == "fail"
        assert "Channel return used future data" in result.sentence
        assert f"always on {kind}" in result.sentence


def test_the_quick_audit_catches_a_peer_model_that_sees_labels(
    honest: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = PanelTensors.batch

    def knowing(self: PanelTensors, *chosen: Any) -> Batch:  # noqa: ANN401 (passed on)
        batch = original(self, *chosen)
        z_BNF = batch.z_BNF.clone()
        z_BNF[..., 0] = torch.roll(torch.nan_to_num(batch.y_BN), 1, dims=1)  # the label of another firm
        return dataclasses.replace(batch, z_BNF=z_BNF)

    monkeypatch.setattr(PanelTensors, "batch", knowing)
    subject = make_subject(*honest, quick=True)
    result = CHECKS["forecasts"](subject)
    assert result.verdict == "fail"
    assert "read targets" in result.sentence
    read = [what for what in result.evidence["what"] if "read targets" in what]
    assert {what.split("'")[0].lower() for what in read} >= {"temporal_peer", "self_peer"}


def test_values_that_are_tiny_are_compared_relative_to_the_feature() -> None:
    """A place in a range rounds where there is no range; an illiquidity of 1e-10 is a value."""
    every_N = np.ones(3, dtype=bool)
    ranges_TN = np.array([[0.0, 1.0, 0.5], [0.0, 0.0, 1e-12]])
    assert same_up_to_rounding(np.array([1e-12, 0.0, 0.0]), ranges_TN, every_N).all()
    tiny_TN = 1e-10 * np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 1.0]])
    assert same_up_to_rounding(tiny_TN[-1], tiny_TN, every_N).all()
    assert not same_up_to_rounding(1.1 * tiny_TN[-1], tiny_TN, every_N).any()
    assert not same_up_to_rounding(np.array([np.nan, 3e-10, 1e-10]), tiny_TN, every_N)[0]
