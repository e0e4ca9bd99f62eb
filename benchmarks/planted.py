"""Recovery of planted leaders, and of planted day weights, by trained and by untrained models.

Markets differ in what makes a firm lead: size, book-to-market, a fixed random table, or a random table that
changes during the training span. `temporal_peer` is trained on each with several seeds, which are also those
of the market. The AUC of SHAP, attention and the attention before training is measured on test dates, on all
planted edges and by rule, with the lift over the start. On a market whose day weights do not fall with age,
the mean |SHAP| of each day of `temporal_transformer` is compared with the planted weights by rank
correlation.

    .venv/bin/python benchmarks/planted.py                     # half an hour on one core
    .venv/bin/python benchmarks/planted.py --market random --set models.temporal_peer.firm_slots=0

Finished fits are stored in a file and not repeated, so an interrupted run can be resumed.
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
from scipy.stats import spearmanr

from backtest.forecasts.metrics import forecast_metrics
from backtest.splits.fold import Fold
from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import PanelTensors
from models.explain.groups import GroupGameConfig, explain_groups
from models.explain.network.lift import edge_recovery
from models.explain.peers import PeerGameConfig, attention_matrices, explain_peers
from models.explain.players import PlayerConfig
from models.fitting.fit import FitConfig, NeuralFitted, fit, untrained
from pipelines.config.load import build_settings, digest, load_config, settings_of
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.fold_inputs import fit_inputs
from pipelines.dataset.folds import plan_folds
from pipelines.explain.recovery import planted_edges
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
START = "attention before training"


def planted_by_rule(config: Config, dataset: Dataset, sessions: IntArray) -> dict[str, BoolArray]:
    """Return the edges of every rule that are valid on at least half of the sessions."""
    source = make_source(config)
    if not isinstance(source, SimulatedSource):
        raise TypeError(f"the source is {source.name}; only the simulated market has planted edges")
    truth = source.fetch().tables["truth_edges"]
    return {rule: planted_edges(truth.filter(pl.col("rule") == rule), dataset, sessions) for rule in RULES}


def fitted_model(
    config: Config, dataset: Dataset, model: str, seed: int
) -> tuple[NeuralFitted, PanelTensors, Fold, float]:
    """Fit a model on the first fold; also returns its data, the fold and the CPU seconds."""
    fold = plan_folds(dataset, config)[0]
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    settings, fit_settings = settings_of(config, model)
    how = build_settings(FitConfig, fit_settings, f"models.{model}.fit")
    started = time.process_time()
    fitted = fit(model, settings, data, data.shape, fold.train, fold.valid, fit_config=how, seed=seed)
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
    explained = explain_peers(fitted, data, sessions, PeerGameConfig(permutations=2, seed=seed))
    methods = {
        "shap": [(part.firms_N, part.square_NN) for part in explained],
        "attention": list(attention_matrices(fitted.module, data, sessions)),
        START: list(attention_matrices(untrained(fitted, seed), data, sessions)),
    }
    label_TN = dataset.labels[config.label.delay]
    scores = {
        f"{segment}_rank_ic": forecast_metrics(fitted.forecast(data, days), label_TN[days]).rank_ic
        for segment, days in (("valid", fold.valid), ("test", fold.test))
    }
    truth_ic = forecast_metrics(world.truth_TN[fold.test], label_TN[fold.test]).rank_ic
    recovery = [dataclasses.asdict(one) for one in edge_recovery(methods, planted, start=START)]
    return {"recovery": recovery, **scores, "test_truth": truth_ic, "seconds": seconds}


def days_row(config: Config, seed: int, dates: int) -> dict[str, Any]:
    """Train temporal_transformer and compare the mean |SHAP| of each day with the planted weights."""
    dataset = build_world(config).dataset
    fitted, data, fold, seconds = fitted_model(config, dataset, "temporal_transformer", seed)
    sessions, window = evenly_spaced(fold.test, dates), config.features.window
    every_day = PlayerConfig(day_starts=tuple(range(1, window + 1)))
    game = GroupGameConfig(permutations=4, firms_per_date=20, players=every_day, seed=seed)
    part = explain_groups(fitted, data, sessions, {}, game)
    shap_W = np.abs(part.values_EP).mean(axis=0)
    planted_W = np.zeros(window)
    planted_W[: len(DAY_WEIGHTS)] = DAY_WEIGHTS

    def attention(module: Any) -> FloatArray:  # noqa: ANN401 (a forecaster)
        with torch.inference_mode():
            weights = module.attention(data.batch(torch.as_tensor(sessions))).days_BNW
        mean_W: FloatArray = weights.double().mean(dim=(0, 1)).numpy()[::-1]
        return mean_W

    found = {"shap": shap_W, "attention": attention(fitted.module), START: attention(untrained(fitted, seed))}
    return {
        "days": {name: float(spearmanr(planted_W, weight_W).statistic) for name, weight_W in found.items()},
        "shap_by_day": shap_W.tolist(),
        "seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """AUC by market, kind of edge and method: mean over seeds and range."""
    long = pl.DataFrame(
        [
            {"market": row["market"], "seed": row["seed"], **one}
            for row in rows
            for one in row.get("recovery", ())
        ]
    )
    lines = [
        "| market | edges | SHAP | attention | before training | lift of SHAP |",
        "|---|---|---|---|---|---|",
    ]
    for market in MARKETS:
        for kind in ("all", *RULES):
            own = long.filter((pl.col("market") == market) & (pl.col("kind") == kind))
            if own.is_empty():
                continue
            by = {method: own.filter(pl.col("method") == method) for method in ("shap", "attention", START)}
            cells = [_spread(frame["auc"].to_list()) for frame in by.values()]
            lifts = _spread(by["shap"]["lift"].to_list(), "+.3f")
            lines.append(f"| {market} | {kind} | {' | '.join(cells)} | {lifts} |")
    return "\n".join(lines)


def _spread(values: list[float], form: str = ".3f") -> str:
    mean = format(float(np.mean(values)), form)
    return f"{mean} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Run the missing fits, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/planted.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--market", action="append", choices=(*MARKETS, "days"), help="default: all")
    parser.add_argument("--seed", action="append", type=int, help="default: 1, 2 and 3")
    parser.add_argument("--firms", type=int, default=80)
    parser.add_argument("--dates", type=int, default=20, help="test dates that are explained")
    parser.add_argument("--out", type=Path, default=Path("data/planted.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    )
    rows = []
    for seed in options.seed or (1, 2, 3):
        for market in options.market or (*MARKETS, "days"):
            plants = DAYS if market == "days" else MARKETS[market]
            settings = [f"source.seed={seed}", f"source.market={{firms: {options.firms}, {plants}}}"]
            config = load_config(options.config, [*settings, *options.overrides])
            model = "temporal_transformer" if market == "days" else "temporal_peer"
            shared = config.model_dump(
                mode="json", include={"source", "universe", "features", "label", "folds"}
            )
            key = digest([shared, settings_of(config, model), options.dates])
            row = next((one for one in known if one["key"] == key), None)
            if row is None:
                measure = days_row if market == "days" else peers_row
                row = {"key": key, "market": market, "seed": seed, **measure(config, seed, options.dates)}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            rows.append(row)
            auc = {
                one["method"]: round(one["auc"], 3) for one in row.get("recovery", ()) if one["kind"] == "all"
            }
            print(market, seed, auc or row["days"], f"{row['seconds']:.0f} s", flush=True)
    if any("recovery" in row for row in rows):
        print(table(rows))


if __name__ == "__main__":
    main()
