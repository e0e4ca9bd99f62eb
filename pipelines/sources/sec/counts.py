"""Share counts of a filing: counts of all classes of stock are summed, those of a single class dropped.

A market value needs the shares of all classes. The SEC's company facts describe the whole firm only, so a
firm with several classes often has no cover-page count there, or that of one class. The mean over the period,
which earnings per share are computed with, covers all classes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from pipelines.sources.items import SHARE_COUNT
from pipelines.sources.sec.items import AVERAGES

LEAST_OF_MEAN: Final = 0.5
"""A count below this fraction of the mean over the period covers a single class, or is in another unit: no
firm buys back half of its shares before the date of the cover page, and a split in between changes the mean
too."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact that may become the value of an item; ``months`` is None for an instant."""

    tag: str
    rank: int
    unit: str
    start: dt.date | None
    months: int | None
    value: float
    member: str = ""  # the class of stock, if the count covers a single class


Period = tuple[str, dt.date]  # item, period's end


def resolve_share_counts(candidates: dict[Period, list[Candidate]]) -> tuple[int, int]:
    """Replace a filing's share counts by counts of the whole firm.

    Among facts of one tag and instant, a count without a class is the firm's. If there is none, the counts of
    two or more classes are added up. Several different counts without a class, a single class, and a count
    below `LEAST_OF_MEAN` times the newest mean of the filing up to that date are dropped, so that the next
    best tag is used.

    Parameters
    ----------
    candidates
        The filing's candidates by item and end of period; changed in place.

    Returns
    -------
    summed, partial : int
        Number of counts that were added up over classes, and number of counts that were dropped.
    """
    periods = sorted(period for period in candidates if period[0] == SHARE_COUNT)
    by_period = {period: candidates.pop(period) for period in periods}
    of_firm = {period: list(_whole_firm_counts(counts)) for period, counts in by_period.items()}
    summed = sum(bool(one.member) for counts in of_firm.values() for one in counts)
    partial = sum(len(_by_tag(by_period[period])) - len(of_firm[period]) for period in periods)
    mean: float | None = None
    for period in periods:  # ascending by end date
        means = [one for one in of_firm[period] if one.tag in AVERAGES]
        mean = max(means, key=_start).value if means else mean
        kept = [one for one in of_firm[period] if mean is None or one.value >= LEAST_OF_MEAN * mean]
        kept = [replace(one, member="") for one in kept]
        partial += len(of_firm[period]) - len(kept)
        if kept:
            candidates[period] = kept
    return summed, partial


def _whole_firm_counts(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Yield the firm's count for each tag, unit and span; a sum over classes keeps the name of a class."""
    for facts in _by_tag(candidates):
        classes = {fact.member: fact.value for fact in facts if fact.member}
        firm = {fact.value for fact in facts if not fact.member}
        values = {(fact.member, fact.value) for fact in facts if fact.member}
        if len(firm) == 1:
            yield next(fact for fact in facts if not fact.member)
        elif not firm and len(classes) > 1 and len(values) == len(classes):
            yield replace(facts[0], value=sum(classes.values()))


def _by_tag(candidates: list[Candidate]) -> list[list[Candidate]]:
    def key(fact: Candidate) -> tuple[str, str, int]:
        return fact.tag, fact.unit, _start(fact)

    return [list(facts) for _, facts in groupby(sorted(candidates, key=key), key=key)]


def _start(fact: Candidate) -> int:
    return 0 if fact.start is None else fact.start.toordinal()
