"""Deliveries whose dividends were dated with hindsight, and honest ones.

python benchmarks/audit_selection.py --data ../shared/data --count 40             # to choose limits
python benchmarks/audit_selection.py --data ../shared/data --count 40 --held-out  # the other firms

Markets are those of `audit_false_alarms`, and cases are drawn as in `audit_early`. Of honest deliveries, only
the rule that looks for the same cause is counted; `audit_false_alarms` counts all.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from audit_bases import Array, Base, Tables
from audit_clean import Case
from audit_early import count

from backtest.look_ahead import splits
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Result


def scaled(base: Base, factor_TN: Array, **changed: Array) -> Tables:
    """Prices times a factor."""
    bars = {name: base.bars[name] * factor_TN for name in ("open", "high", "low", "close")}
    return base.with_bars(**bars, **changed)


def paying(base: Base, share: float, early: int, *, falls: bool = True) -> Tables:
    """Most firms pay a share of their price every 63 sessions or so; recorded so many sessions early."""
    rng = np.random.default_rng((base.seed, 71))
    close_TN, (T, N) = base.bars["close"], base.close_TN.shape
    factor_TN, paid_TN = np.ones((T, N)), np.zeros((T, N))
    for n in np.flatnonzero(rng.random(N) < 0.6):
        for start in range(int(rng.integers(5, 63)), T, 63):
            t = start + int(rng.integers(-3, 4))
            size = share * np.exp(0.4 * rng.standard_normal())
            if 11 < t < T - 11 and np.isfinite(close_TN[[t - 1, t, t - early], n]).all():
                paid_TN[t - early, n] = size * close_TN[t - 1, n] * factor_TN[t - 1, n]
                factor_TN[t:, n] *= 1.0 - size * falls
    return scaled(base, factor_TN, dividend=np.nan_to_num(base.bars["dividend"]) + paid_TN)


DIVIDENDS: Final = ("their ex-dates", "may be counted twice", "dates of dividends", "dates of small splits")
CHECKS: Final[dict[tuple[str, ...], Callable[[Delivery], Result]]] = {DIVIDENDS: splits.check}
DOCTORED: Final[dict[str, Case]] = {
    **{
        f"dividends of {share:.1%}, {early} session(s) early": Case(
            partial(paying, share=share, early=early), expects=DIVIDENDS
        )
        for share in (0.005, 0.01, 0.02)
        for early in (1, 3, -2)
    },
    **{
        f"dividends of {share:.1%} that prices do not show": Case(
            partial(paying, share=share, early=0, falls=False), expects=DIVIDENDS
        )
        for share in (0.005, 0.02)
    },
}
HONEST: Final[dict[str, Case]] = {
    **{
        f"dividends of {share:.1%}": Case(partial(paying, share=share, early=0), expects=DIVIDENDS)
        for share in (0.005, 0.01, 0.02)
    },
    "dividends as they are": Case(lambda b: b.tables, expects=DIVIDENDS),
}


def main() -> None:
    """Print how often each case fails, or is warned about."""
    count(__doc__, {"doctored": DOCTORED, "honest": HONEST}, lambda case: (CHECKS[case.expects],))


if __name__ == "__main__":
    main()
