"""Inputs that know later sessions: their news correlates with what happens after it, at a lead.

The news of an honest input is known at t. It may forecast later returns a little, but it cannot match them: a
forecast decays over the leads, while a window that reaches ahead has a cliff. The check looks at every lead
up to a year for all firms together; and, because a mixture hides in a mean, at the next sessions for every
firm, for every date, and for quarters of the sample of every firm.

Shape suffixes: T sessions, N firms, K leads, P parts of the sample.
"""

import calendar
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from backtest.look_ahead import news
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, Verdict
from backtest.look_ahead.returns import LAGS, MIN_FIRMS, make_profiles, sample_dates, standardise, too_high
from features.arithmetic.rolling import carry
from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.panel.derived import daily_return

NEAR: Final = 3  # largest lead at which single firms and dates are looked at
FIRM: Final = 0.40
"""Minimum |correlation| of a firm's news with the next sessions, for at least two firms (three with volume).
Honest inputs reach 0.34 (a flag, with the size of the return), and less than 0.20 with the return itself."""
LONE_FIRM: Final = 0.60  # the same for one firm alone, with the return
PART: Final = 0.55  # the same within a quarter or an eighth of the sample; honest inputs reach 0.43
PART_DEVIATIONS: Final = 6.0  # minimum z statistic of each of several firms within a part
DATE: Final = 0.60
DATE_SHARE: Final = {"the return": 0.02, "the size of the return": 0.02, "the volume": 0.06}
"""Minimum share of dates with an |IC| above `DATE`. It is at most 1.4% for honest inputs, and then just as
large at leads of 20 to 35 sessions, because common factors make such dates. With volume it reaches 3%: an
exchange whose volumes are counted otherwise for some days."""
DATE_RATIO: Final = 4.0
DATES: Final = 8
"""Minimum number of such dates. An input with news on few dates has too few of them to judge."""
DATE_DEVIATIONS: Final = 3.5  # minimum z of the IC of a date: with 20 firms an IC of 0.6 is chance
POOLED: Final = {"the return": 0.12, "the size of the return": 0.12, "the volume": 0.30}
"""Minimum |mean correlation| over all firms at one lead. Honest inputs reach 0.03 with the return, 0.05 with
its size and 0.16 with volume, which weeks and expiries make predictable."""
POOLED_LATER: Final = {"the volume": 0.45}
"""The same at leads of two sessions and more: large moves echo in the news of volume for a week."""
POOLED_NEXT: Final = 0.15
"""Lower bound of the same at a lead of one session, where honest forecasts are strongest."""
KIND: Final = {"the return": 0.20, "the size of the return": 0.20, "the volume": 0.45}
"""Minimum |correlation| at a lead on the dates of one weekday, calendar month or year, and for a fifth of the
firms by size."""
SUM: Final = 0.20
"""Minimum |correlation| with the sum of the returns of the next 5 or 21 sessions; honest inputs stay below
0.10."""
SUM_DEVIATIONS: Final = 6.0  # minimum z statistic of these two sums, which are few looks for an input
FLAG: Final = 3  # maximum number of values of a flag
ECHO: Final = 0.5
"""Link of a flag with the return of the next sessions over that with its own, below which the flag is about
its own session. Flags of moves to a daily limit have 0.19 to 0.31, because such moves go on; early ones over
0.8."""
FACTORS: Final = 5  # common factors of returns, the largest principal components
_SERIES: Final = 2  # common series of an input's own news
FACTOR, SUSPECT_FACTOR = 0.30, 0.20
"""Minimum |correlation| of a common series of an input with a factor of returns at a lead, beyond what the
factors of t tell of both, for a failure and for a warning: a signal of every firm's return adds up to more
for a factor."""
FACTOR_DEVIATIONS, SUSPECT_FACTOR_DEVIATIONS = 4.5, 3.7
"""Minimum z of it. Honest inputs of such correlations reach 3.5, and rates of the next session have 3.4 to
17."""
PERIODS: Final = range(3, 31)  # sessions between the common steps of an input that is held by period
PERIOD: Final = {"the return": 0.15, "the size of the return": 0.16, "the volume": 0.24}
"""Minimum |correlation| of these steps with what comes before the next step, or half way to it. Honest weekly
and monthly values reach 0.02 with returns at a z of 2, 0.11 with their size and 0.17 with volume."""
PERIOD_DEVIATIONS: Final = 4.0
SUSPECT_START, SUSPECT_HALF, HALF = 0.07, 0.03, 0.08
"""Minimum |correlation| of these steps with the return of what is to come of their period, if it has the
shape of a period that is known too early (`_within_periods`): for a warning, of periods dated at their start
and of half periods, and for a failure. A forecast of the period has the first shape: 0.07 is an IC of 0.10
over the period, and very few honest signals reach that."""
WITHIN_DEVIATIONS: Final = 2.0  # minimum z of the links with the sessions after and before the step
WITHIN_RATIO: Final = 0.5  # of the link before the step over that after it, or its inverse
WITHIN_END: Final = 0.5
"""Largest link after the period, over that within it. Of 3,888 honest weekly and monthly inputs one has the
second shape, and none the first."""
_STEPS: Final = 8  # fewest common steps
EVENTS: Final = 30  # fewest events that a countdown reaches
LENGTHS: Final = 0.12
"""Mean |length less the firm's median| over that median, of the times between events, above which no rule
gives them. Month ends counted in sessions have 0.04 to 0.09."""
REVISED: Final = 0.02  # most revisions of a countdown, as a share of its events
_COUNTED: Final = 5  # fewest firms with three events
SUSPECT: Final = 0.05  # mean correlation with the next session's return above which an input is suspect
DEVIATIONS: Final = 8.0
"""Minimum z statistic of every other alarm. About a million correlations are looked at, and returns have fat
tails."""
_FEWEST: Final = 60  # news of a common series
_SIZES: Final = 5
_FEWEST_PER_SIZE: Final = 5
_EIGHTHS: Final = 8
_PARTS: Final = tuple((part, of) for of in (4, _EIGHTHS) for part in range(of))
"""Parts of the sample: (number, of how many)."""
_FAR: Final = (20, 25, 30, 35)


@dataclass(frozen=True, slots=True)
class _Alarm:
    """One way in which an input knows a series too early; a lead of 0 stands for the input's own dates."""

    verdict: Verdict
    what: str
    lead: int
    correlation: float
    where: str

    def of(self, name: str) -> Finding:
        link = f"{self.what} of t+{self.lead} {self.where}" if self.lead else f"{self.what} {self.where}"
        if self.verdict == "warn":
            sentence = (
                f"{name[0].upper()}{name[1:]} may know the next session: its news at t correlate by "
                f"{self.correlation:+.2f} with {link}. Few honest signals are as strong: compare it with an "
                "earlier delivery (audit --vintage)."
            )
        else:
            sessions = {0: "some sessions", 1: "session"}.get(self.lead, f"{self.lead} sessions")
            sentence = (
                f"{name[0].upper()}{name[1:]} knows later sessions: its news at t correlate by "
                f"{self.correlation:+.2f} with {link}. It is probably dated {sessions} too early, or its "
                "window reaches ahead: compare its dates there with when each value was published."
            )
        return Finding(link, self.verdict, sentence, self.correlation)


def check(data: Delivery) -> Result:
    """Correlate the news of each input with the news of returns, their size and volume at later sessions."""
    later = _later_series(data) if data.inputs else {}
    factors = _Factors.of(data) if data.inputs else None

    def question(name: str, x_TN: FloatArray) -> Iterator[Finding]:
        x_TN = x_TN[:, data.columns]
        common, reason = news.is_common(x_TN), ""
        dates = np.flatnonzero(np.isfinite(x_TN).any(axis=1))
        spacing = float(np.median(np.diff(dates))) if len(dates) > 1 else 1.0
        if spacing > 1 and not common:
            alarms, reason = _on_own_dates(data, x_TN, round(spacing))
            held_TN = carry(x_TN)
            alarms += _for_periods(held_TN, news.news_of_input(held_TN), later)
        else:
            news_TN = news.news_of_input(news.mean_of_firms(x_TN) if common else x_TN)
            every = _for_the_market(data, news_TN) if common else _alarms(data, x_TN, news_TN, later)
            periods = () if common else _for_periods(x_TN, news_TN, later)
            alarms = [*every, *periods, *(factors.alarms(news_TN) if factors else ())]
            if not news_TN.any():
                reason = "it has no news: too few values, or a line"
        if not common and (known := _exact_countdown(data, name, x_TN)):
            yield known
        yield from (alarm.of(name) for alarm in alarms)
        if not alarms:
            yield Finding("news", "skipped" if reason else "pass", reason)

    return data.ask(
        question,
        "The news of none of {n} inputs match returns, their size or volume at a later session, for all "
        "firms, single firms, single dates or parts of the sample.",
        strongest=True,
    )


def _on_own_dates(data: Delivery, x_TN: FloatArray, spacing: int) -> tuple[list[_Alarm], str]:
    """Look for an IC with returns after an input's dates that no honest signal reaches; or say why not."""
    if not len(sample_dates(x_TN)):
        return [], f"no date has {MIN_FIRMS} firms"
    profiles = make_profiles(x_TN, standardise(data.return_TN))
    found = too_high(profiles, data.panel.dates_T, min(spacing, LAGS[-1]))
    if found.verdict == "skipped" or found.value is None:
        return [], found.sentence
    where = f"on its own dates, every {spacing} sessions ({found.sentence.rstrip('.')})"
    alarm = _Alarm(found.verdict, "later returns", 0, found.value, where)
    return ([] if found.verdict == "pass" else [alarm]), ""


def _later_series(data: Delivery) -> dict[str, Float32Array]:
    """News of what an input may know too early."""
    return_TN = data.residual_TN[:, data.columns]
    series = {
        "the return": news.news(return_TN, 3),
        "the size of the return": news.news(news.demeaned(np.log(np.abs(return_TN) + 1e-3)), 5),
    }
    volume_TN = data.panel.volume_TN
    if volume_TN is not None:
        # a session without a trade has no volume: the ends of suspensions would echo each other
        traded_TN = np.where(volume_TN > 0, np.log1p(np.maximum(volume_TN, 0.0)), np.nan)
        series["the volume"] = news.news(news.demeaned(traded_TN)[:, data.columns], 5)
    return {what: series_TN.astype(np.float32) for what, series_TN in series.items()}


def _for_periods(x_TN: FloatArray, news_TN: Float32Array, later: dict[str, Float32Array]) -> Iterator[_Alarm]:
    """Compare the steps of a value that is held by week or month with the sessions of the period they begin.

    The mean of a week that is dated on its first session knows the week, and so does the value of a month's
    end that was joined to the nearest dates. Both fade half way to the next step, or at it.
    """
    moved_T = (news_TN != 0).sum(axis=1)
    dates = np.flatnonzero((moved_T >= MIN_FIRMS) & (moved_T >= np.isfinite(x_TN).sum(axis=1) / 2))
    if len(dates) < _STEPS or moved_T[dates].sum() < 0.8 * moved_T.sum():
        return
    period = int(np.median(np.diff(dates)))
    if period not in PERIODS:
        return
    when = f"over all firms on its {len(dates)} steps, every {period} sessions"
    for what, y_TN in later.items():
        c_K, weight = news.pooled_correlations(news_TN, y_TN)
        for span in (period // 2, period - 1):
            c = float(c_K[:span].sum() / math.sqrt(span))
            if abs(c) >= PERIOD[what] and abs(c) * math.sqrt(weight) >= PERIOD_DEVIATIONS:
                yield _Alarm("fail", what, span, c, f"and the sessions before it, {when}")
    own_TN = np.zeros_like(news_TN)
    own_TN[dates] = news.news(x_TN[dates], 1)  # beyond the period before
    for step_TN, start in ((own_TN, period // 2), (news_TN, period)):
        yield from _within_periods(step_TN, later["the return"], period, start, when)


def _within_periods(
    news_TN: Float32Array, return_TN: Float32Array, period: int, start: int, when: str
) -> Iterator[_Alarm]:
    """Compare the link of steps with the returns that complete a period with that with the returns before.

    The mean of a period that is dated at the period's start steps by this period's value less the last one's:
    its links with both periods have one size and opposite signs. A step half a period before the end
    (``start`` is what is to come) has the same link with both halves. Neither has one after the period.
    Honest summaries of the past have no link with what comes, and honest forecasts are weak, or have no
    link with the half before.
    """
    before_PN = np.zeros((period + 1, news_TN.shape[1]), dtype=np.float32)
    c_K, weight = news.pooled_correlations(
        np.vstack([news_TN, before_PN]), np.vstack([before_PN, return_TN])
    )  # from a lead of -period on
    if len(c_K) < 3 * period:
        return
    half = start < period
    spans = {
        "coming": (1, start if half else period - 1),
        "past": (1 + start - period, 0) if half else (-period, -1),
        "after": (start + 1, 2 * start) if half else (period, 2 * period - 2),
    }
    coming, past, after = (
        float(c_K[period + a : period + b + 1].sum() / math.sqrt(b - a + 1)) for a, b in spans.values()
    )
    past = past if half else -past
    z = min(abs(coming), abs(past)) * math.sqrt(weight)
    if abs(coming) < (SUSPECT_HALF if half else SUSPECT_START) or z < WITHIN_DEVIATIONS:
        return
    if WITHIN_RATIO <= past / coming <= 1.0 / WITHIN_RATIO and abs(after) <= WITHIN_END * abs(coming):
        bad = half and abs(coming) >= HALF and z >= PERIOD_DEVIATIONS
        where = f"and the sessions before it, as strongly as with those before the step, {when}"
        yield _Alarm("fail" if bad else "warn", "the return", spans["coming"][1], coming, where)


def _exact_countdown(data: Delivery, name: str, x_TN: FloatArray) -> Finding | None:
    """Find a countdown to events of a firm that is never revised, although its lengths vary.

    An event date that is announced has no countdown before, and an estimated one is revised. A countdown that
    starts again right after each event with the exact number of sessions, or days, knows the next event.
    """
    some = x_TN[:: max(len(x_TN) // 40, 1)]
    if (some != np.rint(some))[np.isfinite(some)].any():
        return None
    now_TN, step_TN = x_TN[:-1], np.diff(x_TN, axis=0)
    days_T1 = np.diff(data.panel.dates_T.astype(np.float64))[:, None]
    for unit, tick_T1 in (("sessions", np.ones_like(days_T1)), ("days", days_T1)):
        reached_TN = (step_TN > 0) & (now_TN <= tick_T1)
        events = int(reached_TN.sum())
        revised_TN = np.isfinite(step_TN) & (step_TN != -tick_T1) & ~reached_TN
        if events < EVENTS or revised_TN.sum() > REVISED * events:
            continue
        lengths = [x_TN[1:, n][reached_TN[:, n]] for n in np.flatnonzero(reached_TN.sum(axis=0) >= 3)]
        if len(lengths) < _COUNTED:
            continue
        usual = [float(np.median(own)) for own in lengths]
        spread = float(
            np.mean([np.abs(own / long - 1.0).mean() for own, long in zip(lengths, usual, strict=True)])
        )
        if spread >= LENGTHS:
            sentence = (
                f"{name[0].upper()}{name[1:]} knows dates of events before they were announced: it counts "
                f"the {unit} to {events:,} events with {int(revised_TN.sum())} revisions, each from the "
                f"session after the event before, and the times between them vary by {spread:.0%}. Deliver a "
                "date from the day on which it was announced, or the estimates of each day."
            )
            return Finding("countdown", "fail", sentence, spread, LENGTHS)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """Common factors of returns: firms, their loadings [N, K], and the factors' returns [T, K]."""

    firms_N: IntArray
    loading_NK: FloatArray
    return_TK: FloatArray

    @classmethod
    def of(cls, data: Delivery) -> Self:
        """Make the factors of the firms with most returns."""
        x_TN = news.clipped(data.return_TN)
        firms_N = news.most_known(x_TN)
        loading_NK = _components(x_TN[:, firms_N], FACTORS)
        return cls(firms_N, loading_NK, news.clipped(x_TN[:, firms_N] @ loading_NK))

    def alarms(self, news_TN: Float32Array) -> Iterator[_Alarm]:
        """Compare common series of an input's news with the factors of the next sessions.

        A rate of a later session, and its products with betas, have a mean correlation of zero with the
        firms' returns if the betas differ in sign, but move with a factor. The series are the news itself if
        all firms have the same; else its own principal components, and its projections on the loadings.
        What the factors of t tell of both sides is subtracted: factors echo.
        """
        series_TJ = news_TN.astype(np.float64)
        if news_TN.shape[1] > 1:
            series_TJ = series_TJ[:, self.firms_N]
            series_TJ = series_TJ @ np.hstack([_components(series_TJ, _SERIES), self.loading_NK])
        best = (0.0, 0.0, 0, 0, 0.0)
        for lead, series_T in itertools.product(range(1, NEAR + 1), series_TJ.T):
            known_T = series_T[:-lead] != 0
            if known_T.sum() < _FEWEST:
                continue
            now_TK, later_TK = (x[known_T] for x in (self.return_TK[:-lead], self.return_TK[lead:]))
            both = np.column_stack([series_T[:-lead][known_T], later_TK])
            design = np.column_stack([np.ones(len(now_TK)), now_TK])
            both = news.clipped(both - design @ np.linalg.lstsq(design, both, rcond=None)[0])
            sums_K5 = news.sums_by_part(
                np.repeat(both[:, :1], FACTORS, axis=1).astype(np.float32),
                both[:, 1:].astype(np.float32),
                0,
                1,
            )[0]
            c_K, z_K = news.correlations(sums_K5)
            k = int(z_K.argmax())
            if abs(c_K[k]) >= SUSPECT_FACTOR and z_K[k] >= SUSPECT_FACTOR_DEVIATIONS:
                best = max(best, (abs(c_K[k]), float(z_K[k]), lead, k, float(c_K[k])))
        size, z, lead, k, c = best
        if lead:
            where = "beyond what the factors of t tell (a series for many firms, such as a rate or an index)"
            verdict: Verdict = "fail" if size >= FACTOR and z >= FACTOR_DEVIATIONS else "warn"
            yield _Alarm(verdict, f"common factor {k + 1} of the returns", lead, c, where)


def _components(x_TN: FloatArray, count: int) -> FloatArray:
    """Loadings [N, K] of the largest principal components; fewer than ``count`` of fewer firms are zeros."""
    vectors_NN = np.linalg.eigh(x_TN.T @ x_TN)[1][:, ::-1][:, :count]
    return np.asarray(np.pad(vectors_NN, ((0, 0), (0, count - vectors_NN.shape[1]))))


def _for_the_market(data: Delivery, news_T1: Float32Array) -> Iterator[_Alarm]:
    """Compare a column with one value for all firms of a date with the means over the firms."""
    moves_T1 = news.mean_of_firms(np.clip(daily_return(data.panel)[:, data.columns], -0.9, 3.0))
    means = {"the return": moves_T1, "the size of the return": np.log(np.abs(moves_T1) + 1e-3)}
    if data.panel.volume_TN is not None:
        means["the volume"] = news.mean_of_firms(np.log1p(data.panel.volume_TN[:, data.columns]))
    for what, mean_T1 in means.items():
        for alarm in _for_all_firms(what, news_T1, news.news(mean_T1, 5).astype(np.float32)):
            yield replace(alarm, what=f"{alarm.what} of the market")


def _alarms(
    data: Delivery, value_TN: FloatArray, x_TN: Float32Array, later: dict[str, Float32Array]
) -> Iterator[_Alarm]:
    all_TN = x_TN
    if len(np.unique(value_TN[np.isfinite(value_TN)])) <= FLAG:
        echo_N = _echoes(x_TN, later)
        x_TN = np.where(echo_N, np.float32(0.0), x_TN)
        all_TN = np.zeros_like(x_TN) if echo_N.mean() > 0.5 else all_TN
    for what, y_TN in later.items():
        yield from _for_all_firms(what, all_TN, y_TN)
        for k in range(1, NEAR + 1):
            sums_PN5 = news.sums_by_part(x_TN, y_TN, k, _EIGHTHS)
            yield from _for_single_firms(what, k, sums_PN5, data)
            yield from _for_sizes(what, k, sums_PN5.sum(axis=0), data)
        yield from _on_dates(what, all_TN, y_TN, data)


def _echoes(x_TN: Float32Array, later: dict[str, Float32Array]) -> BoolArray:
    """Firms whose flags are about the return of their own session, and not of those after it.

    Firms with too few flags are judged together.
    """

    def links(lead: int) -> FloatArray:
        """Strongest link of each firm, and of all that have none by themselves."""
        found = []
        for what in ("the return", "the size of the return"):
            sums_N5 = news.sums_by_part(x_TN, later[what], lead, 1)[0]
            c_N = news.correlations(sums_N5)[0]
            rest = sums_N5[c_N == 0].sum(axis=0, keepdims=True)
            found.append(np.abs(np.where(c_N == 0, news.correlations(rest)[0], c_N)))
        return np.asarray(np.max(found, axis=0))

    now_N, then_N = links(0), np.max([links(k) for k in range(1, NEAR + 1)], axis=0)
    return np.asarray(then_N < ECHO * now_N)


def _for_all_firms(what: str, x_TN: Float32Array, y_TN: Float32Array) -> Iterator[_Alarm]:
    c_K, weight = news.pooled_correlations(x_TN, y_TN)
    least = DEVIATIONS / math.sqrt(max(weight, 1.0))
    k = int(np.abs(c_K).argmax())
    where = "over all firms"
    limit = max(POOLED[what], POOLED_NEXT) if k == 0 else max(POOLED[what], POOLED_LATER.get(what, 0.0))
    if abs(c_K[k]) >= max(limit, least):
        yield _Alarm("fail", what, k + 1, float(c_K[k]), where)
    elif what == "the return" and abs(c_K[0]) >= max(SUSPECT, least):
        chance = "(an honest input of this strength is rare: fewer than 1 in 20)"
        yield _Alarm("warn", what, 1, float(c_K[0]), f"{where} {chance}")
    if what != "the return":
        return
    for h in (5, 21):
        total = float(c_K[:h].sum() / math.sqrt(h))
        if abs(total) >= max(SUM, SUM_DEVIATIONS / math.sqrt(max(weight, 1.0))):
            yield _Alarm("fail", "the returns", h, total, f"and the sessions before it, {where}")


def _for_single_firms(what: str, k: int, sums_PN5: FloatArray, data: Delivery) -> Iterator[_Alarm]:
    """Firms over the whole sample, and within quarters and eighths of it."""
    T = data.panel.n_sessions
    several = 2 if what == "the return" else 3  # the volume of a single firm may repeat itself for a year
    for part, of in ((0, 1), *_PARTS):
        each, whole = _EIGHTHS // of, of == 1
        c_N, z_N = news.correlations(sums_PN5[part * each : (part + 1) * each].sum(axis=0))
        if whole:
            hit_N = (np.abs(c_N) >= FIRM) & (z_N >= DEVIATIONS)
            alone_N = hit_N & (np.abs(c_N) >= LONE_FIRM)
        else:
            hit_N = (np.abs(c_N) >= PART) & (z_N >= PART_DEVIATIONS)
            alone_N = hit_N & (z_N >= DEVIATIONS)
        if hit_N.sum() < several and not (what == "the return" and alone_N.any()):
            continue
        strongest = data.columns[np.argsort(-np.abs(np.where(hit_N, c_N, 0.0)))[: int(hit_N.sum())]]
        since, until = data.day(T * part // of), data.day(T * (part + 1) // of - 1)
        when = "" if whole else f"between {since} and {until} "
        yield _Alarm("fail", what, k, float(c_N[np.abs(c_N).argmax()]), f"{when}for {data.firms(strongest)}")


def _on_dates(what: str, x_TN: Float32Array, y_TN: Float32Array, data: Delivery) -> Iterator[_Alarm]:
    """Single dates with a high IC, and kinds of dates with a high correlation."""
    now_T = news.ics(news.sums_by_session(x_TN, y_TN, 0))[0]
    usual_T = np.concatenate([_clear(*_ics(x_TN, y_TN, k, now_T)) for k in _FAR])
    usual_T = usual_T[np.isfinite(usual_T)]
    if not len(usual_T):
        return
    share_then = float((usual_T != 0).mean())
    for k in range(1, NEAR + 1):
        sums_T6 = news.sums_by_session(x_TN, y_TN, k)
        ic_T = _clear(*_ics(x_TN, y_TN, k, now_T))
        hits = np.flatnonzero(np.isfinite(ic_T) & (ic_T != 0))
        share = len(hits) / max(int(np.isfinite(ic_T).sum()), 1)
        if len(hits) >= DATES and share >= max(DATE_SHARE[what], DATE_RATIO * share_then):
            weekdays = {f"{data.day(int(t)):%A}" for t in hits}
            on = f", all of them {weekdays.pop()}s" if len(weekdays) == 1 else ""
            where = f"on {len(hits)} dates ({share:.0%}) since {data.day(int(hits[0]))}{on}"
            yield _Alarm("fail", what, k, float(np.median(np.abs(ic_T[hits]))), where)
        for name, chosen_T in _kinds(data).items():
            c, t = news.on_sessions(sums_T6, chosen_T)
            if abs(c) >= KIND[what] and abs(t) >= DEVIATIONS:
                yield _Alarm("fail", what, k, c, f"over all firms on {name}")


def _ics(x_TN: Float32Array, y_TN: Float32Array, k: int, now_T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ICs with what the session's own values do not tell of those ``k`` sessions later, and their |z|.

    At a daily limit, moves go on for all firms that reached it, and an IC with today's is one with
    tomorrow's.
    """
    ic_T, z_T = news.ics(news.sums_by_session(x_TN, y_TN, k))
    on_T = np.nan_to_num(news.ics(news.sums_by_session(y_TN, y_TN, k))[0])
    own_T = (ic_T - np.nan_to_num(now_T) * on_T) / np.sqrt(np.maximum(1.0 - on_T**2, 1e-6))
    return own_T, z_T


def _clear(ic_T: FloatArray, z_T: FloatArray) -> FloatArray:
    """ICs that are large and no chance of few firms, else 0; NaN where unknown."""
    return np.where(np.isfinite(ic_T) & ~((np.abs(ic_T) > DATE) & (z_T >= DATE_DEVIATIONS)), 0.0, ic_T)


def _kinds(data: Delivery) -> dict[str, BoolArray]:
    """Sessions of each weekday, calendar month and year."""
    dates_T = data.panel.dates_T
    weekday_T = (dates_T.astype(np.int64) + 3) % 7
    month_T = dates_T.astype("datetime64[M]").astype(np.int64) % 12
    year_T = dates_T.astype("datetime64[Y]").astype(np.int64) + 1970
    days = {f"{calendar.day_name[day]}s": weekday_T == day for day in np.unique(weekday_T)}
    months = {f"sessions of {calendar.month_name[m + 1]}": month_T == m for m in np.unique(month_T)}
    return days | months | {f"sessions of {year}": year_T == year for year in np.unique(year_T)}


def _for_sizes(what: str, k: int, sums_N5: FloatArray, data: Delivery) -> Iterator[_Alarm]:
    """Quintiles of firms by their mean dollar volume, or by price without volumes."""
    panel, chosen = data.panel, data.columns
    size_TN = panel.raw_close_TN[:, chosen]
    if panel.volume_TN is not None:
        size_TN = size_TN * panel.volume_TN[:, chosen]
    size_N = news.mean_of_firms(size_TN.T)[:, 0]
    known = np.flatnonzero(np.isfinite(size_N))
    if len(known) < _SIZES * _FEWEST_PER_SIZE:
        return
    order = known[np.argsort(size_N[known], kind="stable")]
    for rank, firms in enumerate(np.array_split(order, _SIZES)):
        pairs, product, x, y, fourth = sums_N5[firms].sum(axis=0)
        c = product / max(math.sqrt(x * y), 1e-300)
        z = abs(c) * math.sqrt(min(pairs, x**2 / max(fourth, 1e-300)))
        if abs(c) >= KIND[what] and z >= DEVIATIONS:
            yield _Alarm("fail", what, k, c, f"over the firms of size quintile {rank + 1} of {_SIZES}")
