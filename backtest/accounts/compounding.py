"""Compiled returns of a book from weights only, without units or cash: the second computation of the NAV.

It visits the firms with a weight or an order, in a list of its own. It shares no code with
`backtest.accounts.positions`, so that a mistake in one of the two shows as a difference of the two
NAVs. Shape suffixes: T sessions, N firms.
"""

from typing import NamedTuple

import numpy as np

from backtest.accounts.market import GONE, TRADABLE
from backtest.accounts.positions import LOT_ROUNDING, Firms, Plan, Rates, Tape
from features.arithmetic.kernels import ZERO, compiled
from features.arrays import FloatArray


class State(NamedTuple):
    """Weights, open orders, growth of values in a session, and the newest targets, by firm."""

    weight_N: FloatArray
    order_N: FloatArray
    growth_N: FloatArray
    target_N: FloatArray


@compiled
def compound(plan: Plan, tape: Tape, rates: Rates, ruined: int) -> tuple[FloatArray, FloatArray]:
    """Compute net and gross returns of one book, shape (T,), up to the session of its ruin.

    A session earns ``sum(weight * return)`` and, on the part that was traded before the close, the return
    from the price of execution to the close. ``ruined`` is T for a book that survives; the net return of the
    session of ruin is -1.
    """
    T, N = tape.value_TN.shape
    net_T, gross_T = np.zeros(T), np.zeros(T)
    at_close, total = len(tape.fill_RN) == 0, 0.0
    state = State(np.zeros(N), np.zeros(N), np.ones(N), np.zeros(N))
    weight_N, order_N, target_N, nav = state.weight_N, state.order_N, state.target_N, 1.0
    firm_N, n = np.zeros(N, dtype=np.int64), ZERO
    for t in range(min(ruined + 1, T)):
        decision = t - plan.delay
        decided = decision >= 0 and plan.decided_T[decision]
        if decided:
            target_N[:] = 0.0
            total, short = 0.0, False
            for k in range(plan.start_T1[decision], plan.start_T1[decision + 1]):
                target_N[plan.firm_K[k]] = plan.weight_K[k]
                total += plan.weight_K[k]
                short |= plan.weight_K[k] < 0.0
            total = 0.0 if short else total
        trading = (decided or plan.carry) and (at_close or t > 0)

        earned, charged = _hold(t, firm_N[:n], state, tape, rates)
        growth, paid = 1.0 + earned - charged, 0.0
        if at_close:  # the weights drift to the close before they are traded
            _drift(t, growth, firm_N[:n], state, tape)
            if trading:
                n = _order(decided, n, firm_N, state, tape.value_TN[t])
                listed, whole, price_N = firm_N[:n], nav * growth, tape.value_TN[t]
                share = _affordable(t, whole, 0.0, total, listed, price_N, state, tape, rates)
                paid, _ = _fill(t, whole, share, listed, price_N, state, tape, rates)
            for i in firm_N[:n]:
                weight_N[i] /= 1.0 - paid
                order_N[i] /= 1.0 - paid
            growth *= 1.0 - paid
        else:
            if trading:
                price_N = tape.value_TN[t - 1]
                n = _order(decided, n, firm_N, state, price_N)
                listed = firm_N[:n]
                share = _affordable(t, nav, charged, total, listed, price_N, state, tape, rates)
                paid, intraday = _fill(t, nav, share, listed, price_N, state, tape, rates)
                earned += intraday
            growth = 1.0 + earned - charged - paid
            for i in firm_N[:n]:
                state.growth_N[i] = tape.value_TN[t, i] / tape.value_TN[t - 1, i]
            _drift(t, growth, firm_N[:n], state, tape)
        n = _keep(firm_N, n, state, plan.carry)
        gross_T[t], net_T[t] = earned, growth - 1.0
        nav *= growth
    if ruined < T:
        net_T[ruined] = -1.0
    return net_T, gross_T


@compiled
def _hold(t: int, firms: Firms, state: State, tape: Tape, rates: Rates) -> tuple[float, float]:
    """Return what the weights of the previous close earn in session t, and their fees and interest.

    ``growth`` gets the growth of each firm's value.
    """
    earned, fees, long = 0.0, 0.0, 0.0
    for i in firms:
        weight = state.weight_N[i]
        state.growth_N[i] = tape.value_TN[t, i] / tape.value_TN[t - 1, i]
        if weight != 0.0:
            earned += weight * (state.growth_N[i] - 1.0)
            fees += _cell(tape.borrow_RN, t - 1, i, 1.0) * max(-weight, 0.0)
            long += max(weight, 0.0)
    return earned, rates.borrow_V[0] * fees + rates.financing_V[0] * max(long - 1.0, 0.0)


@compiled
def _drift(t: int, growth: float, firms: Firms, state: State, tape: Tape) -> None:
    """Let weights and open orders drift from the previous close to that of t; delisted firms become cash."""
    for i in firms:
        if tape.state_TN[t, i] & GONE:
            state.weight_N[i] = state.order_N[i] = 0.0
        elif state.weight_N[i] != 0.0 or state.order_N[i] != 0.0:
            drift = state.growth_N[i] / growth
            state.weight_N[i] *= drift
            state.order_N[i] *= drift


@compiled
def _order(decided: bool, n: int, firm_N: Firms, state: State, price_N: FloatArray) -> int:
    """Replace the open orders if there is a decision; a firm without a price cannot be ordered.

    Returns how many firms are listed in ``firm_N``: those with a weight or an order.
    """
    if not decided:
        return n
    n = 0
    for i in range(len(state.weight_N)):
        state.order_N[i] = state.target_N[i] - state.weight_N[i] if price_N[i] > 0.0 else 0.0
        firm_N[n] = i
        n += (state.order_N[i] != 0.0) | (state.weight_N[i] != 0.0)
    return n


@compiled
def _part(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int,
    nav: float,
    i: int,
    price: float,
    ratio: float,
    share: float,
    state: State,
    tape: Tape,
    rates: Rates,
) -> float:
    """Return the weight of firm i's order that session t fills; a purchase is first scaled by ``share``."""
    order: float = state.order_N[i]
    if not tape.state_TN[t, i] & TRADABLE or _cell(tape.bar_RN, t, i, 0.0) * order > 0.0:
        return 0.0
    if not (
        ratio > 0.0 and _cell(tape.impact_RN, t, i, 0.0) >= 0.0 and _cell(tape.spread_RN, t, i, 1.0) >= 0.0
    ):
        return 0.0
    fill = order
    if len(tape.volume_RN):
        volume = _cell(tape.volume_RN, t, i, 0.0)
        most = rates.limit_V[0] * volume / (nav * ratio) if volume > 0.0 else 0.0
        fill = min(max(fill, -most), most)
    fill = fill * share if fill > 0.0 else fill
    if len(tape.lot_RN) and not (fill == order and order + state.weight_N[i] == 0.0):
        lot = _cell(tape.lot_RN, t, i, 0.0) * price / nav
        if lot > 0.0:
            fill = np.sign(fill) * np.floor(abs(fill) / lot + LOT_ROUNDING) * lot
    return fill


@compiled
def _affordable(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int,
    nav: float,
    charged: float,
    total: float,
    firms: Firms,
    price_N: FloatArray,
    state: State,
    tape: Tape,
    rates: Rates,
) -> float:
    """Share of its purchases that a long-only book pays for; 1 unless a sale is blocked.

    ``total`` is the sum of its targets, 0 for a book with short positions.
    """
    if total <= 0.0:
        return 1.0
    cash, buys, stuck = 1.0 - charged, 0.0, 0.0
    for i in firms:
        cash -= state.weight_N[i]
        if state.order_N[i] == 0.0:
            continue
        ratio = tape.value_TN[t, i] / price_N[i] * _cell(tape.fill_RN, t, i, 1.0)
        fill = _part(t, nav, i, price_N[i], ratio, 1.0, state, tape, rates)
        spent = fill * ratio if fill != 0.0 else 0.0
        cash -= spent
        buys += max(spent, 0.0)
        if state.order_N[i] < 0.0 and fill == 0.0:
            stuck -= state.order_N[i]
    lacking = min(min(1.0 - total, 0.0) - cash, stuck)
    return max(1.0 - lacking / buys, 0.0) if lacking > 0.0 and buys > 0.0 else 1.0


@compiled
def _fill(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int,
    nav: float,
    share: float,
    firms: Firms,
    price_N: FloatArray,
    state: State,
    tape: Tape,
    rates: Rates,
) -> tuple[float, float]:
    """Fill orders; return their costs over NAV, and what they earn up to the close over NAV."""
    paid, intraday = 0.0, 0.0
    for i in firms:
        if state.order_N[i] == 0.0:
            continue
        end = tape.value_TN[t, i] / price_N[i]
        ratio = end * _cell(tape.fill_RN, t, i, 1.0)
        fill = _part(t, nav, i, price_N[i], ratio, share, state, tape, rates)
        if fill == 0.0:
            continue
        impact, size = _cell(tape.impact_RN, t, i, 0.0), abs(fill) * ratio
        rate = rates.spread_V[0] * _cell(tape.spread_RN, t, i, 1.0) + rates.commission_V[0]
        if impact > 0.0:
            rate += rates.impact_V[0] * impact * np.sqrt(size * nav)
        paid += size * rate
        if rates.minimum_V[0] > 0.0:
            paid += max(rates.minimum_V[0] / nav - size * rates.commission_V[0], 0.0)
        intraday += fill * (end - ratio)
        state.weight_N[i] += fill
        state.order_N[i] -= fill
    return paid, intraday


@compiled
def _keep(firm_N: Firms, n: int, state: State, carry: bool) -> int:
    """Drop what was not traded, unless it stays open; list the firms that are left, and count them."""
    left = 0
    for k in range(n):
        i = firm_N[k]
        state.order_N[i] = state.order_N[i] if carry else 0.0
        firm_N[left] = i
        left += (state.weight_N[i] != 0.0) | (state.order_N[i] != 0.0)
    return left


@compiled
def _cell(x_RN: FloatArray, t: int, i: int, absent: float) -> float:
    """Value of firm i in session t, of an array with a row per session, one row, or none."""
    rows = len(x_RN)
    if rows == 0:
        return absent
    value: float = x_RN[t if rows > 1 else 0, i]
    return value
