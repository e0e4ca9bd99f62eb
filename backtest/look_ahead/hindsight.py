"""What only hindsight chooses: levels that know later months, members, groups and tickers made from returns.

Shape suffixes: T sessions, N firms, D dates.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import pdtr, stdtr

from backtest.look_ahead.coverage import clustered
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict, answer, conclude, judged_by, skipped
from features.arithmetic.transforms import rank_normal
from features.arrays import BoolArray, FloatArray
from features.information_coefficient import ic_by_date

HORIZONS: Final = (21, 63, 126, 252)  # sessions of the returns that a level is compared with
STATIC: Final = 4
"""Maximum number of values per firm (in the median) of a static input, such as a code or a loading."""
STATIC_HORIZON: Final = 21
STATIC_CHANCE: Final = 5e-6
"""Largest chance without skill of the t statistic over spans of 21 sessions, for a warning about a static
input: a t of 5 over six years, and of 13 over 8 spans. A number that is fixed before the sample has the first
only if its portfolio, never traded, has a Sharpe ratio of 2. Honest ones reach 3.1, and means of returns over
the whole sample 4 to 7."""
SPANS: Final = 8
"""Minimum number of disjoint spans. Their ICs are independent, so that a plain t statistic holds."""
INPUT_LIMIT: Final = 0.25
"""Minimum absolute mean IC of an input. Honest inputs on real and simulated prices stay below 0.19."""
PRICE_LIMIT: Final = 0.30
"""The same for the level of the price, which honest prices of survivors come nearer to."""
FEWEST_FIRMS: Final = 10  # minimum number of firms of a date with a level and a later return
SLOW: Final = 0.5
"""IC with the returns before over that with those after, of the same sign, from which an input may be a slow
and strong signal. A level that was scaled with its future has the other sign: it is high where it rose, and
will fall."""
LEVEL_DEVIATIONS: Final = 6.0
"""Minimum t statistic. A portfolio that is held for half years with a t of 6 over ten of them has a Sharpe
ratio of 2.7 without any trading."""

EXPLAINED: Final = 0.80
"""Share of the variance of total returns that groups explain, adjusted for their number. Industries explain
about half, and sub-industries of two or three firms up to 0.7."""
ORDER: Final = 0.5  # minimum |rank correlation| of the alphabetical order of tickers with total returns
CODE_DEVIATIONS: Final = 5.0  # minimum z statistic of that correlation: 1 in 2 million by chance
CODE_SPAN: Final = 126  # sessions before and after the day on which groups were drawn up
REDRAWN: Final = 0.04
"""Minimum rise, after that day, of the share of the variance of daily returns that groups explain."""
_FEWEST: Final = 20

EVENT_SPANS: Final = (21, 63)  # sessions after an event: a firm leaves or joins a list of members
EVENT_RETURN: Final = 0.07
"""Minimum |mean| of the return after an event beyond that of the other firms. Firms that an honest index
deletes lose about 5% around the announcement, and regain it afterwards (Chen, Noronha and Singal 2004)."""
EVENT_DEVIATIONS: Final = 5.0
JUMP: Final = 0.01  # minimum |mean| of the move on one of the sessions after an event, or over all of them
JUMP_SESSIONS: Final = 5
JUMP_SUSPECT, JUMP_DEVIATIONS = 4.5, 5.5
"""Minimum t of that move for a warning, and for a failure. Honest lists reach 3.4, and firms that leave a
real one, which are sold over days, 3.9."""
_FEWEST_JUMPS, _FEWEST_DATES = 10, 5
_FEWEST_EVENTS: Final = 8
_FEWEST_MEMBERS: Final = 5
_LARGEST: Final = 2.0
EARLY_SESSIONS: Final = 21
"""Membership more than this many sessions before a firm's first price shows hindsight."""
EARLY_FIRMS: Final = 2
EARLY_SHARE: Final = 0.05  # up to this many firms (or this share) may be explained by gaps in the prices
TURNOVER: Final = 0.02
"""Lower bound on the share of members that an index replaces per year; broad indices replace 3% to 10%."""
EXPECTED: Final = 3.0
"""If at least this many changes are expected, no change at all is unlikely: exp(-3) is 1 in 20."""
LEAVERS: Final = 5
CHANCE: Final = 0.001

LEAVE_PER_YEAR: Final = 0.05
"""Assumed share of firms that leave a market per year. For US listed firms it is 5% to 10%, by merger or
failure."""
SURVIVAL_CHANCE: Final = 0.01
"""Probability of so few leavers, if their number is a Poisson variable, below which the check warns: none
where 5 are expected, or 2 where 10 are."""
DOOM_SESSIONS: Final = 126  # sessions before a firm's last price
DOOM: Final = 0.9
"""Minimum share of the firms that stop trading with one value, less that of the others. A flag of distress
that nearly all have half a year before, and a tenth of the others, has 0.8."""
FEW: Final = 0.2  # maximum share of the expected leavers, because the rate itself differs between markets


class SpanIc(NamedTuple):
    """Mean IC of a level with the returns of disjoint spans, its t statistic, and the number of spans."""

    ic: float
    t: float
    spans: int


def horizons(data: Delivery, *, prices: bool = True) -> Result:
    """Measure the IC of every input, and of the price's level, with returns over 21 to 252 sessions.

    Without ``prices``, inputs alone are looked at.

    A series that was scaled with its own future is low where it will rise. Its IC with tomorrow's return is
    small, because a level changes slowly, but its IC with the return of the next half year is not.
    """
    levels = [("the price's level", PRICE_LIMIT, data.panel.raw_close_TN)] if prices else []
    if data.membership is not None:
        levels.append((f"membership of {data.membership}", INPUT_LIMIT, data.member_TN.astype(np.float64)))
    rows = [_level(name, limit, value_TN, data) for name, limit, value_TN in levels]
    rows += [_level(f"input {name}", INPUT_LIMIT, data.input(name), data) for name in data.inputs]
    found = sorted((_of_level(row) for row in rows), key=lambda one: -abs(one.value or 0.0))
    known = [row for row in rows if row["ic"] is not None]
    few = f"fewer than {SPANS} disjoint spans of {HORIZONS[0]} sessions begin with {FEWEST_FIRMS} known firms"
    unknown = ", ".join(row["column"] for row in rows if row["ic"] is None)
    if not known:
        return skipped(f"Not examined, because {few} for {unknown}.")
    best = max(known, key=lambda row: abs(row["ic"]) / row["limit"])
    return conclude(
        (one for one in found if one.verdict != "skipped"),
        f"No level of {len(known)} is linked to later returns beyond what is possible; the largest IC is "
        f"{best['ic']:+.2f}, of {best['column']} with the next {best['horizon']} sessions (limit "
        f"{best['limit']:.2f}).{f' Not examined: {unknown}, because {few}.' if unknown else ''}",
        pl.DataFrame(rows, infer_schema_length=None),
    )


def _level(name: str, limit: float, value_TN: FloatArray, data: Delivery) -> dict[str, Any]:
    """Facts of the horizon with the largest IC among those that exceed the limit, else of all."""
    index_TN, inside_TN = data.panel.total_return_index_TN, data.panel.traded_TN
    worst: dict[str, Any] = {"horizon": None, "ic": None, "t": None, "spans": None, "failed": False}
    for horizon in HORIZONS:
        facts = span_ics(value_TN, index_TN, inside_TN, horizon)
        if facts is not None:
            failed = abs(facts.ic) >= limit and abs(facts.t) >= LEVEL_DEVIATIONS
            if worst["ic"] is None or (failed, abs(facts.ic)) > (worst["failed"], abs(worst["ic"])):
                worst = {"horizon": horizon, **facts._asdict(), "failed": failed}
    values_N = [len(np.unique(column[np.isfinite(column)])) for column in value_TN.T]
    alone = then = None
    if name.startswith("input") and float(np.median(values_N)) <= STATIC:
        alone = span_ics(value_TN, index_TN, inside_TN, STATIC_HORIZON)
    elif worst["failed"] and not name.startswith("membership"):
        then = span_ics(value_TN, index_TN, inside_TN, -worst["horizon"])
    slow = then is not None and then.ic * worst["ic"] > 0 and abs(then.ic) >= SLOW * abs(worst["ic"])
    row = {"column": name, "limit": limit, **worst, "slow": slow, "static_t": None, "static_chance": None}
    if alone is None:
        return row
    chance = 2.0 * float(stdtr(alone.spans - 1, -abs(alone.t)))  # few spans have large t statistics by chance
    return row | {"static_t": alone.t, "static_chance": chance}


def _of_level(row: dict[str, Any]) -> Finding:
    column, static_t, chance = row["column"], row["static_t"], row["static_chance"]
    if row["slow"]:
        sentence = (
            f"{column[0].upper()}{column[1:]} has an IC of {row['ic']:+.2f} with the return of the next "
            f"{row['horizon']} sessions (t {row['t']:.1f}), and one of the same sign with that of the last "
            "ones: a slow signal, stronger than nearly all honest ones. Compare it with an earlier delivery "
            "(audit --vintage)."
        )
        return Finding("level", "warn", sentence, row["ic"], subject=column)
    if row["failed"]:
        sentence = (
            f"Level that knows later returns: {column} has an IC of {row['ic']:+.2f} with the return of the "
            f"next {row['horizon']} sessions (t {row['t']:.1f} over {row['spans']} disjoint spans), above "
            f"the limit of {row['limit']:.2f}. It was probably scaled, averaged or filled with later values: "
            "compare it with an earlier delivery (audit --vintage)."
        )
        return Finding("level", "fail", sentence, row["ic"], subject=column)
    if chance is not None and chance <= STATIC_CHANCE:
        sentence = (
            f"{column[0].upper()}{column[1:]} hardly changes, and still tells the returns of the whole "
            f"sample: its IC with the next {STATIC_HORIZON} sessions has a t of {static_t:+.1f} (a chance of "
            f"{chance:.0e} without skill). It was probably estimated on the whole sample, like a mean of the "
            "target or a loading: estimate it on training sessions alone, or on the past of each date."
        )
        return Finding("static", "warn", sentence, static_t, subject=column)
    return Finding("level", "pass" if row["ic"] is not None else "skipped", subject=column)


def span_ics(value_TN: FloatArray, index_TN: FloatArray, inside_TN: BoolArray, horizon: int) -> SpanIc | None:
    """Measure the ICs of a level with the returns of disjoint spans; None with fewer than `SPANS` of them.

    A span begins on a date with a value of at least `FEWEST_FIRMS` firms, so that a level which is known once
    a month is measured on its own dates. Value and return are ranked to a normal within the date.
    A negative horizon means the returns before the date.
    """
    ahead, horizon = int(np.sign(horizon)), abs(horizon)
    count_T = (inside_TN & np.isfinite(value_TN)).sum(axis=1)
    starts: list[int] = []
    for t in np.flatnonzero(count_T[: max(len(value_TN) - horizon, 0)] >= FEWEST_FIRMS):
        if ahead < 0 and t < horizon:
            continue
        if not starts or t - starts[-1] >= horizon:
            starts.append(int(t))
    if len(starts) < SPANS:
        return None
    starts_D = np.array(starts)
    inside_DN = inside_TN[starts_D] & np.isfinite(value_TN[starts_D])
    with np.errstate(divide="ignore", invalid="ignore"):
        return_DN = ahead * (index_TN[starts_D + ahead * horizon] / index_TN[starts_D] - 1.0)
    return_DN = np.where(inside_DN, return_DN, np.nan)
    ic_D = ic_by_date(rank_normal(value_TN[starts_D], inside_DN), rank_normal(return_DN, inside_DN))
    ic_D = ic_D[np.isfinite(ic_D) & (ic_D != 0)]
    if len(ic_D) < SPANS:
        return None
    t = ic_D.mean() / max(float(ic_D.std(ddof=1)), 1e-9) * np.sqrt(len(ic_D))
    return SpanIc(float(ic_D.mean()), float(t), len(ic_D))


def codes(data: Delivery) -> Result:
    """Compare groups and the order of tickers with the firms' returns over the whole sample."""
    total_N = _total_returns(data)
    found = [*_groups(data, total_N), *_redrawn(data), *_tickers(total_N)]
    if not found:
        return skipped(f"Fewer than {_FEWEST} firms have a return over at least half of the sample.")
    shown = "; ".join(f"{one.check} {one.value:+.2f} (limit {one.limit:g})" for one in found)
    return conclude(found, f"Neither groups nor the order of tickers tell total returns: {shown}.")


def _total_returns(data: Delivery) -> FloatArray:
    """Mean log return per session of firms with at least half of the sessions; NaN for all others."""
    panel = data.panel
    close_TN = np.where(panel.traded_TN, panel.total_return_index_TN, np.nan)
    known_TN = np.isfinite(close_TN) & (close_TN > 0)
    first, last = known_TN.argmax(axis=0), len(close_TN) - 1 - known_TN[::-1].argmax(axis=0)
    own = np.arange(panel.n_firms)
    with np.errstate(divide="ignore", invalid="ignore"):
        total_N = np.log(close_TN[last, own] / close_TN[first, own]) / np.maximum(last - first, 1)
    return np.where(known_TN.sum(axis=0) >= len(close_TN) / 2, total_N, np.nan)


def _groups(data: Delivery, total_N: FloatArray) -> Iterator[Finding]:
    if not data.panel.groups_S:
        return
    group_N = data.panel.group_TN.max(axis=0)
    known = np.isfinite(total_N) & (group_N >= 0)
    share = _explained_share(total_N[known], group_N[known])
    if share is not None:
        sentence = (
            f"The groups know later returns: they explain {share:.0%} of the differences between the firms' "
            "returns over the whole sample, and industries explain at most half. The codes were probably "
            "made from these returns: use a classification with the dates on which it was published."
        )
        name = "share of total returns that groups explain"
        yield judged_by(name, share >= EXPLAINED, sentence, share, EXPLAINED)


def _redrawn(data: Delivery) -> Iterator[Finding]:
    """Groups that are drawn up within the sample, and explain what comes after that day better than before.

    Groups that were drawn from the past explain it at least as well as what follows, and industries explain
    both alike.
    """
    group_TN = data.panel.group_TN
    known_T = (group_TN >= 0).sum(axis=1)
    moved_T = (group_TN[1:] != group_TN[:-1]) & (group_TN[1:] >= 0) & (group_TN[:-1] >= 0)
    days = np.flatnonzero(moved_T.sum(axis=1) >= np.maximum(known_T[1:] / 2, _FEWEST)) + 1
    days = days[(days >= CODE_SPAN) & (days <= len(group_TN) - CODE_SPAN)]

    def shares(first: int) -> FloatArray:
        found = []
        for day in days:
            for return_N in data.residual_TN[day + first : day + first + CODE_SPAN]:
                known_N = np.isfinite(return_N) & (group_TN[day] >= 0)
                found.append(_explained_share(np.clip(return_N[known_N], -0.1, 0.1), group_TN[day][known_N]))
        return np.array([share for share in found if share is not None])

    before, after = shares(-CODE_SPAN), shares(0)
    if min(len(before), len(after)) < CODE_SPAN // 2:
        return
    more = float(after.mean() - before.mean())
    z = more / float(np.sqrt(after.var() / len(after) + before.var() / len(before)))
    sentence = (
        f"The groups may know later returns: those drawn up on {data.day(int(days[0]))} and {len(days) - 1} "
        f"other days explain {after.mean():.0%} of the differences between daily returns in the {CODE_SPAN} "
        f"sessions after, and {before.mean():.0%} in those before (z {z:.0f}). Groups drawn from the past "
        "explain the past at least as well: ask for the day on which they were published, or compare with an "
        "earlier delivery (audit --vintage)."
    )
    name = "share of daily returns that groups explain after the day they were drawn up, less before"
    yield judged_by(name, more >= REDRAWN and z >= CODE_DEVIATIONS, sentence, more, REDRAWN, "warn")


def _explained_share(value_N: FloatArray, group_N: npt.NDArray[np.integer]) -> float | None:
    """Adjusted R squared of values on groups of at least two; None with fewer than 20 degrees of freedom."""
    names, code_N, count_S = np.unique(group_N, return_inverse=True, return_counts=True)
    kept = count_S[code_N] >= 2
    value_N, code_N = value_N[kept], code_N[kept]
    groups = int((count_S >= 2).sum())
    if len(value_N) < groups + _FEWEST or groups < 2:
        return None
    total_S = np.bincount(code_N, value_N, len(names))
    inside = value_N - (total_S / np.maximum(count_S, 1))[code_N]
    around = value_N - value_N.mean()
    return float(1.0 - (inside @ inside / (len(value_N) - groups)) / (around @ around / (len(value_N) - 1)))


def _tickers(total_N: FloatArray) -> Iterator[Finding]:
    known = np.flatnonzero(np.isfinite(total_N))
    if len(known) < _FEWEST:
        return
    rank = np.argsort(np.argsort(total_N[known]))
    correlation = float(np.corrcoef(rank, np.arange(len(known)))[0, 1])
    z = abs(np.arctanh(np.clip(correlation, -0.999999, 0.999999))) * np.sqrt(len(known) - 3)
    sentence = (
        "The order of the tickers knows later returns: its rank correlation with the return over the whole "
        f"sample is {correlation:+.2f} over {len(known)} firms. The names were probably given after sorting "
        "by performance: a model that sees firms in this order can learn it."
    )
    name, bad = "rank correlation of the tickers' order with total returns", abs(correlation) >= ORDER
    yield judged_by(name, bad and z >= CODE_DEVIATIONS, sentence, correlation, ORDER)


def membership(data: Delivery) -> Result:
    """Look for members before listing, leavers that never were members, and changes that know returns."""
    name = data.membership
    if name is None:
        return skipped("The config uses no membership table.")
    spells, sessions = data.spells, data.panel.n_sessions
    priced_TN = np.isfinite(data.panel.close_TN)
    first_N, last_N = priced_TN.argmax(axis=0), sessions - 1 - priced_TN[::-1].argmax(axis=0)
    left_N = last_N < sessions - EARLY_SESSIONS
    own = [(ticker, since) for ticker, since, until in spells if ticker in data.place and since < until]
    member_N = np.isin(data.panel.tickers_N, [ticker for ticker, _ in own])
    early = {ticker for ticker, since in own if first_N[data.place[ticker]] - since > EARLY_SESSIONS}
    exits = sum(0 < until < sessions for _, _, until in spells)
    changes = exits + sum(0 < since < sessions for _, since, _ in spells)
    years, members = _years(data), int(member_N.sum())
    expected, leavers, stayers = TURNOVER * members * years, int(left_N.sum()), int((~left_N).sum())
    chance = float((1.0 - member_N[~left_N].mean()) ** leavers) if stayers and leavers else 1.0
    stayed = int(member_N[~left_N].sum())
    moved = {"changes": changes, "exits": exits, "expected_changes": expected}
    listed = {"members_before_first_price": len(early), "leavers": leavers, "stayers": stayers}
    evidence = [{"members": members, "years": years, **moved, **listed, "stayers_members": stayed}]
    reasons = []
    if len(early) > max(EARLY_FIRMS, EARLY_SHARE * members):
        reasons.append(
            f"{len(early)} firms are members more than {EARLY_SESSIONS} sessions before their first price"
        )
    if leavers >= LEAVERS and not member_N[left_N].any() and chance < CHANCE:
        reasons.append(
            f"none of the {leavers} firms that stop trading was ever a member, but {stayed} of the {stayers} "
            "others were"
        )
    if changes == 0 and expected >= EXPECTED:
        reasons.append(f"the {members} members never change in {years:.1f} years")
    timed = dict(_timed(data))
    if reasons or "fail" in timed.values():
        rule = "Today's membership for all dates" if reasons else "Membership that knows later returns"
        return answer("fail", f"{rule}: in {name}, {'; '.join([*reasons, *timed])}.", evidence)
    verdict: Verdict = "warn"
    if timed:
        sentence = f"Membership that may know later returns: in {name}, {'; '.join(timed)}."
    elif changes == 0 and years >= 1.0:
        sentence = (
            f"Membership of {name} never changes in {years:.1f} years: a list made after its first date "
            "contains hindsight."
        )
    elif exits == 0 and expected >= EXPECTED:
        sentence = (
            f"No firm ever leaves {name} in {years:.1f} years, though firms join: this looks like the "
            "members of the last day with their joining dates."
        )
    else:
        verdict = "pass"
        sentence = (
            f"{name}: {changes} changes of {members} members in {years:.1f} years, and no firm is a member "
            "long before its listing."
        )
    return answer(verdict, sentence, evidence)


def _timed(data: Delivery) -> Iterator[tuple[str, Verdict]]:
    """Changes of the list that come before returns that nobody knew, and that favour the list."""
    traded_TN, index_TN = data.panel.traded_TN, data.panel.total_return_index_TN
    member_TN = data.member_TN & traded_TN
    # a first price is no decision of the list, and neither is a halt
    moved_TN = (member_TN[1:] != member_TN[:-1]) & traded_TN[1:] & traded_TN[:-1]
    for verb, then, sign, side_TN in (
        ("leave", "fall", -1, ~member_TN[1:]),
        ("join", "rise", 1, member_TN[1:]),
    ):
        event_TN = np.vstack([np.zeros_like(moved_TN[:1]), moved_TN & side_TN])
        events, span, mean, t = _after_events(event_TN, index_TN, traded_TN, member_TN)
        if events >= _FEWEST_EVENTS and sign * mean >= EVENT_RETURN and sign * t >= EVENT_DEVIATIONS:
            yield (
                f"firms {verb} before they {then}: after {events} such changes "
                f"they earn {mean:+.0%} beyond the others in {span} sessions (t {t:+.1f}), so the list was "
                "made with later prices",
                "fail",
            )
        events, when, mean, t = _jump(event_TN, data.residual_TN, sign)
        if sign * t >= JUMP_SUSPECT:
            yield (
                f"firms {verb} a few sessions before they {then}: after {events} such changes they move by "
                f"{mean:+.1%} {when} (t {t:+.1f}), as on an announcement, so changes are dated too early: "
                "use the day after the announcement",
                "fail" if sign * t >= JUMP_DEVIATIONS else "warn",
            )


def _jump(event_TN: BoolArray, residual_TN: FloatArray, sign: int) -> tuple[int, str, float, float]:
    """What firms earn beyond the others soon after events: number, when, mean and t of the clearest move.

    Moves on single sessions, which all changes that are equally early have in common, and over all of them.
    """
    t_M, n_M = np.nonzero(event_TN[: len(event_TN) - JUMP_SESSIONS])
    best = (len(t_M), "", 0.0, 0.0)
    if len(t_M) < _FEWEST_JUMPS or len(np.unique(t_M)) < _FEWEST_DATES:
        return best
    move_KM = np.nan_to_num(np.stack([residual_TN[t_M + k, n_M] for k in range(1, JUMP_SESSIONS + 1)]))
    looks = {f"{k} session{'s' if k > 1 else ''} later": move_M for k, move_M in enumerate(move_KM, 1)}
    for when, move_M in {**looks, f"in {JUMP_SESSIONS} sessions": move_KM.sum(axis=0)}.items():
        mean, error = clustered(move_M, t_M, 1, float(move_M.std()))
        if sign * mean >= JUMP and error > 0:
            best = max(best, (len(t_M), when, mean, mean / error), key=lambda one: sign * one[3])
    return best


def _after_events(
    event_TN: BoolArray, index_TN: FloatArray, traded_TN: BoolArray, member_TN: BoolArray
) -> tuple[int, int, float, float]:
    """What firms earn beyond the members after events: number, and span, mean and t of the clearest.

    Members are compared with, because other firms of the data may be there for having joined later, after a
    rise.
    """
    best = (0, EVENT_SPANS[0], 0.0, 0.0)
    for span in EVENT_SPANS:
        means, events = [], 0
        for t in np.flatnonzero((event_TN & traded_TN)[: max(len(index_TN) - span, 0)].any(axis=1)):
            with np.errstate(divide="ignore", invalid="ignore"):
                return_N = np.clip(index_TN[t + span] / index_TN[t] - 1.0, -1.0, _LARGEST)
            usual_N = traded_TN[t] & np.isfinite(return_N)
            own_N = event_TN[t] & usual_N
            listed_N = usual_N & member_TN[t] & ~own_N
            others_N = listed_N if listed_N.sum() >= _FEWEST_MEMBERS else usual_N & ~own_N
            if own_N.any() and others_N.any():
                means.append(float(return_N[own_N].mean() - return_N[others_N].mean()))
                events += int(own_N.sum())
        if len(means) >= _FEWEST_EVENTS:
            mean, deviation = float(np.mean(means)), float(np.std(means, ddof=1))
            t_statistic = float(mean / max(deviation, 1e-9) * np.sqrt(len(means)))
            best = max(best, (events, span, mean, t_statistic), key=lambda one: abs(one[3]))
    return best


def survivorship(data: Delivery) -> Result:
    """Count the firms that stop trading, and look for inputs that know which ones will.

    A lack of leavers is no failure, because features stay causal; but results are biased.
    """
    ever_N = data.universe_TN.any(axis=0)
    priced_TN = np.isfinite(data.panel.close_TN[:, ever_N])
    leavers, firms = int((~priced_TN[-EARLY_SESSIONS:].any(axis=0)).sum()), int(ever_N.sum())
    years = _years(data)
    expected = LEAVE_PER_YEAR * firms * years
    finding = f"{leavers or 'none'} of {firms:,} firms stop trading in {years:.1f} years"
    chance = float(pdtr(leavers, expected))
    sentence = (
        f"Survivorship bias: {finding}, but about {expected:.0f} are expected (a chance of {chance:.1g}). "
        "The universe was probably selected with hindsight, so returns are biased upwards."
    )
    few = leavers <= FEW * expected and chance < SURVIVAL_CHANCE
    counted = judged_by("firms that stop trading", few, sentence, leavers, FEW * expected, "warn")
    return conclude([*_doomed(data), counted], f"{finding[0].upper()}{finding[1:]}.")


def _doomed(data: Delivery) -> Iterator[Finding]:
    """Inputs that have one value, or none, for firms that will stop trading, half a year before they do.

    Such a value was filled in at the end, or comes from a list of the firms of that day.
    """
    traded_TN = data.panel.traded_TN
    last_N = np.where(traded_TN.any(axis=0), len(traded_TN) - 1 - traded_TN[::-1].argmax(axis=0), 0)
    left_N = last_N < len(traded_TN) - EARLY_SESSIONS
    cells = [(last_N[n] - DOOM_SESSIONS, n) for n in np.flatnonzero(left_N & (last_N >= DOOM_SESSIONS))]
    cells = [(t, n) for t, n in cells if traded_TN[t, n] and (traded_TN[t] & ~left_N).sum() >= FEWEST_FIRMS]
    if len(cells) < _FEWEST_EVENTS:
        return
    for name in data.inputs:
        x_TN = np.nan_to_num(data.input(name), nan=np.inf)
        values = [float(x_TN[t, n]) for t, n in cells]
        value, count = Counter(values).most_common(1)[0]
        share = count / len(values)
        usual = float(np.mean([(x_TN[t, traded_TN[t] & ~left_N] == value).mean() for t, _ in cells]))
        what = f"the value {value:g}" if np.isfinite(value) else "no value"
        sentence = (
            f"Input {name} knows which firms stop trading: {DOOM_SESSIONS} sessions before they do, "
            f"{share:.0%} of {len(cells)} such firms have {what}, and {usual:.0%} of those that stay. It was "
            "probably filled in at the end: deliver it as it was known."
        )
        worst: Verdict = "fail" if len(cells) >= _FEWEST else "warn"
        more = share - usual
        one = judged_by("one value before the end", more >= DOOM, sentence, more, DOOM, worst)
        yield replace(one, subject=f"input {name}")


def _years(data: Delivery) -> float:
    return (data.day(-1) - data.day(0)).days / 365.25
