"""Recorded splits and dividends: prices, volumes and inputs that step on another session, or were adjusted.

Shape suffixes: T sessions, N firms.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.look_ahead import news
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict, conclude, judged_by, skipped
from features.arithmetic.rolling import carry
from features.arrays import FloatArray, IntArray
from features.panel.panel import Panel

NEAR: Final = 10
"""Sessions before and after the recorded date in which the price is searched for the split's step."""
CLEAR: Final = 0.35
"""Minimum absolute log ratio: a 3-for-2 split has 0.41, more than almost all daily returns."""
CLOSE: Final = 0.5
"""A price step matches the split if it differs from the log ratio by at most this fraction of it."""
VOLUME_SPLITS: Final = 4  # fewest splits with volumes on both sides
VOLUME_SLOPE, VOLUME_DEVIATIONS, VOLUME_NOISE = 0.4, 4.0, 0.35
"""Step of log volume over the log ratio up to which volumes were adjusted, its distance from 1 in errors, and
the least deviation of a step. Honest markets with four splits or more have slopes from 0.8 on."""
FOLLOWS: Final = (
    0.1  # distance from a return, or from a log ratio, relative to its size, that counts as equal
)
PRICE: Final = 0.3
"""Deviation over firms of the mean log of an input over the quoted price, below which it is a price."""
REPORTED: Final = 260  # sessions in which a report shows a split
_SPLIT_KINDS: Final = {
    "Split applied before its ex-date: the price steps {after} session(s) after the recorded split": 1,
    "Split recorded after its ex-date: the price steps {after} session(s) before the recorded split": -1,
    "Split applied to adjusted prices: the price does not step at the recorded split": None,
}
"""What is wrong -> on which side of the record the price steps; None: nowhere."""
SPLITS, SPLIT_SHARE = 2, 0.2
"""Minimum number and share of misdated splits for a failure. A single one is a vendor's error and only a
warning."""
_FEWEST_MOVES: Final = 500
FALL: Final = 0.5
"""Least share of dividends, or of small splits, weighted by their squares, by which prices fall on the
recorded session. Honest markets have 0.51 to 1.44, and at most 0.65 on any other session."""
FALL_DEVIATIONS: Final = 5.0
"""Least distance of that share from 1, in errors; honest markets reach 3.6. Or from 0 on another session, as
evidence that prices fall there."""
_FEWEST_PAID: Final = 10
_BESIDE: Final = 5  # sessions before and after the recorded one on which prices may fall instead


def check(data: Delivery, *, prices: bool = True) -> Result:
    """Check that prices, volumes and inputs step at splits as they were recorded, and on that session.

    Without ``prices``, inputs alone are looked at.
    """
    rows = _recorded(data) if prices else []
    dated = [*_misdated(rows), *(_paid(data) if prices else ())]
    found = [*dated, *_adjusted_volume(rows)]
    for name in data.inputs:
        found += _of_input(f"input {name}", data.input(name), data.panel)
    if not found:
        return skipped(f"No split of 3 for 2 or more and fewer than {_FEWEST_PAID} dividends are recorded.")
    passed = " ".join(one.sentence for one in dated)
    passed = f"{passed} No input jumps at splits as only later adjustments do.".lstrip()
    rows.sort(key=lambda row: row["steps_after"] == 0)  # the wrong ones first
    return conclude(found, passed, pl.DataFrame(rows, infer_schema_length=None) if rows else None)


def _recorded(data: Delivery) -> list[dict[str, Any]]:
    """Recorded splits with known prices: sessions to the price's step, and the log step of the volume."""
    panel = data.panel
    recorded = data.tables["prices"].filter(pl.col("split_ratio").log().abs() >= CLEAR).sort("date", "ticker")
    rows: list[dict[str, Any]] = []
    for date, ticker, ratio in recorded.select("date", "ticker", "split_ratio").iter_rows():
        at, n = int(np.searchsorted(panel.dates_T, np.datetime64(date))), data.place[ticker]
        known, after = _step(panel.raw_close_TN[:, n], at, float(np.log(ratio)))
        if known:
            step = None if panel.volume_TN is None else _volume_step(panel.volume_TN[:, n], at)
            split = {"ticker": ticker, "recorded": date, "ratio": ratio}
            rows.append({**split, "steps_after": after, "volume_step": step})
    return rows


def _misdated(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    sides = [None if row["steps_after"] is None else np.sign(row["steps_after"]) for row in rows]
    for what, wrong in _SPLIT_KINDS.items():
        cases = [row for row, side in zip(rows, sides, strict=True) if side == wrong]
        if cases:
            failed = len(cases) >= SPLITS and len(cases) >= SPLIT_SHARE * len(rows)
            sentence = (
                f"{what.format(after=abs(cases[0]['steps_after'] or 0))} for {len(cases)} of {len(rows)} "
                f"splits, such as {cases[0]['ticker']} on {cases[0]['recorded']}."
            )
            yield Finding("dates of splits", "fail" if failed else "warn", sentence)
            return
    if rows:
        sentence = f"The price steps on the recorded date of each of {len(rows)} splits."
        yield Finding("dates of splits", "pass", sentence)


def _volume_step(volume_T: FloatArray, at: int) -> float | None:
    """Median log volume of the 20 sessions from a split on, less that of those before it; None if unknown."""
    traded_T = volume_T > 0
    before, after = (
        np.log(volume_T[span][traded_T[span]]) for span in (slice(max(at - 20, 0), at), slice(at, at + 20))
    )
    if min(len(before), len(after)) < NEAR:
        return None
    return float(np.median(after) - np.median(before))


def _adjusted_volume(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Compare the steps of volume with the splits: as many times more shares are traded after a split."""
    known = [row for row in rows if row["volume_step"] is not None]
    if len(known) < VOLUME_SPLITS:
        return
    x = np.log([row["ratio"] for row in known])
    y = np.array([row["volume_step"] for row in known])
    slope = float(x @ y / (x @ x))
    error = max(float(np.sqrt(((y - slope * x) ** 2).mean())), VOLUME_NOISE) / math.sqrt(float(x @ x))
    sentence = (
        f"Volumes were adjusted for later splits: after {len(known)} recorded splits, such as "
        f"{known[0]['ticker']} on {known[0]['recorded']}, volume steps by {slope:+.2f} (error {error:.2f}) "
        "of the log ratio, and shares as traded step by 1. Dollar volumes and turnover know later splits: "
        "deliver volumes as traded."
    )
    bad = slope <= VOLUME_SLOPE and (1.0 - slope) >= VOLUME_DEVIATIONS * error
    yield judged_by("step of volume at splits", bad, sentence, slope, VOLUME_SLOPE)


def _paid(data: Delivery) -> Iterator[Finding]:
    """Compare prices with dividends, and with small splits, all together: they fall on the recorded session.

    The share of the distributions ``y`` by which prices fall k sessions after the record is
    ``-sum(y r[t+k]) / sum(y^2)``, where ``r`` is the price's return less the other firms' total return.
    """
    log_split, paid = pl.col("split_ratio").log(), pl.col("dividend") > 0.0
    small = pl.when(log_split.abs() < CLEAR).then(log_split).otherwise(0.0)
    rows = (
        data.rows("prices")
        .filter((pl.col("split_ratio") != 1.0) | paid)
        .select("date", "ticker", paid=paid, size=small + (pl.col("dividend") / pl.col("close")).log1p())
        .filter((pl.col("size") > 0.0) & (pl.col("size") < CLEAR))
    )
    t_M = np.searchsorted(data.panel.dates_T, rows["date"].to_numpy())
    n_M = np.array([data.place[ticker] for ticker in rows["ticker"]], dtype=np.int64)
    size_M, paid_M = np.expm1(rows["size"].to_numpy()), rows["paid"].to_numpy()
    known_M = (t_M >= _BESIDE) & (t_M < data.panel.n_sessions - _BESIDE)
    known_M &= np.isfinite(data.residual_TN[t_M, n_M])
    for what, own_M in (("dividends", known_M & paid_M), ("small splits", known_M & ~paid_M)):
        if own_M.sum() >= _FEWEST_PAID:
            yield _fallen(what, data.residual_TN, t_M[own_M], n_M[own_M], size_M[own_M])


def _fallen(what: str, total_TN: FloatArray, t_M: IntArray, n_M: IntArray, size_M: FloatArray) -> Finding:
    name = f"dates of {what}"
    share, error = _fall(total_TN[t_M, n_M] - size_M, size_M)  # a total return holds the distribution
    words = f"rices fall by {share:.0%} of {len(t_M):,} {what} on the recorded session"
    if share >= FALL or 1.0 - share < FALL_DEVIATIONS * error:
        return Finding(name, "pass", f"P{words}.", share, FALL)
    others = {k: _fall(total_TN[t_M + k, n_M], size_M) for k in range(-_BESIDE, _BESIDE + 1) if k}
    k, (then, error) = max(others.items(), key=lambda one: one[1][0] / one[1][1])
    verdict: Verdict = "fail" if then >= FALL and then >= FALL_DEVIATIONS * error else "warn"
    side, when = ("before", "after") if k > 0 else ("after", "before")
    wrong = f"{what[0].upper()}{what[1:]}"
    sentence = {
        "fail": f"{wrong} are recorded {side} their ex-dates: p{words}, and by {then:.0%} of them {abs(k)} "
        f"session(s) {when} it. Compare a few dates with the exchange's.",
        "warn": f"{wrong} may be counted twice: p{words}, and by at most {then:.0%} of them on one of the "
        f"{_BESIDE} sessions before and after it. Prices were probably adjusted for them already: deliver "
        f"prices as quoted, or leave the {what} out.",
    }[verdict]
    return Finding(name, verdict, sentence, share, FALL)


def _fall(price_M: FloatArray, size_M: FloatArray) -> tuple[float, float]:
    """Slope of falls on sizes, and its error, which allows for errors of any size."""
    known_M = np.isfinite(price_M)
    price_M, size_M = price_M[known_M], size_M[known_M]
    square = max(float(size_M @ size_M), 1e-12)
    slope = -float(price_M @ size_M) / square
    return slope, max(float(np.linalg.norm(size_M * (price_M + slope * size_M))) / square, 1e-9)


def _of_input(name: str, x_TN: FloatArray, panel: Panel) -> Iterator[Finding]:
    """Find capitalisations and share counts that know later splits; nothing with too few splits.

    A capitalisation of adjusted prices and shares of t jumps by the ratio, and nothing that a holder owns
    does. One of quoted prices and adjusted shares falls with the price: over the quoted price, it has no step
    where shares were split, nor where the next report could have shown them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_TN = np.diff(np.log(panel.close_TN / panel.raw_close_TN), axis=0)
        split_TN = np.abs(ratio_TN) >= CLEAR
        if split_TN.sum() < SPLITS:
            return
        return_TN = np.diff(np.log(panel.close_TN), axis=0)
        log_TN = np.log(np.where(x_TN > 0, x_TN, np.nan))
        count_TN = log_TN - np.log(panel.raw_close_TN)
    beyond_TN = np.diff(log_TN, axis=0) - return_TN
    known_TN = np.isfinite(beyond_TN)
    usual_TN = known_TN & (ratio_TN == 0)
    follows = usual_TN.sum() >= _FEWEST_MOVES and bool(
        np.median(np.abs(beyond_TN[usual_TN])) <= FOLLOWS * np.median(np.abs(return_TN[usual_TN]))
    )
    if follows and (split_TN & known_TN).sum() >= SPLITS:
        jumps_TN = split_TN & known_TN & (np.abs(beyond_TN - ratio_TN) <= FOLLOWS * np.abs(ratio_TN))
        jumps, splits = int(jumps_TN.sum()), int((split_TN & known_TN).sum())
        sentence = (
            f"{name[0].upper()}{name[1:]} jumps by the ratio at {jumps} of {splits} splits, though it moves "
            "with the price on other sessions: it multiplies shares of t by prices that were adjusted for "
            "later splits, so its level knows them. Multiply prices as quoted."
        )
        bad = jumps >= SPLITS and jumps >= 0.5 * splits
        yield replace(judged_by("jumps at splits", bad, sentence, jumps / splits, 0.5), subject=name)
        if bad or np.nanstd(news.mean_of_firms(count_TN.T)) < PRICE:
            return
    elif "shares" in name.lower():
        count_TN = carry(log_TN)
    else:
        yield Finding("jumps at splits", "pass", subject=name)
        return
    yield from _unsplit(name, count_TN, [*zip(*np.nonzero(split_TN), ratio_TN[split_TN], strict=True)])


def _unsplit(name: str, count_TN: FloatArray, splits: list[tuple[int, int, float]]) -> Iterator[Finding]:
    """Look for the steps of log counts of shares after splits: session before, firm, log ratio."""
    told, missing = 0, 0
    for t, n, ratio in splits:
        after_T = count_TN[t : t + REPORTED, n]
        after_T = after_T[np.isfinite(after_T)]
        if len(after_T) < REPORTED // 2:
            continue
        told += 1
        missing += not (np.abs(np.diff(after_T) - ratio) <= CLOSE * abs(ratio)).any()
    if told < SPLITS:
        return
    sentence = (
        f"{name[0].upper()}{name[1:]} holds shares that were adjusted for later splits: the number of shares "
        f"has no step at {missing} of {told} splits, nor up to {REPORTED} sessions after them. Deliver "
        "shares, or their value, as of each date."
    )
    bad = missing >= SPLITS and missing >= 0.5 * told
    yield replace(judged_by("shares at splits", bad, sentence, missing / told, 0.5, "warn"), subject=name)


def _step(close_T: FloatArray, at: int, log_ratio: float) -> tuple[bool, int | None]:
    """Whether prices around a split are known, and sessions from the record to its step; None without one."""
    first = max(at - NEAR, 0)
    known = first + np.flatnonzero(np.isfinite(close_T[first : at + NEAR + 1]))
    if len(known) < NEAR or not (known < at).any() or not (known >= at).any():
        return False, None
    move = np.diff(np.log(close_T[known]))
    off, here = np.abs(move + log_ratio), int(np.argmax(known[1:] >= at))  # first close from the record on
    if off[here] <= CLOSE * abs(log_ratio):
        return True, 0
    best = int(off.argmin())
    if off[best] <= CLOSE * abs(log_ratio):
        return True, int(known[1:][best] - at)
    # a price that moved for another reason, such as a new listing after years, does not tell
    return bool(abs(move[here]) <= CLOSE * abs(log_ratio)), None
