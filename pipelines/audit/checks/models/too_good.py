"""Too good to be true: a single feature whose IC exceeds the highest plausible IC of its family.

Only training and validation sessions are used, so that the test does not influence the choice of features.
Features and labels are ranked to a normal within the date, so that bad ticks do not affect the IC.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.inference.means import newey_west_lags, newey_west_t
from features.arithmetic.transforms import rank_normal
from features.arrays import FloatArray
from features.information_coefficient import ic_by_date, is_constant
from features.library.characteristics import CHARACTERISTICS
from pipelines.audit.result import Result, not_examined
from pipelines.audit.subject import Subject
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.dataset.market import to_panel

NAME = "too_good"


@dataclass(frozen=True, slots=True)
class IcLimit:
    """The highest plausible long-run mean rank IC of a family, and the reason.

    ``short`` applies to labels of up to five sessions and ``long`` to longer ones, over which a persistent
    signal accumulates while noise averages out.
    """

    short: float
    long: float
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
    "volatility": IcLimit(0.12, 0.15, _MONTHLY),
    "liquidity": IcLimit(0.12, 0.15, _MONTHLY),
    "value": IcLimit(0.10, 0.15, _MONTHLY),
    "quality": IcLimit(0.10, 0.15, _MONTHLY),
    "growth": IcLimit(0.10, 0.15, _MONTHLY),
    "size": IcLimit(0.10, 0.15, _MONTHLY),
    "input": IcLimit(
        0.15,
        0.20,
        "half of the reversal IC of 1995, and above the limit of all slower families, because an input may "
        "combine several features",
    ),
    "input change": IcLimit(0.30, 0.30, f"the change of a price-like input is the day's return: {_BOUNCE}"),
}
OTHER_FAMILIES: Final = IcLimit(0.12, 0.15, _MONTHLY)
"""Limit of families without an entry."""
SHORT_HORIZON: Final = 5
DEVIATIONS: Final = 4.0
"""Standard errors by which an IC must exceed its family's limit. By chance this happens 1 in 30,000 times,
for about 80 features."""
FEWEST: Final = 20
DATES: Final = 1500
QUICK_DATES: Final = 250
"""Minimum number of dates that are measured, evenly spaced; all if there are fewer than twice as many."""


def check(subject: Subject) -> Result:
    """Test the IC of every single feature against the limit of its family.

    The check fails if the absolute IC exceeds the limit by more than four Newey-West standard errors, so a
    small sample is allowed its noise. Inputs are tested unchanged and by their change since the previous
    session, which reveals centred averages.
    """
    label_TN = subject.dataset.labels[subject.config.label.delay]
    sessions = np.unique(np.concatenate([np.concatenate([f.train, f.valid]) for f in subject.folds]))
    sessions = sessions[:: max(len(sessions) // (QUICK_DATES if subject.budget.quick else DATES), 1)]
    inside_DN = subject.dataset.universe_TN[sessions]
    label_DN = rank_normal(label_TN[sessions], inside_DN)
    spacing = float(np.median(np.diff(sessions))) if len(sessions) > 1 else 1.0
    overlap = math.ceil(subject.config.label.horizon / spacing) - 1
    rows = []
    for name, family, feature_DN in _features(subject, sessions):
        ic_D = ic_by_date(feature_DN, label_DN)
        # not known yet: zeros of these dates must not dilute the IC of later dates
        ic_D[is_constant(feature_DN)] = np.nan
        rows.append(_measured(name, family, ic_D, overlap, subject.config.label.horizon))
    evidence = pl.DataFrame(rows, infer_schema_length=None).sort("excess", descending=True, nulls_last=True)
    failed = evidence.filter(pl.col("excess") > DEVIATIONS)
    if failed.is_empty():
        known = evidence.drop_nulls("ic")
        if known.is_empty():
            return Result(NAME, "skipped", f"Fewer than {FEWEST} training dates have a label.")
        best = known.sort(pl.col("ic").abs() / pl.col("limit"), descending=True).row(0, named=True)
        nearest = (
            f"the nearest to its limit is {best['feature']} with an IC of {best['ic']:+.3f} "
            f"(t {best['t']:.1f}) and a limit of {best['limit']:.2f}"
        )
        inputs = evidence.filter(pl.col("family").is_in(["input", "input change"]) & pl.col("ic").is_null())
        left_out = not_examined(
            dict.fromkeys(inputs["feature"], f"known on fewer than {FEWEST} training dates with a label")
        )
        return Result(
            NAME,
            "pass",
            f"No single feature's IC exceeds the limit of its family; {nearest}. {left_out}".rstrip(),
            evidence,
        )
    one = failed.row(0, named=True)
    more = (
        f"; {failed.height - 1} more, such as {failed.row(1, named=True)['feature']}"
        if failed.height > 1
        else ""
    )
    return Result(
        NAME,
        "fail",
        f"Too good to be true: {one['feature']} alone has an IC of {one['ic']:+.3f} (t {one['t']:.1f}), "
        f"above the plausible limit of {one['limit']:.2f} for its family, {one['family']}{more}.",
        evidence,
    )


def _features(
    subject: Subject, sessions: npt.NDArray[np.integer]
) -> Iterator[tuple[str, str, npt.NDArray[np.floating]]]:
    data = subject.dataset
    inside_DN = data.universe_TN[sessions]
    for f, name in enumerate(data.characteristic_names):
        family = _family(name)
        feature_DN = data.characteristics_TNF[sessions, :, f]
        yield name, family, np.where(inside_DN, feature_DN, np.nan)
    for c, name in enumerate(data.channel_names):
        yield f"channel {name}", "channel", rank_normal(data.channels_TNC[sessions, :, c], inside_DN)
    for name in subject.inputs:
        rows = subject.tables["inputs"].filter(pl.col("name") == name)
        value_TN = to_panel(rows, "value", data.panel)
        before_DN, now_DN = value_TN[np.maximum(sessions - 1, 0)], value_TN[sessions]
        with np.errstate(divide="ignore", invalid="ignore"):
            change_DN = (now_DN - before_DN) / (np.abs(now_DN) + np.abs(before_DN))
        yield f"{INPUT_PREFIX}{name} (its change)", "input change", rank_normal(change_DN, inside_DN)


def _family(name: str) -> str:
    if name.startswith(INPUT_PREFIX):
        return "input"
    return CHARACTERISTICS[name].family if name in CHARACTERISTICS else "other"


def _measured(name: str, family: str, ic_D: FloatArray, overlap: int, horizon: int) -> dict[str, object]:
    ic_limit = IC_LIMITS.get(family, OTHER_FAMILIES)
    limit = ic_limit.short if horizon <= SHORT_HORIZON else ic_limit.long
    known = ic_D[np.isfinite(ic_D)]
    row: dict[str, object] = {
        "feature": name,
        "family": family,
        "dates": len(known),
        "ic": None,
        "t": None,
        "limit": limit,
        "excess": None,
        "reason": ic_limit.reason,
    }
    if len(known) < FEWEST:
        return row
    ic = float(known.mean())
    t = newey_west_t(ic_D, max(overlap, newey_west_lags(len(known))))
    if math.isnan(t):  # the IC is the same on every date, which is implausible unless it is 0
        return {**row, "ic": ic, "t": math.inf if ic else 0.0, "excess": math.inf if abs(ic) > limit else 0.0}
    error = abs(ic / t) if t else math.inf
    return {**row, "ic": ic, "t": t, "excess": (abs(ic) - limit) / error if error > 0 else 0.0}
