"""``peerglass.charts`` on a finished run: figures hold the numbers of the run's tables, with their errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.io as pio
import polars as pl
import pytest

import peerglass
from peerglass import charts
from peerglass.scoring import Attribution

MODEL = "temporal_peer"


@pytest.fixture
def run(api_project: Path, monkeypatch: pytest.MonkeyPatch) -> peerglass.Run:
    monkeypatch.chdir(api_project)
    return peerglass.open_run()


@pytest.fixture
def attribution(run: peerglass.Run) -> Attribution:
    return peerglass.explain(peerglass.load_model(run, MODEL), permutations=2)


def test_skill_is_the_ladders_with_the_intervals_of_the_tests(run: peerglass.Run) -> None:
    (bars,) = charts.skill(run).data
    ladder = {
        row["model"]: row for row in run.table("ladder").filter(pl.col("delay") == 0).iter_rows(named=True)
    }
    assert set(bars.y) == set(ladder)
    tested = {row["model"]: row for row in run.table("significance").iter_rows(named=True)}
    for name, ic, half in zip(bars.y, bars.x, bars.error_x.array, strict=True):
        assert ic == pytest.approx(ladder[name]["ensemble_ic"])
        bounds = tested[name]["ic_lower"], tested[name]["ic_upper"]
        assert (ic - half, ic + half) == pytest.approx(bounds, rel=1e-4)
        assert half > 1.96 * abs(ic / ladder[name]["ic_t"])
    (line,) = charts.skill(run).layout.shapes
    assert line.x0 == pytest.approx(run.table("ladder")["truth_ic"][0]), "the market is simulated"
    with pytest.raises(peerglass.PeerglassError, match="Nothing was measured at delay 7, only at 0"):
        charts.skill(run, delay=7)


def test_books_quantiles_and_decay_are_drawn(run: peerglass.Run) -> None:
    figure = charts.net_asset_value(run, "long_short", delay=0)
    assert len(figure.layout.updatemenus[0].buttons) == 2, "net and before costs"
    net = {trace.name for trace in figure.data if trace.visible is not False}
    assert net >= {"ridge", "lightgbm", MODEL}
    with pytest.raises(peerglass.PeerglassError, match="no book 'none', only long_short, long_only"):
        charts.net_asset_value(run, "none", delay=0)
    assert len(charts.quantiles(run).data) == 3
    assert len(charts.cumulative_ic(run).data) == 3
    assert all(len(trace.x) >= 2 for trace in charts.ic_decay(run).data)


def test_a_deflated_sharpe_ratio_stands_beside_its_trial_count(run: peerglass.Run) -> None:
    table = run.table("significance").filter(
        (pl.col("book") == "long_short") & pl.col("sharpe_net").is_not_null()
    )
    delay = table["delay"][0]
    figure = charts.sharpe(run, "long_short", delay=delay)
    assert f"{table['trials'][0]} trials counted" in figure.layout.title.text
    dots = dict(zip(figure.data[0].y, figure.data[0].x, strict=True))
    texts = {note.y: note.text for note in figure.layout.annotations}
    for row in table.filter(pl.col("delay") == delay).iter_rows(named=True):
        assert dots[row["model"]] == pytest.approx(row["sharpe_net"])
        assert f"deflated {row['deflated_sharpe']:.2f}" in texts[row["model"]]


def test_contributions_add_up_to_the_forecast_in_basis_points(attribution: Attribution) -> None:
    row = attribution.forecasts.row(1, named=True)
    figure = charts.contributions(attribution, row["ticker"])
    steps = figure.data[0].x
    assert sum(steps[:-1]) == pytest.approx(steps[-1], abs=1e-2)
    assert steps[-1] == pytest.approx(1e4 * row["forecast"])
    assert "bps" in figure.layout.xaxis.title.text
    with pytest.raises(peerglass.PeerglassError, match="The forecast of NONE is not explained"):
        charts.contributions(attribution, "NONE")


def test_attention_stands_against_shap(run: peerglass.Run) -> None:
    left, right = charts.attention_and_values(run, MODEL).data
    assert list(left.x) == list(right.x)
    stored = run.table("explain_firm_map").filter((pl.col("model") == MODEL) & (pl.col("method") == "shap"))
    largest = stored.sort("value").row(-1, named=True)
    place = list(left.y).index(largest["target"]), list(left.x).index(largest["source"])
    assert left.z[place[0]][place[1]] == 1.0
    recovery = charts.recovery(run, MODEL)
    assert {trace.name for trace in recovery.data} == {"SHAP", "attention", "attention before training"}
    assert {"random order", "SHAP"} <= {trace.name for trace in charts.removal(run, MODEL).data}
    assert len(charts.agreement(run, MODEL).data[0].x) > 2
    assert len(charts.agreement(run, MODEL, "shuffled parameters").data[0].x) > 2
    assert charts.day_weights(run, MODEL).data[0].name == "all days"
    with pytest.raises(peerglass.PeerglassError, match="was not measured for temporal_peer, only: agreement"):
        charts.agreement(run, MODEL, "none")
    with pytest.raises(peerglass.PeerglassError, match="has no rows of 'ridge', only of: temporal_peer"):
        charts.recovery(run, "ridge")


def test_the_network_of_a_run_is_that_of_its_tables_in_basis_points(run: peerglass.Run) -> None:
    network = peerglass.peer_network(run)
    assert (network.model, network.unit) == (MODEL, "bps")
    row = run.table("explain_dated_edges").sort(pl.col("value").abs()).row(-1, named=True)
    peers = network.peers(row["follower"], row["date"])
    assert peers["leader"][0] == row["leader"]
    assert peers["value"][0] == pytest.approx(1e4 * row["value"])
    assert peers["error"][0] == pytest.approx(1e4 * row["error"])
    assert set(network.dates) == set(run.table("explain_dated_edges")["date"])
    points = charts.attention_and_weights(network).data
    drawn = network.edges.filter((pl.col("attention") > 0) & (pl.col("weight") > 0))
    assert sum(len(trace.x) for trace in points) == drawn.height > 50
    assert list(points[1].y) == drawn.filter("found")["weight"].to_list()
    with pytest.raises(peerglass.PeerglassError, match="no peer network of 'ridge', only of temporal_peer"):
        peerglass.peer_network(run, "ridge")


def test_prices_are_those_of_the_lake(run: peerglass.Run) -> None:
    prices = peerglass.prices(run.config)
    raw = run.data[1].read("prices").filter(pl.col("close").is_not_null()).sort("ticker", "date")
    assert prices.select("ticker", "date").equals(raw.select("ticker", "date"))
    both = prices.join(raw, on=["ticker", "date"], suffix="_raw")
    np.testing.assert_allclose(both["dollar_volume"], both["close_raw"] * both["volume"], rtol=1e-12)
    quiet = (pl.col("split_ratio") == 1) & (pl.col("dividend") == 0)
    returns = raw.with_columns(simple=pl.col("close").pct_change().over("ticker")).filter(quiet)
    same = prices.join(returns.select("ticker", "date", "simple"), on=["ticker", "date"]).drop_nulls()
    assert same.height > 1000
    assert (same["total_return"] - same["simple"]).abs().max() < 1e-9  # type: ignore[operator]  # floats
    dataset = run.data[0]
    assert prices["in_universe"].sum() == (dataset.universe_TN & dataset.panel.traded_TN).sum()


def test_an_embedded_figure_is_html_without_requests(
    run: peerglass.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("IPython.display.display_html", lambda text, raw: None)
    before = pio.renderers.default
    try:
        charts.embed()
        assert pio.renderers.default == "plotly_mimetype+peerglass"
        html = pio.renderers["peerglass"].to_mimebundle(charts.skill(run).to_dict())["text/html"]
    finally:
        pio.renderers.default = before
    assert "Plotly.newPlot" in html
    assert "src=" not in html
