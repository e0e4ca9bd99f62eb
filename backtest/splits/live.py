"""The fold of a model that is trained for use: everything up to the newest known label, and no test.

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

from dataclasses import dataclass

from backtest.splits.fold import Fold, label_span, require_at_least, sessions_between


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """Lengths of a live fold, in decision dates.

    Attributes
    ----------
    train : int or None
        Length of the training segment, at least 1; None: all dates from ``first`` on.
    valid : int
        Length of the validation segment, at least 1.
    embargo : int
        Sessions left out between the segments in addition to the purge, at least 0.
    first : int
        First usable session.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    train: int | None
    valid: int
    embargo: int
    first: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, {"train": self.train, "valid": self.valid})
        require_at_least(0, {"embargo": self.embargo, "first": self.first})


def live_fold(n_sessions: int, plan: LivePlan, delay: int, horizon: int) -> Fold:
    """Make the fold of a model that forecasts the sessions after the newest one.

    With ``span = delay + horizon``, the validation dates are the last ``valid`` dates whose label is known at
    the close of the newest session, ``[n - span - valid, n - span)`` for ``n = n_sessions``. Training ends
    ``span + embargo`` sessions before the first of them. The test is empty.

    Parameters
    ----------
    n_sessions : int
        Sessions in the data.
    plan : LivePlan
        Lengths and embargo.
    delay : int
        Sessions between decision and trade, at least 0.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    Fold
        With index 0, the name ``live`` and an empty test.

    Raises
    ------
    ValueError
        If the segments do not fit (the message gives the number of sessions needed), or delay or horizon is
        out of range.
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    train = 1 if plan.train is None else plan.train
    needed = plan.first + train + gap + plan.valid + span
    if needed > n_sessions:
        msg = (
            f"A live fold needs {needed} sessions ({plan.first} before the first usable one, train {train}, "
            f"valid {plan.valid}, a gap of {gap} = delay {delay} + horizon {horizon} + embargo "
            f"{plan.embargo}, and {span} for the last label), but there are {n_sessions}: "
            "shorten train or valid, or use a longer history."
        )
        raise ValueError(msg)
    valid_to = n_sessions - span
    valid_from = valid_to - plan.valid
    train_to = valid_from - gap
    train_from = plan.first if plan.train is None else train_to - plan.train
    return Fold(
        index=0,
        train=sessions_between(train_from, train_to),
        valid=sessions_between(valid_from, valid_to),
        test=sessions_between(n_sessions, n_sessions),
        name="live",
    )
