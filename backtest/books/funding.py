"""What a long-only book can buy while some of its positions cannot be sold.

Shape suffix: N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import BoolArray, FloatArray


def funded(target_N: FloatArray, absent: float) -> FloatArray:
    """Scale a long-only target down to what can be bought while absent firms keep their value.

    ``absent`` is the weight of the held firms that the data do not have, and that therefore cannot be sold. A
    target of gross weight S becomes one of at most ``max(S, 1) - absent``, so that it borrows no more than it
    asks for. Other targets are returned as they are.

    >>> funded(np.array([0.5, 0.5]), absent=0.2)
    array([0.4, 0.4])
    """
    gross = float(target_N.sum())
    if absent <= 0 or gross <= 0 or target_N.min() < 0:
        return target_N
    return target_N * min(1.0, max(max(gross, 1.0) - absent, 0.0) / gross)


def affordable(target_N: FloatArray, held_N: FloatArray, stuck_N: BoolArray, absent: float) -> FloatArray:
    """Scale down the purchases of a long-only target that blocked sales would have paid for.

    All purchases are scaled by one factor, as `backtest.accounts.accounting` does when it trades. Afterwards
    they cost no more than the cash, the other sales and what the target borrows anyway. Targets with short
    positions are returned as they are, because their short sales pay; so are the targets of the firms that
    are stuck, which cannot be traded. ``absent`` is the weight of further held firms, which the arrays lack.

    >>> half, third = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])
    >>> affordable(third, half, np.array([True, False, False]), absent=0.0)
    array([0. , 0.5, 0. ])
    """
    if not stuck_N.any() or target_N.min() < 0:
        return target_N
    trade_N = target_N - held_N
    sent_N = np.where(stuck_N, 0.0, trade_N)
    bought, blocked = float(np.maximum(sent_N, 0.0).sum()), -float(np.minimum(trade_N[stuck_N], 0.0).sum())
    cash = 1.0 - absent - float(held_N.sum() + sent_N.sum())
    borrowed = min(1.0 - absent - float(target_N.sum()), 0.0)
    excess = min(borrowed - cash, blocked, bought)
    if excess <= 0.0:
        return target_N
    return np.where(sent_N > 0.0, held_N + trade_N * (1.0 - excess / bought), target_N)
