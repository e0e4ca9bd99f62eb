"""Share counts of a filing: classes of stock are added up, and a count of one class alone is left out.

A market value needs the shares of all classes. The SEC's company facts are of the whole firm only, so a firm
with several classes often has no count on its cover page there, or that of one class. The mean over the
period, which the earnings per share are made with, is of all classes.
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
"""A count below this share of the mean over the period is of one class, or in another unit. No firm buys back
half of its shares before the cover page's day, and a split in between changes the mean as well."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact that may become the value of an item; ``months`` is None for an instant."""

    tag: str
    rank: int
    unit: str
    start: dt.date | None
    months: int | None
    value: float
    member: str = ""  # the class of stock, of a count that is of one alone


Period = tuple[str, dt.date]  # item, period's end


def settle_counts(own: dict[Period, list[Candidate]]) -> tuple[int, int]:
    """Replace a filing's share counts by those that are of the whole firm.

    Of one tag and instant, a count without a class is the firm's. Without one, the counts of two or more
    classes are added up. Several different counts without a class, a single class, and a count below
    `LEAST_OF_MEAN` of the filing's newest mean by then are left out, so that the next best tag counts.

    Parameters
    ----------
    own
        The filing's candidates by item and period's end; changed in place.

    Returns
    -------
    summed, partial : int
        Counts that were added up over classes, and counts that were left out.
    """
    periods = sorted(period for period in own if period[0] == SHARE_COUNT)
    given = {period: own.pop(period) for period in periods}
    whole = {period: list(_whole(candidates)) for period, candidates in given.items()}
    summed = sum(bool(one.member) for counts in whole.values() for one in counts)
    partial = sum(len(_by_tag(given[period])) - len(whole[period]) for period in periods)
    mean: float | None = None
    for period in periods:  # by their ends
        means = [one for one in whole[period] if one.tag in AVERAGES]
        mean = max(means, key=_start).value if means else mean
        kept = [one for one in whole[period] if mean is None or one.value >= LEAST_OF_MEAN * mean]
        kept = [replace(one, member="") for one in kept]
        partial += len(whole[period]) - len(kept)
        if kept:
            own[period] = kept
    return summed, partial


def _whole(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Give the firm's count of each tag, unit and span; one that was added up keeps the name of a class."""
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
