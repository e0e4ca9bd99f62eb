"""Prices against themselves: closes, opens, ranges and volumes that no market makes.

A price that was averaged, clipped, moved or filled with later ones keeps its level but not its small print:
the next session's news move today's open, a gap jumps when it begins instead of when it ends, or returns
stop at a bound.

Shape suffixes: T sessions, N firms.
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead import news
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict, conclude, judged_by, skipped
from features.arrays import BoolArray, FloatArray
from features.panel.derived import carried_close

OPEN_RATIO: Final = 0.7
"""Mean |open to close| over mean |open to previous close|, below which the open may be one of the next
session. Liquid prices have 1.5 to 2.5. Firms that trade on few sessions have less, because their previous
close is old."""
OPEN_SLOPE: Final = 0.6
"""Minimum slope of the next return on the move from today's close to today's open. It is 1 if the open is the
next session's, 0.5 if closes bounce between bid and ask, and 0 otherwise."""
OWN_OPENS: Final = 0.5
"""Share of bars whose open is not their close, above which closes count as traded. Net asset values and other
appraisals have one price a session, and honest ones are averages of the past."""
AUTOCORRELATION: Final = 0.10
"""Median first autocorrelation of the firms' residual returns. Real prices have -0.06 to 0.10, the highest
where exchanges limit daily moves; an average of three closes with a weight of 0.1 on each neighbour adds
0.24."""
SUSPECT_AUTOCORRELATION: Final = 0.05
STALE: Final = 0.15  # the same, from which closes that know nothing later are averages with earlier ones
AHEAD_OF_OPEN, SUSPECT_AHEAD = 0.05, 0.035
"""Median correlation of the residual return of t with that from the open of t+1 to the next one, which
nothing that is known at the close of t moves by much. Honest closes have -0.03 to 0.022, also if they are
averages with earlier ones; a weight of 0.1 on the next close gives 0.065 to 0.11."""
REPEATS: Final = 60  # minimum number of repeated closes, with a move before and after
REPEATED_SHARE, REPEAT_DEVIATIONS = 0.62, 4.0
"""Share of runs of repeated closes whose move into them is larger than that out of them, and its z. A halt
that is filled forward has fewer than half. Signs are counted, because one takeover moves any sum."""
EXTREMES: Final = 0.01
"""Mean share of a firm's rows at its own highest or lowest close. Real prices have 0.2%."""
CLIPPED: Final = 0.004
"""Mean share of a firm's returns that equal its own largest or smallest one, to nine digits."""
ON_GRID, OFF_GRID = 0.9, 0.5
"""Share of closes in whole cents, or in 64ths as US prices were quoted until 2001, late and early in the
sample, if early prices were divided by later events."""
GAP_DAYS: Final = 7  # days from the last price to the delisting, beyond which the last prices are missing
EARLY_DEVIATIONS: Final = 4.0
"""Minimum z of the size of a firm's correlation with the market's next session less that with its own, for
two firms. The second largest z of an honest market is at most 0.5, or 1.5 if firms close after half of the
market's next move."""
EARLY_SHARE: Final = 0.2
"""Correlation with the market's own session over that with its next one, up to which firms are a session
early, and do not just close later. Firms that close after three quarters of the market's next move have
0.18 to 0.46."""
_EARLY_FIRMS: Final = 2
_NEWEST: Final = 20
"""Sessions at the end, before which hardly any firm pays a dividend: these prices are as quoted."""
_SAME: Final = 1e-9
_LARGEST: Final = 0.15
_LARGEST_MOVE: Final = 0.6  # between opens: larger ones are errors or splits
_FEWEST: Final = 500
_FEWEST_FIRMS: Final = 5

LARGE: Final = 1.5
"""Moves that are counted, in medians of the firm's moves. A price that moves by one tick stays in an honest
range of a few ticks."""
HELD: Final = 0.75
"""Share of the next closes after large moves between today's low and high, over all firms, above which ranges
reach ahead. Real prices have 0.2 to 0.4, ranges of calendar weeks 0.8, and a range over k past sessions holds
more of the closes before."""
FIRM_HELD: Final = 0.95  # the same for single firms, at least three
AHEAD: Final = -0.08
"""Minimum of that share less the share of the previous closes, which a range over past sessions holds."""
EQUAL: Final = 0.5
"""Share of sessions on which a firm opens exactly at its previous close, above which one of the two prices is
not its own: a missing open was filled with the previous close, or the close is the next open."""
GAP: Final = 0.15
"""Minimum correlation of the mean return of such firms with the other firms' mean move from close to open
that follows, beyond that of the others' mean return. Closes that were known then have about zero."""
GAP_DEVIATIONS: Final = 6.0
_SEVERAL, _SEVERAL_RANGES = 2, 3
_FEWEST_MOVES: Final = 100
_EXACT: Final = 1e-7


def bars(data: Delivery) -> Result:
    """Test opens, closes, gaps, extremes, the cent grid and the last prices for what later prices leave."""
    rules = (_opens, _averages, _moved, _early_firms, _gaps, _bounds, _adjusted, _tails)
    found = [one for rule in rules for one in rule(data)]
    if not found:
        return skipped("There are too few prices.")
    shown = ", ".join(f"{one.check} {one.value:.2g}" for one in found)
    return conclude(found, f"Prices look like prices: {shown}.")


def _own_opens(data: Delivery) -> BoolArray:
    """Bars [T, N] whose open is another price than their close."""
    panel = data.panel
    if panel.open_TN is None:
        return np.zeros(panel.close_TN.shape, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(panel.open_TN - panel.close_TN) > _SAME * panel.close_TN)


def _opens(data: Delivery) -> Iterator[Finding]:
    panel = data.panel
    if panel.open_TN is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        move = np.log(panel.open_TN[1:-1] / panel.close_TN[1:-1])
        to_previous = np.abs(np.log(panel.open_TN[1:-1] / carried_close(panel)[:-2]))
        later = np.log(panel.close_TN[2:] / panel.close_TN[1:-1])
    known = np.isfinite(move) & np.isfinite(to_previous) & np.isfinite(later) & _own_opens(data)[1:-1]
    if known.sum() < _FEWEST:
        return
    ratio = float(np.mean(np.abs(move[known]))) / max(float(np.mean(to_previous[known])), 1e-12)
    x, y = np.clip(move[known], -_LARGEST, _LARGEST), np.clip(later[known], -_LARGEST, _LARGEST)
    slope = float(x @ y / (x @ x))
    sentence = (
        f"The open is that of a later session: it is {ratio:.2f} times as far from the close of its session "
        f"as from the close before, and the next return is {slope:.2f} times the move from close to open. "
        "Move the opens back by one session."
    )
    bad = ratio < OPEN_RATIO and slope >= OPEN_SLOPE
    yield judged_by("open to close over open to previous close", bad, sentence, ratio, OPEN_RATIO)


def _averages(data: Delivery) -> Iterator[Finding]:
    news_TN = news.clipped(data.residual_TN)
    c_N = news.lead_correlations(news_TN, news_TN, 1)
    c_N = c_N[c_N != 0]
    if len(c_N) < _FEWEST_FIRMS:
        return
    middle, ahead = float(np.median(c_N)), _ahead_of_open(data, news_TN)
    sentence = (
        "The closes are averages of several sessions: the returns of a firm, less the market's, have a first "
        f"autocorrelation of {middle:+.2f} in the median of {len(c_N)} firms. "
    )
    if ahead is None:
        verdict: Verdict = "warn" if middle >= AUTOCORRELATION else "pass"
        sentence += (
            "If the average is centred, today's close contains tomorrow's: ask for closes as traded. Net "
            "asset values and appraisals are averages of the past without look-ahead, but nobody can trade "
            "at them."
        )
    elif middle >= SUSPECT_AUTOCORRELATION and ahead >= SUSPECT_AHEAD:
        verdict = "fail" if middle >= AUTOCORRELATION and ahead >= AHEAD_OF_OPEN else "warn"
        sentence += (
            f"They know the session that follows: the return of t correlates by {ahead:+.2f} with that from "
            "the next open to the one after it, and that of traded closes hardly does. Ask for closes "
            "as traded."
        )
    else:
        verdict = "warn" if middle >= STALE else "pass"
        sentence += "They know no later open, but nobody can trade at them: ask for closes as traded."
    yield Finding("autocorrelation", verdict, sentence, middle, AUTOCORRELATION)


def _ahead_of_open(data: Delivery, news_TN: FloatArray) -> float | None:
    """Median correlation of returns with those between the next two opens; None without opens."""
    open_TN = data.panel.open_TN
    own = _own_opens(data)[np.isfinite(data.panel.close_TN)]
    if open_TN is None or own.mean() < OWN_OPENS:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        between_TN = np.log(open_TN[1:] / open_TN[:-1])  # row t: from the open of t to that of t + 1
        between_TN = np.where(np.abs(between_TN) <= _LARGEST_MOVE, between_TN, np.nan)
    between_TN = np.vstack([between_TN, np.full_like(between_TN[:1], np.nan)])
    c_N = news.lead_correlations(news_TN, news.clipped(news.demeaned(between_TN)), 1)
    c_N = c_N[c_N != 0]
    return float(np.median(c_N)) if len(c_N) >= _FEWEST_FIRMS else None


def _moved(data: Delivery) -> Iterator[Finding]:
    """Volume and the size of returns belong to the same session."""
    if data.panel.volume_TN is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        size_TN = news.news(news.demeaned(np.log(np.abs(data.residual_TN) + 1e-3)), 3)
        volume_TN = news.news(news.demeaned(np.log1p(data.panel.volume_TN)), 3)
    same = news.lead_correlations(size_TN, volume_TN, 0)
    if (same != 0).sum() < _FEWEST_FIRMS:
        return
    now = float(same[same != 0].mean())
    late = float(news.pooled_correlations(size_TN, volume_TN)[0][0])
    early = float(news.pooled_correlations(volume_TN, size_TN)[0][0])
    best, which = max((late, "before"), (early, "after"))
    sentence = (
        f"Closes and volume are of different sessions: volume correlates by {best:+.2f} with the size of the "
        f"return of the session {which}, and by {now:+.2f} with that of its own. Compare both with an "
        "exchange's record of a single day."
    )
    name, bad = "volume with the size of the return, off the session", best > 1.5 * max(now, 0.0)
    yield judged_by(name, bad and best >= 0.08, sentence, best, max(1.5 * now, 0.08))


def _early_firms(data: Delivery) -> Iterator[Finding]:
    """Firms whose returns belong to the market's next session, as if dated in another time zone.

    The market is the mean of all other firms, and at a second look of those that are not early. A firm that
    closes after the others has a part of their next move, but also a part of that of its own session.
    """
    x_TN = news.clipped(data.return_TN)
    early_N = np.zeros(x_TN.shape[1], dtype=np.bool_)
    for _ in range(2):
        usual_TN = np.where(early_N, 0.0, x_TN)
        count_TN = (usual_TN != 0).sum(axis=1, keepdims=True) - (usual_TN != 0)
        market_TN = usual_TN.sum(axis=1, keepdims=True) - usual_TN
        market_TN = np.where(count_TN >= _FEWEST_FIRMS, market_TN / np.maximum(count_TN, 1), 0.0)
        before_N = news.lead_correlations(market_TN, x_TN, 1)
        now_N, later_N = (news.lead_correlations(x_TN, market_TN, lead) for lead in (0, 1))
        pairs_N = ((x_TN != 0) & (market_TN != 0)).sum(axis=0)
        later_N, now_N = np.minimum(np.abs([later_N, now_N]), 0.999)  # inverse funds move against the market
        z_N = (np.arctanh(later_N) - np.arctanh(now_N)) * np.sqrt(pairs_N / 2.0)
        early_N = z_N >= EARLY_DEVIATIONS
        if early_N.sum() < _EARLY_FIRMS or early_N.all():
            return
    now, later = float(now_N[early_N].mean()), float(later_N[early_N].mean())
    own = now - float(np.median(before_N[~early_N]))  # what an early firm has from the market's own echo
    sentence = (
        f"The prices of {data.firms(data.columns[early_N])} may be of the next session: their returns "
        f"correlate by {later:.2f} in size with the other firms' mean return of t+1 and by {now:.2f} with "
        "that of t. Their dates are probably of another time zone, or they close later than the others: "
        "compare a day with the exchange's record, and move them by one session if it differs."
    )
    bad = own <= EARLY_SHARE * later
    name = "own session over the next one, of early firms"
    # a firm that closes later can look the same
    yield judged_by(name, bad, sentence, own / later, EARLY_SHARE, "warn")


def _gaps(data: Delivery) -> Iterator[Finding]:
    """The move around closes that repeat: after them if they are filled forward, before them if backwards."""
    moves_in, moves_out = [], []
    for close_T in data.panel.raw_close_TN.T:
        known = close_T[np.isfinite(close_T)]
        if len(known) < 30:
            continue
        edges = np.flatnonzero(np.concatenate([[True], known[1:] != known[:-1], [True]]))
        first, last = edges[:-1], edges[1:] - 1
        long = (last - first >= 2) & (first > 0) & (last < len(known) - 1)
        moves = np.minimum(np.abs(np.log(known[1:] / known[:-1])), 1.0)
        moves_in.append(moves[first[long] - 1])
        moves_out.append(moves[last[long]])
    count = sum(map(len, moves_in))
    if count < REPEATS:
        return
    before, after = np.concatenate(moves_in), np.concatenate(moves_out)
    larger, smaller = int((before > after).sum()), int((before < after).sum())
    share = larger / max(larger + smaller, 1)
    z = (larger - smaller) / math.sqrt(max(larger + smaller, 1))
    sentence = (
        f"Gaps in the closes were filled backwards: the move into {larger:,} of {larger + smaller:,} runs of "
        f"repeated closes ({share:.0%}) is larger than that out of them, so the price of a gap's end stands "
        "at its beginning. Leave gaps empty."
    )
    bad = share >= REPEATED_SHARE and z >= REPEAT_DEVIATIONS
    yield judged_by("share of repeated closes after larger moves", bad, sentence, share, REPEATED_SHARE)


def _bounds(data: Delivery) -> Iterator[Finding]:
    close_TN = data.panel.raw_close_TN
    return_TN = close_TN[1:] / close_TN[:-1] - 1.0
    at, equal = (
        [
            _at_extremes(known)
            for known in (x_T[np.isfinite(x_T)] for x_T in x_TN.T)
            if len(known) >= 250 and len(np.unique(known)) > distinct
        ]
        for x_TN, distinct in ((close_TN, 50), (return_TN, 100))
    )
    if len(at) < _FEWEST_FIRMS:
        return
    share = float(np.median(at))
    sentence = (
        f"Closes are clipped at bounds of the whole sample: a firm has {share:.1%} of its closes at its own "
        "maximum or minimum, and the bound was not known before the sample ended."
    )
    yield judged_by("share of closes at a firm's extremes", share >= EXTREMES, sentence, share, EXTREMES)
    share = float(np.median(equal)) if len(equal) >= _FEWEST_FIRMS else 0.0
    sentence = (
        f"Returns are clipped at bounds of the whole sample: a firm has {share:.1%} of its returns exactly "
        "at its largest or smallest one, and the bound was not known before the sample ended."
    )
    yield judged_by("share of returns at a firm's extremes", share >= CLIPPED, sentence, share, CLIPPED)


def _at_extremes(x: FloatArray) -> float:
    """Share of values at the largest and at the smallest value, beyond one ordinary stay at each.

    A price that is quoted on few sessions repeats, also at its extremes. An ordinary stay is as long as 19 of
    20 stays at any value.
    """
    near = 1e-9 * max(abs(float(x.max())), abs(float(x.min())))
    stays = np.diff(np.flatnonzero(np.concatenate([[True], np.abs(np.diff(x)) > near, [True]])))
    usual = float(np.quantile(stays, 0.95))
    hits = int((x >= x.max() - near).sum()) + int((x <= x.min() + near).sum())
    return max(hits - 2.0 * usual, 0.0) / len(x)


def _adjusted(data: Delivery) -> Iterator[Finding]:
    close_TN = data.panel.raw_close_TN
    shares = []
    for part, fewest in ((close_TN[: len(close_TN) // 3], 60), (close_TN[-_NEWEST:], 10)):
        known_TN = np.isfinite(part)
        quoted = np.where(known_TN, part, 0.0)
        # whole numbers of cents, or of 64ths: US prices were fractions until 2001
        on_grid = np.any([np.abs(quoted * n - np.rint(quoted * n)) < 0.02 for n in (100.0, 64.0)], axis=0)
        count_N = known_TN.sum(axis=0)
        share_N = (on_grid & known_TN).sum(axis=0) / np.maximum(count_N, 1)
        shares.append(np.where(count_N >= fewest, share_N, np.nan))
    both = np.isfinite(shares[0]) & np.isfinite(shares[1])
    if both.sum() < _FEWEST_FIRMS:
        return
    moved = float(((shares[0] < OFF_GRID) & (shares[1] > ON_GRID))[both].mean())
    sentence = (
        f"Prices are adjusted with later events: {moved:.0%} of the firms trade in whole cents late in the "
        "sample and not early in it, so their levels know the splits and dividends that came later. Returns "
        "are right; do not use levels, a minimum price or dollar volume, or deliver prices as quoted."
    )
    name = "share of firms whose closes leave the grid of ticks in the past"
    yield judged_by(name, moved >= OFF_GRID, sentence, moved, OFF_GRID, "warn")


def _tails(data: Delivery) -> Iterator[Finding]:
    securities = data.tables.get("securities")
    if securities is None or securities["delisted_on"].null_count() == securities.height:
        return
    ended = securities.drop_nulls("delisted_on").group_by("ticker").agg(pl.col("delisted_on").max())
    last = data.tables["prices"].group_by("ticker").agg(last=pl.col("date").max())
    gap = (pl.col("delisted_on") - pl.col("last")).dt.total_days()
    newest = data.tables["prices"]["date"].max()
    rows = ended.filter(pl.col("delisted_on") <= newest).join(last, on="ticker").with_columns(gap=gap)
    if rows.height < _FEWEST_FIRMS:
        return
    early = rows.filter(pl.col("gap") > GAP_DAYS)
    share = early.height / rows.height
    days = float(early["gap"].median() or 0.0)  # type: ignore[arg-type]
    sentence = (
        f"The last prices before a delisting are missing for {early.height} of {rows.height} delisted firms: "
        f"they end {days:.0f} days before (median). The fall of a failing firm is in these days; nobody who "
        "holds it can leave before it."
    )
    name = "share of delisted firms whose last prices are missing"
    yield judged_by(name, share >= 0.5, sentence, share, 0.5, "warn")


def ranges(data: Delivery) -> Result:
    """Test whether today's range holds the next close, and whether closes know the next opens."""
    panel = data.panel
    if panel.open_TN is None and (panel.high_TN is None or panel.low_TN is None):
        return skipped("The prices have no opens, highs and lows.")
    with np.errstate(invalid="ignore"):
        moves = 0 if panel.high_TN is None or panel.low_TN is None else (panel.high_TN > panel.low_TN).sum()
        opens = 0 if panel.open_TN is None else (np.abs(panel.open_TN - panel.close_TN) > 0).sum()
    if max(moves, opens) < _FEWEST_MOVES:
        reason = f"fewer than {_FEWEST_MOVES} bars have a range, or an open that is not their close"
        return skipped(f"Not examined, because {reason}.")
    passed = "No range holds the close of the next session, and no close is a later open."
    return conclude([*_ranges(data), *_next_opens(data)], passed)


def _ranges(data: Delivery) -> Iterator[Finding]:
    panel = data.panel
    if panel.high_TN is None or panel.low_TN is None:
        return
    high_TN, low_TN, close_TN = panel.high_TN, panel.low_TN, panel.close_TN
    held_N, after_N = _held(high_TN[:-1], low_TN[:-1], close_TN[:-1], close_TN[1:])
    held_before_N, before_N = _held(high_TN[1:], low_TN[1:], close_TN[1:], close_TN[:-1])
    count_N = np.minimum(after_N, before_N)
    if count_N.sum() < _FEWEST_MOVES:
        return
    share = float(held_N.sum() / max(after_N.sum(), 1))
    share_before = float(held_before_N.sum() / max(before_N.sum(), 1))
    cure = "The range was taken over several sessions: ask for that of each session."
    if share >= HELD and share >= share_before + AHEAD:
        sentence = (
            f"Highs and lows reach ahead: after large moves, {share:.0%} of the closes lie between the low "
            f"and the high of the session before ({share_before:.0%} between those of the session after), "
            f"and in a market fewer than half of them do. {cure}"
        )
        yield Finding("ranges", "fail", sentence, share, HELD)
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        share_N, share_before_N = held_N / after_N, held_before_N / before_N
    hit_N = (count_N >= _FEWEST_MOVES) & (share_N >= FIRM_HELD) & (share_N >= share_before_N + AHEAD)
    if hit_N.sum() >= _SEVERAL_RANGES:
        own = float(np.median(share_N[hit_N]))
        sentence = (
            f"Highs and lows of {data.firms(np.flatnonzero(hit_N))} reach ahead: {own:.0%} of their closes "
            f"lie between the low and the high of the session before, and {share:.0%} of all firms' do. "
            f"{cure}"
        )
        yield Finding("ranges of single firms", "fail", sentence, own, FIRM_HELD)


def _held(
    high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, other_TN: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Per firm: closes of the other session within the range, and closes of it, both after large moves."""
    size_TN = np.abs(other_TN - close_TN)
    size_TN = np.where(size_TN > _EXACT * np.abs(close_TN), size_TN, np.nan)
    some_N = np.isfinite(size_TN).any(axis=0)
    usual_N = np.full(size_TN.shape[1], np.nan)
    usual_N[some_N] = np.nanmedian(size_TN[:, some_N], axis=0)
    with np.errstate(invalid="ignore"):
        moved_TN = (size_TN > LARGE * usual_N) & (high_TN > low_TN)
        inside_TN = (other_TN <= high_TN * (1 + _EXACT)) & (other_TN >= low_TN * (1 - _EXACT)) & moved_TN
    return inside_TN.sum(axis=0).astype(np.float64), moved_TN.sum(axis=0).astype(np.float64)


def _next_opens(data: Delivery) -> Iterator[Finding]:
    """Firms that open at their previous close although the others do not, and move with the others' gap."""
    panel = data.panel
    if panel.open_TN is None:
        return
    before_TN = carried_close(panel)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        gap_TN = np.log(panel.open_TN[1:] / before_TN)  # row t: from the close of t to the open of t + 1
        return_TN = np.log(panel.close_TN[1:-1] / before_TN[:-1])  # row t: of session t + 1
    known_TN = np.isfinite(gap_TN)
    often_N = known_TN.sum(axis=0) >= _FEWEST_MOVES
    equal_N = (np.abs(np.where(known_TN, gap_TN, np.inf)) <= _EXACT).sum(axis=0)
    odd_N = often_N & (equal_N >= EQUAL * np.maximum(known_TN.sum(axis=0), 1))
    others_N = often_N & ~odd_N
    if odd_N.sum() < _SEVERAL or others_N.sum() < _FEWEST_FIRMS:
        return
    market_T = news.mean_of_firms(np.clip(gap_TN, -_LARGEST, _LARGEST)[:, others_N])[1:, 0]
    moves_TN = np.clip(return_TN, -_LARGEST, _LARGEST)
    (c, pairs), (usual, _) = (
        _correlation(news.mean_of_firms(moves_TN[:, some_N])[:, 0], market_T) for some_N in (odd_N, others_N)
    )
    if c - max(usual, 0.0) < max(GAP, GAP_DEVIATIONS / np.sqrt(max(pairs, 1))):
        return
    sentence = (
        f"The closes of {data.firms(np.flatnonzero(odd_N))} are the opens of the next session: these firms "
        f"open exactly at their previous close, and their mean return correlates by {c:+.2f} with the "
        f"others' move from close to open that follows (that of the others by {usual:+.2f}). Move their "
        "closes back to the session's end."
    )
    yield Finding("closes that are later opens", "fail", sentence, c, GAP)


def _correlation(x_T: FloatArray, y_T: FloatArray) -> tuple[float, int]:
    """Correlation of two series, and the number of sessions; 0 with too few."""
    known_T = np.isfinite(x_T) & np.isfinite(y_T)
    x_T, y_T = x_T[known_T], y_T[known_T]
    if len(x_T) < _FEWEST_MOVES or x_T.std() == 0 or y_T.std() == 0:
        return 0.0, 0
    return float(np.corrcoef(x_T, y_T)[0, 1]), len(x_T)
