"""The charts of a report: the numbers that they draw, their colours, and their encoding."""

import dataclasses
import datetime as dt
import math
import re

import numpy as np
import polars as pl
import pytest
from report_data import BOOKS, MODELS, make_books, make_edges, make_explained, make_report, make_signals

from backtest.accounts.performance import max_drawdown
from backtest.inference.means import mean_test
from pipelines.pages import figure as figures
from pipelines.pages.charts import books, explained, models
from pipelines.pages.figure import Figure, LineStyle, axis, draw, model_styles, plain
from pipelines.pages.page import Page, static_chart
from pipelines.pages.report import render_report


def test_a_model_has_the_same_colour_in_every_chart() -> None:
    report = make_report()
    styles = model_styles(report.models)
    assert len({style.colour for style in styles.values()}) == len(MODELS)
    drawn = [
        books.net_asset_value(report.tables["equity"], styles, BOOKS[0], "ridge"),
        models.cumulative_rank_ic(report.tables["ic_series"], styles),
        *models.learning_curves(report.tables["learning"], styles),
    ]
    assert len(drawn) == 4
    for figure in drawn:
        lines = [trace for trace in figure.traces if trace["name"] in styles]
        assert len({trace["name"] for trace in lines}) >= 3
        assert all(trace["line"]["color"] == styles[trace["name"]].colour for trace in lines)
    many = model_styles([str(i) for i in range(25)])
    assert len({(style.colour, style.dash) for style in many.values()}) == 25


def test_cumulative_rank_ic_by_hand() -> None:
    dates = [dt.date(2024, 1, day) for day in range(1, 9)]
    values = [0.1, None, -0.2, 0.3, float("nan"), 0.1, 0.1, 0.2]
    frame = pl.DataFrame({"date": dates, "model": "a", "ic": values, "rank_ic": values}, strict=False)
    total = models.cumulative_rank_ic(frame, model_styles(["a"])).traces[0]
    assert total["y"].tolist() == pytest.approx([0.1, 0.1, -0.1, 0.2, 0.2, 0.3, 0.4, 0.6], abs=1e-6)
    assert total["x"].astype(str).tolist() == [str(date) for date in dates]


def test_drawdowns_are_computed_before_thinning() -> None:
    nav = np.ones(5_000)
    nav[1_001] = 2.0  # thinning removes the peak itself
    frame = pl.DataFrame(
        {
            "date": pl.date_range(dt.date(2000, 1, 1), dt.date(2030, 1, 1), eager=True).head(5_000),
            "model": "a",
            "book": "b",
            "nav_gross": nav,
            "nav_net": nav,
        }
    )
    figure = books.net_asset_value(frame, model_styles(["a"]), "b", None)
    drawdown = figure.traces[1]["y"]
    assert figure.traces[1]["yaxis"] == "y2"
    assert len(drawdown) <= figures.MAX_POINTS + 1
    assert drawdown[0] == 0
    assert drawdown[-1] == pytest.approx(-0.5)


def test_active_returns_are_compounded_and_benchmarks_stand_beside_the_book() -> None:
    dates = [dt.date(2024, 1, day) for day in (2, 3, 4)]
    equity = pl.DataFrame(
        {"date": dates, "book": "b", "nav_net": [1.0, 1.1, 1.21], "nav_gross": [1.0, 1.2, 1.44]}
    )
    nav = {"up": [1.0, 1.05, 1.1025], "flat": [1.0, 1.0, 1.0]}
    series = pl.concat(
        pl.DataFrame({"date": dates, "book": "b", "benchmark": name, "nav_benchmark": path})
        for name, path in nav.items()
    )
    figure = books.active_value(equity, series, "b")
    lines = {trace["name"]: trace["y"].tolist() for trace in figure.traces[:4:2]}
    assert lines["flat"] == pytest.approx([1.0, 1.1, 1.21])
    assert lines["up"] == pytest.approx([1.0, 1.05, 1.1025])  # 5% of each day's 10% are the index's
    named = equity.with_columns(model=pl.lit("a"))
    figure = books.net_asset_value(named, model_styles(["a"]), "b", "a", series)
    grey = [trace for trace in figure.traces if trace["name"] == "up (benchmark)"]
    assert len(grey) == 4  # value and drawdown, in each of two views
    assert grey[0]["y"].tolist() == pytest.approx(nav["up"])


def test_the_views_of_nav_are_net_and_gross_and_the_chosen_model_shows_both() -> None:
    equity = make_report().tables["equity"]
    styles = model_styles(MODELS)
    figure = books.net_asset_value(equity, styles, BOOKS[0], "ridge")
    last = (
        equity.filter((pl.col("book") == BOOKS[0]) & (pl.col("model") == "ridge"))
        .sort("date")
        .row(-1, named=True)
    )
    net, gross = figure.views["net of costs"], figure.views["before costs"]
    assert set(net) & set(gross) == set()
    assert len(net) == 2 * len(MODELS) + 1
    assert len(gross) == 2 * len(MODELS)

    def ends(traces: tuple[int, ...], name: str) -> list[float]:
        chosen = (figure.traces[i] for i in traces)
        return [float(trace["y"][-1]) for trace in chosen if trace["name"] == name and "yaxis" not in trace]

    assert ends(net, "ridge") == pytest.approx([last["nav_net"]], rel=1e-6)
    assert ends(net, "ridge, before costs") == pytest.approx([last["nav_gross"]], rel=1e-6)
    assert ends(gross, "ridge") == pytest.approx([last["nav_gross"]], rel=1e-6)
    shown = [i for i, trace in enumerate(figure.traces) if trace["visible"] is True]
    assert sorted(shown) == sorted(net)


def test_thinning_keeps_the_first_and_the_last_row() -> None:
    for height in (1, 999, 1_000, 1_001, 2_500, 2_501):
        kept = figures.thin(pl.DataFrame({"i": range(height)}))["i"].to_list()
        assert kept[0] == 0
        assert kept[-1] == height - 1
        assert len(kept) <= 1_001
    assert [figures.points_per_line(lines) for lines in (1, 20, 40, 1_000)] == [1_000, 1_000, 500, 250]


def test_the_network_draws_the_strongest_edges_without_overlapping_names() -> None:
    edges = make_edges()
    figure = explained.peer_network(edges, "temporal_peer", n_edges=40)
    arrows = [a for a in figure.layout["annotations"] if a["showarrow"]]
    names = [a for a in figure.layout["annotations"] if not a["showarrow"]]
    assert len(arrows) == 40
    top = edges.sort("weight", descending=True).head(40)
    assert {a["text"] for a in names} == {*top["leader"].to_list(), *top["follower"].to_list()}
    places = {a["text"]: (a["x"], a["y"]) for a in names}
    first, arrow = top.row(0, named=True), arrows[0]
    assert (arrow["ax"], arrow["ay"]) == places[first["leader"]]
    assert (arrow["x"], arrow["y"]) == places[first["follower"]]
    at = np.array(list(places.values()))
    gap = np.abs(at[:, None] - at[None, :])
    close = (gap[..., 0] < 48) & (gap[..., 1] < 22)
    assert close.sum() == len(at), "names overlap"


def test_the_waterfall_of_a_forecast_adds_up_and_merges_small_players() -> None:
    values = [0.5, -0.3, *([0.01] * 15)]
    errors = [0.02, 0.01, *([0.003] * 15)]
    players = {"player": [f"p{i}" for i in range(17)], "value": values, "error": errors}
    head = {"date": "2024-01-02", "ticker": "A", "base_value": 0.1, "forecast": 0.1 + sum(values)}
    bars, whiskers = explained.one_forecast(pl.DataFrame(head | players), "m", "bps of return").traces
    assert list(bars["measure"]) == ["absolute", *["relative"] * 13, "total"]
    assert sum(bars["x"][:-1]) == pytest.approx(bars["x"][-1])
    assert bars["y"][-2] == "5 other players  +0.05"
    assert whiskers["y"] == bars["y"][1:-1]
    assert whiskers["x"][:2] == pytest.approx([0.6, 0.3]), "the error is drawn at the end of its bar"
    drawn = whiskers["error_x"]["array"].tolist()
    assert drawn[:2] == pytest.approx([0.02, 0.01])
    assert drawn[-1] == pytest.approx(0.003 * math.sqrt(5))


def test_every_bar_of_a_player_has_its_error() -> None:
    players = pl.DataFrame(
        {
            "kind": ["days", "peers", "days"],
            "player": ["a", "b", "c"],
            "mean_abs_shap": [3.0, 2.0, 1.0],
            "error": [0.3, 0.2, 0.1],
        }
    )
    figure = explained.player_importance(players, "m", "bps of return")
    drawn = {
        name: (x, error)
        for trace in figure.traces
        for name, x, error in zip(trace["y"], trace["x"], trace["error_x"]["array"], strict=True)
    }
    assert {name: (float(x), round(float(e), 6)) for name, (x, e) in drawn.items()} == {
        "a": (3.0, 0.3),
        "b": (2.0, 0.2),
        "c": (1.0, 0.1),
    }


def test_players_and_forecasts_without_errors_are_not_drawn() -> None:
    first = make_explained("temporal_peer")
    unknown = pl.lit(None, dtype=pl.Float64).alias("error")
    bare = {name: first.table(name).with_columns(unknown) for name in ("players", "skill", "example")}

    def titles(tables: dict[str, pl.DataFrame]) -> list[str]:
        one = dataclasses.replace(first, tables={"edges": first.table("edges"), **tables})
        page = render_report(make_report(explained=(one,)))
        part = page[page.index('<section id="attribution">') : page.index('<section id="provenance">')]
        return re.findall("<figure><h4>(.*?)</h4>", part)

    assert len(titles({name: first.table(name) for name in bare})) == 4
    assert [title.split(" of ")[0] for title in titles(bare)] == ["Peer network"]


def test_quantile_curves_are_the_cumulated_spread_by_hand() -> None:
    dates = [dt.date(2024, 1, day) for day in (2, 3, 4)]
    returns = {1: [10.0, -20.0, 0.0], 2: [30.0, 20.0, None]}
    series = pl.concat(
        [
            pl.DataFrame({"date": dates, "quantile": quantile, "mean_return_bps": values}, strict=False)
            for quantile, values in returns.items()
        ]
    )
    low, high = models.quantile_curves(series, "m", horizon=2, step=1.0).traces
    assert [low["name"], high["name"]] == ["Q1", "Q2"]
    # means 20, 0 and 0; deviations -10, -20, 0 and +10, +20, unknown; in %, over a label of 2 sessions
    assert low["y"].tolist() == pytest.approx([-0.05, -0.15, -0.15], abs=1e-6)
    assert high["y"].tolist() == pytest.approx([0.05, 0.15, 0.15], abs=1e-6)
    for step in (2.0, 21.0):  # labels that do not overlap count as a whole
        _, high = models.quantile_curves(series, "m", horizon=2, step=step).traces
        assert high["y"].tolist() == pytest.approx([0.1, 0.3, 0.3], abs=1e-6)


def test_ic_by_horizon_and_by_delay_have_their_intervals() -> None:
    decay = make_signals()["ic_decay"]
    styles = model_styles(MODELS)
    for by, fixed, values in (("horizon", "delay", [1, 2, 5, 10, 21]), ("delay", "horizon", [0, 1, 2])):
        rows = decay.filter((pl.col(fixed) == 1) & pl.col("model").is_in(["ridge", "self_peer"]))
        figure = models.ic_decay(rows, by, "title", styles, {"ridge": 1.0, "self_peer": 1.0})
        assert [trace["name"] for trace in figure.traces] == ["ridge", "self_peer"]
        expected = rows.filter(pl.col("model") == "ridge").sort(by)
        line = figure.traces[0]
        assert line["x"] == [str(value) for value in values]
        assert line["y"].tolist() == pytest.approx(expected["rank_ic"].to_list(), rel=1e-6)
        normal = 1.96 * (expected["rank_ic"] / expected["rank_ic_t"]).abs()
        assert (line["error_y"]["array"] > normal.to_numpy()).all()


@pytest.mark.parametrize(("step", "horizon"), [(1, 1), (1, 21), (5, 21), (21, 5)])
def test_whiskers_of_the_decay_are_the_intervals_of_the_test(step: int, horizon: int) -> None:
    ic_T = np.random.default_rng(6).normal(0.02, 0.1, 250)
    test = mean_test(ic_T, overlap=math.ceil(horizon / step))
    row = {
        "model": "a",
        "delay": 1,
        "horizon": horizon,
        "rank_ic": test.mean,
        "rank_ic_t": test.t,
        "dates": 250,
    }
    figure = models.ic_decay(pl.DataFrame(row), "delay", "title", model_styles(("a",)), {"a": float(step)})
    assert figure.traces[0]["error_y"]["array"][0] == pytest.approx(test.upper - test.mean, rel=1e-6)


def test_the_drawdown_that_is_drawn_includes_the_starting_capital() -> None:
    """A book that is traded at once pays for it in its first session."""
    days = [dt.date(2024, 1, day) for day in (2, 3, 4)]
    equity = pl.DataFrame(
        {
            "date": days,
            "model": "a",
            "book": "b",
            "nav_net": [0.98, 0.95, 1.1],
            "nav_gross": [1.0, 0.97, 1.12],
        }
    )
    _, drawdown, *_ = books.net_asset_value(equity, model_styles(("a",)), "b", None).traces
    assert drawdown["y"].tolist() == pytest.approx([-0.02, -0.05, 0.0], abs=1e-6)
    assert max_drawdown(np.array([-0.02, 0.95 / 0.98 - 1, 1.1 / 0.95 - 1])) == pytest.approx(0.05)


def test_the_names_that_are_drawn_add_up_to_all_names() -> None:
    contributions = make_books()["contributions"]
    rows = contributions.filter((pl.col("by") == "name") & (pl.col("model") == "ridge"))
    kept = books.largest_names(rows)
    assert kept.height == 2 * books.MAX_NAMES + 1
    assert kept["key"][books.MAX_NAMES] == "40 other names"
    for part in ("gross", "cost", "net"):
        assert kept[part].sum() == pytest.approx(rows[part].sum(), abs=1e-12)
    assert kept["net"][0] == rows["net"].max()
    assert kept["net"][-1] == rows["net"].min()
    few = books.largest_names(rows.head(21))
    assert few.height == 21
    figure = books.contributions(kept, "title")
    assert sum(figure.traces[0]["x"]) == pytest.approx(100 * rows["net"].sum())


def test_of_many_sectors_the_largest_are_drawn_and_the_others_added_up() -> None:
    rng = np.random.default_rng(3)
    net = rng.normal(0, 0.01, 100)
    rows = pl.DataFrame(
        {"key": [f"Sector {i:02d}" for i in range(100)], "gross": net + 0.001, "cost": 0.001, "net": net}
    )
    kept = books.largest_sectors(rows, "sector")
    assert kept.height == 16
    assert kept["key"][-1] == "85 other sectors"
    for part in ("gross", "cost", "net"):
        assert kept[part].sum() == pytest.approx(rows[part].sum(), abs=1e-12)
    assert kept["net"][:15].is_sorted(descending=True)
    assert kept["net"][:15].abs().min() == np.sort(np.abs(net))[-15]
    assert books.contributions(kept, "title").height < 450  # half a printed page

    for few in (15, 16):  # a row for one other sector would save nothing
        assert books.largest_sectors(rows.head(few), "sector")["key"].sort().equals(rows["key"].head(few))


def test_the_rest_of_the_sectors_has_a_mean_weight_and_no_range() -> None:
    rng = np.random.default_rng(4)
    weight_TS = rng.normal(0, 0.02, (50, 40)) + rng.normal(0, 0.02, 40)
    rows = pl.DataFrame(
        {
            "key": [f"Sector {i:02d}" for i in range(40)],
            "mean": weight_TS.mean(axis=0),
            "low": weight_TS.min(axis=0),
            "high": weight_TS.max(axis=0),
        }
    )
    kept, others = books.largest_exposures(rows, "industry")
    left = np.argsort(-np.abs(weight_TS.mean(axis=0)))[15:]
    assert set(others["key"]) == {f"Sector {i:02d}" for i in left}
    assert kept["key"][-1] == "25 other industries"
    assert kept["mean"][-1] == pytest.approx(weight_TS[:, left].sum(axis=1).mean(), abs=1e-12)
    assert kept["low"][-1] is None
    assert kept["high"][-1] is None
    assert kept["mean"].sum() == pytest.approx(rows["mean"].sum(), abs=1e-12)

    ranges, means = books.exposure_ranges(kept, "title", "label").traces
    assert means["y"][0] == "25 other industries"  # at the bottom
    assert means["x"][0] == pytest.approx(kept["mean"][-1], abs=1e-6)
    assert ranges["x"][:3] == [None, None, None]
    low, high = books.exposure_ranges(kept, "title", "label").layout["xaxis"]["range"]
    assert low < min(*kept["mean"], *kept["low"].drop_nulls())
    assert high > max(*kept["mean"], *kept["high"].drop_nulls())

    whole, none = books.largest_exposures(rows.head(16), "industry")
    assert whole.height == 16
    assert none.is_empty()


def test_the_first_chart_has_a_book_net_and_gross_and_its_benchmark_with_their_drawdowns() -> None:
    dates = [dt.date(2024, 1, day) for day in (2, 3, 4)]
    equity = pl.DataFrame({"date": dates, "nav_net": [1.0, 1.1, 0.99], "nav_gross": [1.0, 1.2, 1.44]})
    index = pl.DataFrame({"date": dates, "benchmark": "spx", "nav_benchmark": [1.0, 0.9, 1.0]})
    style = LineStyle("#123456")
    figure = books.against_benchmarks(equity, index, "a", style)
    above = {trace["name"]: trace for trace in figure.traces if "yaxis" not in trace}
    below = {trace["name"]: trace for trace in figure.traces if "yaxis" in trace}
    assert list(above) == ["a", "a, before costs", "spx (benchmark)"]
    assert above["a, before costs"]["y"].tolist() == pytest.approx([1.0, 1.2, 1.44])
    assert above["spx (benchmark)"]["y"].tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert {name: trace["y"].tolist() for name, trace in below.items()} == {
        "a": pytest.approx([0.0, 0.0, -0.1]),
        "spx (benchmark)": pytest.approx([0.0, -0.1, 0.0]),
    }
    assert [entry.name for entry in figure.legend] == list(above)
    alone = books.against_benchmarks(equity, pl.DataFrame(), "a", style)
    assert [trace["name"] for trace in alone.traces] == ["a", "a", "a, before costs"]


def test_years_are_bars_of_a_book_beside_its_benchmark() -> None:
    years = pl.DataFrame({"year": [2023, 2024, 2023], "name": ["a", "a", "b"], "net": [0.1, -0.05, 0.2]})
    figure = books.annual_returns(years, {"a": LineStyle("#111111"), "b": LineStyle("#222222")})
    assert [(one["name"], one["x"], one["marker"]["color"]) for one in figure.traces] == [
        ("a", ["2023", "2024"], "#111111"),
        ("b", ["2023"], "#222222"),
    ]
    assert figure.traces[0]["y"] == pytest.approx([10.0, -5.0])


def test_the_distribution_counts_every_session_and_stands_beside_the_normal_one() -> None:
    rng = np.random.default_rng(5)
    returns = rng.normal(0.001, 0.01, 2_000)
    bars, curve = books.return_distribution(pl.Series(returns), LineStyle("#111111")).traces
    assert bars["y"].sum() == 2_000
    assert 15 <= len(bars["y"]) <= 60
    edges = np.concatenate([bars["x"] - bars["width"] / 2, bars["x"][-1:] + bars["width"] / 2])
    for at, count in enumerate(bars["y"][:-1]):
        inside = [one for one in 100 * returns if edges[at] <= one < edges[at + 1]]
        assert abs(len(inside) - count) <= 1, "an edge may round to either side"
    expected = np.diff([0.5 * math.erfc(-(e - 0.1) / math.sqrt(2)) for e in edges]) * 2_000
    assert np.abs(curve["y"] - expected).max() < 25
    flat = books.return_distribution(pl.Series([0.0] * 30), LineStyle("#111111")).traces[0]
    assert flat["y"].sum() == 30


def test_an_axis_of_epochs_has_whole_numbers() -> None:
    for epochs, step in ((1, 1), (2, 1), (12, 2), (100, 10)):
        learning = pl.DataFrame(
            {"model": "a", "fold": 0, "seed": 0, "epoch": range(epochs + 1), "train_loss": 1.0}
        ).with_columns(valid_rank_ic=pl.lit(None, dtype=pl.Float64))
        (figure,) = models.learning_curves(learning, model_styles(["a"]))
        assert (figure.layout["xaxis"]["tick0"], figure.layout["xaxis"]["dtick"]) == (0, step)


def test_turnover_is_a_rolling_mean_in_per_cent() -> None:
    dates = pl.date_range(dt.date(2024, 1, 1), dt.date(2024, 1, 6), eager=True)
    book = pl.DataFrame(
        {
            "date": dates,
            "turnover": [0.1, 0.3, 0.2, 0.0, 0.4, 0.2],
            "unfilled": [0.0, 0.0, 0.1, 0.1, 0.0, 0.0],
        }
    )
    traded, left = books.trading(book, "m", LineStyle("#000000"), window=2).traces
    assert traded["y"].tolist() == pytest.approx([10, 20, 25, 10, 20, 30], abs=1e-5)
    assert left["y"].tolist() == pytest.approx([0, 0, 5, 10, 5, 0], abs=1e-5)


def test_figures_are_encoded_without_loss_that_an_eye_could_see() -> None:
    rng = np.random.default_rng(0)
    dates = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    dates = dates[np.is_busday(dates)]
    y = rng.normal(size=len(dates)).astype(np.float32)
    figure = draw(
        "title",
        100,
        [
            {"type": "scatter", "x": dates, "y": y, "name": "a"},
            {"type": "scatter", "x": dates, "y": np.array([1.0, np.nan, 123456.789]), "name": "b"},
        ],
        {"xaxis": axis("x"), "yaxis": axis("y", range=[0.1, math.inf])},
    )
    content = plain({"data": figure.traces, "layout": figure.layout})
    assert content["data"][0]["x"] == content["data"][1]["x"] == dates.astype(str).tolist()
    np.testing.assert_allclose(content["data"][0]["y"], y, rtol=1e-5)
    assert content["data"][1]["y"] == [1.0, None, 123457.0]
    assert content["layout"]["yaxis"]["range"] == [0.1, None]


def test_the_legend_lists_every_name_once_and_says_what_is_switched_off() -> None:
    trace = {"type": "scatter", "x": [1], "y": [1]}
    figure = draw(
        "title",
        100,
        [
            {**trace, "name": "&lt;a&gt;", "legendgroup": "<a>", "line": {"color": "#111111", "dash": "dot"}},
            {**trace, "name": "&lt;a&gt;", "legendgroup": "<a>", "showlegend": False},
            {**trace, "name": "b", "visible": "legendonly", "marker": {"color": "#222222"}},
            {**trace},
        ],
        {"xaxis": axis("x"), "yaxis": axis("y")},
    )
    first, second = figure.legend
    assert (first.name, first.colour, first.dash, first.traces, first.hidden) == (
        "&lt;a&gt;",
        "#111111",
        "dot",
        (0, 1),
        False,
    )
    assert (second.name, second.traces, second.hidden) == ("b", (2,), True)
    written = Page().chart(figure, "a caption")
    assert 'aria-pressed="false" data-traces="2"' in written
    assert "<a>" not in written
    one = Figure("t", figure.traces[:1], figure.layout, 100)
    assert one.legend == (), "a single name needs no legend"


def test_the_verdict_on_attention_has_its_intervals_and_every_map_says_what_it_does_not_show() -> None:
    page = render_report(make_report())
    words = (
        "Attention usable as an explanation, over days: no, but near inconclusive; over peers: inconclusive."
    )
    assert words in page
    for bounds in (
        "0.30 to 0.50",
        "0.75 to unbounded",
        "at least 0.50, fails below 0.30",
        "0.0020 to 0.0200",
    ):
        assert f'<td class="num">{bounds}</td>' in page
    captions = dict(
        re.findall("<figure><h4>(Attention .*?)</h4>.*?<figcaption>(.*?)</figcaption>", page, re.S)
    )
    assert len(captions) == 2
    for title, caption in captions.items():
        assert "not what the reading does to the forecast" in caption, title
    found = make_explained("temporal_peer")
    curves = explained.removal_curves(found.table("curves"), "days")
    assert curves.views == {"masked keys": (0, 1, 2), "other firms of the date": (3, 4, 5)}
    assert [trace["visible"] for trace in curves.traces] == [True] * 3 + [False] * 3
    assert curves.traces[0]["name"] == "SHAP"
    z = explained.firm_map(found.table("firm_map"), "shap").traces[0]["z"]
    assert [z[i][i] for i in range(3)] == [None] * 3, "a firm is not its own peer"
    assert z[2][1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (0.02, ["0.000", "0.005", "0.010", "0.015", "0.020"]),
        (0.09, ["0.000", "0.025", "0.050", "0.075", "0.100"]),
        (10.0, ["0.0", "2.5", "5.0", "7.5", "10.0"]),
        (400.0, ["0", "100", "200", "300", "400"]),
    ],
)
def test_labels_of_an_axis_without_scripts_are_not_rounded(highest: float, expected: list[str]) -> None:
    path = pl.DataFrame({"date": [dt.date(2024, 1, 2), dt.date(2024, 1, 3)], "y": [0.0, highest]})
    trace = figures.line(path, "a", LineStyle("#000"), "")
    shown = static_chart(draw("title", 180, [trace], figures.over_time(axis(""))))
    assert [text for _, text, _ in shown["ticks"]] == expected
