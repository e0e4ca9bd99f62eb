"""Deletion and insertion curves of one forecast, and the measures computed from them.

Legend: P units, S steps of a curve, M coalitions.

Units are removed, or added, in the order of an importance, the most important first. With ``f`` the forecast,
``A`` all units and ``top_k`` the k most important ones:

* deletion ``|f(A) - f(A without top_k)|`` and insertion ``|f(top_k) - f(none)|``;
* comprehensiveness, the mean of the deletion curve, and sufficiency, the mean of ``|f(A) - f(top_k)|``, both
  over k = 10%, 20% and 50% of the units (DeYoung et al. 2020, "ERASER", section 4; their 1% and 5% are less
  than one of ten days). High comprehensiveness and low sufficiency mean that the importance is faithful;
* the cumulative change ``sum_(j <= k) |f(A without top_j) - f(A without top_(j-1))|``, as a share of its
  total over all units. In the other curves a unit that raises the forecast and one that lowers it cancel,
  although both were important. Here they do not. The total differs between orders, because removed keys pass
  their weight on to those that remain; as a share, it says how early the changes come, which is what an order
  is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.faithful.unit_games import UnitGame

SHARES = (0.1, 0.2, 0.5)
"""Shares of the units at which comprehensiveness and sufficiency are measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Curves of one order of removal, in the unit of the forecast; the cumulative one is a share.

    Attributes
    ----------
    share_S
        Share of the units that are removed or added, from 0 to 1.
    deletion_S, insertion_S, cumulative_S
        The curves of the module's description.
    comprehensiveness, sufficiency
        Its two means.
    """

    share_S: FloatArray
    deletion_S: FloatArray
    insertion_S: FloatArray
    cumulative_S: FloatArray
    comprehensiveness: float
    sufficiency: float

    @property
    def deletion(self) -> float:
        """Area under the deletion curve, over the share of removed units."""
        return float(np.trapezoid(self.deletion_S, self.share_S))

    @property
    def insertion(self) -> float:
        """Area under the insertion curve."""
        return float(np.trapezoid(self.insertion_S, self.share_S))

    @property
    def cumulative(self) -> float:
        """Area under the cumulative curve."""
        return float(np.trapezoid(self.cumulative_S, self.share_S))


def steps_of(n_units: int, most: int = 12) -> IntArray:
    """Numbers of removed units at which curves are evaluated: all up to ``most``, else about ``most``.

    Beyond ``most`` units the steps are small at first, where orders differ, and include the shares of
    :data:`SHARES`.
    """
    if n_units <= most:
        return np.arange(n_units + 1)
    small = np.round(np.geomspace(1, n_units, most - len(SHARES)))
    named = np.ceil(np.array(SHARES) * n_units)
    return np.unique(np.concatenate([[0, n_units], small, named])).astype(np.int64)


def curves(
    game: UnitGame, orders: list[IntArray], n_units: int, steps_S: IntArray | None = None
) -> list[Curves]:
    """Evaluate the curves of several orders of one forecast's units, in one call of the game.

    Parameters
    ----------
    game
        The forecast as a function of the units that are kept.
    orders
        Units from the most to the least important. Units that no order names are always kept.
    n_units
        P, the width of a coalition.
    steps_S
        Numbers of removed units, from 0 to the length of an order; by default :func:`steps_of`.
    """
    length = len(orders[0])
    steps_S = steps_of(length) if steps_S is None else steps_S
    coalitions: list[BoolArray] = []
    for order in orders:
        for removed in steps_S:
            without_P = np.ones(n_units, dtype=np.bool_)
            without_P[order[:removed]] = False
            alone_P = np.ones(n_units, dtype=np.bool_)
            alone_P[order[removed:]] = False
            coalitions += [without_P, alone_P]
    keep_MP, place_M = np.unique(np.stack(coalitions), axis=0, return_inverse=True)
    values = game(keep_MP)[place_M.reshape(-1)].reshape(len(orders), len(steps_S), 2)
    at_S = [int(np.argmin(np.abs(steps_S - np.ceil(share * length)))) for share in SHARES]
    found = []
    for without_S, alone_S in zip(values[:, :, 0], values[:, :, 1], strict=True):
        full, empty = without_S[0], alone_S[0]
        deletion_S = np.abs(full - without_S)
        found.append(
            Curves(
                share_S=steps_S / length,
                deletion_S=deletion_S,
                insertion_S=np.abs(alone_S - empty),
                cumulative_S=_share(np.abs(np.diff(without_S)), steps_S / length),
                comprehensiveness=float(deletion_S[at_S].mean()),
                sufficiency=float(np.abs(full - alone_S)[at_S].mean()),
            )
        )
    return found


def _share(change_S: FloatArray, share_S: FloatArray) -> FloatArray:
    """Cumulative share of the changes; that of equal changes if nothing changes."""
    total = change_S.sum()
    return np.concatenate([[0.0], change_S.cumsum() / total]) if total > 0.0 else share_S


def order_of(importance_P: FloatArray, rng: np.random.Generator) -> IntArray:
    """Units from the most to the least important; ties in random order, so that no position wins them."""
    shuffled_P = rng.permutation(len(importance_P))
    order_P: IntArray = shuffled_P[np.argsort(-importance_P[shuffled_P], kind="stable")]
    return order_P
