"""The past of a book: rolling measures with their standard errors, months, times of stress, round trips.

Shape suffixes: T sessions, W sessions of a window, K = T - W + 1 windows.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from backtest.inference.means import critical_value, mean_test_lags
from features.arrays import FloatArray
from features.panel.periods import SESSIONS_PER_YEAR

Z = 1.96  # half-width of a band in standard errors: 95% for a normal estimate
LABELS = 4  # at least, that do not overlap: with fewer in a window, its mean has no error to be estimated
_WINDOWS = (126, 63)


def rolling_window(sessions: int) -> int:
    """Length of the window: 126 or 63 sessions if the test has four times as many, else a quarter of it."""
    for window in _WINDOWS:
        if sessions >= 4 * window:
            return window
    return max(2, sessions // 4)


def rolling_risk(book: pl.DataFrame, window: int, year: float = SESSIONS_PER_YEAR) -> pl.DataFrame:
    """Rolling net Sharpe ratio and volatility of one book, per year, with a row for each whole window.

    ``book`` has date, nav_net, and optionally excess_net, in order of time. NAV before the first session is
    1. Without excess_net the Sharpe ratio is that of the returns. Windows with an unknown return are null.
    The columns are date (its last session), sharpe, sharpe_error, volatility and volatility_error. With p
    sessions in a year, and mean m, standard deviation s (ddof 1), skewness g and kurtosis k of the W returns
    of a window: ``sharpe = sqrt(p) m / s``, its error ``sqrt(p (1 - g m/s + (k - 1)/4 (m/s)^2) / W)``
    (Mertens 2002), ``volatility = sqrt(p) s``, and its error ``volatility sqrt((k - 1) / (4 W))``. Both
    errors assume returns without autocorrelation.
    """
    nav_T = book["nav_net"].cast(pl.Float64).fill_nan(None).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return_T = nav_T / np.concatenate([[1.0], nav_T[:-1]]) - 1.0
        excess_T = (
            book["excess_net"].cast(pl.Float64).to_numpy() if "excess_net" in book.columns else return_T
        )
        mean_K, std_K, skew_K, kurt_K = _moments(_windows(excess_T, window))
        ratio_K = np.where(std_K > 0, mean_K / std_K, np.nan)
        variance_K = 1.0 - skew_K * ratio_K + 0.25 * (kurt_K - 1.0) * ratio_K**2
        _, risk_K, _, tail_K = _moments(_windows(return_T, window))
        return pl.DataFrame(
            {
                "date": book["date"][window - 1 :],
                "sharpe": np.sqrt(year) * ratio_K,
                "sharpe_error": np.sqrt(year * np.maximum(variance_K, 0.0) / window),
                "volatility": np.sqrt(year) * risk_K,
                "volatility_error": np.sqrt(year) * risk_K * np.sqrt((tail_K - 1.0) / (4.0 * window)),
            }
        ).with_columns(pl.exclude("date").fill_nan(None))


def rolling_mean_ic(series: pl.DataFrame, window: int, overlap: int) -> pl.DataFrame:
    """Rolling mean of the rank ICs of one model with the half-width of its 95% interval.

    ``series`` has date and rank_ic in order of time, and the labels of ``overlap`` consecutive dates overlap.
    At least half of the dates of a window must be known; unknown ICs are left out of the mean and of the
    autocovariances. The columns are date (the last one of a window), rank_ic and half, whose errors, lags
    and critical values are those of `backtest.inference.means.mean_test`; half is null in windows of fewer
    than `LABELS` labels that do not overlap.
    """
    lags = mean_test_lags(window, overlap)
    critical = critical_value(window, lags) if window >= LABELS * overlap else np.nan
    ic_T = series["rank_ic"].cast(pl.Float64).fill_nan(None).to_numpy()
    ic_KW = _windows(ic_T, window)
    known_KW = np.isfinite(ic_KW)
    count_K = known_KW.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_K = np.where(known_KW, ic_KW, 0.0).sum(axis=1) / count_K
        centred_KW = np.where(known_KW, ic_KW - mean_K[:, None], 0.0)
        total_K = (centred_KW**2).sum(axis=1)
        for lag in range(1, lags + 1):
            weight = 1.0 - lag / (lags + 1.0)
            total_K = total_K + 2.0 * weight * (centred_KW[:, lag:] * centred_KW[:, :-lag]).sum(axis=1)
        half_K = critical * np.sqrt(np.maximum(total_K, 0.0)) / count_K
    enough_K = 2 * count_K >= window
    return pl.DataFrame(
        {
            "date": series["date"][window - 1 :],
            "rank_ic": np.where(enough_K, mean_K, np.nan),
            "half": np.where(enough_K, half_K, np.nan),
        }
    ).with_columns(pl.exclude("date").fill_nan(None))


def monthly_returns(book: pl.DataFrame) -> pl.DataFrame:
    """Net return of one book by month and by year: year, month (1 to 12; 0 is the year) and net.

    ``book`` has date and nav_net in order of time. NAV before the first session is 1. Months and years at the
    ends of the test may be partial; after the book's ruin, net is null.
    """
    path = book.select("date", nav=pl.col("nav_net").cast(pl.Float64)).with_columns(
        year=pl.col("date").dt.year().cast(pl.Int64), month=pl.col("date").dt.month().cast(pl.Int64)
    )
    parts = []
    for keys in (["year", "month"], ["year"]):
        ends = path.group_by(keys, maintain_order=True).agg(pl.col("nav").last())
        grown = pl.col("nav") / pl.col("nav").shift(1, fill_value=1.0)
        ends = ends.with_columns(net=(grown - 1.0).fill_nan(None))
        parts.append(ends if "month" in keys else ends.with_columns(month=pl.lit(0, dtype=pl.Int64)))
    return pl.concat([part.select("year", "month", "net") for part in parts]).sort("year", "month")


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
"""Known periods of market stress.

Most windows run from a closing high of the S&P 500 to the low that followed. Two are known for what they did
to equity portfolios rather than to the index: the week of August 2007 in which quantitative funds unwound
their books (Khandani and Lo 2011, What happened to the quants in August 2007?), and the spring of 2009 in
which past losers recovered (Daniel and Moskowitz 2016, Momentum crashes). China's fall of 2015 runs from the
high of the Shanghai Composite to its low.
"""


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


def _windows(x_T: FloatArray, window: int) -> FloatArray:
    """Every window of a series, shape (K, W); none if the series is shorter."""
    return sliding_window_view(x_T, window) if len(x_T) >= window else np.empty((0, window))


def _moments(x_KW: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Mean, standard deviation (ddof 1), skewness and kurtosis (not excess) of each window, shape (K,)."""
    window = x_KW.shape[1]
    mean_K = x_KW.mean(axis=1)
    centred_KW = x_KW - mean_K[:, None]
    square_KW = centred_KW * centred_KW  # a power of an array is slow
    second_K = square_KW.mean(axis=1)
    third_K, fourth_K = (square_KW * centred_KW).mean(axis=1), (square_KW * square_KW).mean(axis=1)
    std_K = np.sqrt(second_K * window / (window - 1))
    return mean_K, std_K, third_K / second_K**1.5, fourth_K / second_K**2
