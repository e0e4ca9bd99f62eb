"""The account of the nights for a terminal: what it earned, what it holds, and where it differs."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.format import PERCENT, Kind, json_rows
from pipelines.lake.lake import Lake
from pipelines.nightly.book.account import account_tables, earned
from pipelines.nightly.book.trades import read_trades
from pipelines.nightly.result import known_renames
from pipelines.terminal import text_table

_SESSIONS, _NAMES = 10, 10  # rows that a terminal shows of sessions, and of names with a shortfall
_MONEY: Final = Kind(2)
_ROUNDING: Final = 1e-6  # shares by which two counts may differ and be the same


def collect_account(config: Config, lake: Lake) -> dict[str, Any]:
    """Read the account of a config: totals, all sessions, positions of the newest one, shortfall by name.

    DataError if no night has booked an account.
    """
    own = pl.col("config") == config.name
    last: dt.date | None = max(lake.rows("profits", ["session"], own)["session"].to_list(), default=None)
    if last is None:
        raise DataError(
            f"The lake {lake.root} has no account of {config.name}; a night books it, so play one with "
            "'peerglass nightly CONFIG'."
        )
    tables = account_tables(lake, config.name, last, known_renames(lake, last))
    newest = tables["profits"].row(-1, named=True)
    kept = ("filled_by", "capital", "nav", "gross", "backtest_nav", "cash")
    return {
        "config": config.name,
        "session": last,
        **{name: newest[name] for name in kept},
        **earned(tables["profits"]),
        "sessions": json_rows(tables["profits"].drop("config", "capital", "filled_by")),
        "positions": json_rows(tables["positions"].drop("config", "session").filter(pl.col("value") != 0)),
        "shortfall": json_rows(tables["shortfall"]),
    }


def describe_account(found: Mapping[str, Any]) -> str:
    """Format an account for a terminal."""
    filled = {
        "rule": "the rule of backtest.execution",
        "fills": "a file of fills",
        "positions": "a file of positions",
    }
    backtest = found["backtest_nav"]
    behind = None if backtest is None else backtest - found["nav"]
    facts = {
        "filled by": filled[found["filled_by"]],
        "NAV, net": f"{_MONEY.text(found['nav'])} of {_MONEY.text(found['capital'])} at the start",
        "NAV, gross": _MONEY.text(found["gross"]),
        "NAV of the backtest": f"{_MONEY.text(backtest)} (shortfall {_MONEY.text(behind)})",
        "cash": _MONEY.text(found["cash"]),
        "P&L of the session": _earned(found["pnl"], found["return"]),
        "P&L of the month": _earned(found["pnl_month"], found["return_month"]),
    }
    lines = [
        f"{found['config']}, account at the close of {found['session']}",
        *text_table(facts.items(), left=2),
    ]
    shown = found["sessions"][-_SESSIONS:]
    heads = "session, P&L, revision, NAV net, NAV gross, backtest, fees, charges"
    cells = _cells(shown, "session, pnl, revision, nav, gross, backtest_nav, fee, charge")
    lines += [
        f"last {len(shown)} of {len(found['sessions'])} sessions",
        *text_table(cells, heads.split(", ")),
    ]
    cells = _cells(
        sorted(found["positions"], key=lambda row: -abs(row["value"])), "ticker, shares, price, value, pnl"
    )
    lines += [f"{len(cells)} positions", *text_table(cells, ("ticker", "shares", "price", "value", "P&L"))]
    apart = [row for row in found["shortfall"] if abs(row["shortfall"]) >= 0.005][:_NAMES]
    if backtest is not None and not apart:
        lines.append("no shortfall against the backtest")
    elif backtest is not None:
        cells = _cells(apart, "ticker, backtest_pnl, pnl, shortfall")
        lines.append("largest shortfalls against the backtest")
        lines += text_table(cells, ("ticker", "backtest", "account", "shortfall"))
    return "\n".join(lines)


def _cells(rows: Sequence[Mapping[str, Any]], names: str) -> list[tuple[str, ...]]:
    """Columns of rows, which are amounts but for the first one."""
    first, *amounts = names.split(", ")
    return [(str(row[first]), *(_MONEY.text(row[name]) for name in amounts)) for row in rows]


def _earned(pnl: float, over_nav: float | None) -> str:
    return f"{_MONEY.with_sign.text(pnl)} ({PERCENT.at(2).with_sign.text(over_nav)}%)"


def reconcile_account(config: Config, lake: Lake, path: Path) -> dict[str, Any]:
    """Compare the newest session of a file of positions with the account: one row per difference.

    DataError if the file is wrong or has no session that the account has booked.
    """
    listed = read_trades(path, "positions", "the name of the file")
    sessions = lake.rows("profits", ["session"], pl.col("config") == config.name)["session"].to_list()
    session: dt.date | None = max(listed["session"].to_list(), default=None)
    if session is None or session not in sessions:
        booked = f"{min(sessions)} to {max(sessions)}" if sessions else "none"
        raise DataError(
            f"{path} lists positions of {session or 'no session'}, which the account of {config.name} has "
            f"not booked (booked: {booked}); give a file of a session that it has."
        )
    own = (pl.col("config") == config.name) & (pl.col("session") == session)
    held = lake.rows("positions", ["ticker", "shares", "price"], own)
    both = held.join(
        listed.filter(session=session).select("ticker", file="shares"), on="ticker", how="full", coalesce=True
    )
    both = both.with_columns(pl.col("shares", "file").fill_null(0.0)).select(
        "ticker", "file", account="shares", difference=pl.col("file") - pl.col("shares"), price="price"
    )
    both = both.filter((pl.col("file") != 0) | (pl.col("account") != 0))
    apart = both.filter(pl.col("difference").abs() > _ROUNDING).sort("ticker")
    rows = apart.with_columns(value=pl.col("difference") * pl.col("price"))
    return {
        "config": config.name,
        "session": session,
        "compared": both.height,
        "differences": json_rows(rows),
    }


def describe_reconciliation(found: Mapping[str, Any]) -> str:
    """Format the differences for a terminal."""
    rows, compared = found["differences"], found["compared"]
    head = f"{found['config']}, positions at the close of {found['session']}: "
    if not rows:
        return f"{head}all {compared} agree"
    names = "ticker, account, file, difference, value"
    table = text_table(_cells(rows, names), names.split(", "))
    return "\n".join([f"{head}{len(rows)} of {compared} differ", *table])
