"""Decide whether a delivery may enter a lake: its source, its market, and how much it would replace.

A lake belongs to the source of its prices, which the table ``sources`` records before the rows. A supplement
(`pipelines.lake.schemas.SUPPLEMENTS`) adds statements to any lake and owns none. A source that delivers its
whole scope withdraws rows that it no longer delivers, so a file of another market would replace a lake, and
an incomplete download would empty it. Files do not name their market, but the tickers and returns do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.commit import UpsertPlan
from pipelines.lake.contracts import Checked
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import SUPPLEMENTS
from pipelines.sources.base import Setting

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


def refuse_other_tickers(lake: Lake, prices: UpsertPlan) -> None:
    """Raise ConfigError if the lake holds prices and none of their tickers is delivered."""
    withdrawn = prices.changes.withdrawn["ticker"]
    if withdrawn.is_empty() or prices.rows.is_empty() or prices.changes.new.height < prices.rows.height:
        return
    if not withdrawn.is_in(prices.rows["ticker"].unique().implode()).any():
        raise ConfigError(
            f"The lake {lake.root} holds prices of other firms, such as {withdrawn[0]}: none of its tickers "
            f"is delivered, so this is another market (with {prices.rows['ticker'][0]}, for example). Name "
            "another folder in 'lake', or delete that one."
        )


def refuse_other_returns(lake: Lake, prices: UpsertPlan) -> None:
    """Raise ConfigError if most closes differ from the stored ones, and so do most of their returns."""
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
    """Raise DataError if no price is left, or more than half of a table's rows (of 20 at least) are rejected.

    Such a file was misread: a wrong format of its dates reads a part of them, with day and month swapped.
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


def refuse_partial_delivery(lake: Lake, source: str, plans: Iterable[UpsertPlan]) -> None:
    """Raise DataError if a delivery would withdraw more than half of a table of 100 rows or more."""
    for plan in plans:
        n_stored, withdrawn = plan.changes.in_scope, plan.changes.withdrawn.height
        if n_stored >= _MIN_ROWS and withdrawn > _MAX_SHARE * n_stored:
            raise DataError(
                f"source {source!r} no longer delivers {withdrawn:,} of the {n_stored:,} rows of "
                f"{plan.table} in the lake {lake.root}: check that its files are complete; to withdraw "
                "those rows, run 'peerglass ingest CONFIG --replace' once. The lake is unchanged"
            )


_NUMBER: Final = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,.:-]*")
"""A number or an ISO date, but not a digit inside a name."""


def refuse_other_source(lake: Lake, source: str) -> None:
    """Raise ConfigError if the lake holds prices of another source."""
    if source in SUPPLEMENTS or not lake.exists("prices"):
        return
    owners = [name for name in lake.rows("sources", ["source"])["source"] if name not in SUPPLEMENTS]
    if len(owners) != 1:
        owners = lake.read("prices", columns=["source"])["source"].unique().sort().to_list()
    if owners in ([], [source]):
        return
    raise ConfigError(
        f"The lake {lake.root} belongs to source {' and '.join(owners)}, but this config's is {source}: "
        "name another folder in 'lake', or delete that one."
    )


def refuse_other_market(lake: Lake, source: str, market: Mapping[str, Setting]) -> None:
    """Raise ConfigError if the lake holds prices of a market with other settings.

    A setting that only one of the two markets has is ignored, because a later version may have added it.
    """
    stored = _stored(lake, source)
    if stored is None or stored["market"] is None or not lake.exists("prices"):
        return
    stored_market = json.loads(stored["market"])
    shared = [name for name in market if name in stored_market]
    if differing := [name for name in shared if stored_market[name] != market[name]]:
        was, now = (", ".join(f"{name} {of[name]}" for name in differing) for of in (stored_market, market))
        raise ConfigError(
            f"The lake {lake.root} holds the {source} market with {was}, but this config's has {now}: name "
            "another folder in 'lake', or delete that one."
        )


def record_source(
    lake: Lake, source: str, market: Mapping[str, Setting], notes: Iterable[str], hazards: Iterable[str]
) -> None:
    """Store a source's notes and hazards.

    Notes replace those of the previous ingest, unless there are none; hazards accumulate, and one that
    differs from a stored one only in its numbers replaces it.
    """
    stored = _stored(lake, source) or {}
    names = json.dumps(dict(market), sort_keys=True)
    all_hazards = (*json.loads(stored.get("hazards", "[]")), *hazards)
    hazards_by_text = {_NUMBER.sub("#", hazard): hazard for hazard in all_hazards}
    row = {
        "source": [source],
        "notes": [json.dumps(list(dict.fromkeys(notes)) or json.loads(stored.get("notes", "[]")))],
        "hazards": [json.dumps(list(hazards_by_text.values()))],
        "market": [stored.get("market", names) if source in SUPPLEMENTS else names],
    }
    lake.upsert("sources", pl.DataFrame(row, schema_overrides={"market": pl.String}))


def own_rows(table: str) -> pl.Expr:
    """Return an expression for the rows of a table from the lake's own source, not from a supplement."""
    return pl.col("source").is_null() if table == "fundamentals" else pl.lit(value=True)


def _stored(lake: Lake, source: str) -> dict[str, Any] | None:
    rows = lake.rows("sources", filters=pl.col("source") == source)
    return rows.row(0, named=True) if rows.height else None
