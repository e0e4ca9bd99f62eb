"""A small made-up peer network as the tables of a run's explanation, with values that a test can compute.

The value of leader j for follower i on date d is ``(-1)^(i+j) (1 + j + 10 d) / 10,000``, its Monte Carlo
error a quarter of a basis point, and attention falls with j. Every third firm is no follower.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import polars as pl

from pipelines.run.record import RecordedRun

HOSTILE = "<img src=x onerror=alert(1)>"
TICKERS = ("AAA", "BBB", "CCC", "DDD", HOSTILE, "FFF")
GROUPS = ("Banks", "Banks", "<b>Trucks</b>", "<b>Trucks</b>", None, "Banks")
DATES = (dt.date(2020, 1, 10), dt.date(2020, 2, 14), dt.date(2020, 3, 13))
MODEL = "temporal_peer"


def value_of(leader: int, follower: int, date: int) -> float:
    """The Shapley value that the tables hold, in returns."""
    sign = -1 if (leader + follower) % 2 else 1
    return sign * (1 + leader + 10 * date) / 10_000


def made_tables(
    tickers: Sequence[str] = TICKERS,
    groups: Sequence[str | None] = GROUPS,
    dates: Sequence[dt.date] = DATES,
    *,
    edges: bool = True,
    verdict: bool = True,
) -> Mapping[str, pl.DataFrame]:
    """Build the tables of a network, without its edges or its verdict if asked."""
    pairs = [
        (j, i) for i in range(len(tickers)) for j in range(len(tickers)) if edges and i != j and i % 3 != 2
    ]
    named = {"model": MODEL}
    dated = [
        {
            **named,
            "date": date,
            "fold": d // 2,
            "seed": 0,
            "leader": tickers[j],
            "follower": tickers[i],
            "value": value_of(j, i, d),
            "error": 0.25e-4,
            "rank": len(tickers) - j,
            "attention": 0.5 / (1 + j),
            "attention_rank": j + 1,
        }
        for d, date in enumerate(dates)
        for j, i in pairs
    ]
    firms = [
        {
            **named,
            "date": date,
            "fold": d // 2,
            "seed": 0,
            "ticker": ticker,
            "base": 1e-4 * i,
            "forecast": 1e-4 * i + sum(value_of(j, k, d) for j, k in pairs if k == i),
        }
        for d, date in enumerate(dates)
        for i, ticker in enumerate(tickers)
    ]
    over_dates = [
        {
            **named,
            "leader": tickers[j],
            "follower": tickers[i],
            "weight": 1e-4 * (1 + j),
            "error": 1e-5,
            "signed": value_of(j, i, 0),
            "t": 4.0 - j,
            "p": 0.01,
            "q": 0.01 * (1 + j),
            "found": j < 3,
            "share": 0.1,
            "rank": len(tickers) - j,
            "dates": len(dates),
            "attention": 0.5 / (1 + j),
            "same_group": groups[i] == groups[j],
            "planted": None,
        }
        for j, i in pairs
    ]
    members = [
        {
            **named,
            "ticker": ticker,
            "group": groups[i],
            "out_strength": 1e-3 * i,
            "in_strength": 1e-4,
            "leads": 3 if i < 3 else 0,
            "follows": 2,
            "pagerank": 1 / len(tickers),
            "community": 0 if i < 3 else -1,
        }
        for i, ticker in enumerate(tickers)
    ]
    known = sorted({group or "unknown" for group in groups})
    blocks = [
        {**named, "leaders": one, "followers": two, "pairs": 2, "weight": 1e-4, "attention": 0.1}
        for one in known
        for two in known
        if edges
    ]
    criteria = [
        {
            **named,
            "over": over,
            "answer": answer,
            "criterion": "agreement",
            "question": "do attention and SHAP rank alike?",
            "outcome": "fail" if answer == "no" else "open",
            "value": 0.31,
            "low": 0.2,
            "high": float("inf"),
            "threshold": 0.7,
            "fails": 0.4,
            "above": True,
            "dates": 8,
            "margin": 0.1,
            "near": "inconclusive" if answer == "no" else None,
        }
        for over, answer in (("peers", "no"), ("days", "inconclusive"))
        if verdict
    ]
    unknown = float("nan")
    measures = [
        {**named, "measure": measure, "value": value, "null_mean": mean, "null_low": low, "null_high": high}
        for measure, value, mean, low, high in (
            ("edges found", 9.0, 0.4, 0.0, 1.0),
            ("homophily", 0.5, 0.2, 0.1, 0.3),
            ("reciprocity of the edges found", unknown, unknown, unknown, unknown),
        )
    ]
    tested = [
        {
            **named,
            "kind": "edge",
            "leader": "BBB",
            "follower": "AAA",
            "slope": -0.12,
            "error": 0.06,
            "t": -2.0,
            "q": 0.4,
            "sessions": 250,
        }
    ]
    text = {"model": pl.String, "leader": pl.String, "follower": pl.String}
    numbers = dict.fromkeys(("value", "error", "attention"), pl.Float64)
    dated_schema = {**text, "date": pl.Date, "rank": pl.Int64, "attention_rank": pl.Int64, **numbers}
    edge_numbers = dict.fromkeys(("weight", "error", "signed", "t", "p", "q", "attention"), pl.Float64)
    edge_schema = {**text, **edge_numbers, "found": pl.Boolean, "rank": pl.Int64}
    block_schema = {"model": pl.String, "leaders": pl.String, "followers": pl.String}
    found = {
        "dated_edges": pl.DataFrame(dated, schema=None if dated else dated_schema),
        "dated_firms": pl.DataFrame(firms),
        "edges": pl.DataFrame(over_dates, schema=None if over_dates else edge_schema),
        "firms": pl.DataFrame(members, schema_overrides={"group": pl.String}),
        "groups": pl.DataFrame(
            blocks, schema=None if blocks else {**block_schema, "weight": pl.Float64, "attention": pl.Float64}
        ),
        "network": pl.DataFrame(measures).with_columns(number=30),
        "evidence": pl.DataFrame(tested),
    }
    return found | ({"verdict": pl.DataFrame(criteria)} if criteria else {})


def write_tables(run: RecordedRun, tables: Mapping[str, pl.DataFrame]) -> None:
    """Store the tables in the folder of a run."""
    for name, frame in tables.items():
        run.write_table(f"explain_{name}", frame)
