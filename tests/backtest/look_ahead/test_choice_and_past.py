"""Rows chosen by later returns, and windows that hold the horizon, are told from their honest siblings.

The markets are seeded random walks, so that nothing but look-ahead knows a later return.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from backtest.look_ahead import prices
from backtest.look_ahead.coverage import choice_of_rows, gaps_in_prices
from backtest.look_ahead.prices import PastPrices, beyond_past
from backtest.look_ahead.returns import standardise

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
T, N = 320, 50


@pytest.fixture(scope="module", params=[1, 2], name="return_TN")
def made_returns(request: pytest.FixtureRequest) -> Array:
    """Returns with a common part, deviations that differ by firm, and fat tails."""
    rng = np.random.default_rng(request.param)
    own_TN = rng.uniform(0.008, 0.03, N) * rng.standard_t(5, (T, N))
    return np.asarray(own_TN + 0.008 * rng.normal(size=(T, 1)))


def later(return_TN: Array, first: int = 1, last: int = 1) -> Array:
    """Return over sessions t+first to t+last; NaN where it is not known yet."""
    total_TN = np.cumsum(return_TN, axis=0)
    out_TN = np.full(return_TN.shape, np.nan)
    out_TN[: T - last] = total_TN[last:] - total_TN[first - 1 : T - last + first - 1]
    return out_TN


def lowest(x_TN: Array, share: float) -> Rows:
    return np.asarray(x_TN < np.nanquantile(x_TN, share))


def verdict(present_TN: Rows, return_TN: Array) -> str:
    return choice_of_rows(present_TN, np.ones((T, N), np.bool_), return_TN, 1).verdict


LATER: dict[str, Callable[[Array], Rows]] = {
    "the worst": lambda r: ~lowest(later(r), 0.02),
    "the worst thousandth": lambda r: ~lowest(later(r), 0.0012),
    "the best": lambda r: ~lowest(-later(r), 0.02),
    "the worst after the delay": lambda r: ~lowest(later(r, 2, 2), 0.02),
    "the worst five sessions": lambda r: ~lowest(later(r, 1, 5), 0.02),
    "the largest moves": lambda r: ~lowest(-np.abs(later(r)), 0.15),
    "the largest two hundredths": lambda r: ~lowest(-np.abs(later(r)), 0.005),
    "the largest moves after the delay": lambda r: ~lowest(-np.abs(later(r, 2, 2)), 0.15),
    "the smallest moves": lambda r: ~lowest(np.abs(later(r)), 0.05),
    "all but the largest moves": lambda r: lowest(-np.abs(later(r)), 0.05),
    "half of the worst": lambda r: ~lowest(later(r), 0.04) | (np.arange(N) % 2 == 0),
    "the worst dates": lambda r: np.tile(~lowest(later(r).mean(axis=1), 0.1)[:, None], (1, N)),
    "the dates of large moves": lambda r: np.tile(
        ~lowest(-np.abs(later(r).mean(axis=1)), 0.1)[:, None], (1, N)
    ),
}


@pytest.mark.parametrize("left_out", LATER)
def test_rows_chosen_by_later_returns_fail(left_out: str, return_TN: Array) -> None:
    present_TN = LATER[left_out](return_TN)
    assert 0 < present_TN.sum() < T * N
    assert verdict(present_TN, return_TN) == "fail"


def usual(return_TN: Array) -> Array:
    """Mean size of the last 60 returns."""
    total_TN = np.cumsum(np.abs(return_TN), axis=0)
    return np.asarray((total_TN - np.vstack([np.zeros((60, N)), total_TN[:-60]])) / 60)


def drawn(share: float) -> Rows:
    return np.asarray(np.random.default_rng(9).random((T, N)) < share)


HONEST: dict[str, Callable[[Array], Rows]] = {
    "at random": lambda _: ~drawn(0.02),
    "hardly any": lambda _: ~drawn(0.001),
    "nearly all": lambda _: drawn(0.01),
    "volatile firms": lambda r: ~lowest(-usual(r), 0.05),
    "all but calm firms": lambda r: lowest(usual(r), 0.1),
    "moves of the date": lambda r: ~lowest(-np.abs(r), 0.02),
    "all but events": lambda r: lowest(-np.abs(r) / usual(r), 0.02),
    "losers of the date": lambda r: ~lowest(r, 0.05),
    "a fifth of the firms": lambda _: np.tile(np.arange(N) % 5 > 0, (T, 1)),
    "warm-up": lambda _: np.tile(np.arange(T)[:, None] >= 120, (1, N)) | (np.arange(N) % 3 == 0),
    "four days a week": lambda _: np.tile(np.arange(T)[:, None] % 5 == 0, (1, N)),
    "volatile dates": lambda r: np.tile(~lowest(-np.abs(r).mean(axis=1), 0.1)[:, None], (1, N)),
}


@pytest.mark.parametrize("left_out", HONEST)
def test_rows_chosen_by_what_was_known_pass(left_out: str, return_TN: Array) -> None:
    expected = "skipped" if left_out == "warm-up" else "pass"
    assert verdict(HONEST[left_out](return_TN), return_TN) == expected


@pytest.mark.parametrize(("dates", "expected"), [(1, "skipped"), (4, "skipped"), (8, "fail")])
def test_a_sector_that_is_missing_on_few_dates_is_not_judged(
    dates: int, expected: str, return_TN: Array
) -> None:
    """Its firms move as one after an outage of their exchange, so that a date counts once."""
    moved_TN, present_TN = return_TN.copy(), np.ones((T, N), np.bool_)
    for t in range(60, 60 + 25 * dates, 25):
        moved_TN[t + 1, :20] += 0.05
        present_TN[t, :20] = False
    assert verdict(present_TN, moved_TN) == expected


def test_complete_rows_are_skipped(return_TN: Array) -> None:
    assert verdict(np.ones((T, N), np.bool_), return_TN) == "skipped"


def test_rows_that_are_missing_wherever_a_later_return_is_known_are_not_compared(return_TN: Array) -> None:
    """Of a short file and a long horizon, every row with a known later return can be missing."""
    horizon, present_TN, inside_TN = T - 10, np.ones((T, N), np.bool_), np.ones((T, N), np.bool_)
    present_TN[:10, 1:] = False
    inside_TN[:10, 0] = False
    inside_TN[0, 0], return_TN = True, return_TN.copy()
    return_TN[1:, 0] = np.nan
    assert choice_of_rows(present_TN, inside_TN, return_TN, horizon).verdict in ("pass", "skipped")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (lambda r: lowest(later(r), 0.02), "fail"),
        (lambda r: lowest(-later(r), 0.003), "fail"),
        (lambda r: lowest(-np.abs(later(r)) / r.std(axis=0), 0.005), "fail"),
        (lambda _: drawn(0.02), "pass"),
        (lambda r: lowest(-np.abs(r), 0.02), "pass"),
        (lambda r: lowest(-usual(r), 0.02) & drawn(0.5), "pass"),
        (lambda _: drawn(0.0001), "skipped"),
    ],
)
def test_prices_that_are_missing_where_they_fall_or_move_fail(
    missing: Callable[[Array], Rows], expected: str, return_TN: Array
) -> None:
    index_TN, traded_TN = np.exp(np.cumsum(return_TN, axis=0)), ~missing(return_TN)
    known_TN = traded_TN & np.vstack([np.zeros((1, N), np.bool_), traded_TN[:-1]])
    found = gaps_in_prices(index_TN, traded_TN, np.where(known_TN, return_TN, np.nan))
    assert found.verdict == expected, found.sentence


@pytest.mark.parametrize(("halts", "expected"), [(12, "warn"), (40, "fail")])
def test_a_few_halts_that_end_badly_are_no_proof(halts: int, expected: str, return_TN: Array) -> None:
    return_TN, traded_TN = return_TN.copy(), np.ones((T, N), np.bool_)
    for n in range(halts):
        traded_TN[100 + 5 * n : 103 + 5 * n, n] = False
        return_TN[103 + 5 * n, n] = np.log(0.5)
    known_TN = traded_TN & np.vstack([np.zeros((1, N), np.bool_), traded_TN[:-1]])
    index_TN = np.exp(np.cumsum(return_TN, axis=0))
    found = gaps_in_prices(index_TN, traded_TN, np.where(known_TN, return_TN, np.nan))
    assert found.verdict == expected, found.sentence


def windows(return_TN: Array, before: int, after: int) -> Array:
    """Prices of t-before to t+after, shape [T, N, sessions]; NaN where some are missing."""
    price_TN = np.exp(np.cumsum(return_TN, axis=0))
    padded_TN = np.vstack([np.full((before, N), np.nan), price_TN, np.full((after, N), np.nan)])
    return sliding_window_view(padded_TN, before + after + 1, axis=0)


def score(return_TN: Array, before: int, after: int) -> Array:
    held_TNW = windows(return_TN, before, after)
    return np.asarray((held_TNW[:, :, before] - held_TNW.mean(axis=2)) / held_TNW.std(axis=2))


def place(return_TN: Array, before: int, after: int) -> Array:
    held_TNW = windows(return_TN, before, after)
    low_TN, high_TN = held_TNW.min(axis=2), held_TNW.max(axis=2)
    return np.asarray((held_TNW[:, :, before] - low_TN) / (high_TN - low_TN))


def rank(return_TN: Array, before: int, after: int) -> Array:
    held_TNW = windows(return_TN, before, after)
    rank_TN = (held_TNW <= held_TNW[:, :, before : before + 1]).mean(axis=2)
    return np.where(np.isnan(held_TNW).any(axis=2), np.nan, rank_TN)


def smooth(return_TN: Array, before: int, after: int) -> Array:
    """Exponential mean of the prices of the window, as a share of the price."""
    held_TNW = windows(return_TN, before, after)
    weight_W = 0.9 ** np.abs(np.arange(-before, after + 1))
    return np.asarray(held_TNW @ weight_W / weight_W.sum() / held_TNW[:, :, before])


def level(return_TN: Array, before: int, after: int) -> Array:
    """Mean price, of firms with very different prices."""
    return np.asarray(windows(return_TN, before, after).mean(axis=2) * np.linspace(1, 100, N))


def offset(return_TN: Array, before: int, after: int) -> Array:
    """A score of firms that differ for good."""
    return np.asarray(score(return_TN, before, after) + 3.0 * np.random.default_rng(3).normal(size=N))


def filled(return_TN: Array, _: int, after: int) -> Array:
    """A score of every so many sessions, that also stands on the sessions before it."""
    score_TN = score(return_TN, 60, 0)
    every = max(after, 1)
    made = np.minimum((np.arange(T) + every - 1) // every * every, T - 1)
    return score_TN[made]


@pytest.mark.parametrize("compute", [score, place, rank, smooth, level, offset, filled])
@pytest.mark.parametrize("after", [0, 10])
def test_windows_that_hold_the_horizon_fail(
    compute: Callable[[Array, int, int], Array], after: int, return_TN: Array
) -> None:
    past, returns = PastPrices(np.exp(np.cumsum(return_TN, axis=0))), standardise(return_TN)
    found = beyond_past(compute(return_TN, 50, after), past, returns, 1)
    assert found.verdict == ("fail" if after else "pass"), found.sentence


@pytest.mark.parametrize("ic", [0.03, 0.08])
def test_honest_skill_inside_a_function_of_past_prices_passes(ic: float, return_TN: Array) -> None:
    """What past prices leave of it is the skill alone, whose IC no longer looks small."""
    known_TN = ic * standardise(later(return_TN)).value_DN + np.random.default_rng(4).normal(size=(T, N))
    past, returns = PastPrices(np.exp(np.cumsum(return_TN, axis=0))), standardise(return_TN)
    found = beyond_past(5.0 * score(return_TN, 50, 0) + known_TN, past, returns, 1)
    assert found.verdict == "pass", found.sentence
    assert found.value is not None


@pytest.mark.parametrize("sessions", [40, 130])
def test_markets_shorter_than_the_longest_window_are_examined(sessions: int, return_TN: Array) -> None:
    return_TN = return_TN[:sessions]
    past = PastPrices(np.exp(np.cumsum(return_TN, axis=0)))
    signal_TN = np.random.default_rng(0).normal(size=return_TN.shape)
    assert beyond_past(signal_TN, past, standardise(return_TN), 5).verdict == "pass"


def test_few_values_are_skipped(return_TN: Array) -> None:
    signal_TN = np.where(np.arange(T)[:, None] < 10, 1.0, np.nan) * return_TN
    past = PastPrices(np.exp(np.cumsum(return_TN, axis=0)))
    assert beyond_past(signal_TN, past, standardise(return_TN), 1).verdict == "skipped"


def test_past_prices_of_a_short_market_have_only_windows_that_differ() -> None:
    moves_TN = 0.01 * np.random.default_rng(0).standard_normal((300, 12))
    index_TN = np.cumprod(1.0 + moves_TN, axis=0).astype(np.float64)
    assert PastPrices(index_TN).windows[-1] == 250
    short = PastPrices(index_TN[:50])
    assert short.windows[-2:] == [45, 60], "the last one holds the whole history"
    assert short.count < PastPrices(index_TN).count
    assert short.at(np.array([40, 49]), np.arange(12)).shape == (2, 12, short.count)


@pytest.mark.parametrize(("lasts", "residuals"), [(24, 2), (320, 3)])
def test_a_change_that_few_firms_have_on_few_dates_is_not_examined(lasts: int, residuals: int) -> None:
    """A figure that is known for a month before events has a change over 21 dates on few of them."""
    rng = np.random.default_rng(0)
    value_TN = rng.normal(size=(T, N))
    value_TN[(np.arange(T)[:, None] + rng.integers(0, 63, N)) % 63 >= lasts] = np.nan
    past = PastPrices(np.exp(np.cumsum(0.02 * rng.normal(size=(T, N)), axis=0)))
    found = prices._residuals(value_TN, np.arange(30, T), np.arange(N), past)
    assert len(list(found)) == residuals
