"""Labels, recomputed from the raw prices, and the gaps between the labels of a fold's segments.

Nothing here uses the arithmetic that it checks: neither the labels of the pipeline nor `backtest.splits`.

Shape suffixes: T sessions, N firms.
"""

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Finding, Result, answer, conclude
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.delistings import DelistingRule
from features.panel.holding import tradable
from features.panel.panel import Panel, to_panel
from pipelines.audit.subject import Subject
from pipelines.train.task import collect_arrays

FIRMS: Final = 40
LONGEST_HALT: Final = 15  # sessions without a price up to which a firm is certain to be held
GONE: Final = 25  # sessions without a price after which it is certain to be delisted, with a known label
TOLERANCE: Final = 1e-9
_SHIFTS: Final = (-1, 1, -2, 2, -3, 3)
_MATCH: Final = 0.9
_BACKWARD: Final = {("valid", "train"), ("test", "train"), ("test", "valid")}


@dataclass(frozen=True, slots=True, eq=False)
class HolderValues:
    """Value of one share of the first day, with its dividends, for some firms."""

    columns_N: IntArray  # columns of the firms in the panel
    value_TN: FloatArray  # at the close; NaN on sessions without a price
    paid_TN: FloatArray  # in cash, from the session on which a recorded delisting pays; NaN elsewhere
    last_TN: IntArray  # last session up to t with a price; -1 before the first


def holder_values(
    tables: Mapping[str, pl.DataFrame], panel: Panel, columns_N: IntArray, rule: DelistingRule
) -> HolderValues:
    """Follow one share of some firms: a dividend, per share after its day's split, buys at the next close.

    A recorded delisting pays the last price and its return, on its first session without a price.
    """
    prices = tables["prices"]
    session = {day: t for t, day in enumerate(panel.dates_T.tolist())}
    place = {panel.tickers_N[n]: k for k, n in enumerate(columns_N)}
    value_TN = np.full((panel.n_sessions, len(columns_N)), np.nan)
    rows = prices.filter(pl.col("ticker").is_in(list(place))).sort("ticker", "date")
    held, shares, waiting = "", 1.0, 0.0
    owed: dict[str, float] = {}
    columns = ("ticker", "date", "close", "split_ratio", "dividend")
    for ticker, day, close, split, dividend in rows.select(columns).iter_rows():
        if ticker != held:
            held, shares, waiting = ticker, 1.0, 0.0
        ratio = split or 1.0
        shares, waiting = shares * ratio, waiting / ratio + (dividend or 0.0)
        if close is not None and math.isfinite(close) and close > 0:
            shares *= 1.0 + waiting / close
            waiting = 0.0
            value_TN[session[day], place[ticker]] = shares * close
        owed[ticker] = waiting
    at_TN = np.where(np.isfinite(value_TN), np.arange(len(value_TN))[:, None], -1)
    last_TN, paid_TN = np.maximum.accumulate(at_TN, axis=0), np.full(value_TN.shape, np.nan)
    for ticker, day, paid in _recorded_payouts(tables, list(place), rule):
        k, last = place[ticker], int(last_TN[-1, place[ticker]])
        pays = max(int(np.searchsorted(panel.dates_T, np.datetime64(day, "D"))), last + 1)
        clear = last >= 0 and panel.dates_T[last] <= np.datetime64(day, "D") and not owed[ticker]
        if clear and pays - last <= LONGEST_HALT:
            paid_TN[pays:, k] = value_TN[last, k] * (1.0 + paid)
    return HolderValues(columns_N, value_TN, paid_TN, last_TN)


def _recorded_payouts(
    tables: Mapping[str, pl.DataFrame], tickers: list[str], rule: DelistingRule
) -> Iterator[tuple[str, dt.date, float]]:
    """Ticker, day and return of delistings: the recorded one, else what is assumed for its reason."""
    if "securities" not in tables:
        return
    securities = tables["securities"].filter(pl.col("ticker").is_in(tickers))
    for (ticker,), rows in securities.sort("valid_from").group_by("ticker", maintain_order=True):
        known = rows.filter(pl.col("delisted_on").is_not_null())
        if known["delisted_on"].n_unique() != 1:
            continue  # a firm that came back is left out
        day = known["delisted_on"][0]
        paid, reason = (known[name].drop_nulls() for name in ("delisting_return", "delisting_reason"))
        exchanges = rows.filter(pl.col("valid_from") <= day)["exchange"].drop_nulls()
        nasdaq = len(exchanges) > 0 and "nasdaq" in exchanges[-1].lower()
        failed = rule.nasdaq_performance_return if nasdaq else rule.performance_return
        assumed = {"merger": 0.0, "performance": failed}
        usual = assumed.get(reason[-1] if len(reason) else "", rule.unknown_return)
        yield str(ticker), day, float(paid[-1]) if len(paid) else usual


@dataclass(frozen=True, slots=True)
class _Label:
    """A label array, and the sessions that it must span."""

    delay: int
    horizon: int
    value_TN: FloatArray

    @property
    def name(self) -> str:
        return f"the label of horizon {self.horizon} at delay {self.delay}"


def labels(subject: Subject) -> Result:
    """Recompute the labels of all delays and horizons from closes, splits and dividends of sampled firms.

    They are 0 where a firm could not be bought, and its payout where it was delisted. Tasks must learn from
    these labels within the universe, in the order of the firms, and stored labels must be these.
    """
    data, label = subject.dataset, subject.config.label
    rule = DelistingRule(unknown_return=label.unknown_delisting_return)
    holder = holder_values(subject.tables, data.panel, _sample_firms(subject, FIRMS), rule)
    arrays = [_Label(delay, label.horizon, label_TN) for delay, label_TN in data.labels.items()]
    arrays += [_Label(label.delay, horizon, label_TN) for horizon, label_TN in data.shorter_labels.items()]
    findings = [_compared(subject, one, holder) for one in arrays]
    findings += [*_handed_to_tasks(subject), *_stored(subject)]
    spans = ", ".join(one.name.removeprefix("the label ") for one in arrays)
    return conclude(
        findings,
        f"Labels {spans} are the returns of their spans, recomputed from the prices of "
        f"{len(holder.columns_N)} firms, and tasks learn from them.",
    )


def _sample_firms(subject: Subject, count: int) -> IntArray:
    """Columns of firms that are in the universe, a third of them firms that stop trading."""
    data = subject.dataset
    rng = np.random.default_rng((subject.seed, 11))
    inside = np.flatnonzero(data.universe_TN.any(axis=0))
    ends = inside[~data.panel.traded_TN[-1, inside]]
    leavers = rng.permutation(ends)[: count // 3]
    others = rng.permutation(np.setdiff1d(inside, leavers))[: count - len(leavers)]
    return np.sort(np.concatenate([leavers, others])).astype(np.int64)


def _compared(subject: Subject, label: _Label, holder: HolderValues) -> Finding:
    found_TN = label.value_TN[:, holder.columns_N]
    expected_TN, known_TN, gone_TN, paid_TN = _expected(holder, label.delay, label.horizon)
    # cells whose price is no holder's: known gaps, prices without volume, and rows that earn nothing
    panel = subject.dataset.panel
    odd_TN = panel.gap_TN | (panel.traded_TN & ~tradable(panel))
    odd_TN[panel.wrong.session_K, panel.wrong.firm_K] = True
    for k in range(label.delay, label.delay + label.horizon + 1):
        known_TN[: max(len(odd_TN) - k, 0)] &= ~odd_TN[k:, holder.columns_N]
    off_TN = known_TN & ~_equal(found_TN, expected_TN)
    missing_TN = gone_TN & np.isnan(found_TN)
    if missing_TN.any():
        t, n = np.argwhere(missing_TN)[0]
        sentence = (
            f"Labels of firms that stopped trading are missing: {label.name} is unknown for "
            f"{panel.tickers_N[holder.columns_N[n]]} on {subject.day(int(t))}, although it "
            "was traded and then delisted. A firm must not be dropped because its later return is missing."
        )
        return Finding("label", "fail", sentence, float(missing_TN.sum()), subject=label.name)
    if not off_TN.any():
        if known_TN.any():
            return Finding("label", "pass", subject=label.name)
        few = "the prices of the sampled firms tell none of its values"
        return Finding("label", "skipped", few, subject=label.name)
    t, n = np.argwhere(off_TN)[0]
    if paid_TN[off_TN].all():
        firms = np.flatnonzero(off_TN.any(axis=0))
        sentence = (
            f"{label.name[0].upper()}{label.name[1:]} does not pay what the securities table records for "
            f"delistings of {len(firms)} firm(s): on {subject.day(int(t))} it is {found_TN[t, n]:+.5f} for "
            f"{panel.tickers_N[holder.columns_N[n]]}, and the last price with the delisting return gives "
            f"{expected_TN[t, n]:+.5f}. Losses of firms that fail are left out."
        )
        return Finding("payout", "fail", sentence, float(off_TN.sum()), subject=label.name)
    first, last = label.delay, label.delay + label.horizon
    sentence = (
        f"{label.name[0].upper()}{label.name[1:]} is not the return from the close of t+{first} to that of "
        f"t+{last}: on {subject.day(int(t))} it is {found_TN[t, n]:+.5f} for "
        f"{panel.tickers_N[holder.columns_N[n]]}, and the prices give "
        f"{expected_TN[t, n]:+.5f} ({off_TN.sum():,} of {known_TN.sum():,} labels differ)."
        f"{_likely(found_TN, off_TN, holder, label)}"
    )
    return Finding("label", "fail", sentence, float(off_TN.sum()), subject=label.name)


def _expected(
    holder: HolderValues, delay: int, horizon: int
) -> tuple[FloatArray, BoolArray, BoolArray, BoolArray]:
    """Returns of a span, where they are certain, where a firm is certain to be delisted, where it pays."""
    T, N = holder.value_TN.shape
    expected_TN = np.full((T, N), np.nan)
    known_TN, gone_TN, paid_TN = np.zeros((3, T, N), np.bool_)
    rows = np.arange(max(-delay, 0), T - max(delay, 0) - horizon)
    if not len(rows):
        return expected_TN, known_TN, gone_TN, paid_TN
    start, end = rows + delay, rows + delay + horizon
    start_TN, end_TN, last_TN = holder.value_TN[start], holder.value_TN[end], holder.last_TN
    bought_TN = np.isfinite(start_TN)
    halted_TN = ~bought_TN & (last_TN[start] >= 0) & (start[:, None] - last_TN[start] <= LONGEST_HALT)
    # the longest stretch without a price that ends within the span
    silent_TN = np.where(np.isfinite(holder.paid_TN), 0, np.arange(T)[:, None] - last_TN)
    longest_TN = np.max([silent_TN[start + k] for k in range(1, horizon + 1)], axis=0)
    held_TN = bought_TN & np.isfinite(end_TN) & (longest_TN <= LONGEST_HALT)
    paid_TN[rows] = bought_TN & np.isfinite(holder.paid_TN[end]) & (longest_TN <= LONGEST_HALT)
    end_TN, held_TN = np.where(paid_TN[rows], holder.paid_TN[end], end_TN), held_TN | paid_TN[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected_TN[rows] = np.where(held_TN, end_TN / start_TN - 1.0, 0.0)
    known_TN[rows] = held_TN | halted_TN
    gone_TN[rows] = bought_TN & (end[:, None] - last_TN[end] >= GONE)
    return expected_TN, known_TN, gone_TN, paid_TN


def _equal(found_TN: FloatArray, expected_TN: FloatArray) -> BoolArray:
    return np.asarray(np.abs(found_TN - expected_TN) <= TOLERANCE * (1.0 + np.abs(expected_TN)))


def _likely(found_TN: FloatArray, off_TN: BoolArray, holder: HolderValues, label: _Label) -> str:
    """The shift of the sessions that explains the wrong labels, in words; empty if there is none."""
    for shift in _SHIFTS:
        expected_TN, known_TN, *_ = _expected(holder, label.delay + shift, label.horizon)
        both_TN = off_TN & known_TN
        if both_TN.any() and _equal(found_TN, expected_TN)[both_TN].mean() >= _MATCH:
            when = "early" if shift < 0 else "late"
            count = f"{abs(shift)} session{'s' if abs(shift) > 1 else ''}"
            return f" They are the returns of a span that begins {count} too {when}."
    return ""


def _handed_to_tasks(subject: Subject) -> Iterator[Finding]:
    """Compare what tasks learn from and are scored on with the labels of the dataset."""
    data, config = subject.dataset, subject.config
    arrays = collect_arrays(data, config.features.window)
    own_TN = np.where(data.universe_TN, data.labels[config.label.delay], np.nan)
    if not np.array_equal(arrays.label_TN, own_TN, equal_nan=True):
        sentence = "Tasks are scored on other labels than those of the config's first delay in the universe."
        yield Finding("label", "fail", sentence, subject="the label of tasks")
    if config.label.residualise_factors:
        return  # residuals have another order than the labels
    targets = [("the target", own_TN, arrays.target_TN)]
    for k, (horizon, label_TN) in enumerate(data.shorter_labels.items()):
        if arrays.path_TNK is not None:
            within_TN = np.where(data.universe_TN, label_TN, np.nan)
            targets.append((f"the target of horizon {horizon}", within_TN, arrays.path_TNK[:, :, k]))
    for name, label_TN, target_TN in targets:
        wrong_T = [t for t in subject.decisions if not _same_order(label_TN[t], target_TN[t])]
        if wrong_T:
            sentence = (
                f"{name[0].upper()}{name[1:]} does not rank the firms as their labels do, first on "
                f"{subject.day(int(wrong_T[0]))}: models learn from something else than the label."
            )
            yield Finding("label", "fail", sentence, float(len(wrong_T)), subject=name)


def _same_order(label_N: FloatArray, target_N: FloatArray) -> bool:
    known_N = np.isfinite(label_N)
    if (np.isfinite(target_N) != known_N).any():
        return False
    order = np.argsort(label_N[known_N], kind="stable")
    rises = np.diff(target_N[known_N][order].astype(np.float64))
    return bool((rises >= -1e-6 * max(float(np.abs(target_N[known_N]).max(initial=0.0)), 1e-12)).all())


def _stored(subject: Subject) -> Iterator[Finding]:
    """Compare the labels that are stored with a run's forecasts with those of the dataset."""
    if subject.forecasts is None or subject.forecasts.is_empty():
        return
    data, label = subject.dataset, subject.config.label
    labels = {**data.shorter_labels, label.horizon: data.labels[label.delay]}
    keys = ["horizon", "model", "fold", "seed"]
    for (horizon, model, fold, seed), part in subject.forecasts.group_by(keys, maintain_order=True):
        stored_TN = to_panel(part.drop_nulls("label"), "label", data.panel)
        known_TN = np.isfinite(stored_TN)
        if not _equal(labels[int(str(horizon))][known_TN], stored_TN[known_TN]).all():
            sentence = (
                f"The stored labels of {model}, fold {fold}, seed {seed}, horizon {horizon} are not those of "
                "the data."
            )
            yield Finding("label", "fail", sentence, float(known_TN.sum()), subject="stored labels")


def label_spans(subject: Subject) -> Result:
    """Measure, for each fold, the gap between the last label of a segment and the segment that follows.

    ``t + delay + horizon + embargo`` must be before the next session of another segment, with the longest
    delay in use. In combinatorial folds every segment can follow every other one.
    """
    label, embargo = subject.config.label, subject.config.folds.embargo
    span = label.max_delay + label.horizon
    forward = subject.config.folds.scheme != "combinatorial"
    rows: list[dict[str, object]] = []
    problems: list[str] = []
    least = subject.dataset.panel.n_sessions
    for fold in subject.folds:
        segments = {"train": fold.train, "valid": fold.valid, "test": fold.test}
        for name, following in permutations(segments, 2):
            nearest = _nearest(segments[name], segments[following])
            if nearest is None:
                continue
            if forward and (name, following) in _BACKWARD:
                problems.append(f"Fold {fold.index}: {following} sessions lie after {name} sessions.")
            if forward and (name, following) == ("train", "test"):
                continue  # validation lies between them
            last, start = nearest
            ends = last + span
            free = start - ends - 1
            least = min(least, free)
            label_ends = subject.day(min(ends, subject.dataset.panel.n_sessions - 1))
            own = {"segment": name, "last_decision": subject.day(last), "label_ends": label_ends}
            after = {"next_segment": following, "next_starts": subject.day(start)}
            gap = {"sessions_between": free, "embargo": embargo}
            rows.append({"fold": fold.index, **own, **after, **gap})
            if free < 0:
                problems.append(
                    f"Fold {fold.index}: the last {name} label ends on session {ends}, but {following} "
                    f"starts on session {start}: they overlap by {-free} session(s)."
                )
            elif free < embargo:
                problems.append(
                    f"Fold {fold.index}: there are {free} session(s) between the last {name} label and "
                    f"{following}, but the embargo is {embargo}."
                )
    problems += _overlaps(subject)
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        return answer("fail", f"{problems[0]}{more}", rows)
    sentence = (
        f"{len(subject.folds)} fold(s): every label of delay up to {label.max_delay} and horizon "
        f"{label.horizon} ends before the next segment, with at least {least} session(s) in between; the "
        f"embargo is {embargo}."
    )
    return answer("pass", sentence, rows)


def _nearest(segment: IntArray, other: IntArray) -> tuple[int, int] | None:
    """Find the closest pair of a session and a later one of another segment; None if nothing is later."""
    at = np.searchsorted(other, segment, side="right")
    followed = at < len(other)
    if not followed.any():
        return None
    sessions, later = segment[followed], other[at[followed]]
    closest = int((later - sessions).argmin())
    return int(sessions[closest]), int(later[closest])


def _overlaps(subject: Subject) -> list[str]:
    """Segments of a fold that share sessions; test sessions that folds share, or share unevenly."""
    if subject.config.folds.scheme == "combinatorial":
        times = np.unique(np.concatenate([fold.test for fold in subject.folds]), return_counts=True)[1]
        uneven = len(np.unique(times)) > 1
        return ["Some sessions are tested more often than others."] if uneven else []
    problems = []
    tested: set[int] = set()
    for fold in subject.folds:
        for left, right in combinations(("train", "valid", "test"), 2):
            if np.intersect1d(getattr(fold, left), getattr(fold, right)).size:
                problems.append(f"Fold {fold.index}: {left} and {right} share sessions.")
        again = tested & set(fold.test.tolist())
        if again:
            problems.append(f"Fold {fold.index} shares {len(again)} test session(s) with an earlier fold.")
        tested |= set(fold.test.tolist())
    return problems
