"""Walk-forward folds of fixed lengths: expanding or rolling training, counted from the end or from the start.

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backtest.splits.fold import Fold, label_span, require_at_least, sessions_between

Scheme = Literal["expanding", "rolling"]
Anchor = Literal["end", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How sessions are split into folds. Lengths count decision dates; gaps are added between segments.

    Attributes
    ----------
    scheme : {"expanding", "rolling"}
        Training dates start at ``first`` in every fold (expanding), or are always the last ``train`` dates
        before the gap (rolling).
    train, valid, test : int
        Decision dates per segment, at least 1. For ``expanding``, the first fold has at least ``train``.
    embargo : int
        Sessions left out in addition to the purge, at least 0. It has no default and must be set.
    step : int or None
        Sessions between the starts of two test segments, at least ``test``, so that tests never overlap;
        None: ``test``.
    max_folds : int or None
        Keep only this many folds: the latest with ``anchor="end"``, the earliest with ``"start"``. None: all
        that fit.
    anchor : {"end", "start"}
        Where test segments are counted from. ``end``: the newest session with a known label is the last one
        of the last test, and the segments before it follow backwards. ``start``: the first test starts as
        early as possible, and up to ``step - 1`` of the newest sessions are in no test.
    first : int
        First usable session.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    scheme: Scheme
    train: int
    valid: int
    test: int
    embargo: int
    step: int | None = None
    max_folds: int | None = None
    anchor: Anchor = "end"
    first: int = 0

    def __post_init__(self) -> None:
        if self.scheme not in ("expanding", "rolling"):
            msg = f"Unknown scheme {self.scheme!r}: choose expanding or rolling."
            raise ValueError(msg)
        if self.anchor not in ("end", "start"):
            msg = f"Unknown anchor {self.anchor!r}: choose end or start."
            raise ValueError(msg)
        lengths = {"train": self.train, "valid": self.valid, "test": self.test}
        require_at_least(1, {**lengths, "max_folds": self.max_folds})
        require_at_least(0, {"embargo": self.embargo, "first": self.first})
        if self.step is not None and self.step < self.test:
            msg = (
                f"step is {self.step} and test is {self.test}; step must be at least test, or tests overlap."
            )
            raise ValueError(msg)


def make_folds(n_sessions: int, plan: FoldPlan, delay: int, horizon: int) -> list[Fold]:
    """Split sessions into walk-forward folds of fixed lengths.

    With ``gap = delay + horizon + embargo``, a fold whose test starts at session ``e`` has the test dates
    ``[e, e + test)`` and the validation dates ``[e - gap - valid, e - gap)``, and its training dates end
    ``gap`` sessions before those. Every date t before a segment that starts at s therefore has
    ``t + delay + horizon + embargo < s``. Successive tests start ``step`` sessions apart.

    All folds are complete: every ``test`` date fits, its label ends inside the data, and there are at least
    ``train`` training dates. With ``anchor="end"`` the last test ends with the newest date whose label is
    known; appending a session moves every fold by one session. With ``anchor="start"`` the first test starts
    at ``first + train + gap + valid + gap``; new sessions add folds and change none.

    Parameters
    ----------
    n_sessions : int
        Sessions in the data.
    plan : FoldPlan
        Lengths, embargo, scheme and anchor.
    delay : int
        Sessions between decision and trade, at least 0.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    list of Fold
        At least one, in time order, with disjoint test segments.

    Raises
    ------
    ValueError
        If no fold fits (the message gives the number of sessions needed), or delay or horizon is out of
        range.
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    step = plan.test if plan.step is None else plan.step
    first_test = plan.first + plan.train + gap + plan.valid + gap
    needed = first_test + plan.test + span
    if needed > n_sessions:
        msg = (
            f"One fold needs {needed} sessions ({plan.first} before the first usable one, "
            f"train {plan.train}, valid {plan.valid}, test {plan.test}, "
            f"two gaps of {gap} = delay {delay} + horizon {horizon} + embargo {plan.embargo}, "
            f"and {span} for the last label), but there are {n_sessions}: "
            "shorten train, valid or test, or use a longer history."
        )
        raise ValueError(msg)
    fitting = (n_sessions - needed) // step + 1
    n_folds = fitting if plan.max_folds is None else min(fitting, plan.max_folds)
    if plan.anchor == "end":
        first_test = n_sessions - span - plan.test - (n_folds - 1) * step
    folds = []
    for k in range(n_folds):
        test_from = first_test + k * step
        valid_from = test_from - gap - plan.valid
        train_to = valid_from - gap
        train_from = plan.first if plan.scheme == "expanding" else train_to - plan.train
        folds.append(
            Fold(
                index=k,
                train=sessions_between(train_from, train_to),
                valid=sessions_between(valid_from, test_from - gap),
                test=sessions_between(test_from, test_from + plan.test),
            )
        )
    return folds
