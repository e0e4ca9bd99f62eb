"""What a book returned in known periods of market stress.

Most windows run from a closing high of the S&P 500 to the low that followed. Two are known for what they did
to equity portfolios rather than to the index: the week of August 2007 in which quantitative funds unwound
their books (Khandani and Lo 2011, What happened to the quants in August 2007?), and the spring of 2009 in
which past losers recovered (Daniel and Moskowitz 2016, Momentum crashes). China's fall of 2015 runs from the
high of the Shanghai Composite to its low.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Final

import polars as pl


@dataclass(frozen=True, slots=True)
class Crisis:
    """A period of stress, from the close of its first date to the close of its last."""

    name: str
    first: dt.date
    last: dt.date


CRISES: Final = tuple(
    Crisis(name, dt.date.fromisoformat(first), dt.date.fromisoformat(last))
    for name, first, last in (
        ("Crash of 1987", "1987-08-25", "1987-12-04"),
        ("Gulf War", "1990-07-16", "1990-10-11"),
        ("Russia and LTCM", "1998-07-17", "1998-08-31"),
        ("Dot-com bust", "2000-03-24", "2002-10-09"),
        ("September 11", "2001-09-10", "2001-09-21"),
        ("Quant unwinding", "2007-08-03", "2007-08-09"),
        ("Financial crisis", "2007-10-09", "2009-03-09"),
        ("Momentum crash", "2009-03-09", "2009-05-29"),
        ("Flash crash and Greece", "2010-04-23", "2010-07-02"),
        ("Euro crisis", "2011-04-29", "2011-10-03"),
        ("China's fall", "2015-06-12", "2015-08-26"),
        ("Oil and China", "2015-11-03", "2016-02-11"),
        ("Volatility spike", "2018-01-26", "2018-02-08"),
        ("End of 2018", "2018-09-20", "2018-12-24"),
        ("Covid crash", "2020-02-19", "2020-03-23"),
        ("Rates and inflation", "2022-01-03", "2022-10-12"),
        ("Yen carry trades", "2024-07-16", "2024-08-05"),
        ("Tariffs", "2025-02-19", "2025-04-08"),
    )
)


def crisis_returns(path: pl.DataFrame) -> pl.DataFrame:
    """Return of one book, and perhaps of a benchmark, in every crisis that its sessions cover as a whole.

    Parameters
    ----------
    path
        Values in order of time: date, net, and optionally other columns of values. The value at the close of
        a crisis' first or last date is the last one on or before it.

    Returns
    -------
    crisis, first, last, the return of every column of values (null where one is unknown), and depth: the
    largest fall of ``net`` from a peak within the crisis. No row for a crisis that begins before the first
    session or ends after the last one.

    >>> days = pl.date_range(dt.date(2020, 2, 1), dt.date(2020, 4, 1), eager=True)
    >>> path = pl.DataFrame({"date": days, "net": [1.0 - 0.001 * t for t in range(len(days))]})
    >>> crisis_returns(path).select("crisis", pl.col("net", "depth").round(4)).row(0)
    ('Covid crash', -0.0336, 0.0336)
    """
    days, values = path["date"], [name for name in path.columns if name != "date"]
    kinds = {
        "crisis": pl.String,
        "first": pl.Date,
        "last": pl.Date,
        **dict.fromkeys((*values, "depth"), pl.Float64),
    }
    rows = []
    for one in CRISES if path.height else ():
        if days[0] <= one.first and one.last <= days[-1]:
            start, stop = (days.search_sorted(day, side="right") for day in (one.first, one.last))
            inside = path.slice(start - 1, stop - start + 1)
            nav = pl.col("net")
            row = inside.select(
                *(pl.col(v).last() / pl.col(v).first() - 1 for v in values),
                depth=(1 - nav / nav.cum_max()).max(),
            )
            rows.append({"crisis": one.name, "first": one.first, "last": one.last, **row.row(0, named=True)})
    return pl.DataFrame(rows, schema=kinds)
