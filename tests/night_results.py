"""Synthetic outcomes of a night, with every part filled."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.lake.schemas import BookLimits, Books, Nights, Promotions, Signals
from pipelines.nightly.result import ModelVersion, NightFinding, NightResult, warnings_json

SESSION = dt.date(2026, 11, 20)
CHAMPION = ModelVersion("desk-0123456789ab", "temporal_peer")
CHALLENGER = ModelVersion("desk-ba9876543210", "temporal_peer")
NOW = dt.datetime(2026, 11, 20, 22, 41, tzinfo=dt.UTC)
DRIFT = NightFinding("drift", "warn", "beta_252 has drifted: PSI 0.31, limit 0.25.", "beta_252", 0.31, 0.25)
COVERAGE = NightFinding("coverage", "ok", "1,020 of 1,026 firms have a price.", None, 0.994, 0.9)
LOST = NightFinding(
    "coverage", "fail", "Only 12 of 1,026 firms have a price; ask the source again.", None, 0.01, 0.9
)


def signals(tickers: list[str], version: ModelVersion = CHAMPION) -> pl.DataFrame:
    n = len(tickers)
    value_N = np.random.default_rng(1).normal(size=n)
    frame = pl.DataFrame(
        {
            "config": ["desk"] * n,
            "session": [SESSION] * n,
            "ticker": tickers,
            "version": [str(version)] * n,
            "revision": [1] * n,
            "signal": value_N,
            "rank": (np.argsort(np.argsort(value_N)) + 0.5) / n,
            "seed_dispersion": np.full(n, 0.3),
            "in_universe": [True] * n,
            "data_versions": ['{"prices": 41, "securities": 7}'] * n,
            "created_at": [NOW] * n,
        }
    )
    return Signals.validate(frame, cast=True)


def book(tickers: list[str]) -> pl.DataFrame:
    n = len(tickers)
    rng = np.random.default_rng(2)
    weight_N = np.where(np.arange(n) % 2 == 0, 1.0, -1.0) * (np.arange(n) < 0.8 * n) / n
    previous_N = weight_N + np.where(np.arange(n) % 3 == 0, rng.normal(scale=0.01, size=n), 0.0)
    trade_N = weight_N - previous_N
    tradable_N = np.arange(n) != 3
    frame = pl.DataFrame(
        {
            "config": ["desk"] * n,
            "session": [SESSION] * n,
            "ticker": tickers,
            "book": ["long_short"] * n,
            "version": [str(CHAMPION)] * n,
            "weight": weight_N,
            "decided": weight_N,
            "previous": previous_N,
            "trade": trade_N,
            "expected_cost": pl.Series(np.where(tradable_N, 1e-3 * np.abs(trade_N), np.nan)).fill_nan(None),
            "fill_sessions": pl.Series(np.where(tradable_N, np.where(trade_N != 0, 2, 0), -1)).replace(
                -1, None
            ),
            "bound": [
                "no price" if not can else "participation cap" if trade else None
                for can, trade in zip(tradable_N, trade_N, strict=True)
            ],
            "tradable": tradable_N,
            "created_at": [NOW] * n,
            "price": [50.0] * n,
            "shares": trade_N * 1e6 / 50.0,
        },
        schema_overrides={"bound": pl.String},
    )
    return Books.validate(frame, cast=True)


def profits() -> pl.DataFrame:
    """Three sessions, two of them in the month of `SESSION`; late fills have changed the NAV before it."""
    sessions = [dt.date(2026, 10, 30), dt.date(2026, 11, 19), SESSION]
    rows = {
        "session": sessions,
        "capital": [1_000_000.0] * 3,
        "nav": [1_000_000.0, 1_012_000.0, 1_010_500.0],
        "gross": [1_000_500.0, 1_013_000.0, 1_012_000.0],
        "backtest_nav": [1_000_000.0, 1_013_000.0, 1_012_250.0],
        "pnl": [0.0, 12_000.0, -2_000.0],
        "revision": [0.0, 0.0, 500.0],
    }
    return pl.DataFrame(rows)


def limits() -> pl.DataFrame:
    rows = [("max_leverage", 1.6, 2.0, "of NAV", "free"), ("max_beta", 0.02, 0.02, "beta", "binds")]
    frame = pl.DataFrame(rows, schema=["name", "value", "limit", "unit", "state"], orient="row")
    fixed = {"config": "desk", "session": SESSION, "book": "long_short", "created_at": NOW}
    return BookLimits.validate(
        frame.select(pl.all(), *(pl.lit(value).alias(name) for name, value in fixed.items())), cast=True
    )


def nights(states: list[str], findings: list[tuple[NightFinding, ...]] | None = None) -> pl.DataFrame:
    """One row per state, newest first, for the sessions before `SESSION`."""
    found = findings or [(DRIFT,) if state == "warned" else () for state in states]
    n = len(states)
    frame = pl.DataFrame(
        {
            "config": ["desk"] * n,
            "session": [SESSION - dt.timedelta(days=1 + k) for k in range(n)],
            "state": states,
            "version": [str(CHAMPION)] * n,
            "challenger": [None] * n,
            "data_versions": ["{}"] * n,
            "rows": [1020] * n,
            "trades": [84] * n,
            "warnings": [warnings_json(one) for one in found],
            "error": ["The source did not answer." if state == "failed" else None for state in states],
            "seconds": [93.5] * n,
            "peak_memory_bytes": [2_000_000_000] * n,
            "created_at": [NOW - dt.timedelta(days=1 + k) for k in range(n)],
            "table_ids": ["{}"] * n,
            "settings": [None] * n,
        },
        schema_overrides={"challenger": pl.String, "error": pl.String, "settings": pl.String},
    )
    return Nights.validate(frame, cast=True) if n else Nights.create_empty()


def promotions() -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "config": ["desk"],
            "number": [1],
            "alias": ["champion"],
            "version": [str(CHAMPION)],
            "session": [SESSION],
            "by": ["night"],
            "why": ["first version"],
            "forced": [False],
            "evidence": ["{}"],
            "created_at": [NOW],
        }
    )
    return Promotions.validate(frame, cast=True)


def attributions(tickers: list[str]) -> pl.DataFrame:
    players = ("days 1-5", "momentum", "volatility", "peers")
    rng = np.random.default_rng(3)
    return pl.DataFrame(
        [
            {
                "version": str(CHAMPION),
                "ticker": ticker,
                "kind": "family",
                "player": player,
                "value": float(rng.normal(scale=0.4)),
                "error": 0.02,
            }
            for ticker in tickers
            for player in players
        ]
    )


def monitoring() -> dict[str, pl.DataFrame]:
    """Tables of the monitoring over 60 sessions, with a drifted feature and a CUSUM near its limit."""
    rng = np.random.default_rng(4)
    sessions = [SESSION - dt.timedelta(days=60 - k) for k in range(58)]
    ic_T = rng.normal(0.02, 0.1, size=58)
    realised = pl.concat(
        [
            pl.DataFrame(
                {
                    "session": sessions[first:],
                    "role": [role] * (58 - first),
                    "version": [str(version)] * (58 - first),
                    "firms": [1020] * (58 - first),
                    "ic": ic_T[first:],
                    "rank_ic": ic_T[first:] + shift,
                }
            )
            for role, version, first, shift in (
                ("champion", CHAMPION, 0, 0.0),
                ("challenger", CHALLENGER, 30, 0.01),
            )
        ]
    )
    sum_T = np.maximum.accumulate(np.linspace(0.0, 5.5, 58))
    cusum = pl.DataFrame(
        {
            "session": sessions,
            "version": [str(CHAMPION)] * 58,
            "rank_ic": ic_T,
            "sum": sum_T,
            "limit": [6.1] * 58,
            "alarm": [False] * 58,
        }
    )
    features = ["beta_252", *(f"return_{k}" for k in range(1, 21))]
    psi_K = np.concatenate([[0.31], rng.uniform(0.01, 0.2, size=20)])
    drift = pl.DataFrame(
        {
            "feature": features,
            "kind": ["characteristic"] * 21,
            "psi": psi_K,
            "psi_limit": [0.25] * 21,
            "ks": psi_K / 2,
            "ks_limit": [0.12] * 21,
            "missing": [0.01] * 21,
            "missing_in_training": [0.012] * 21,
            "missing_limit": [0.2] * 21,
            "drifted": psi_K > 0.25,
        }
    )
    recent = [SESSION - dt.timedelta(days=k) for k in range(12)]
    roles = pl.DataFrame(
        {
            "session": recent * 2,
            "role": ["champion"] * 12 + ["challenger"] * 12,
            "version": [str(CHAMPION)] * 12 + [str(CHALLENGER)] * 12,
        }
    )
    return {
        "realised_ic": realised,
        "cusum": cusum,
        "drift": drift,
        "agreement": pl.DataFrame(
            {"session": recent, "firms": [1020] * 12, "rank_correlation": rng.uniform(0.7, 0.9, size=12)}
        ),
        "dispersion": roles.with_columns(mean_dispersion=pl.Series(rng.uniform(0.2, 0.3, size=24))),
        "turnover": roles.with_columns(firms=1020, turnover=pl.Series(rng.uniform(0.3, 0.5, size=24))),
    }


def night(folder: Path, tickers: list[str] | None = None) -> NightResult:
    """A night with a warning, every part filled."""
    names = [f"F{n:03d}" for n in range(40)] if tickers is None else tickers
    made = signals(names)
    ends = made.sort("signal")["ticker"].to_list()
    return NightResult(
        config="desk",
        session=SESSION,
        state="warned",
        folder=folder,
        champion=CHAMPION,
        challenger=CHALLENGER,
        signals=made,
        book=book(names),
        findings=(COVERAGE, DRIFT),
        tables={"attributions": attributions([*ends[:3], *ends[-3:]]), "limits": limits(), **monitoring()}
        | {"profits": profits()},
        nights=nights(["done", "warned", "failed"]),
        promotions=promotions(),
        seconds={"ingest": 12.5, "score": 30.25},
    )


def done(folder: Path) -> NightResult:
    return replace(night(folder), state="done", findings=(COVERAGE,))


def failed(folder: Path) -> NightResult:
    """A night that failed before it had signals."""
    return replace(
        night(folder),
        state="failed",
        champion=None,
        challenger=None,
        signals=Signals.create_empty(),
        book=Books.create_empty(),
        findings=(LOST,),
        tables={},
        error=LOST.sentence,
    )
