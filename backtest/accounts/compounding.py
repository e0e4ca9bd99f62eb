"""Returns of a book from weights only, without units or cash: the second computation of the NAV.

It is plain numpy and shares no code with `backtest.accounts.positions`, so that a mistake in one of the two
shows as a difference of the two NAVs. Sums go from left to right, so that firms that are not held change no
bit. Shape suffixes: T sessions, N firms, M firms with a weight or an order.
"""

import numpy as np

from backtest.accounts.market import GONE, TRADABLE
from backtest.accounts.positions import LOT_ROUNDING, Firms, Plan, Rates, Tape
from features.arrays import FloatArray


def compound(plan: Plan, tape: Tape, rates: Rates, ruined: int) -> tuple[FloatArray, FloatArray]:
    """Compute net and gross returns of one book, shape (T,), up to the session of its ruin.

    A session earns ``sum(weight * return)`` and, on the part that was traded before the close, the return
    from the price of execution to the close. ``ruined`` is T for a book that survives; the net return of the
    session of ruin is -1.
    """
    T, N = tape.value_TN.shape
    net_T, gross_T, nav, total = np.zeros(T), np.zeros(T), 1.0, 0.0
    weight_N, order_N, at_close = np.zeros(N), np.zeros(N), len(tape.fill_RN) == 0

    def drift(growth: float) -> None:
        """Let weights and orders drift from the previous close to that of t; delisted firms become cash."""
        firm_M = np.flatnonzero((weight_N != 0.0) | (order_N != 0.0))
        drift_M = tape.value_TN[t, firm_M] / tape.value_TN[t - 1, firm_M] / growth
        drift_M[(tape.state_TN[t, firm_M] & GONE) > 0] = 0.0
        weight_N[firm_M] *= drift_M
        order_N[firm_M] *= drift_M

    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(min(ruined + 1, T)):
            decision = t - plan.delay
            decided = decision >= 0 and plan.decided_T[decision]
            earned, charged = _hold(t, weight_N, tape, rates)
            growth, paid, intraday = 1.0 + earned - charged, 0.0, 0.0
            if at_close:  # the weights drift to the close before they are traded
                drift(growth)
                price_N, size, owed = tape.value_TN[t], nav * growth, 0.0
            else:
                price_N, size, owed = tape.value_TN[t - 1], nav, charged
            if decided:
                of_decision = slice(plan.start_T1[decision], plan.start_T1[decision + 1])
                target_K = plan.weight_K[of_decision]
                total = 0.0 if (target_K < 0.0).any() else _sum(target_K)
                order_N = -weight_N
                order_N[plan.firm_K[of_decision]] += target_K
                order_N[~(price_N > 0.0)] = 0.0  # a firm without a price cannot be ordered
            if (decided or plan.carry) and (at_close or t > 0):
                paid, intraday = _trade(t, size, owed, total, price_N, weight_N, order_N, tape, rates)
            if at_close:
                weight_N /= 1.0 - paid
                order_N /= 1.0 - paid
                growth *= 1.0 - paid
            else:
                earned += intraday
                growth = 1.0 + earned - charged - paid
                drift(growth)
            if not plan.carry:
                order_N[:] = 0.0
            gross_T[t], net_T[t] = earned, growth - 1.0
            nav *= growth
    if ruined < T:
        net_T[ruined] = -1.0
    return net_T, gross_T


def _hold(t: int, weight_N: FloatArray, tape: Tape, rates: Rates) -> tuple[float, float]:
    """Return what the weights of the previous close earn in session t, and their fees and interest."""
    firm_M = np.flatnonzero(weight_N)
    weight_M = weight_N[firm_M]
    earned = _sum(weight_M * (tape.value_TN[t, firm_M] / tape.value_TN[t - 1, firm_M] - 1.0))
    fees = _sum(_row(tape.borrow_RN, t - 1, firm_M, 1.0) * np.maximum(-weight_M, 0.0))
    long = _sum(np.maximum(weight_M, 0.0))
    return earned, float(rates.borrow_V[0] * fees + rates.financing_V[0] * max(long - 1.0, 0.0))


def _trade(  # noqa: PLR0917  # the state of a book, and what it trades in
    t: int,
    nav: float,
    owed: float,
    total: float,
    price_N: FloatArray,
    weight_N: FloatArray,
    order_N: FloatArray,
    tape: Tape,
    rates: Rates,
) -> tuple[float, float]:
    """Fill orders; return their costs over NAV, and what they earn up to the close over NAV.

    ``total`` is the sum of long-only targets, 0 for others: a long-only book scales its purchases down by
    what sales that are blocked would have raised.
    """
    firm_M = np.flatnonzero((weight_N != 0.0) | (order_N != 0.0))
    order_M, weight_M, price_M = order_N[firm_M], weight_N[firm_M], price_N[firm_M]
    end_M = tape.value_TN[t, firm_M] / price_M
    ratio_M = end_M * _row(tape.fill_RN, t, firm_M, 1.0)
    spread_M, impact_M = _row(tape.spread_RN, t, firm_M, 1.0), _row(tape.impact_RN, t, firm_M, 0.0)
    can_M = ((tape.state_TN[t, firm_M] & TRADABLE) > 0) & (ratio_M > 0.0) & (impact_M >= 0.0)
    can_M &= (spread_M >= 0.0) & ~(_row(tape.bar_RN, t, firm_M, 0.0) * order_M > 0.0)

    def filled(share: float) -> FloatArray:
        """The weights that session t fills; purchases are first scaled by a share."""
        fill_M = order_M
        if len(tape.volume_RN):
            volume_M = _row(tape.volume_RN, t, firm_M, 0.0)
            most_M = np.where(volume_M > 0.0, rates.limit_V[0] * volume_M / (nav * ratio_M), 0.0)
            fill_M = np.clip(fill_M, -most_M, most_M)
        fill_M = np.where(fill_M > 0.0, fill_M * share, fill_M)
        if len(tape.lot_RN):
            lot_M = _row(tape.lot_RN, t, firm_M, 0.0) * price_M / nav
            whole_M = np.sign(fill_M) * np.floor(np.abs(fill_M) / lot_M + LOT_ROUNDING) * lot_M
            closes_M = (fill_M == order_M) & (order_M + weight_M == 0.0)
            fill_M = np.where((lot_M > 0.0) & ~closes_M, whole_M, fill_M)
        return np.where(can_M, fill_M, 0.0)

    fill_M = filled(1.0)
    if total > 0.0:
        spent_M = np.where(fill_M != 0.0, fill_M * ratio_M, 0.0)
        cash = _sum(np.append(1.0 - owed, -np.column_stack([weight_M, spent_M])))
        buys, stuck = _sum(np.maximum(spent_M, 0.0)), -_sum(order_M[(order_M < 0.0) & (fill_M == 0.0)])
        lacking = min(min(1.0 - total, 0.0) - cash, stuck)
        if lacking > 0.0 and buys > 0.0:
            fill_M = filled(max(1.0 - lacking / buys, 0.0))
    at = np.flatnonzero(fill_M)
    fill_M, ratio_M, impact_M = fill_M[at], ratio_M[at], impact_M[at]
    size_M = np.abs(fill_M) * ratio_M
    rate_M = rates.spread_V[0] * spread_M[at] + rates.commission_V[0]
    rate_M = rate_M + rates.impact_V[0] * impact_M * np.sqrt(size_M * nav)
    more_M = np.maximum(rates.minimum_V[0] / nav - size_M * rates.commission_V[0], 0.0)  # the minimum fee
    paid = _sum(np.column_stack([size_M * rate_M, more_M if rates.minimum_V[0] > 0.0 else 0.0 * more_M]))
    weight_N[firm_M[at]] += fill_M
    order_N[firm_M[at]] -= fill_M
    return paid, _sum(fill_M * (end_M[at] - ratio_M))


def _row(x_RN: FloatArray, t: int, firm_M: Firms, absent: float) -> FloatArray:
    """Values of firms in session t, of an array with a row per session, one row, or none."""
    if not len(x_RN):
        return np.full(len(firm_M), absent)
    x_M: FloatArray = x_RN[t if len(x_RN) > 1 else 0, firm_M]
    return x_M


def _sum(x: FloatArray) -> float:
    """Sum from left to right."""
    return float(np.cumsum(x)[-1]) if x.size else 0.0
