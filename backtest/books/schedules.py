"""When a book decides.

Shape suffix: T sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every m-th of the sessions on which a book may decide.

    Attributes
    ----------
    turn_T : ndarray of bool, shape (T,)
        Sessions on which the book may decide, known at the close of t.
    every : int
        The book decides on every ``every``-th of these sessions, counted from the first one that has enough
        signals. If such a session has too few signals, the book holds until the next one.

    Raises
    ------
    ValueError
        If ``every`` is less than 1.
    """

    turn_T: BoolArray
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            msg = f"rebalance_every is {self.every}; it must be at least 1."
            raise ValueError(msg)

    def decisions(self, count_T: IntArray, needed: int) -> BoolArray:
        """Flag the sessions on which a book decides.

        Parameters
        ----------
        count_T : ndarray of int, shape (T,)
            Number of signals of each session.
        needed : int
            Number of signals that a decision needs.

        Returns
        -------
        ndarray of bool, shape (T,)
            Apart from the count of turns, element t depends only on session t.

        Raises
        ------
        ValueError
            If no session on which the book may decide has enough signals.
        """
        possible_T: BoolArray = self.turn_T & (count_T >= needed)
        if not possible_T.any():
            most = int(count_T[self.turn_T].max(initial=0))
            msg = (
                f"The book needs {needed} signals per date, but no date on which it may decide has more than "
                f"{most}: lower its size, or let it decide on dates with signals."
            )
            raise ValueError(msg)
        turn_T = np.cumsum(self.turn_T)
        on_T: BoolArray = (turn_T - turn_T[int(np.argmax(possible_T))]) % self.every == 0
        return possible_T & on_T


def every_session(sessions: int, every: int = 1) -> Schedule:
    """Return the schedule of a book that decides every ``every`` sessions, out of a number of sessions."""
    return Schedule(np.ones(sessions, dtype=np.bool_), every)
