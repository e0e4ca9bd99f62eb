"""Terms of the cost model."""

from __future__ import annotations

import numpy as np
import pytest

from backtest.costs import (
    COST_KINDS,
    Borrow,
    Commission,
    CostModel,
    Financing,
    HalfSpread,
    SquareRootImpact,
    volatility_per_root_volume,
)


def test_flat_costs_set_the_terms() -> None:
    costs = CostModel.flat(5, 1, 252, 100)
    assert (costs.half_spread.bps, costs.commission.bps) == (5, 1)
    assert (costs.borrow.bps_per_year, costs.financing.bps_per_year) == (252, 100)
    assert costs.impact is None
    assert tuple(field for field in CostModel.__dataclass_fields__ if field in COST_KINDS) == COST_KINDS


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("term", "name"),
    [
        (HalfSpread, "half_spread_bps"),
        (Commission, "commission_bps"),
        (Borrow, "borrow_bps_per_year"),
        (Financing, "financing_bps_per_year"),
    ],
)
def test_invalid_rates_raise(term: type, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        term(value)


@pytest.mark.parametrize("term", [HalfSpread, Borrow])
def test_invalid_rates_of_a_firm_raise(term: type) -> None:
    assert term(np.array([[1.0, 2.0]])) is not None
    with pytest.raises(ValueError, match=r"is -1.0 in 1 cell"):
        term(np.array([[1.0, -1.0]]))
    with pytest.raises(ValueError, match="has shape"):
        term(np.array([1.0, 2.0]))


def test_a_half_spread_may_be_unknown_and_a_borrow_fee_may_not() -> None:
    assert HalfSpread(np.array([[1.0, np.nan]])) is not None
    with pytest.raises(ValueError, match="is nan in 1 cell"):
        Borrow(np.array([[1.0, np.nan]]))


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
