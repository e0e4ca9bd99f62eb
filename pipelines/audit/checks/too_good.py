"""Too good to be true: a single feature whose IC is beyond what its family ever had.

Measured on training and validation sessions alone, so that nobody chooses by the test. The IC is that of
normal scores: features and labels are ranked within the date, so that bad ticks cannot move it.

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

from backtest.metrics import newey_west_lags, newey_west_t
from features.arithmetic.transforms import rank_normal
from features.information_coefficient import ic_by_date, is_constant
from features.library.characteristics import CHARACTERISTICS
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset.build import INPUT_PREFIX, to_panel

NAME = "too_good"
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Record:
    """The largest long-run mean rank IC that a family is granted, and why.

    ``short`` is for labels of up to five sessions, ``long`` for longer ones, over which a persistent signal
    adds up while noise cancels.
    """

    short: float
    long: float
    reason: str


_BOUNCE = (
    "Khandani and Lo (2011): the contrarian portfolio of the day's losers earned 1.38% a day in 1995, at a "
    "cross-sectional deviation of about 4% an IC near 0.3, bid-ask bounce included; no year was better"
)
_MONTHLY = (
    "monthly ICs of single characteristics stay below 0.1 (Gu, Kelly and Xiu 2020, whose best forecasts "
    "combine 94 of them); the limit leaves half as much again"
)
IC_LIMITS: Final = {
    "reversal": Record(0.30, 0.30, _BOUNCE),
    "channel": Record(0.30, 0.30, f"channels are the day's own numbers, reversal among them: {_BOUNCE}"),
    "momentum": Record(0.12, 0.15, f"with the lead of industries (Hou 2007); {_MONTHLY}"),
    "volatility": Record(0.12, 0.15, _MONTHLY),
    "liquidity": Record(0.12, 0.15, _MONTHLY),
    "value": Record(0.10, 0.15, _MONTHLY),
    "quality": Record(0.10, 0.15, _MONTHLY),
    "growth": Record(0.10, 0.15, _MONTHLY),
    "size": Record(0.10, 0.15, _MONTHLY),
    "input": Record(
        0.15,
        0.20,
        "half of the bounce of 1995, and above every family that can be traded: own numbers may combine "
        "several",
    ),
    "input change": Record(0.30, 0.30, f"the change of a price-like input is the day's return: {_BOUNCE}"),
}
OTHER: Final = Record(0.12, 0.15, _MONTHLY)
"""Families that are not named."""
SHORT_HORIZON: Final = 5
DEVIATIONS: Final = 4.0
"""Standard errors by which an IC must exceed its family's record: one chance in 30,000, for some 80
features."""
FEWEST: Final = 20


def check(subject: Subject) -> Result:
    """Test every single feature's IC against its family's record.

    The t-statistic has to exceed the one that the record itself would have here (``record / standard error``,
    Newey-West) by four: a small sample is granted its noise, a large one is not granted more than the record.
    Inputs are measured as they are and by their change from the session before, in which a centred average
    shows.
    """
    label_TN = subject.dataset.labels[subject.config.label.delay]
    sessions = np.unique(np.concatenate([np.concatenate([f.train, f.valid]) for f in subject.folds]))
    inside_DN = subject.dataset.universe_TN[sessions]
    label_DN = rank_normal(label_TN[sessions], inside_DN)
    apart = float(np.median(np.diff(sessions))) if len(sessions) > 1 else 1.0
    overlap = math.ceil(subject.config.label.horizon / apart) - 1
    rows = []
    for name, family, feature_DN in _features(subject, sessions):
        ic_D = ic_by_date(feature_DN, label_DN)
        ic_D[is_constant(feature_DN)] = np.nan  # not known yet: its zeros must not hide what comes later
        rows.append(_measured(name, family, ic_D, overlap, subject.config.label.horizon))
    evidence = pl.DataFrame(rows, infer_schema_length=None).sort("excess", descending=True, nulls_last=True)
    wrong = evidence.filter(pl.col("excess") > DEVIATIONS)
    if wrong.is_empty():
        best = evidence.row(0, named=True)
        if best["excess"] is None:
            return Result(NAME, "skipped", f"Fewer than {FEWEST} training dates have a label.")
        nearest = (
            f"nearest to its limit is {best['feature']}: IC {best['ic']:+.3f} (t {best['t']:.1f}), limit "
            f"{best['limit']:.2f}"
        )
        return Result(
            NAME, "pass", f"No single feature's IC is beyond its family's record; {nearest}.", evidence
        )
    one = wrong.row(0, named=True)
    more = (
        f"; {wrong.height - 1} more, such as {wrong.row(1, named=True)['feature']}"
        if wrong.height > 1
        else ""
    )
    return Result(
        NAME,
        "fail",
        f"Too good to be true: {one['feature']} alone has an IC of {one['ic']:+.3f} (t {one['t']:.1f}), "
        f"where its family, {one['family']}, never had more than {one['limit']:.2f}{more}.",
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
    record = IC_LIMITS.get(family, OTHER)
    limit = record.short if horizon <= SHORT_HORIZON else record.long
    known = ic_D[np.isfinite(ic_D)]
    row: dict[str, object] = {
        "feature": name,
        "family": family,
        "dates": len(known),
        "ic": None,
        "t": None,
        "limit": limit,
        "excess": None,
        "reason": record.reason,
    }
    if len(known) < FEWEST:
        return row
    ic = float(known.mean())
    t = newey_west_t(ic_D, max(overlap, newey_west_lags(len(known))))
    if math.isnan(t):  # the same IC on every date: nothing that happens by nature, unless it is none
        return {**row, "ic": ic, "t": math.inf if ic else 0.0, "excess": math.inf if abs(ic) > limit else 0.0}
    error = abs(ic / t) if t else math.inf
    return {**row, "ic": ic, "t": t, "excess": (abs(ic) - limit) / error if error > 0 else 0.0}
