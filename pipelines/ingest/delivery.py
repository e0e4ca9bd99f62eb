"""Whether a delivery may take the place of what the lake holds, judged before anything is written.

A source that delivers its whole scope withdraws what it no longer delivers. So a file of another market would
replace a lake, and a download that broke off would empty it. Files do not say which market they describe;
the prices do, by their tickers and returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.commit import Plan
from pipelines.lake.lake import Lake

_FEW: Final = 100
"""Fewer rows than this are too few to judge by: a small table may change wholly by one correction."""
_MOST: Final = 0.5
"""Share of the stored rows. A correction, a firm taken out or a window that moves on changes far less; a
download that broke off, or a file of new sessions alone, withdraws more."""
_SAME_RETURN: Final = 0.002
"""Two returns of one firm and session agree within this. Rounding to cents is less for prices above 5."""
_SAME_MARKET: Final = 0.25
"""Share of returns that agree. Corrected, re-adjusted and rescaled prices keep most returns; of independent
returns with a daily deviation of 1% or 2%, a twentieth to a tenth agrees by chance."""


def refuse_strangers(lake: Lake, prices: Plan) -> None:
    """Refuse prices of firms none of which the lake knows.

    Raises
    ------
    ConfigError
        If the lake holds prices and no ticker is in both.
    """
    gone = prices.changes.withdrawn["ticker"]
    if gone.is_empty() or prices.rows.is_empty() or prices.changes.new.height < prices.rows.height:
        return
    if not gone.is_in(prices.rows["ticker"].unique().implode()).any():
        raise ConfigError(
            f"The lake {lake.root} holds prices of other firms, such as {gone[0]}: none of its tickers is "
            f"delivered, so this is another market (such as {prices.rows['ticker'][0]}). Name another folder "
            "in 'lake', or delete that one."
        )


def refuse_other_returns(lake: Lake, prices: Plan) -> None:
    """Refuse prices under the same tickers that are those of other firms, by their returns.

    Looks only where most of the closes differ from the stored ones.

    Raises
    ------
    ConfigError
        If less than a quarter of the returns agree.
    """
    changed = prices.changes.changed
    if changed.height < max(_FEW, _MOST * (changed.height + prices.unchanged)):
        return
    key = ["ticker", "date"]
    stored = lake.read("prices", columns=[*key, "close"])
    both = stored.join(prices.rows.select(*key, delivered="close"), on=key).sort(key)
    returns = both.select(
        pl.col(c) / pl.col(c).shift().over("ticker") - 1.0 for c in ("close", "delivered")
    ).drop_nulls()
    agree = returns.select(((pl.col("close") - pl.col("delivered")).abs() <= _SAME_RETURN).mean()).item()
    if returns.height >= _FEW and agree < _SAME_MARKET:
        raise ConfigError(
            f"Of the returns that the lake {lake.root} holds, {agree:.0%} agree with those delivered for the "
            "same tickers and dates, so this is another market: name another folder in 'lake', or delete "
            "that one. If it corrects the same market, run 'peerglass ingest CONFIG --replace' once."
        )


def refuse_a_fragment(lake: Lake, source: str, plans: Iterable[Plan]) -> None:
    """Refuse a delivery that lacks most of what it would replace.

    Raises
    ------
    DataError
        If more than half of a table's rows would be withdrawn, and the table has at least 100.
    """
    for plan in plans:
        held, gone = plan.changes.in_scope, plan.changes.withdrawn.height
        if held >= _FEW and gone > _MOST * held:
            raise DataError(
                f"source {source!r} no longer delivers {gone:,} of the {held:,} rows of {plan.table} in the "
                f"lake {lake.root}: check that its files are complete; if those rows are to go, run "
                "'peerglass ingest CONFIG --replace' once. The lake is unchanged"
            )
