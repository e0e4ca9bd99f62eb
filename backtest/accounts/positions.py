"""Compiled accounts from positions: units held and cash, for several books with the same targets at once.

This file is long because numba's cache notices changes only in the file of the outermost loop: what the loops
call is defined beside them. A cache names the tuples and the lines of the loops, so a tuple is renamed only
together with a line more or less above the loops.

Four habits shorten compilation. Arrays are copied by `copy`, because numba takes seconds to compile an
assignment between arrays. Arrays come from the caller or from `np.empty`. Sums are loops. A counter that is
passed to another loop starts as `ZERO`.

The books of a call are called lanes. They share the market, the targets, the delay and the arrays of costs
per firm, and differ in rates, capital and cap. Arrays over (firm, lane) have the lanes next to each other, so
that the processor works on several lanes in one instruction, and no sum is reordered: a lane has the same
numbers, to the bit, alone and among others. Only firms that are held or targeted are visited.

The steps of a session are those of `backtest.accounts.accounting`. Shape suffixes: T sessions, N firms, V
lanes, K weights of all decisions, L rows and C columns of the ledger, R rows: T sessions, 1 if constant over
time, 0 if absent.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backtest.accounts.market import GONE, KNOWN, TRADABLE
from features.arithmetic.kernels import ZERO, compiled
from features.arrays import BoolArray, FloatArray

Firms = npt.NDArray[np.int64]
COLUMNS = 10  # of the ledger: session, firm, position, trade, released, and five kinds of cost


class Plan(NamedTuple):
    """Target weights: the fields of `backtest.accounts.variants.SparseTargets`, and the delay of trades.

    ``carry``: what is not filled stays open in later sessions. ``cut``: what the purchases of a decision were
    cut by before, which its long-only sum still counts.
    """

    decided_T: BoolArray
    start_T1: npt.NDArray[np.int64]
    firm_K: npt.NDArray[np.int32]
    weight_K: FloatArray
    delay: int
    carry: bool
    cut_T: FloatArray


class Tape(NamedTuple):
    """What differs between firms and sessions.

    ``value`` and ``state`` are those of `backtest.accounts.market.BookMarket`. The others may be absent:
    ``fill`` (price of execution over the close; absent: the close), ``spread`` and ``borrow`` (rates in basis
    points; absent: the same for all firms), ``impact`` (`volatility_per_root_volume`) and ``volume``
    (trailing dollar volume; absent: no cap), ``bar`` (1 where a firm cannot be bought, -1 where it cannot be
    sold) and ``lot`` (units of a lot, times the capital at the start).
    """

    value_TN: FloatArray
    state_TN: npt.NDArray[np.uint8]
    fill_RN: FloatArray
    spread_RN: FloatArray
    borrow_RN: FloatArray
    impact_RN: FloatArray
    volume_RN: FloatArray
    bar_RN: FloatArray
    lot_RN: FloatArray


class Rates(NamedTuple):
    """What differs between lanes: factors of notional or value, times the tape's rates where it has some.

    ``impact`` is the coefficient times the root of the capital, ``limit`` the cap over the capital, and
    ``minimum`` the least commission of a trade.
    """

    spread_V: FloatArray
    commission_V: FloatArray
    impact_V: FloatArray
    borrow_V: FloatArray
    financing_V: FloatArray
    limit_V: FloatArray
    minimum_V: FloatArray


class LaneAccounts(NamedTuple):
    """Accounts that the kernel fills, in units of the starting capital; zero on entry.

    ``base`` is the NAV that orders are sized on, ``before`` the NAV at the close before its trades.
    ``ruined`` is T for a book that survives.
    """

    nav_TV: FloatArray
    before_TV: FloatArray
    base_TV: FloatArray
    traded_TV: FloatArray
    unfilled_TV: FloatArray
    half_spread_TV: FloatArray
    commission_TV: FloatArray
    impact_TV: FloatArray
    borrow_TV: FloatArray
    financing_TV: FloatArray
    gross_TV: FloatArray
    unpriced_TV: FloatArray
    cash_TV: FloatArray
    ruined_V: npt.NDArray[np.int64]
    shortfall_V: FloatArray


class Lanes(NamedTuple):
    """State of the lanes during the loop.

    ``left`` holds units of open orders, and has no rows where every order is filled whole or not at all.
    ``long`` and ``short`` are values after trades that interest and borrow fees are charged on in the next
    session; ``short`` is multiplied by the firms' fees where these differ. ``bought`` (signed), ``spread``
    and ``impact`` are sums over the trades of a session, ``trade_V`` the trades in one firm. ``listed`` firms
    are held, ordered or targeted. ``goal`` is the sum of the newest targets of a long-only book, and 0 for
    others; ``scale`` the share of purchases that its money pays for, from sums over its purchases and over
    sales that are ``blocked``. ``fee`` sums commissions. ``last`` (position of the previous session),
    ``trade_N``, ``paid_out`` and ``interest_per_long`` are for the ledger of a single lane. Arrays over
    (firm, lane) are indexed with both: a view of a firm's lanes would cost more than the arithmetic on them.
    """

    units_NV: FloatArray
    left_NV: FloatArray
    nav_V: FloatArray
    cash_V: FloatArray
    long_V: FloatArray
    short_V: FloatArray
    bought_V: FloatArray
    spread_V: FloatArray
    impact_V: FloatArray
    trade_V: FloatArray
    weight_N: FloatArray
    listed_N: BoolArray
    last_N: FloatArray
    trade_N: FloatArray
    paid_out_N: FloatArray
    interest_per_long_V: FloatArray
    goal_1: FloatArray
    scale_V: FloatArray
    buys_V: FloatArray
    blocked_V: FloatArray
    fee_V: FloatArray


LOT_ROUNDING = 1e-9
"""Share of a lot below which a missing part is rounding."""


@compiled
def copy(from_V: FloatArray, to_V: FloatArray) -> None:
    """Copy the values of an array to another of the same length."""
    for v in range(len(from_V)):
        to_V[v] = from_V[v]


@compiled
def cell(x_RN: FloatArray, t: int, i: int, absent: float) -> float:
    """Value of firm i in session t, of an array with a row per session, one row, or none."""
    rows = len(x_RN)
    if rows == 0:
        return absent
    value: float = x_RN[t if rows > 1 else 0, i]
    return value


@compiled
def _reorder(i: int, weight: float, price: float, lanes: Lanes, unfilled_V: FloatArray) -> None:
    """Replace open orders by those of a new decision; an order without a price has no size and is dropped."""
    for v in range(len(unfilled_V)):
        if price > 0.0:
            lanes.left_NV[i, v] = weight * lanes.nav_V[v] / price - lanes.units_NV[i, v]
        else:
            lanes.left_NV[i, v] = 0.0
            unfilled_V[v] += abs(weight * lanes.nav_V[v])


@compiled
def _ratio(t: int, i: int, price: float, tape: Tape) -> float:
    """Price of execution over the price that orders are sized at; 0 if the firm cannot be traded."""
    at_close = len(tape.fill_RN) == 0
    ratio = 1.0 if at_close else tape.value_TN[t, i] * tape.fill_RN[t, i] / price
    can = (tape.state_TN[t, i] & TRADABLE) > 0 and price > 0.0 and ratio > 0.0
    impact, half_spread = cell(tape.impact_RN, t, i, 0.0), cell(tape.spread_RN, t, i, 0.0)
    return ratio if can and impact >= 0.0 and half_spread >= 0.0 else 0.0  # not NaN


@compiled
def _executable(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int, i: int, v: int, price: float, ratio: float, scale: float, tape: Tape, rates: Rates, lanes: Lanes
) -> float:
    """Units of an open order that session t fills: not at a price limit, up to the cap, in whole lots."""
    left = lanes.left_NV[i, v]
    volume, bar = cell(tape.volume_RN, t, i, np.inf), cell(tape.bar_RN, t, i, 0.0)
    if ratio == 0.0 or not volume > 0.0 or bar * left > 0.0:
        return 0.0
    room = volume / (price * ratio) * rates.limit_V[v]
    units: float = min(max(left, -room), room)
    if units > 0.0:
        units *= scale
    lot = cell(tape.lot_RN, t, i, 0.0)
    if lot > 0.0 and not (units == left and left + lanes.units_NV[i, v] == 0.0):  # odd lots can be closed
        whole: float = np.floor(abs(units) / lot + LOT_ROUNDING) * lot
        units = whole if units > 0.0 else -whole
    return units


@compiled
def _fund(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int, firms: Firms, price_N: FloatArray, tape: Tape, rates: Rates, lanes: Lanes
) -> None:
    """Scale the purchases of a long-only book down by what sales that cannot be made would have raised.

    A sale that the cap spreads over sessions does not count: its purchases are spread as well.
    """
    V = len(lanes.nav_V)
    for v in range(V):
        lanes.blocked_V[v] = lanes.buys_V[v] = lanes.bought_V[v] = 0.0
    for i in firms:
        price = price_N[i]
        ratio = _ratio(t, i, price, tape)
        for v in range(V):
            if len(lanes.left_NV):
                left = lanes.left_NV[i, v]
                fill = _executable(t, i, v, price, ratio, 1.0, tape, rates, lanes)
                value, lacking = fill * price * ratio, min(left, 0.0) * price if fill == 0.0 else 0.0
            else:
                gap = lanes.weight_N[i] * lanes.nav_V[v] - lanes.units_NV[i, v] * price
                value, lacking = gap * ratio, min(gap, 0.0) if ratio == 0.0 else 0.0
            lanes.blocked_V[v] -= lacking
            lanes.buys_V[v] += max(value, 0.0)
            lanes.bought_V[v] += value
    for v in range(V):
        least = min(lanes.nav_V[v] * (1.0 - lanes.goal_1[0]), 0.0)
        cut = min(least - (lanes.cash_V[v] - lanes.bought_V[v]), lanes.blocked_V[v])
        if cut > 0.0 and lanes.buys_V[v] > 0.0:
            lanes.scale_V[v] = max(1.0 - cut / lanes.buys_V[v], 0.0)
        lanes.bought_V[v] = 0.0


@compiled
def trade(  # noqa: PLR0912, PLR0917  # a compiled loop takes its arrays by position
    t: int,
    firms: Firms,
    decided: bool,
    carry: bool,
    tape: Tape,
    rates: Rates,
    lanes: Lanes,
    books: LaneAccounts,
) -> None:
    """Execute the orders of session t: sized at its close, or at the previous one if filled earlier."""
    at_close, opens = len(tape.fill_RN) == 0, len(lanes.left_NV) > 0
    V = len(lanes.nav_V)
    price_N = tape.value_TN[t] if at_close else tape.value_TN[t - 1]
    traded_V, unfilled_V = books.traded_TV[t], books.unfilled_TV[t]
    copy(lanes.nav_V, books.base_TV[t])
    if opens and decided:
        for i in firms:
            _reorder(i, lanes.weight_N[i], price_N[i], lanes, unfilled_V)
    for v in range(V):
        lanes.scale_V[v] = 1.0
    if lanes.goal_1[0] > 0.0:
        _fund(t, firms, price_N, tape, rates, lanes)
    for i in firms:
        price, weight = price_N[i], lanes.weight_N[i]
        ratio = _ratio(t, i, price, tape)
        if opens:
            for v in range(V):
                units = _executable(t, i, v, price, ratio, lanes.scale_V[v], tape, rates, lanes)
                lanes.units_NV[i, v] += units
                lanes.left_NV[i, v] -= units
                lanes.trade_V[v] = units * price * ratio
                unfilled_V[v] += abs(lanes.left_NV[i, v]) * price
                if not carry:
                    lanes.left_NV[i, v] = 0.0
        elif ratio > 0.0:
            per_unit = 1.0 / price
            for v in range(V):
                goal = weight * lanes.nav_V[v]
                gap = goal - lanes.units_NV[i, v] * price
                if gap > 0.0 and lanes.scale_V[v] < 1.0:
                    unfilled_V[v] += gap * (1.0 - lanes.scale_V[v])
                    gap *= lanes.scale_V[v]
                    goal = lanes.units_NV[i, v] * price + gap
                lanes.trade_V[v] = gap * ratio
                lanes.units_NV[i, v] = goal * per_unit
        else:
            for v in range(V):
                unfilled_V[v] += abs(weight * lanes.nav_V[v] - lanes.units_NV[i, v] * price)
                lanes.trade_V[v] = 0.0
        for v in range(V):
            lanes.bought_V[v] += lanes.trade_V[v]
            traded_V[v] += abs(lanes.trade_V[v])
            lanes.fee_V[v] += _commission(rates, v, abs(lanes.trade_V[v]))
        lanes.trade_N[i] = lanes.trade_V[V - 1]
        half_spread, impact = cell(tape.spread_RN, t, i, 0.0), cell(tape.impact_RN, t, i, 0.0)
        if half_spread > 0.0:
            for v in range(V):
                lanes.spread_V[v] += half_spread * abs(lanes.trade_V[v])
        if impact > 0.0:
            for v in range(V):
                size = abs(lanes.trade_V[v])
                lanes.impact_V[v] += impact * size * np.sqrt(size)
    _pay(t, len(tape.spread_RN) == 0, rates, lanes, books)


@compiled
def _commission(rates: Rates, v: int, size: float) -> float:
    """Commission of a trade, at least the minimum fee."""
    return max(rates.commission_V[v] * size, rates.minimum_V[v]) if size > 0.0 else 0.0


@compiled
def _pay(t: int, flat: bool, rates: Rates, lanes: Lanes, books: LaneAccounts) -> None:
    """Pay for the trades of session t and their costs from cash."""
    for v in range(len(lanes.cash_V)):
        traded = books.traded_TV[t, v]
        books.half_spread_TV[t, v] = rates.spread_V[v] * (traded if flat else lanes.spread_V[v])
        free = rates.minimum_V[v] == 0.0  # then a sum of products, as for the half-spread
        books.commission_TV[t, v] = rates.commission_V[v] * traded if free else lanes.fee_V[v]
        books.impact_TV[t, v] = rates.impact_V[v] * lanes.impact_V[v]
        paid = books.half_spread_TV[t, v] + books.commission_TV[t, v] + books.impact_TV[t, v]
        lanes.cash_V[v] -= lanes.bought_V[v] + paid
        lanes.bought_V[v] = lanes.spread_V[v] = lanes.impact_V[v] = lanes.fee_V[v] = 0.0


@compiled
def run_lanes(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    plan: Plan, tape: Tape, rates: Rates, lanes: Lanes, books: LaneAccounts, keep: bool
) -> FloatArray:
    """Process all sessions. Fills ``books``; returns the ledger, without rows unless it is kept.

    Changes ``lanes``. New ones hold cash and no positions; others begin with what they hold at the close of
    the first session (`backtest.accounts.accounting`).

    A ledger is kept for a single lane. Its columns are session, firm, position, trade, released, half-spread,
    commission, impact, borrow and financing, shape (L, 10).
    """
    T = len(tape.value_TN)
    at_close = len(tape.fill_RN) == 0
    firms, ledger_LC, rows = _listed(lanes), np.empty((0, COLUMNS)), ZERO
    books.ruined_V[:] = T
    for t in range(T):
        _charge(t, rates, lanes, books)
        decision = t - plan.delay
        decided = decision >= 0 and plan.decided_T[decision]
        if decided:
            firms = _new_targets(decision, plan, lanes)
        if (decided or plan.carry) and not at_close and t > 0:
            trade(t, firms, decided, plan.carry, tape, rates, lanes, books)
        _value(t, firms, tape, lanes)
        copy(lanes.nav_V, books.before_TV[t])
        _close_ruined(t, firms, tape, lanes, books)
        if (decided or plan.carry) and at_close:
            trade(t, firms, decided, plan.carry, tape, rates, lanes, books)
            for v in range(len(lanes.nav_V)):
                lanes.nav_V[v] -= (
                    books.half_spread_TV[t, v] + books.commission_TV[t, v] + books.impact_TV[t, v]
                )
            _close_ruined(t, firms, tape, lanes, books)
        if decided:
            for k in range(plan.start_T1[decision], plan.start_T1[decision + 1]):
                lanes.weight_N[plan.firm_K[k]] = 0.0
        if keep:
            ledger_LC = _grown(ledger_LC, rows, rows + len(firms))
            rows = _write_rows(t, firms, tape, rates, lanes, ledger_LC, rows)
        _measure(t, firms, tape, lanes, books)
    return ledger_LC[:rows]


@compiled
def _charge(t: int, rates: Rates, lanes: Lanes, books: LaneAccounts) -> None:
    """Pay the borrow fee and the interest on the values after the previous session's trades."""
    for v in range(len(lanes.cash_V)):
        books.borrow_TV[t, v] = rates.borrow_V[v] * lanes.short_V[v]
        interest = rates.financing_V[v] * max(lanes.long_V[v] - lanes.nav_V[v], 0.0)
        books.financing_TV[t, v] = interest
        lanes.interest_per_long_V[v] = interest / lanes.long_V[v] if interest > 0.0 else 0.0
        lanes.cash_V[v] -= books.borrow_TV[t, v] + books.financing_TV[t, v]


@compiled
def _new_targets(decision: int, plan: Plan, lanes: Lanes) -> Firms:
    """Write the targets of a decision, and return the firms that are held or targeted, ascending."""
    total, lowest = plan.cut_T[decision], 0.0
    for k in range(plan.start_T1[decision], plan.start_T1[decision + 1]):
        lanes.weight_N[plan.firm_K[k]] = plan.weight_K[k]
        lanes.listed_N[plan.firm_K[k]] = True
        total += plan.weight_K[k]
        lowest = min(lowest, plan.weight_K[k])
    lanes.goal_1[0] = total if lowest >= 0.0 else 0.0
    return _listed(lanes)


@compiled
def _listed(lanes: Lanes) -> Firms:
    """Return the firms that are held, ordered or targeted, ascending."""
    firms: Firms = np.flatnonzero(lanes.listed_N)
    return firms


@compiled
def _value(t: int, firms: Firms, tape: Tape, lanes: Lanes) -> None:
    """Compute the NAV at the close, and turn positions in delisted firms into cash."""
    copy(lanes.cash_V, lanes.nav_V)
    value_N, state_N, V = tape.value_TN[t], tape.state_TN[t], len(lanes.nav_V)
    for i in firms:
        value = value_N[i]
        for v in range(V):
            lanes.nav_V[v] += lanes.units_NV[i, v] * value
        if state_N[i] & GONE:
            lanes.paid_out_N[i] = lanes.units_NV[i, 0] * value
            for v in range(V):
                lanes.cash_V[v] += lanes.units_NV[i, v] * value
                lanes.units_NV[i, v] = 0.0
            if len(lanes.left_NV):
                lanes.left_NV[i] = 0.0


@compiled
def _close_ruined(t: int, firms: Firms, tape: Tape, lanes: Lanes, books: LaneAccounts) -> None:
    """Close the accounts whose NAV is zero or less: all positions are paid out, and cash is zero."""
    for v in range(len(lanes.nav_V)):
        if lanes.nav_V[v] > 0.0:
            continue
        if books.ruined_V[v] == len(books.nav_TV):
            books.ruined_V[v], books.shortfall_V[v] = t, -lanes.nav_V[v]
            for i in firms:
                lanes.paid_out_N[i] += lanes.units_NV[i, v] * tape.value_TN[t, i]
                lanes.units_NV[i, v] = 0.0
                if len(lanes.left_NV):
                    lanes.left_NV[i, v] = 0.0
        lanes.nav_V[v] = lanes.cash_V[v] = 0.0


@compiled
def _measure(t: int, firms: Firms, tape: Tape, lanes: Lanes, books: LaneAccounts) -> None:
    """Compute NAV and exposures after trades, and drop the firms that no lane holds or orders any more."""
    lanes.long_V[:] = 0.0
    lanes.short_V[:] = 0.0
    copy(lanes.cash_V, lanes.nav_V)
    gross_V, value_N, state_N, V = books.gross_TV[t], tape.value_TN[t], tape.state_TN[t], len(lanes.nav_V)
    for i in firms:
        value, fee, busy = value_N[i], cell(tape.borrow_RN, t, i, 1.0), 0.0
        for v in range(V):
            units = lanes.units_NV[i, v]
            position = units * value
            lanes.nav_V[v] += position
            gross_V[v] += abs(position)
            lanes.long_V[v] += max(position, 0.0)
            lanes.short_V[v] += fee * max(-position, 0.0)
            busy += abs(units)
        if not state_N[i] & KNOWN:
            for v in range(V):
                books.unpriced_TV[t, v] += abs(lanes.units_NV[i, v] * value)
        if len(lanes.left_NV):
            for v in range(V):
                busy += abs(lanes.left_NV[i, v])
        lanes.listed_N[i] = busy > 0.0
    copy(lanes.nav_V, books.nav_TV[t])
    copy(lanes.cash_V, books.cash_TV[t])


@compiled
def _grown(ledger_LC: FloatArray, rows: int, wanted: int) -> FloatArray:
    """Return the ledger with room for the wanted number of rows."""
    if wanted <= len(ledger_LC):
        return ledger_LC
    grown_LC = np.empty((max(2 * len(ledger_LC), wanted), COLUMNS))
    for row in range(rows):
        copy(ledger_LC[row], grown_LC[row])
    return grown_LC


@compiled
def _write_rows(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    t: int, firms: Firms, tape: Tape, rates: Rates, lanes: Lanes, ledger_LC: FloatArray, rows: int
) -> int:
    """Write the ledger's rows of session t for the only lane; returns the number of rows."""
    for i in firms:
        last, traded = lanes.last_N[i], lanes.trade_N[i]
        position = lanes.units_NV[i, 0] * tape.value_TN[t, i]
        if last != 0.0 or traded != 0.0:
            size, row = abs(traded), ledger_LC[rows]
            row[0], row[1] = t, i
            row[2], row[3], row[4] = position, traded, lanes.paid_out_N[i]
            row[5] = rates.spread_V[0] * cell(tape.spread_RN, t, i, 1.0) * size
            row[6] = _commission(rates, 0, size)
            row[7] = row[8] = 0.0
            if size > 0.0:
                row[7] = rates.impact_V[0] * cell(tape.impact_RN, t, i, 0.0) * size * np.sqrt(size)
            if last < 0.0:
                row[8] = rates.borrow_V[0] * cell(tape.borrow_RN, t - 1, i, 1.0) * -last
            row[9] = lanes.interest_per_long_V[0] * max(last, 0.0)
            rows += 1
        lanes.last_N[i], lanes.trade_N[i], lanes.paid_out_N[i] = position, 0.0, 0.0
    return rows
