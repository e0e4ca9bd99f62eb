"""A complete report of made-up results, which several test files render.

This file is long because a report has some thirty tables.
"""

import datetime as dt
import math
from typing import Any

import numpy as np
import polars as pl

from pipelines.config.sections import BacktestConfig
from pipelines.explain.shown import Unit
from pipelines.pages.report_data import ExplainedModel, Header, RunReport
from pipelines.run.evaluations import EvaluationRecord

MODELS = (
    "zero",
    "reversal",
    "momentum",
    "ridge",
    "lightgbm",
    "temporal_transformer",
    "self_peer",
    "temporal_peer",
)
SKILL = dict(zip(MODELS, (0.0, 0.010, 0.004, 0.021, 0.026, 0.029, 0.034, 0.041), strict=True))
NEURAL = MODELS[5:]
BOOKS = ("quantile long-short, 5 quantiles", "top 20 long-only")


def make_report(**changes: Any) -> RunReport:  # noqa: ANN401  # fields and tables
    """Build a run of 8 models, 2 delays, 3 folds and 100 firms, with planted truth and explanations.

    A change is a field of the report, or a table; a table that is None is left out.
    """
    tables = {
        "ladder": make_ladder(),
        "folds": make_folds(),
        **make_series(),
        "quantiles": make_quantiles(),
        "comparisons": make_comparisons(),
        "assumptions": pl.DataFrame(
            {
                "assumption": ["half-spread", "commission", "borrow on shorts"],
                "value": [5.0, 0.5, 50.0],
                "unit": ["bps of traded value", "bps of traded value", "bps of short value per year"],
            }
        ),
        "costs": make_costs(),
        "learning": make_learning(),
        **make_books(),
        **make_signals(),
        **make_trials(),
    }
    own: dict[str, Any] = {
        "header": make_header(),
        "explained": (make_explained("temporal_peer"), make_explained("self_peer", example=False)),
    }
    fields = set(RunReport.__dataclass_fields__) - {"tables"}
    own |= {name: value for name, value in changes.items() if name in fields}
    tables |= {name: value for name, value in changes.items() if name not in fields}
    return RunReport(tables={name: frame for name, frame in tables.items() if frame is not None}, **own)


RECORD = EvaluationRecord(
    evaluation="5f2a91c07b",
    made_at=dt.datetime(2026, 1, 5, 5, 15, tzinfo=dt.UTC),
    backtest=BacktestConfig(),
    delays=(1,),
    code="0" * 16,
    commit="a58d375",
    trials=42,
    dates=756,
    first=dt.date(2021, 1, 4),
    last=dt.date(2023, 11, 24),
)


def make_header(**changes: object) -> Header:
    """Build a header; a change is a field of it, or of its record."""
    parts: dict[str, Any] = {
        "run_id": "20260105T051500-3f9c2a",
        "name": "Nightly, simulated market",
        "created_at": "2026-01-05 05:15 UTC",
        "git_commit": "a58d3754c0ffee00112233445566778899aabbcc",
        "config_yaml": "name: nightly\nsource:\n  kind: simulated\n  seed: 7\nlabel:\n  delay: 1\n",
        "config_hash": "9b1f6c1de2a84b5f9b1f6c1de2a84b5f",
        "device": "CPU, 2 threads",
        "libraries": {"torch": "2.13.0", "polars": "2.1.0", "lightgbm": "4.7.1"},
        "data_versions": pl.DataFrame(
            {
                "table": ["prices", "securities", "fundamentals"],
                "version": [3, 1, None],
                "rows": [151200, 112, 9408],
            }
        ),
        "trial_count": 42,
        "seeds": (0, 1, 2),
        "label_delay": 1,
        "verdict_delay": 1,
        "execution_delay": 1,
        "label_horizon": 1,
        "label_transform": "rank",
        "universe": "price of at least 1, median dollar volume of at least 100,000 over 63 sessions",
        "mean_firms_per_date": 97.4,
        "main_book": BOOKS[0],
        "sharpe_rate": "a rate of 0",
        "evaluations": pl.DataFrame(
            {
                "evaluation": ["5f2a91c07b"],
                "shown": [True],
                "made_at": ["2026-01-05 05:15 UTC"],
                "commit": ["a58d375"],
                "assumptions": ["half-spread 5 bps"],
            }
        ),
        "tables": "evaluations/5f2a91c07b",
        "stage_seconds": {"ingest": 3.1, "train": 512.7, "backtest": 4.4, "explain": 61.0, "report": 2.2},
        "hazards": (
            "12 firms' prices end before the data do: they are assumed delisted at -30%.",
            "The universe was chosen with knowledge of the year 2017.",
        ),
        "notes": ("No volume in the source: liquidity characteristics are left out.",),
    }
    of_record = {name: changes.pop(name) for name in EvaluationRecord.model_fields if name in changes}
    return Header(record=RECORD.model_copy(update=of_record), **(parts | changes))


def answer(model: str, baseline: str) -> str | None:
    """Say yes or no if the planted ICs differ by 0.01 or more."""
    gap = SKILL[model] - SKILL[baseline]
    return None if model == baseline else "yes" if gap > 0.0101 else "no" if gap < -0.0099 else "unclear"


def make_comparisons() -> pl.DataFrame:
    rows = []
    for baseline in ("ridge", "lightgbm"):
        for model in MODELS:
            gap = SKILL[model] - SKILL[baseline]
            if model != baseline:
                rows.append(
                    {
                        "model": model,
                        "baseline": baseline,
                        "rival": baseline,
                        "delay": 1,
                        "level": 0.05,
                        "ic_difference": gap,
                        "ic_lower": gap - 0.0101,
                        "ic_upper": gap + 0.0099,
                        "ic_p": 0.0321,
                        "dm_p": 0.0432,
                        "sharpe_difference": 55 * gap,
                        "sharpe_lower": 55 * gap - 0.7,
                        "sharpe_upper": 55 * gap + 0.7,
                        "sharpe_p": 0.0765,
                        "beats": answer(model, baseline),
                    }
                )
    return pl.DataFrame(rows)


def make_ladder() -> pl.DataFrame:
    rows = []
    for delay, strength in ((1, 1.0), (0, 1.35)):
        for model in MODELS:
            ic = SKILL[model] * strength
            flat = model == "zero"
            net = 0.0 if flat else 55 * ic - 0.9
            rows.append(
                {
                    "model": model,
                    "delay": delay,
                    "seeds": 3 if model in NEURAL else 1,
                    "ic": None if flat else ic,
                    "icir": None if flat else 7 * ic,
                    "ic_t": None if flat else 160 * ic,
                    "rank_ic": None if flat else 0.93 * ic,
                    "rank_icir": None if flat else 6.6 * ic,
                    "coverage_dates": 1.0,
                    "coverage_firms": 0.975,
                    "tied": 1.0 if flat else 0.0,
                    "precision_at_10": 0.5 + ic,
                    "literature_sr": 60 * ic,
                    "valid_rank_ic": None if flat else 1.1 * SKILL[model],
                    "share_of_truth": None if flat else ic / 0.081,
                    "truth_ic": 0.081 if delay else 0.093,
                    "truth_rank_ic": 0.077 if delay else 0.089,
                    "sharpe_gross": 0.0 if flat else 70 * ic,
                    "sharpe_net": net,
                    "ic_lower": None if flat or delay != 1 else ic - 0.012,
                    "ic_upper": None if flat or delay != 1 else ic + 0.012,
                    "sharpe_lower": None if flat or delay != 1 else net - 0.9,
                    "sharpe_upper": None if flat or delay != 1 else net + 0.9,
                    "deflated_sharpe": None if flat or delay != 1 else 0.7 + 0.2 * net,
                    "turnover": 0.0 if flat else 0.62,
                    "annual_return_net": 0.09 * net,
                    "max_drawdown_net": -0.02 if flat else -0.08 - 0.02 / (1 + ic),
                    "beats_ridge": None if delay != 1 else answer(model, "ridge"),
                    "beats_lightgbm": None if delay != 1 else answer(model, "lightgbm"),
                }
            )
    return pl.DataFrame(rows)


def make_folds() -> pl.DataFrame:
    rows = []
    for fold in range(3):
        test_from = dt.date(2021 + fold, 1, 4)
        rows.append(
            {
                "fold": fold,
                "train_from": dt.date(2018, 1, 2),
                "train_to": dt.date(2020 + fold, 6, 25),
                "valid_from": dt.date(2020 + fold, 7, 6),
                "valid_to": dt.date(2020 + fold, 12, 22),
                "test_from": test_from,
                "test_to": dt.date(2021 + fold, 12, 31),
                "n_train": 620 + 252 * fold,
                "n_valid": 118,
                "n_test": 252,
            }
        )
    return pl.DataFrame(rows)


def make_series(sessions: int = 756) -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(3)
    dates = pl.date_range(dt.date(2021, 1, 4), dt.date(2026, 1, 4), eager=True)
    dates = dates.filter(dates.dt.weekday() <= 5).head(sessions)
    common = rng.normal(0, 0.004, len(dates))
    equity, ic = [], []
    for model in MODELS:
        flat = model == "zero"
        daily = rng.normal(SKILL[model], 0.11, len(dates)) * (0 if flat else 1)
        values = np.full(len(dates), np.nan) if flat else daily
        ic.append(pl.DataFrame({"date": dates, "model": model, "ic": values, "rank_ic": 0.93 * values}))
        for book, drift in zip(BOOKS, (0.0, 0.0004), strict=True):
            gross = (0 if flat else 1) * (0.03 * daily * 0.5 + common * (drift > 0)) + drift
            net = gross - (0 if flat else 0.00035)
            equity.append(
                pl.DataFrame(
                    {
                        "date": dates,
                        "model": model,
                        "book": book,
                        "nav_gross": np.cumprod(1 + gross),
                        "nav_net": np.cumprod(1 + net),
                    }
                )
            )
    return {"equity": pl.concat(equity), "ic_series": pl.concat(ic)}


def make_quantiles() -> pl.DataFrame:
    rng = np.random.default_rng(4)
    return pl.DataFrame(
        [
            {
                "model": model,
                "quantile": q,
                "mean_return_bps": 400 * SKILL[model] * (q - 3) / 2 + rng.normal(0, 1) + 3,
            }
            for model in MODELS
            if model != "zero"
            for q in range(1, 6)
        ]
    )


def make_costs() -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "model": model,
                "book": book,
                "half_spread": 0.0 if model == "zero" else 640.0 * (1 + i / 9) * scale,
                "commission": 0.0 if model == "zero" else 64.0 * scale,
                "impact": 30.0 * scale * (model != "zero"),
                "financing": 0.0,
                "borrow": 50.0 * (scale == 1.0) * (model != "zero"),
            }
            for book, scale in zip(BOOKS, (1.0, 0.3), strict=True)
            for i, model in enumerate(MODELS)
        ]
    )


def make_learning() -> pl.DataFrame:
    rng = np.random.default_rng(5)
    rows = []
    for model in NEURAL:
        for fold in range(3):
            for seed in range(3):
                for epoch in range(1, int(rng.integers(8, 20))):
                    gain = 1 - math.exp(-epoch / 4)
                    rows.append(
                        {
                            "model": model,
                            "fold": fold,
                            "seed": seed,
                            "epoch": epoch,
                            "train_loss": 1 - 2 * SKILL[model] * gain + rng.normal(0, 0.004),
                            "valid_rank_ic": SKILL[model] * gain + rng.normal(0, 0.004),
                        }
                    )
    return pl.DataFrame(rows)


def make_edges(n_firms: int = 100, n_edges: int = 900) -> pl.DataFrame:
    rng = np.random.default_rng(6)
    firms = [f"S{i:04d}" for i in range(n_firms)]
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < n_edges:
        leader, follower = int(rng.zipf(1.4)) % n_firms, int(rng.integers(n_firms))
        if leader != follower:
            pairs.add((leader, follower))
    weight = (rng.pareto(1.8, n_edges) + 0.02) * 0.003
    return pl.DataFrame(
        {
            "leader": [firms[i] for i, _ in sorted(pairs)],
            "follower": [firms[j] for _, j in sorted(pairs)],
            "weight": weight,
            "error": 0.1 * weight,
            "t": 3.0 + 1_000.0 * weight,
            "q": np.linspace(1e-6, 0.04, n_edges),
            "found": True,
            "same_group": [i % 8 == j % 8 for i, j in sorted(pairs)],
            "planted": [i % 4 != 3 for i, _ in sorted(pairs)],
        }
    ).sort("weight", descending=True)


def make_faithfulness() -> dict[str, pl.DataFrame]:
    """Make the tables on attention."""
    over, methods = ["days", "peers"], ["shap", "attention", "random"]
    bounds = {"value": [0.4, 0.8], "low": [0.3, 0.75], "high": [0.5, float("inf")]}
    share = np.linspace(0, 1, 5)
    power = {"shap": 0.3, "attention": 0.7, "random": 1.0}
    firms = ["S0001", "S0002", "S0003"]
    cells = [(a, b) for a in firms for b in firms if a != b]
    return {
        "verdict": pl.DataFrame(
            {
                "over": over,
                "answer": ["no", "inconclusive"],
                "question": ["Does attention rank the units as |SHAP| does?"] * 2,
                **bounds,
                "threshold": [0.5, 0.5],
                "fails": [0.3, 0.3],
                "above": [True, True],
                "outcome": ["fail", "open"],
                "margin": [0.1, 0.4],
                "near": ["inconclusive", None],
            }
        ),
        "curves": pl.concat(
            [
                pl.DataFrame({"share": share, "cumulative": share ** power[method]}).with_columns(
                    over=pl.lit("days"), method=pl.lit(method), removal=pl.lit(removal)
                )
                for method in methods
                for removal in ("mask", "date")
            ]
        ),
        "agreement": pl.DataFrame(
            {
                "over": over,
                "kind": ["agreement with SHAP", "model seeds"],
                "method": ["attention", "shap"],
                **bounds,
                "null": [0.0, None],
                "dates": [12, 12],
            }
        ),
        "inference": pl.DataFrame(
            {
                "over": ["days"] * 2,
                "weights": ["as trained", "uniform"],
                "ic": [0.05, 0.04],
                "lost": [None, 0.01],
                "lost_low": [None, 0.002],
                "lost_high": [None, 0.02],
                "moved": [None, 0.3],
            }
        ),
        "heads": pl.DataFrame(
            {
                "over": ["days"] * 2,
                "layer": [1, 1],
                "head": [1, 2],
                "trait": ["recent_days", "effective_days"],
                **bounds,
                "null": [0.3, float("nan")],
            }
        ),
        "day_weights": pl.DataFrame(
            {
                "day": [1, 2],
                "regime": ["all", "calm"],
                "weight": [0.6, 0.4],
                "low": 0.3,
                "high": 0.7,
                "null": 0.5,
            }
        ),
        "day_map": pl.DataFrame(
            {"layer": [1] * 4, "head": [1] * 4, "query": [1, 1, 2, 2], "key": [1, 2, 1, 2], "weight": 0.5}
        ),
        "firm_map": pl.DataFrame(
            {
                "date": ["2023-11-17"] * 12,
                "method": ["attention"] * 6 + ["shap"] * 6,
                "target": [a for a, _ in cells] * 2,
                "source": [b for _, b in cells] * 2,
                "value": np.linspace(0.0, 0.2, 12),
            }
        ),
    }


def make_explained(model: str, example: bool = True) -> ExplainedModel:
    """Explain a model; the network of temporal_peer is compared with planted edges."""
    days = [f"days {5 * i + 1} to {5 * i + 5} back" for i in range(4)]
    families = ["momentum", "reversal", "volatility", "liquidity", "value", "quality", "size"]
    kinds = ["days"] * 4 + ["features"] * 7 + ["peers"] * 2
    players = [*days, *families, "peers in the group", "other peers"]
    size = [0.021, 0.012, 0.006, 0.003, 0.009, 0.014, 0.006, 0.004, 0.011, 0.007, 0.005, 0.016, 0.004]
    values = [0.031, -0.012, 0.004, -0.001, 0.009, -0.018, 0.006, 0.002, 0.011, -0.003, 0.002, 0.022, -0.004]
    forecast = {
        "date": "2023-11-17",
        "ticker": "S0042",
        "base_value": 0.011,
        "forecast": 0.011 + sum(values),
        "player": players,
        "value": values,
        "error": [0.0004] * len(values),
    }
    tables = {
        "players": pl.DataFrame(
            {"kind": kinds, "player": players, "mean_abs_shap": size, "error": [0.1 * x for x in size]}
        ),
        "skill": pl.DataFrame(
            {
                "kind": [*("family" if kind == "features" else kind for kind in kinds), "base", "total"],
                "player": [*players, "without any player", "rank IC"],
                "value": [*(0.3 * value for value in values), 0.002, 0.002 + 0.3 * sum(values)],
                "error": [0.002] * (len(values) + 2),
                "dates": [240] * (len(values) + 2),
            }
        ),
        **make_faithfulness(),
        **({"example": pl.DataFrame(forecast)} if example else {}),
        "edges": make_edges(),
        "network": pl.DataFrame(
            {
                "measure": ["edges found", "homophily", "rank correlation with attention"],
                "value": [900.0, 0.63, 0.71],
                "null_mean": [0.4, 0.12, 0.0],
                "null_low": [0.0, 0.09, -0.08],
                "null_high": [2.0, 0.15, 0.09],
                "number": [9_900, 9_900, 9_900],
            }
        ),
        "evidence": pl.DataFrame(
            {
                "kind": ["edge"] * 3 + ["random"] * 3,
                "leader": ["S0000", "S0001", "S0002"] * 2,
                "follower": ["S0010", "S0011", "S0012"] * 2,
                "slope": [0.04, 0.02, -0.01, 0.01, -0.02, 0.0],
                "error": [0.01] * 6,
                "t": [4.0, 2.0, -1.0, 1.0, -2.0, 0.0],
                "p": [1e-4, 0.045, 0.3, 0.3, 0.045, 1.0],
                "q": [3e-4, 0.07, 0.3, 0.45, 0.14, 1.0],
            }
        ),
    }
    facts: dict[str, Any] = {
        "n_forecasts": 2_400,
        "additivity_max_abs": 3.1e-7,
        "additivity_relative": 4.2e-6,
        "monte_carlo_error": 0.0004,
        "removal": "date",
    }
    if model == "temporal_peer":
        powers = {"shap": 0.12, "attention": 0.45, "random": 1.0}
        facts |= {f"auc_{method}": 1 / (1 + power) for method, power in powers.items()}
        facts |= {"auc_untrained": 0.55, "n_planted": 212, "n_pairs": 9_900}
        fpr = np.linspace(0, 1, 2_000)
        curves = [pl.DataFrame({"method": m, "fpr": fpr, "tpr": fpr**p}) for m, p in powers.items()]
        tables |= {"roc": pl.concat(curves), "recovery": make_recovery()}
    return ExplainedModel(model, Unit("bps", 1.0, "return", "return over 1 session"), facts, tables)


def make_recovery() -> pl.DataFrame:
    """Make the AUC of each way of ranking pairs by kind of planted edge."""
    kinds = {"kind": ["all", "industry"], "n_edges": [212, 104]}
    no_lift = {"lift": [0.0, 0.0], "lift_error": [None, None]}
    shap = {
        "auc": [0.893, 0.951],
        "error": [0.012, 0.009],
        "lift": [0.283, 0.291],
        "lift_error": [0.014, None],
    }
    parts = {
        "shap": shap,
        "attention": {"auc": [0.69, 0.7], "error": [0.01, 0.01], **no_lift},
        "attention before training": {"auc": [0.61, 0.66], "error": [0.01, 0.01], **no_lift},
    }
    return pl.concat(
        [
            pl.DataFrame(
                kinds | part | {"method": method},
                schema_overrides={"lift": pl.Float64, "lift_error": pl.Float64},
            )
            for method, part in parts.items()
        ]
    )


SECTORS = ("energy", "materials", "industrials", "health", "financials", "technology", "utilities")
STYLES = ("market beta", "size", "value", "momentum", "reversal", "volatility")


def make_books(firms: int = 60) -> dict[str, pl.DataFrame]:
    """Make the tables of the main book at delay 1, and its figures at delay 0 as well."""
    rng = np.random.default_rng(8)
    keys = {"book": BOOKS[0], "delay": 1}
    figures, capacity, alpha, contributions, exposures = [], [], [], [], []
    for model in MODELS:
        skill = SKILL[model]
        for delay in (1, 0):
            figures.append(
                {
                    "model": model,
                    "book": BOOKS[0],
                    "delay": delay,
                    "n_sessions": 756,
                    "annual_return_gross": 6 * skill,
                    "annual_return_net": 6 * skill - 0.08,
                    "annual_volatility_net": 0.091,
                    "sharpe_gross": 66 * skill,
                    "sharpe_net": 66 * skill - 0.9,
                    "sortino_net": 90 * skill - 1.2,
                    "calmar_net": 40 * skill - 0.6,
                    "hit_rate_net": 0.5 + skill,
                    "skew_net": -0.31,
                    "worst_day_net": -0.0234,
                    "best_day_net": 0.0311,
                    "max_drawdown_net": -0.123,
                    "leverage": 1.98,
                    "net_exposure": 0.004,
                    "turnover": 0.31,
                    "unfilled": 0.0021,
                    "signal_dates": 756,
                    "decisions": 152,
                }
            )
        for power in range(5, 11):
            loss = 0.02 * 10 ** ((power - 5) / 2)
            capacity.append(
                {
                    "model": model,
                    **keys,
                    "capital": 10.0**power,
                    "sharpe_net": 66 * skill - 0.9 - loss,
                    "annual_return_net": 6 * skill - 0.08 - loss / 10,
                    "impact_bps_per_year": 1000 * loss,
                    "participation_p95": min(0.05 * loss, 0.1),
                    "unfilled": 0.001 * loss,
                }
            )
        for place, term in enumerate(
            ("alpha", "market", "size", "value", "momentum", "reversal", "volatility")
        ):
            alpha.append(
                {
                    "model": model,
                    **keys,
                    "term": term,
                    "coefficient": 3 * skill if place == 0 else 0.1 * place - 0.3,
                    "t": 1.96 if place == 0 else float(place - 3),
                    "p_value": 0.05,
                    "r2": 0.234,
                    "sessions": 756,
                }
            )
        gross = rng.normal(0.002, 0.01, firms)
        cost = np.full(firms, 0.0005)
        sector = np.arange(firms) % len(SECTORS)
        groups: dict[str, list[tuple[str, Any]]] = {
            "name": [(f"S{i:04d}", [i]) for i in range(firms)],
            "sector": [(name, np.flatnonzero(sector == k)) for k, name in enumerate(SECTORS)],
            "side": [("long", np.arange(0, firms, 2)), ("short", np.arange(1, firms, 2))],
            "factor": [("market", np.arange(10)), ("specific", np.arange(10, firms))],
        }
        for by, members in groups.items():
            for key, index in members:
                parts = {"gross": gross[index].sum(), "cost": cost[index].sum()}
                net = parts["gross"] - parts["cost"]
                contributions.append({"model": model, **keys, "by": by, "key": key, **parts, "net": net})
        for kind, keys_of_kind in (("sector", SECTORS), ("style", STYLES)):
            for name in keys_of_kind:
                mean, spread = rng.normal(0, 0.05), 0.08
                exposures.append(
                    {
                        "model": model,
                        **keys,
                        "kind": kind,
                        "key": name,
                        "mean": mean,
                        "low": mean - spread,
                        "high": mean + spread,
                    }
                )
    names = ["S0003 \N{MINUS SIGN}0.8%", "S0017 \N{MINUS SIGN}0.5%", "S0042 \N{MINUS SIGN}0.3%"]
    best = {"model": "temporal_peer", **keys}
    falls = [
        {
            **best,
            "rank": rank,
            "peak": dt.date(2021, rank, 4),
            "trough": dt.date(2021, rank, 20),
            "recovered": None if rank == 1 else dt.date(2021, rank + 2, 9),
            "depth": -0.123 / rank,
            "sessions": 90 - 10 * rank,
            "names": names,
        }
        for rank in range(1, 6)
    ]
    days = [
        {
            **best,
            "rank": rank,
            "date": dt.date(2022, rank, 3),
            "return_net": -0.0234 / rank,
            "names": names,
        }
        for rank in range(1, 6)
    ]
    return {
        "figures": pl.DataFrame(figures),
        "capacity": pl.DataFrame(capacity),
        "factor_alpha": pl.DataFrame(alpha),
        "contributions": pl.DataFrame(contributions),
        "exposures": pl.DataFrame(exposures),
        **make_risk(),
        "drawdowns": pl.DataFrame(falls),
        "worst_days": pl.DataFrame(days),
        "positions": make_positions(firms),
    }


def make_risk(weeks: int = 60) -> dict[str, pl.DataFrame]:
    """Make the predicted risk of the main book of one model, with a factor that holds markup."""
    rng = np.random.default_rng(4)
    dates = pl.date_range(dt.date(2021, 1, 8), dt.date(2030, 1, 1), "1w", eager=True).head(weeks)
    keys = {"model": "temporal_peer", "book": BOOKS[0], "delay": 1}
    named = [pl.lit(value).alias(name) for name, value in keys.items()]
    series = pl.DataFrame({"date": dates, "volatility": 0.1, "factor_volatility": 0.08})
    series = series.with_columns(
        *named, specific_volatility=0.06, surprise=pl.Series(rng.normal(size=weeks)).round(3)
    )
    factors = pl.DataFrame(
        {
            "key": ["market", "<b>beta</b>", "specific"],
            "exposure": [0.2, -0.1, None],
            "variance_share": [0.5, 0.14, 0.36],
        }
    )
    exposures = pl.DataFrame({"date": dates}).join(factors, how="cross").with_columns(named)
    return {"risk": series, "risk_exposures": exposures}


def make_positions(firms: int = 60, sessions: int = 756) -> pl.DataFrame:
    """Make positions of the main book of one model; a fifth of the firms is traded in a session."""
    rng = np.random.default_rng(9)
    dates = pl.date_range(dt.date(2021, 1, 4), dt.date(2026, 1, 4), eager=True)
    dates = dates.filter(dates.dt.weekday() <= 5).head(sessions)
    count = len(dates) * firms
    trade = np.where(rng.random(count) < 0.2, rng.normal(0, 0.01, count), 0.0)
    return pl.DataFrame(
        {
            "model": "temporal_peer",
            "book": BOOKS[0],
            "date": dates.gather(np.repeat(np.arange(len(dates)), firms)),
            "ticker": [f"S{i:04d}" for i in range(firms)] * len(dates),
            "weight": rng.normal(0, 0.03, count),
            "trade": trade,
            "pnl": rng.normal(0, 0.0004, count),
            "cost": 0.0005 * np.abs(trade),
        }
    )


def make_signals() -> dict[str, pl.DataFrame]:
    """Make the tables of the signals: IC by horizon and delay, quantiles, persistence and exposures."""
    rng = np.random.default_rng(10)
    decay, spread, persistence, exposures = [], [], [], []
    for model in MODELS[1:]:
        skill = SKILL[model]
        for delay in (0, 1, 2):
            for horizon in (1, 2, 5, 10, 21) if delay == 1 else (1,):
                ic = skill * math.exp(-delay / 2) * math.sqrt(horizon) / (1 + 0.1 * horizon)
                t = {"ic_t": 120 * ic, "rank_ic_t": 110 * ic}
                decay.append(
                    {
                        "model": model,
                        "horizon": horizon,
                        "delay": delay,
                        "ic": ic,
                        "rank_ic": 0.93 * ic,
                        "dates": 756,
                        **t,
                    }
                )
        spread.append(
            {
                "model": model,
                "delay": 1,
                "quantiles": 5,
                "spread_bps": 300 * skill,
                "t": 90 * skill,
                "lower_bps": 300 * skill - 3,
                "upper_bps": 300 * skill + 3,
            }
        )
        for lag in (1, 5, 21):
            replaced = {"top_turnover": 1 - 0.9**lag, "bottom_turnover": 1 - 0.88**lag}
            persistence.append({"model": model, "lag": lag, "rank_autocorrelation": 0.9**lag, **replaced})
        for kind, names in (("sector", SECTORS), ("style", STYLES)):
            for name in names:
                tilt = float(rng.normal(0, 3))
                exposures.append({"model": model, "kind": kind, "key": name, "mean": 0.02 * tilt, "t": tilt})
    dates = make_series()["ic_series"].filter(pl.col("model") == "ridge")["date"]
    series = [
        pl.DataFrame(
            {
                "date": dates,
                "model": model,
                "delay": 1,
                "quantile": quantile,
                "mean_return_bps": rng.normal(3 + 60 * SKILL[model] * (quantile - 3), 20, len(dates)),
            }
        )
        for model in MODELS[1:]
        for quantile in range(1, 6)
    ]
    return {
        "ic_decay": pl.DataFrame(decay),
        "quantile_spread": pl.DataFrame(spread),
        "quantile_series": pl.concat(series),
        "persistence": pl.DataFrame(persistence),
        "signal_exposures": pl.DataFrame(exposures),
    }


def make_trials() -> dict[str, pl.DataFrame]:
    """Make the tests of all models at once, and the probability of overfitting."""
    tests = [
        {
            "model": model,
            "book": BOOKS[0],
            "spa_p": 0.09,
            "baseline": None if model in ("ridge", "lightgbm") else "lightgbm",
            "baseline_spa_p": None if model in ("ridge", "lightgbm") else 0.21,
            "in_baseline_stepm": None if model in ("ridge", "lightgbm") else False,
            "in_stepm": SKILL[model] > 0.03,
            "in_mcs": SKILL[model] > 0.02,
            "mcs_p": 20 * SKILL[model],
            "level": 0.05,
        }
        for model in MODELS
    ]
    overfitting = {
        "candidates": ["results of this evaluation"],
        "variants": [8],
        "blocks": [16],
        "pbo": [0.127],
        "loss_probability": [0.081],
        "sessions": [756],
    }
    return {"multiple_tests": pl.DataFrame(tests), "overfitting": pl.DataFrame(overfitting)}
