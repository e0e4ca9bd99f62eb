"""What a book holds tonight: the last recorded book, rolled forward to tonight's close.

Holdings change only through recorded orders and recorded corporate actions; tonight's config decides nothing
of them. A position that was last traded in session a is worth its value at a times the total return since a,
as the data know it tonight, so late corrections count. Shape suffixes: T sessions, N firms of the panel.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from backtest.accounts.accounting import Account, Course, roll_forward
from backtest.accounts.market import GONE, TRADABLE, BookMarket
from backtest.accounts.result import ledger_frame
from backtest.books.decisions import funded
from features.arithmetic.rolling import carry
from features.arrays import BoolArray, DateArray, FloatArray, frozen
from features.panel.cleaned import in_currency_of
from features.panel.delistings import DelistingRule, find_delistings
from features.panel.panel import Panel
from pipelines.config.sections import BacktestConfig
from pipelines.errors import DataError, one_line
from pipelines.lake.lake import Lake
from pipelines.lake.renames import newest_ticker
from pipelines.lake.schemas import rows_known, schema
from pipelines.nightly.result import finished_before
from pipelines.results.books import book_costs, book_execution, book_market

NOT_IN_THE_DATA = "not in the data"  # what binds a held firm that the source does not deliver any more
TOO_SMALL = "below min_trade"  # what binds a trade that is not an order
_UNCHANGED = 1e-12  # relative change of a number of units below which a position was not traded


@dataclass(frozen=True, slots=True)
class Absent:
    """A held firm that the data of tonight do not have, at its last known value over NAV."""

    weight: float
    since: dt.date
    growth: float
    fee: float = 0.0  # for borrowing it for a session, over NAV


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a book holds, as values over the NAV at tonight's close; a NAV of 0 means that it was lost."""

    nav: float
    weight_N: FloatArray
    open_N: FloatArray  # not yet traded of earlier orders
    order_nav: float  # this and the next two: after the sent orders are traded at tonight's prices
    previous_N: FloatArray
    rest_N: FloatArray
    since_N: DateArray
    growth_N: FloatArray
    absent: Mapping[str, Absent] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    missed: Mapping[str, float] = field(default_factory=dict)  # orders whose firm had no price
    waiting: dt.date | None = None  # session of the oldest decision that is not traded by this close
    course: Course | None = (
        None  # from the close of the last night, whose session is row `start` of the panel
    )
    start: int = 0
    start_N: FloatArray = field(default_factory=lambda: np.zeros(0))  # values at that close

    @property
    def absent_weight(self) -> float:
        """Weight of all held firms that the data do not have."""
        return sum(one.weight for one in self.absent.values())


@dataclass(frozen=True, slots=True, eq=False)
class Actual:
    """What given fills have left tonight: the account on the panel's firms, and other firms that are held."""

    account: Account
    absent: Mapping[str, Absent]

    @property
    def nav(self) -> float:
        """Net asset value, in units of the capital."""
        return self.account.nav + sum(one.weight for one in self.absent.values())


def hold(
    recorded: Recorded,
    panel: Panel,
    securities: pl.DataFrame | None,
    rule: DelistingRule,
    *,
    delay: int,
    actual: Actual | None = None,
) -> Held:
    """Roll the last recorded book forward to tonight; given fills replace what it would have traded."""
    if recorded.last is not None:
        rolling = _Rolling(recorded, recorded.last, panel, securities, rule)
        return rolling.to_tonight(delay, actual)
    if actual is None:
        return _cash(panel)
    cash, nav = _cash(panel, max(actual.nav, 0.0)), actual.nav
    if nav <= 0:
        return cash
    weight_N = actual.account.value_N / nav
    absent = {ticker: replace(one, weight=one.weight / nav) for ticker, one in actual.absent.items()}
    return replace(cash, weight_N=weight_N, previous_N=weight_N, absent=absent)


def replay(
    recorded: Recorded, panel: Panel, securities: pl.DataFrame | None, rule: DelistingRule
) -> tuple[int, Course]:
    """Backtest the decisions of all nights from cash, on tonight's data and each under its recorded terms.

    ``recorded`` holds the books of all nights that made a decision. Trades below `min_trade` are made.
    Returned are the row of the first night in the panel, and the course from its close.
    """
    first = recorded.accounts["session"][0]
    account = {**recorded.accounts.row(-1, named=True), "nav": 1.0, "waiting": None}
    empty = replace(recorded, holdings=recorded.holdings.clear())
    return _Rolling(empty, first, panel, securities, rule, account=account, whole=True).from_cash()


def market_of_nights(panel: Panel, securities: pl.DataFrame | None) -> BookMarket:
    """Prepare the market that nights trade in, which pays out only where a delisting is recorded.

    A firm that is silent for long is still held, at its last value.
    """
    market = book_market(panel, slice(0, panel.n_sessions))
    recorded_N = np.isin(panel.tickers_N, list(_delistings(securities)))
    presumed_N: BoolArray = panel.delisted_TN.any(axis=0) & ~recorded_N
    if not presumed_N.any():
        return market
    value_TN, state_TN = market.value_TN.copy(), market.state_TN.copy()
    silent_TN = panel.delisted_TN & presumed_N
    value_TN[silent_TN] = np.nan
    state_TN[silent_TN] &= np.uint8(255 - GONE)
    return BookMarket(frozen(carry(value_TN)), state_TN)


def _cash(panel: Panel, nav: float = 1.0) -> Held:
    zero_N = np.zeros(panel.n_firms)
    tonight_N = np.full(panel.n_firms, panel.dates_T[-1])
    return Held(nav, zero_N, zero_N, nav, zero_N, zero_N, tonight_N, np.ones(panel.n_firms))


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Target weights of a recorded order, and what its purchases were cut by; both over NAV."""

    weight_N: FloatArray
    cut: float
    known: bool
    small_N: BoolArray  # trades that were too small for an order

    @property
    def goal(self) -> float | None:
        """Sum of a long-only target before the cut, 0 of others; None if its rows are not read any more."""
        if not self.known:
            return None
        return float(self.weight_N.sum()) + self.cut if self.weight_N.min() >= 0 else 0.0


class _Rolling:
    """The last recorded book, placed on the firms of tonight's panel."""

    def __init__(
        self,
        recorded: Recorded,
        last: dt.date,
        panel: Panel,
        securities: pl.DataFrame | None,
        rule: DelistingRule,
        *,
        account: Mapping[str, Any] | None = None,
        whole: bool = False,
    ) -> None:
        self._whole = whole  # whether decisions are traded, and not the orders that they led to
        self._recorded, self._last, self._panel, self._rule = recorded, last, panel, rule
        self._day_T = panel.dates_T
        self._start = self._session(last)
        if self._start < 0:
            raise DataError(
                f"The prices begin on {self._day_T[0]}, after the last night ({last}), so what is held "
                "cannot be followed; ingest the sessions in between."
            )
        self._firm = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
        self._delistings = _delistings(securities)
        self._market = market_of_nights(panel, securities)
        self._events: list[str] = []
        self._absent: dict[str, Absent] = {}
        self._missed: dict[str, float] = {}
        self._waiting: dt.date | None = None
        self._traded: dt.date | None = None  # the newest decision that the last night had traded
        self._value_N, self._open_N = np.zeros(panel.n_firms), np.zeros(panel.n_firms)
        self._since_N = np.full(panel.n_firms, self._day_T[self._start])
        self._paid = 0.0  # for absent firms that were delisted
        self._account = account or recorded.accounts.row(-1, named=True)
        self._nav = float(self._account["nav"])
        for row in recorded.holdings.sort("ticker").iter_rows(named=True):
            self._place(row)

    def from_cash(self) -> tuple[int, Course]:
        """Trade all orders up to tonight from cash; the row of the first night, and the course from it."""
        zero_N = np.zeros(self._panel.n_firms)
        orders = {at: self._target(night) for at, night in self._orders()}
        course = Course(Account(zero_N, zero_N, self._nav), np.array([self._nav]), _no_ledger())
        accounts = self._recorded.accounts
        changed = accounts.filter(pl.col("terms").ne_missing(pl.col("terms").shift(1)))
        last_ = [*map(self._session, changed["session"][1:]), self._panel.n_sessions - 1]
        first = self._start
        for terms, last in zip(changed["terms"], last_, strict=True):
            part = self._continued(course.account, first, last, orders, terms)
            ledger = part.ledger.with_columns(pl.col("session") + (first - self._start))
            nav_T = np.concatenate([course.nav_T, part.nav_T[1:]])
            course, first = Course(part.account, nav_T, pl.concat([course.ledger, ledger])), last
        return self._start, course

    def to_tonight(self, delay: int, actual: Actual | None) -> Held:
        """Continue the account to tonight, and to the moment before tonight's order is traded."""
        if self._nav <= 0:
            return _cash(self._panel, nav=0.0)
        panel, tonight = self._panel, self._panel.n_sessions - 1
        held = self._recorded.holdings["weight"].sum()
        absent = sum(one.weight for one in self._absent.values())
        cash = self._nav * (1.0 - float(held)) + self._paid
        rate = self._settings().costs.borrow_bps_per_year * 1e-4 / panel.periods_per_year
        for ticker, one in self._absent.items():
            self._absent[ticker] = replace(one, fee=rate * max(-one.weight, 0.0))
        fees_T = (
            self._nav * sum(one.fee for one in self._absent.values()) * np.arange(tonight - self._start + 1)
        )
        orders = {at: self._target(night) for at, night in self._orders()}
        goal = None if self._traded is None else self._target(self._traded).goal
        start = Account(self._value_N, self._open_N, cash + self._nav * absent - fees_T[-1], goal)
        course, unit = self._continued(start, self._start, tonight, orders), self._nav
        course = replace(course, nav_T=course.nav_T + fees_T[::-1])
        now = course.account
        if actual is not None:
            self._absent = dict(actual.absent)
            kept, unit = sum(one.weight for one in self._absent.values()), 1.0
            now = replace(actual.account, cash=actual.account.cash + kept, goal=now.goal)
            self._missed = {}
        if delay > 1:  # else tonight says what is too small
            now = replace(now, open_N=np.where(self._dropped(tonight + 1 - delay), 0.0, now.open_N))
        then = self._continued(now, tonight, max([tonight + delay - 1, *orders]), orders).account
        nav, later = now.nav, then.nav
        if nav <= 0 or later <= 0:
            lost = _cash(panel, nav=0.0)
            return replace(lost, course=course, start=self._start, start_N=start.value_N)
        since_N, growth_N = self._anchors(start, now)
        paid_N = (start.value_N != 0) & ((self._market.state_TN[tonight] & GONE) > 0)
        for n in np.flatnonzero(paid_N):
            value = self._market.value_TN[tonight, n] / self._market.value_TN[self._start, n]
            paid = start.value_N[n] / self._nav * value
            self._events.append(f"{panel.tickers_N[n]} was delisted and paid {paid:.2%} of NAV.")
        return Held(
            nav=nav,
            weight_N=now.value_N / nav,
            open_N=now.open_N / nav,
            order_nav=later,
            previous_N=then.value_N / later,
            rest_N=then.open_N / later,
            since_N=since_N,
            growth_N=growth_N,
            absent={
                ticker: replace(one, weight=one.weight * unit / nav, fee=one.fee * unit / nav)
                for ticker, one in self._absent.items()
            },
            events=tuple(self._events),
            missed=self._missed,
            waiting=self._waiting,
            course=course,
            start=self._start,
            start_N=start.value_N,
        )

    def _dropped(self, at: int) -> BoolArray:
        """Firms that trade tonight, and whose open order the night of a session called too small."""
        rows = self._recorded.of(self._day_T[max(at, 0)].item()).filter(pl.col("bound") == TOO_SMALL)
        small_N = place(rows.with_columns(small=1.0), "small", self._panel, self._recorded.renames) > 0
        dropped_N: BoolArray = small_N & ((self._market.state_TN[-1] & TRADABLE) > 0)
        return dropped_N

    def _place(self, row: Mapping[str, Any]) -> None:
        """Place one recorded position on the panel, or keep it aside if the data do not have its firm."""
        ticker, since, growth, value_TN = row["ticker"], row["since"], row["growth"], self._market.value_TN
        name = self._recorded.name_tonight(ticker, since)
        if name != ticker:
            self._events.append(f"{ticker} is called {name} now and is held on under that name.")
        n, firm, start = self._firm.get(name), Absent(row["weight"], since, growth), self._start
        if n is None or not (value_TN[:, n] > 0).any():
            self._keep_absent(name, firm)
            return
        at, revised = self._session(since), 1.0
        known = at >= 0 and value_TN[at, n] > 0
        first = max(int(np.argmax(value_TN[:, n] > 0)), start)
        if not known and self._ended(name, since, first):  # another firm has the ticker now
            self._keep_absent(name, firm)
            return
        if not value_TN[start, n] > 0:
            # the history of the firm was withdrawn: the position keeps its value up to the first price
            value_TN = value_TN.copy()
            value_TN[:first, n] = value_TN[first, n]
            self._market = BookMarket(frozen(value_TN), self._market.state_TN)
        elif known:
            paid_T = np.flatnonzero(self._panel.delisted_TN[at + 1 : start + 1, n])
            alive = not self._market.state_TN[start, n] & GONE
            if len(paid_T) and alive and self._ended(name, since, start):
                paid = float(value_TN[at + 1 + paid_T[0], n] / value_TN[at, n])
                self._pay(name, firm.weight / growth * paid)
                return
            revised = float(value_TN[start, n] / value_TN[at, n]) / growth
            self._since_N[n] = np.datetime64(since)
        self._value_N[n] += firm.weight * revised * self._nav
        self._open_N[n] += row["open"] * revised * self._nav

    def _ended(self, ticker: str, since: dt.date, session: int) -> bool:
        """Whether the firm that had a ticker on a day is recorded as delisted by a session."""
        rows = self._delistings.get(ticker)
        until = self._day_T[session].item()
        return rows is not None and bool(rows["delisted_on"].is_between(since, until).any())

    def _pay(self, ticker: str, value: float) -> None:
        """Turn a position that was delisted into cash."""
        self._paid += value * self._nav
        self._events.append(f"{ticker} was delisted and paid {value:.2%} of NAV.")

    def _keep_absent(self, ticker: str, firm: Absent) -> None:
        """Keep a firm without data at its last value, or pay it out if a delisting is recorded."""
        if firm.weight == 0.0:
            return
        if ticker in self._delistings:
            at = max(self._session(firm.since), 0)
            traded_TN = np.zeros((len(self._day_T) - at, 1), dtype=np.bool_)
            traded_TN[0] = True
            listed = self._delistings[ticker]
            found = find_delistings(traded_TN, self._day_T[at:], (ticker,), listed, self._rule)
            if found.delisted_TN[-1, 0]:
                self._pay(ticker, firm.weight * float(found.value_ratio_TN[-1, 0]))
                return
        before = self._absent.get(ticker, Absent(0.0, firm.since, firm.growth))
        self._absent[ticker] = replace(firm, weight=firm.weight + before.weight)

    def _orders(self) -> Iterator[tuple[int, dt.date]]:
        """Session in which each order is traded that the last night left to be traded, and its night."""
        untraded = self._account["waiting"]
        played = self._recorded.accounts["session"].to_numpy().astype("datetime64[D]")
        withdrawn = np.setdiff1d(played, self._day_T)
        sessions: DateArray = np.union1d(self._day_T, withdrawn)
        priced_T: BoolArray = np.any(self._market.state_TN & TRADABLE, axis=1)
        open_ = np.isin(sessions, np.union1d(self._day_T[priced_T], withdrawn))
        overtaken = len(self._day_T) + int(self._recorded.accounts["delay"].max())  # type: ignore[arg-type]
        for night in self._recorded.made.sort("session", descending=True).iter_rows(named=True):
            place = int(np.searchsorted(sessions, np.datetime64(night["session"]))) + night["delay"]
            if untraded is not None and night["session"] >= untraded:  # a session came after its night
                place = max(place, int(np.searchsorted(sessions, np.datetime64(self._last), side="right")))
            place += int(np.argmax([*open_[place:], True]))
            at = len(self._day_T) + place - len(sessions)
            if place < len(sessions):
                if sessions[place] <= np.datetime64(self._last):
                    self._traded = night["session"]
                    return
                at = int(np.searchsorted(self._day_T, sessions[place]))
            if at >= overtaken:
                continue
            overtaken = at
            if at < len(self._day_T):
                self._miss(at, night["session"])
            else:
                self._waiting = night["session"]
            yield at, night["session"]

    def _miss(self, at: int, session: dt.date) -> None:
        """Note the orders of a night that could be traded then, and for which session ``at`` has no price."""
        sent = self._recorded.of(session).filter(pl.col("tradable"))
        for ticker, trade in sent.select("ticker", "trade").iter_rows():
            name = newest_ticker(ticker, session, self._recorded.renames)
            n = self._firm.get(name)
            if n is None:
                silent = name not in self._delistings
            else:
                silent = not self._market.state_TN[at, n] & (TRADABLE | GONE)
            if trade and silent:
                self._missed[name] = trade

    def _target(self, session: dt.date) -> _Target:
        """Target of a recorded order; firms that are absent since then cannot be sold for it."""
        rows, panel, renames = self._recorded.of(session), self._panel, self._recorded.renames
        gone = pl.col("bound").eq_missing(NOT_IN_THE_DATA)
        known_then = set(rows.filter(gone)["ticker"])
        absent = sum(one.weight for ticker, one in self._absent.items() if ticker not in known_then)
        if self._whole:  # the backtest cuts what it cannot pay for itself
            decided_N = place(rows, "decided", panel, renames)
            return _Target(decided_N, 0.0, known=True, small_N=np.zeros(len(decided_N), dtype=np.bool_))
        weight_N = funded(place(rows, "weight", panel, renames), absent)
        small = pl.col("bound").eq_missing(TOO_SMALL)
        lacks = pl.when(small).then(pl.col("weight") - pl.col("previous")).otherwise("trade")
        rows = rows.with_columns(small=small.cast(pl.Float64), lacks=lacks)
        small_N = place(rows, "small", panel, renames) > 0
        blocked = rows.filter((~pl.col("tradable") | small) & ~gone)
        cut = max(-float(place(blocked, "lacks", panel, renames).sum()), 0.0)
        return _Target(weight_N, cut, known=not rows.is_empty(), small_N=small_N)

    def _continued(
        self,
        account: Account,
        first: int,
        last: int,
        orders: Mapping[int, _Target],
        terms: str | None = None,
    ) -> Course:
        """Continue an account, by default under the last terms; sessions to come have tonight's prices."""
        if first == last:
            return Course(account, np.array([account.nav]), _no_ledger())
        rows = np.minimum(np.arange(first, last + 1), self._panel.n_sessions - 1)
        target_TN, cut_T = np.full((len(rows), self._panel.n_firms), np.nan), np.zeros(len(rows))
        state_TN, small_N = self._market.state_TN[rows], np.zeros(self._panel.n_firms, dtype=np.bool_)
        for at, target in sorted(orders.items()):
            if first < at <= last:
                target_TN[at - first - 1], cut_T[at - first - 1] = target.weight_N, target.cut
                small_N, later_TN = target.small_N, state_TN[at - first :]
                later_TN[:] = self._market.state_TN[rows[at - first :]]
                later_TN[:, small_N] &= np.uint8(255 - TRADABLE)
        market, settings = BookMarket(self._market.value_TN[rows], state_TN), self._settings(terms)
        span, panel = slice(first, last + 1), in_currency_of(self._panel, self._recorded.begun(self._panel))
        costs, execution = book_costs(settings, panel, span), book_execution(settings, panel, span, 1)
        course = roll_forward(account, target_TN, market, costs, execution, cut_T=cut_T)
        end = replace(course.account, open_N=np.where(small_N, 0.0, course.account.open_N))
        return replace(course, account=end)

    def _settings(self, terms: str | None = None) -> BacktestConfig:
        """Costs and execution that orders are traded under, as they were recorded with them."""
        try:
            return BacktestConfig.model_validate(json.loads(terms or self._account["terms"]))
        except ValueError as error:
            raise DataError(
                f"The terms of the order of {self._last} in the table accounts cannot be read "
                f"({one_line(error)}); restore the table, or start again from cash under another name."
            ) from None

    def _anchors(self, start: Account, now: Account) -> tuple[DateArray, FloatArray]:
        """Session at which each position was last traded, and the total return factor since."""
        value_TN, tonight = self._market.value_TN, self._panel.n_sessions - 1
        before_N, after_N = value_TN[self._start], value_TN[tonight]
        with np.errstate(divide="ignore", invalid="ignore"):
            units_N, units_after_N = start.value_N / before_N, now.value_N / after_N
        same_N = np.abs(units_after_N - units_N) <= _UNCHANGED * np.abs(units_N)
        same_N &= now.value_N != 0  # an order of a firm that is not held is open as of tonight
        since_N = np.where(same_N, self._since_N, self._day_T[tonight])
        row_N = np.maximum(np.searchsorted(self._day_T, since_N, side="right") - 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            growth_N = after_N / value_TN[row_N, np.arange(len(after_N))]
        return since_N, np.where(same_N, growth_N, 1.0)

    def _session(self, day: dt.date | np.datetime64) -> int:
        """Number of the last session up to a day; -1 if there is none."""
        return int(np.searchsorted(self._day_T, np.datetime64(day), side="right")) - 1


def _no_ledger() -> pl.DataFrame:
    return ledger_frame(np.empty((0, 10)))


def place(rows: pl.DataFrame, column: str, panel: Panel, renames: pl.DataFrame) -> FloatArray:
    """Place a column of one night's ``books`` on the panel, shape (N,); 0 where a firm has no row."""
    firm = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
    out_N = np.zeros(panel.n_firms)
    for ticker, session, value in rows.select("ticker", "session", column).iter_rows():
        n = firm.get(newest_ticker(ticker, session, renames))
        if n is not None:
            out_N[n] += value
    return out_N


def _delistings(securities: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    """Ticker -> its rows, of the firms with a recorded delisting."""
    if securities is None:
        return {}
    rows = securities.filter(pl.col("delisted_on").is_not_null().any().over("ticker"))
    return {str(ticker): group for (ticker,), group in rows.partition_by("ticker", as_dict=True).items()}


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The book as earlier nights left it, newest rows last; last night knew the renames ``followed``."""

    accounts: pl.DataFrame
    holdings: pl.DataFrame
    books: pl.DataFrame
    renames: pl.DataFrame
    followed: pl.DataFrame = field(default_factory=lambda: schema("renames").create_empty())

    @classmethod
    def nothing(cls) -> Recorded:
        """Before the first night."""
        return cls(*(schema(table).create_empty() for table in ("accounts", "holdings", "books", "renames")))

    @property
    def last(self) -> dt.date | None:
        """Session of the last night; None before the first one."""
        return None if self.accounts.is_empty() else self.accounts["session"][-1]

    def begun(self, panel: Panel) -> int:
        """Row of the panel in which the account begins; 0 if the prices do not have it."""
        days = panel.dates_T.tolist()
        session = days[-1] if self.last is None else self.accounts["session"][0]
        return days.index(session) if session in days else 0

    @property
    def made(self) -> pl.DataFrame:
        """Accounts of the nights that made a decision, the newest last."""
        return self.accounts.filter(pl.col("decision") == "made")

    def name_tonight(self, ticker: str, since: dt.date) -> str:
        """Return tonight's ticker of a firm held since a session, by renames that last night did not know."""
        key = ["ticker", "from_date", "new_ticker"]
        new = self.renames.join(self.followed, on=key, how="anti").sort("from_date")
        new = new.filter((pl.col("ticker") == ticker) & (pl.col("from_date") > since))
        if new.is_empty():
            return ticker
        return newest_ticker(new["new_ticker"][0], new["from_date"][0], self.renames)

    def of(self, session: dt.date) -> pl.DataFrame:
        """Orders of one night."""
        return self.books.filter(pl.col("session") == session)


def read_recorded(
    lake: Lake, config_name: str, nights: pl.DataFrame, session: dt.date, renames: pl.DataFrame
) -> Recorded:
    """Read what the finished nights before a session have recorded."""
    finished = finished_before(nights, session)["session"]
    if finished.is_empty():
        return replace(Recorded.nothing(), renames=renames)
    last = finished.max()

    def rows(table: str, sessions: pl.Series) -> pl.DataFrame:
        own = (pl.col("config") == config_name) & pl.col("session").is_in(sessions.implode())
        return lake.rows(table, filters=own)

    accounts = rows("accounts", finished).sort("session")
    if accounts.is_empty() or accounts["session"][-1] != last:
        raise _incomplete(lake, "accounts", last)
    waiting = accounts.tail(int(accounts["delay"].max()))  # type: ignore[arg-type]  # a number
    made = accounts.filter(pl.col("decision") == "made").tail(waiting.height + 1)
    needed = pl.concat([waiting, made]).unique("session").sort("session", descending=True)
    books, holdings = rows("books", needed["session"]), rows("holdings", finished.head(1))
    for table, count, found, nights_of in (
        ("books", "orders", books, needed),
        ("holdings", "positions", holdings, accounts[-1:]),
    ):
        stored = dict(found.group_by("session").len().iter_rows())
        for night, expected in nights_of.select("session", count).iter_rows():
            if stored.get(night, 0) != expected:
                raise _incomplete(lake, table, night)
    followed = _followed(lake, nights.row(by_predicate=pl.col("session") == last, named=True))
    return Recorded(accounts, holdings, books, renames, followed)


def _followed(lake: Lake, night: Mapping[str, Any]) -> pl.DataFrame:
    """Rows of the table ``renames`` that a night knew; none if that version is gone."""
    version, table = (
        json.loads(night[name] or "{}").get("renames") for name in ("data_versions", "table_ids")
    )
    with suppress(DataError):  # the version was removed by a vacuum
        if version is not None and lake.exists("renames") and table in (None, lake.table_id("renames")):
            return lake.read("renames", version=version, filters=rows_known("renames", night["session"]))
    return schema("renames").create_empty()


def _incomplete(lake: Lake, table: str, session: object) -> DataError:
    return DataError(
        f"The table nights of the lake {lake.root} has the night of {session}, but the table {table} does "
        "not hold it, so what is held is not known: restore all tables of the lake from one backup, or start "
        "again from cash under another name."
    )
