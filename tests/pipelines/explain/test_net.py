"""What pays for its turnover: planted costly inputs are named, and values add up to the run's book."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command

import peerglass
from features.arrays import FloatArray
from models.batch import PanelTensors
from models.explain.groups import over_sessions, whole_players, without_inputs
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from models.registry import MODELS
from pipelines.config.load import check_config, load_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.explain.net import FIGURES, Coalitions, NetBook, net_table, verdict
from pipelines.explain.shown import NET
from pipelines.progress import Progress
from pipelines.results.books import book_orders
from pipelines.results.evaluate import ensemble, standardised
from pipelines.results.evaluate_run import evaluate_run
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.fetch import ingest_config
from pipelines.run.open import load_run_data
from pipelines.run.record import open_run
from pipelines.stages import report_run, train_config

FIRMS, SESSIONS, TEST = 30, 900, 400
HALF_SPREAD_BPS = 20.0


def planted(seed: int, tiny: Mapping[str, Any]) -> tuple[Market, Config, PanelTensors]:
    """A market where a slow and a fast input forecast equally well, and only the slow one earns its costs."""
    rng = np.random.default_rng(seed)
    fast_TN, shock_TN, noise_TN = rng.normal(size=(3, SESSIONS, FIRMS))
    slow_TN = np.empty_like(shock_TN)
    slow_TN[0] = shock_TN[0]
    for t in range(1, SESSIONS):
        slow_TN[t] = 0.98 * slow_TN[t - 1] + np.sqrt(1 - 0.98**2) * shock_TN[t]
    return_TN = 0.015 * noise_TN  # known at t, earned from the close of t + 1 to that of t + 2
    return_TN[2:] += 0.015 * 0.1 * (slow_TN + fast_TN)[:-2]
    close_TN = 50.0 * np.cumprod(1.0 + return_TN, axis=0)
    days = [day for n in range(2 * SESSIONS) if (day := dt.date(2015, 1, 5) + dt.timedelta(n)).weekday() < 5]
    names = [f"F{n:02}" for n in range(FIRMS)]
    prices = pl.DataFrame(
        {
            "date": np.repeat(np.array(days[:SESSIONS], dtype="datetime64[D]"), FIRMS),
            "ticker": names * SESSIONS,
            **dict.fromkeys(("open", "high", "low", "close"), close_TN.ravel()),
            "volume": np.full(close_TN.size, 1e6),
            "split_ratio": np.ones(close_TN.size),
            "dividend": np.zeros(close_TN.size),
        }
    )
    book = {"kind": "quantile_long_short", "quantiles": 5}
    costs = {"half_spread_bps": HALF_SPREAD_BPS, "commission_bps": 0.0}
    config = check_config(
        {
            **tiny,
            "models": {"ridge": {}},
            "universe": {"min_history": 1},
            "label": {"horizon": 1, "delay": 1, "transform": "demean", "residualise_factors": 0},
            "backtest": {"books": {"long_short": book}, "costs": costs},
        },
        origin="planted",
    )
    market = build_market({"prices": prices}, config)
    data = PanelTensors.from_arrays(
        channels_TNC=np.zeros((SESSIONS, FIRMS, 1)),
        characteristics_TNF=np.stack([slow_TN, fast_TN], axis=2),
        mask_TN=market.universe_TN,
        group_TN=np.zeros((SESSIONS, FIRMS), dtype=np.int64),
        target_TN=np.nan_to_num(market.labels[1]),
        window=1,
    )
    return market, config, data


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_input_that_costs_more_than_it_earns_is_named(
    seed: int, tiny_settings: Mapping[str, Any]
) -> None:
    market, config, data = planted(seed, tiny_settings)
    train, valid = np.arange(5, 400), np.arange(402, SESSIONS - TEST - 2)
    test = np.arange(SESSIONS - TEST, SESSIONS - 3)
    fitted = fit("ridge", MODELS["ridge"].config(), data, train, valid, fit_config=FitConfig(), seed=0)
    players = whole_players(fitted, data, int(test[0]), {"slow": (0,), "fast": (1,)})
    plan = Coalitions.of(len(players))
    whole_TN = np.full((SESSIONS, FIRMS), np.nan)
    whole_TN[test] = fitted.forecast(data, test)
    book = NetBook(market, config, ensemble({0: whole_TN}))
    of_date = without_inputs(fitted, players, plan.keep_MP, plan.block_M, data, train)
    scores = [
        standardised(one_RN.astype(np.float64)) for one_RN in over_sessions(of_date, fitted, data, test)
    ]
    table = net_table(plan, [("family", player.name) for player in players], scores, book)
    slow, fast, base, total = table.iter_rows(named=True)
    assert (slow["player"], fast["player"]) == ("slow", "fast")

    assert fast["ic"] > 0.0
    assert fast["net"] < 0.0
    assert fast["verdict"] == "adds IC, costs more than it earns"
    assert slow["verdict"] == "adds IC, earns more than it costs"
    assert fast["cost"] > 5 * abs(slow["cost"]), "the slow input makes the other one trade less"

    # Values by hand: of two players, from the books of the inputs themselves, which only ranks enter.
    def paid(signal_TN: FloatArray) -> float:
        alone_TN = np.where(np.isfinite(whole_TN), signal_TN, np.nan)
        orders = next(book_orders(alone_TN, test, market, config, 1))
        return float(orders.run(market.panel).return_net_T[1:].mean())

    z_TNF = data.characteristics_TNF.double().numpy()
    only_slow, only_fast, both = paid(z_TNF[..., 0]), paid(z_TNF[..., 1]), paid(whole_TN)
    assert base["net"] == 0.0
    assert total["net"] == pytest.approx(both, abs=1e-15)
    assert slow["net"] == pytest.approx((only_slow + both - only_fast) / 2, abs=1e-9)
    assert fast["net"] == pytest.approx((only_fast + both - only_slow) / 2, abs=1e-9)
    for figure in FIGURES:
        assert slow[figure] + fast[figure] + base[figure] == pytest.approx(total[figure], abs=1e-12)


def test_verdicts_follow_the_signs_and_the_error() -> None:
    assert verdict(0.01, 0.002, 0.0005) == "adds IC, earns more than it costs"
    assert verdict(0.01, -0.002, 0.0015) == "adds IC, costs more than it earns (within its error)"
    assert verdict(-0.01, 0.002, 0.0005) == "earns without adding IC"
    assert verdict(0.0, -0.002, 0.0005) == "adds neither IC nor return"
    assert verdict(0.0, 0.0, 0.0) == "not used"


# On a run.

NAMES = ["return_1", "return_5", "volatility_21", "momentum_63", "amihud_21", "log_price"]
PEERS = {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2, "peer_width": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """A folder with an evaluated run of two seeds."""
    home = tmp_path_factory.mktemp("net")
    mix = {"model": "ensemble", "members": ["ridge", "temporal_peer", "momentum"]}
    settings = {
        **tiny_settings,
        "features": {"characteristics": NAMES, "window": 5},
        "models": {
            "ridge": {},
            "temporal_peer": PEERS,
            "momentum": {"characteristic": "return_5"},
            "mix": mix,
        },
        "seeds": [4, 7],
        "label": {**tiny_settings["label"], "extra_delays": [1]},
        "fit": {"epochs": 1, "batch_dates": 16},
        "audit": {"enabled": False},
        "lake": str(home / "lake"),
        "output": str(home / "runs"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": str(home / "artifacts")},
    }
    (home / "sim.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    config = load_config(home / "sim.yaml")
    ingest_config(config, lambda _: None)
    train_config(config)
    run = open_run("latest", home / "runs")
    evaluate_run(run, *load_run_data(run, Progress()), Progress())
    return home


@pytest.fixture
def explain(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``peerglass explain latest ...`` on the run."""
    call = command(monkeypatch, capsys)
    return lambda *arguments: call("explain", "latest", "--output", str(folder / "runs"), *arguments)


def parts(table: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, dict[str, Any], dict[str, Any]]]:
    """Players, base and total of each game of a table."""
    for part in table.partition_by("by", maintain_order=True):
        base, total = (
            part.row(by_predicate=pl.col("kind") == kind, named=True) for kind in ("base", "total")
        )
        yield part.filter(~pl.col("kind").is_in(["base", "total"])), base, total


def test_the_values_add_up_to_the_book_of_the_report(explain: Call, folder: Path, tmp_path: Path) -> None:
    answer = explain("--net", "--model", "mix", "--draws", "2", "--out", str(tmp_path / "net.json"))
    assert answer.code == 0, answer.err
    for words in ("book long_short (delay 1)", "2 draws", "By member", "the same for all firms", "peers"):
        assert words in answer.out, answer.out
    run = open_run("latest", folder / "runs")
    table, evaluation = run.read_table(NET), newest_evaluation(run)
    assert table is not None
    assert evaluation is not None
    assert pl.read_json(tmp_path / "net.json")["net"].to_list() == pytest.approx(table["net"].to_list())
    mine = (pl.col("model") == "mix") & (pl.col("book") == "long_short") & (pl.col("delay") == 1)
    nav_T = evaluation.table("equity").filter(mine)["nav_net"].to_numpy()
    return_T = nav_T / np.concatenate([[1.0], nav_T[:-1]]) - 1.0
    row = evaluation.table("ladder").filter((pl.col("model") == "mix") & (pl.col("delay") == 1))
    games = list(parts(table))
    assert [set(inner["by"]) for inner, _, _ in games] == [{"input"}, {"member"}]
    assert games[1][0]["player"].to_list() == ["ridge", "temporal_peer", "momentum"]
    for inner, base, total in games:
        assert total["net"] == pytest.approx(return_T[-total["sessions"] :].mean(), abs=1e-12)
        assert total["ic"] == pytest.approx(row["ensemble_rank_ic"][0], abs=1e-12)
        for figure in FIGURES:
            assert inner[figure].sum() + base[figure] == pytest.approx(total[figure], abs=1e-12)
        assert np.abs(inner["net"].to_numpy()).max() > 1e-5
        assert inner["net_error"].is_finite().all()
    assert games[1][1]["net"] == 0.0, "without any member there is no position"


def test_draws_agree_with_all_coalitions_within_their_error(explain: Call, folder: Path) -> None:
    tables = []
    for draws in ([], ["--draws", "40"]):
        assert explain("--net", "--model", "ridge", *draws).code == 0
        table = open_run("latest", folder / "runs").read_table(NET)
        assert table is not None
        tables.append(table.filter(pl.col("model") == "ridge"))
    exact, drawn = tables
    assert exact["draws"].null_count() == exact.height
    assert (exact["monte_carlo"] == 0.0).all()
    assert (drawn["monte_carlo"] > 0.0).any()
    gap = (exact["net"] - drawn["net"]).abs().to_numpy()
    assert (gap <= 4.0 * drawn["monte_carlo"].to_numpy() + 1e-12).all()
    inner, base, _ = next(parts(exact))
    assert base["net"] == base["turnover"] == 0.0, "equal forecasts are not traded"
    assert np.abs(inner["net"].to_numpy()).max() > 1e-5


def test_the_report_and_the_api_show_the_table(explain: Call, folder: Path) -> None:
    assert explain("--net", "--model", "ridge").code == 0
    page = Path(report_run("latest", folder / "runs")).read_text()
    assert "What pays for its turnover" in page
    assert "Net return of ridge by player" in page
    run = peerglass.open_run("latest", folder / "runs")
    found = peerglass.explain_net(run, "ridge")
    stored = run.table(NET).filter(pl.col("model") == "ridge")
    np.testing.assert_array_equal(found["net"], stored["net"])


def test_what_does_not_apply_is_refused(explain: Call) -> None:
    for options in (["--date", "latest"], ["--skill"], ["--ticker", "A"], ["--dates", "3"]):
        answer = explain("--net", "--model", "ridge", *options)
        assert answer.code == 2
        assert f"--net divides a figure of the whole test; leave {options[0]} out" in answer.err
    assert explain("--net").code == 2
