"""Which rows there are, and how gaps are filled: both can need what comes after them.

Shape suffixes: T sessions, N firms, D dates of the signal, M chosen cells, R cells of reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product, starmap
from statistics import NormalDist
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import VERDICTS, Finding, Result, Verdict, conclude, judged_by
from backtest.look_ahead.returns import CEILING, REMARKABLE, Standardised, ceiling, cumulated, standardise
from features.arithmetic.rolling import rolling_mean
from features.arrays import BoolArray, FloatArray, IntArray

_BEFORE: Final = 5  # sessions before a firm's last price at which its coverage is compared
_MIN_ENDINGS: Final = 10
_GAP_SHARE: Final = 0.25  # of the firms without a price: a gap in the data, not endings of firms
_ERRORS: Final = 4.0
_SILENT: Final = 60  # sessions without a price until the end, from which a firm counts as gone
_FEWEST: Final = 10  # chosen rows that are judged
_FEWEST_DATES: Final = 5
"""Dates, or months of beginnings, that rows are judged on: on one of them a sector that is missing moves as
one, which no number of its firms makes certain."""
_SPANS: Final = (1, 2, 5, 10, 21)  # sessions of a later return
_STARTS: Final = (0, 1)  # sessions from a row to its start: a label starts after its delay
_UNUSUAL: Final = 4.0  # mean absolute deviations: a filter of wrong prices leaves out moves of that size
_FAR: Final = 21  # sessions after the span with which its sizes are compared
_SHARP: Final = 0.9
"""Chance that a chosen row has a larger later move than another row (the area under the ROC curve), above
which the size of the move decided the choice; 0.85 is suspect."""
_SUSPECT: Final = 0.85
_ANNOUNCED: Final = 0.8
"""The same of rows before announcements, whose dates are known. The chance must be above it for certain."""
_LASTING: Final = 0.2  # by how much that chance must differ from the one of later sessions
_MANY, _FIRMS = 20_000, 300  # chosen rows from which so many firms are enough
_LONGEST, _MOST_GAPS = 21, 3000  # sessions of a gap in prices, and gaps that are looked at
_ONE_SIDED, _EXTREME, _MIN_PROOF = 0.35, 0.95, 30
"""Mean place of the move across a gap among the other firms' moves, from 1/2, and of its size, that no honest
gaps have if there are so many. A halt ends with news of either sign, which is often large. Of fewer halts all
can end badly."""
_REFERENCE: Final = 200_000  # cells that sizes are ranked among
_YEAR: Final = 252
_USUAL, _FEWEST_USUAL = 60, 20  # sessions of a firm's usual move

_SUCCESS: Final = (63, 126, 252)  # sessions after a beginning
_SUCCESS_SUSPECT, _SUCCESS_CERTAIN = 3.0, 4.5
"""Least z for a warning, and for a failure. Firms that are chosen by size, industry, age or at random reach
2.6, new listings 2.0. Of choices by the return of the last year, 8% are warned about; they reach 3.7."""
_LATE: Final = 20  # sessions after the sample's beginning, or a firm's, from which coverage begins later
_UNSETTLED: Final = 5  # first sessions of a new listing, which are left out
_MONTH: Final = 21
_PRICES: Final = "the prices"

MIN_RUN: Final = 5
"""Minimum length of a run of one value at the start of a firm's series. It must exceed all later runs."""
FIRM_SHARE: Final = 0.25
"""Minimum share of firms whose input starts with such a run. In a causal input, the first run is the longest
only by chance: with k runs, in one of k firms."""
FEWEST_RUNS: Final = 8  # minimum number of runs of such a firm
FIRST_DAYS: Final = 10
"""Days after a firm's first price within which a run begins that was filled backwards. One that begins later
must be longer than the usual one by this factor."""
LONGER: Final = 1.2
CONSTANT_ROWS: Final = 20
"""Minimum length of such a run in prices: rows without volume before the first trade."""
CONSTANT_FIRMS: Final = 2
CONSTANT_SHARE: Final = 0.02
MIN_FILLED: Final = 5
"""Minimum number of prices, on sessions without volume, that equal the next traded price."""
FOUR_TIMES: Final = 4


def check(data: Delivery) -> Result:
    """Compare later returns of the rows that an input lacks, and moves across gaps in the prices."""
    panel, chosen = data.panel, data.columns
    index_TN, traded_TN = panel.total_return_index_TN[:, chosen], panel.traded_TN[:, chosen]
    findings = [replace(gaps_in_prices(index_TN, traded_TN, data.return_TN), subject=_PRICES)]
    first = {}
    for name in data.inputs:
        present_TN, what = np.isfinite(data.input(name)[:, chosen]), f"input {name}"
        chosen_rows = choice_of_rows(present_TN, traded_TN, data.return_TN, data.horizon, what)
        findings.append(replace(chosen_rows, subject=what))
        first[what] = _first(present_TN)
    findings += _beginnings(data, first)
    return conclude(findings, "Later returns do not say which rows are missing (examined: {names}).")


def needs_next_price(signal_TN: FloatArray, universe_TN: BoolArray, traded_TN: BoolArray) -> Finding:
    """Check that firms are covered on the last session before they stop trading, as they were before.

    A file from which rows without a next return were dropped lacks the firms that halt or are delisted
    tomorrow, and nobody knows these today. The same firms five sessions earlier are the comparison, so a firm
    that leaves the file in time, for example after a takeover was announced, is no evidence.
    """
    name = "needs tomorrow's price"
    present_TN = np.isfinite(signal_TN)
    dates_T = np.asarray(present_TN.any(axis=1))
    stops_TN = traded_TN[:-1] & ~traded_TN[1:]
    gap_T = stops_TN.sum(axis=1) > _GAP_SHARE * np.maximum(traded_TN[:-1].sum(axis=1), 1)
    stops_TN &= universe_TN[:-1] & (dates_T[:-1] & ~gap_T)[:, None]
    t, n = np.nonzero(stops_TN)
    t, n = t[t >= _BEFORE], n[t >= _BEFORE]
    compared = dates_T[t - _BEFORE] & universe_TN[t - _BEFORE, n]
    t, n = t[compared], n[compared]
    if len(t) < _MIN_ENDINGS:
        return Finding(name, "skipped", f"Only {len(t)} halts and endings of firms fall into the file.")
    last, before = float(present_TN[t, n].mean()), float(present_TN[t - _BEFORE, n].mean())
    words = (
        f"On the last session before a halt or ending, {last:.0%} of {len(t):,} firms have a signal, and "
        f"{before:.0%} five sessions earlier"
    )
    bad = before - last > _ERRORS * 0.5 / len(t) ** 0.5 and last < 0.5 * before
    why = ": rows were left out because there is no price tomorrow" if bad else ""
    return judged_by(name, bad, f"{words}{why}.", before - last)


def only_survivors(
    signal_TN: FloatArray, universe_TN: BoolArray, traded_TN: BoolArray, rows_D: IntArray
) -> Finding:
    """Check that the file covers firms that stopped trading before its end, as it covers the others."""
    name = "only survivors"
    first, last = int(rows_D[0]), int(rows_D[-1])
    listed_N = np.asarray(universe_TN[first : last + 1].any(axis=0))
    gone_N = listed_N & ~traded_TN[max(last - _SILENT, 0) : last + 1].any(axis=0)
    covered_N = np.asarray(np.isfinite(signal_TN).any(axis=0))
    stays_N = listed_N & ~gone_N
    count = int(gone_N.sum())
    if count < _MIN_ENDINGS or stays_N.sum() < _MIN_ENDINGS:
        return Finding(name, "skipped", f"Only {count} firms of the universe end within the file.")
    gone, stays = float(covered_N[gone_N].mean()), float(covered_N[stays_N].mean())
    words = f"{gone:.0%} of {count:,} firms that stopped trading have a signal, and {stays:.0%} of the others"
    bad = stays >= 0.5 and gone < 0.1 * stays
    why = ": the firms may have been chosen at the end" if bad else ""
    return judged_by(name, bad, f"{words}{why}.", stays - gone, worst="warn")


def gaps_in_prices(index_TN: FloatArray, traded_TN: BoolArray, return_TN: FloatArray) -> Finding:
    """Check that prices are not missing where the price falls, or where it moves most.

    The move across a gap, from the last price before it to the first one after it, has a place among the
    moves of the other firms between the same sessions, in units of each firm's usual move: 0 the lowest, 1
    the highest, 1/2 on average. Gaps of up to 21 sessions, on sessions that most firms have prices for.
    """
    name = "choice of price rows"
    usual_TN = rolling_mean(np.abs(return_TN), _USUAL, _FEWEST_USUAL)
    sparse_T = traded_TN.mean(axis=1) < 1.0 - _GAP_SHARE
    gaps = [
        (int(known[k]), int(known[k + 1]), n)
        for n, known in enumerate(map(np.flatnonzero, traded_TN.T))
        for k in np.flatnonzero((np.diff(known) > 1) & (np.diff(known) <= _LONGEST + 1))
    ]
    if len(gaps) > _MOST_GAPS:
        drawn = np.random.default_rng(0).choice(len(gaps), _MOST_GAPS, replace=False)
        gaps = [gaps[k] for k in np.sort(drawn)]
    found: list[tuple[int, float, float]] = []
    for first, last, n in gaps:
        with np.errstate(divide="ignore", invalid="ignore"):
            move_N = np.log(index_TN[last] / index_TN[first])
            move_N = (move_N - np.nanmedian(move_N)) / usual_TN[first]
        other_N = traded_TN[first] & traded_TN[last] & np.isfinite(move_N)
        if not other_N[n] or other_N.sum() < _FEWEST or sparse_T[first + 1 : last].any():
            continue
        places = [
            float(((x_N[other_N] < x_N[n]).sum() + 0.5 * (x_N[other_N] == x_N[n]).sum()) / other_N.sum())
            for x_N in (move_N, np.abs(move_N))
        ]
        found.append((first, places[0], places[1]))
    t_M, *places_M = (np.array([one[k] for one in found]) for k in range(3))
    if not _enough(t_M):
        return Finding(name, "skipped", f"Only {len(found)} gaps of single firms' prices can be judged.")
    (sign, error), (size, size_error) = (clustered(one_M, t_M, 1, 12.0**-0.5) for one_M in places_M)
    moved = f"across {len(found):,} gaps of single firms' prices"
    if abs(sign - 0.5) >= _ONE_SIDED and abs(sign - 0.5) > _ERRORS * error:
        proof = len(found) >= _MIN_PROOF
        may, alike = ("were", "") if proof else ("may have been", ", or a few halts ended alike")
        sentence = (
            f"Prices {'fell' if sign < 0.5 else 'rose'} {moved}, more than {max(sign, 1.0 - sign):.0%} of "
            f"the other firms' did between the same sessions: rows {may} left out for the returns after "
            f"them{alike}."
        )
        return Finding(name, "fail" if proof else "warn", sentence, sign)
    if size >= _EXTREME and len(found) >= _MIN_PROOF and size - _ERRORS * size_error > _SHARP - 0.1:
        sentence = (
            f"Prices moved more {moved} than {size:.0%} of the other firms' did between the same sessions: "
            "rows were left out for the size of the moves after them."
        )
        return Finding(name, "fail", sentence, size)
    return Finding(name, "pass", f"Moves {moved} are like those of the other firms.", sign)


def _beginnings(data: Delivery, first: dict[str, IntArray]) -> Iterator[Finding]:
    """Look at firms whose prices, statements, membership or inputs begin within the sample.

    ``first`` is the first row [N] of each input.
    """
    traded_TN = data.panel.traded_TN[:, data.columns]
    listed_N, sessions = _first(traded_TN), len(traded_TN)
    new_N = np.where(listed_N > _LATE, listed_N + _UNSETTLED, sessions)
    yield from _begins_with_success(data, new_N, _PRICES)
    if data.membership is not None:
        first = {**first, f"membership of {data.membership}": _first(data.member_TN[:, data.columns])}
    if "fundamentals" in data.tables:
        known = data.rows("fundamentals").group_by("ticker").agg(pl.col("known_at").min())
        day = dict(known.iter_rows())
        days_N = np.array([day.get(data.panel.tickers_N[n]) for n in data.columns], dtype="datetime64[D]")
        starts_N = np.searchsorted(data.panel.dates_T, days_N)  # without any statement, the last one
        first = {**first, "statements": starts_N}
    for what, first_N in first.items():
        start_N = np.where(first_N > listed_N + _LATE, first_N, sessions)
        yield from _begins_with_success(data, start_N, what)


def _first(present_TN: BoolArray) -> IntArray:
    """First row [N] of each firm, or the number of rows."""
    return np.where(present_TN.any(axis=0), present_TN.argmax(axis=0), len(present_TN))


def _begins_with_success(data: Delivery, start_N: IntArray, what: str) -> Iterator[Finding]:
    """Compare firms with the others after the session on which their coverage begins.

    A vendor who adds firms for what they earned delivers them from before that success on, and one who leaves
    out histories that began badly has new firms that begin well. The move of a firm over the 63, 126 or 252
    sessions from the beginning has a place among those of the other firms, in units of each firm's usual
    move: 1/2 on average, with a deviation of ``12 ** -0.5``. Nothing is yielded for fewer than 10 beginnings,
    or fewer than 5 months with one.
    """
    traded_TN = data.panel.traded_TN[:, data.columns]
    size_TN = np.abs(data.return_TN)
    usual_N = np.nansum(size_TN, axis=0) / np.maximum(np.isfinite(size_TN).sum(axis=0), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_TN = np.log(data.panel.total_return_index_TN[:, data.columns])
    last, found = len(log_TN) - 1, []
    # where many begin at once, the delivery begins, and not the coverage of firms
    at_once_N = (start_N[:, None] == start_N).mean(axis=1) > _GAP_SHARE
    start_N = np.where(at_once_N, last + 1, start_N)
    for sessions in _SUCCESS:
        places = []
        for n in np.flatnonzero(start_N <= last - sessions // 2):
            start = int(start_N[n])
            move_N = log_TN[min(start + sessions, last)] - log_TN[start]
            known_N = traded_TN[start] & np.isfinite(move_N) & (usual_N > 0)
            if known_N[n] and known_N.sum() > _FEWEST:
                move_N = (move_N - np.median(move_N[known_N])) / usual_N
                known_N[n] = False
                places.append((start // _MONTH, float((move_N[known_N] < move_N[n]).mean())))
        if len(places) >= _FEWEST and len({month for month, _ in places}) >= _FEWEST_DATES:
            month_M, place_M = (np.array(column) for column in zip(*places, strict=True))
            mean, error = clustered(place_M, month_M, 1, 12.0**-0.5)
            found.append(((mean - 0.5) / error, mean, len(places), sessions))
    if not found:
        return
    z, mean, firms, sessions = max(found)
    verdict: Verdict = "fail" if z >= _SUCCESS_CERTAIN else "warn" if z >= _SUCCESS_SUSPECT else "pass"
    begun = f"over {sessions} sessions, {firms} firms do better than {mean:.0%} of the others (z {z:.1f})"
    if what == _PRICES:
        sentence = (
            f"New firms begin with success: after their first week, {begun}. Histories that began badly were "
            "probably left out or cut: ask for all of them, from their first session on."
        )
    else:
        sentence = (
            f"Coverage of {what} begins with success: after the first row, {begun}. Firms were probably "
            "added later, for what they had earned: ask for the day on which each was first delivered, or "
            "compare with an earlier delivery (audit --vintage)."
        )
    yield Finding("begins with success", verdict, sentence, z, _SUCCESS_SUSPECT, f"beginnings of {what}")


@dataclass(frozen=True, slots=True)
class _Span:
    """Sessions of a later return: ``sessions`` of them, from the close of t + ``start``."""

    start: int
    sessions: int

    def __str__(self) -> str:
        count = "the next session" if self.sessions == 1 else f"the next {self.sessions} sessions"
        return f"{count} from the close of t+{self.start}" if self.start else count


def _ahead(x_TN: FloatArray, sessions: int) -> FloatArray:
    """Row t holds row t + ``sessions``; NaN beyond the end."""
    out_TN = np.full(x_TN.shape, np.nan)
    out_TN[: max(len(x_TN) - sessions, 0)] = x_TN[sessions:]
    return out_TN


def choice_of_rows(
    present_TN: BoolArray, inside_TN: BoolArray, return_TN: FloatArray, horizon: int, what: str = "signal"
) -> Finding:
    """Check that later returns do not say which rows there are, at any share of coverage.

    The rarer rows, those that are there or those that are missing, are compared with all rows of their dates:
    by the mean of their later returns, of either sign, and by the size of their later moves. An honest choice
    can be as good as an honest signal that chooses the same share of rows: if its IC is ``c``, the chosen
    share ``q`` of the rows has a mean return of ``c phi(z_q) / q`` deviations. The size of moves is more
    predictable, so that only a sharp choice is evidence, which is gone a month later. Rows with an unusual
    move on their own date are left out, because a filter of wrong prices is no look-ahead.

    The rows of a firm before its first one are left out if they are at most a year: a window fills up, and
    new listings move more. The dates of a file are judged in the same way, by the market's return after
    them. ``present_TN`` says where there is a row, and ``inside_TN`` where there could be one.
    """
    name = "choice of rows"
    dates_T = np.asarray((present_TN & inside_TN).any(axis=1))
    if not dates_T.any():
        return Finding(name, "skipped", "There is no row.")
    first_N, listed_N = (present_TN & inside_TN).argmax(axis=0), inside_TN.argmax(axis=0)
    short_N = (present_TN & inside_TN).any(axis=0) & (first_N - listed_N <= _YEAR)
    inside_TN = inside_TN & ~((np.arange(len(present_TN))[:, None] < first_N) & short_N)
    first, last = np.flatnonzero(dates_T)[[0, -1]]
    between_T = np.asarray(inside_TN.any(axis=1))
    between_T[:first], between_T[last + 1 :] = False, False
    with np.errstate(invalid="ignore"):
        known_TN = np.isfinite(return_TN) & inside_TN
        market_T1 = np.where(known_TN, np.clip(return_TN, -1.0, 1.0), 0.0).sum(axis=1, keepdims=True)
        market_T1 /= np.maximum(known_TN.sum(axis=1, keepdims=True), 1)
    inside_TN = inside_TN & dates_T[:, None]
    found = [
        *_choices(present_TN & inside_TN, inside_TN, return_TN, horizon, f"rows of the {what}"),
        *_choices(dates_T[:, None], between_T[:, None], market_T1, horizon, f"dates of the {what}"),
    ]
    if not found:
        few = f"Fewer than {_FEWEST} rows, or rows of {_FEWEST_DATES} dates, are missing, or are there."
        return Finding(name, "skipped", few)
    _, worst = min(found, key=lambda one: (VERDICTS.index(one[1].verdict), -one[0]))
    words = "Neither the sign nor the size of later returns says which rows there are."
    return replace(worst, sentence=words) if worst.verdict == "pass" else worst


def _choices(
    present_TN: BoolArray, inside_TN: BoolArray, return_TN: FloatArray, horizon: int, rows: str
) -> Iterator[tuple[float, Finding]]:
    """Judge the rarer rows by later returns and sizes of later moves: how far beyond a limit, and finding."""
    if inside_TN.shape[1] > _FIRMS and min(present_TN.sum(), (inside_TN & ~present_TN).sum()) > _MANY:
        some = np.random.default_rng(0).choice(inside_TN.shape[1], _FIRMS, replace=False)
        present_TN, inside_TN, return_TN = present_TN[:, some], inside_TN[:, some], return_TN[:, some]
    own = standardise(return_TN)
    if return_TN.shape[1] == 1:  # in units of its mean absolute deviation over time
        across = standardise(return_TN.T)
        own = Standardised(across.value_DN.T, across.known_DN.T)
    inside_TN = inside_TN & (np.abs(own.value_DN) < _UNUSUAL)
    missing = float((inside_TN & ~present_TN).sum()) / max(float(inside_TN.sum()), 1.0)
    rarer = missing <= 0.5
    chosen_TN = inside_TN & (~present_TN if rarer else present_TN)
    if chosen_TN.sum() < _FEWEST:
        return
    share = min(missing, 1.0 - missing)
    words = f"{'missing' if rarer else 'only'} {rows} ({share:.2%} of all)"
    for span in starmap(_Span, product(_STARTS, sorted({*_SPANS, horizon}))):
        yield from _by_return(chosen_TN, inside_TN, own, span, f"The {words}")
        yield from _by_size(chosen_TN, inside_TN, return_TN, span, f"The {words}")


def _by_return(
    chosen_TN: BoolArray, inside_TN: BoolArray, own: Standardised, span: _Span, words: str
) -> Iterator[tuple[float, Finding]]:
    later = cumulated(own, span.sessions)
    value_TN = _ahead(np.where(later.known_DN > 0, later.value_DN, np.nan).astype(np.float64), span.start)
    known_TN = inside_TN & np.isfinite(value_TN)
    t_M, n_M = np.nonzero(chosen_TN & known_TN)
    if not _enough(t_M) or len(t_M) == known_TN.sum():
        return
    value_TN = np.where(known_TN, value_TN, 0.0)
    if value_TN.shape[1] > 1:
        mean_T = value_TN.sum(axis=1) / np.maximum(known_TN.sum(axis=1), 1)
    else:
        mean_T = np.full(len(value_TN), value_TN[known_TN].mean())
    deviation = float((value_TN - mean_T[:, None])[known_TN].std())
    if deviation == 0:
        return
    mean, error = clustered((value_TN[t_M, n_M] - mean_T[t_M]) / deviation, t_M, span.sessions, 1.0)
    share = len(t_M) / float(known_TN.sum())
    best = NormalDist().pdf(NormalDist().inv_cdf(share)) / share  # mean of the largest share of a normal
    limit = best * ceiling(span.sessions)
    beyond = (abs(mean) - _ERRORS * error) / limit - 1.0
    verdict: Verdict = "fail" if beyond > 0 else "warn" if beyond > REMARKABLE / CEILING - 1.0 else "pass"
    judged = {
        "fail": f"No honest choice exceeds {limit:.2f}: the rows were chosen by later returns.",
        "warn": "Very few honest choices are as good.",
        "pass": "",
    }[verdict]
    sentence = f"{words} have returns over {span} of {mean:+.2f} deviations. {judged}"
    yield beyond, Finding("choice of rows", verdict, sentence, mean)


def _by_size(
    chosen_TN: BoolArray, inside_TN: BoolArray, return_TN: FloatArray, span: _Span, words: str
) -> Iterator[tuple[float, Finding]]:
    """Judge the chance that a chosen row has a larger later move, also in units of the firm's usual move."""
    with np.errstate(invalid="ignore"):
        total_TN = np.nancumsum(return_TN, axis=0)
    sessions = span.sessions
    move_TN = _ahead(np.abs(_ahead(total_TN, sessions) - total_TN), span.start)
    usual_TN = rolling_mean(np.abs(return_TN), _USUAL, _FEWEST_USUAL)
    far_TN = _ahead(move_TN, sessions + _FAR)
    for unit_TN in (np.ones_like(usual_TN), usual_TN):
        with np.errstate(divide="ignore", invalid="ignore"):
            (near, error), (far, _) = (
                _chance_of_larger(size_TN / unit_TN, chosen_TN, inside_TN, sessions)
                for size_TN in (move_TN, far_TN)
            )
        if np.isnan(near) or np.isnan(far):
            continue
        sign = 1.0 if near >= 0.5 else -1.0
        sharp, more = 0.5 + sign * (near - 0.5), sign * (near - far)
        possible = more < _LASTING or sharp < _SUSPECT or sharp - _ERRORS * error < _ANNOUNCED
        verdict: Verdict = "pass" if possible else "fail" if sharp >= _SHARP else "warn"
        judged = {
            "fail": "The rows were chosen by the size of later moves.",
            "warn": "Few honest choices are as sharp.",
        }.get(verdict, "")
        sentence = (
            f"{words} move more over {span} than other rows with a chance of {near:.0%}, and of {far:.0%} a "
            f"month later. {judged}"
        )
        yield sharp / _SHARP - 1.0, Finding("choice of rows", verdict, sentence, near)


def _chance_of_larger(
    size_TN: FloatArray, chosen_TN: BoolArray, inside_TN: BoolArray, overlap: int
) -> tuple[float, float]:
    """Chance that a chosen row has a larger size than another one, and its error; NaN with too few rows."""
    known_TN = np.isfinite(size_TN) & inside_TN
    t_M, n_M = np.nonzero(chosen_TN & known_TN)
    if not _enough(t_M) or len(t_M) == known_TN.sum():
        return float("nan"), float("nan")
    if size_TN.shape[1] > 1:  # in units of the date's mean, because all firms move more on some dates
        total_T = np.where(known_TN, size_TN, 0.0).sum(axis=1)
        mean_T1 = (total_T / np.maximum(known_TN.sum(axis=1), 1))[:, None]
        size_TN = size_TN / np.where(mean_T1 > 0, mean_T1, np.inf)
    rows = min(len(size_TN), max(_REFERENCE * len(size_TN) // int(known_TN.sum()), 1))
    some_D = np.linspace(0, len(size_TN) - 1, rows).astype(np.int64)
    other_R = np.sort(size_TN[some_D][known_TN[some_D] & ~chosen_TN[some_D]])
    if not len(other_R):
        return float("nan"), float("nan")
    size_M = size_TN[t_M, n_M]
    order_M = np.argsort(size_M)  # values in order are found eight times faster
    below_M, upto_M = (np.searchsorted(other_R, size_M[order_M], side) for side in ("left", "right"))
    rank_M = np.empty(len(size_M))
    rank_M[order_M] = (below_M + upto_M) / (2.0 * len(other_R))
    chance = (rank_M.sum() + 1.0) / (len(rank_M) + 2.0)
    return clustered(rank_M, t_M, overlap, (chance * (1.0 - chance) / 3.0) ** 0.5)


def _enough(t_M: IntArray) -> bool:
    return len(t_M) >= _FEWEST and len(np.unique(t_M)) >= _FEWEST_DATES


def clustered(value_M: FloatArray, t_M: IntArray, overlap: int, least: float) -> tuple[float, float]:
    """Mean of values and its error, from sums by date; ``overlap`` dates share their returns.

    The error is at least that of independent values with the deviation ``least``.

    >>> mean, error = clustered(np.array([0.0, 2.0, 4.0, 6.0]), np.array([0, 0, 1, 1]), 1, 1.0)
    >>> mean, round(error, 3)  # two dates with sums of -4 and 4
    (3.0, 2.0)
    """
    mean = float(value_M.mean())
    sums_T = np.bincount(t_M, value_M - mean)
    dates = max(len(np.unique(t_M)), 1)
    error = float(np.sqrt((sums_T**2).sum() * dates / max(dates - 1, 1))) / len(value_M)
    return mean, max(error, least / len(value_M) ** 0.5) * overlap**0.5


def backfill(data: Delivery) -> Result:
    """Look for series that start with, or fill a gap with, a value that becomes known only later."""
    prices = data.rows("prices")
    with_volume = prices if prices["volume"].null_count() < prices.height else prices.clear()
    found = [_backfilled_input(data, name, prices) for name in data.inputs]
    found += [_constant_starts(with_volume), _before_listing(data, prices), _filled_gaps(with_volume)]
    return conclude(
        found, "No price or input starts with, or fills a gap with, a value that becomes known only later."
    )


def _filled(subject: str, count: int, of: int, *, failed: bool, words: str) -> Finding:
    """Finding about the firms (or prices) that were filled backwards, and their number of all."""
    verdict: Verdict = "fail" if failed else "pass" if of else "skipped"
    sentence = f"Backfilled: {words}." if of else "there are none to look at"
    return Finding("backfill", verdict, sentence, float(count), subject=subject)


def _starts(frame: pl.DataFrame, least: int) -> pl.DataFrame:
    """Firms whose first value is held for at least so many rows, longer than any later one, and is not 0."""
    runs = (
        frame.sort("ticker", "date")
        .with_columns(run=pl.col("value").rle_id().over("ticker"))
        .group_by("ticker", "run", maintain_order=True)
        .agg(
            pl.col("value").first(),
            length=pl.len(),
            since=pl.col("date").first(),
            until=pl.col("date").last(),
        )
    )
    first = runs.group_by("ticker", maintain_order=True).agg(
        pl.col("length", "value", "since", "until").first(),
        longest_later=pl.col("length").filter(pl.col("run") > 0).max(),
        runs=pl.len(),
    )
    longer = pl.col("length") > pl.col("longest_later")
    return first.filter((pl.col("length") >= least) & (pl.col("value") != 0) & longer)


def _backfilled_input(data: Delivery, name: str, prices: pl.DataFrame) -> Finding:
    rows = data.rows("inputs").filter(pl.col("name") == name)
    firms = rows["ticker"].n_unique()
    listed = prices.group_by("ticker").agg(listed=pl.col("date").min())
    starts = _starts(rows, MIN_RUN).join(listed, on="ticker")
    # an average over a window that fills up starts later, and repeats a value for as long as its window
    usual = float(starts["length"].median() or 0.0)  # type: ignore[arg-type]
    early = (pl.col("since") - pl.col("listed")).dt.total_days() <= FIRST_DAYS
    often = pl.col("runs") >= FEWEST_RUNS
    count = starts.filter(often & (early | (pl.col("length") > LONGER * usual))).height
    return _filled(
        f"input {name}",
        count,
        firms,
        failed=count > CONSTANT_FIRMS and count >= FIRM_SHARE * firms,
        words=f"input {name} starts with one value repeated for {count} of {firms} firms, longer than any "
        "value is repeated later",
    )


def _constant_starts(prices: pl.DataFrame) -> Finding:
    """Constant prices without volume up to a firm's first trade, which has the same price.

    A firm that is suspended when the file begins has the price of an earlier trade, and resumes at another
    one.
    """
    still = pl.col("close").sort_by("date").head(CONSTANT_ROWS).n_unique() == 1
    firms = prices.group_by("ticker").agg(still=still)
    candidates = prices.join(firms.filter("still"), on="ticker", how="semi")
    starts = _starts(candidates.select("ticker", "date", value="close"), CONSTANT_ROWS)
    inside, volume = pl.col("date") < pl.col("until"), pl.col("volume").fill_null(0.0)
    filled = (volume.filter(inside) == 0).all() & (volume.filter(~inside) > 0).all()
    held = candidates.join(starts.select("ticker", "until"), on="ticker").filter(
        pl.col("date") <= pl.col("until")
    )
    count = held.group_by("ticker").agg(filled=filled).filter("filled").height
    return _filled(
        "first prices",
        count,
        firms.height,
        failed=count > CONSTANT_FIRMS and count >= CONSTANT_SHARE * firms.height,
        words="price close is constant without volume from the first row on for "
        f"{count} of {firms.height} firms",
    )


def _before_listing(data: Delivery, prices: pl.DataFrame) -> Finding:
    """Constant prices before the firm's listing date."""
    securities = data.tables.get(
        "securities", pl.DataFrame(schema={"ticker": pl.String, "listed_on": pl.Date})
    )
    listed = securities.group_by("ticker").agg(pl.col("listed_on").min()).drop_nulls()
    early = prices.join(listed, on="ticker").filter(pl.col("date") < pl.col("listed_on"))
    before = early.group_by("ticker").agg(rows=pl.len(), values=pl.col("close").n_unique())
    count = before.filter((pl.col("rows") >= MIN_RUN) & (pl.col("values") == 1)).height
    return _filled(
        "prices before the listing",
        count,
        listed.height,
        failed=count > CONSTANT_FIRMS or (count > 0 and count >= CONSTANT_SHARE * listed.height),
        words=f"price close is constant before the listing date for {count} of {listed.height} firms",
    )


def _filled_gaps(prices: pl.DataFrame) -> Finding:
    """Prices on sessions without volume: carried forward from the last trade, or back from the next."""
    traded = pl.col("volume").fill_null(0.0) > 0
    halted = prices.filter(~traded).select("ticker").unique()
    ordered = prices.join(halted, on="ticker", how="semi").sort("ticker", "date")
    last = pl.when("traded").then("close").forward_fill().over("ticker")
    following = pl.when("traded").then("close").backward_fill().over("ticker")
    untraded = (
        ordered.select("ticker", "close", traded=traded)
        .with_columns(last=last, following=following)
        .filter(~pl.col("traded") & (pl.col("last") != pl.col("following")))
    )
    back, forward = (
        untraded.filter(pl.col("close") == pl.col(side)).height for side in ("following", "last")
    )
    return _filled(
        "prices without volume",
        back,
        untraded.height,
        failed=back >= MIN_FILLED and back > FOUR_TIMES * forward,
        words=f"{back} prices on sessions without volume equal the next trade, and {forward} the last one",
    )
