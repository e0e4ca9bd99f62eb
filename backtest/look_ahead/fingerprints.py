"""Fingerprints of the whole sample: columns that were scaled by its maximum, minimum, mean or deviation.

If practically every firm has exactly the same maximum and reaches it only once, the column was divided by its
full-sample maximum. In contrast, the ratio to a running maximum reaches its bound at every new high; a
bounded indicator reaches it several times or never; and ages and counts, which only rise or fall, have their
extremes on a firm's first and last rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, conclude

MOST: Final = 0.5
"""Minimum share of firms with the exact moments of a z-score."""
EXTREME: Final = 0.9
"""Minimum share of firms with the same extreme, among those that do not have it on their first or last
row."""
BOTH_HALVES: Final = 0.2
"""Maximum share of firms, among those that reach the common extreme, that may reach it in both halves of
their sample. If a causal column reaches it with probability p in each half, nine of ten firms reach it at
all only if p is 0.68; half of these firms then reach it in both halves."""
TIMES: Final = 5
"""Maximum number of rows at the extreme, in the median of the firms: a scaled column reaches it once, and
again only where two prices are equal."""
ROWS: Final = 60
"""Minimum number of rows per firm."""
DISTINCT: Final = 20
"""Minimum number of distinct values per firm: flags and small counts often reach their bounds."""
_COMMON: Final = 0.9
"""Minimum share of dates with one value for all firms, for a column of the market."""
RANKED: Final = 0.03
"""Maximum interquartile range of the bounds of a date, relative to the upper one, for a rank."""
EXACT: Final = 1e-6
STANDARD: Final = 2e-3
"""Tolerance for a firm's mean 0 and deviation 1: files are rounded, and deviations divide by n or n - 1."""
POOLED: Final = 1e-5
"""The same for all firms together, whose mean chance brings near 0: standard-normal noise on 100,000 rows
has a mean of 0.003."""
SLOW: Final = 0.97
"""Minimum autocorrelation of a column to which the rule for smoothed columns applies: an average of a price
has 0.99, and the rank of a five-day return 0.8."""
SMOOTH_FROM: Final = 0.85
CONVERGED: Final = 0.25
"""For a smoothed column, the interquartile range of the firms' maxima over the whole sample is at most this
fraction of that over the first half, because every maximum converges to the common number."""
_PRICES: Final = ("close", "open", "high", "low")
_KINDS: Final = {
    "maximum": (
        "Full-sample maximum",
        "has the maximum {value:g} over the whole sample for {share:.0%} of the firms",
    ),
    "minimum": (
        "Full-sample minimum",
        "has the minimum {value:g} over the whole sample for {share:.0%} of the firms",
    ),
    "standardised": (
        "Full-sample z-score",
        "has mean 0 and deviation 1 over the whole sample for {share:.0%} of the firms",
    ),
    "demeaned": ("Full-sample mean", "has mean 0 over the whole sample for {share:.0%} of the firms"),
    "scaled": ("Full-sample deviation", "has deviation 1 over the whole sample for {share:.0%} of the firms"),
    "robust": (
        "Full-sample robust z-score",
        "has median 0 and one interquartile range over the whole sample for {share:.0%} of the firms",
    ),
    "pooled": ("Full-sample z-score", "has mean 0 and deviation 1 over all firms and sessions"),
    "smoothed": ("Full-sample maximum", "has maxima that converge to {value:g} at the end of the sample"),
}
"""Kind -> what it is, and what the column has."""


def check(data: Delivery) -> Result:
    """Look for normalisation of prices and inputs by statistics of the whole sample."""
    prices = data.rows("prices")
    columns = {
        f"price {name}": prices.select("ticker", "date", value=name).drop_nulls()
        for name in _PRICES
        if prices[name].null_count() < prices.height
    }
    if data.inputs:
        inputs = data.rows("inputs")
        columns |= {f"input {name}": inputs.filter(pl.col("name") == name) for name in data.inputs}
    return conclude(
        (whole_sample_scale(name, frame) for name, frame in columns.items()),
        "None of {n} price and input columns is scaled by a maximum, minimum, mean or standard deviation of "
        "the whole sample.",
    )


def whole_sample_scale(name: str, frame: pl.DataFrame) -> Finding:
    """Check that no statistic of a firm's whole sample is exact by construction.

    Parameters
    ----------
    name
        What the sentence calls the column.
    frame
        date, ticker, value.
    """
    if _is_common(frame):
        return Finding("scale", "skipped", "it has one value for all firms of a date", subject=name)
    firms = _by_firm(frame)
    if firms.height < 3:
        few = f"fewer than 3 firms have {ROWS} values, {DISTINCT} of them different"
        return Finding("scale", "skipped", few, subject=name)
    found = [*_extremes(firms), *_moments(firms, frame)]
    if not found and not name.startswith("price") and not _is_ranked(frame):
        found = [*_smoothed(firms)]
    if not found:
        return Finding("scale", "pass", subject=name)
    kind, value, share = found[0]
    rule, has = _KINDS[kind]
    sentence = (
        f"{rule}: {name} {has.format(value=value, share=share)}. Every earlier value was scaled with data "
        "from the end of the sample."
    )
    return Finding(kind, "fail", sentence, share, subject=name)


def _is_common(frame: pl.DataFrame) -> bool:
    """Whether a column is one number for all firms of a date: they have the same extremes, however scaled."""
    values = frame.group_by("date").agg(values=pl.col("value").n_unique())
    return bool(values.select((pl.col("values") <= 1).mean()).item() >= _COMMON) if frame.height else True


def _is_ranked(frame: pl.DataFrame) -> bool:
    """Whether a column has the same bounds on every date, as a rank has, so that maxima tell no scale."""
    ends = frame.group_by("date").agg(high=pl.col("value").max(), low=pl.col("value").min())
    size = max(abs(_median(ends["high"])), 1e-12)
    return max(_interquartile(ends["high"]), _interquartile(ends["low"])) <= RANKED * size


def _by_firm(frame: pl.DataFrame) -> pl.DataFrame:
    early = pl.col("date") <= pl.col("date").median().over("ticker")
    value = pl.col("value")
    return (
        frame.sort("ticker", "date")
        .with_columns(early=early)
        .group_by("ticker")
        .agg(
            rows=pl.len(),
            distinct=value.n_unique(),
            maximum=value.max(),
            minimum=value.min(),
            mean=value.mean(),
            deviation=value.std(ddof=0),
            median=value.median(),
            quartiles=value.quantile(0.75, "linear") - value.quantile(0.25, "linear"),
            slow=pl.corr(value, value.shift(1)),
            first=value.first(),
            last=value.last(),
            monotone=(value.diff().ge(0).all() | value.diff().le(0).all()).fill_null(value=False),
            at_maximum=(value == value.max()).sum(),
            at_minimum=(value == value.min()).sum(),
            maximum_1=value.filter(pl.col("early")).max(),
            maximum_2=value.filter(~pl.col("early")).max(),
            minimum_1=value.filter(pl.col("early")).min(),
            minimum_2=value.filter(~pl.col("early")).min(),
        )
        .filter((pl.col("rows") >= ROWS) & (pl.col("distinct") >= DISTINCT))
        .sort("ticker")
    )


_Found = Iterator[tuple[str, float, float]]


def _extremes(firms: pl.DataFrame) -> _Found:
    """Yield kind, value and share of firms of a common extreme."""
    firms = firms.filter(~pl.col("monotone"))
    for kind in ("maximum", "minimum"):
        inner = firms.filter((pl.col(kind) != pl.col("first")) & (pl.col(kind) != pl.col("last")))
        if inner.height < 3:
            continue
        top = inner[kind].round_sig_figs(6).value_counts(sort=True).row(0)
        value, share = float(top[0]), top[1] / inner.height

        def is_near(column: str, value: float = value) -> pl.Expr:
            return (pl.col(column) - value).abs() <= EXACT * max(abs(value), 1.0)

        hit = inner.filter(is_near(kind))
        if share < EXTREME or _median(hit[f"at_{kind}"]) > TIMES:
            continue
        if hit.select((is_near(f"{kind}_1") & is_near(f"{kind}_2")).mean()).item() <= BOTH_HALVES:
            yield kind, value, share


def _moments(firms: pl.DataFrame, frame: pl.DataFrame) -> _Found:
    deviation, rows, size = pl.col("deviation"), pl.col("rows"), pl.col("quartiles")
    unbiased = deviation * (rows / (rows - 1)).sqrt()

    def is_one(tolerance: float) -> pl.Expr:
        return ((deviation - 1).abs() <= tolerance) | ((unbiased - 1).abs() <= tolerance)

    marks = {
        "standardised": (pl.col("mean").abs() <= STANDARD) & is_one(STANDARD),
        "scaled": is_one(EXACT),
        "robust": (pl.col("median").abs() <= EXACT)
        & (((size - 1.0).abs() <= STANDARD) | ((size - 1.349).abs() <= STANDARD)),
    }
    for kind, exact in marks.items():
        share = firms.select(exact.mean()).item() or 0.0
        if share >= MOST:
            yield kind, 0.0, share
            return
    demeaned = firms.select((pl.col("mean").abs() <= EXACT * deviation).mean()).item() or 0.0
    if demeaned >= EXTREME:  # chance gives a mean of a deviation over the root of the rows
        yield "demeaned", 0.0, demeaned
        return
    value = frame["value"]
    mean, spread = float(value.mean() or 0.0), float(value.std() or 0.0)  # type: ignore[arg-type]
    if abs(mean) <= POOLED and abs(spread - 1) <= POOLED:
        by_date = frame.group_by("date").agg(pl.col("value").mean().abs())["value"]
        if _median(by_date) > 10 * STANDARD:  # else it was standardised within its dates
            yield "pooled", 0.0, 1.0


def _smoothed(firms: pl.DataFrame) -> _Found:
    """Find moving averages of a column that was divided by its maximum: all maxima are just below 1."""
    firms = firms.filter(~pl.col("monotone") & (pl.col("slow").fill_nan(None) >= SLOW))
    if firms.height < 10:
        return
    spread, spread_1 = (_interquartile(firms[name]) for name in ("maximum", "maximum_1"))
    converged = spread_1 > 0 and spread <= CONVERGED * spread_1
    if converged and SMOOTH_FROM <= _median(firms["maximum"]) <= 1.0 + EXACT:
        yield "smoothed", 1.0, 1.0


def _median(values: pl.Series) -> float:
    return float(values.median() or 0.0)  # type: ignore[arg-type]


def _interquartile(values: pl.Series) -> float:
    high, low = values.quantile(0.75), values.quantile(0.25)
    return float(high - low) if high is not None and low is not None else 0.0
