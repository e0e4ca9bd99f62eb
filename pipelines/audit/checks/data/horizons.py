"""Levels that know what comes after: an IC with later months that no honest daily input has.

A series that was scaled with its own future is low where it will rise. Its IC with tomorrow's return is
small, because a level changes slowly, but its IC with the return of the next half year is not.

Shape suffixes: T sessions, N firms, D dates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from features.arithmetic.transforms import rank_normal
from features.arrays import BoolArray, FloatArray
from features.information_coefficient import ic_by_date
from pipelines.audit.checks.data.membership import member_flags
from pipelines.audit.result import Result
from pipelines.audit.series import input_values
from pipelines.audit.subject import Subject

NAME = "horizons"
HORIZONS: Final = (21, 63, 126, 252)
"""Sessions of the returns."""
STATIC: Final = 4
"""Maximum number of values per firm (in the median) of a static input, such as a code or a loading."""
STATIC_HORIZON: Final = 21
STATIC_DEVIATIONS: Final = 5.0
"""Minimum t statistic over 21 sessions for a warning about a static input. A number that is fixed before the
sample has a t of 5 over six years only if its portfolio, never traded, has a Sharpe ratio of 2: the chance is
below 1 in a million without skill. Honest ones reach 3.1, and means of returns over the whole sample 4 to
7."""
SPANS: Final = 8
"""Minimum number of disjoint spans. Their ICs are independent, so that a plain t statistic holds."""
INPUT_LIMIT: Final = 0.25
"""Minimum absolute mean IC of an input. Honest inputs on real and simulated prices stay below 0.19."""
PRICE_LIMIT: Final = 0.30
"""The same for the level of the price, which honest prices of survivors come nearer to."""
FEWEST_FIRMS: Final = 10
"""Minimum number of firms of a date with a level and a later return."""
DEVIATIONS: Final = 6.0
"""Minimum t statistic. A portfolio that is held for half years with a t of 6 over ten of them has a Sharpe
ratio of 2.7 without any trading."""


_SCHEMA: Final = {
    "column": pl.String,
    "limit": pl.Float64,
    "horizon": pl.Int64,
    "ic": pl.Float64,
    "t": pl.Float64,
    "spans": pl.Int64,
    "failed": pl.Boolean,
    "static_t": pl.Float64,
}


def check(subject: Subject) -> Result:
    """Measure the IC of every input, and of the price's level, with returns over 21 to 252 sessions."""
    rows = [_measured(name, limit, value_TN, subject) for name, limit, value_TN in _levels(subject)]
    evidence = pl.DataFrame(rows, schema=_SCHEMA)
    failed = evidence.filter(pl.col("failed")).sort(pl.col("ic").abs(), descending=True)
    if failed.is_empty():
        static = evidence.filter(pl.col("static_t").abs() >= STATIC_DEVIATIONS)
        return _passed(evidence) if static.is_empty() else _static(static, evidence)
    one = failed.row(0, named=True)
    others = failed["column"].to_list()[1:]
    also = f"; so has {', '.join(others)}" if others else ""
    return Result(
        NAME,
        "fail",
        f"Level that knows later returns: {one['column']} has an IC of {one['ic']:+.2f} with the return of "
        f"the next {one['horizon']} sessions (t {one['t']:.1f} over {one['spans']} disjoint spans), above "
        f"the limit of {one['limit']:.2f}{also}. It was probably scaled, averaged or filled with later "
        "values: compare it with an earlier delivery (audit --vintage).",
        evidence,
    )


def _static(static: pl.DataFrame, evidence: pl.DataFrame) -> Result:
    one = static.sort(pl.col("static_t").abs(), descending=True).row(0, named=True)
    return Result(
        NAME,
        "warn",
        f"{one['column'][0].upper()}{one['column'][1:]} hardly changes, and still tells the returns of the "
        f"whole sample: its IC with the next {STATIC_HORIZON} sessions has a t of {one['static_t']:+.1f} (a "
        "chance below 1 in a million). It was probably estimated on the whole sample, like a mean of the "
        "target or a loading: estimate it on training sessions alone, or on the past of each date.",
        evidence,
    )


def _passed(evidence: pl.DataFrame) -> Result:
    known, unknown = evidence.drop_nulls("ic"), evidence.filter(pl.col("ic").is_null())["column"].to_list()
    few = f"fewer than {SPANS} disjoint spans of {HORIZONS[0]} sessions begin with {FEWEST_FIRMS} known firms"
    if known.is_empty():
        return Result(NAME, "skipped", f"Not examined, because {few} for {', '.join(unknown)}.", evidence)
    best = known.sort(pl.col("ic").abs() / pl.col("limit"), descending=True).row(0, named=True)
    also = f" Not examined: {', '.join(unknown)}, because {few}." if unknown else ""
    return Result(
        NAME,
        "pass",
        f"No level of {known.height} is linked to later returns beyond what is possible; the largest IC is "
        f"{best['ic']:+.2f}, of {best['column']} with the next {best['horizon']} sessions (limit "
        f"{best['limit']:.2f}).{also}",
        evidence,
    )


def _levels(subject: Subject) -> Iterator[tuple[str, float, FloatArray]]:
    yield "the price's level", PRICE_LIMIT, subject.dataset.panel.raw_close_TN
    if subject.config.universe.membership is not None:
        yield (
            f"membership of {subject.config.universe.membership}",
            INPUT_LIMIT,
            member_flags(subject).astype(np.float64),
        )
    for name in subject.inputs:
        yield f"input {name}", INPUT_LIMIT, input_values(subject, name)


def _measured(name: str, limit: float, value_TN: FloatArray, subject: Subject) -> dict[str, object]:
    """Facts of the horizon with the largest t among those that exceed the limit, else with the largest IC."""
    index_TN = subject.dataset.panel.total_return_index_TN
    inside_TN = subject.dataset.panel.traded_TN
    found: list[dict[str, object]] = []
    for horizon in HORIZONS:
        facts = span_ics(value_TN, index_TN, inside_TN, horizon)
        if facts is None:
            continue
        ic, t, spans = facts
        failed = abs(ic) >= limit and abs(t) >= DEVIATIONS
        found.append({"horizon": horizon, "ic": ic, "t": t, "spans": spans, "failed": failed})
    chosen = max(
        found,
        key=lambda one: (one["failed"], abs(float(one["ic"]))),  # type: ignore[arg-type]
        default={"horizon": None, "ic": None, "t": None, "spans": None, "failed": False},
    )
    values_N = [len(np.unique(column[np.isfinite(column)])) for column in value_TN.T]
    static = name.startswith("input") and float(np.median(values_N)) <= STATIC
    facts = span_ics(value_TN, index_TN, inside_TN, STATIC_HORIZON) if static else None
    return {"column": name, "limit": limit, **chosen, "static_t": None if facts is None else facts[1]}


def span_ics(
    value_TN: FloatArray, index_TN: FloatArray, inside_TN: BoolArray, horizon: int
) -> tuple[float, float, int] | None:
    """Mean, t statistic and number of the ICs of a level with the returns of disjoint spans.

    A span begins on a date with a value of at least `FEWEST_FIRMS` firms, so that a level which is known once
    a month is measured on its own dates. Value and return are ranked to a normal within the date. None if
    there are fewer than `SPANS` spans.
    """
    count_T = (inside_TN & np.isfinite(value_TN)).sum(axis=1)
    starts: list[int] = []
    for t in np.flatnonzero(count_T[: max(len(value_TN) - horizon, 0)] >= FEWEST_FIRMS):
        if not starts or t - starts[-1] >= horizon:
            starts.append(int(t))
    if len(starts) < SPANS:
        return None
    starts_D = np.array(starts)
    inside_DN = inside_TN[starts_D] & np.isfinite(value_TN[starts_D])
    with np.errstate(divide="ignore", invalid="ignore"):
        return_DN = index_TN[starts_D + horizon] / index_TN[starts_D] - 1.0
    return_DN = np.where(inside_DN, return_DN, np.nan)
    ic_D = ic_by_date(rank_normal(value_TN[starts_D], inside_DN), rank_normal(return_DN, inside_DN))
    ic_D = ic_D[np.isfinite(ic_D) & (ic_D != 0)]
    if len(ic_D) < SPANS:
        return None
    deviation = float(ic_D.std(ddof=1))
    return float(ic_D.mean()), float(ic_D.mean() / max(deviation, 1e-9) * np.sqrt(len(ic_D))), len(ic_D)
