"""The simulated market: the truth tables agree with what generated the market and are learnable.

Where possible, a table is checked against other tables only, so that the tests read what a user reads.

This file is long because every truth that a market can plant has a test against the tables.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pipelines.sources.base import SourceTables
from pipelines.sources.simulated.config import INDUSTRIES, REVIEW_SESSIONS, SUPPLIERS, MarketConfig
from pipelines.sources.simulated.source import SimulatedSource, returns_affected, simulate

SMALL = MarketConfig(sessions=420, firms=48, delistings_per_year=0.3, bad_ticks=5)
PARTS = ["temporal", "peer", "characteristic"]


@pytest.fixture(scope="module")
def default() -> SourceTables:
    return SimulatedSource(MarketConfig(), seed=7).fetch()


@pytest.fixture(scope="module")
def small() -> SourceTables:
    return SimulatedSource(SMALL, seed=3).fetch()


def good_prices(source: SourceTables) -> pl.DataFrame:
    prices = source.tables["prices"]
    return prices.filter((pl.col("close") > 0) & (pl.col("high") >= pl.col("low")))


def next_returns(source: SourceTables, delay: int = 0) -> pl.DataFrame:
    """Total return from the close of date+delay to the close of the session after, by date and ticker.

    Computed from raw prices only, in simple steps; only between prices of neighbouring sessions.
    """
    prices = good_prices(source)
    sessions = prices.select("date").unique().sort("date").with_row_index("t")
    rows = prices.join(sessions, on="date").sort("ticker", "t")
    before = pl.col("close").shift(1).over("ticker")
    total = (pl.col("close") + pl.col("dividend")) * pl.col("split_ratio") / before - 1.0
    neighbours = pl.col("t").cast(pl.Int64) - pl.col("t").cast(pl.Int64).shift(1).over("ticker") == 1
    decided = rows.with_columns(ret=pl.when(neighbours).then(total)).drop_nulls("ret")
    return decided.select(pl.col("t").cast(pl.Int64) - 1 - delay, "ticker", "ret").join(
        sessions.select(pl.col("t").cast(pl.Int64), "date"), on="t"
    )


def mean_ic(source: SourceTables, column: str, delay: int = 0) -> float:
    paired = source.tables["truth_mu"].join(next_returns(source, delay), on=["date", "ticker"])
    by_date = paired.group_by("date").agg(pl.corr(column, "ret").alias("ic"), pl.len())
    return float(by_date.filter((pl.col("len") > 10) & pl.col("ic").is_finite())["ic"].mean())  # type: ignore[arg-type]  # a number


def test_a_seed_determines_the_tables(small: SourceTables) -> None:
    again = SimulatedSource(SMALL, seed=3).fetch()
    assert set(again.tables) == {
        "prices", "securities", "fundamentals", "truth_mu", "truth_edges", "truth_days"
    }  # fmt: skip
    for name, frame in small.tables.items():
        assert_frame_equal(frame, again.tables[name], check_exact=True)
    other = SimulatedSource(SMALL, seed=4).fetch()
    assert not small.tables["prices"]["close"].head(100).equals(other.tables["prices"]["close"].head(100))


def test_tables_hold_what_the_lake_expects(default: SourceTables) -> None:
    prices = default.tables["prices"]
    assert prices.columns == [
        "date", "ticker", "open", "high", "low", "close", "volume", "split_ratio", "dividend"
    ]  # fmt: skip
    assert prices.schema["date"] == pl.Date
    assert prices.select("date", "ticker").is_duplicated().sum() == 0
    assert prices.null_count().sum_horizontal().item() == 0
    assert np.isfinite(prices.select(pl.selectors.float()).to_numpy()).all()
    assert prices["date"].n_unique() == 2600
    assert prices["date"].dt.weekday().max() == 5
    per_day = prices.group_by("date").len()["len"]
    assert 112 <= float(per_day.mean()) <= 121  # type: ignore[arg-type]  # a number
    fundamentals = default.tables["fundamentals"]
    key = ["ticker", "period_end", "known_at", "item"]
    assert fundamentals.select(key).is_duplicated().sum() == 0
    securities = default.tables["securities"]
    assert set(zip(securities["industry"], securities["sector"], strict=True)) == set(INDUSTRIES.items())
    assert set(securities["exchange"]) == {"NYSE", "NASDAQ"}


def test_raw_prices_give_back_the_simulated_returns_exactly() -> None:
    high = {"idiosyncratic_volatility": 0.05, "sessions": 900}  # many splits
    config = SMALL.model_copy(update=high)
    source = SimulatedSource(config, seed=5).fetch()
    market = simulate(config, np.random.SeedSequence(5).spawn(3)[0])
    t_R, n_R = np.nonzero(np.isfinite(market.returns_TN))
    simulated = pl.DataFrame(
        {
            "date": market.dates_T[t_R - 1],
            "ticker": np.asarray(market.firms.ticker_N)[n_R],
            "simulated": market.returns_TN[t_R, n_R],
        }
    )
    paired = next_returns(source).join(simulated, on=["date", "ticker"])
    assert len(paired) > 0.98 * len(simulated)
    assert float((paired["ret"] - paired["simulated"]).abs().max()) < 1e-12  # type: ignore[arg-type]  # a number
    prices = source.tables["prices"]
    assert {2.0, 0.1} <= set(prices["split_ratio"])
    assert (prices["dividend"] > 0).sum() > 50


def test_truth_has_the_requested_ic(default: SourceTables) -> None:
    # 1,600 dates x 120 firms: the standard error of the mean IC is about 0.003
    assert mean_ic(default, "mu") == pytest.approx(0.08, abs=0.009)
    alone = {part: mean_ic(default, part) for part in PARTS}
    for part, share in zip(PARTS, (0.3, 0.5, 0.2), strict=True):
        assert alone[part] == pytest.approx(0.08 * np.sqrt(share), abs=0.009)


@pytest.mark.parametrize("delay", [1, 2])
def test_truth_correlates_only_with_the_return_after_the_delay(delay: int) -> None:
    config = MarketConfig(sessions=800, truth_ic=0.2, delay=delay, characteristic_share=0.0)
    source = SimulatedSource(config, seed=2).fetch()
    assert mean_ic(source, "mu", delay) == pytest.approx(0.2, abs=0.02)
    assert mean_ic(source, "mu", delay + 8) == pytest.approx(0.0, abs=0.02)


def test_parts_add_up_and_have_the_requested_shares(default: SourceTables) -> None:
    truth = default.tables["truth_mu"]
    assert truth["mu"].to_numpy() == pytest.approx(truth.select(PARTS).sum_horizontal().to_numpy(), abs=1e-15)
    variance = truth.group_by("date").agg(pl.col("mu", *PARTS).var(ddof=0)).drop("date").mean()
    for part, share in zip(PARTS, (0.3, 0.5, 0.2), strict=True):
        assert variance[part].item() / variance["mu"].item() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("kept", PARTS)
def test_a_zero_share_removes_a_part_and_changes_no_other_draw(small: SourceTables, kept: str) -> None:
    shares: dict[str, Any] = {f"{part}_share": float(part == kept) for part in PARTS}
    source = SimulatedSource(SMALL.model_copy(update=dict(**shares)), seed=3).fetch()
    truth = source.tables["truth_mu"]
    assert float(truth[kept].std()) > 1e-4  # type: ignore[arg-type]  # a number
    for part in set(PARTS) - {kept}:
        assert (truth[part] == 0).all()
    assert_frame_equal(source.tables["securities"], small.tables["securities"], check_exact=True)
    assert_frame_equal(
        source.tables["truth_days"].select("date", "ticker", "turbulent", "shock"),
        small.tables["truth_days"].select("date", "ticker", "turbulent", "shock"),
        check_exact=True,
    )
    unshared = (
        pl.col("item") != "shares_outstanding"
    )  # the share count depends on splits and therefore on prices
    assert_frame_equal(
        source.tables["fundamentals"].filter(unshared),
        small.tables["fundamentals"].filter(unshared),
        check_exact=True,
    )


def test_zero_ic_plants_nothing() -> None:
    source = SimulatedSource(SMALL.model_copy(update={"truth_ic": 0.0}), seed=3).fetch()
    assert source.tables["truth_mu"].select(pl.col("mu", *PARTS).abs().max()).row(0) == (0, 0, 0, 0)


def test_peer_part_is_the_sum_over_its_edges(small: SourceTables) -> None:
    """The peer part is recomputed from the edges and the shocks, edge by edge."""
    mu, edges, days = (small.tables[name] for name in ("truth_mu", "truth_edges", "truth_days"))
    sessions = small.tables["prices"]["date"].unique().sort().to_list()
    shock = {(d, k): s for d, k, s in days.select("date", "ticker", "shock").iter_rows()}
    checked = 0
    for t in (50, 199, 311):
        date = sessions[t]
        active = edges.filter(
            (pl.col("valid_from") <= date) & (pl.col("valid_to").is_null() | (pl.col("valid_to") > date))
        )
        rebuilt: dict[str, float] = {}
        for leader, follower, lag, weight in active.select("leader", "follower", "lag", "weight").iter_rows():
            seen = shock.get((sessions[t + 1 - lag], leader))
            if seen is not None:
                rebuilt[follower] = rebuilt.get(follower, 0.0) + weight * seen
        missing = {
            leader for leader in active["leader"] if (date, leader) not in shock
        }  # about to be delisted
        touched = set(active.filter(pl.col("leader").is_in(list(missing)))["follower"])
        for ticker, peer in mu.filter(pl.col("date") == date).select("ticker", "peer").iter_rows():
            if ticker not in touched:
                assert peer == pytest.approx(rebuilt.get(ticker, 0.0), abs=1e-15)
                checked += peer != 0
    assert checked > 60


def test_edges_that_end_change_nothing_before() -> None:
    """Before the session all rows are equal to the bit; from the next review on, no firm leads another."""
    market = SMALL.model_copy(update={"bad_ticks": 0})  # which rows are bad depends on all later prices
    until = 5 * REVIEW_SESSIONS - 4  # the first review on or after it is the fifth
    lasting = SimulatedSource(market, seed=3).fetch()
    ended = SimulatedSource(market.model_copy(update={"peer_until": until}), seed=3).fetch()
    review = lasting.tables["prices"]["date"].unique().sort()[5 * REVIEW_SESSIONS]
    for table in ("prices", "truth_mu"):
        assert_frame_equal(
            ended.tables[table].filter(pl.col("date") < review),
            lasting.tables[table].filter(pl.col("date") < review),
            check_exact=True,
        )
    mu = ended.tables["truth_mu"]
    assert (mu.filter(pl.col("date") >= review)["peer"] == 0).all()
    assert float(mu.filter(pl.col("date") < review)["peer"].std()) > 1e-4  # type: ignore[arg-type]  # a number
    edges = ended.tables["truth_edges"]
    assert edges["valid_to"].max() == review
    assert edges["valid_to"].null_count() == 0


def active_on(edges: pl.DataFrame, date: dt.date, rule: str) -> pl.DataFrame:
    ends = pl.col("valid_to").is_null() | (pl.col("valid_to") > date)
    return edges.filter((pl.col("valid_from") <= date) & ends & (pl.col("rule") == rule))


def leader_of_industry(source: SourceTables, date: dt.date) -> dict[str, str]:
    """Industry -> its leader on a date, which must be one firm."""
    industry = dict(source.tables["securities"].select("ticker", "industry").iter_rows())
    leaders = active_on(source.tables["truth_edges"], date, "industry")["leader"].unique().to_list()
    assert len({industry[leader] for leader in leaders}) == len(leaders)
    return {industry[leader]: leader for leader in leaders}


def test_leaders_by_book_to_market_are_those_of_the_statements() -> None:
    """Recomputed from quotes and published statements, for firms that have both."""
    source = SimulatedSource(SMALL.model_copy(update={"leaders": "book_to_market"}), seed=3).fetch()
    edges = source.tables["truth_edges"]
    assert set(edges.select("rule", "led_by", "explained").unique().iter_rows()) == {
        ("industry", "book_to_market", True), ("supplier", "book_to_market", True),
        ("supplier_of_supplier", "book_to_market", True), ("hidden", "random", False),
    }  # fmt: skip
    date = edges["valid_from"].unique().sort()[10]
    item = (
        source.tables["fundamentals"]
        .filter(pl.col("known_at") <= date)
        .sort("period_end", "known_at")
        .group_by("ticker", "item")
        .agg(pl.col("value").last())
        .pivot("item", index="ticker", values="value")
    )
    priced = good_prices(source).filter(pl.col("date") == date).join(item, on="ticker")
    ratio = dict(
        priced.select(
            "ticker", pl.col("book_equity") / (pl.col("close") * pl.col("shares_outstanding"))
        ).iter_rows()
    )
    industry = dict(source.tables["securities"].select("ticker", "industry").iter_rows())
    leaders = leader_of_industry(source, date)
    assert set(leaders) == set(INDUSTRIES)
    highest = {
        kind: max((k for k in ratio if industry[k] == kind), key=lambda k: ratio[k]) for kind in INDUSTRIES
    }
    assert sum(leaders[kind] == highest[kind] for kind in INDUSTRIES) >= 7  # splits and restatements
    pairs = active_on(edges, date, "industry").select("leader", "follower").unique()
    assert len(pairs) == len(ratio) - len(leaders)


def test_random_leaders_lead_until_they_are_delisted_or_the_table_changes() -> None:
    market = SMALL.model_copy(update={"leaders": "random", "bad_ticks": 0})
    change = 10 * REVIEW_SESSIONS
    fixed = SimulatedSource(market, seed=3).fetch()
    changing = SimulatedSource(market.model_copy(update={"leaders_change": change}), seed=3).fetch()
    sessions = fixed.tables["prices"]["date"].unique().sort().to_list()
    gone = dict(fixed.tables["securities"].select("ticker", "delisted_on").iter_rows())
    reviews = sessions[::REVIEW_SESSIONS]
    leaders = [leader_of_industry(fixed, date) for date in reviews]
    replaced = 0
    for date, before, after in zip(reviews[1:], leaders[:-1], leaders[1:], strict=True):
        for kind in INDUSTRIES:
            if before[kind] != after[kind]:
                assert gone[before[kind]] is not None
                assert gone[before[kind]] < date
                replaced += 1
    assert replaced > 0
    for name in ("prices", "truth_mu"):
        both = [one.tables[name].filter(pl.col("date") < sessions[change]) for one in (fixed, changing)]
        assert len(both[0]) > 0
        assert both[0].select("date", "ticker").equals(both[1].select("date", "ticker"))
    other = leader_of_industry(changing, sessions[change])
    assert leader_of_industry(changing, sessions[change - 1]) == leaders[9]
    assert sum(other[kind] != leaders[10][kind] for kind in INDUSTRIES) >= 5
    assert set(changing.tables["truth_edges"]["led_by"]) == {"random"}
    assert not changing.tables["truth_edges"]["explained"].any()


def test_day_weights_are_the_planted_ones() -> None:
    weights = (0.2, 0.0, 1.0, 0.5, 0.8)
    days = (
        SimulatedSource(SMALL.model_copy(update={"day_weights": weights}), seed=3)
        .fetch()
        .tables["truth_days"]
    )
    size = [float(days[f"day_{k}"].abs().mean()) for k in range(5)]  # type: ignore[arg-type]  # a number
    assert np.array(size) / size[2] == pytest.approx(weights, rel=0.05)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"leaders": "beauty"}, "'size', 'book_to_market' or 'random'"),
        ({"leaders_change": 100}, "only random leaders can change"),
        ({"leaders": "random", "leaders_change": 5}, "leaders_change is 5; it must be between 21 and"),
        ({"day_weights": (1.0, 0.5)}, r"day_weights.*\n.*Field required"),
        ({"day_weights": (0.0,) * 5}, "set temporal_share to 0"),
    ],
)
def test_settings_of_leaders_and_days_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MarketConfig(**settings)


def test_temporal_part_is_the_sum_over_its_days(small: SourceTables) -> None:
    days = small.tables["truth_days"].join(small.tables["truth_mu"], on=["date", "ticker"])
    assert len(days) == len(small.tables["truth_days"])
    by_age = [f"day_{k}" for k in range(5)]
    assert days.select(by_age).sum_horizontal().to_numpy() == pytest.approx(
        days["temporal"].to_numpy(), abs=1e-15
    )
    # A calm day's return reverses ten times as strongly as a turbulent day's, and older days less.
    per_unit = days.filter(pl.col("shock").abs() > 1e-3).with_columns(
        strength=-pl.col("day_0") / pl.col("shock")
    )
    mean = dict(per_unit.group_by("turbulent").agg(pl.col("strength").mean()).iter_rows())
    assert mean[False] > 0
    assert mean[False] / mean[True] == pytest.approx(10.0, rel=0.1)
    size = [float(days[column].abs().mean()) for column in by_age]  # type: ignore[arg-type]  # a number
    assert size == sorted(size, reverse=True)


def test_edges_follow_rules_on_observable_data(default: SourceTables) -> None:
    """Leaders are recomputed from quoted prices and published share counts."""
    securities = default.tables["securities"]
    industry = dict(securities.select("ticker", "industry").iter_rows())
    edges = default.tables["truth_edges"]
    assert set(edges["lag"]) == {1, 2, 3}
    assert (edges["weight"] > 0).all()
    assert (edges["leader"] != edges["follower"]).all()
    for leader, follower, rule, via in edges.select("leader", "follower", "rule", "via").unique().iter_rows():
        if rule == "industry":
            assert industry[leader] == industry[follower]
        elif rule == "supplier":
            assert SUPPLIERS[industry[follower]] == industry[leader]
        elif rule == "supplier_of_supplier":
            assert SUPPLIERS[industry[follower]] == industry[via]
            assert SUPPLIERS[industry[via]] == industry[leader]
    spelled = edges.select("rule", "hop", "explained").unique()
    assert set(spelled.iter_rows()) == {
        ("industry", 1, True), ("supplier", 1, True), ("supplier_of_supplier", 2, True), ("hidden", 1, False)
    }  # fmt: skip

    date = edges["valid_from"].unique().sort()[40]
    quoted = default.tables["prices"].filter(pl.col("date") == date).select("ticker", "close")
    shares = (
        default.tables["fundamentals"]
        .filter((pl.col("item") == "shares_outstanding") & (pl.col("known_at") <= date))
        .sort("period_end", "known_at")
        .group_by("ticker")
        .agg(pl.col("value").last())
    )
    size = dict(
        quoted.join(shares, on="ticker").select("ticker", pl.col("close") * pl.col("value")).iter_rows()
    )
    active = edges.filter(
        (pl.col("valid_from") <= date) & (pl.col("valid_to").is_null() | (pl.col("valid_to") > date))
    )
    expected = set()
    for kind in INDUSTRIES:
        members = sorted((k for k in size if industry[k] == kind), key=lambda k: -size[k])
        expected |= {(j, i) for j in members[:1] for i in members if size[j] >= 1.5 * size[i] and i != j}
    found = set(active.filter(pl.col("rule") == "industry").select("leader", "follower").iter_rows())
    # Only splits since the last statement, and firms without a statement, are unobservable.
    assert len(found & expected) / len(found | expected) > 0.9
    assert len(found) > 90
    leaders = active.select("leader", "follower").unique().group_by("follower").len()["len"]
    assert 2 <= float(leaders.mean()) <= 4  # type: ignore[arg-type]  # a number


def test_second_hop_edges_need_an_existing_first_hop(default: SourceTables) -> None:
    edges = default.tables["truth_edges"]
    spans = edges.with_columns(pl.col("valid_to").fill_null(dt.date(2100, 1, 1)))
    second = spans.filter(pl.col("hop") == 2)
    assert len(second) > 100
    direct = set(spans.filter(pl.col("hop") == 1).select("leader", "follower", "valid_from").iter_rows())
    one_hop = spans.filter(pl.col("rule") == "supplier").select(
        "leader", "follower", "valid_from", "valid_to"
    )
    for leader, follower, via, start in second.select("leader", "follower", "via", "valid_from").iter_rows():
        assert (leader, follower, start) not in direct
        now = one_hop.filter((pl.col("valid_from") <= start) & (pl.col("valid_to") > start))
        pairs = set(now.select("leader", "follower").iter_rows())
        assert (leader, via) in pairs
        assert (via, follower) in pairs


def test_statements_have_a_lag_and_some_are_restated(default: SourceTables) -> None:
    statements = default.tables["fundamentals"]
    lag = (statements["known_at"] - statements["period_end"]).dt.total_days()
    assert lag.min() >= 20  # type: ignore[operator]  # a number
    first = statements.filter(pl.col("filing_id").str.ends_with("-Q"))
    assert first.select((pl.col("known_at") - pl.col("period_end")).dt.total_days().max()).item() <= 80
    again = statements.filter(pl.col("filing_id").str.ends_with("-A"))
    assert 0.03 < len(again) / len(first) < 0.07
    both = again.join(first, on=["ticker", "period_end", "item"], suffix="_first")
    assert len(both) == len(again)
    assert (both["known_at"] > both["known_at_first"]).all()
    book = both.filter(pl.col("item") == "book_equity")
    assert (book["value"] != book["value_first"]).all()
    assert statements["known_at"].max() <= default.tables["prices"]["date"].max()  # type: ignore[operator]  # a number


def test_delisted_firms_have_a_return_and_are_replaced(default: SourceTables) -> None:
    securities = default.tables["securities"]
    gone = securities.filter(pl.col("delisted_on").is_not_null())
    assert 15 <= len(gone) <= 80
    assert gone["delisting_return"].null_count() == 0
    assert securities.filter(pl.col("delisted_on").is_null())["delisting_return"].drop_nulls().is_empty()
    assert gone["delisting_return"].is_between(-0.75, 0.15).all()
    by_reason = dict(gone.partition_by("delisting_reason", as_dict=True))
    assert set(by_reason) == {("merger",), ("performance",)}
    assert by_reason["merger",]["delisting_return"].is_between(-0.02, 0.12).all()
    assert by_reason["performance",]["delisting_return"].is_between(-0.70, -0.15).all()
    assert securities.filter(pl.col("delisted_on").is_null())["delisting_reason"].drop_nulls().is_empty()
    failed = gone.filter(pl.col("delisting_return") < -0.1)
    assert 0.25 < len(failed) / len(gone) < 0.75
    assert (securities["listed_on"] > securities["listed_on"].min()).sum() >= 0.5 * len(gone)
    ends = (
        default.tables["prices"].group_by("ticker").agg(pl.col("date").min().alias("a"), pl.col("date").max())
    )
    seen = securities.join(ends, on="ticker")
    assert len(seen) == len(securities)
    assert (seen["a"] == seen["listed_on"]).all()
    assert (seen["date"] == seen["delisted_on"].fill_null(seen["date"].max())).all()
    last_truth = default.tables["truth_mu"].group_by("ticker").agg(pl.col("date").max())
    left = gone.join(last_truth, on="ticker")
    assert (
        left["date"] < left["delisted_on"]
    ).all()  # the return after the last session is the delisting return


def test_the_requested_number_of_ticks_is_bad_and_the_rest_is_valid(default: SourceTables) -> None:
    prices = default.tables["prices"]
    negative, crossed = pl.col("close") <= 0, pl.col("high") < pl.col("low")
    assert prices.filter(negative).height == 6
    assert prices.filter(crossed).height == 6
    bad = prices.filter(negative | crossed)
    assert bad.height == 12
    assert (bad["split_ratio"] == 1).all()
    assert (bad["dividend"] == 0).all()
    good = good_prices(default)
    assert good.filter(
        (pl.col("low") > 0)
        & (pl.col("low") <= pl.min_horizontal("open", "close"))
        & (pl.col("high") >= pl.max_horizontal("open", "close"))
        & (pl.col("volume") > 0)
        & (pl.col("dividend") >= 0)
        & (pl.col("split_ratio") > 0)
    ).equals(good)


def test_some_sessions_are_halted(default: SourceTables) -> None:
    truth, prices = default.tables["truth_mu"], default.tables["prices"]
    halted = truth.join(prices, on=["date", "ticker"], how="anti")
    assert 30 < len(halted) < 200


def test_range_and_volume_reflect_the_regime(default: SourceTables) -> None:
    rows = good_prices(default).join(default.tables["truth_days"], on=["date", "ticker"]).with_columns(
        spread=(pl.col("high") / pl.col("low")).log(),
        traded=(pl.col("volume") / pl.col("volume").median().over("ticker")).log(),
    )  # fmt: skip
    by = rows.group_by("turbulent").agg(pl.col("spread").median(), pl.col("traded").median(), pl.len())
    by_regime = {bool(turbulent): (spread, traded) for turbulent, spread, traded, _ in by.iter_rows()}
    assert by_regime[True][0] > 1.7 * by_regime[False][0]
    assert by_regime[True][1] > 0.3 + by_regime[False][1]
    overnight = good_prices(default).sort("ticker", "date").with_columns(
        gap=(pl.col("open") * pl.col("split_ratio") / pl.col("close").shift(1).over("ticker")).log(),
        day=(pl.col("close") * pl.col("split_ratio") / pl.col("close").shift(1).over("ticker")).log(),
    ).drop_nulls()  # fmt: skip
    assert overnight["gap"].var() / overnight["day"].var() == pytest.approx(0.25, abs=0.05)  # type: ignore[operator]  # a number


def test_returns_are_shifted_to_the_decision_that_affects_them() -> None:
    returns_TN = np.arange(5.0)[:, None]
    assert returns_affected(returns_TN, 1)[:, 0] == pytest.approx(
        [2.0, 3.0, 4.0, np.nan, np.nan], nan_ok=True
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sessions": 10}, r"sessions\n.*greater than or equal to 42"),
        ({"truth_ic": 0.9}, r"truth_ic\n.*less than or equal to 0.5"),
        ({"delay": -1}, r"delay\n.*greater than or equal to 0"),
        ({"peer_share": float("nan")}, r"peer_share\n.*finite number"),
        (
            {"temporal_share": 0, "peer_share": 0, "characteristic_share": 0},
            "set one of them to a positive value",
        ),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MarketConfig(**given)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
        SimulatedSource(MarketConfig(), seed=-1)
