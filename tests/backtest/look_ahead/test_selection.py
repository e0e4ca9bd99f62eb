"""Firms, members and histories that were chosen for what came later are told from honest ones like them.

The market is a seeded random walk, so that nothing but look-ahead knows a later return.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from scipy.stats import t as student

from backtest.look_ahead import coverage, hindsight
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding
from features.panel.panel import build_panel

Array = npt.NDArray[np.float64]
T, N = 900, 60
SESSIONS = pl.date_range(dt.date(2014, 1, 1), dt.date(2019, 1, 1), "1d", eager=True)
SESSIONS = SESSIONS.filter(SESSIONS.dt.weekday() < 6)[:T]
TICKERS = [f"F{n:02}" for n in range(N)]


@pytest.fixture(scope="module", name="return_TN")
def made_returns() -> Array:
    rng = np.random.default_rng(11)
    return np.asarray(0.015 * rng.standard_t(5, (T, N)) + 0.008 * rng.standard_normal((T, 1)))


def rows(value_TN: Array, name: str) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"date": np.repeat(SESSIONS.to_numpy(), N), "ticker": TICKERS * T, name: value_TN.ravel()}
    )
    return frame.with_columns(pl.col("date").cast(pl.Date)).filter(pl.col(name).is_not_nan())


def delivered(
    return_TN: Array, first_N: npt.NDArray[np.int64] | None = None, **tables: pl.DataFrame
) -> Delivery:
    """A delivery of the prices, each from the first session of its firm on."""
    close_TN = 40.0 * np.exp(np.cumsum(return_TN, axis=0))
    if first_N is not None:
        close_TN = np.where(np.arange(T)[:, None] >= first_N, close_TN, np.nan)
    prices = rows(close_TN, "close").with_columns(
        *(pl.lit(None, pl.Float64).alias(name) for name in ("open", "high", "low", "volume")),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    panel = build_panel(prices)
    names = ("own",) if "inputs" in tables else ()
    listed = "index" if "membership" in tables else None
    every = np.arange(panel.n_firms)
    given = {"prices": prices, **tables}
    return Delivery(panel, panel.traded_TN, given, names, every, 1, membership=listed)


def own(first_N: npt.NDArray[np.int64]) -> pl.DataFrame:
    """An input of noise from a row of each firm on."""
    noise_TN = np.random.default_rng(12).standard_normal((T, N))
    return rows(np.where(np.arange(T)[:, None] >= first_N, noise_TN, np.nan), "value").with_columns(
        name=pl.lit("own")
    )


def best_of(return_TN: Array, draws: int, span: int) -> npt.NDArray[np.int64]:
    """Of some sessions of each firm, the one before its best returns; a single one is drawn blindly."""
    at_DN = np.random.default_rng(13).integers(30, T - 300, (draws, N))
    total_TN = np.cumsum(return_TN - return_TN.mean(axis=1, keepdims=True), axis=0)
    gain_DN = total_TN[at_DN + span, np.arange(N)] - total_TN[at_DN, np.arange(N)]
    return np.asarray(at_DN[gain_DN.argmax(axis=0), np.arange(N)])


def begun(data: Delivery) -> dict[str, Finding]:
    """What is found about beginnings, by subject."""
    found = coverage.check(data).evidence.filter(pl.col("check") == "begins with success")
    return {row["subject"]: Finding(**row) for row in found.to_dicts()}


@pytest.mark.parametrize(("draws", "verdict"), [(1, "pass"), (2, "warn"), (5, "fail")])
@pytest.mark.parametrize("table", ["inputs", "fundamentals", "membership"])
def test_coverage_from_before_success_on_is_told_from_coverage_that_was_drawn(
    table: str, draws: int, verdict: str, return_TN: Array
) -> None:
    first_N = best_of(return_TN, draws, 126)
    since = [SESSIONS[int(t)] for t in first_N]
    data = {
        "inputs": own(first_N),
        "fundamentals": pl.DataFrame({"ticker": TICKERS, "known_at": since}),
        "membership": pl.DataFrame(
            {"universe": "index", "ticker": TICKERS, "from_date": since},
        ).with_columns(to_date=pl.lit(None, pl.Date)),
    }[table]
    subject = {"inputs": "input own", "fundamentals": "statements", "membership": "membership of index"}[
        table
    ]
    one = begun(delivered(return_TN, None, **{table: data}))[f"beginnings of {subject}"]
    assert one.verdict == verdict
    assert f"Coverage of {subject} begins with success: after the first row, over " in one.sentence


def test_the_place_of_a_firm_is_that_of_a_plain_loop(return_TN: Array) -> None:
    """Mean place over the sessions that the sentence names, counted one firm and pair at a time."""
    first_N = best_of(return_TN, 2, 126)
    data = delivered(return_TN, inputs=own(first_N))
    one = begun(data)["beginnings of input own"]
    span = int(one.sentence.split("over ")[1].split()[0])
    usual_N = [np.abs(np.expm1(return_TN[1:, n])).mean() for n in range(N)]
    places = []
    for n in range(N):
        moves = [return_TN[first_N[n] + 1 : first_N[n] + span + 1, m].sum() for m in range(N)]
        middle = float(np.median(moves))
        scaled = [(moves[m] - middle) / usual_N[m] for m in range(N)]
        places.append(sum(scaled[m] < scaled[n] for m in range(N) if m != n) / (N - 1))
    assert f"do better than {np.mean(places):.0%} of the others" in one.sentence
    assert one.value is not None
    assert (
        one.value <= (np.mean(places) - 0.5) * (12 * N) ** 0.5 + 1e-9
    )  # months with several firms count less


@pytest.mark.parametrize("kept", ["all", "good beginnings", "rises on the first day"])
def test_histories_that_begin_well_are_told_from_new_listings(kept: str, return_TN: Array) -> None:
    first_N = np.where(np.arange(N) % 3, best_of(return_TN, 6 if kept == "good beginnings" else 1, 120), 0)
    if kept == "rises on the first day":
        return_TN = return_TN.copy()
        return_TN[first_N[first_N > 0] + 1, np.flatnonzero(first_N)] += 0.3
    one = begun(delivered(return_TN, first_N))["beginnings of the prices"]
    assert one.verdict == ("fail" if kept == "good beginnings" else "pass")
    assert "New firms begin with success: after their first week, over " in one.sentence


@pytest.mark.parametrize(("count", "together", "examined"), [(9, 0, False), (10, 0, True), (24, 16, False)])
def test_few_beginnings_and_common_ones_are_not_examined(
    count: int, together: int, examined: bool, return_TN: Array
) -> None:
    """Sixteen of 60 firms that begin on one session are the beginning of the delivery."""
    first_N = np.where(np.arange(N) < count, best_of(return_TN, 5, 126), 0)
    first_N[:together] = 300
    assert ("beginnings of input own" in begun(delivered(return_TN, inputs=own(first_N)))) is examined


@pytest.mark.parametrize(("months", "verdict"), [(1, None), (4, None), (6, "fail")])
def test_a_sector_that_is_added_within_few_months_is_not_judged(
    months: int, verdict: str | None, return_TN: Array
) -> None:
    """Its firms move as one, so that a month counts once."""
    first_N = np.where(np.arange(N) < 12, 300 + 21 * (np.arange(N) % months), 0)
    boom_TN = return_TN + np.where((np.arange(T)[:, None] >= 300) & (first_N > 0), 0.004, 0.0)
    found = begun(delivered(boom_TN, inputs=own(first_N))).get("beginnings of input own")
    assert (None if found is None else found.verdict) == verdict


def test_a_static_input_of_few_spans_is_judged_by_its_chance(return_TN: Array) -> None:
    """A code that was drawn blindly has a t of 7 over nine spans, which is no proof that it knows returns."""
    code_N = np.random.default_rng(26).integers(0, 3, N).astype(float)
    since_N = np.full(N, 710)
    code_TN = np.where(np.arange(T)[:, None] >= since_N, code_N, np.nan)
    drawn = rows(code_TN, "value").with_columns(name=pl.lit("own"))
    result = hindsight.horizons(delivered(return_TN, since_N, inputs=drawn), prices=False)
    assert result.verdict == "pass"
    found = result.evidence.row(0, named=True)
    assert abs(found["static_t"]) > 7.0
    assert found["static_chance"] == pytest.approx(2.0 * student.sf(abs(found["static_t"]), 8))


def changes(early: int, jump: float, *, quarters: int = 10) -> tuple[Array, pl.DataFrame]:
    """Announced moves [T, N] of two firms that join and two that leave each quarter, and the list."""
    move_TN, spells = np.zeros((T, N)), []
    for q in range(quarters):
        t = 80 + 70 * q
        for n in (2 * q, 2 * q + 1):
            move_TN[t, n], move_TN[t, n + 30] = jump, -jump
            spells += [
                (TICKERS[n], SESSIONS[t - early], None),
                (TICKERS[n + 30], SESSIONS[0], SESSIONS[t - early]),
            ]
    spells += [(ticker, SESSIONS[0], None) for ticker in TICKERS[50:]]
    schema = {"ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    listed = pl.DataFrame(spells, schema, orient="row").with_columns(universe=pl.lit("index"))
    return move_TN, listed


@pytest.mark.parametrize(
    ("early", "jump", "verdict"),
    [
        (1, 0.05, "fail"),
        (4, 0.05, "fail"),
        (1, 0.02, "warn"),
        (0, 0.05, "pass"),
        (-3, 0.05, "pass"),
        (7, 0.03, "pass"),
    ],
)
def test_changes_of_a_list_before_their_announcement_are_caught(
    early: int, jump: float, verdict: str, return_TN: Array
) -> None:
    """Seven sessions are too far for this rule; changes on the day of the announcement and after it pass."""
    move_TN, listed = changes(early, jump)
    result = hindsight.membership(delivered(return_TN + move_TN, membership=listed))
    assert result.verdict == verdict
    for verb, then in (("join", "rise"), ("leave", "fall")) if verdict == "fail" else ():
        assert f"firms {verb} a few sessions before they {then}: after 20 such changes" in result.sentence
    assert ("so changes are dated too early" in result.sentence) is (verdict != "pass")


def test_few_changes_of_a_list_are_not_judged(return_TN: Array) -> None:
    """Four dates with two changes each are too few, whatever the moves."""
    move_TN, listed = changes(1, 0.05, quarters=4)
    assert (
        "dated too early"
        not in hindsight.membership(delivered(return_TN + move_TN, membership=listed)).sentence
    )


def leaving(return_TN: Array, last_N: npt.NDArray[np.int64], **tables: pl.DataFrame) -> Delivery:
    """Firms without prices after their last session."""
    gone_TN = np.arange(T)[:, None] > last_N
    return delivered(np.where(gone_TN, np.nan, return_TN), None, **tables)


def ends(count: int, first: int, last: int) -> npt.NDArray[np.int64]:
    """Last sessions of firms, of which so many stop, evenly between two sessions."""
    return np.where(
        np.arange(N) < count, np.linspace(first, last, N)[np.arange(N) * N // count % N], T - 1
    ).astype(int)


@pytest.mark.parametrize(
    ("count", "sessions", "value", "verdict"),
    [
        (20, 900, 0.0, "fail"),
        (20, 900, np.nan, "fail"),
        (20, 150, -1.0, "fail"),
        (12, 900, 0.0, "warn"),
        (20, 60, 0.0, "pass"),
    ],
)
def test_inputs_with_one_value_for_firms_that_will_stop_are_caught(
    count: int, sessions: int, value: float, verdict: str, return_TN: Array
) -> None:
    """A value of the last 60 sessions may be an announcement."""
    last_N = ends(count, 150, T - 40)
    left_TN = np.where(last_N < T - 1, last_N - np.arange(T)[:, None], 2 * T)
    noise_TN = np.random.default_rng(14).standard_normal((T, N))
    own_TN = np.where(left_TN < sessions, value, np.where(left_TN < 0, np.nan, noise_TN))
    data = leaving(return_TN, last_N, inputs=rows(own_TN, "value").with_columns(name=pl.lit("own")))
    result = hindsight.survivorship(data)
    what = "no value" if np.isnan(value) else f"the value {value:g}"
    assert (f"such firms have {what}, and 0% of those that stay" in result.sentence) is (verdict != "pass")
    assert ("Input own knows which firms stop trading: 126 sessions before they do" in result.sentence) is (
        verdict != "pass"
    )
    found = result.evidence.filter(pl.col("subject") == "input own")
    assert found["verdict"].to_list() == [verdict]
