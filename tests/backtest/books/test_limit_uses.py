"""The limits of a book at a decision, against books that were computed by hand."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from backtest.books.book import Book, BookInputs, LimitUse, PastReturns
from backtest.books.rules.optimised import Optimised, WeightLimits, factor_covariance
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.books.rules.top_k_drop import TopKDrop
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session
from features.arrays import FloatArray

NAN = np.nan
BEFORE = 130


def last(book: Book, inputs: BookInputs) -> dict[str, LimitUse]:
    """The limits of the last decision by name."""
    uses = book.limit_uses(inputs, book.targets(inputs).target_TN)
    return {use.name: use for use in uses}


def alternating(size_N: list[float], sessions: int) -> PastReturns:
    """Returns of ``+size`` and ``-size`` in turn: of mean 0, and all firms move together."""
    sign_S = np.where(np.arange(BEFORE + sessions) % 2 == 0, 1.0, -1.0)
    return PastReturns(sign_S[:, None] * np.array(size_N), BEFORE)


def test_a_use_is_free_binds_or_exceeds() -> None:
    assert LimitUse("max_turnover", 0.2999995, 0.3).state == "binds"
    assert LimitUse("max_turnover", 0.29, 0.3).state == "free"
    assert LimitUse("max_turnover", 0.31, 0.3).state == "exceeded"
    assert LimitUse("min_net", 0.31, 0.3, least=True).state == "free"
    assert LimitUse("min_net", 0.29, 0.3, least=True).state == "exceeded"


def test_a_book_without_limits_has_none() -> None:
    inputs = BookInputs(np.array([[1.0, 2, 3, 4]]), every_session(1))
    assert last(TopKLongOnly(k=2), inputs) == {}
    assert last(QuantileLongShort(quantiles=2), inputs) == {}


def test_neutrality_is_named_with_what_is_left_of_the_exposure() -> None:
    """Ranks 1 to 4 weigh -0.75, -0.25, 0.25, 0.75; sectors (0, 0, 1, 1) leave -0.5, 0.5, -0.5, 0.5."""
    inputs = BookInputs(
        np.array([[1.0, 2, 3, 4]]),
        every_session(1),
        group_TN=np.array([[0, 0, 1, 1]]),
        beta_TN=np.array([[1.0, 1.0, 2.0, 2.0]]),
    )
    plain = RankWeighted().targets(inputs).target_TN
    np.testing.assert_allclose(plain, [[-0.75, -0.25, 0.25, 0.75]])
    book = RankWeighted(neutral=("sector", "beta"))
    np.testing.assert_allclose(book.targets(inputs).target_TN, [[-0.5, 0.5, -0.5, 0.5]])
    found = last(book, inputs)
    assert {name: (use.limit, use.state) for name, use in found.items()} == {
        "neutral sector": (0.0, "binds"),
        "neutral beta": (0.0, "binds"),
    }
    # measured on the weights before: sectors net -1 and +1, beta -1 + 2 = 1
    before = {use.name: use for use in book.limit_uses(inputs, plain)}
    assert before["neutral sector"].value == pytest.approx(1.0)
    assert before["neutral beta"].value == pytest.approx(1.0)
    assert {use.state for use in before.values()} == {"exceeded"}


def annual(weight_N: list[float], size_N: list[float], sessions: int) -> float:
    """Annual volatility of a book of alternating returns: its sum is +x or -x every session."""
    swing = abs(float(np.dot(weight_N, size_N)))
    return sqrt(252.0) * swing * sqrt(sessions / (sessions - 1))


@pytest.mark.parametrize(
    ("target", "leverage", "binds"), [(0.1, 4.0, "target_volatility"), (0.5, 1.5, "max_leverage")]
)
def test_target_volatility_binds_unless_leverage_does(target: float, leverage: float, binds: str) -> None:
    """The book is +1, -1 in returns of 2% and 1%: it swings by 1%, an annual volatility of 15.9%."""
    inputs = BookInputs(np.array([[2.0, 1.0]]), every_session(1), past=alternating([0.02, 0.01], 1))
    book = QuantileLongShort(quantiles=2, target_volatility=target, max_leverage=leverage)
    found = last(book, inputs)
    unit = annual([1.0, -1.0], [0.02, 0.01], 126)
    assert unit == pytest.approx(0.1594, abs=1e-3)
    scale = min(target / unit, leverage / 2.0)
    assert found["target_volatility"].value == pytest.approx(scale * unit)
    assert found["max_leverage"].value == pytest.approx(2.0 * scale)
    assert [name for name, use in found.items() if use.state == "binds"] == [binds]
    assert {name: (use.limit, use.unit) for name, use in found.items()} == {
        "target_volatility": (target, "a year"),
        "max_leverage": (leverage, "of NAV"),
    }


def test_replaced_firms_are_counted_without_those_that_lost_their_signal() -> None:
    """Firms 0, 1 and 2 are held. Firm 2 has no signal any more, and firms 3 to 5 are better than 0 and 1."""
    signal_TN = np.array([[6.0, 5, 4, 3, 2, 1], [1, 2, NAN, 4, 5, 6]])
    book = TopKDrop(k=3, n_drop=1)
    inputs = BookInputs(signal_TN, every_session(2))
    assert (
        book.limit_uses(BookInputs(signal_TN[:1], every_session(1)), book.targets(inputs).target_TN[:1]) == ()
    )
    np.testing.assert_allclose(book.targets(inputs).target_TN[1] * 3, [0, 1, 0, 0, 1, 1])
    use = last(book, inputs)["n_drop"]
    assert use.value == pytest.approx(1.0)
    assert (use.limit, use.unit, use.state) == (1, "firms", "binds")


N = 30


def optimised(limits: WeightLimits) -> tuple[dict[str, LimitUse], FloatArray, BookInputs]:
    rng = np.random.default_rng(3)
    inputs = BookInputs(
        rng.normal(size=(2, N)),
        every_session(2),
        group_TN=np.tile(np.arange(N) % 3, (2, 1)),
        beta_TN=np.tile(rng.normal(1.0, 0.3, N), (2, 1)),
        past=PastReturns(0.02 * rng.normal(size=(BEFORE + 2, N)), BEFORE),
    )
    book = Optimised(limits=limits, covariance_sessions=100)
    target_TN = book.targets(inputs).target_TN
    assert not np.isnan(target_TN).any()
    return {use.name: use for use in book.limit_uses(inputs, target_TN)}, target_TN, inputs


def test_every_limit_of_an_optimised_book_is_measured() -> None:
    limits = WeightLimits(
        max_position=0.5,
        max_leverage=3.0,
        min_net=-0.2,
        max_net=0.2,
        max_volatility=0.2,
        max_turnover=2.0,
        max_sector_net=0.3,
        max_beta=0.1,
    )
    found, target_TN, inputs = optimised(limits)
    before_N, weight_N = target_TN
    assert inputs.past is not None
    assert inputs.beta_TN is not None
    covariance = factor_covariance(inputs.past.window(1, 100), 20).matrix
    expected = {
        "max_position": max(abs(weight_N)),
        "max_leverage": sum(abs(weight_N)),
        "min_net": sum(weight_N),
        "max_net": sum(weight_N),
        "max_volatility": sqrt(252 * weight_N @ covariance @ weight_N),
        "max_turnover": 0.5 * sum(abs(weight_N - before_N)),
        "max_sector_net": max(abs(sum(weight_N[k::3])) for k in range(3)),
        "max_beta": abs(sum(inputs.beta_TN[1] * weight_N)),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-9), name
        assert found[name].limit == getattr(limits, name)


@pytest.mark.parametrize(
    ("binds", "limits"),
    [
        ("max_volatility", WeightLimits(max_position=9.0, max_leverage=9.0, max_volatility=0.1)),
        ("max_leverage", WeightLimits(max_position=9.0, max_leverage=0.7, max_volatility=9.0)),
        ("max_position", WeightLimits(max_position=0.02, max_leverage=9.0, max_volatility=9.0)),
        (
            "max_beta",
            WeightLimits(
                max_position=0.1,
                max_leverage=1.0,
                min_net=-9.0,
                max_net=9.0,
                max_volatility=None,
                max_beta=0.01,
            ),
        ),
        (
            "max_turnover",
            WeightLimits(max_position=0.2, max_leverage=9.0, max_volatility=0.1, max_turnover=0.05),
        ),
        (
            "max_sector_net",
            WeightLimits(max_position=0.1, max_leverage=9.0, max_volatility=9.0, max_sector_net=0.01),
        ),
    ],
)
def test_the_limit_that_binds_is_named(binds: str, limits: WeightLimits) -> None:
    found, _, _ = optimised(limits)
    assert found[binds].state == "binds"
    assert all(use.state in {"free", "binds"} for use in found.values())
    assert any(use.state == "free" for use in found.values())
