"""The interface of a book: a rule that turns the signal at t into target weights at t.

These conventions apply to every book:

- A NaN signal means that the firm is not in the universe: its weight is 0.
- Ties share equally. Firms that are tied at the edge of a selection split the weight that is left for them,
  which is the expectation over a random order of the tied firms. The order of the columns has no effect.
- On a date with fewer signals than the book needs, no decision is made. If no date has enough signals, a
  ValueError is raised.
- If all signals of a date are equal, a long-short book holds nothing and a long-only book holds all firms
  equally, because every firm is as likely to be bought as to be sold.
- Apart from the count of its schedule, row t depends only on rows up to t of the inputs. A book whose
  decision depends on the one before begins with ``last_N`` of the inputs.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from backtest.books.inputs import BookInputs, BookTargets, Need
from backtest.books.limit_use import LimitUse
from features.arrays import FloatArray


class Book(Protocol):
    """A rule with its settings, a frozen dataclass.

    Attributes
    ----------
    kind : str
        Key in `backtest.books.registry.BOOKS`, and name of the kind in a config.
    formula : str
        Target weights as a one-line formula.
    """

    kind: ClassVar[str]
    formula: ClassVar[str]

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions. Its benchmark is then the equally weighted universe."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal that the book reads with its settings."""
        ...

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights.

        Parameters
        ----------
        inputs : BookInputs
            The signal, the schedule, and every input in ``needs``.

        Returns
        -------
        BookTargets
            Target weights of shape (T, N) as fractions of NAV, and notes.

        Raises
        ------
        ValueError
            If a signal is infinite, or no date on which the book may decide has enough signals.
        """
        ...

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision by the limits of the book.

        Parameters
        ----------
        inputs : BookInputs
            The inputs of `targets`.
        target_TN : ndarray of shape (T, N)
            Its target weights. The last row is a decision.

        Returns
        -------
        tuple of LimitUse
            One for each limit that the decision had; empty for a book without limits.
        """
        ...
