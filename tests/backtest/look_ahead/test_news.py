"""What is scaled and clipped before it is compared with later returns, firm by firm in plain Python."""

from __future__ import annotations

import math
import statistics

import numpy as np

from backtest.look_ahead.news import TAIL, clipped


def plainly(values: list[float]) -> list[float]:
    known = [one for one in values if math.isfinite(one)]
    if not known:
        return [0.0] * len(values)
    middle = statistics.median(known)
    off = [abs(one - middle) for one in known]
    size, deviation = 1.4826 * statistics.median(off), math.sqrt(statistics.fmean(one**2 for one in off))
    size = size if size > 1e-3 * deviation else deviation
    if size == 0:
        return [0.0] * len(values)
    return [max(-TAIL, min(TAIL, (one - middle) / size)) if math.isfinite(one) else 0.0 for one in values]


def test_values_are_centred_scaled_by_medians_and_clipped() -> None:
    rng = np.random.default_rng(4)
    x_TN = rng.standard_t(2, (61, 150)) * rng.lognormal(0, 3, 150)
    x_TN[rng.random(x_TN.shape) < rng.random(150)] = np.nan
    x_TN[:, 0] = np.nan
    x_TN[:, 1] = 7.0
    x_TN[:, 2] = np.where(np.arange(61) < 3, np.arange(61.0), 5.0)  # mostly constant
    x_TN[:, 3] = np.where(np.arange(61) == 9, 2.0, np.nan)
    x_TN[5, 4] = np.inf
    found_TN = clipped(x_TN)
    for firm in range(x_TN.shape[1]):
        np.testing.assert_allclose(found_TN[:, firm], plainly(x_TN[:, firm].tolist()), rtol=1e-12, atol=1e-12)
    assert (np.abs(found_TN) == TAIL).any()
    assert found_TN[:3, 2].all()
