"""Calendar folds: every test is a calendar year or quarter.

Shape suffixes: T sessions, P periods. Times are session indices; index t is the close of session t.
"""

from typing import Final, Literal

import numpy as np
from pydantic import Field

from backtest.splits.folds import Fold, fold_between, label_span
from features.arrays import DateArray, IntArray
from features.options import Options

_MONTHS: Final = {"year": 12, "quarter": 3}
_HOLIDAYS: Final = 7
"""A period is complete at its start if the first session is among its first 7 days."""


class CalendarPlan(Options):
    """Walk-forward folds whose tests are calendar years or quarters. Lengths count these periods.

    Examples
    --------
    >>> CalendarPlan(period="year", window="rolling", train=2, valid=1, embargo=5).period
    'year'
    """

    scheme: Literal["calendar"] = "calendar"
    """Selects this scheme."""
    period: Literal["year", "quarter"]
    """Length of a test. The newest period is tested as far as its labels are known."""
    window: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on ``train`` periods."""
    train: int = Field(ge=1)
    """Periods of the training segment; for ``expanding``, at least that many in the first fold."""
    valid: int = Field(ge=1)
    """Periods of the validation segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the latest are kept. Null: all that fit."""


def calendar_folds(
    dates_T: DateArray, plan: CalendarPlan, delay: int, horizon: int, first: int = 0
) -> list[Fold]:
    """Split sessions into folds whose tests are calendar years or quarters.

    The test of period p has every session of p whose label ends inside the data. Its validation has the
    ``valid`` periods before p, and its training the ``train`` periods before those (rolling) or everything
    from the first usable session (expanding), both without their last ``delay + horizon + embargo``
    sessions. The newest period may be incomplete; its test grows with the data. The folds of complete
    periods do not change when sessions are appended.

    Sessions are ascending; the other arguments are those of `backtest.splits.folds.make_folds`. At least one
    fold, in time order, named by period: ``2016`` or ``2016Q3``. ValueError if no period can be tested, a
    segment is shorter than the gap after it, or delay or horizon is out of range.

    Examples
    --------
    >>> days = np.arange("2020-01-01", "2024-01-05", dtype="datetime64[D]")
    >>> plan = CalendarPlan(period="year", window="expanding", train=1, valid=1, embargo=0)
    >>> [fold.name for fold in calendar_folds(days, plan, delay=0, horizon=1)]
    ['2022', '2023', '2024']
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    days_T = dates_T.astype("datetime64[D]")
    months = _MONTHS[plan.period]
    period_T = days_T.astype("datetime64[M]").astype(np.int64) // months
    first_period = _first_whole_period(days_T, period_T, first, months)
    newest = len(days_T) - span  # the first session whose label is unknown
    first_test = first_period + plan.train + plan.valid
    tested = range(first_test, int(period_T[newest - 1]) + 1) if newest > 0 else range(0)
    if not tested:
        covered = (
            f"are usable from {days_T[first]} to {days_T[-1]}" if first < len(days_T) else "have no session"
        )
        raise ValueError(
            f"One fold needs {plan.train} whole {plan.period}s for training, {plan.valid} for validation and "
            f"a session with a known label after them, so a test in {_name(first_test, months)}, but the "
            f"data {covered}: shorten train or valid, or use a longer history."
        )
    if plan.max_folds is not None:
        tested = tested[-plan.max_folds :]
    folds = []
    for k, period in enumerate(tested):
        bounds = np.searchsorted(
            period_T, [period - plan.valid - plan.train, period - plan.valid, period, period + 1]
        )
        train_from, valid_from, test_from, test_to = (int(bound) for bound in bounds)
        train_from = first if plan.window == "expanding" else max(train_from, first)
        train, valid = (train_from, valid_from - gap), (valid_from, test_from - gap)
        fold = fold_between(k, train, valid, (test_from, min(test_to, newest)), _name(period, months))
        for name in ("train", "valid", "test"):
            if not len(getattr(fold, name)):
                raise ValueError(
                    f"The fold of {fold.name} has no {name} session after {gap} sessions (delay + horizon + "
                    "embargo) are left out before the next segment: use longer segments."
                )
        folds.append(fold)
    return folds


def _first_whole_period(days_T: DateArray, period_T: IntArray, first: int, months: int) -> int:
    """Return the first period of which no usable session is missing at the start."""
    if first >= len(days_T):
        return int(period_T[-1]) + 1 if len(period_T) else 0
    period = int(period_T[first])
    starts = np.datetime64(period * months, "M").astype("datetime64[D]")
    whole = days_T[first] < starts + np.timedelta64(_HOLIDAYS, "D")
    return period if whole else period + 1


def _name(period: int, months: int) -> str:
    start = period * months  # months since 1970-01
    year = 1970 + start // 12
    return str(year) if months == 12 else f"{year}Q{start % 12 // 3 + 1}"
