"""``peerglass.peer_network``: peers of a firm, and changes, against a network made by hand."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import peerglass
from peerglass import charts
from peerglass.network import PeerNetwork
from pipelines.config.load import check_config
from pipelines.errors import ConfigError

JAN, FEB, MAR = dt.date(2020, 1, 2), dt.date(2020, 2, 3), dt.date(2020, 2, 24)


@pytest.fixture(scope="module")
def network() -> PeerNetwork:
    """Three dates; B leads A on all of them, C only on the last one, and A leads <b>C</b>, a hostile name."""
    hostile = "<b>C</b>"
    dated = pl.DataFrame(
        [
            (JAN, 0, 0, "B", "A", 5.0, 0.3, 1, 0.6),
            (JAN, 0, 0, "D", "A", 1.0, 0.1, 2, 0.1),
            (FEB, 0, 0, "B", "A", -3.0, 0.4, 1, 0.7),
            (MAR, 1, 0, "B", "A", 2.0, 0.3, 2, 0.5),
            (MAR, 1, 0, hostile, "A", -4.0, 0.2, 1, 0.2),
            (MAR, 1, 0, "D", "A", 0.1, 0.1, 21, 0.3),
            (MAR, 1, 0, "A", hostile, 1.5, 0.2, 1, 0.2),
        ],
        schema=["date", "fold", "seed", "leader", "follower", "value", "error", "rank", "attention"],
        orient="row",
    )
    edges = pl.DataFrame(
        {
            "leader": ["B", "A"],
            "follower": ["A", hostile],
            "weight": [3.5, 1.5],
            "q": [0.01, 0.6],
            "found": [True, False],
            "same_group": [True, None],
        }
    )
    firms = pl.DataFrame(
        {"ticker": ["A", "B", hostile, "D"], "group": ["Steel", "Steel", None, "Food"]},
        schema={"ticker": pl.String, "group": pl.String},
    )
    return PeerNetwork("made", "bps", edges, dated, firms, pl.DataFrame())


def test_dates_are_found_by_the_calendar(network: PeerNetwork) -> None:
    assert network.dates == (JAN, FEB, MAR)
    assert network.latest() == MAR
    assert network.latest("2020-02-23") == FEB
    assert network.month_before(MAR) == JAN, "FEB is only three weeks earlier"
    assert network.month_before(JAN) == JAN
    assert network.month_before(MAR + dt.timedelta(days=30)) == MAR, "not explained itself"
    assert network.month_before(MAR, "<b>C</b>") == MAR
    with pytest.raises(peerglass.PeerglassError, match="No date up to 2019-12-31 was explained; the first"):
        network.latest("2019-12-31")
    with pytest.raises(peerglass.PeerglassError, match="'May' is not a date; write it as YYYY-MM-DD"):
        network.latest("May")


def test_peers_have_their_group_and_their_edge(network: PeerNetwork) -> None:
    rows = network.peers("A", MAR)
    assert rows["leader"].to_list() == ["<b>C</b>", "B"], "the 21st peer is not listed"
    assert rows["value"].to_list() == [-4.0, 2.0]
    assert rows["same_group"].to_list() == [None, True]
    assert rows["found"].to_list() == [None, True]
    assert rows["weight"].to_list() == [None, 3.5]
    led = network.followers_of("A", MAR)
    assert led.select("follower", "value").rows() == [("<b>C</b>", 1.5)]
    for ticker, date, sentence in (
        ("A", dt.date(2020, 1, 3), "2020-01-03 was not explained; the last explained dates are 2020-01-02"),
        ("X", MAR, "X is not in the network of made"),
        ("B", MAR, "The forecast of B on 2020-02-24 was not explained"),
    ):
        with pytest.raises(peerglass.PeerglassError, match=sentence):
            network.peers(ticker, date)


def test_the_verdict_is_one_short_row_per_criterion(tmp_path: Path, tiny: dict[str, Any]) -> None:
    config = check_config({**tiny, "models": {"made": {"model": "ridge"}}}, origin="made")
    row = {
        "over": "peers",
        "answer": "no",
        "question": "Does it?",
        "outcome": "fail",
        "value": 0.3,
        "low": 0.2,
    }
    row |= {
        "model": "made",
        "high": math.inf,
        "threshold": 0.5,
        "fails": 0.3,
        "above": True,
        "margin": 0.1,
        "near": None,
    }
    other = pl.DataFrame({"model": ["made"], "leader": ["B"], "follower": ["A"]}).with_columns(
        pl.lit(1.0).alias(name) for name in ("weight", "error", "signed", "value")
    )
    tables = {"explain_verdict": pl.DataFrame([row, {**row, "model": "other"}])}
    run = SimpleNamespace(
        id="made",
        tables=tables,
        table=lambda name: tables.get(name, other),
        trained=SimpleNamespace(folder=tmp_path, config=config),
    )
    verdict = peerglass.peer_network(run).verdict  # type: ignore[arg-type]  # what is read of a run
    assert verdict.rows() == [
        (
            "peers",
            "no",
            "Does it?",
            0.3,
            "0.20 to unbounded",
            "at least 0.50, fails below 0.30",
            "fail",
            0.1,
            None,
        )
    ]
    tables.clear()
    unmeasured = peerglass.peer_network(run).verdict  # type: ignore[arg-type]
    assert unmeasured.is_empty()
    assert unmeasured.columns == verdict.columns


def test_a_run_without_peers_has_no_network_and_that_is_said() -> None:
    run: Any = SimpleNamespace(id="made", tables=("explain_players", "ladder"))
    with pytest.raises(
        ConfigError, match=r"made was explained, but none of its models has peers: .*temporal_"
    ):
        peerglass.peer_network(run)


def test_a_change_is_null_where_a_value_was_not_stored(network: PeerNetwork) -> None:
    rows = network.changes(MAR, JAN, "A")
    by_leader = {row["leader"]: row for row in rows.iter_rows(named=True)}
    assert rows["leader"][0] == "B", "the largest known change first"
    assert by_leader["B"]["change"] == pytest.approx(-3.0)
    assert by_leader["B"]["error"] == pytest.approx(math.sqrt(0.3**2 + 0.3**2))
    assert by_leader["B"]["z"] == pytest.approx(-3.0 / math.sqrt(0.18))
    assert (by_leader["D"]["before"], by_leader["D"]["now"], by_leader["D"]["change"]) == (1.0, None, None)
    assert (by_leader["<b>C</b>"]["before"], by_leader["<b>C</b>"]["now"]) == (None, -4.0)
    assert network.changes(MAR, JAN).height == 4, "all followers"
    with pytest.raises(
        peerglass.PeerglassError, match="The forecast of <b>C</b> on 2020-01-02 was not explained"
    ):
        network.changes(MAR, JAN, "<b>C</b>")


def test_a_change_compares_one_seed_with_itself(network: PeerNetwork) -> None:
    turns = replace(
        network, dated=network.dated.with_columns(seed=pl.col("date").is_in([FEB]).cast(pl.Int64))
    )
    assert turns.month_before(MAR) == JAN
    with pytest.raises(
        peerglass.PeerglassError, match=r"Seed 0 explains 2020-02-24, and seed 1 .*as 2020-01-02"
    ):
        turns.changes(MAR, FEB)
    assert turns.changes(MAR, JAN).height == 4
    alone = replace(network, dated=network.dated.with_columns(seed=(pl.col("date") == MAR).cast(pl.Int64)))
    assert alone.month_before(MAR) == MAR, "no other date of this seed"


def test_charts_show_the_values_with_errors_and_escape_names(network: PeerNetwork) -> None:
    figure = charts.peers(network, "A", MAR)
    (bar,) = figure.data
    assert list(bar.x) == [-4.0, 2.0]
    assert list(bar.error_x.array) == pytest.approx([1.96 * 0.2, 1.96 * 0.3])
    menu = figure.layout.updatemenus[0]
    assert [button.label for button in menu.buttons] == ["&lt;b&gt;C&lt;/b&gt;", "A"]
    assert menu.active == 1
    other, title = menu.buttons[0].args
    assert other["x"] == [[1.5]]
    assert title["title.text"] == "Peers of &lt;b&gt;C&lt;/b&gt; on 2020-02-24"
    change = charts.peer_changes(network, "A", MAR, JAN)
    _, before, now = change.data
    assert dict(zip(before.y, before.x, strict=True))["B"] == 5.0
    assert dict(zip(now.y, now.x, strict=True)) == {"&lt;b&gt;C&lt;/b&gt;": -4.0, "B": 2.0, "D": None}
    history = charts.peer_history(network, "A").data[0]
    assert list(history.z[0]) == [5.0, -3.0, 2.0]
    drawing = charts.peer_network(network)
    assert "1 strongest edges found" in drawing.layout.title.text
    for figure in (change, drawing, charts.peer_history(network, "A")):
        assert "<b>" not in figure.to_json().replace("\\u003c", "<")
