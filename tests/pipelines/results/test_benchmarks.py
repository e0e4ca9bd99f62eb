"""Benchmarks of a config: the session that a return belongs to, and files that cannot be used."""

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import command
from polars.testing import assert_frame_equal

from backtest.books.book import in_proportion
from features.library.characteristics.amounts import market_equity
from features.panel.panel import WrongRows
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.errors import ConfigError, DataError
from pipelines.results.evaluate import Evaluation, evaluate
from pipelines.run.evaluations import assumptions_id, evaluation_id

SESSIONS = np.arange(200, 280)


def configured(config: Config, **backtest: Any) -> Config:  # noqa: ANN401 (settings)
    settings = config.model_dump(mode="json")
    settings["label"] |= {"delay": 1, "extra_delays": [0]}
    settings["backtest"] |= backtest
    return check_config(settings, origin="tiny")


@pytest.fixture(scope="module")
def market(tiny_tables: dict[str, pl.DataFrame], tiny_config: Config) -> Market:
    return build_market(tiny_tables, configured(tiny_config))


def measured(
    market: Market,
    config: Config,
    *,
    against: bool = True,
    **backtest: Any,  # noqa: ANN401 (settings)
) -> Evaluation:
    """Evaluate the reversal of the last session, and a constant forecast, in which all firms are tied."""
    index_TN = market.panel.total_return_index_TN
    ordered_TN, same_TN = (np.full(market.universe_TN.shape, np.nan) for _ in range(2))
    inside_TN = market.universe_TN[SESSIONS]
    ordered_TN[SESSIONS] = np.where(inside_TN, 1 - index_TN[SESSIONS] / index_TN[SESSIONS - 1], np.nan)
    same_TN[SESSIONS] = np.where(inside_TN, 1.0, np.nan)
    forecasts = {"ordered": {0: ordered_TN}, "constant": {0: same_TN}}
    own = configured(config, **backtest)
    return evaluate(forecasts, market, own, sessions=SESSIONS, against=against)


def own_rows(found: Evaluation, **keys: object) -> list[dict[str, Any]]:
    return found["benchmarks"].filter(*(pl.col(key) == value for key, value in keys.items())).to_dicts()


def write(path: Path, dates: object, closes: object) -> dict[str, str]:
    pl.DataFrame({"date": dates, "close": closes}).write_csv(path)
    return {"file": str(path), "returns": "total"}


def closes_of(found: Evaluation, **keys: object) -> pl.DataFrame:
    """The NAV of a book, which is the index of a fund that does what the book does."""
    return found["equity"].filter(*(pl.col(key) == value for key, value in keys.items())).sort("date")


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("book", ["long_only", "long_short"])
def test_an_index_of_the_book_itself_leaves_no_active_return(
    market: Market, tiny_config: Config, tmp_path: Path, book: str, delay: int
) -> None:
    keys = {"model": "ordered", "book": book, "delay": delay}
    nav = closes_of(measured(market, tiny_config), **keys)
    first = int(np.flatnonzero(market.panel.dates_T == nav["date"][0])[0])
    days = market.panel.dates_T[first - 1 : first + 90].astype("datetime64[D]").tolist()
    close_T = np.concatenate([[1.0], nav["nav_net"], np.full(90 - nav.height, nav["nav_net"][-1])])
    own = {"own": write(tmp_path / "own.csv", days, 1000 * close_T)}
    (row,) = own_rows(measured(market, tiny_config, benchmarks=own), **keys)
    cost = 1 - nav.filter(pl.col("turnover") > 0)["nav_net"][0]  # paid before an index is bought
    assert cost > 0
    assert row["active_return"] == pytest.approx(-cost * 252 / row["n_sessions"], rel=1e-6)
    assert row["active_drawdown"] == pytest.approx(cost, rel=1e-6)
    assert row["beta"] == pytest.approx(1, abs=0.01)
    assert row["up_capture"] == pytest.approx(1)
    # a session early or late, the index has other returns
    for shifted_T in (np.append(close_T[1:], close_T[-1]), np.append(close_T[0], close_T[:-1])):
        moved = {"moved": write(tmp_path / "moved.csv", days, shifted_T)}
        (other,) = own_rows(measured(market, tiny_config, benchmarks=moved), **keys)
        assert abs(other["beta"]) < 0.6
        assert other["tracking_error"] > 20 * row["tracking_error"]


def test_equal_weights_are_the_default_and_the_first_benchmark_is_that_of_the_ladder(
    market: Market, tiny_config: Config, tmp_path: Path
) -> None:
    plain = measured(market, tiny_config)
    nav = closes_of(plain, model="ordered", book="long_only", delay=1)
    falling = write(tmp_path / "index.csv", nav["date"], np.linspace(100, 50, nav.height))
    both = measured(market, tiny_config, benchmarks={"index": falling, "eq": "equal_weighted"})
    for delay in (0, 1):
        for found, name in ((plain, "eq"), (both, "index")):
            ladder = found["ladder"].row(
                by_predicate=(pl.col("model") == "ordered") & (pl.col("delay") == delay), named=True
            )
            (row,) = own_rows(found, model="ordered", book="long_only", delay=delay, benchmark=name)
            assert ladder["long_only.information_ratio"] == row["information_ratio"]
            assert ladder["long_only.tracking_error"] == row["tracking_error"]
            assert ladder["long_short.information_ratio"] is None
    assert own_rows(plain) == own_rows(both, benchmark="eq")
    assert {row["benchmark"] for row in own_rows(plain)} == {"eq"}
    assert len(own_rows(plain)) == 2 * 2 * 2  # models, books, delays
    one = both["benchmark_series"].filter(pl.col("benchmark") == "index", pl.col("model") == "ordered")
    assert one["nav_benchmark"].min() == pytest.approx(0.5, abs=0.01)
    none = measured(market, tiny_config, benchmarks={})
    assert "benchmarks" not in none
    assert none["ladder"]["long_only.information_ratio"].is_null().all()
    assert none["equity"].equals(plain["equity"])


def test_cap_weights_by_a_loop(market: Market, tiny_config: Config) -> None:
    """A book that decides once and a benchmark that drifts: units of market equity at the decision."""
    once = {"all": {"kind": "top_k_long_only", "k": 4, "rebalance_every": 1000}}
    found = measured(market, tiny_config, books=once, benchmarks={"cap": "cap_weighted"})
    series = found["benchmark_series"].filter(pl.col("delay") == 1, pl.col("model") == "constant")
    index_TN, size_TN, start = market.panel.total_return_index_TN, market_equity(market.panel), SESSIONS[0]
    weight = {
        n: size_TN[start, n]
        for n in range(market.panel.n_firms)
        if market.universe_TN[start, n]
        and np.isfinite(size_TN[start, n])
        and market.panel.traded_TN[start + 1, n]
    }
    total, value = sum(weight.values()), []
    for t in range(start + 1, start + 30):
        value.append(sum(w / total * index_TN[t, n] / index_TN[start + 1, n] for n, w in weight.items()))
    assert len(weight) > 5
    assert max(weight.values()) > 1.5 * min(weight.values())
    np.testing.assert_allclose(series["nav_benchmark"][1:30], value, rtol=1e-9)
    np.testing.assert_array_equal(
        in_proportion(np.array([[3.0, 0.0, 1.0]]), np.zeros((1, 3))), [[0.75, 0, 0.25]]
    )


def test_a_ticker_earns_its_total_return_from_the_first_trade_on(market: Market, tiny_config: Config) -> None:
    panel = market.panel
    n = int(np.flatnonzero(panel.traded_TN[195:].all(axis=0))[0])
    found = measured(market, tiny_config, benchmarks={"firm": {"ticker": panel.tickers_N[n]}})
    series = found["benchmark_series"].filter(pl.col("delay") == 1, pl.col("book") == "long_only")
    nav = series.filter(pl.col("model") == "ordered")["nav_benchmark"].to_numpy()
    index_T = panel.total_return_index_TN[SESSIONS[0] : SESSIONS[0] + len(nav), n]
    assert nav[:2].tolist() == [1, 1]  # decided, and bought at the close
    np.testing.assert_allclose(nav[1:], index_T[1:] / index_T[1], rtol=1e-12)
    with pytest.raises(ConfigError, match=r"benchmarks\.firm: no ticker of the data is 'SPY'"):
        measured(market, tiny_config, benchmarks={"firm": {"ticker": "SPY"}})
    without = measured(market, tiny_config, against=False, benchmarks={"firm": {"ticker": "SPY"}})
    assert_frame_equal(without["equity"], found["equity"])
    assert "benchmarks" not in without


def test_a_ticker_that_is_delisted_is_no_benchmark_from_then_on(market: Market, tiny_config: Config) -> None:
    panel = market.panel
    delisted_TN = panel.delisted_TN.copy()
    delisted_TN[240:, 0] = True
    ended = replace(market, panel=replace(panel, delisted_TN=delisted_TN))
    named = ", ".join(map(str, panel.dates_T[240:245].astype("datetime64[D]")))
    with pytest.raises(DataError, match=rf"benchmark firm has no close on \d+ of \d+ sessions: {named} and"):
        measured(ended, tiny_config, benchmarks={"firm": {"ticker": panel.tickers_N[0]}})


def test_a_book_that_never_traded_has_no_active_return(market: Market, tiny_config: Config) -> None:
    found = measured(market, tiny_config)
    (row,) = own_rows(found, model="constant", book="long_short", delay=1)
    assert {name: row[name] for name in ("active_return", "information_ratio", "beta", "tracking_error")} == {
        "active_return": None,
        "information_ratio": None,
        "beta": None,
        "tracking_error": None,
    }


def test_missing_sessions_are_named_and_days_between_sessions_are_compounded(
    market: Market, tiny_config: Config, tmp_path: Path
) -> None:
    days = market.panel.dates_T[SESSIONS[0] - 3 : SESSIONS[-1] + 3].astype("datetime64[D]").tolist()
    every = [days[0] + dt.timedelta(days=i) for i in range((days[-1] - days[0]).days + 1)]
    daily = write(tmp_path / "every.csv", every, 100 * 1.001 ** np.arange(len(every)))
    sessions = write(tmp_path / "some.csv", days, [100 * 1.001 ** (day - days[0]).days for day in days])
    found = [measured(market, tiny_config, benchmarks={"x": one}) for one in (daily, sessions)]
    assert_frame_equal(*(one["benchmarks"] for one in found))
    assert (found[0]["benchmarks"]["benchmark_return"].drop_nulls().to_numpy() > 0.2).all()
    gone = write(tmp_path / "gone.csv", [d for d in days if d not in days[20:27]], [1.0] * (len(days) - 7))
    named = ", ".join(map(str, days[20:25]))
    with pytest.raises(
        DataError, match=rf"benchmark x has no close on 7 of \d+ sessions: {named} and 2 more"
    ):
        measured(market, tiny_config, benchmarks={"x": gone})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable"),
        ("date,close\n", "it has no closes; an index has a close above 0"),
        ("date,price\n2020-01-02,1\n", "lacks the column 'close'; closes need date and close"),
        ("date,close\n2020-01-02,1\n2020-01-02,2\n", "more than one close for 2020-01-02"),
        ("date,close\n2020-01-02,0\n", "the close of 2020-01-02 is 0.0"),
        ("date,close\n2020-01-02,n/a\n", "closes numbers"),
        ("date,close\n02.01.2020,1\n", "dates must be YYYY-MM-DD"),
        (None, r"no file of closes at .*; check backtest\.benchmarks\.x\.file"),
    ],
)
def test_a_wrong_file_is_refused(
    market: Market, tiny_config: Config, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "index.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message):
        measured(market, tiny_config, benchmarks={"x": {"file": str(path), "returns": "price"}})


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ("spx.csv", "weights: Input should be 'equal_weighted' or 'cap_weighted'"),
        ({"file": "a.csv"}, "returns says of a file"),
        ({"ticker": "SPY", "returns": "total"}, "returns says of a file"),
        ({"file": "a.csv", "ticker": "SPY", "returns": "total"}, "a benchmark is equal_weighted"),
        ({}, "a benchmark is equal_weighted"),
        ({"files": "a.csv"}, "did you mean 'file'"),
    ],
)
def test_a_wrong_setting_is_refused(tiny: dict[str, Any], benchmark: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config({**tiny, "backtest": {"benchmarks": {"x": benchmark}}}, origin="tiny")


def test_without_share_counts_there_are_no_cap_weights(
    tiny_tables: dict[str, pl.DataFrame], tiny_config: Config
) -> None:
    bare = build_market({"prices": tiny_tables["prices"]}, configured(tiny_config))
    with pytest.raises(DataError, match="cap is cap_weighted, but the data have no share counts"):
        measured(bare, tiny_config, benchmarks={"cap": "cap_weighted"})


@pytest.mark.usefixtures("untracked")
def test_a_run_without_an_index_ends_before_it_trains(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    peerglass = command(monkeypatch, capfd)
    index = {"x": {"file": "x.csv", "returns": "total"}}  # relative to the file of the config
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "backtest": {"benchmarks": index}}))
    assert peerglass("ingest", "tiny.yaml").code == 0
    missing = peerglass("train", "tiny.yaml")
    assert (missing.code, f"no file of closes at {tmp_path / 'x.csv'}" in missing.err) == (3, True)
    Path("x.csv").write_text("date,close\n2014-01-02,1\n")
    short = peerglass("train", "tiny.yaml")
    assert short.code == 3
    ((missing_sessions, held),) = re.findall(r"x has no close on (\d+) of (\d+) sessions", short.err)
    assert missing_sessions == held
    assert int(held) > 2 * tiny["folds"]["test"]  # books are held after the last test session
    assert not list(Path().rglob("*.safetensors"))
    assert not Path("lake/forecasts").exists()


def test_an_evaluation_depends_on_the_closes_and_the_returns_of_trials_do_not(
    tiny_config: Config, tmp_path: Path
) -> None:
    plain = configured(tiny_config)
    own = configured(tiny_config, benchmarks={"x": write(tmp_path / "x.csv", ["2020-01-02"], [1.0])})
    before = evaluation_id(own)
    assert before != evaluation_id(plain)
    (tmp_path / "x.csv").write_text("date,close\n2020-01-02,2\n")
    assert evaluation_id(own) != before
    assert assumptions_id(own.backtest, 1) == assumptions_id(plain.backtest, 1)


@pytest.mark.parametrize("rule", ["currency_jump", "dividend_above_price"])
def test_a_row_in_another_unit_changes_no_cap_weight(market: Market, tiny_config: Config, rule: str) -> None:
    """From a flagged row on, one firm is quoted in hundredths, or it has paid a hundred times its price."""
    panel, t = market.panel, SESSIONS[0] + 10
    n = int(np.flatnonzero(panel.traded_TN.all(axis=0) & np.isfinite(market_equity(panel)[t]))[0])
    times_TN = np.ones_like(panel.close_TN)
    times_TN[t:, n] = 128.0  # a power of two, so that nothing is rounded
    names = ["close_TN", "total_return_index_TN", *(["raw_close_TN"] if rule == "currency_jump" else [])]
    jumped = replace(panel, **{name: getattr(panel, name) * times_TN for name in names})
    wrong = WrongRows(np.array([t]), np.array([n]), np.array([False]), np.array([rule == "currency_jump"]))
    found = [
        measured(replace(market, panel=one), tiny_config, benchmarks={"cap": "cap_weighted"})
        for one in (panel, replace(jumped, wrong=wrong))
    ]
    before, after = (
        one["benchmark_series"].filter(pl.col("model") == "constant")["nav_benchmark"] for one in found
    )
    np.testing.assert_allclose(after, before, rtol=1e-3)
