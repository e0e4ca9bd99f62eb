"""Splits on the failed day: a price that is adjusted before the ex-date contains look-ahead."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "splits"
NEAR: Final = 10
"""Sessions before and after the recorded date in which the price is searched for the split's step."""
CLEAR: Final = 0.35
"""Minimum absolute log ratio: a 3-for-2 split has 0.41, more than almost all daily returns."""
CLOSE: Final = 0.5
"""A price step matches the split if it differs from the log ratio by at most this fraction of it."""
SEVERAL: Final = 2
SHARE: Final = 0.2
"""Minimum share of misdated splits (and at least two) for a failure. A single one is a vendor's error and
only a warning."""


def check(subject: Subject) -> Result:
    """Check that the raw close steps by the recorded ratio on the recorded session and not on another one."""
    rows = _splits(subject)
    if not rows:
        return Result(NAME, "skipped", "No split of 3 for 2 or more is recorded.")
    evidence = pl.DataFrame(rows, infer_schema_length=None)
    early = evidence.filter(pl.col("steps_after") > 0)
    late = evidence.filter(pl.col("steps_after") < 0)
    absent = evidence.filter(pl.col("steps_after").is_null())
    for cases, what in (
        (
            early,
            "Split applied before its ex-date: the price steps {after} session(s) after the recorded split",
        ),
        (
            late,
            "Split recorded after its ex-date: the price steps {after} session(s) before the recorded split",
        ),
        (absent, "Split applied to adjusted prices: the price does not step at the recorded split"),
    ):
        if cases.is_empty():
            continue
        failed = cases.height >= SEVERAL and cases.height >= SHARE * len(rows)
        one = cases.row(0, named=True)
        after = abs(one["steps_after"]) if one["steps_after"] is not None else 0
        return Result(
            NAME,
            "fail" if failed else "warn",
            f"{what.format(after=after)} for {cases.height} of {len(rows)} splits, such as {one['ticker']} "
            f"on {one['recorded']}.",
            evidence,
        )
    return Result(
        NAME, "pass", f"The price steps on the recorded date of each of {len(rows)} splits.", evidence
    )


def _splits(subject: Subject) -> list[dict[str, Any]]:
    panel = subject.dataset.panel
    dates_T = panel.dates_T.astype("datetime64[D]")
    place = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
    recorded = (
        subject.tables["prices"].filter(pl.col("split_ratio").log().abs() >= CLEAR).sort("date", "ticker")
    )
    rows = []
    for date, ticker, ratio in recorded.select("date", "ticker", "split_ratio").iter_rows():
        at = int(np.searchsorted(dates_T, np.datetime64(date, "D")))
        step = _step(panel.raw_close_TN[:, place[ticker]], at, float(np.log(ratio)))
        if step is not False:
            rows.append({"ticker": ticker, "recorded": date, "ratio": ratio, "steps_after": step})
    return rows


def _step(close_T: np.ndarray, at: int, log_ratio: float) -> int | Literal[False] | None:
    """Sessions from the recorded split to the raw close's step; None without a step, False if unknown."""
    first = max(at - NEAR, 0)
    known = first + np.flatnonzero(np.isfinite(close_T[first : at + NEAR + 1]))
    if len(known) < NEAR or not (known < at).any() or not (known >= at).any():
        return False
    off = np.abs(np.diff(np.log(close_T[known])) + log_ratio)
    own = known[1:][known[1:] >= at]
    here = off[
        np.flatnonzero(known[1:] == own[0])[0]
    ]  # the step to the first close on or after the recorded date
    if here <= CLOSE * abs(log_ratio):
        return 0
    best = int(off.argmin())
    return int(known[1:][best] - at) if off[best] <= CLOSE * abs(log_ratio) else None
