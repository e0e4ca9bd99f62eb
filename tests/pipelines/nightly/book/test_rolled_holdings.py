"""Positions rolled forward to tonight: late corrections, silence, endings, and orders on their way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from features.panel.delistings import DelistingRule
from features.panel.panel import PRICE_COLUMNS, Panel, build_panel
from pipelines.config.sections import BacktestConfig
from pipelines.errors import DataError
from pipelines.lake.schemas import schema
from pipelines.nightly.book.holdings import Held, Recorded, hold
from pipelines.nightly.book.next_book import _missed

DAYS = [
    day for day in pl.date_range(dt.date(2024, 1, 1), dt.date(2024, 3, 1), eager=True) if day.weekday() < 5
]
FREE = {"costs": {"half_spread_bps": 0.0, "commission_bps": 0.0, "borrow_bps_per_year": 0.0}}
LAST = 10  # session of the last night


def panel(
    closes: Mapping[str, Sequence[float | None]],
    securities: pl.DataFrame | None = None,
    gaps: Sequence[int] = (),
    rule: DelistingRule = DelistingRule(),  # noqa: B008  # frozen
    **events: Mapping[tuple[str, int], float],
) -> Panel:
    """Prices by firm; ``split_ratio`` and ``dividend`` by firm and session; ``gaps`` are missing sessions."""
    prices = [
        {
            "date": DAYS[t],
            "ticker": ticker,
            "close": close,
            "volume": 1e6,
            "split_ratio": events.get("split_ratio", {}).get((ticker, t), 1.0),
            "dividend": events.get("dividend", {}).get((ticker, t), 0.0),
        }
        for ticker, path in closes.items()
        for t, close in enumerate(path)
        if close is not None
    ]
    frame = pl.DataFrame(prices, schema_overrides={"close": pl.Float64})
    blank = [pl.lit(None, dtype=pl.Float64).alias(one) for one in PRICE_COLUMNS if one not in frame.columns]
    missing = rows("gaps", *({"date": DAYS[t], "ticker": one} for t in gaps for one in closes))
    return build_panel(frame.with_columns(blank), securities, gaps=missing, delisting_rule=rule)


def rows(table: str, *given: dict[str, Any]) -> pl.DataFrame:
    columns = schema(table).columns()
    return pl.DataFrame(
        [dict.fromkeys(columns) | row for row in given],
        schema={name: column.dtype for name, column in columns.items()},
    )


def account(session: int = LAST, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (columns)
    terms = BacktestConfig.model_validate(FREE).model_dump_json(include={"costs", "execution", "capital"})
    return {"session": DAYS[session], "nav": 1.0, "delay": 1, "terms": terms, **more}


def position(ticker: str, weight: float, since: int = LAST, growth: float = 1.0) -> dict[str, Any]:
    return {"ticker": ticker, "weight": weight, "open": 0.0, "since": DAYS[since], "growth": growth}


def recorded(
    *positions: dict[str, Any],
    accounts: list[dict[str, Any]] | None = None,
    books: pl.DataFrame | None = None,
    renames: pl.DataFrame | None = None,
) -> Recorded:
    frames = (
        rows(table) if frame is None else frame for table, frame in (("books", books), ("renames", renames))
    )
    return Recorded(rows("accounts", *(accounts or [account()])), rows("holdings", *positions), *frames)


def tonight(market: Panel, book: Recorded, securities: pl.DataFrame | None = None, delay: int = 1) -> Held:
    return hold(book, market, securities, DelistingRule(), delay=delay)


def weights(market: Panel, held: Held) -> dict[str, float]:
    return {ticker: float(w) for ticker, w in zip(market.tickers_N, held.weight_N, strict=True) if w}


@pytest.mark.parametrize(
    ("late", "value"),
    [
        ({}, 0.25),  # the price halved, and nothing explains it yet
        ({"split_ratio": {("A", 9): 2.0}}, 0.5),  # the split of session 9 arrives with session 11
        ({"dividend": {("A", 9): 50.0}}, 0.5),
        ({"dividend": {("A", 4): 50.0}}, 0.25),  # before the position was bought
    ],
)
def test_a_correction_that_arrives_late_counts_from_when_the_position_was_traded(
    late: dict[str, Any], value: float
) -> None:
    """Bought for half of the capital in session 6, at 100; from session 9 on the price is 50."""
    closes = {"A": [100.0] * 9 + [50.0] * 3, "B": [10.0] * 12}
    nav = 0.75
    book = recorded(position("A", 0.25 / nav, since=6, growth=0.5), accounts=[account(nav=nav)])
    market = panel(closes, **late)
    held = tonight(market, book)
    assert held.nav == pytest.approx(0.5 + value)
    assert weights(market, held)["A"] == pytest.approx(value / (0.5 + value))
    assert held.since_N[0] == np.datetime64(DAYS[6])
    again = tonight(market, recorded(position("A", 0.4, since=6, growth=float(held.growth_N[0]))))
    assert weights(market, again) == {"A": pytest.approx(0.4)}, "it counts once"


def test_a_corrected_price_of_the_last_session_leaves_the_shares_alone() -> None:
    """Session 10 said 107 and is corrected to 100, the price of all other sessions."""
    book = recorded(position("A", 0.535 / 1.035, since=6, growth=1.07), accounts=[account(nav=1.035)])
    market = panel({"A": [100.0] * 12, "B": [10.0] * 12})
    held = tonight(market, book)
    assert held.nav == pytest.approx(1.0)
    assert weights(market, held) == {"A": pytest.approx(0.5)}


def test_a_silent_firm_is_held_until_its_ending_is_recorded() -> None:
    closes: dict[str, list[float | None]] = {"A": [100.0] * 11 + [None] * 25, "B": [10.0] * 36}
    market, book = panel(closes), recorded(position("A", 0.5))
    assert market.delisted_TN[-1].tolist() == [True, False], "labels and backtests presume a delisting"
    held = tonight(market, book)
    assert weights(market, held) == {"A": 0.5}
    listed = {"ticker": "A", "valid_from": DAYS[0], "delisted_on": DAYS[15], "delisting_return": -0.4}
    securities = rows("securities", listed)
    paid = tonight(panel(closes, securities), book, securities)
    assert weights(market, paid) == {}
    assert paid.nav == pytest.approx(0.8)
    assert paid.events == ("A was delisted and paid 30.00% of NAV.",)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_silent_firm_keeps_its_last_value_whatever_a_presumed_delisting_pays(resumes: bool) -> None:
    rule = DelistingRule(unknown_return=-0.3)
    market = panel({"A": [100.0] * 11 + [None] * 25 + [100.0] * resumes, "B": [10.0] * 37}, rule=rule)
    assert market.delisted_TN[35].tolist() == [True, False]
    held = hold(recorded(position("A", 0.5)), market, None, rule, delay=1)
    assert held.nav == 1.0
    assert weights(market, held) == {"A": 0.5}


def test_a_firm_that_the_source_withdrew_is_held_at_its_last_value() -> None:
    market = panel({"B": [10.0] * 11 + [20.0], "C": [30.0] * 12})
    book = recorded(position("A", 0.5), position("B", 0.25))
    held = tonight(market, book)
    assert held.nav == pytest.approx(1.25)
    assert {ticker: one.weight for ticker, one in held.absent.items()} == {"A": pytest.approx(0.4)}
    assert weights(market, held) == {"B": pytest.approx(0.4)}
    listed = {
        "ticker": "A",
        "valid_from": DAYS[0],
        "delisted_on": DAYS[11],
        "delisting_reason": "performance",
    }
    paid = tonight(market, book, rows("securities", listed))
    assert paid.absent == {}
    assert paid.nav == pytest.approx(0.25 + 0.5 + 0.5 * 0.7), "Shumway's -30%"
    renames = rows("renames", {"ticker": "A", "from_date": DAYS[11], "new_ticker": "C"})
    renamed = tonight(market, recorded(position("A", 0.5), position("B", 0.25), renames=renames))
    assert weights(market, renamed) == {"B": pytest.approx(0.4), "C": pytest.approx(0.4)}
    assert renamed.events == ("A is called C now and is held on under that name.",)


@pytest.mark.parametrize(
    ("history", "nav"),
    [
        ([None] * 11 + [40.0, 60.0], 0.5 + 0.5 * 0.7),  # only the new firm's prices are delivered
        ([None] * 9 + [40.0, 40.0, 40.0, 60.0], 0.5 + 0.5 * 0.7),  # which begin before the last night
        ([100.0] * 7 + [80.0, None, 40.0, 40.0, 40.0, 60.0], 0.5 + 0.4 * 0.7),  # known after the last night
    ],
)
def test_a_position_does_not_pass_to_the_next_firm_with_its_ticker(
    history: list[float | None], nav: float
) -> None:
    """Bought in session 6 of a firm that was delisted in session 8; another firm is A from 9 on."""
    closes: dict[str, list[float | None]] = {"A": history, "B": [10.0] * 13}
    old = {"ticker": "A", "valid_from": DAYS[0], "delisted_on": DAYS[8], "delisting_reason": "performance"}
    securities = rows("securities", old, {"ticker": "A", "valid_from": DAYS[9]})
    market, book = panel(closes, securities), recorded(position("A", 0.5, since=6))
    held = tonight(market, book, securities)
    assert weights(market, held) == {}
    assert held.nav == pytest.approx(nav)
    assert held.events == (f"A was delisted and paid {nav - 0.5:.2%} of NAV.",)
    new = tonight(market, recorded(position("A", 0.5, since=10)), securities)
    assert weights(market, new), "bought after it had the ticker"


@pytest.mark.parametrize(
    ("orders", "bought"),
    [
        ({"B": 1.0}, 0.7),  # A was to be sold for it, and disappeared
        ({"B": 0.6}, 0.6),
        ({"B": 1.3}, 1.0),  # it borrows 30% anyway
        ({"B": 1.0, "C": -1.0}, 1.0),  # short sales pay for it
    ],
)
def test_a_firm_that_disappears_before_its_sale_pays_for_no_purchase(
    orders: dict[str, float], bought: float
) -> None:
    market = panel({"B": [10.0] * 12, "C": [30.0] * 12})
    books = rows("books", *({"session": DAYS[LAST], "ticker": one, "weight": w} for one, w in orders.items()))
    book = recorded(position("A", 0.3), accounts=[account(decision="made")], books=books)
    held = tonight(market, book)
    assert held.nav == pytest.approx(1.0)
    assert weights(market, held)["B"] == pytest.approx(bought)
    known = rows("books", {"session": DAYS[LAST], "ticker": "A", "bound": "not in the data"})
    again = tonight(market, replace(book, books=pl.concat([books, known])))
    assert weights(market, again)["B"] == pytest.approx(orders["B"]), "the decision knew it"


def test_a_ticker_that_another_firm_has_taken_over_is_not_renamed_again() -> None:
    """A was renamed to B in session 8, after the firm that had been B had become D."""
    renames = rows(
        "renames",
        {"ticker": "B", "from_date": DAYS[4], "new_ticker": "D"},
        {"ticker": "A", "from_date": DAYS[8], "new_ticker": "B"},
    )
    market = panel({"B": [10.0] * 12, "D": [30.0] * 12})
    book = recorded(position("B", 0.5, since=2), renames=renames)
    assert weights(market, tonight(market, replace(book, followed=renames))) == {"B": 0.5}
    assert weights(market, tonight(market, book)) == {"D": 0.5}, "last night knew neither"
    late = recorded(position("A", 0.5, since=2), renames=renames)
    assert weights(market, tonight(market, late)) == {"B": 0.5}


def test_a_firm_whose_history_begins_after_the_last_night_goes_on_from_its_first_price() -> None:
    """The source delivers another history of A, which would be held twice: without prices and with them."""
    closes: dict[str, list[float | None]] = {"A": [None] * 11 + [40.0, 60.0], "B": [10.0] * 13}
    books = rows("books", {"session": DAYS[10], "ticker": "A", "weight": 1.0})
    for ordered in ([], [account(decision="made")]):
        held = tonight(
            panel(closes), recorded(position("A", 0.5, since=6, growth=1.3), accounts=ordered, books=books)
        )
        assert held.absent == {}
        assert held.nav == pytest.approx(1.5 if ordered else 1.25)
        assert weights(panel(closes), held) == {"A": pytest.approx(1.0 if ordered else 0.6)}


def test_an_order_on_its_way_is_traded_in_its_session_and_replaced_by_a_later_one() -> None:
    """Decided at a delay of 3, and then one session later at a delay of 1, which overtakes it."""
    market = panel({"A": [100.0] * 12, "B": [10.0] * 12})
    ordered = [{"session": DAYS[t], "ticker": one, "weight": 1.0} for t, one in ((9, "A"), (10, "B"))]
    books = rows("books", *ordered)
    slow, fast = account(9, delay=3, decision="made"), account(10, decision="made")
    only = tonight(market, recorded(accounts=[slow, account()], books=books))
    assert weights(market, only) == {}
    assert only.previous_N.tolist() == [1.0, 0.0], "it was sent, so an order of tonight comes on top of it"
    later = tonight(market, recorded(accounts=[slow, account()], books=books), delay=2)
    assert (later.weight_N.tolist(), later.previous_N.tolist()) == ([0.0, 0.0], [1.0, 0.0])
    both = tonight(market, recorded(accounts=[slow, fast], books=books))
    assert weights(market, both) == {"B": 1.0}


@pytest.mark.parametrize(
    ("left", "held"),
    [
        ((8, 9, 11), {"B": 1.0}),  # the source withdrew session 10, in which A was bought
        ((8, 10, 11), {"B": 1.0}),  # session 9 was withdrawn before the night of 10 was played
    ],
)
def test_a_withdrawn_session_neither_repeats_nor_empties_an_order(
    left: tuple[int, ...], held: dict[str, float]
) -> None:
    """At a delay of 2, A was ordered in session 8 and traded in 10, and B was ordered in 9."""
    kept = [*range(8), *left]
    closes = {
        ticker: [price if t in kept else None for t in range(12)]
        for ticker, price in (("A", 100.0), ("B", 10.0))
    }
    market = panel(closes)
    accounts = [account(t, delay=2, decision=made) for t, made in ((8, "made"), (9, "made"), (10, None))]
    books = rows("books", {"session": DAYS[9], "ticker": "B", "weight": 1.0})  # of 8 is not read any more
    book = recorded(position("A", 1.0, since=10), accounts=accounts, books=books)
    assert weights(market, tonight(market, book, delay=2)) == held


def test_an_order_for_a_session_that_the_source_lacks_is_traded_in_the_next_one() -> None:
    closes: dict[str, list[float | None]] = {
        "A": [*[100.0] * 11, None, 100.0],
        "B": [*[10.0] * 11, None, 10.0],
    }
    market = panel(closes, gaps=[11])
    books = rows("books", {"session": DAYS[10], "ticker": "B", "weight": 1.0})
    book = recorded(accounts=[account(decision="made")], books=books)
    assert weights(market, tonight(market, book)) == {"B": 1.0}
    later = [account(decision="made"), account(12)]
    assert weights(market, tonight(market, recorded(accounts=later, books=books))) == {}, "it is traded once"


def test_an_order_is_not_lost_when_a_session_is_delivered_after_its_night() -> None:
    """Ordered in session 8 at a delay of 2; the night of 10 did not have session 9 yet."""
    closes: dict[str, list[float | None]] = {"A": [100.0] * 11, "B": [10.0] * 11}
    without_9 = {one: [None if t == 9 else price for t, price in enumerate(c)] for one, c in closes.items()}
    books = rows("books", {"session": DAYS[8], "ticker": "B", "weight": 1.0})
    ordered = account(8, delay=2, decision="made", waiting=DAYS[8])
    then = tonight(panel(without_9), recorded(accounts=[ordered], books=books), delay=2)
    assert (weights(panel(without_9), then), then.waiting) == ({}, DAYS[8])
    market = panel({one: [*path, path[0]] for one, path in closes.items()})
    accounts = [ordered, account(10, delay=2, waiting=then.waiting)]
    now = tonight(market, recorded(accounts=accounts, books=books), delay=2)
    assert (weights(market, now), now.waiting) == ({"B": 1.0}, None)
    after = [*accounts, account(11, delay=2, waiting=now.waiting)]
    longer = panel({one: [*path, path[0], path[0]] for one, path in closes.items()})
    assert weights(longer, tonight(longer, recorded(accounts=after, books=books), delay=2)) == {}, "only once"
    gapped = panel({one: [*path, None, path[0]] for one, path in closes.items()}, gaps=[11])
    assert weights(gapped, tonight(gapped, recorded(accounts=accounts, books=books), delay=2)) == {"B": 1.0}


def test_a_levered_book_is_cut_once_while_a_firm_is_suspended() -> None:
    """150% of NAV: A cannot be sold, so B is bought for 100% instead of 150%; nothing is left to cut."""
    halted = [*[100.0] * 11, None]
    market = panel({"A": halted, "B": [10.0] * 12})
    order = {"session": DAYS[10], "previous": 0.5, "weight": 0.0, "trade": -0.5, "tradable": False}
    bought = {"session": DAYS[10], "previous": 0.0, "weight": 1.0, "trade": 1.0, "tradable": True}
    books = rows("books", order | {"ticker": "A"}, bought | {"ticker": "B"})
    held = tonight(market, recorded(position("A", 0.5), accounts=[account(decision="made")], books=books))
    assert weights(market, held) == {"A": pytest.approx(0.5), "B": pytest.approx(1.0)}


def test_an_order_that_finds_no_price_is_named() -> None:
    market = panel({"A": [*[100.0] * 11, None, 100.0], "B": [10.0] * 13})
    order = {"session": DAYS[10], "weight": 0.5, "trade": 0.5, "tradable": True}
    gone = {**order, "ticker": "C", "weight": 0.0, "trade": -0.25}
    books = rows("books", order | {"ticker": "A"}, order | {"ticker": "B"}, gone)
    held = tonight(market, recorded(accounts=[account(decision="made")], books=books))
    assert weights(market, held) == {"B": 0.5}
    assert held.missed == {"A": 0.5, "C": -0.25}
    (found,) = _missed(held)
    assert (found.check, found.level) == ("unfilled", "warn")
    assert "2 orders of earlier nights" in found.sentence
    assert "A (+50.00%), C (-25.00%)" in found.sentence
    told = books.with_columns(tradable=pl.lit(value=False))
    again = tonight(market, recorded(accounts=[account(decision="made")], books=told))
    assert again.missed == {}, "that night has said so"
    assert list(_missed(again)) == []


def test_open_orders_go_on_under_the_cap_that_they_were_made_under() -> None:
    """An order for 50% of NAV; the cap fills 10% of a session's 1e6 shares at 1, and the capital is 1e6."""
    terms = {**FREE, "capital": 1e6, "costs": {**FREE["costs"], "impact_coefficient": 0.0}}
    capped = BacktestConfig.model_validate(terms).model_dump_json(include={"costs", "execution", "capital"})
    market = panel({"A": [1.0] * 13, "B": [10.0] * 13})
    position_A = position("A", 0.1) | {"open": 0.4}
    held = tonight(market, recorded(position_A, accounts=[account(terms=capped)]))
    assert held.weight_N[0] == pytest.approx(0.3), "two sessions"
    assert held.open_N[0] == pytest.approx(0.2)
    assert held.rest_N[0] == pytest.approx(0.2)


def test_an_open_order_of_a_firm_that_is_not_held_is_as_large_every_night() -> None:
    """A is at its upper limit in sessions 11 and 12, so the order for 50% of NAV waits."""
    limited = {**FREE, "execution": {"price_limit": 0.1, "unfilled": "carry"}}
    terms = BacktestConfig.model_validate(limited).model_dump_json(include={"costs", "execution", "capital"})
    closes = {"A": [100.0] * 11 + [110.0, 121.0, 133.1], "B": [10.0] * 14}
    open_, since = 0.5, LAST
    for last in (LAST, LAST + 1, LAST + 2):
        market = panel({ticker: path[: last + 2] for ticker, path in closes.items()})
        row = position("A", 0.0, since=since) | {"open": open_}
        held = tonight(market, recorded(row, accounts=[account(last, terms=terms)]))
        open_, since = float(held.open_N[0]), last + 1
        assert open_ == pytest.approx(0.5 * closes["A"][last + 1] / 100.0), "as many shares"
        assert held.since_N[0] == np.datetime64(DAYS[since])


def test_a_lost_account_stays_lost_and_unknown_history_is_refused() -> None:
    market = panel({"A": [100.0] * 12, "B": [10.0] * 12})
    ruined = tonight(market, recorded(accounts=[account(nav=0.0)]))
    assert (ruined.nav, bool(ruined.weight_N.any())) == (0.0, False)
    early = recorded(accounts=[account() | {"session": dt.date(2023, 12, 1)}])
    with pytest.raises(DataError, match="prices begin on 2024-01-01, after the last night \\(2023-12-01\\)"):
        tonight(market, early)
    spoilt = recorded(position("A", 0.5), accounts=[account(terms='{"costs": {"spread": 1}}')])
    with pytest.raises(DataError, match="terms of the order of 2024-01-15"):
        tonight(market, spoilt)
