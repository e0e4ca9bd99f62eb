"""How soon the monitoring sees that a champion has stopped working, and how often it is wrong.

    python benchmarks/alarms.py --first 1000 --seeds 50
    python benchmarks/alarms.py --first 0 --seeds 30 --parts all
    python benchmarks/alarms.py --rules 2000

Every seed is a simulated market, and the same market in which firms cease to lead others at a session
(`peer_until`). A ridge regression on what an analyst would compute for such a market, the returns of the
leaders, is trained on the first. Its tests before the last fold are the backtest that the CUSUM compares
with. The last fold is 250 nights, scored by the same model on both markets. Labels, universe, folds,
reference and CUSUM are those of the pipeline.

An alarm counts as found if it is raised within 40 sessions after the end of the edges, and not before. The
information limit is a likelihood-ratio test that is told when the skill ends: no rule that has to find the
session by itself detects more at the same rate of false alarms on these 40 sessions.

With ``--rules``, no market is simulated but daily rank ICs: the CUSUM is compared with e-detectors (Shin,
Ramdas and Rinaldo 2023). These accumulate e-processes that start on every night and raise the alarm at 5,000,
so that a false one within 250 nights has a probability of at most 250 / 5,000 if their increments are valid.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.monitoring import reference_of, typical_delay
from features.arithmetic.parallel import one_blas_thread
from features.information_coefficient import rank_ic_by_date
from features.library.characteristics import CHARACTERISTICS
from features.panel.panel import Panel
from models.baselines.ridge import RidgeConfig
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.dataset.market import build_market
from pipelines.nightly.monitor.monitor import BacktestReference, watch_skill
from pipelines.sources.simulated.config import INDUSTRIES, REVIEW_SESSIONS, SUPPLIERS, MarketConfig
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.train.task import collect_arrays, to_tensors

Floats = npt.NDArray[np.float64]
WITHIN, NIGHTS = 40, 250
SHARES = {"peer": (0.0, 1.0, 0.0), "all": (0.3, 0.5, 0.2)}
LAGS = {"own": (0, 1), "supplier": (0, 2), "second": (1,)}
"""Leader -> ages of its returns that reach a follower next (`pipelines.sources.simulated.source`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed: skill before and after the end of the edges, when alarms were first raised, and daily ICs."""

    seed: int
    mean: float
    std: float
    n: int
    skill: float
    skill_after: float
    ends: int
    undisturbed_alarm: int | None
    disturbed_alarm: int | None
    slack: float
    limit: float
    seconds: float
    backtest_ics: list[float]
    undisturbed_ics: list[float]
    disturbed_ics: list[float]

    @property
    def found(self) -> bool:
        """Whether the alarm is raised within 40 sessions after the end and not before."""
        at = self.disturbed_alarm
        return at is not None and 0 <= at - self.ends < WITHIN


def config_of(args: argparse.Namespace) -> Config:
    """Return the config of the pipeline: three folds, of which the last is the nights."""
    temporal = [f"lagged_return_{k}" for k in range(1, 5)] + ["residual_return_1"]
    value = ["log_market_equity", "book_to_market", "gross_profitability"]
    return check_config(
        {
            "name": "alarms",
            "source": {"kind": "simulated", "seed": 0},
            "lake": "unused",
            "universe": {"min_price": 1.0, "min_history": 30},
            "features": {"window": 2, "channels": ["return"], "characteristics": [*value, *temporal]},
            "label": {"horizon": args.horizon, "delay": 0, "clip": 1.0},
            "folds": {
                "scheme": "expanding",
                "train": args.train,
                "valid": 100,
                "test": NIGHTS,
                "embargo": 1,
                "max_folds": args.folds,
            },
            "models": {"ridge": {}},
            "execution": {"engine": "serial"},
            "device": "cpu",
        },
        origin="alarms",
    )


def leader_inputs(panel: Panel) -> pl.DataFrame:
    """Return the leaders' returns as a user's inputs: date, ticker, name, value.

    A leader is the largest firm of an industry by market equity. Returns are relative to the market.
    """
    size_TN = CHARACTERISTICS.compute(panel, ["log_market_equity"])[:, :, 0].astype(np.float64)
    price_TN = panel.close_TN
    return_TN = np.full_like(price_TN, np.nan)
    return_TN[1:] = price_TN[1:] / price_TN[:-1] - 1.0
    return_TN[1:] -= np.nanmean(return_TN[1:], axis=1, keepdims=True)
    size_TN[np.isnan(price_TN)] = np.nan
    names = list(panel.groups_S)
    code = {industry: names.index(industry) for industry in INDUSTRIES}
    group_N = panel.group_TN.max(axis=0)  # an industry does not change; -1 before the firm is listed
    lead_TS = np.full((panel.n_sessions, len(names)), np.nan)
    for industry in INDUSTRIES:
        firms = np.flatnonzero(group_N == code[industry])
        known_T = ~np.isnan(size_TN[:, firms]).all(axis=1)
        largest = firms[np.argmax(np.where(np.isnan(size_TN[:, firms]), -np.inf, size_TN[:, firms]), axis=1)]
        rows = np.arange(panel.n_sessions)
        lead_TS[:, code[industry]] = np.where(known_T, return_TN[rows, largest], np.nan)
    above = {industry: SUPPLIERS.get(industry) for industry in INDUSTRIES}
    chain: dict[str, dict[str, str | None]] = {
        "own": {industry: industry for industry in INDUSTRIES},
        "supplier": dict(above),
        "second": {industry: above.get(above[industry] or "") for industry in INDUSTRIES},
    }
    frames = []
    for kind, ages in LAGS.items():
        for age in ages:
            value_TN = np.zeros(price_TN.shape)
            for industry, leader in chain[kind].items():
                if leader is not None:
                    series_T = np.full(panel.n_sessions, np.nan)
                    series_T[age:] = lead_TS[: panel.n_sessions - age, code[leader]]
                    value_TN[:, group_N == code[industry]] = series_T[:, None]
            t, n = np.nonzero(~np.isnan(value_TN) & ~np.isnan(price_TN))
            frames.append(
                pl.DataFrame(
                    {
                        "date": panel.dates_T.astype("datetime64[D]")[t],
                        "ticker": np.asarray(panel.tickers_N)[n],
                        "value": value_TN[t, n],
                    }
                ).with_columns(pl.lit(f"leader_{kind}_{age}").alias("name"))
            )
    return pl.concat(frames)


def dataset_of(market: MarketConfig, seed: int, config: Config) -> Dataset:
    """Simulate a market and build the pipeline's dataset on it."""
    tables: dict[str, Any] = dict(SimulatedSource(market, seed).fetch().tables)
    tables["inputs"] = leader_inputs(build_market(tables, config).panel)
    return build_dataset(tables, config)


def play(seed: int, config: Config, args: argparse.Namespace) -> Outcome:
    """Train on one market, and score its last fold on it and on the market whose edges end."""
    started = time.monotonic()
    temporal, peer, characteristic = SHARES[args.parts]
    sessions = 60 + args.train + 100 + args.folds * NIGHTS + 4 * config.label.horizon
    market = MarketConfig(
        sessions=sessions,
        firms=args.firms,
        temporal_share=temporal,
        peer_share=peer,
        characteristic_share=characteristic,
        truth_ic=args.truth_ic,
        bad_ticks=0,
    )
    dataset = dataset_of(market, seed, config)
    folds = plan_folds(dataset, config)
    first, last = int(folds[-1].test[0]), int(folds[-1].test[-1])
    reviews = np.arange(0, sessions, REVIEW_SESSIONS)
    allowed = reviews[(reviews >= first + 20) & (reviews <= last - WITHIN - 20)]
    until = int(allowed[seed % len(allowed)])
    other = dataset_of(market.model_copy(update={"peer_until": until}), seed, config)
    arrays, disturbed = (collect_arrays(one, config.features.window) for one in (dataset, other))
    ics = []
    for fold in folds:
        inputs = fit_inputs(dataset, fold)
        data = to_tensors(arrays, inputs, "cpu")
        fitted = fit("ridge", RidgeConfig(), data, fold.train, fold.valid, fit_config=FitConfig(), seed=0)
        forecast_BN = fitted.forecast(data, fold.test)
        ics.append(rank_ic_by_date(forecast_BN, arrays.label_TN[fold.test]))
    changed_BN = fitted.forecast(to_tensors(disturbed, inputs, "cpu"), fold.test)
    changed_T = rank_ic_by_date(changed_BN, disturbed.label_TN[fold.test])
    ends, before = until - first, until - first - 2 * config.label.horizon
    np.testing.assert_allclose(changed_T[:before], ics[-1][:before])
    reference = reference_of(np.concatenate(ics[:-1]), config.label.horizon)
    if reference is None:
        raise RuntimeError(f"seed {seed}: the rank IC of ridge does not vary")
    backtest, alarms = BacktestReference(reference, "the backtest"), []
    for rank_ic_T in (ics[-1], changed_T):
        never_T = np.zeros(len(rank_ic_T), dtype=bool)
        cusum, slack, limit = watch_skill(config, rank_ic_T, never_T, backtest)
        raised = np.flatnonzero(cusum.alarm_T)
        alarms.append(int(raised[0]) if len(raised) else None)
    return Outcome(
        seed=seed,
        mean=reference.mean,
        std=reference.std,
        n=reference.n,
        skill=float(np.nanmean(ics[-1])),
        skill_after=float(np.nanmean(changed_T[ends:])),
        ends=ends,
        undisturbed_alarm=alarms[0],
        disturbed_alarm=alarms[1],
        slack=slack,
        limit=limit,
        seconds=time.monotonic() - started,
        backtest_ics=np.concatenate(ics[:-1]).tolist(),
        undisturbed_ics=ics[-1].tolist(),
        disturbed_ics=changed_T.tolist(),
    )


def report(outcomes: list[Outcome]) -> None:
    """Print what was found, and what could be found at most."""
    n = len(outcomes)

    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) for one in outcomes]))

    found = [one for one in outcomes if one.found]
    delays = [one.disturbed_alarm - one.ends + 1 for one in found if one.disturbed_alarm is not None]
    false = sum(one.undisturbed_alarm is not None for one in outcomes)
    early = sum(one.disturbed_alarm is not None and one.disturbed_alarm < one.ends for one in outcomes)
    loss = (mean("mean") - mean("skill_after")) / mean("std")
    delay = typical_delay(mean("slack"), mean("limit"))
    rate = 0.1 * WITHIN / NIGHTS
    most = float(ndtr(loss * math.sqrt(WITHIN) - ndtri(1 - rate)))
    print(f"{n} seeds, {mean('seconds'):.1f} s each")
    print(
        f"backtest: daily rank IC {mean('mean'):.4f}, deviation {mean('std'):.4f}, {mean('n'):.0f} sessions"
    )
    print(f"nights: {mean('skill'):.4f}; after the end of the edges {mean('skill_after'):.4f}")
    print(f"loss {loss:.2f} deviations; slack {mean('slack'):.2f}, limit {mean('limit'):.2f}")
    print(f"found within {WITHIN} sessions: {len(found)} of {n} ({len(found) / n:.0%}), expected {delay:.0f}")
    print(f"median delay {np.median(delays) if delays else math.nan:.0f}; raised before the end: {early}")
    print(f"undisturbed with an alarm in {NIGHTS} sessions: {false} of {n} ({false / n:.0%})")
    print(f"information limit with {rate:.1%} false alarms in {WITHIN} sessions: {most:.0%}")


_STATES = 120  # states of the Markov chain; with 60 the probabilities differ by less than 0.001
_NODES = 9  # points of the Gauss-Hermite rule over the error of the reference's mean
SD, DETECTED = 0.133, NIGHTS / 0.05
KINDS = {
    "0.3 deviations": (0.3, 1, 750),
    "0.5 deviations": (0.5, 1, 750),
    "0.7 deviations": (0.7, 1, 750),
    "1.0 deviations": (1.0, 1, 750),
    "autocorrelation 0.1": (0.7, 1, 750),
    "autocorrelation 0.3": (0.7, 1, 750),
    "Student-t(4)": (0.7, 1, 750),
    "labels of 5 sessions": (0.7, 5, 750),
    "reference of 250": (0.7, 1, 250),
    "reference of 100": (0.7, 1, 100),
}
"""Series of rank ICs -> their mean in deviations, sessions of a label, sessions of the reference."""


def cusum_limit(slack: float, false_alarms: float, n: int) -> float:
    """Limit of Page's CUSUM that normal values without a loss reach in `NIGHTS` nights with a probability.

    The probability is the mean over the error of a reference of n values, by a Gauss-Hermite rule.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)

    def excess(limit: float) -> float:
        reached = [
            1.0 - float(np.linalg.matrix_power(_chain(slack, limit, node / math.sqrt(n)), NIGHTS)[0].sum())
            for node in nodes.tolist()
        ]
        return float(weights @ np.asarray(reached) / weights.sum()) - false_alarms

    with one_blas_thread():
        return float(brentq(excess, 1e-3, 64.0, xtol=1e-3))


def _chain(slack: float, limit: float, shift: float) -> Floats:
    """Transitions of the CUSUM between 0 and the middles of intervals up to its limit (Brook, Evans 1972)."""
    width = 2.0 * limit / (2 * _STATES - 1)
    step_SS = width * (np.arange(_STATES)[None, :] - np.arange(_STATES)[:, None])
    upper_SS = ndtr(step_SS + width / 2.0 + slack - shift)
    chain_SS: Floats = upper_SS - ndtr(step_SS - width / 2.0 + slack - shift)
    chain_SS[:, 0] = upper_SS[:, 0]
    return chain_SS


def simulated_ics(kind: str, runs: int, sessions: int, rng: np.random.Generator) -> Floats:
    """Daily rank ICs without skill, shape (runs, sessions), with the standard deviation `SD`."""
    _, horizon, _ = KINDS[kind]
    x_RT = rng.standard_normal((runs, sessions + horizon - 1))
    if kind == "Student-t(4)":
        x_RT = rng.standard_t(4, x_RT.shape) / math.sqrt(2.0)
    if kind.startswith("autocorrelation"):
        rho = float(kind.split()[1])
        for t in range(1, x_RT.shape[1]):
            x_RT[:, t] = rho * x_RT[:, t - 1] + math.sqrt(1 - rho**2) * x_RT[:, t]
    sums_RT = np.cumsum(np.pad(x_RT, ((0, 0), (1, 0))), axis=1)
    averaged_RT: Floats = (sums_RT[:, horizon:] - sums_RT[:, :-horizon]) / math.sqrt(horizon)
    return SD * averaged_RT


def first_alarms(
    x_RT: Floats, mean_R: Floats, std_R: Floats, limit_of: dict[float, float], horizon: int
) -> dict[str, Floats]:
    """First night of the alarm by rule; infinite without one. Means and deviations are the references'."""
    runs, nights = x_RT.shape
    slack_R = np.maximum(np.round(mean_R / std_R / 2.0, 2), 0.05)
    limit_R = np.array([limit_of[float(slack)] for slack in slack_R])
    bet_R = np.minimum(mean_R / SD**2, 0.9 / (1.0 - mean_R))
    tilt_KR = 2.0 * slack_R * np.array([[0.25], [0.5], [1.0], [2.0]])
    sum_R, logs = np.zeros(runs), math.log(DETECTED)
    shiryaev_R, mixed_KR, bounded_HR = np.zeros(runs), np.zeros(tilt_KR.shape), np.zeros((horizon, runs))
    names = (
        "CUSUM",
        "CUSUM, limit of an e-detector",
        "e-detector",
        "e-detector, mixed",
        "bounded e-detector",
    )
    first = {name: np.full(runs, np.inf) for name in names}
    most_R = np.zeros(runs)
    for t in range(nights):
        z_R = (mean_R - x_RT[:, t]) / std_R
        most_R = np.maximum(0.0, most_R + z_R - slack_R)  # without the limit of the CUSUM
        sum_R = np.minimum(limit_R, np.maximum(0.0, sum_R + z_R - slack_R))
        shiryaev_R = (1.0 + shiryaev_R) * np.exp(2.0 * slack_R * (z_R - slack_R))
        mixed_KR = (1.0 + mixed_KR) * np.exp(tilt_KR * z_R - tilt_KR**2 / 2.0)
        of = t % horizon  # the values of one detector share no data
        bounded_HR[of] = (1.0 + bounded_HR[of]) * (1.0 + bet_R * (mean_R - np.clip(x_RT[:, t], -1.0, 1.0)))
        raised = (
            sum_R >= limit_R,
            2.0 * slack_R * most_R >= logs,
            shiryaev_R >= DETECTED,
            mixed_KR.mean(axis=0) >= DETECTED,
            bounded_HR.sum(axis=0) >= DETECTED,
        )
        for name, alarm_R in zip(names, raised, strict=True):
            first[name] = np.where(alarm_R & np.isinf(first[name]), t + 1.0, first[name])
    return first


def compare_rules(runs: int) -> None:
    """Print false alarms and delays of the CUSUM and of e-detectors on simulated daily rank ICs."""
    limit_of: dict[tuple[float, int], float] = {}
    print(f"{runs} runs; alarms in {NIGHTS} nights with skill, nights until one without any")
    print(f"{'rank ICs':>21}{'rule':>31}{'false':>8}{f'in {WITHIN}':>8}{'median':>8}")
    for kind, (ratio, horizon, sessions) in KINDS.items():
        rng = np.random.default_rng(0)
        with_RT = ratio * SD + simulated_ics(kind, runs, sessions + NIGHTS, rng)
        without_RT = simulated_ics(kind, runs, NIGHTS, rng)
        found = [reference_of(x_T, horizon) for x_T in with_RT[:, :sessions]]
        known = [one for one in found if one is not None]
        mean_R, std_R = (np.array([getattr(one, name) for one in known]) for name in ("mean", "std"))
        for slack in np.unique(np.maximum(np.round(mean_R / std_R / 2.0, 2), 0.05)).tolist():
            if (slack, sessions) not in limit_of:
                limit_of[slack, sessions] = cusum_limit(slack, 0.05, sessions)
        limits = {slack: limit for (slack, n), limit in limit_of.items() if n == sessions}
        false = first_alarms(with_RT[:, sessions:], mean_R, std_R, limits, horizon)
        after = first_alarms(without_RT, mean_R, std_R, limits, horizon)
        for rule, nights_R in after.items():
            shares = f"{np.isfinite(false[rule]).mean():>8.1%}{(nights_R <= WITHIN).mean():>8.1%}"
            print(f"{kind:>21}{rule:>31}{shares}{np.median(nights_R):>8.0f}", flush=True)


def main() -> None:
    """Play the seeds and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--firms", type=int, default=120)
    parser.add_argument("--parts", choices=list(SHARES), default="peer")
    parser.add_argument("--truth-ic", type=float, default=MarketConfig().truth_ic)
    parser.add_argument("--train", type=int, default=750)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--horizon", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rules", type=int)
    args = parser.parse_args()
    if args.rules:
        compare_rules(args.rules)
        return
    config = config_of(args)
    outcomes = []
    for seed in range(args.first, args.first + args.seeds):
        outcomes.append(play(seed, config, args))
        if args.out is not None:
            args.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in outcomes))
    report(outcomes)


if __name__ == "__main__":
    main()
