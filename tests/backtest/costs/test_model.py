"""Terms of the cost model."""

from __future__ import annotations

import numpy as np
import pytest

from backtest.costs import COST_KINDS, CostModel, SquareRootImpact, volatility_per_root_volume


def test_every_kind_of_cost_has_a_term() -> None:
    costs = CostModel(5, 1, 252, 100)
    assert (costs.half_spread_bps, costs.commission_bps) == (5, 1)
    assert (costs.borrow_bps_per_year, costs.financing_bps_per_year) == (252, 100)
    assert costs.impact is None
    terms = tuple(CostModel.__dataclass_fields__)
    assert all(any(term.startswith(kind) for term in terms) for kind in COST_KINDS)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "term",
    [
        "half_spread_bps",
        "commission_bps",
        "commission_minimum",
        "borrow_bps_per_year",
        "financing_bps_per_year",
    ],
)
def test_invalid_rates_raise(term: str, value: float) -> None:
    with pytest.raises(ValueError, match=term):
        CostModel(**{term: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("term", ["half_spread_bps", "borrow_bps_per_year"])
def test_invalid_rates_of_a_firm_raise(term: str) -> None:
    assert CostModel(**{term: np.array([[1.0, 2.0]])}) is not None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is -1.0 in 1 cell"):
        CostModel(**{term: np.array([[1.0, -1.0]])})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has shape"):
        CostModel(**{term: np.array([1.0, 2.0])})  # type: ignore[arg-type]


def test_a_half_spread_may_be_unknown_and_a_borrow_fee_may_not() -> None:
    assert CostModel(np.array([[1.0, np.nan]])) is not None
    with pytest.raises(ValueError, match="is nan in 1 cell"):
        CostModel(borrow_bps_per_year=np.array([[1.0, np.nan]]))


@pytest.mark.parametrize(("coefficient", "capital"), [(-1.0, 1.0), (1.0, 0.0), (np.nan, 1.0), (1.0, np.inf)])
def test_invalid_impact_raises(coefficient: float, capital: float) -> None:
    with pytest.raises(ValueError, match=r"coefficient|capital"):
        SquareRootImpact(coefficient, capital, np.ones((1, 1)))
    with pytest.raises(ValueError, match="negative cell"):
        SquareRootImpact(1.0, 1.0, -np.ones((1, 1)))


def test_impact_rate_is_unknown_without_volume_or_volatility() -> None:
    volatility_TN = np.array([[0.02, 0.02, 0.02, np.nan, 0.0]])
    volume_TN = np.array([[4e6, 0.0, np.nan, 1e6, 1e6]])
    rate_TN = volatility_per_root_volume(volatility_TN, volume_TN)
    np.testing.assert_array_equal(rate_TN, [[1e-5, np.nan, np.nan, np.nan, 0.0]])
    with pytest.raises(ValueError, match="shape of the dollar volume"):
        volatility_per_root_volume(volatility_TN, volume_TN[:, :2])
