"""Rates of the cost model."""

from __future__ import annotations

import pytest

from backtest.costs.model import CostModel


def test_basis_points_are_converted_to_fractions() -> None:
    costs = CostModel(half_spread_bps=5, commission_bps=1, borrow_bps_per_year=252)
    assert costs.half_spread == pytest.approx(0.0005)
    assert costs.commission == pytest.approx(0.0001)
    assert costs.borrow_per_session == pytest.approx(0.0001)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_invalid_rates_raise(value: float) -> None:
    with pytest.raises(ValueError, match="commission_bps"):
        CostModel(half_spread_bps=0, commission_bps=value, borrow_bps_per_year=0)
