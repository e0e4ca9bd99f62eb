"""Tickers: the form in which they are stored, and a config's list of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.columns import TICKER_PATTERN
from pipelines.settings import RELATIVE_PATHS

_ISIN = re.compile(r"[A-Z]{2}[A-Z0-9]{9}[0-9]")


def read_tickers(given: Sequence[str] | str) -> tuple[str, ...]:
    """Return the tickers in the given order, without duplicates.

    Parameters
    ----------
    given
        Tickers, or the path of a CSV file with a ``ticker`` column; ``~`` and environment variables are
        expanded.

    Raises
    ------
    ConfigError
        If there is no ticker, or one is invalid.
    DataError
        If the file is missing, unreadable or has no ``ticker`` column.
    """
    tickers = _read(given) if isinstance(given, str) else [str(ticker).strip() for ticker in given]
    where = f"source.tickers ({given})" if isinstance(given, str) else "source.tickers"
    if not tickers:
        raise ConfigError(f"{where} is empty; give at least one ticker, or a CSV file with a ticker column.")
    for ticker in tickers:
        if not re.fullmatch(TICKER_PATTERN, ticker) or ".." in ticker:
            raise ConfigError(
                f"{where} holds {ticker!r}, which is not a ticker; use letters, digits and . - _ ^ = only."
            )
        if _ISIN.fullmatch(ticker):
            raise ConfigError(f"{where} holds {ticker!r}, which is an ISIN; give the ticker instead.")
    return tuple(dict.fromkeys(tickers))


def plain_tickers(ticker: pl.Expr) -> pl.Expr:
    """Write tickers with letters, digits and ``. - _ ^ =`` alone.

    ``AAPL US Equity`` is AAPL.US, ``BTC/USDT`` is BTC-USDT, ``'600519`` is 600519, and any other sign becomes
    ``_``, as in M&M.NS, which is M_M.NS. What looks like a path is unchanged, so that the contract of the
    prices rejects it.
    """
    bloomberg = r"^([A-Za-z0-9./-]+) ([A-Z]{2}) (?i:equity)$"
    looks_odd = ~ticker.str.contains(TICKER_PATTERN)
    is_path = ticker.str.contains(r"^[/~]|/.*/|[/\\]$|\\|\.\.|[\x00-\x1f<>\"]")
    plain = (
        ticker.str.replace(r"^['$]", "")
        .str.replace(bloomberg, "${1}.${2}")
        .str.replace_all("/", "-", literal=True)
        .str.replace_all(r"[ &:+,'()$#@!*|;]+", "_")
    )
    return pl.when(looks_odd & ~is_path).then(plain).otherwise(ticker)


def _read(path: str) -> list[str]:
    file = Path(os.path.expandvars(path)).expanduser()
    if not file.is_file():
        raise DataError(f"there is no file {file}: correct source.tickers ({RELATIVE_PATHS})")
    try:
        rows = pl.read_csv(file, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file} cannot be read as CSV ({reason}): repair or replace it") from error
    if "ticker" not in rows.columns:
        raise DataError(f"{file} has no column 'ticker', but {', '.join(rows.columns)}: rename one of them")
    return [ticker.strip() for ticker in rows["ticker"].drop_nulls() if ticker.strip()]
