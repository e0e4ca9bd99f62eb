"""The panel by hand: adjustment, total return index through halts and delistings, groups, statements."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from ending_markets import securities_table

from features.panel.delistings import DelistingRule
from features.panel.derived import take_firms, take_sessions
from features.panel.holding import forward_returns
from features.panel.panel import Panel, build_panel, forward_factor

DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(61)]
nan = float("nan")


def prices_of(
    closes: dict[str, list[float | None]], events: dict[tuple[str, int], dict[str, float]]
) -> pl.DataFrame:
    """Make a price table from closes by ticker (None: no row unless there is an event)."""
    rows = []
    for ticker, series in closes.items():
        for t, close in enumerate(series):
            event = events.get((ticker, t), {})
            if close is None and not event:
                continue
            bar = {"open": close, "high": close, "low": close, "close": close, "volume": 100.0}
            rows.append(
                {"date": DAYS[t], "ticker": ticker, "split_ratio": 1.0, "dividend": 0.0} | bar | event
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def securities_of(*rows: dict[str, object]) -> pl.DataFrame:
    return securities_table(rows)


def delisted(ticker: str, **fields: object) -> dict[str, object]:
    return {"ticker": ticker, "valid_from": DAYS[0], "delisted_on": DAYS[2], **fields}


def single(closes: list[float | None], events: dict[int, dict[str, float]]) -> Panel:
    return build_panel(
        prices_of({"A": closes, "Z": [1.0] * len(closes)}, {("A", t): e for t, e in events.items()})
    )


def test_a_split_and_a_dividend_on_one_day_by_hand() -> None:
    # One share at 100. On day 1 it becomes two, each pays 3 and closes at 48: worth 2 * (48 + 3) = 102.
    panel = single([100.0, 48.0, 24.0], {1: {"split_ratio": 2.0, "dividend": 3.0}})
    np.testing.assert_allclose(panel.close_TN[:, 0], [100.0, 102.0, 51.0], rtol=1e-15)
    np.testing.assert_array_equal(panel.raw_close_TN[:, 0], [100.0, 48.0, 24.0])
    np.testing.assert_allclose(forward_returns(panel, 0, 1)[:, 0], [0.02, -0.5, nan], rtol=1e-12)
    assert panel.open_TN is not None
    np.testing.assert_allclose(panel.open_TN[:, 0], [100.0, 102.0, 51.0], rtol=1e-15)


def test_events_during_a_halt_apply_at_the_next_close() -> None:
    # A dividend of 6 while halted, then a 3-for-1 split while halted: 2 per new share, reinvested at 20.
    halted = {"close": None, "open": None, "high": None, "low": None}
    panel = single(
        [60.0, None, None, 20.0, 22.0],
        {1: {"dividend": 6.0} | halted, 2: {"split_ratio": 3.0} | halted},  # type: ignore[dict-item]  # null prices
    )
    np.testing.assert_allclose(panel.close_TN[:, 0], [60.0, nan, nan, 66.0, 72.6], rtol=1e-14)
    np.testing.assert_allclose(panel.total_return_index_TN[:, 0], [60.0, 60.0, 60.0, 66.0, 72.6], rtol=1e-14)


def test_forward_factor_does_not_depend_on_later_rows() -> None:
    rng = np.random.default_rng(0)
    close_TN, split_TN = rng.uniform(10, 20, (50, 3)), np.where(rng.random((50, 3)) < 0.1, 2.0, 1.0)
    dividend_TN = np.where(rng.random((50, 3)) < 0.2, 0.5, 0.0)
    whole = forward_factor(close_TN, split_TN, dividend_TN)
    assert whole[:30].tobytes() == forward_factor(close_TN[:30], split_TN[:30], dividend_TN[:30]).tobytes()
    np.testing.assert_allclose(whole, np.cumprod(split_TN * (1 + dividend_TN / close_TN), axis=0), rtol=1e-13)


def test_index_and_labels_for_every_kind_of_delisting() -> None:
    n = 40
    no_price: list[float | None] = [None] * (n - 2)
    closes: dict[str, list[float | None]] = {
        "A": [10.0] * n,  # keeps trading
        "B": [10.0, 11.0, *no_price],  # recorded delisting, recorded return
        "C": [10.0, 11.0, *no_price],  # recorded some sessions after the last price, no return and no reason
        "D": [
            10.0,
            11.0,
            *no_price,
        ],  # nothing recorded, on Nasdaq: halted for 20 sessions, then presumed delisted
        "E": [10.0] * (n - 3) + [None] * 3,  # nothing recorded, no price for three sessions: halted
        "F": [10.0, None, None, 12.0, *[12.0] * (n - 4)],  # halted for two sessions
        "G": [None] * 5 + [10.0] * (n - 5),  # listed late
        "H": [10.0] * (n - 2) + [None] * 2,  # delisting recorded after the panel's end: halted
        "I": [10.0, *[None] * 24, 9.0, *[9.0] * (n - 26)],  # presumed delisted, then trades again
        "J": [10.0, 11.0, 12.0, None, 13.0, *[13.0] * (n - 5)],  # prices after a recorded delisting
        "K": [10.0, 11.0, *no_price],  # recorded after it was presumed delisted
        "L": [10.0, 11.0, *no_price],  # for performance, off Nasdaq
        "M": [10.0, 11.0, *no_price],  # for performance, on Nasdaq
        "N": [10.0, 11.0, *no_price],  # a merger on Nasdaq
        "O": [10.0, 11.0, *no_price],  # for performance, with a recorded return
        "P": [10.0, 11.0, *no_price],  # recorded with reason "unknown"
        **{f"Z{i:02}": [10.0] * n for i in range(30)},  # so that no session is a data gap
    }
    securities = securities_of(
        {"ticker": "B", "valid_from": DAYS[0], "delisted_on": DAYS[1], "delisting_return": -0.2},
        {"ticker": "C", "valid_from": DAYS[0], "delisted_on": DAYS[4], "exchange": "NYSE"},
        {"ticker": "D", "valid_from": DAYS[0], "exchange": "NasdaqGS"},
        {"ticker": "D", "valid_from": DAYS[30], "exchange": "OTC"},  # not yet known at the payout
        {"ticker": "H", "valid_from": DAYS[0], "delisted_on": DAYS[n]},
        {"ticker": "J", "valid_from": DAYS[0], "delisted_on": DAYS[1], "delisting_return": -0.9},
        {"ticker": "K", "valid_from": DAYS[0], "delisted_on": DAYS[30], "delisting_return": -0.9},
        delisted("L", delisting_reason="performance", exchange="NYSE"),
        delisted("M", delisting_reason="performance", exchange="NASDAQ"),
        delisted("N", delisting_reason="merger", exchange="NASDAQ"),
        delisted("O", delisting_reason="performance", exchange="NASDAQ", delisting_return=0.05),
        delisted("P", delisting_reason="unknown", exchange="NASDAQ"),
    )
    panel = build_panel(prices_of(closes, {}), securities)
    index = dict(zip(panel.tickers_N, panel.total_return_index_TN.T, strict=True))
    np.testing.assert_allclose(index["B"], [10.0, 11.0, *[8.8] * (n - 2)])
    np.testing.assert_allclose(index["C"], [10.0, *[11.0] * (n - 1)])
    np.testing.assert_allclose(index["D"], [10.0, *[11.0] * (n - 1)])
    np.testing.assert_allclose(index["E"], [10.0] * n)
    np.testing.assert_allclose(index["F"][:5], [10.0, 10.0, 10.0, 12.0, 12.0])
    np.testing.assert_allclose(index["G"][3:7], [nan, nan, 10.0, 10.0])
    np.testing.assert_allclose(index["H"], [10.0] * n)
    np.testing.assert_allclose(index["I"], [10.0] * 25 + [9.0] * (n - 25))
    np.testing.assert_allclose(index["J"][:5], [10.0, 11.0, 12.0, 12.0, 13.0])
    np.testing.assert_allclose(index["K"], [10.0, *[11.0] * 29, *[1.1] * (n - 30)])
    for ticker, worth in {"L": 7.7, "M": 4.95, "N": 11.0, "O": 11.55, "P": 11.0}.items():
        np.testing.assert_allclose(index[ticker], [10.0, 11.0, *[worth] * (n - 2)])
    first_paid = dict(zip(panel.tickers_N, np.argmax(panel.delisted_TN, axis=0).tolist(), strict=True))
    assert {ticker: t for ticker, t in first_paid.items() if t} == {
        **{"B": 2, "C": 4, "D": 22, "I": 21, "K": 22},
        **dict.fromkeys("LMNOP", 2),
    }
    unknown = {ticker for n, ticker in enumerate(panel.tickers_N) if panel.unknown_TN[:, n].any()}
    assert unknown == {"C", "D", "I", "K", "P"}
    np.testing.assert_array_equal(panel.unknown_TN & ~panel.delisted_TN, False)
    assert panel.delisted_TN[:, panel.tickers_N.index("I")].sum() == 4
    assert panel.hazards == (
        "2 delisting(s) for performance have no recorded return: -30% is paid, on Nasdaq -55%.",
        "1 merger(s) have no recorded return: the last price is paid.",
        "2 delisting(s) have neither a recorded return nor a reason: the last price is paid.",
        "2 time(s) a firm had no price for more than 20 sessions and no recorded delisting: presumed "
        "delisted for an unknown reason, the last price is paid.",
    )
    harsh = build_panel(prices_of(closes, {}), securities, delisting_rule=DelistingRule(unknown_return=-0.55))
    assert all("-55% is paid." in hazard for hazard in harsh.hazards[2:])
    np.testing.assert_array_equal(harsh.total_return_index_TN, panel.total_return_index_assuming(-0.55))
    np.testing.assert_array_equal(harsh.total_return_index_assuming(0.0), panel.total_return_index_TN)
    label = dict(zip(panel.tickers_N, forward_returns(panel, 1, 1).T, strict=True))
    np.testing.assert_allclose(
        label["B"][:3], [-0.2, 0.0, 0.0], atol=1e-15
    )  # the delisting return, then cash
    np.testing.assert_allclose(label["E"][n - 6 :], [0.0, 0.0, 0.0, 0.0, nan, nan])
    np.testing.assert_allclose(
        label["F"][:3], [0.0, 0.0, 0.0], atol=1e-15
    )  # it cannot be bought during the halt
    np.testing.assert_allclose(forward_returns(panel, 0, 3)[0, panel.tickers_N.index("F")], 0.2)
    assert np.isnan(label["A"][-2:]).all()
    assert np.isfinite(label["A"][:-2]).all()
    # bought at the last price: nothing until the record of session 30, and its return from then on
    late_H = [
        forward_returns(panel, 0, horizon)[1, panel.tickers_N.index("K")] for horizon in (10, 28, 29, 35)
    ]
    np.testing.assert_allclose(late_H, [0.0, 0.0, -0.9, -0.9], atol=1e-15)


def test_firm_without_any_price_is_nan_everywhere() -> None:
    nothing = {"close": None, "open": None, "high": None, "low": None, "split_ratio": 2.0}
    prices = prices_of({"A": [None, None, None], "Z": [1.0] * 3}, {("A", 1): nothing})  # type: ignore[dict-item]
    panel = build_panel(prices)
    assert np.isnan(panel.total_return_index_TN[:, 0]).all()
    assert not panel.delisted_TN.any()
    assert np.isnan(forward_returns(panel, 0, 1)[:, 0]).all()


def test_session_that_lacks_many_firms_is_a_data_gap() -> None:
    closes: dict[str, list[float | None]] = {f"F{i:02}": [10.0, 11.0, 12.0, 13.0] for i in range(40)}
    for i in range(10):
        closes[f"F{i:02}"][2] = None
    for i in range(9):
        closes[f"F{i:02}"][3] = None
    panel = build_panel(prices_of(closes, {}))
    np.testing.assert_array_equal(np.isnan(panel.total_return_index_TN).sum(axis=0), [1] * 10 + [0] * 30)
    assert np.isnan(panel.total_return_index_TN[2, :10]).all()  # ten of 40 firms lack session 2
    np.testing.assert_allclose(
        panel.total_return_index_TN[3, :10], [11.0] * 9 + [13.0]
    )  # nine lack session 3
    assert panel.hazards == (
        "1 session(s) lack prices for a quarter of the market: labels that end on them are unknown for "
        "the missing firms.",
    )


@pytest.mark.parametrize("seed", range(20))
def test_index_does_not_depend_on_later_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    traded_TN = np.repeat(
        rng.random((20, 12)) < 0.6, 3, axis=0
    )  # long halts, some of them permanent, and some data gaps
    closes = {
        f"F{n:02}": [10.0 + t if on else None for t, on in enumerate(traded_TN[:, n])] for n in range(12)
    }
    closes["Z"] = [1.0] * 60
    ends = rng.integers(0, 60, 12)
    records = [
        delisted(
            f"F{n:02}",
            delisted_on=DAYS[int(end)],
            delisting_return=-0.4 if n % 4 == 1 else None,
            delisting_reason=("merger", "performance", "unknown")[n % 3],
        )
        for n, end in enumerate(ends)
        if n % 2
    ]
    securities = securities_of(*records)
    whole = build_panel(
        prices_of(closes, {}), securities, delisting_rule=DelistingRule(stale_sessions=4, unknown_return=-0.3)
    )
    assert whole.delisted_TN.any()
    assert whole.unknown_TN.any()
    for t in (10, 25, 44):
        past = prices_of({ticker: series[: t + 1] for ticker, series in closes.items()}, {})
        known = securities.with_columns(
            pl.when(pl.col("delisted_on") <= DAYS[t]).then(
                pl.col("delisted_on", "delisting_return", "delisting_reason")
            )
        )
        part = build_panel(past, known, delisting_rule=DelistingRule(stale_sessions=4, unknown_return=-0.3))
        columns = [whole.tickers_N.index(ticker) for ticker in part.tickers_N]
        np.testing.assert_array_equal(
            part.total_return_index_TN, whole.total_return_index_TN[: t + 1, columns]
        )
        np.testing.assert_array_equal(part.delisted_TN, whole.delisted_TN[: t + 1, columns])
        np.testing.assert_array_equal(part.unknown_TN, whole.unknown_TN[: t + 1, columns])


def test_groups_follow_validity_and_codes_first_appearance() -> None:
    securities = securities_of(
        {"ticker": "A", "valid_from": DAYS[1], "valid_to": DAYS[3], "industry": "Oil", "sector": "Energy"},
        {"ticker": "A", "valid_from": DAYS[3], "industry": "Air", "sector": "Transport"},
        {"ticker": "Z", "valid_from": None, "industry": "Oil", "sector": "Energy"},
        {"ticker": "elsewhere", "valid_from": DAYS[0], "industry": "Aaa"},
    )
    prices = prices_of({"A": [1.0] * 5, "Z": [1.0] * 5}, {})
    panel = build_panel(prices, securities)
    assert panel.groups_S == ("Oil", "Air")
    np.testing.assert_array_equal(panel.group_TN, [[-1, 0], [0, 0], [0, 0], [1, 0], [1, 0]])
    assert panel.group_TN.dtype == np.int16
    assert build_panel(prices, securities, group_by="sector").groups_S == ("Energy", "Transport")
    assert "group" not in build_panel(prices).fields


def test_statements_use_the_latest_version_of_the_newest_period() -> None:
    def row(period: int, known: int, item: str, value: float | None) -> dict[str, object]:
        return {
            "ticker": "A",
            "period_end": dt.date(2023, 12, period),
            "known_at": DAYS[known],
            "item": item,
            "value": value,
        }

    fundamentals = pl.DataFrame(
        [
            row(1, 1, "net_income", 1.0),
            row(20, 3, "net_income", 2.0),
            row(1, 4, "net_income", 9.0),  # restatement of an old period: the newer period is kept
            row(20, 6, "net_income", 3.0),  # restatement of the newest period
            row(28, 7, "net_income", None),  # a row without a value is ignored
        ]
    )
    panel = build_panel(prices_of({"A": [1.0] * 9, "B": [1.0] * 9}, {}), None, fundamentals)
    np.testing.assert_array_equal(panel.statements["net_income"][:, 0], [nan, 1, 1, 2, 2, 2, 3, 3, 3])
    assert np.isnan(panel.statements["net_income"][:, 1]).all()
    assert "statements:net_income" in panel.fields


def test_statements_published_between_sessions_are_known_at_the_next() -> None:
    prices = prices_of({"A": [1.0] * 9}, {}).filter(pl.col("date").is_in(DAYS[:3] + DAYS[6:9]))
    filed = pl.DataFrame(
        [{"ticker": "A", "period_end": DAYS[0], "known_at": DAYS[4], "item": "net_income", "value": 5.0}]
    )
    panel = build_panel(prices, None, filed)
    np.testing.assert_array_equal(panel.statements["net_income"][:, 0], [nan, nan, nan, 5, 5, 5])


def test_shares_outstanding_are_adjusted_for_splits_after_their_period() -> None:
    filed = pl.DataFrame(
        [
            {
                "ticker": "A",
                "period_end": DAYS[2],
                "known_at": DAYS[4],
                "item": "shares_outstanding",
                "value": 10.0,
            },
            {
                "ticker": "A",
                "period_end": DAYS[6],
                "known_at": DAYS[8],
                "item": "shares_outstanding",
                "value": 21.0,
            },
        ]
    )
    splits = {("A", t): {"split_ratio": 2.0} for t in (1, 3, 9)}  # before, inside and after the reporting lag
    panel = build_panel(prices_of({"A": [5.0] * 11}, splits), None, filed)
    np.testing.assert_array_equal(
        panel.statements["shares_outstanding"][:, 0], [nan, nan, nan, nan, 20, 20, 20, 20, 21, 42, 42]
    )


@pytest.mark.parametrize("with_statements", [False, True])
def test_the_splits_up_to_a_session_multiply_with_and_without_statements(with_statements: bool) -> None:
    filed = pl.DataFrame(
        [{"ticker": "A", "period_end": DAYS[0], "known_at": DAYS[1], "item": "net_income", "value": 5.0}]
    )
    events = {("A", 1): {"split_ratio": 2.0}, ("A", 3): {"split_ratio": 3.0}, ("B", 2): {"split_ratio": 0.5}}
    prices = prices_of({"A": [5.0] * 4, "B": [5.0] * 4}, events)
    panel = build_panel(prices, None, filed if with_statements else None)
    product_TN = np.array([[1.0, 1.0], [2.0, 1.0], [2.0, 0.5], [6.0, 0.5]])
    np.testing.assert_array_equal(panel.statements.splits_TN, product_TN)
    np.testing.assert_array_equal(take_firms(panel, slice(1, 2)).statements.splits_TN, product_TN[:, 1:])
    np.testing.assert_array_equal(take_sessions(panel, 2).statements.splits_TN, product_TN[2:])


def test_unusable_cells_become_unknown_and_are_counted() -> None:
    prices = prices_of(
        {"A": [10.0, 10.0, 10.0, 10.0]},
        {("A", 1): {"open": 0.0}, ("A", 2): {"high": 9.0, "low": 11.0}, ("A", 3): {"close": 0.0}},
    )
    panel = build_panel(prices)
    assert panel.open_TN is not None
    assert panel.high_TN is not None
    np.testing.assert_array_equal(np.isnan(panel.open_TN[:, 0]), [False, True, False, True])
    np.testing.assert_array_equal(np.isnan(panel.high_TN[:, 0]), [False, False, True, True])
    np.testing.assert_array_equal(np.isnan(panel.close_TN[:, 0]), [False, False, False, True])
    assert panel.hazards[0] == "1 cell(s) have a high below the low: both are treated as unknown."
    assert panel.hazards[1].startswith("1 cell(s) with a close have no usable open")


def test_null_columns_are_none_and_arrays_are_read_only() -> None:
    prices = prices_of({"A": [10.0, 10.0]}, {}).with_columns(volume=pl.lit(None, dtype=pl.Float64))
    panel = build_panel(prices)
    assert panel.volume_TN is None
    assert panel.fields == {"close", "open", "high", "low"}
    assert (panel.n_sessions, panel.n_firms) == (2, 1)
    with pytest.raises(ValueError, match="read-only"):
        panel.close_TN[0, 0] = 1.0


def test_rows_in_any_order_give_the_same_panel() -> None:
    prices = prices_of({"B": [1.0, 2.0, 3.0], "A": [4.0, None, 6.0]}, {})
    one, other = build_panel(prices), build_panel(prices.sample(fraction=1.0, shuffle=True, seed=3))
    assert one.tickers_N == ("A", "B")
    np.testing.assert_array_equal(one.close_TN, other.close_TN)
    np.testing.assert_array_equal(one.close_TN, [[4, 1], [nan, 2], [6, 3]])


def test_invalid_prices_raise_with_a_remedy() -> None:
    prices = prices_of({"A": [1.0, 2.0]}, {})
    with pytest.raises(ValueError, match=r"lack the column.*dividend"):
        build_panel(prices.drop("dividend"))
    with pytest.raises(ValueError, match="several rows for A on 2024-01-01"):
        build_panel(pl.concat([prices, prices.head(1)]))
    with pytest.raises(ValueError, match="have no rows"):
        build_panel(prices.clear())
    with pytest.raises(ValueError, match="A on 2024-01-01 has split ratio 0"):
        build_panel(prices.with_columns(split_ratio=pl.lit(0.0)))
    with pytest.raises(ValueError, match="no close at all"):
        build_panel(prices.with_columns(close=pl.lit(None, dtype=pl.Float64)))
