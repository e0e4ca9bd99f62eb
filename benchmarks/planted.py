"""Recovery of planted leaders, and of planted day weights, by trained and by untrained models.

Markets differ in what makes a firm lead: size, book-to-market, a fixed random table, or a random table that
changes during the training span. On each, three candidates of `temporal_peer` are trained with several
seeds, which are also those of the market. Validation rank IC alone chooses a candidate, market by market;
the results of all of them are stored. The AUC of SHAP, attention, rollout and gradient-weighted attention is
measured on test dates, on all planted edges and by rule, with the lift over the attention before training.
Linear estimators that know the lags (`planted_oracle`) say what the training sessions contain. On a market
whose day weights do not fall with age, the mean |SHAP| of each day of `temporal_transformer` is compared
with the planted weights by rank correlation.

    .venv/bin/python benchmarks/planted.py                     # half an hour on one idle core
    .venv/bin/python benchmarks/planted.py --market random --seed 4 --candidate "weak start"

Finished fits are stored in a file and not repeated, so an interrupted run can be resumed, and several
processes can share the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from ladder import build_world
from planted_oracle import PAIR, POOLED, linear_days, linear_recovery
from scipy.stats import spearmanr

from backtest.forecasts.metrics import forecast_metrics
from backtest.splits.folds import Fold
from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import PanelTensors
from models.explain.attention import importance
from models.explain.groups import GroupGameConfig, explain_groups
from models.explain.network import edge_recovery
from models.explain.peers import PeerGameConfig, attention_matrices, explain_peers
from models.explain.players import PlayerConfig
from models.fitting.fit import NeuralFitted, fit, untrained
from pipelines.config.load import digest, load_config, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.explain.attribution import planted_edges
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.train.task import collect_arrays, to_tensors

MARKETS: dict[str, str] = {
    "size": "leaders: size",
    "characteristic": "leaders: book_to_market",
    "random": "leaders: random",
    "changing": "leaders: random, leaders_change: 900",
}
DAY_WEIGHTS = (0.45, 1.0, 0.3, 0.8, 0.6)
DAYS = f"day_weights: {list(DAY_WEIGHTS)}"
RULES = ("industry", "supplier", "supplier_of_supplier", "hidden")
START, SHAP_START = "attention before training", "shap before training"
ABSOLUTE = "mean absolute shap"
METHODS = ("shap", ABSOLUTE, "attention", "rollout", "gradient", SHAP_START, START)
_FOUND = {"models.temporal_peer.leader_ranks": "all", "models.temporal_peer.firm_slots": "4096"}
CANDIDATES: dict[str, dict[str, str]] = {
    "default": {},
    "strong start": _FOUND,
    "weak start": {**_FOUND, "models.temporal_peer.leader_slope": "1.0"},
}
"""Candidate -> settings of temporal_peer. The last two look for leaders other than the largest firms. The
strong start (`leader_slope` 4, the default) gives the largest firm of a group nearly e^4 = 55 times the
weight of small firms, the weak start e = 2.7 times."""
LINEAR = "linear"


def planted_by_rule(config: Config, dataset: Dataset, sessions: IntArray) -> dict[str, BoolArray]:
    """Return the edges of every rule that are valid on at least half of the sessions."""
    truth = _truth(config)
    return {rule: planted_edges(truth.filter(pl.col("rule") == rule), dataset, sessions) for rule in RULES}


def _truth(config: Config) -> pl.DataFrame:
    source = make_source(config)
    if not isinstance(source, SimulatedSource):
        raise TypeError(f"the source is {source.name}; only the simulated market has planted edges")
    return source.fetch().tables["truth_edges"]


def fitted_model(
    config: Config, dataset: Dataset, model: str, seed: int
) -> tuple[NeuralFitted, PanelTensors, Fold, float]:
    """Fit a model on the first fold; also returns its data, the fold and the CPU seconds."""
    fold = plan_folds(dataset, config)[0]
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    one = model_settings(config, model)
    started = time.process_time()
    fitted = fit(model, one.options, data, fold.train, fold.valid, fit_config=one.fit, seed=seed)
    return cast("NeuralFitted", fitted), data, fold, time.process_time() - started


def evenly_spaced(sessions: IntArray, count: int) -> IntArray:
    """Select ``count`` sessions in even steps."""
    selected: IntArray = sessions[np.linspace(0, len(sessions) - 1, count).astype(np.int64)]
    return selected


def peers_row(config: Config, seed: int, dates: int) -> dict[str, Any]:
    """Train temporal_peer and measure its recovery of the planted edges on test dates."""
    world = build_world(config)
    dataset = world.dataset
    fitted, data, fold, seconds = fitted_model(config, dataset, "temporal_peer", seed)
    sessions = evenly_spaced(fold.test, dates)
    planted = planted_by_rule(config, dataset, sessions)
    game, start = PeerGameConfig(seed=seed), untrained(fitted, seed)
    explained = explain_peers(fitted, data, sessions, game)
    methods = {
        "shap": [(part.firms_N, part.square_NN) for part in explained],
        ABSOLUTE: [(part.firms_N, np.abs(part.phi_NN)) for part in explained],
        **_attention_methods(fitted.module, data, sessions),
        SHAP_START: [(part.firms_N, part.square_NN) for part in explain_peers(start, data, sessions, game)],
        START: list(attention_matrices(start, data, sessions)),
    }
    label_TN = dataset.labels[config.label.delay]
    scores = {
        f"{segment}_rank_ic": forecast_metrics(fitted.forecast(data, days), label_TN[days]).rank_ic
        for segment, days in (("valid", fold.valid), ("test", fold.test))
    }
    truth_ic = forecast_metrics(world.truth_TN[fold.test], label_TN[fold.test]).rank_ic
    recovery = [dataclasses.asdict(one) for one in edge_recovery(methods, planted, start=START)]
    return {"recovery": recovery, **scores, "test_truth": truth_ic, "seconds": seconds}


def _attention_methods(
    module: Any,  # noqa: ANN401 (a forecaster)
    data: PanelTensors,
    sessions: IntArray,
) -> dict[str, list[tuple[IntArray, FloatArray]]]:
    """Attention, rollout and gradient-weighted attention of every firm to every firm, session by session."""
    found: dict[str, list[tuple[IntArray, FloatArray]]] = {}
    for session in sessions:
        batch = data.batch(torch.tensor([int(session)]))
        firms_N = batch.firms_N.numpy()
        for method, value_NN in importance("peers", module, batch, np.arange(len(firms_N))).items():
            found.setdefault(method, []).append((firms_N, value_NN))
    return found


def linear_row(config: Config, dates: int) -> dict[str, Any]:
    """Measure what linear estimators find in the training sessions of a market; nothing is fitted."""
    dataset = build_world(config).dataset
    fold = plan_folds(dataset, config)[0]
    sessions, delay = evenly_spaced(fold.test, dates), config.label.delay
    slopes_W = linear_days(dataset, fold.train, delay, config.features.window)
    planted = planted_by_rule(config, dataset, sessions)
    found = linear_recovery(dataset, planted, fold.train, sessions, delay)
    acted = {
        rule: share_that_acted(dataset, edge_NN, fold.train, config) for rule, edge_NN in planted.items()
    }
    return {
        "linear": [dataclasses.asdict(one) for one in found],
        "acted_in_training": acted,
        "days": {"linear": _rank_correlation(slopes_W)},
        "slopes_by_day": slopes_W.tolist(),
        "seconds": 0.0,
    }


def share_that_acted(dataset: Dataset, edge_NN: BoolArray, train: IntArray, config: Config) -> float:
    """Share of some edges that acted, by any rule, on at least a tenth of the training sessions."""
    truth = _truth(config)
    blocks = np.array_split(train, 10)
    acted_NN = np.logical_or.reduce([planted_edges(truth, dataset, block) for block in blocks])
    return float(acted_NN[edge_NN].mean()) if edge_NN.any() else float("nan")


def _rank_correlation(importance_W: FloatArray) -> float:
    planted_W = np.zeros(len(importance_W))
    planted_W[: len(DAY_WEIGHTS)] = DAY_WEIGHTS
    return float(spearmanr(planted_W, importance_W).statistic)


def days_row(config: Config, seed: int, dates: int) -> dict[str, Any]:
    """Train temporal_transformer and compare the mean |SHAP| of each day with the planted weights."""
    dataset = build_world(config).dataset
    fitted, data, fold, seconds = fitted_model(config, dataset, "temporal_transformer", seed)
    sessions, window = evenly_spaced(fold.test, dates), config.features.window
    every_day = PlayerConfig(day_starts=tuple(range(1, window + 1)))
    game = GroupGameConfig(permutations=32, players=every_day, seed=seed)
    part = explain_groups(fitted, data, sessions, {}, game)
    shap_W = np.abs(part.values_EP).mean(axis=0)

    def attention(module: Any) -> FloatArray:  # noqa: ANN401 (a forecaster)
        with torch.inference_mode():
            weights = module.attention(data.batch(torch.as_tensor(sessions))).days_BNW
        mean_W: FloatArray = weights.double().mean(dim=(0, 1)).numpy()[::-1]
        return mean_W

    found = {"shap": shap_W, "attention": attention(fitted.module), START: attention(untrained(fitted, seed))}
    return {
        "days": {name: _rank_correlation(weight_W) for name, weight_W in found.items()},
        "shap_by_day": shap_W.tolist(),
        "seconds": seconds,
    }


def chosen(rows: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """For every market and seed, the candidate with the highest validation rank IC."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        at = (row["market"], row["seed"])
        if "recovery" in row and (at not in best or row["valid_rank_ic"] > best[at]["valid_rank_ic"]):
            best[at] = row
    return {at: row["candidate"] for at, row in best.items()}


def recovery_table(rows: list[dict[str, Any]]) -> str:
    """AUC by market, kind of edge and method: mean over the seeds and each of them."""
    columns = (
        "SHAP",
        "mean absolute SHAP",
        "attention",
        "rollout",
        "gradient",
        "SHAP before",
        "attention before",
    )
    lines = [
        f"| market | edges | {' | '.join(columns)} | lift of SHAP | pair alone | all followers |",
        "|---" * (len(columns) + 5) + "|",
    ]
    linear = {(row["market"], row["seed"]): row for row in rows if "linear" in row}
    for market in MARKETS:
        own = [row for row in rows if row["market"] == market and "recovery" in row]
        for kind in ("all", *RULES):
            of_kind = [_of_kind(row["recovery"], kind) for row in own]
            limits = [
                _of_kind(linear[market, row["seed"]]["linear"], kind)
                for row in own
                if (market, row["seed"]) in linear
            ]
            if not of_kind or not all(of_kind):
                continue
            cells = [_spread([one[method]["auc"] for one in of_kind]) for method in METHODS]
            cells.append(_spread([one["shap"]["lift"] for one in of_kind], "+.3f"))
            cells += [_spread([one[name]["auc"] for one in limits]) for name in (PAIR, POOLED)]
            lines.append(f"| {market} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_kind(recovery: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["method"]: one for one in recovery if one["kind"] == kind}


def candidate_table(rows: list[dict[str, Any]]) -> str:
    """All trials: validation rank IC, and what the test says about each."""
    best = chosen(rows)
    lines = [
        "| market | seed | candidate | validation rank IC | chosen | test rank IC | of the truth "
        "| AUC of SHAP (error) | lift of SHAP (error) |",
        "|---" * 9 + "|",
    ]
    for row in sorted(
        (row for row in rows if "recovery" in row),
        key=lambda row: (
            list(MARKETS).index(row["market"]),
            row["seed"],
            list(CANDIDATES).index(row["candidate"]),
        ),
    ):
        shap = _of_kind(row["recovery"], "all")["shap"]
        mark = "yes" if best[row["market"], row["seed"]] == row["candidate"] else ""
        lines.append(
            f"| {row['market']} | {row['seed']} | {row['candidate']} | {row['valid_rank_ic']:.4f} | {mark} | "
            f"{row['test_rank_ic']:.4f} | {row['test_rank_ic'] / row['test_truth']:.2f} | "
            f"{shap['auc']:.3f} ({shap['error']:.3f}) | {shap['lift']:+.3f} ({shap['lift_error']:.3f}) |"
        )
    return "\n".join(lines)


def _spread(values: list[float], form: str = ".3f") -> str:
    if not values:
        return ""
    return f"{np.mean(values):{form}} ({', '.join(format(value, form) for value in values)})"


def measured(options: argparse.Namespace, market: str, seed: int, candidate: str) -> dict[str, Any]:
    """Return the stored row of a market, seed and candidate, or compute and store it."""
    plants = DAYS if market == "days" else MARKETS[market]
    own = [f"{name}={value}" for name, value in CANDIDATES.get(candidate, {}).items()]
    settings = [f"source.seed={seed}", f"source.market={{firms: {options.firms}, {plants}}}", *own]
    config = load_config(options.config, [*settings, *options.overrides])
    model = "temporal_transformer" if market == "days" else "temporal_peer"
    shared = config.model_dump(mode="json", include={"source", "universe", "features", "label", "folds"})
    fit_settings = None if candidate == LINEAR else str(model_settings(config, model))
    key = digest([shared, fit_settings, options.dates])
    if options.out.exists():
        for line in options.out.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            if row["key"] == key:
                return row
    if candidate == LINEAR:
        found = linear_row(config, options.dates)
    else:
        found = (days_row if market == "days" else peers_row)(config, seed, options.dates)
    row = {"key": key, "market": market, "seed": seed, "candidate": candidate, **found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def main() -> None:
    """Run the missing fits, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/planted.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--market", action="append", choices=(*MARKETS, "days"), help="default: all")
    parser.add_argument("--seed", action="append", type=int, help="default: 1, 2 and 3")
    parser.add_argument("--candidate", action="append", choices=(LINEAR, *CANDIDATES), help="default: all")
    parser.add_argument("--firms", type=int, default=80)
    parser.add_argument("--dates", type=int, default=20, help="test dates that are explained")
    parser.add_argument("--out", type=Path, default=Path("data/planted.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in options.seed or (1, 2, 3):
        for market in options.market or (*MARKETS, "days"):
            candidates = (LINEAR, "default") if market == "days" else (LINEAR, *CANDIDATES)
            for candidate in candidates:
                if options.candidate and candidate not in options.candidate:
                    continue
                row = measured(options, market, seed, candidate)
                rows.append(row)
                areas = row.get("recovery", row.get("linear", ()))
                auc = {one["method"]: round(one["auc"], 3) for one in areas if one["kind"] == "all"}
                shown = row["days"] if market == "days" else auc
                print(market, seed, candidate, shown, f"{row['seconds']:.0f} s", flush=True)
    best = chosen(rows)
    if best:
        print(candidate_table(rows))
        print("\nchosen on validation")
        selected = [
            row for row in rows if "recovery" in row and best[row["market"], row["seed"]] == row["candidate"]
        ]
        print(recovery_table([*selected, *(row for row in rows if "linear" in row)]))


if __name__ == "__main__":
    main()
