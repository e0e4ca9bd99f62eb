"""Full-sample fingerprints: columns that were scaled by statistics of the whole sample.

The check reads prices and the user's own inputs, firm by firm. If practically every firm has exactly the same
maximum and reaches it only once, the column was divided by its full-sample maximum. In contrast, the ratio
to a running maximum reaches its bound at every new high; a bounded indicator reaches it several times or
never; and ages and counts, which only rise or fall, have their extremes on a firm's first and last rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "fingerprints"
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
COMMON: Final = 0.9
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


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    column: str
    kind: str
    value: float
    share: float

    @property
    def sentence(self) -> str:
        share = f"{self.share:.0%} of the firms"
        return {
            "maximum": f"{self.column} has the maximum {self.value:g} over the whole sample for {share}",
            "minimum": f"{self.column} has the minimum {self.value:g} over the whole sample for {share}",
            "standardised": f"{self.column} has mean 0 and deviation 1 over the whole sample for {share}",
            "robust": f"{self.column} has median 0 and one interquartile range over the whole sample for "
            f"{share}",
            "pooled": f"{self.column} has mean 0 and deviation 1 over all firms and sessions",
            "smoothed": f"{self.column} has maxima that converge to {self.value:g} at the end of the sample",
        }[self.kind]


def check(subject: Subject) -> Result:
    """Look for normalisation by a full-sample maximum, minimum, mean or standard deviation."""
    columns = _columns(subject)
    findings: list[_Fingerprint] = []
    rows = []
    for name, frame in columns.items():
        if _is_common(frame):
            continue
        stats = _by_firm(frame)
        if stats.height < 3:
            continue
        rows.append(_evidence(name, stats))
        findings += [*_extremes(name, stats), *_standardised(name, stats, frame)]
    named = {one.column for one in findings}
    for name, frame in columns.items():
        if (
            name not in named
            and name.startswith("input ")
            and not _is_common(frame)
            and not _is_ranked(frame)
        ):
            findings += _smoothed(name, _by_firm(frame))
    evidence = pl.DataFrame(rows)
    if not findings:
        return Result(
            NAME,
            "pass",
            f"None of {len(columns)} price and input columns is scaled by a maximum, minimum, mean or "
            "standard deviation of the whole sample.",
            evidence,
        )
    first = findings[0]
    others = [one.column for one in findings[1:] if one.column != first.column]
    also = f"; the same holds for {', '.join(dict.fromkeys(others))}" if others else ""
    what = "maximum" if first.kind in ("maximum", "smoothed") else first.kind
    rule = {
        "maximum": "Full-sample maximum",
        "minimum": "Full-sample minimum",
        "standardised": "Full-sample z-score",
        "pooled": "Full-sample z-score",
        "robust": "Full-sample robust z-score",
    }[what]
    return Result(
        NAME,
        "fail",
        f"{rule}: {first.sentence}{also}. Every earlier value was scaled with data from the end of the "
        "sample.",
        evidence,
    )


def _columns(subject: Subject) -> dict[str, pl.DataFrame]:
    """The columns to check, as frames of ticker, date and value."""
    prices, inputs = subject.rows("prices"), subject.rows("inputs") if subject.inputs else pl.DataFrame()
    columns = {
        f"price {name}": prices.select("ticker", "date", pl.col(name).alias("value")).drop_nulls()
        for name in _PRICES
        if prices[name].null_count() < prices.height
    }
    for name in subject.inputs:
        rows = inputs.filter(pl.col("name") == name)
        columns[f"input {name}"] = rows.select("ticker", "date", "value")
    return columns


def _is_common(frame: pl.DataFrame) -> bool:
    """Whether a column is one number for all firms of a date, such as the market's volatility.

    All firms then have the same extremes, whenever they were scaled.
    """
    values = frame.group_by("date").agg(pl.col("value").n_unique().alias("values"))
    return bool(values.select((pl.col("values") <= 1).mean()).item() >= COMMON)


def _is_ranked(frame: pl.DataFrame) -> bool:
    """Whether a column has the same bounds on every date, as a rank has, so that maxima tell no scale."""
    ends = frame.group_by("date").agg(pl.col("value").max().alias("high"), pl.col("value").min().alias("low"))
    size = max(abs(float(ends["high"].median() or 0.0)), 1e-12)  # type: ignore[arg-type]
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
            rises=value.diff().ge(0).all(),
            falls=value.diff().le(0).all(),
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


def _extremes(name: str, stats: pl.DataFrame) -> list[_Fingerprint]:
    findings = []
    stats = stats.filter(~(pl.col("rises") | pl.col("falls")).fill_null(value=False))
    for kind in ("maximum", "minimum"):
        inner = stats.filter((pl.col(kind) != pl.col("first")) & (pl.col(kind) != pl.col("last")))
        if inner.height < 3:
            continue
        value, share = _common(inner[kind])
        near = (pl.col(kind) - value).abs() <= EXACT * max(abs(value), 1.0)
        hit = inner.filter(near)
        if share < EXTREME or float(hit[f"at_{kind}"].median() or 0) > TIMES:  # type: ignore[arg-type]
            continue
        halves = [(pl.col(f"{kind}_{half}") - value).abs() <= EXACT * max(abs(value), 1.0) for half in (1, 2)]
        both = hit.select((halves[0] & halves[1]).mean()).item()
        if both <= BOTH_HALVES:
            findings.append(_Fingerprint(name, kind, value, share))
    return findings


def _common(extremes: pl.Series) -> tuple[float, float]:
    """The most frequent extreme (to six digits) and the share of firms with that extreme."""
    top = extremes.round_sig_figs(6).value_counts(sort=True).row(0)
    return float(top[0]), top[1] / len(extremes)


def _standardised(name: str, stats: pl.DataFrame, frame: pl.DataFrame) -> list[_Fingerprint]:
    unbiased = pl.col("deviation") * (pl.col("rows") / (pl.col("rows") - 1)).sqrt()
    unit = ((pl.col("deviation") - 1).abs() <= STANDARD) | ((unbiased - 1).abs() <= STANDARD)
    share = stats.select(((pl.col("mean").abs() <= STANDARD) & unit).mean()).item()
    if share >= MOST:
        return [_Fingerprint(name, "standardised", 0.0, share)]
    size = pl.col("quartiles")
    scaled = ((size - 1.0).abs() <= STANDARD) | ((size - 1.349).abs() <= STANDARD)
    share = stats.select(((pl.col("median").abs() <= EXACT) & scaled).mean()).item() or 0.0
    if share >= MOST:
        return [_Fingerprint(name, "robust", 0.0, share)]
    value = frame["value"]
    mean, deviation = float(value.mean() or 0.0), float(value.std() or 0.0)  # type: ignore[arg-type]
    if abs(mean) > POOLED or abs(deviation - 1) > POOLED:
        return []
    by_date = frame.group_by("date").agg(pl.col("value").mean().abs())["value"].median()
    within_dates = float(by_date or 0.0) <= 10 * STANDARD  # type: ignore[arg-type]
    return [] if within_dates else [_Fingerprint(name, "pooled", 0.0, 1.0)]


def _smoothed(name: str, stats: pl.DataFrame) -> list[_Fingerprint]:
    """Find moving averages of a column that was divided by its maximum: all maxima are just below 1."""
    moving = ~(pl.col("rises") | pl.col("falls")).fill_null(value=False)
    stats = stats.filter(moving & (pl.col("slow").fill_nan(None) >= SLOW))
    if stats.height < 10:
        return []
    middle = float(stats["maximum"].median())  # type: ignore[arg-type]
    spread, spread_1 = (_interquartile(stats[c]) for c in ("maximum", "maximum_1"))
    near_one = SMOOTH_FROM <= middle <= 1.0 + EXACT
    converged = spread_1 > 0 and spread <= CONVERGED * spread_1
    return [_Fingerprint(name, "smoothed", 1.0, 1.0)] if near_one and converged else []


def _interquartile(values: pl.Series) -> float:
    high, low = values.quantile(0.75), values.quantile(0.25)
    return float(high - low) if high is not None and low is not None else 0.0


def _evidence(name: str, stats: pl.DataFrame) -> dict[str, object]:
    maximum, maximum_share = _common(stats["maximum"])
    minimum, minimum_share = _common(stats["minimum"])
    return {
        "column": name,
        "firms": stats.height,
        "commonest_maximum": maximum,
        "share_maximum": maximum_share,
        "commonest_minimum": minimum,
        "share_minimum": minimum_share,
        "median_maximum": stats["maximum"].median(),
        "spread_of_maxima": _interquartile(stats["maximum"]),
        "spread_in_first_half": _interquartile(stats["maximum_1"]),
        "median_mean": stats["mean"].median(),
        "median_deviation": stats["deviation"].median(),
    }
