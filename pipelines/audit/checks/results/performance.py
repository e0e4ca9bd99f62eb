"""Performance after training that is too good: validation ICs, net Sharpe ratios, and tests above validation.

Shape suffixes: D dates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from features.arrays import FloatArray
from features.information_coefficient import ic_by_date
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset.folds import path_of_tests
from pipelines.results.evaluate import forecasts_to_arrays
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import Run
from pipelines.run.scores import read_scores

NAME = "performance"
VALID_IC: Final = 0.10
"""Mean validation IC above which a model is suspect. The true mean of the simulated market, which no model
can beat, has 0.08; published daily signals have 0.02 to 0.06."""
SHARPE: Final = 4.0
"""Net Sharpe ratio above which a book is suspect: published strategies of daily data stay below 3."""
FAR: Final = 0.05
"""Mean test IC above the mean validation IC from which the difference is suspect."""
DEVIATIONS: Final = 4.0
"""Standard errors of that difference: 1 in 30,000 by chance."""
_LEAST_DEVIATION: Final = 0.05


def check(subject: Subject) -> Result:
    """Warn if a run's validation IC, net Sharpe ratio or test IC is above what honest models reach."""
    if subject.run is None:
        return Result(NAME, "skipped", "A config has no results; audit a run.")
    findings = [*high_scores(subject.run), *_tests_above_validation(subject)]
    if findings:
        more = f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
        return Result(NAME, "warn", f"{findings[0]}{more}", pl.DataFrame({"finding": findings}))
    return Result(
        NAME,
        "pass",
        f"No validation IC is above {VALID_IC:.2f}, no net Sharpe ratio above {SHARPE:g}, and no test IC far "
        "above validation.",
    )


def high_scores(run: Run) -> list[str]:
    """Describe the validation ICs and net Sharpe ratios of a run that are too good to be believed."""
    found = []
    scores = read_scores(run).group_by("model", maintain_order=True)
    means = scores.agg(pl.col("valid_ic", "valid_rank_ic").mean())
    for model, *ics in means.iter_rows():
        ic = max((one for one in ics if one is not None and not math.isnan(one)), default=0.0)
        if ic > VALID_IC:
            found.append(
                f"{model} has a mean validation IC of {ic:+.3f}, above {VALID_IC:.2f}: few honest models "
                "reach that. Look for inputs that know later returns (peerglass audit)."
            )
    stored = newest_evaluation(run)
    if stored is None:
        return found
    ladder = stored.table("ladder")
    for name in (column for column in ladder.columns if column.endswith(".sharpe_net")):
        for model, delay, sharpe in ladder.select("model", "delay", name).iter_rows():
            if sharpe is not None and sharpe > SHARPE:
                found.append(
                    f"Book {name.removesuffix('.sharpe_net')} of {model} has a net Sharpe ratio of "
                    f"{sharpe:.1f} at delay {delay}, above {SHARPE:g}: hardly any honest book has that."
                )
    return found


def tests_above_validation(run: Run) -> list[str]:
    """Describe the models of a run's newest evaluation whose test is far above validation."""
    stored = newest_evaluation(run)
    if stored is None:
        return []
    found = []
    for row in stored.table("ladder").iter_rows(named=True):
        ic, t, valid_ic = row["ensemble_ic"], row["ic_t"], row["valid_ic"]
        if None in (ic, t, valid_ic) or not all(map(math.isfinite, (ic, t, valid_ic))) or not t:
            continue
        # validation has about as many dates as the test, so its error is about the same
        error = abs(ic / t) * math.sqrt(2.0)
        if ic - valid_ic > FAR and ic - valid_ic > DEVIATIONS * error:
            found.append(_above(row["model"], ic, valid_ic, (ic - valid_ic) / error))
    return list(dict.fromkeys(found))


def _above(model: str, ic: float, valid_ic: float, errors: float) -> str:
    return (
        f"{model} has a mean test IC of {ic:+.3f} and a validation IC of {valid_ic:+.3f}: a test that is "
        f"{errors:.0f} standard errors better than validation was probably trained on."
    )


def _tests_above_validation(subject: Subject) -> Iterator[str]:
    """Models whose test IC is above the validation IC by more than sampling explains."""
    run, forecasts = subject.run, subject.forecasts
    if run is None or forecasts is None or forecasts.is_empty():
        return
    path = path_of_tests(subject.dataset, subject.folds)
    own = forecasts.filter(pl.col("horizon") == subject.config.label.horizon).join(
        path, on=["date", "fold"], how="semi"
    )
    label_TN = np.where(
        subject.dataset.universe_TN, subject.dataset.labels[subject.config.label.delay], np.nan
    )
    valid = dict(read_scores(run).group_by("model").agg(pl.col("valid_ic").mean()).iter_rows())
    dates = sum(len(fold.valid) for fold in subject.folds)
    for model, seeds in forecasts_to_arrays(own, subject.dataset.panel).items():
        ic_D = _daily_ics(seeds, label_TN)
        valid_ic = valid.get(model)
        if len(ic_D) < 2 or valid_ic is None or math.isnan(valid_ic):
            continue
        deviation = max(float(ic_D.std(ddof=1)), _LEAST_DEVIATION) * math.sqrt(subject.config.label.horizon)
        error = deviation * math.sqrt(1 / len(ic_D) + 1 / max(dates, 1))
        above = float(ic_D.mean()) - valid_ic
        if above > FAR and above > DEVIATIONS * error:
            yield _above(model, float(ic_D.mean()), valid_ic, above / error)


def _daily_ics(seeds: dict[int, FloatArray], label_TN: FloatArray) -> FloatArray:
    """ICs of single seeds, averaged over the seeds of each date."""
    daily = np.stack([ic_by_date(forecast_TN, label_TN) for forecast_TN in seeds.values()])
    forecast_T = np.any([np.isfinite(one).any(axis=1) for one in seeds.values()], axis=0)
    ic_D = daily[:, forecast_T].mean(axis=0)
    return np.asarray(ic_D[np.isfinite(ic_D)])
