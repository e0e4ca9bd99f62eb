"""A model's network as the page's script reads it: tables as columns, and firms, dates and groups by number.

Legend: N firms, D dates, G groups, E edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from features.arrays import FloatArray, IntArray
from pipelines.explain.network_tables import STRONGEST, UNKNOWN_GROUP
from pipelines.explain.unit import Unit
from pipelines.explorer.columns import rough_values, values, whole_numbers
from pipelines.explorer.contents import ModelNetwork

Payload = dict[str, Any]


def unit_payload(units: Sequence[Unit]) -> Payload:
    """Unit of the values of a page: that of its models if it is the same for all, and otherwise none."""
    if len(set(units)) == 1:
        unit = units[0]
    else:
        unit = Unit("", 1.0, "none", "; ".join(dict.fromkeys(one.sentence for one in units)))
    digits = 2 if unit.name else 4
    return {"name": unit.name, "factor": unit.factor, "digits": digits, "sentence": unit.sentence}


def model_payload(network: ModelNetwork, orders: int) -> Payload:
    """Encode one model's network.

    Parameters
    ----------
    network
        The tables.
    orders
        Independent pairs of orders behind a Shapley value, at least 2; they give the 95% interval of a value,
        by Student's t distribution.

    Returns
    -------
    dict
        Rows of ``dated`` are sorted by date, follower and rank, those of ``edges`` by follower and rank.
        Entry d of ``dated.starts`` is the first row of date d. Firms, dates and groups are numbers, which
        count the lists ``firms``, ``dates`` and ``groups``.
    """
    firms = network.firms.sort("ticker")
    tickers = firms["ticker"].to_list()
    groups = sorted({*firms["group"].drop_nulls(), *network.groups["leaders"], *network.groups["followers"]})
    if firms["group"].null_count() and UNKNOWN_GROUP not in groups:
        groups.append(UNKNOWN_GROUP)
    days = network.dated_firms.select("date", "fold", "seed").unique().sort("date")
    return {
        "model": network.model,
        "interval": float(stats.t.ppf(0.975, orders - 1)),
        "strongest": STRONGEST,
        "firms": tickers,
        "groups": groups,
        "group": whole_numbers(_numbers(firms["group"].fill_null(UNKNOWN_GROUP), groups)),
        **{name: values(firms[name]) for name in ("out_strength", "in_strength", "pagerank")},
        **{name: whole_numbers(firms[name]) for name in ("leads", "follows")},
        "community": whole_numbers(firms["community"].to_numpy() + 1),  # 0 without an edge
        "dates": [str(date) for date in days["date"]],
        "folds": days["fold"].to_list(),
        "seeds": days["seed"].to_list(),
        "forecasts": _forecasts(network.dated_firms, tickers, days["date"]),
        "dated": _dated(network.dated_edges, tickers, days["date"]),
        "edges": _edges(network.edges, tickers),
        "blocks": _blocks(network.groups, groups),
        "network": _rows(
            network.network, ("measure", "value", "null_mean", "null_low", "null_high", "number")
        ),
        "evidence": _rows(
            network.evidence, ("kind", "leader", "follower", "slope", "error", "t", "q", "sessions")
        ),
        "verdict": _rows(
            network.verdict,
            (
                "over",
                "answer",
                "criterion",
                "question",
                "outcome",
                "value",
                "low",
                "high",
                "threshold",
                "fails",
                "above",
                "margin",
                "near",
            ),
        ),
    }


def _numbers(names: pl.Series, known: Sequence[str]) -> IntArray:
    place = {name: number for number, name in enumerate(known)}
    return np.array([place[name] for name in names], dtype=np.int64)


def _forecasts(frame: pl.DataFrame, tickers: Sequence[str], dates: pl.Series) -> Payload:
    """Forecast and base value [D, N], by row; NaN where a firm has no forecast."""
    at = (_dates(frame, dates), _numbers(frame["ticker"], tickers))
    cells: dict[str, FloatArray] = {}
    for name in ("base", "forecast"):
        cells[name] = np.full((len(dates), len(tickers)), np.nan)
        cells[name][at] = frame[name].to_numpy()
    return {name: values(value_DN.ravel()) for name, value_DN in cells.items()}


def _dates(frame: pl.DataFrame, dates: pl.Series) -> IntArray:
    return np.searchsorted(dates.to_numpy(), frame["date"].to_numpy()).astype(np.int64)


def _dated(frame: pl.DataFrame, tickers: Sequence[str], dates: pl.Series) -> Payload:
    rows = frame.sort("date", "follower", "rank")
    return {
        "starts": np.searchsorted(_dates(rows, dates), np.arange(len(dates) + 1)).tolist(),
        "leader": whole_numbers(_numbers(rows["leader"], tickers)),
        "follower": whole_numbers(_numbers(rows["follower"], tickers)),
        "value": values(rows["value"]),
        **{name: rough_values(rows[name]) for name in ("error", "attention")},
    }


def _edges(frame: pl.DataFrame, tickers: Sequence[str]) -> Payload:
    rows = frame.sort("follower", "rank")
    return {
        "leader": whole_numbers(_numbers(rows["leader"], tickers)),
        "follower": whole_numbers(_numbers(rows["follower"], tickers)),
        "found": whole_numbers(rows["found"].cast(pl.UInt8)),
        **{name: values(rows[name]) for name in ("weight", "signed", "t", "q")},
        **{name: rough_values(rows[name]) for name in ("error", "attention")},
    }


def _blocks(frame: pl.DataFrame, groups: Sequence[str]) -> Payload:
    """Weight and attention [G, G] as [follower, leader], by row; NaN for pairs of groups without a pair."""
    at = (_numbers(frame["followers"], groups), _numbers(frame["leaders"], groups))
    cells: Payload = {}
    for name in ("weight", "attention"):
        value_GG = np.full((len(groups), len(groups)), np.nan)
        value_GG[at] = frame[name].to_numpy()
        cells[name] = values(value_GG.ravel())
    return cells


def _rows(frame: pl.DataFrame, columns: Sequence[str]) -> list[Mapping[str, Any]]:
    """Rows as JSON objects; NaN becomes null, and infinity a text."""
    if frame.is_empty():
        return []
    return [{name: _plain(value) for name, value in row.items()} for row in frame.select(columns).to_dicts()]


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    return value
