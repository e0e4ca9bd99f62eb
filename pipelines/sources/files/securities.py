"""Firms and new tickers from a user's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.sources.files.layouts import PRICE_NAMES, Names
from pipelines.sources.files.reading import (
    ReadOptions,
    as_text,
    file_label,
    null_if_not_available,
    ticker_text,
)
from pipelines.sources.sample import STATIC_SINCE

_TEXT: Final = ("name", "sector", "industry", "currency", "exchange")
_DATES: Final = ("valid_from", "valid_to", "listed_on", "delisted_on")
SECURITY_NAMES: Final[Names] = {
    "ticker": PRICE_NAMES["ticker"],
    "name": ("name", "comnam", "conm", "companyname", "company", "longname", "security"),
    "sector": ("sector",),
    "industry": ("industry",),
    "currency": ("currency", "curcdd", "curcd"),
    "exchange": ("exchange", "exch", "mic"),
    "valid_from": ("validfrom", "namedt"),
    "valid_to": ("validto",),
    "listed_on": ("listedon", "ipodate", "listingdate"),
    "delisted_on": ("delistedon", "dlstdt", "dldte", "delistingdate"),
    "delisting_return": ("delistingreturn", "dlret"),
    "delisting_reason": ("delistingreason", "dlstcd"),
}
"""Usual names of columns of files about firms, CRSP's and Compustat's among them."""
_LISTED: Final = r"^100(?:\.0+)?$"
"""CRSP's code of a firm that is still listed."""
_NO_RETURN: Final = ("A", "S", "T", "P", "B", "C", "-55.0", "-66.0", "-77.0", "-88.0", "-99.0")
"""CRSP's codes for a delisting return that is not known."""
SECURITIES: Final = (*_TEXT, *_DATES, "delisting_return", "delisting_reason")
RENAMES: Final = ("from_date", "new_ticker")


def read_securities(files: Sequence[Path], options: ReadOptions) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Read names and classifications of firms; returns rows, notes and hazards.

    Without ``valid_from``, the file is assumed to be valid on all dates, which is a hazard if it contains
    sectors or industries.
    """
    frame = options.read_columns(files, ("ticker",), SECURITIES, fall_back=True)
    notes: list[str] = []
    hazards: list[str] = []
    if "valid_from" not in frame.columns:
        frame = frame.with_columns(pl.lit(STATIC_SINCE).alias("valid_from"))
        notes.append(f"{file_label(files)} has no valid_from: its data are assumed to be valid on all dates.")
        groups = [c for c in ("sector", "industry") if c in frame.columns]
        if groups:
            hazards.append(
                f"Static groups: {' and '.join(groups)} as of the date of {file_label(files)} are applied to "
                "all dates, so a firm that changed its business is grouped with hindsight."
            )
    frame = frame.with_columns(ticker_text(), *(as_text(c) for c in _TEXT if c in frame.columns))
    frame = frame.with_columns(null_if_not_available(c) for c in _TEXT if c in frame.columns)
    frame = options.dates(frame, [c for c in _DATES if c in frame.columns])
    if "delisting_return" in frame.columns:
        known = ~as_text("delisting_return").is_in(_NO_RETURN)
        frame = frame.with_columns(pl.when(known).then("delisting_return").alias("delisting_return"))
        frame = options.numbers(frame, ["delisting_return"])
    if {"delisting_reason", "delisted_on"} <= {*frame.columns}:
        listed = as_text("delisting_reason").str.contains(_LISTED).fill_null(value=False)
        ended = ("delisted_on", "delisting_reason")
        frame = frame.with_columns(pl.when(~listed).then(pl.col(c)).alias(c) for c in ended)
    if "delisting_reason" in frame.columns:
        frame = frame.with_columns(as_text("delisting_reason"))
        frame = frame.with_columns(null_if_not_available("delisting_reason"))
        frame = frame.with_columns(_delisting_reason(pl.col("delisting_reason")).alias("delisting_reason"))
    return frame, notes, hazards


def delisted_firms(ended: pl.DataFrame) -> pl.DataFrame:
    """Return the firms whose prices say on which day their listing ended, and with which return and reason.

    Parameters
    ----------
    ended
        ticker, date, and delisting_return or delisting_reason as in the files. A code of 100 is a firm that
        is still listed.
    """
    rows = ended.with_columns(
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in (("delisting_return", pl.Float64()), ("delisting_reason", pl.String()))
        if name not in ended.columns
    ).with_columns(as_text("delisting_reason"))
    listed = pl.col("delisting_reason").str.contains(_LISTED).fill_null(value=False)
    last = rows.filter(~listed).sort("ticker", "date").group_by("ticker", maintain_order=True).last()
    return last.select(
        "ticker",
        pl.lit(STATIC_SINCE).alias("valid_from"),
        pl.col("date").alias("delisted_on"),
        "delisting_return",
        _delisting_reason(pl.col("delisting_reason")).alias("delisting_reason"),
    )


def _delisting_reason(recorded: pl.Expr) -> pl.Expr:
    """Map CRSP's delisting codes to merger, performance or unknown; other text is kept, in lower case.

    Codes 200 to 399 are mergers and exchanges of shares; 500 and 520 to 584 are delistings for performance
    (Shumway and Warther 1999). All other codes are unknown: liquidations (4xx), which pay a liquidation
    value, and moves to another exchange (501 to 519).
    """
    code = recorded.str.extract(r"^(\d{3})(?:\.0+)?$").cast(pl.Int64)
    return (
        pl.when(code.is_between(200, 399))
        .then(pl.lit("merger"))
        .when((code == 500) | code.is_between(520, 584))
        .then(pl.lit("performance"))
        .when(code.is_not_null())
        .then(pl.lit("unknown"))
        .otherwise(recorded.str.to_lowercase())
    )


def read_renames(files: Sequence[Path], options: ReadOptions) -> pl.DataFrame:
    """Read new tickers: from ``from_date`` on, ``ticker`` is called ``new_ticker``."""
    frame = options.read_columns(files, ("ticker", *RENAMES), (), fall_back=True)
    return options.dates(frame.with_columns(ticker_text(), ticker_text("new_ticker")), ["from_date"])
