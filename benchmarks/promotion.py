"""Size and power of the guard's test: how often it calls a challenger worse, on simulated pairs of models.

Two models forecast the same firms on the same sessions. Signals are persistent, share a part, and have an IC
of 0.05; labels overlap if they span several sessions. The daily rank ICs are measured as the guard does.

Run: ``python benchmarks/promotion.py [--pairs 200] [--guard-only]``. With ``--nights``, a season of nights is
judged by rules that look every night, and the share of challengers that each has promoted is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from backtest.inference import anytime
from backtest.inference.bootstrap import mean_interval
from backtest.inference.inferiority import inferiority_test
from backtest.inference.means import diebold_mariano
from features.arrays import BoolArray, FloatArray
from features.information_coefficient import rank_ic_by_date

LEVEL = 0.05
FIRST, NIGHTS, TOLERATED = 20, (20, 40, 60, 120), 0.02
_EARLY = 4  # horizons before a verdict, so that labels of 5 sessions have one after the first 20


@dataclass(frozen=True)
class Pair:
    """What a simulated pair of models looks like.

    Attributes
    ----------
    sessions, horizon
        Shadow sessions, and sessions that a label spans.
    firms
        Firms per session.
    ic, shortfall
        Mean IC of the champion, and by how much that of the challenger is lower.
    persistence
        Correlation of a signal with itself one session before.
    shared
        Correlation of the noise in the two signals.
    """

    sessions: int
    horizon: int
    firms: int = 200
    ic: float = 0.05
    shortfall: float = 0.0
    persistence: float = 0.9
    shared: float = 0.7


def daily_rank_ics(pair: Pair, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Rank ICs of champion and challenger by session."""
    shape = (pair.sessions + pair.horizon, pair.firms)
    common_TN, *own = (_persistent(rng, shape, pair.persistence) for _ in range(3))
    noises = [np.sqrt(pair.shared) * common_TN + np.sqrt(1 - pair.shared) * one_TN for one_TN in own]
    signals = [noise_TN[: pair.sessions] for noise_TN in noises]
    # the weights of the two signals in the next return that give each its IC, although they correlate
    correlation = [[1.0, pair.shared], [pair.shared, 1.0]]
    weights = np.linalg.solve(correlation, (pair.ic, pair.ic - pair.shortfall))
    return_TN = rng.standard_t(5, shape) / np.sqrt(5 / 3)
    return_TN[1:] += weights[0] * noises[0][:-1] + weights[1] * noises[1][:-1]
    label_TN = np.stack([return_TN[t + 1 : t + 1 + pair.horizon].sum(axis=0) for t in range(pair.sessions)])
    champion_T, challenger_T = (rank_ic_by_date(one_TN, label_TN) for one_TN in signals)
    return champion_T, challenger_T


def _persistent(rng: np.random.Generator, shape: tuple[int, int], persistence: float) -> FloatArray:
    """Standard normal series, one per firm, with an autocorrelation."""
    out_TN = rng.standard_normal(shape)
    for t in range(1, shape[0]):
        out_TN[t] = persistence * out_TN[t - 1] + np.sqrt(1 - persistence**2) * out_TN[t]
    return out_TN


def _one_sided(two_sided: float, estimate: float) -> bool:
    return estimate < 0 and two_sided / 2.0 < LEVEL


TESTS: dict[str, Callable[[FloatArray, FloatArray, int], bool]] = {
    "guard": lambda a, b, h: inferiority_test(a, b, overlap=h, level=LEVEL).is_worse,
    "bootstrap": lambda a, b, h: _one_sided(
        (found := mean_interval(a - b, overlap=h)).p_value, found.estimate
    ),
    "Diebold-Mariano": lambda a, b, h: _one_sided(
        (found := diebold_mariano(1 - b, 1 - a, horizon=h)).p_value, found.mean
    ),
}


def rejections(pair: Pair, pairs: int, names: Sequence[str], seed: int = 0) -> dict[str, float]:
    """Share of simulated pairs whose challenger each of the named tests calls worse."""
    rng = np.random.default_rng(seed)
    counted = dict.fromkeys(names, 0)
    for _ in range(pairs):
        champion_T, challenger_T = daily_rank_ics(pair, rng)
        for name in names:
            counted[name] += TESTS[name](challenger_T, champion_T, pair.horizon)
    return {name: count / pairs for name, count in counted.items()}


def every_night(a_T: FloatArray, b_T: FloatArray, horizon: int) -> int | None:
    """First night on which the guard's test does not call a worse than b, if it is asked on every night."""
    for n in range(FIRST, len(a_T) + 1):
        if not inferiority_test(a_T[:n], b_T[:n], overlap=horizon, level=LEVEL).is_worse:
            return n
    return None


def once(a_T: FloatArray, b_T: FloatArray, horizon: int) -> int | None:
    """As `every_night`, but a refusal stands."""
    test = inferiority_test(a_T[:FIRST], b_T[:FIRST], overlap=horizon, level=LEVEL)
    return None if test.is_worse else FIRST


def proof(a_T: FloatArray, b_T: FloatArray, horizon: int, *, burn_in: int = anytime.BURN_IN) -> int | None:
    """First night on which a confidence sequence of a - b excludes the tolerated loss, one-sided."""
    return _first(_sequence(a_T - b_T, horizon, burn_in)[0] > -TOLERATED)


def unrefuted(a_T: FloatArray, b_T: FloatArray, horizon: int) -> int | None:
    """First night from the 20th on which a confidence sequence of a - b does not exclude 0 from above."""
    return _first(_sequence(a_T - b_T, horizon, _EARLY)[1] >= 0)


def _sequence(x_T: FloatArray, horizon: int, burn_in: int) -> tuple[FloatArray, FloatArray]:
    """Bounds that hold one by one at the level, narrowest after 60 horizons; NaN before the first night."""
    kept, anytime.BURN_IN = anytime.BURN_IN, burn_in
    try:
        bounds = anytime.confidence_sequence(x_T, overlap=horizon, level=2 * LEVEL, tightest=60 * horizon)
    finally:
        anytime.BURN_IN = kept
    for bound_T in bounds:
        bound_T[: FIRST - 1] = np.nan
    return bounds


def _first(passes_T: BoolArray) -> int | None:
    return int(passes_T.argmax()) + 1 if passes_T.any() else None


RULES: dict[str, Callable[[FloatArray, FloatArray, int], int | None]] = {
    "every night": every_night,
    "once": once,
    "proof": proof,
    "proof from 20 on": partial(proof, burn_in=_EARLY),
    "unrefuted": unrefuted,
}


def season(pairs: int, seed: int = 1) -> None:
    """Print the share of challengers that each rule has promoted by some nights."""
    names = "".join(f"{f'by {night}':>9}" for night in NIGHTS)
    print(f"{pairs} pairs; share promoted\n{'label':>5}{'IC lower by':>13}{'rule':>18}{names}")
    for horizon in (1, 5):
        for shortfall in (0.0, 0.02, 0.05):
            rng = np.random.default_rng(seed)
            at: dict[str, list[float]] = {name: [] for name in RULES}
            for _ in range(pairs):
                champion_T, challenger_T = daily_rank_ics(Pair(NIGHTS[-1], horizon, shortfall=shortfall), rng)
                for name, rule in RULES.items():
                    at[name].append(rule(challenger_T, champion_T, horizon) or np.inf)
            for name, nights in at.items():
                shares = "".join(f"{np.mean(np.asarray(nights) <= night):>9.1%}" for night in NIGHTS)
                print(f"{horizon:>5}{shortfall:>13}{name:>18}{shares}", flush=True)


def main() -> None:
    """Print the tables of the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--guard-only", action="store_true")
    parser.add_argument("--nights", action="store_true")
    options = parser.parse_args()
    if options.nights:
        season(options.pairs)
        return
    pairs, names = options.pairs, ["guard"] if options.guard_only else list(TESTS)
    print(f"{pairs} pairs; share called worse\n\nequal models")
    header = f"{'sessions':>8}{'horizon':>9}" + "".join(f"{name:>18}" for name in names)
    print(header)
    for sessions in (20, 40, 60):
        for horizon in (1, 5):
            found = rejections(Pair(sessions, horizon), pairs, names)
            print(f"{sessions:>8}{horizon:>9}" + "".join(f"{value:>18.1%}" for value in found.values()))
    print("\npower of the guard")
    print(f"{'sessions':>8}{'horizon':>9}" + "".join(f"{f'IC lower by {gap}':>20}" for gap in (0.02, 0.05)))
    for sessions in (20, 40, 60):
        for horizon in (1, 5):
            powers = [
                rejections(Pair(sessions, horizon, shortfall=gap), pairs, ["guard"])["guard"]
                for gap in (0.02, 0.05)
            ]
            print(f"{sessions:>8}{horizon:>9}" + "".join(f"{value:>20.1%}" for value in powers))


if __name__ == "__main__":
    main()
