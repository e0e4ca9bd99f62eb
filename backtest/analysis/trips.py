"""Round trips: what each position earned from the trade that opened it to the trade that closed it."""

import polars as pl


def round_trips(positions: pl.DataFrame) -> pl.DataFrame:
    """Split the positions of a book into round trips, in order of ticker and entry.

    A trip begins when a firm's weight leaves zero or changes its sign, and ends when it is zero again or has
    the other sign; trades in between change its size. The profit of a session belongs to the position before
    its trades (at entry, to the new one). Costs belong to the position after the trades, or to the one that
    they close. So the trips add up to the book: no profit and no cost is lost or counted twice.

    Parameters
    ----------
    positions
        The positions of one book in any order: date, ticker, weight (after the trades of the session, of its
        NAV), pnl (before costs) and cost (both of the NAV before). A firm has a row in every session in which
        it is held or traded. Null and NaN count as 0.

    Returns
    -------
    ticker, side (long or short), entry and exit (dates of the first and the last trade; exit is null while
    the position is open), sessions (after whose start it was held), weight (the largest absolute one), gross,
    cost and net: sums over its sessions of pnl, cost and their difference. Everything is known at the close
    of ``exit``.

    >>> import datetime as dt
    >>> days = [dt.date(2024, 1, day) for day in (2, 3, 4)]
    >>> held = {"weight": [0.5, 0.6, 0.0], "pnl": [0.0, 0.02, -0.01], "cost": [0.001, 0.0, 0.001]}
    >>> trip = round_trips(pl.DataFrame({"date": days, "ticker": "A"} | held)).row(0, named=True)
    >>> trip["side"], str(trip["exit"]), trip["sessions"], trip["weight"], round(trip["net"], 6)
    ('long', '2024-01-04', 2, 0.6, 0.008)
    """
    amounts = (
        pl.col(name).cast(pl.Float64).fill_nan(0.0).fill_null(0.0) for name in ("weight", "pnl", "cost")
    )
    after, before = pl.col("weight").sign(), pl.col("before")
    rows = (
        positions.select("date", "ticker", *amounts)
        .sort("ticker", "date")
        .with_columns(before=after.shift(1).over("ticker").fill_null(0.0))
        .filter((before != 0) | (after != 0))
        .with_columns(opens=(after != 0) & (after != before), ends=(before != 0) & (after != before))
        .with_columns(trip=pl.col("opens").cum_sum())
    )
    turned = pl.col("opens") & pl.col("ends")  # from long to short or back in one session
    earned = rows.group_by(pl.col("trip") - turned.cast(pl.UInt32)).agg(
        exit=pl.col("date").filter("ends").max(),
        sessions=(before != 0).sum().cast(pl.Int64),
        gross=pl.col("pnl").sum(),
    )
    opened = rows.group_by("trip").agg(
        pl.col("ticker").first(),
        side=pl.when(after.first() > 0).then(pl.lit("long")).otherwise(pl.lit("short")),
        entry=pl.col("date").first(),
        weight=pl.col("weight").abs().max(),
        cost=pl.col("cost").sum(),
    )
    names = ("ticker", "side", "entry", "exit", "sessions", "weight", "gross", "cost")
    trips = opened.join(earned, on="trip").sort("trip").select(names)
    return trips.with_columns(net=pl.col("gross") - pl.col("cost"))
