"""Inputs that were fitted on the whole sample: residuals of regressions, quantiles and means.

A fit leaves an exact mark on the sample it was made on, and on no other: residuals are orthogonal to their
regressors, centred values have the mean 0, and quantiles have the same shares for every firm. A fit on the
past of each date has none of them over a span that ends with the data.

Shape suffixes: T sessions, N firms, K regressors, V thresholds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Finding, Result
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


class _Mark(NamedTuple):
    """One exact mark of a fit."""

    kind: str
    span: str
    value: float
    limit: float

    @property
    def words(self) -> str:
        if self.kind == "centred":
            return f"has a mean of exactly 0 for most firms over {self.span}"
        if self.kind == "quantiles":
            return (
                f"has the same distribution for every firm over {self.span}, to {self.value:.1f} rows, "
                "although not in the first half of it"
            )
        return (
            f"is {self.kind} less common series with constant loadings, and exactly orthogonal to one of "
            f"them over {self.span} for {self.value:.0%} of the firms"
        )


def check(data: Delivery) -> Result:
    """Look for exact moments, quantiles and orthogonality over the whole sample and over calendar years."""

    def question(name: str, x_TN: FloatArray) -> Iterator[Finding]:
        x_TN = x_TN[:, data.columns]
        known_TN = np.isfinite(x_TN)
        if is_common(x_TN) or (known_TN.sum(axis=0) >= _FEWEST_OF_YEAR).sum() < _FEWEST_FIRMS:
            few = f"fewer than {_FEWEST_FIRMS} firms have {_FEWEST_OF_YEAR} values of their own"
            yield Finding("fit", "skipped", few, subject=name)
            return
        marks = chain(
            _centred(x_TN, known_TN, data), _same_quantiles(x_TN, known_TN), _residuals(x_TN, known_TN, data)
        )
        mark = next(marks, None)
        if mark is None:
            yield Finding("fit", "pass", subject=name)
            return
        sentence = (
            f"{name[0].upper()}{name[1:]} {mark.words}. It was fitted on that span, so early values know "
            "late ones: fit it on the past of each date."
        )
        yield Finding(mark.kind, "fail", sentence, mark.value, mark.limit, name)

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


def _centred(x_TN: FloatArray, known_TN: BoolArray, data: Delivery) -> Iterator[_Mark]:
    for span, sessions, fewest in _spans(data):
        known, count_N = known_TN[sessions], known_TN[sessions].sum(axis=0)
        value = np.where(known, x_TN[sessions], 0.0)
        mean_N = value.sum(axis=0) / np.maximum(count_N, 1)
        deviation_N = np.sqrt(
            (np.where(known, value - mean_N, 0.0) ** 2).sum(axis=0) / np.maximum(count_N, 1)
        )
        enough_N = (count_N >= fewest) & (deviation_N > 0)
        exact_N = enough_N & (np.abs(mean_N) <= EXACT_MEAN * deviation_N)
        if enough_N.sum() < _FEWEST_FIRMS or exact_N.sum() < _MOST * enough_N.sum():
            continue
        distinct = [len(np.unique(value[known[:, n], n])) for n in np.flatnonzero(exact_N)[:_SAMPLE]]
        if float(np.median(distinct)) >= _DISTINCT:
            yield _Mark("centred", span, float(exact_N.sum() / enough_N.sum()), _MOST)
            return


def _same_quantiles(x_TN: FloatArray, known_TN: BoolArray) -> Iterator[_Mark]:
    """Quantiles of every firm's whole sample: as many rows below each threshold for all firms."""
    columns = np.flatnonzero(known_TN.sum(axis=0) >= _FEWEST)
    if len(columns) < _FEWEST_FIRMS:
        return
    pooled = x_TN[:, columns][known_TN[:, columns]]
    threshold_V = np.unique(np.quantile(pooled[:: max(len(pooled) // _POOLED, 1)], _SHARES))
    whole: list[tuple[FloatArray, int]] = []
    half: list[tuple[FloatArray, int]] = []
    for n in columns:
        value = x_TN[known_TN[:, n], n]
        for shares, part in ((whole, value), (half, value[: len(value) // 2])):
            below_V = np.searchsorted(np.sort(part), threshold_V, side="right")
            shares.append((below_V / len(part), len(part)))
    off, off_in_half = _rows_off(whole), _rows_off(half)
    if off <= EXACT_ROWS and off_in_half >= HALF_ROWS and not _counts(x_TN, known_TN):
        yield _Mark("quantiles", "the whole sample", off, EXACT_ROWS)


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


def _rows_off(shares: list[tuple[FloatArray, int]]) -> float:
    """Median over the firms of the largest deviation of a share from the median firm's, in rows."""
    share_NV = np.stack([share_V for share_V, _ in shares])
    middle_V = np.median(share_NV, axis=0)
    inner_V = (middle_V > _INNER[0]) & (middle_V < _INNER[1])
    if not inner_V.any():
        return np.inf
    count_N = np.array([count for _, count in shares])
    off_N = np.abs(share_NV - middle_V)[:, inner_V].max(axis=1) * count_N
    return float(np.median(off_N))


def _residuals(x_TN: FloatArray, known_TN: BoolArray, data: Delivery) -> Iterator[_Mark]:
    """Residuals of a regression on few common series, with constant loadings over the sample or a year."""
    explained = _explained(data)
    for span, sessions, fewest in _spans(data):
        for what, y_TN in explained.items():
            share = _orthogonal(x_TN[sessions], y_TN[sessions], known_TN[sessions], fewest)
            if share >= ORTHOGONAL:
                yield _Mark(what, span, share, ORTHOGONAL)
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
