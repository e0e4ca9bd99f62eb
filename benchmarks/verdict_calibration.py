"""How often the verdict on attention says yes, no and inconclusive, on models whose right answer is known.

The models are weighted sums over days, or over peers, with random weights for every seed
(`tests/weighted_toys.py`). With ``--interact``, masked weights pass to the others, as in a softmax, so units
interact and their Shapley values have sampling noise. Six kinds of models:

* ``true``: the attention is the effect. The answer is yes.
* ``near`` and ``far``: the effect is the attention times a random value per unit, so that the logarithms of
  attention and effect correlate at 0.9 and at 0.5. ``near`` is above the threshold, ``far`` below it.
* ``permuted``: the weights are permuted and frozen, and the values are trained to undo it. The answer is no.
* ``uniform``: the attention is made uniform at inference. The answer is no.
* ``alike``: the model weighs all units alike, up to 0.1%. The answer is no.

``quick`` and ``thorough`` are the options of ``explain.faithfulness``, on 8 dates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the models with known answers

from weighted_toys import (
    FIRMS,
    W,
    WeightedDays,
    WeightedPeers,
    panel,
    train_values,
    verdict_on_days,
    verdict_on_peers,
)

from models.explain.faithful.verdict import Verdict
from pipelines.config.sections import ExplainConfig
from pipelines.explain.games import effort_of

CASES = ("true", "near", "far", "permuted", "uniform", "alike")
RIGHT = {"true": "yes", "near": "yes", "far": "no", "permuted": "no", "uniform": "no", "alike": "no"}
CORRELATION = {"near": 0.9, "far": 0.5}
SPREAD = 1.2  # standard deviation of the logarithm of the weights


def judged(
    case: str, over: str, level: Literal["quick", "thorough"], seed: int, *, interact: bool
) -> Verdict:
    """Build the model of a case, and judge it."""
    rng, data = np.random.default_rng((seed, CASES.index(case))), panel(seed)
    shape = (W,) if over == "days" else (FIRMS, FIRMS)
    weights = np.exp(SPREAD * rng.normal(size=shape))
    if case == "alike":
        weights = np.exp(1e-3 * rng.normal(size=shape))
    shown = weights
    if case == "permuted":
        weights = np.exp(0.5 * np.log(weights))  # so that the values can undo it
        shown = rng.permuted(weights, axis=-1)
    toy = WeightedDays if over == "days" else WeightedPeers
    model: WeightedDays | WeightedPeers = toy(shown, renormalise=interact and case != "permuted")
    if case == "permuted":
        train_values(model, weights if over == "days" else weights * (1.0 - np.eye(FIRMS)), data)
        model.renormalise = interact
    if case in CORRELATION:
        rho = CORRELATION[case]
        noise = SPREAD * np.sqrt(1.0 / rho**2 - 1.0) * rng.normal(size=shape)
        values = model.value_W if isinstance(model, WeightedDays) else model.value_NN
        with torch.no_grad():
            values.copy_(torch.as_tensor(np.exp(noise)))
    model.even = case == "uniform"
    effort = effort_of(ExplainConfig(faithfulness=level))
    if over == "days":
        return verdict_on_days(model, data, effort.measures, firms=effort.firms)
    return verdict_on_peers(model, data, effort.measures, permutations=16, firms=effort.firms)


def main() -> None:
    """Print the rate of every answer by case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--interact", action="store_true", help="masked weights pass to the others")
    parser.add_argument("--level", default="quick", choices=("quick", "thorough"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.level}, {args.seeds} seeds")
    wrong = 0
    for over in ("days", "peers"):
        for case in CASES:
            started, answers, failed = time.perf_counter(), Counter[str](), Counter[str]()
            figures = []
            for seed in range(args.seeds):
                verdict = judged(case, over, args.level, seed, interact=args.interact)
                answers[verdict.answer] += 1
                failed.update(one.name for one in verdict.criteria if one.outcome != "pass")
                figures.append([one.estimate.value for one in verdict.criteria])
            opposite = "no" if RIGHT[case] == "yes" else "yes"
            wrong = max(wrong, answers[opposite])
            spread = np.quantile(figures, (0.1, 0.5, 0.9), axis=0, method="inverted_cdf").T
            means = ", ".join(
                f"{one.name} {middle:.2f} ({low:.2f} to {high:.2f})"
                for one, (low, middle, high) in zip(verdict.criteria, spread, strict=True)
            )
            print(
                f"{over:<6}{case:<9} right: {RIGHT[case]:<4}"
                + "".join(
                    f"{name} {answers[name] / args.seeds:5.0%}  " for name in ("yes", "no", "inconclusive")
                )
                + f"  {means}; not passed: {dict(failed)}; {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    print(f"most wrong answers in a case: {wrong} of {args.seeds}")
    sys.exit(int(wrong > 0.1 * args.seeds))


if __name__ == "__main__":
    main()
