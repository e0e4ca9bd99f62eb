"""Inputs that know later sessions: their news correlates with what happens after it, at a lead.

The news of an honest input is known at t. It may forecast later returns a little, but it cannot match them: a
forecast decays over the leads, while a window that reaches ahead has a cliff. The check looks at every lead
up to a year for all firms together; and, because a mixture hides in a mean, at the next sessions for every
firm, for every date, and for quarters of the sample of every firm.

Shape suffixes: T sessions, N firms, K leads, P parts of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import FloatArray
from pipelines.audit.result import Result, Verdict
from pipelines.audit.series import demeaned, input_values, news, residual_returns, steps
from pipelines.audit.subject import Subject

NAME = "leads"
LEADS: Final = 252
"""Largest lead in sessions."""
NEAR: Final = 3
"""Largest lead at which single firms and dates are looked at."""
FIRM: Final = 0.40
"""Minimum |correlation| of a firm's news with the next sessions, for at least two firms (three with volume).
Honest inputs reach 0.34 (a flag, with the size of the return), and less than 0.20 with the return itself."""
LONE_FIRM: Final = 0.60
"""The same for one firm alone, with the return."""
PART: Final = 0.55
"""The same within a quarter or an eighth of the sample; honest inputs reach 0.43."""
PART_DEVIATIONS: Final = 6.0
"""Minimum z statistic of each of several firms within a part."""
DATE: Final = 0.60
DATE_SHARE: Final = 0.02
"""Minimum share of dates with an |IC| above `DATE`. It is at most 1.4% for honest inputs, and then just as
large at leads of 20 to 35 sessions, because common factors make such dates."""
DATE_RATIO: Final = 4.0
DATES: Final = 8
"""Minimum number of such dates. An input with news on few dates has too few of them to judge."""
DATE_DEVIATIONS: Final = 3.5
"""Minimum z of the IC of a date: with 20 firms an IC of 0.6 is chance."""
POOLED: Final = {"the return": 0.12, "the size of the return": 0.12, "the volume": 0.30}
"""Minimum |mean correlation| over all firms at one lead. Honest inputs reach 0.03 with the return, 0.05 with
its size and 0.16 with volume, which weeks and expiries make predictable."""
POOLED_NEXT: Final = 0.15
"""Lower bound of the same at a lead of one session, where honest forecasts are strongest."""
SUM: Final = 0.20
"""Minimum |correlation| with the sum of the returns of the next 5 or 21 sessions; honest inputs stay below
0.10."""
SUSPECT: Final = 0.05
"""Mean correlation with the next session's return above which an input is suspect."""
DEVIATIONS: Final = 8.0
"""Minimum z statistic of every other alarm. About a million correlations are looked at, and returns have fat
tails."""
_FIRMS: Final = 160
"""Firms whose leads up to a year are looked at; only their mean counts."""
_QUICK_FIRMS: Final = 300
_FEWEST: Final = 40
_FEWEST_FIRMS: Final = 15
_PARTS: Final = tuple((part, of) for of in (4, 8) for part in range(of))
"""Parts of the sample: (number, of how many)."""
_FAR: Final = (20, 25, 30, 35)
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class _Alarm:
    """One way in which an input knows a series too early."""

    verdict: Verdict
    what: str
    lead: int
    correlation: float
    where: str


def check(subject: Subject) -> Result:
    """Correlate the news of each input with the news of returns, their size and volume at later sessions."""
    if not subject.inputs:
        return Result(NAME, "skipped", "The config has no inputs.")
    later = _later_series(subject)
    found = [
        (name, alarm)
        for name in subject.inputs
        for alarm in _alarms(subject, _news_of_input(input_values(subject, name)[:, _chosen(subject)]), later)
    ]
    evidence = pl.DataFrame(
        [{"input": name, **{key: getattr(alarm, key) for key in _Alarm.__slots__}} for name, alarm in found],
        infer_schema_length=None,
    )
    if not found:
        return Result(
            NAME,
            "pass",
            f"The news of none of {len(subject.inputs)} inputs match returns, their size or volume at a "
            "later session, for all firms, single firms, single dates or parts of the sample.",
        )
    name, alarm = min(found, key=lambda one: (one[1].verdict != "fail", -abs(one[1].correlation)))
    other = list(dict.fromkeys(one for one, _ in found if one != name))
    also = f" Also: {', '.join(other)}." if other else ""
    sessions = "session" if alarm.lead == 1 else f"{alarm.lead} sessions"
    if alarm.verdict == "warn":
        sentence = (
            f"Input {name} may know the next session: its news at t correlate by {alarm.correlation:+.2f} "
            f"with {alarm.what} of t+{alarm.lead} {alarm.where}. Few honest signals are as strong: compare "
            f"it with an earlier delivery (audit --vintage).{also}"
        )
        return Result(NAME, "warn", sentence, evidence)
    return Result(
        NAME,
        "fail",
        f"Input {name} knows later sessions: its news at t correlate by {alarm.correlation:+.2f} with "
        f"{alarm.what} of t+{alarm.lead} {alarm.where}. It is probably dated {sessions} too early, or its "
        f"window reaches ahead: compare its dates there with when each value was published.{also}",
        evidence,
    )


def _chosen(subject: Subject) -> npt.NDArray[np.int64]:
    """Firms to look at: all, and for a quick audit a sample of at most 300."""
    count = subject.dataset.panel.n_firms
    if not subject.budget.quick or count <= _QUICK_FIRMS:
        return np.arange(count)
    return np.sort(np.random.default_rng(subject.seed).choice(count, _QUICK_FIRMS, replace=False))


def _later_series(subject: Subject) -> dict[str, FloatArray]:
    """News of what an input may know too early."""
    chosen = _chosen(subject)
    return_TN = residual_returns(subject)[:, chosen]
    series = {
        "the return": news(return_TN, 3),
        "the size of the return": news(demeaned(np.log(np.abs(return_TN) + 1e-3)), 5),
    }
    volume_TN = subject.dataset.panel.volume_TN
    if volume_TN is not None:
        series["the volume"] = news(demeaned(np.log1p(volume_TN))[:, chosen], 5)
    return series


def _news_of_input(x_TN: FloatArray) -> FloatArray:
    steps_TN = steps(x_TN)
    return np.where(np.isfinite(steps_TN), steps_TN, news(x_TN, 1))


def _alarms(subject: Subject, x_TN: FloatArray, later: dict[str, FloatArray]) -> Iterator[_Alarm]:
    for what, y_TN in later.items():
        yield from _for_all_firms(what, x_TN, y_TN)
        yield from _for_single_firms(what, x_TN, y_TN, subject)
        yield from _for_parts(what, x_TN, y_TN, subject)
        yield from _on_single_dates(what, x_TN, y_TN, subject)


def _for_all_firms(what: str, x_TN: FloatArray, y_TN: FloatArray) -> Iterator[_Alarm]:
    c_K, weight = pooled_correlations(x_TN, y_TN)
    least = DEVIATIONS / math.sqrt(max(weight, 1.0))
    k = int(np.abs(c_K).argmax())
    where = "over all firms"
    if abs(c_K[k]) >= max(POOLED[what], POOLED_NEXT if k == 0 else 0.0, least):
        yield _Alarm("fail", what, k + 1, float(c_K[k]), where)
    elif what == "the return" and abs(c_K[0]) >= max(SUSPECT, least):
        chance = "(an honest input of this strength is rare: fewer than 1 in 20)"
        yield _Alarm("warn", what, 1, float(c_K[0]), f"{where} {chance}")
    if what != "the return":
        return
    for h in (5, 21):
        total = float(c_K[:h].sum() / math.sqrt(h))
        if abs(total) >= max(SUM, least):
            yield _Alarm("fail", "the returns", h, total, f"and the sessions before it, {where}")


def _for_single_firms(what: str, x_TN: FloatArray, y_TN: FloatArray, subject: Subject) -> Iterator[_Alarm]:
    for k in range(1, NEAR + 1):
        c_N, z_N = correlations(x_TN[:-k], y_TN[k:])
        hit_N = (np.abs(c_N) >= FIRM) & (z_N >= DEVIATIONS)
        lone = what == "the return" and bool((hit_N & (np.abs(c_N) >= LONE_FIRM)).any())
        if hit_N.sum() >= _several(what) or lone:
            yield _Alarm("fail", what, k, _strongest(c_N), f"for {_firms(hit_N, c_N, subject)}")


def _for_parts(what: str, x_TN: FloatArray, y_TN: FloatArray, subject: Subject) -> Iterator[_Alarm]:
    T = len(x_TN)
    for k in range(1, NEAR + 1):
        for part, of in _PARTS:
            rows = slice(T * part // of, T * (part + 1) // of - k)
            c_N, z_N = correlations(x_TN[rows], y_TN[rows.start + k : rows.stop + k])
            hit_N = (np.abs(c_N) >= PART) & (z_N >= PART_DEVIATIONS)
            lone = what == "the return" and bool((hit_N & (z_N >= DEVIATIONS)).any())
            if hit_N.sum() >= _several(what) or lone:
                span = f"between {subject.day(rows.start)} and {subject.day(rows.stop)}"
                yield _Alarm("fail", what, k, _strongest(c_N), f"{span} for {_firms(hit_N, c_N, subject)}")


def _on_single_dates(what: str, x_TN: FloatArray, y_TN: FloatArray, subject: Subject) -> Iterator[_Alarm]:
    usual_T = np.concatenate([_clear_ics(x_TN[:-k], y_TN[k:]) for k in _FAR])
    usual_T = usual_T[np.isfinite(usual_T)]
    if not len(usual_T):
        return
    share_then = float((usual_T != 0).mean())
    for k in range(1, NEAR + 1):
        ic_T = _clear_ics(x_TN[:-k], y_TN[k:])
        hits = np.flatnonzero(np.isfinite(ic_T) & (ic_T != 0))
        share = len(hits) / max(int(np.isfinite(ic_T).sum()), 1)
        if len(hits) >= DATES and share >= max(DATE_SHARE, DATE_RATIO * share_then):
            weekdays = {f"{subject.day(int(t)):%A}" for t in hits}
            on = f", all of them {weekdays.pop()}s" if len(weekdays) == 1 else ""
            where = f"on {len(hits)} dates ({share:.0%}) since {subject.day(int(hits[0]))}{on}"
            yield _Alarm("fail", what, k, float(np.median(np.abs(ic_T[hits]))), where)


def _several(what: str) -> int:
    """Minimum number of firms: the volume of a single firm may repeat itself for a year."""
    return 2 if what == "the return" else 3


def _strongest(c_N: FloatArray) -> float:
    return float(c_N[np.abs(c_N).argmax()])


def _firms(hit_N: npt.NDArray[np.bool_], c_N: FloatArray, subject: Subject) -> str:
    order = np.argsort(-np.abs(np.where(hit_N, c_N, 0.0)))[: min(int(hit_N.sum()), _NAMED)]
    names = ", ".join(subject.dataset.panel.tickers_N[n] for n in _chosen(subject)[order])
    count = int(hit_N.sum())
    return f"{count} firm{'s' if count > 1 else ''} ({names}{', ...' if count > _NAMED else ''})"


def _effective(x_TN: FloatArray) -> FloatArray:
    """Effective number of news per firm: (sum of squares)^2 / sum of fourth powers."""
    square_N, fourth_N = (x_TN**2).sum(axis=0), (x_TN**4).sum(axis=0)
    return np.asarray(square_N**2 / np.maximum(fourth_N, 1e-300))


def correlations(x_TN: FloatArray, y_TN: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlation per firm of two arrays of news, and its |z| under no dependence.

    0 marks an unknown value. Both are 0 for a firm with fewer than 40 effective observations.
    """
    both_TN = (x_TN != 0) & (y_TN != 0)
    x_TN, y_TN = np.where(both_TN, x_TN, 0.0), np.where(both_TN, y_TN, 0.0)
    size_N = np.sqrt((x_TN**2).sum(axis=0) * (y_TN**2).sum(axis=0))
    count_N = np.minimum(_effective(x_TN), both_TN.sum(axis=0))
    enough_N = count_N >= _FEWEST
    c_N = np.where(enough_N, (x_TN * y_TN).sum(axis=0) / np.maximum(size_N, 1e-300), 0.0)
    z_N = np.abs(c_N) * np.sqrt(count_N) / np.sqrt(np.maximum(1.0 - c_N**2, 1e-6))
    return c_N, z_N


def _clear_ics(x_TN: FloatArray, y_TN: FloatArray) -> FloatArray:
    """Correlation over the firms of each date where it is large and no chance of few firms, else 0.

    NaN on dates with fewer than 15 firms. In the arrays, 0 marks an unknown value.
    """
    both_TN = (x_TN != 0) & (y_TN != 0)
    count_T = both_TN.sum(axis=1)

    def centred(z_TN: FloatArray) -> FloatArray:
        total_T = np.where(both_TN, z_TN, 0.0).sum(axis=1)
        return np.where(both_TN, z_TN - (total_T / np.maximum(count_T, 1))[:, None], 0.0)

    x_TN, y_TN = centred(x_TN), centred(y_TN)
    size_T = np.sqrt((x_TN**2).sum(axis=1) * (y_TN**2).sum(axis=1))
    ic_T = (x_TN * y_TN).sum(axis=1) / np.maximum(size_T, 1e-300)
    z_T = np.abs(np.arctanh(np.clip(ic_T, -0.999, 0.999))) * np.sqrt(np.maximum(count_T - 3, 0))
    clear_T = np.where((np.abs(ic_T) > DATE) & (z_T >= DATE_DEVIATIONS), ic_T, 0.0)
    return np.where((count_T >= _FEWEST_FIRMS) & (size_T > 0), clear_T, np.nan)


def pooled_correlations(x_TN: FloatArray, y_TN: FloatArray) -> tuple[FloatArray, float]:
    """Mean correlation over firms at leads 1 to 252, and the effective number of observations."""
    chosen = np.argsort(-(x_TN != 0).sum(axis=0), kind="stable")[:_FIRMS]
    x_TN, y_TN = x_TN[:, chosen], y_TN[:, chosen]
    T = len(x_TN)
    leads = min(LEADS, T // 3)
    size = 1 << (T + leads - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(x_TN, size, axis=0)) * np.fft.rfft(y_TN, size, axis=0)
    product_KN = np.fft.irfft(spectrum, size, axis=0)[1 : leads + 1]
    # the energy of y on as many sessions as x has news
    share_N = np.minimum((x_TN != 0).sum(axis=0) / np.maximum((y_TN != 0).sum(axis=0), 1), 1.0)
    energy_N = np.sqrt((x_TN**2).sum(axis=0) * (y_TN**2).sum(axis=0) * share_N)
    weight_N = np.where(energy_N > 0, _effective(x_TN), 0.0)
    used_N = weight_N >= 5
    if not used_N.any():
        return np.zeros(max(leads, 1)), 0.0
    share_K1 = (T / (T - np.arange(1, leads + 1)))[:, None]
    c_KN = share_K1 * product_KN[:, used_N] / energy_N[used_N]
    return (c_KN * weight_N[used_N]).sum(axis=1) / weight_N[used_N].sum(), float(weight_N[used_N].sum())
