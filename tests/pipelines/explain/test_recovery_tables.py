"""The table of recovery: one row per kind of planted edge and method, with the lift over the start."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl

from pipelines.dataset.build import Dataset
from pipelines.explain.attribution import recovery_table
from pipelines.explain.games import ModelExplanation
from pipelines.explain.shown import START

DATES = [dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in range(3)]
FIRMS = np.arange(4)


def explained(square_NN: np.ndarray, start_NN: np.ndarray) -> ModelExplanation:
    """Three dates with the same values; attention is that of the start."""
    parts = [
        SimpleNamespace(session=d, firms_N=FIRMS, square_NN=square_NN, attention_NN=start_NN)
        for d in range(3)
    ]
    made = SimpleNamespace(model="temporal_peer", peers=parts, untrained=[(FIRMS, start_NN)] * 3)
    return cast("ModelExplanation", made)


def test_rows_are_the_kinds_of_edges_with_their_lift() -> None:
    truth = pl.DataFrame(
        {
            "leader": ["A", "B", "C"],
            "follower": ["B", "C", "D"],
            "rule": ["industry", "hidden", "industry"],
            "valid_from": [DATES[0]] * 3,
            "valid_to": [None, None, DATES[1]],  # C -> D holds on one date of three
        }
    )
    panel = SimpleNamespace(
        dates_T=np.array(DATES, dtype="datetime64[D]"), tickers_N=tuple("ABCD"), n_firms=4
    )
    square_NN, start_NN = np.full((4, 4), 0.1), np.full((4, 4), 0.5)
    square_NN[1, 0] = 0.9  # A -> B is ranked first
    square_NN[2, 1] = 0.05  # B -> C is ranked last
    table = recovery_table(
        explained(square_NN, start_NN), truth, cast("Dataset", SimpleNamespace(panel=panel))
    )
    auc = {(kind, method): value for kind, method, value in table.select("kind", "method", "auc").iter_rows()}
    assert auc == {
        ("all", "shap"): 0.5, ("all", "attention"): 0.5, ("all", START): 0.5,
        ("industry", "shap"): 1.0, ("industry", "attention"): 0.5, ("industry", START): 0.5,
        ("hidden", "shap"): 0.0, ("hidden", "attention"): 0.5, ("hidden", START): 0.5,
    }  # fmt: skip
    lift = table.filter(pl.col("method") == "shap").select("kind", "lift", "lift_error", "n_edges", "n_pairs")
    assert sorted(lift.iter_rows()) == [
        ("all", 0.0, 0.0, 2, 10), ("hidden", -0.5, 0.0, 1, 10), ("industry", 0.5, 0.0, 1, 10)
    ]  # fmt: skip
    assert table.filter(pl.col("method") == START)["lift"].null_count() == 3


def test_a_market_without_edges_on_the_dates_gives_an_empty_table() -> None:
    truth = pl.DataFrame(
        {
            "leader": ["A"],
            "follower": ["Z"],
            "rule": ["industry"],
            "valid_from": DATES[:1],
            "valid_to": [None],
        }
    )
    panel = SimpleNamespace(
        dates_T=np.array(DATES, dtype="datetime64[D]"), tickers_N=tuple("ABCD"), n_firms=4
    )
    flat = np.ones((4, 4))
    table = recovery_table(explained(flat, flat), truth, cast("Dataset", SimpleNamespace(panel=panel)))
    assert table.is_empty()
    assert table.schema["auc"] == pl.Float64
