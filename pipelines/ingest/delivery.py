"""Decide whether a delivery may replace what the lake holds, before anything is written.

A source that delivers its whole scope withdraws rows that it no longer delivers. A file of another market
would therefore replace a lake, and an incomplete download would empty it. Files do not name their market, but
the tickers and returns of the prices identify it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.commit import Plan
from pipelines.lake.contracts import Checked
from pipelines.lake.lake import Lake

_MIN_ROWS: Final = 100
"""Minimum number of rows for a decision; a correction may change a small table completely."""
_MIN_READ: Final = 20
"""Minimum number of rows for the decision that a table was misread."""
_MAX_SHARE: Final = 0.5
"""Share of the stored rows. A correction, a removed firm or a moving window changes far less; an incomplete
download, or a file with new sessions only, withdraws more."""
_SAME_RETURN: Final = 0.002
"""Two returns of one firm and session are the same within this difference. Rounding to cents has a smaller
effect for prices above 5."""
_SAME_MARKET: Final = 0.25
"""Minimum share of equal returns. Corrected, re-adjusted and rescaled prices keep most returns; of
independent returns with a daily standard deviation of 1% or 2%, only 5% to 10% are equal by chance."""


def refuse_other_tickers(lake: Lake, prices: Plan) -> None:
    """Refuse prices if none of the stored tickers is delivered.

    Raises
    ------
    ConfigError
        If the lake holds prices and no ticker is in both.
    """
    withdrawn = prices.changes.withdrawn["ticker"]
    if withdrawn.is_empty() or prices.rows.is_empty() or prices.changes.new.height < prices.rows.height:
        return
    if not withdrawn.is_in(prices.rows["ticker"].unique().implode()).any():
        raise ConfigError(
            f"The lake {lake.root} holds prices of other firms, such as {withdrawn[0]}: none of its tickers "
            "is "
            f"delivered, so this is another market (with {prices.rows['ticker'][0]}, for example). Name "
            "another folder in 'lake', or delete that one."
        )


def refuse_other_returns(lake: Lake, prices: Plan) -> None:
    """Refuse prices under the same tickers whose returns show that they are other firms'.

    Applies only if most of the closes differ from the stored ones.

    Raises
    ------
    ConfigError
        If less than a quarter of the returns agree.
    """
    changed = prices.changes.changed
    if changed.height < max(_MIN_ROWS, _MAX_SHARE * (changed.height + prices.unchanged)):
        return
    key = ["ticker", "date"]
    stored = lake.read("prices", columns=[*key, "close"])
    both = stored.join(prices.rows.select(*key, delivered="close"), on=key).sort(key)
    returns = both.select(
        pl.col(c) / pl.col(c).shift().over("ticker") - 1.0 for c in ("close", "delivered")
    ).drop_nulls()
    agree = returns.select(((pl.col("close") - pl.col("delivered")).abs() <= _SAME_RETURN).mean()).item()
    if returns.height >= _MIN_ROWS and agree < _SAME_MARKET:
        raise ConfigError(
            f"Of the returns that the lake {lake.root} holds, {agree:.0%} agree with those delivered for the "
            "same tickers and dates, so this is another market: name another folder in 'lake', or delete "
            "that one. If it corrects the same market, run 'peerglass ingest CONFIG --replace' once."
        )


def refuse_mostly_broken(origin: str, table: str, checked: Checked) -> None:
    """Refuse a delivery of which more than half of a table's rows break the contract.

    Such a file was misread: a wrong format of its dates reads a part of them, with day and month swapped.

    Raises
    ------
    DataError
        If the table has at least 20 rows and more than half are rejected, or if no price is left.
    """
    rejected, valid = checked.rejected.height, checked.valid.height
    broken = rejected + valid >= _MIN_READ and rejected > valid
    if not broken and (valid or table != "prices"):
        return
    if not rejected:
        raise DataError(f"{origin} delivered no price rows: check its dates and files")
    raise DataError(
        f"{origin}: {rejected:,} of {rejected + valid:,} rows of {table} break the rules "
        f"{checked.describe()}: correct the file, or the columns, date format and units that the config "
        "gives for it. Nothing was stored"
    )


def refuse_partial_delivery(lake: Lake, source: str, plans: Iterable[Plan]) -> None:
    """Refuse a delivery that lacks most of the rows that it would replace.

    Raises
    ------
    DataError
        If more than half of a table's rows would be withdrawn and the table has at least 100 rows.
    """
    for plan in plans:
        n_stored, withdrawn = plan.changes.in_scope, plan.changes.withdrawn.height
        if n_stored >= _MIN_ROWS and withdrawn > _MAX_SHARE * n_stored:
            raise DataError(
                f"source {source!r} no longer delivers {withdrawn:,} of the {n_stored:,} rows of "
                f"{plan.table} in the "
                f"lake {lake.root}: check that its files are complete; to withdraw those rows, run "
                "'peerglass ingest CONFIG --replace' once. The lake is unchanged"
            )
