"""Results that are too good: features, models fitted on permuted labels, and the performance of a run.

Shape suffixes: T sessions, N firms, D dates.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.inference.means import newey_west_lags, newey_west_t, overlap_of
from backtest.look_ahead.finding import Finding, Result, answer, conclude, not_examined, skipped
from backtest.look_ahead.returns import lower_bound
from backtest.splits.folds import Fold
from features.arithmetic.transforms import rank_normal
from features.arrays import Float32Array, FloatArray, IntArray
from features.information_coefficient import ic_by_date, is_constant
from features.library.sets import characteristics_of
from models.registry import MODELS
from models.spec import BENCHMARKS
from pipelines.audit.refit import few_firms, sample_columns
from pipelines.audit.subject import Subject, temporary_run
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.results.evaluate import ensemble
from pipelines.results.evaluate_signals import Guard
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import RecordedRun, read_scores
from pipelines.train import task as tasks
from pipelines.train import walkforward


class IcLimit(NamedTuple):
    """The highest plausible long-run mean rank IC of a family, and the reason."""

    short: float  # for labels of up to five sessions
    long: float  # for longer ones, over which a persistent signal accumulates while noise averages out
    reason: str


_BOUNCE = (
    "Khandani and Lo (2011): the contrarian portfolio of the day's losers earned 1.38% per day in 1995, its "
    "best year, bid-ask bounce included. With a cross-sectional deviation of about 4%, this is an IC near 0.3"
)
_MONTHLY = (
    "monthly ICs of single characteristics are below 0.1 (Gu, Kelly and Xiu 2020, whose best forecasts "
    "combine 94 of them); the limit is up to half as high again"
)
IC_LIMITS: Final = {
    "reversal": IcLimit(0.30, 0.30, _BOUNCE),
    "channel": IcLimit(0.30, 0.30, f"channels are daily values, which include reversal: {_BOUNCE}"),
    "momentum": IcLimit(0.12, 0.15, f"includes the lead of industries (Hou 2007); {_MONTHLY}"),
    **dict.fromkeys(("volatility", "liquidity"), IcLimit(0.12, 0.15, _MONTHLY)),
    **dict.fromkeys(("value", "quality", "growth", "size"), IcLimit(0.10, 0.15, _MONTHLY)),
    "input": IcLimit(
        0.15,
        0.20,
        "half of the reversal IC of 1995, and above the limit of all slower families, because an input may "
        "combine several features",
    ),
    "input change": IcLimit(0.30, 0.30, f"the change of a price-like input is the day's return: {_BOUNCE}"),
}
OTHER_FAMILIES: Final = IcLimit(0.12, 0.15, _MONTHLY)  # limit of families without an entry
SHORT_HORIZON: Final = 5
FEWEST: Final = 20
DATES: Final = 1500
QUICK_DATES: Final = 250  # at least measured, evenly spaced; all if there are fewer than twice as many

FIRMS: Final = 200
NULL_DEVIATIONS: Final = 4.0  # exact deviations of the IC under permutation: 1 in 16,000 lie outside

# the true mean of the simulated market has a mean validation IC of 0.08, published daily signals 0.02 to 0.06
VALID_IC: Final = 0.10
SHARPE: Final = 4.0  # net, above which a book is suspect: published daily strategies stay below 3
IMPOSSIBLE: Final = 10.0  # net; the strongest honest book of the simulated markets has 5.6
ODDS: Final = 3.1  # standard errors: 1 in 1,000 by chance
FAR: Final = 0.05  # mean test IC above the mean validation IC from which the difference is suspect
TEST_DEVIATIONS: Final = 4.0  # standard errors of that difference: 1 in 30,000 by chance
_LEAST_DEVIATION: Final = 0.05


def too_good(subject: Subject) -> Result:
    """Test the IC of every single feature against the highest plausible IC of its family.

    Inputs are tested unchanged and by their change since the previous session, which reveals centred
    averages. Only training and validation sessions are used: the test must not influence the choice of
    features. Ranks within the date keep bad ticks out of the IC.
    """
    label_TN, horizon = subject.dataset.labels[subject.config.label.delay], subject.config.label.horizon
    sessions = np.unique(np.concatenate([np.concatenate([f.train, f.valid]) for f in subject.folds]))
    sessions = sessions[:: max(len(sessions) // (QUICK_DATES if subject.budget.quick else DATES), 1)]
    label_DN = rank_normal(label_TN[sessions], subject.dataset.universe_TN[sessions])
    spacing = float(np.median(np.diff(sessions))) if len(sessions) > 1 else 1.0
    overlap = overlap_of(horizon, spacing)
    rows = []
    for name, family, feature_DN in _features(subject, sessions):
        ic_D = ic_by_date(feature_DN, label_DN)
        # not known yet: zeros of these dates must not dilute the IC of later dates
        ic_D[is_constant(feature_DN)] = np.nan
        limit = IC_LIMITS.get(family, OTHER_FAMILIES)
        highest = limit.short if horizon <= SHORT_HORIZON else limit.long
        facts = measured(ic_D, highest, overlap)
        rows.append({"feature": name, "family": family, **facts, "limit": highest, "reason": limit.reason})
    evidence = pl.DataFrame(rows, infer_schema_length=None).sort("excess", descending=True, nulls_last=True)
    failed = evidence.filter(pl.col("excess") > 0)
    known = evidence.drop_nulls("ic")
    if known.is_empty():
        return skipped(f"Fewer than {FEWEST} training dates have a label.")
    if failed.is_empty():
        best = known.sort(pl.col("ic").abs() / pl.col("limit"), descending=True).row(0, named=True)
        inputs = evidence.filter(pl.col("family").is_in(["input", "input change"]) & pl.col("ic").is_null())
        few = f"known on fewer than {FEWEST} training dates with a label"
        sentence = (
            "No single feature's IC exceeds the limit of its family; the nearest to its limit is "
            f"{best['feature']} with an IC of {best['ic']:+.3f} (t {best['t']:.1f}) and a limit of "
            f"{best['limit']:.2f}. {not_examined(dict.fromkeys(inputs['feature'], few))}"
        )
        return answer("pass", sentence.rstrip(), evidence)
    one = failed.row(0, named=True)
    more = f"; {failed.height - 1} more, such as {failed['feature'][1]}" if failed.height > 1 else ""
    sentence = (
        f"Too good to be true: {one['feature']} alone has an IC of {one['ic']:+.3f} (t {one['t']:.1f}), "
        f"above the plausible limit of {one['limit']:.2f} for its family, {one['family']}{more}."
    )
    return answer("fail", sentence, evidence)


def _features(
    subject: Subject, sessions: npt.NDArray[np.integer]
) -> Iterator[tuple[str, str, npt.NDArray[np.floating]]]:
    """Name, family and values of every feature on some sessions."""
    data, inside_DN = subject.dataset, subject.dataset.universe_TN[sessions]
    registry = characteristics_of(subject.config.features.expressions)
    for f, name in enumerate(data.characteristic_names):
        family = registry[name].family if name in registry else "other"
        family = "input" if name.startswith(INPUT_PREFIX) else family
        yield name, family, np.where(inside_DN, data.characteristics_TNF[sessions, :, f], np.nan)
    for c, name in enumerate(data.channel_names):
        yield f"channel {name}", "channel", rank_normal(data.channels_TNC[sessions, :, c], inside_DN)
    for name in subject.inputs:
        value_TN = subject.delivery.input(name)
        before_DN, now_DN = value_TN[np.maximum(sessions - 1, 0)], value_TN[sessions]
        with np.errstate(divide="ignore", invalid="ignore"):
            change_DN = (now_DN - before_DN) / (np.abs(now_DN) + np.abs(before_DN))
        yield f"{INPUT_PREFIX}{name} (its change)", "input change", rank_normal(change_DN, inside_DN)


def measured(ic_D: FloatArray, limit: float, overlap: int) -> dict[str, float | None]:
    """Number of dates, mean IC, its t statistic, and its `lower_bound` less the limit.

    A Newey-West error of few dates is too small where labels overlap: of features whose true IC is the limit,
    20% on 20 dates and 5% on 60 would exceed it by four such errors, with labels of 21 sessions.
    """
    known = ic_D[np.isfinite(ic_D)]
    if len(known) < FEWEST:
        return {"dates": len(known), "ic": None, "t": None, "excess": None}
    ic = float(known.mean())
    t = newey_west_t(ic_D, max(overlap - 1, newey_west_lags(len(known))))
    if math.isnan(t):  # the IC is the same on every date
        t = math.inf if ic else 0.0
    return {"dates": len(known), "ic": ic, "t": t, "excess": lower_bound(ic_D, overlap) - limit}


def shuffled_labels(subject: Subject) -> Result:
    """Fit ridge and a small LightGBM on permuted labels and compare the test IC with its null interval.

    Labels are permuted among the firms of each date: a test IC that remains cannot come from the features.
    Under permutation, the Pearson IC of a date has mean 0 and variance ``1 / (n - 1)`` exactly (Pitman 1937).
    """
    fold = subject.folds[-1]
    if not len(fold.test):
        # a live fold is tested on the second half of its validation. Dates are permuted by themselves, so
        # that nothing has to be purged between the halves
        half = len(fold.valid) // 2
        fold = replace(fold, valid=fold.valid[:half], test=fold.valid[half:])
    if not (len(fold.valid) and len(fold.test)):
        return skipped("A live fold with one validation session leaves none for a test.")
    count = min(subject.budget.permuted_train, len(fold.train))
    at = np.linspace(0, len(fold.train) - 1, count).round().astype(np.int64)
    thin = replace(fold, train=fold.train[at])
    columns = sample_columns(subject.dataset, fold.test, FIRMS, subject.seed)
    rows: list[dict[str, Any]] = []
    for permutation in range(subject.budget.permutations):
        rng = np.random.default_rng((subject.seed, 4, permutation))
        permuted_TN = permute_within_dates(subject.dataset.target_TN, rng)
        for model, forecast_DN, label_DN in _permuted_fits(subject, thin, permuted_TN, columns):
            null = compare_with_null(forecast_DN, label_DN)
            rows.append({"model": model, "permutation": permutation, **null})
    if not any(row["dates"] for row in rows):
        return skipped("No model makes a forecast for permuted labels that differs between firms.")
    worst = max(rows, key=lambda row: abs(row["deviations"]))
    deviations = abs(worst["deviations"])
    if deviations > NULL_DEVIATIONS:
        sentence = (
            f"{worst['model']} fitted on labels permuted within their dates has a test IC of "
            f"{worst['ic']:+.3f}, {deviations:.1f} standard deviations of {worst['null_deviation']:.4f} from "
            "zero: test data leak into the fit."
        )
        return answer("fail", sentence, rows)
    sentence = (
        f"{' and '.join(BENCHMARKS)} fitted on permuted labels have no skill on the test: the IC is at "
        f"most {deviations:.1f} standard deviations from zero, and {NULL_DEVIATIONS:.0f} are allowed."
    )
    return answer("pass", sentence, rows)


def permute_within_dates(target_TN: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Permute the known targets of each date among the firms that have one."""
    out_TN = target_TN.copy()
    for row in out_TN:
        known = np.flatnonzero(np.isfinite(row))
        row[known] = row[rng.permutation(known)]
    return out_TN


def _permuted_fits(
    subject: Subject, fold: Fold, target_TN: Float32Array, columns: IntArray
) -> Iterator[tuple[str, Float32Array, FloatArray]]:
    """Fit the quick models on a target; yield their test forecasts, with the target itself as the label."""
    data, delay = subject.dataset, subject.config.label.delay
    permuted = replace(data, target_TN=target_TN, labels={delay: target_TN.astype(np.float64)})
    # both models read the characteristics of the fold's dates alone, and copying all would take seconds
    dates = np.unique(np.concatenate([fold.train, fold.valid, fold.test]))
    every_TNF = data.characteristics_TNF
    some_TNF = np.zeros((len(every_TNF), len(columns), every_TNF.shape[2]), dtype=every_TNF.dtype)
    some_TNF[dates] = every_TNF[dates][:, columns]
    few = few_firms(replace(permuted, characteristics_TNF=every_TNF[:, :, :0]), columns)
    arrays = replace(tasks.collect_arrays(few, subject.config.features.window), characteristics_TNF=some_TNF)
    models = {name: dict(MODELS[name].build.quick) for name in BENCHMARKS}
    settings = {"models": models, "fit": {}, "seeds": (subject.seed,), "device": "cpu"}
    with temporary_run(subject.config.model_copy(update=settings)) as run:
        for task in walkforward.plan_tasks(run, data, [fold]):
            yield task.model, tasks.run_task(task, arrays).test_BN, arrays.label_TN[fold.test]


def compare_with_null(forecast_DN: Float32Array, label_DN: FloatArray) -> dict[str, Any]:
    """Mean IC of forecasts of permuted labels, and its exact standard deviation under permutation."""
    ic_D = ic_by_date(forecast_DN, label_DN)
    # a constant forecast has IC 0 by definition, not by chance
    used_D = np.isfinite(ic_D) & ~is_constant(forecast_DN)
    count_D = (np.isfinite(forecast_DN) & np.isfinite(label_DN)).sum(axis=1)[used_D]
    dates = int(used_D.sum())
    if not dates:
        return {"dates": 0, "ic": 0.0, "null_deviation": 0.0, "deviations": 0.0}
    ic = float(ic_D[used_D].mean())
    deviation = float(np.sqrt((1.0 / (count_D - 1)).sum()) / dates)
    return {"dates": dates, "ic": ic, "null_deviation": deviation, "deviations": ic / deviation}


def performance(subject: Subject) -> Result:
    """Fail if a run's forecasts know later returns, or a Sharpe ratio is impossible; warn if one is rare.

    Stored forecasts are signals, so that the guard on signal files is asked. A net Sharpe ratio is impossible
    if it is above `IMPOSSIBLE` with odds of 99.9%.
    """
    if subject.run is None:
        return skipped("A config has no results; audit a run.")
    findings = [Finding("performance", "pass"), *_impossible(subject, subject.run), *guarded(subject)]
    rare = (*high_scores(subject.run), *_far_above(subject, subject.run))
    findings += [Finding("rare", "warn", words, subject=f"rare {k + 1}") for k, words in enumerate(rare)]
    return conclude(
        findings,
        f"No validation IC is above {VALID_IC:.2f}, no net Sharpe ratio above {SHARPE:g}, no test IC far "
        "above validation, and no stored forecast is seen to know a later return.",
    )


def _impossible(subject: Subject, run: RecordedRun) -> Iterator[Finding]:
    """Net Sharpe ratios whose error (Lo 2002) does not explain that they are above `IMPOSSIBLE`."""
    per_year = subject.dataset.panel.periods_per_year
    sessions = sum(len(fold.test) for fold in subject.folds) * subject.spacing
    for book, delay, sharpe in _net_sharpes(run) if sessions else ():
        error = math.sqrt((per_year + sharpe**2 / 2.0) / sessions)
        if sharpe - ODDS * error > IMPOSSIBLE:
            words = (
                f"Impossible performance: book {book} has a net Sharpe ratio of {sharpe:.1f} at delay "
                f"{delay}, above {IMPOSSIBLE:g} with odds of over 99.9%. Features, labels or accounts know "
                "the future."
            )
            yield Finding("Sharpe ratio", "fail", words, sharpe, IMPOSSIBLE, f"book {book}")


def _net_sharpes(run: RecordedRun) -> Iterator[tuple[str, int, float]]:
    """Book (``NAME of MODEL``), delay and net Sharpe ratio of a run's newest evaluation."""
    stored = newest_evaluation(run)
    for row in () if stored is None else stored.table("ladder").iter_rows(named=True):
        for name, sharpe in row.items():
            if name.endswith(".sharpe_net") and sharpe is not None:
                yield f"{name.removesuffix('.sharpe_net')} of {row['model']}", row["delay"], sharpe


def guarded(subject: Subject) -> Iterator[Finding]:
    """What the guard on signal files says of the forecasts of each model."""
    guard = Guard(subject.dataset, subject.config.label.horizon)
    if not subject.tested:
        yield Finding("guard", "skipped", "there are none of a test", subject="stored forecasts")
    for model, seeds in subject.tested.items():
        for one in guard.check(ensemble(seeds)):
            if one.verdict == "skipped" and one.check == "IC with later returns":
                yield replace(one, subject=f"stored forecasts of {model}")
            if one.verdict in ("fail", "warn"):
                know = "know" if one.verdict == "fail" else "may know"
                words = f"The stored forecasts of {model} {know} the future ({one.check}): {one.sentence}"
                yield replace(one, sentence=words, subject=f"{model}: {one.check}")


def high_scores(run: RecordedRun) -> list[str]:
    """Describe the validation ICs and net Sharpe ratios of a run that are too good to be believed."""
    found = []
    scores = read_scores(run).group_by("model", maintain_order=True)
    for model, *ics in scores.agg(pl.col("valid_ic", "valid_rank_ic").mean()).iter_rows():
        ic = max((one for one in ics if one is not None and not math.isnan(one)), default=0.0)
        if ic > VALID_IC:
            found.append(
                f"{model} has a mean validation IC of {ic:+.3f}, above {VALID_IC:.2f}: few honest models "
                "reach that. Look for inputs that know later returns (peerglass audit)."
            )
    found += (
        f"Book {book} has a net Sharpe ratio of {sharpe:.1f} at delay {delay}, above {SHARPE:g}: hardly any "
        "honest book has that."
        for book, delay, sharpe in _net_sharpes(run)
        if sharpe > SHARPE
    )
    return found


def tests_above_validation(run: RecordedRun) -> list[str]:
    """Describe the models of a run's newest evaluation whose test is far above validation."""
    stored = newest_evaluation(run)
    found = []
    for row in () if stored is None else stored.table("ladder").iter_rows(named=True):
        ic, t, valid_ic = row["ensemble_ic"], row["ic_t"], row["valid_ic"]
        if None not in (ic, t, valid_ic) and all(map(math.isfinite, (ic, t, valid_ic))) and t:
            # validation has about as many dates as the test, so its error is about the same
            found += _above(row["model"], ic, valid_ic, abs(ic / t) * math.sqrt(2.0))
    return list(dict.fromkeys(found))


def _above(model: str, ic: float, valid_ic: float, error: float) -> list[str]:
    """One sentence if a test IC is above the validation IC by more than sampling explains."""
    if ic - valid_ic <= FAR or ic - valid_ic <= TEST_DEVIATIONS * error:
        return []
    return [
        f"{model} has a mean test IC of {ic:+.3f} and a validation IC of {valid_ic:+.3f}: a test that is "
        f"{(ic - valid_ic) / error:.0f} standard errors better than validation was probably trained on."
    ]


def _far_above(subject: Subject, run: RecordedRun) -> Iterator[str]:
    """The same from the stored forecasts, with the ICs of single seeds."""
    data, config = subject.dataset, subject.config
    label_TN = np.where(data.universe_TN, data.labels[config.label.delay], np.nan)
    valid = dict(read_scores(run).group_by("model").agg(pl.col("valid_ic").mean()).iter_rows())
    dates = sum(len(fold.valid) for fold in subject.folds)
    for model, seeds in subject.tested.items():
        daily = np.stack([ic_by_date(forecast_TN, label_TN) for forecast_TN in seeds.values()])
        forecast_T = np.any([np.isfinite(one).any(axis=1) for one in seeds.values()], axis=0)
        ic_D = daily[:, forecast_T].mean(axis=0)
        ic_D, valid_ic = ic_D[np.isfinite(ic_D)], valid.get(model)
        if len(ic_D) < 2 or valid_ic is None or math.isnan(valid_ic):
            continue
        overlap = overlap_of(config.label.horizon, subject.spacing)
        deviation = max(float(ic_D.std(ddof=1)), _LEAST_DEVIATION) * math.sqrt(overlap)
        error = deviation * math.sqrt(1 / len(ic_D) + 1 / max(dates, 1))
        yield from _above(model, float(ic_D.mean()), valid_ic, error)
