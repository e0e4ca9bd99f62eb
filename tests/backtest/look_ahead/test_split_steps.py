"""A split is judged by the price on its recorded date."""

from __future__ import annotations

import numpy as np
import pytest

from backtest.look_ahead.splits import _step


@pytest.mark.parametrize(
    ("factor", "found"),
    [
        (1.6, (True, 0)),  # the price steps by the ratio of 0.625
        (1.0, (True, None)),  # the price was adjusted already
        (11.5, (False, None)),  # the firm trades again at several times its last price
    ],
)
def test_a_split_is_not_judged_by_a_price_that_moved_for_another_reason(
    factor: float, found: tuple[bool, int | None]
) -> None:
    close_T = 10.0 * np.exp(np.cumsum(0.01 * np.random.default_rng(1).normal(size=60)))
    close_T[30:] *= factor
    assert _step(close_T, 30, float(np.log(0.625))) == found
