"""Files of real trades: fills, or positions from which they follow."""

import datetime as dt
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import DataError, one_line
from pipelines.nightly.settings import filled_by

_COLUMNS: Final = {
    "fills": ("session", "ticker", "shares", "price"),
    "positions": ("session", "ticker", "shares"),
}


def given_trades(config: Config) -> pl.DataFrame | None:
    """Read the file that says which trades the account has made; None if the config names none.

    DataError if the file is missing or wrong, as for `read_trades`.
    """
    kind, account = filled_by(config), config.nightly.account
    path = account.fills or account.positions
    if kind == "rule" or path is None:
        return None
    return read_trades(Path(path), kind, f"nightly.account.{kind}")


def read_trades(path: Path, kind: Literal["fills", "positions"], setting: str) -> pl.DataFrame:
    """Read a CSV file of fills (session, ticker, shares, price, perhaps fee) or positions (without a price).

    Returned are these columns and ``line``, the number of each row's line; a fee that is left out is 0, and
    so is the price of a fill of 0 shares, which books a fee alone. A file with a header and no rows is valid.
    DataError if the file is missing, lacks a column, or a line is wrong; the sentence names the line.
    """
    needed = _COLUMNS[kind]
    if not path.is_file():
        raise DataError(
            f"There is no file of {kind} at {path}; check {setting}, or write a file that begins with the "
            f"line {','.join(needed)}."
        )
    try:
        text = pl.read_csv(path, infer_schema=False)
        text = text.rename({name: name.strip().lower() for name in text.columns})
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a CSV file of {kind} ({one_line(error)}).") from None
    if missing := [name for name in needed if name not in text.columns]:
        raise DataError(
            f"{path} has no column {' and no column '.join(missing)}; a file of {kind} has the columns "
            f"{', '.join(needed)}{' and perhaps fee' if kind == 'fills' else ''}."
        )
    rows = text.with_row_index("line", offset=2).with_columns(pl.col(*needed).str.strip_chars())
    absent = [
        pl.lit(None, dtype=pl.String).alias(name) for name in ("price", "fee") if name not in rows.columns
    ]
    rows = rows.with_columns(absent).filter(~pl.all_horizontal(pl.col(*needed).fill_null("") == ""))
    numbers = {name: pl.col(name).cast(pl.Float64, strict=False) for name in ("shares", "price", "fee")}
    day = pl.col("session").str.to_date("%Y-%m-%d", strict=False)
    priced = numbers["price"].is_finite() & (numbers["price"] > 0) if kind == "fills" else pl.lit(value=True)
    fee_left_out = pl.col("fee").fill_null("").str.strip_chars() == ""
    rules = {
        "session": (day.is_not_null(), "a date such as 2026-06-02"),
        "ticker": (pl.col("ticker").fill_null("") != "", "a ticker"),
        "shares": (numbers["shares"].is_finite(), "a number, negative for sales or short positions"),
        "price": (priced | (numbers["shares"] == 0), "a number above 0"),
        "fee": (fee_left_out | numbers["fee"].is_finite(), "a number, or left out"),
    }
    for name, (holds, wanted) in rules.items():
        wrong = rows.filter(~holds.fill_null(value=False))
        if wrong.height:
            line, given = wrong.select("line", name).row(0)
            raise DataError(
                f"Line {line} of {path} has the {name} {given or 'nothing'!r}; it must be {wanted}."
            )
    if (
        kind == "positions"
        and (twice := rows.filter(rows.select("session", "ticker").is_duplicated())).height
    ):
        line, ticker = twice.select("line", "ticker").row(-1)
        raise DataError(f"Line {line} of {path} lists {ticker} a second time in its session; keep one line.")
    read = rows.select("line", day, "ticker", *(number.fill_null(0.0) for number in numbers.values()))
    return read.sort("session", "line")


def place_trades(
    trades: pl.DataFrame,
    path: Path,
    sessions: Sequence[dt.date],
    firms: Sequence[str],
    known: Collection[str],
) -> pl.DataFrame:
    """Add the places ``t`` of the session and ``n`` of the firm, which ``known`` firms beyond ``firms`` get.

    DataError if a session has no prices, or nobody has heard of a ticker.
    """
    row, column = ({one: at for at, one in enumerate(names)} for names in (sessions, firms))
    for ticker in sorted(set(trades["ticker"]) - set(firms)):
        if ticker not in known:
            line = trades.filter(pl.col("ticker") == ticker)["line"][0]
            raise DataError(
                f"Line {line} of {path} has the ticker {ticker}, which the prices of the lake do not have; "
                "correct it, record its new name (source.renames), or add it to the data."
            )
        column[ticker] = len(column)
    unknown = trades.filter(~pl.col("session").is_in(list(sessions)))
    if unknown.height:
        line, day = unknown.select("line", "session").row(0)
        raise DataError(
            f"Line {line} of {path} has the session {day}, which the prices of the lake do not have; "
            f"they reach from {sessions[0]} to {sessions[-1]}."
        )
    return trades.with_columns(
        t=pl.Series([row[day] for day in trades["session"]], dtype=pl.Int64),
        n=pl.Series([column[ticker] for ticker in trades["ticker"]], dtype=pl.Int64),
    )


def grid(
    trades: pl.DataFrame, value: pl.Expr, shape: tuple[int, int]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Sum a value over the trades of each session and firm, shape (T, N)."""
    out_TN = np.zeros(shape)
    at = (trades["t"].to_numpy(), trades["n"].to_numpy())
    np.add.at(out_TN, at, trades.select(value.cast(pl.Float64)).to_series().to_numpy())
    return out_TN
