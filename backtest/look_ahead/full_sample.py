"""Statistics of the whole sample: columns that were scaled by them, and inputs that were fitted on it.

If practically every firm has exactly the same maximum and reaches it only once, the column was divided by its
full-sample maximum. In contrast, the ratio to a running maximum reaches its bound at every new high; a
bounded indicator reaches it several times or never; and ages and counts, which only rise or fall, have their
extremes on a firm's first and last rows.

A fit leaves an exact mark on the sample it was made on, and on no other: residuals are orthogonal to their
regressors, centred values have the mean 0, and quantiles have the same shares for every firm. A fit on the
past of each date has none of them over a span that ends with the data.

Shape suffixes: T sessions, N firms, K regressors, V thresholds.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result, conclude
from backtest.look_ahead.news import is_common
from features.arithmetic.rolling import carry, lag
from features.arrays import BoolArray, FloatArray
from features.panel.derived import daily_return
from features.panel.panel import to_panel

EXACT_MEAN: Final = 1e-5
"""Maximum |mean| in deviations of a firm's values. The mean of 1,000 honest values is 0.03 deviations off."""
EXACT_ANGLE: Final = 1e-4
"""Maximum |cosine| between a firm's residuals and a regressor. Two honest series of 1,000 sessions have 0.03,
and 1 in 400 has less than the limit by chance."""
ORTHOGONAL: Final = 0.3
"""Minimum share of firms within that limit. A fit that took missing values for zeros is off for firms with
gaps."""
EXACT_ROWS: Final = 2.0
"""Maximum number of rows, in the median of the firms, by which shares below a threshold differ from those of
the median firm. Of 1,000 independent values, 16 rows are off at the median."""
HALF_ROWS: Final = 6.0
"""Minimum of the same within the first half of each firm's rows. Values that are the same for all firms, such
as those of a calendar, have equal shares there too."""
LOW_RANK: Final = 1e-8
"""Maximum energy of ``y - x`` outside its largest components, relative to its own and to that of y."""
_MOST: Final = 0.5
_FEWEST: Final = 250
_FEWEST_OF_YEAR: Final = 200
_DISTINCT: Final = 20
_FEWEST_FIRMS: Final = 5
_SAMPLE: Final = 40
_ROUNDING: Final = 1e-6
_REGULAR: Final = 0.8
_CORE: Final = 30
_FIRMS_PER_REGRESSOR: Final = 5
_SESSIONS_PER_FIRM: Final = 3
_ROUNDS: Final = 6
_SHARES: Final = np.arange(0.1, 0.95, 0.1)
_INNER: Final = (0.05, 0.95)
_POOLED: Final = 100_000


def fits(data: Delivery) -> Result:
    """Look for exact moments, quantiles and orthogonality over the whole sample and over calendar years."""

    def question(name: str, x_TN: FloatArray) -> list[Finding]:
        x_TN = x_TN[:, data.columns]
        known_TN = np.isfinite(x_TN)
        if is_common(x_TN) or (known_TN.sum(axis=0) >= _FEWEST_OF_YEAR).sum() < _FEWEST_FIRMS:
            few = f"fewer than {_FEWEST_FIRMS} firms have {_FEWEST_OF_YEAR} values of their own"
            return [Finding("fit", "skipped", few)]
        marks = chain(
            _centred(x_TN, known_TN, data), _same_quantiles(x_TN, known_TN), _residuals(x_TN, known_TN, data)
        )
        mark = next(marks, None)
        if mark is None:
            return [Finding("fit", "pass")]
        sentence = (
            f"{name[0].upper()}{name[1:]} {mark.sentence}. It was fitted on that span, so early values "
            "know late ones: fit it on the past of each date."
        )
        return [replace(mark, sentence=sentence)]

    return data.ask(
        question,
        "None of {n} inputs has the exact moments, quantiles or residuals of a fit on the whole sample or on "
        "a calendar year.",
    )


def _spans(data: Delivery) -> Iterator[tuple[str, slice, int]]:
    """The whole sample and the calendar years in it: name, sessions, and fewest rows of a firm."""
    year_T = data.panel.dates_T.astype("datetime64[Y]")
    yield "the whole sample", slice(0, len(year_T)), _FEWEST
    for year in np.unique(year_T):
        at = np.flatnonzero(year_T == year)
        if len(at) >= _FEWEST_OF_YEAR:
            yield f"the year {year}", slice(int(at[0]), int(at[-1]) + 1), _FEWEST_OF_YEAR


def _centred(x_TN: FloatArray, known_TN: BoolArray, data: Delivery) -> Iterator[Finding]:
    for span, sessions, fewest in _spans(data):
        known, count_N = known_TN[sessions], known_TN[sessions].sum(axis=0)
        value = np.where(known, x_TN[sessions], 0.0)
        mean_N = value.sum(axis=0) / np.maximum(count_N, 1)
        square_N = (np.where(known, value - mean_N, 0.0) ** 2).sum(axis=0)
        deviation_N = np.sqrt(square_N / np.maximum(count_N, 1))
        enough_N = (count_N >= fewest) & (deviation_N > 0)
        exact_N = enough_N & (np.abs(mean_N) <= EXACT_MEAN * deviation_N)
        if enough_N.sum() < _FEWEST_FIRMS or exact_N.sum() < _MOST * enough_N.sum():
            continue
        distinct = [len(np.unique(value[known[:, n], n])) for n in np.flatnonzero(exact_N)[:_SAMPLE]]
        if float(np.median(distinct)) >= _DISTINCT:
            words = f"has a mean of exactly 0 for most firms over {span}"
            yield Finding("centred", "fail", words, float(exact_N.sum() / enough_N.sum()), _MOST)
            return


def _same_quantiles(x_TN: FloatArray, known_TN: BoolArray) -> Iterator[Finding]:
    """Quantiles of every firm's whole sample: as many rows below each threshold for all firms."""
    columns = np.flatnonzero(known_TN.sum(axis=0) >= _FEWEST)
    if len(columns) < _FEWEST_FIRMS:
        return
    pooled = x_TN[:, columns][known_TN[:, columns]]
    threshold_V = np.unique(np.quantile(pooled[:: max(len(pooled) // _POOLED, 1)], _SHARES))
    values = [x_TN[known_TN[:, n], n] for n in columns]
    halves = [value[: len(value) // 2] for value in values]
    off, off_in_half = _rows_off(values, threshold_V), _rows_off(halves, threshold_V)
    if off <= EXACT_ROWS and off_in_half >= HALF_ROWS and not _counts(x_TN, known_TN):
        words = (
            f"has the same distribution for every firm over the whole sample, to {off:.1f} rows, "
            "although not in the first half of it"
        )
        yield Finding("quantiles", "fail", words, off, EXACT_ROWS)


def _counts(x_TN: FloatArray, known_TN: BoolArray) -> bool:
    """Whether a column is a count that starts again, such as the number of the fiscal quarter.

    Every value then has one successor, and is held for nearly the same number of sessions. Firms with gaps in
    their prices are the exception.
    """
    steps: Counter[tuple[float, float]] = Counter()
    lengths: list[int] = []
    for n in np.flatnonzero(known_TN.sum(axis=0) >= _FEWEST)[:_SAMPLE]:
        value = x_TN[known_TN[:, n], n]
        edges = np.flatnonzero(np.diff(value) != 0)
        steps.update(zip(value[edges].tolist(), value[edges + 1].tolist(), strict=True))
        lengths += np.diff(edges).tolist()
    usual: dict[float, int] = {}
    for (value, _), times in steps.items():
        usual[value] = max(usual.get(value, 0), times)
    if not lengths or len(usual) > _FEWEST // 5 or sum(usual.values()) < _REGULAR * steps.total():
        return False
    middle = float(np.median(lengths))
    return float((np.abs(np.array(lengths) - middle) <= 0.2 * middle).mean()) >= _REGULAR


def _rows_off(values: list[FloatArray], threshold_V: FloatArray) -> float:
    """Median over the firms of the largest deviation of a share from the median firm's, in rows."""
    count_N = np.array([len(value) for value in values])
    below_NV = np.stack([np.searchsorted(np.sort(value), threshold_V, side="right") for value in values])
    share_NV = below_NV / count_N[:, None]
    middle_V = np.median(share_NV, axis=0)
    inner_V = (middle_V > _INNER[0]) & (middle_V < _INNER[1])
    if not inner_V.any():
        return np.inf
    off_N = np.abs(share_NV - middle_V)[:, inner_V].max(axis=1) * count_N
    return float(np.median(off_N))


def _residuals(x_TN: FloatArray, known_TN: BoolArray, data: Delivery) -> Iterator[Finding]:
    """Residuals of a regression on few common series, with constant loadings over the sample or a year."""
    explained = _explained(data)
    for span, sessions, fewest in _spans(data):
        for what, y_TN in explained.items():
            share = _orthogonal(x_TN[sessions], y_TN[sessions], known_TN[sessions], fewest)
            if share >= ORTHOGONAL:
                words = (
                    f"is {what} less common series with constant loadings, and exactly orthogonal to one of "
                    f"them over {span} for {share:.0%} of the firms"
                )
                yield Finding(what, "fail", words, share, ORTHOGONAL)
                return


def _explained(data: Delivery) -> dict[str, FloatArray]:
    """What a regression may have explained."""
    panel, chosen = data.panel, data.columns
    return_TN = daily_return(panel)[:, chosen]
    split_TN = to_panel(data.tables["prices"], "split_ratio", panel)[:, chosen]
    quoted_TN = carry(panel.raw_close_TN[:, chosen] * np.cumprod(np.nan_to_num(split_TN, nan=1.0), axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        series = {
            "the return": return_TN,
            "the price return": quoted_TN / lag(quoted_TN, 1) - 1.0,
            "the log return": np.log1p(return_TN),
            "the log price": np.log(panel.close_TN[:, chosen]),
        }
        if panel.volume_TN is not None:
            series["log volume"] = np.log1p(panel.volume_TN[:, chosen])
    return series


def _orthogonal(x_TN: FloatArray, y_TN: FloatArray, known_TN: BoolArray, fewest: int) -> float:
    """Share of firms whose x is orthogonal to one common series in y - x; 0 if y - x is no regression.

    If x is the residual of y, ``y - x`` is a sum of a few common series with constant loadings: its rank is
    low. The series are found from firms that are known most often, on the sessions that all of them know, and
    continued to the other sessions. The normal equations of a fit hold for one combination of them.
    """
    both_TN = known_TN & np.isfinite(y_TN)
    often = np.argsort(-both_TN.sum(axis=0), kind="stable")
    often = often[both_TN[:, often].sum(axis=0) >= fewest]
    core = often[:_CORE]
    rows_T = both_TN[:, core].all(axis=1)
    if len(core) < _FIRMS_PER_REGRESSOR or rows_T.sum() < _SESSIONS_PER_FIRM * len(core):
        return 0.0
    explained = np.where(both_TN[:, core], y_TN[:, core] - x_TN[:, core], 0.0)
    whole = explained[rows_T]
    energy, y = float((whole**2).sum()), y_TN[np.ix_(rows_T, core)]
    least = LOW_RANK * float(((y - y.mean(axis=0)) ** 2).sum())
    scale_N = y.std(axis=0)
    if energy <= least or float((np.abs(whole) > _ROUNDING * scale_N).mean()) < _MOST:
        return 0.0  # x is y, on all sessions or on all but a few
    _, size_K, loading_KN = np.linalg.svd(whole, full_matrices=False)
    left_K = np.append(np.cumsum(size_K[::-1] ** 2)[::-1][1:], 0.0)  # energy outside the first components
    rank = int((left_K > min(least, LOW_RANK * energy)).sum()) + 1
    if rank > len(core) // _FIRMS_PER_REGRESSOR:
        return 0.0
    loading_NK = loading_KN[:rank].T
    square_TKK = np.einsum("tn,nk,nl->tkl", both_TN[:, core].astype(np.float64), loading_NK, loading_NK)
    solved_T = both_TN[:, core].sum(axis=1) >= 2 * rank
    common_TK = np.zeros((len(x_TN), rank))
    known_TK1 = (explained @ loading_NK)[solved_T, :, None]
    common_TK[solved_T] = (np.linalg.pinv(square_TKK[solved_T], hermitian=True) @ known_TK1)[:, :, 0]
    common_TK = np.linalg.qr(common_TK)[0]
    x = np.where(known_TN[:, often] & solved_T[:, None], x_TN[:, often], 0.0)
    length_N = np.linalg.norm(x, axis=0)
    cosine_NK = (x.T @ common_TK)[length_N > 0] / length_N[length_N > 0, None]
    if len(cosine_NK) < max(_FEWEST_FIRMS, 2 * rank):
        return 0.0
    best = np.arange(len(cosine_NK))
    for _ in range(_ROUNDS):  # firms with missing sessions may be off the mark: find it among the others
        direction_K = np.linalg.svd(cosine_NK[best], full_matrices=False)[2][-1]
        off_N = np.abs(cosine_NK @ direction_K)
        best = np.argsort(off_N, kind="stable")[: max(2 * rank, len(off_N) // 2)]
    return float((off_N <= EXACT_ANGLE).mean())


MOST: Final = 0.5  # minimum share of firms with the exact moments of a z-score
EXTREME: Final = 0.9
"""Minimum share of firms with the same extreme, among those that do not have it on their first or last
row."""
BOTH_HALVES: Final = 0.2
"""Maximum share of firms, among those that reach the common extreme, that may reach it in both halves of
their sample. If a causal column reaches it with probability p in each half, nine of ten firms reach it at
all only if p is 0.68; half of these firms then reach it in both halves."""
REPEATED: Final = 0.35
"""Maximum share of firms with several rows at the extreme: a scaled column reaches it once, and again only
where two prices are equal. An indicator stays at its bound for some sessions in most firms."""
ROWS: Final = 60  # minimum number of rows per firm
DISTINCT: Final = 20
"""Minimum number of distinct values per firm: flags and small counts often reach their bounds."""
_COMMON: Final = 0.9  # minimum share of dates with one value for all firms, for a column of the market
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
_OF_FIRMS: Final = "over the whole sample for {share:.0%} of the firms"
_KINDS: Final = {
    "maximum": ("maximum", f"the maximum {{value:g}} {_OF_FIRMS}"),
    "minimum": ("minimum", f"the minimum {{value:g}} {_OF_FIRMS}"),
    "standardised": ("z-score", f"mean 0 and deviation 1 {_OF_FIRMS}"),
    "demeaned": ("mean", f"mean 0 {_OF_FIRMS}"),
    "scaled": ("deviation", f"deviation 1 {_OF_FIRMS}"),
    "robust": ("robust z-score", f"median 0 and one interquartile range {_OF_FIRMS}"),
    "pooled": ("z-score", "mean 0 and deviation 1 over all firms and sessions"),
    "smoothed": ("maximum", "maxima that converge to {value:g} at the end of the sample"),
}
"""Kind -> what it is, and what the column has."""


def scales(data: Delivery) -> Result:
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

    ``name`` is what the sentence calls the column; the frame has date, ticker and value.
    """
    of_dates = frame.group_by("date").agg(values=pl.col("value").n_unique())["values"]
    if frame.is_empty() or (of_dates <= 1).sum() >= _COMMON * len(of_dates):  # however it was scaled
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
        f"Full-sample {rule}: {name} has {has.format(value=value, share=share)}. Every earlier value was "
        "scaled with data from the end of the sample."
    )
    return Finding(kind, "fail", sentence, share, subject=name)


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
            at_maximum=_is_near(value, value.max()).sum(),
            at_minimum=_is_near(value, value.min()).sum(),
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

        hit = inner.filter(_is_near(pl.col(kind), pl.lit(value)))
        if share < EXTREME or hit.select((pl.col(f"at_{kind}") > 1).mean()).item() > REPEATED:
            continue
        halves = (_is_near(pl.col(f"{kind}_{half}"), pl.lit(value)) for half in (1, 2))
        if hit.select(pl.all_horizontal(halves).mean()).item() <= BOTH_HALVES:
            yield kind, value, share


def _is_near(column: pl.Expr, value: pl.Expr) -> pl.Expr:
    return (column - value).abs() <= EXACT * pl.max_horizontal(value.abs(), 1.0)


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
    if firms.select((pl.col("maximum") >= 1.0 - EXACT).mean()).item() > MOST:
        return  # a place in a range reaches its bound, and the average of a scaled price stays below it
    spread, spread_1 = (_interquartile(firms[name]) for name in ("maximum", "maximum_1"))
    converged = spread_1 > 0 and spread <= CONVERGED * spread_1
    if converged and SMOOTH_FROM <= _median(firms["maximum"]) <= 1.0 + EXACT:
        yield "smoothed", 1.0, 1.0


def _median(values: pl.Series) -> float:
    return float(values.median() or 0.0)  # type: ignore[arg-type]


def _interquartile(values: pl.Series) -> float:
    high, low = values.quantile(0.75), values.quantile(0.25)
    return float(high - low) if high is not None and low is not None else 0.0
