"""Values of many firms on many dates, sorted once, and the metrics of every date in one pass.

Each panel is sorted once (`SortedPanel`): a forecast is measured against the labels of several horizons and
delays, and a label against several models, without another sort. All statistics of a date are computed while
its values are in the processor's cache, and dates are spread over threads; results do not depend on their
number.

Firms with equal values are tied. Tied firms at the edge of a selection share the remaining ranks equally,
which is the expectation over a random order of the tied firms. The order of the columns has no effect. Books
select by the same functions.

Shape suffixes: T dates, N firms, Q quantiles.
"""

import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from features.arithmetic.parallel import for_each
from features.arrays import AnyFloatArray, FloatArray, IntArray, frozen, require_shape


class SortedPanel:
    """Values by date and firm, and their order within each date.

    ``name`` says what the values are, for error messages. NaN is unknown, and the array must not be changed
    afterwards. Computations are in float64. ValueError if the array is not two-dimensional or contains an
    infinite value.

    ``x_TN`` are the values, read-only. ``order_TN`` holds the columns of each date's known values, lowest
    value first and equal values in column order; entries beyond ``count_T``, the number of known values, mean
    nothing.

    Examples
    --------
    >>> SortedPanel("signal", np.array([[3.0, 1.0, np.nan]])).count_T
    array([2])
    """

    def __init__(self, name: str, x_TN: AnyFloatArray) -> None:
        from backtest.forecasts.kernels import pack_values, unpack_order  # imports numba

        self.name = name
        self.x_TN: FloatArray = frozen(np.ascontiguousarray(as_signal(name, x_TN)))
        T, N = self.x_TN.shape
        order_TN: npt.NDArray[np.int32] = np.empty((T, N), dtype=np.int32)
        count_T: IntArray = np.empty(T, dtype=np.int64)
        column = np.uint64((1 << max(N - 1, 1).bit_length()) - 1)

        def sort(rows: slice) -> None:
            x_RN = self.x_TN[rows]
            packed_RN = np.empty(x_RN.shape, dtype=np.uint64)
            pack_values(x_RN.view(np.uint64), column, packed_RN)
            packed_RN.sort(axis=1)  # numpy sorts integers with vector instructions
            unpack_order(x_RN, frozen(packed_RN), column, order_TN[rows], count_T[rows])

        for_each(sort, date_blocks(T, N))
        self.order_TN: IntArray = frozen(order_TN)
        self.count_T: IntArray = frozen(count_T)

    def first(self, dates: int) -> Self:
        """Return the panel of the first dates, without another sort."""
        part = copy.copy(self)
        part.x_TN, part.order_TN, part.count_T = self.rows(slice(dates))
        return part

    def rows(self, rows: slice) -> tuple[FloatArray, IntArray, IntArray]:
        """Return values, order and count of some dates."""
        return self.x_TN[rows], self.order_TN[rows], self.count_T[rows]

    def ranks(self) -> FloatArray:
        """Return the rank of each value in its date, from 1; ties share their mean rank, and NaN stays NaN.

        The same as `features.information_coefficient.average_ranks`, without another sort.

        Examples
        --------
        >>> SortedPanel("signal", np.array([[3.0, np.nan, 1.0, 3.0]])).ranks()
        array([[2.5, nan, 1. , 2.5]])
        """
        from backtest.forecasts.kernels import rank

        rank_TN = np.empty(self.x_TN.shape)
        for_each(lambda rows: rank(self.rows(rows), rank_TN[rows]), date_blocks(*self.x_TN.shape))
        return rank_TN

    def lowest(self, size_T: IntArray) -> FloatArray:
        """Return each firm's share in the ``size`` lowest values of its date, 0 to ``count_T`` of them.

        1 inside the selection and 0 outside. Firms that are tied at its edge share the remaining places
        equally: three firms for two places get 2/3 each. A row sums to ``size``. Unknown values are never
        selected, and only exactly equal values are ties.

        Examples
        --------
        >>> SortedPanel("signal", np.array([[3.0, 1.0, 1.0, 2.0]])).lowest(np.array([1]))
        array([[0. , 0.5, 0.5, 0. ]])
        """
        return self._selected(size_T, np.zeros(len(size_T)), np.ones(len(size_T)))

    def highest(self, size_T: IntArray) -> FloatArray:
        """Return each firm's share in the ``size`` highest values of its date; see `lowest`."""
        return self._selected(size_T, np.ones(len(size_T)), np.zeros(len(size_T)))

    def long_short(self, size_T: IntArray) -> FloatArray:
        """Return ``(highest - lowest) / size`` in one pass: +1 in the highest and -1 in the lowest values.

        ``size_T`` is the number of firms on each side, 0 to ``count_T``. A firm on neither side, and a date
        with a size of 0, has 0. A firm that is tied at both edges gets the difference of its shares.
        """
        scale_T = 1.0 / np.maximum(size_T, 1)
        return self._selected(size_T, scale_T, -scale_T)

    def _selected(self, size_T: IntArray, high_T: FloatArray, low_T: FloatArray) -> FloatArray:
        """Return ``high`` times each firm's share in the highest values, plus ``low`` times in the lowest."""
        from backtest.forecasts.kernels import select

        size_T = np.ascontiguousarray(size_T, dtype=np.int64)
        out_TN = np.empty(self.x_TN.shape)

        def work(rows: slice) -> None:
            select(self.rows(rows), size_T[rows], high_T[rows], low_T[rows], out_TN[rows])

        for_each(work, date_blocks(*self.x_TN.shape))
        return out_TN


@dataclass(frozen=True, slots=True, eq=False)
class DailyMetrics:
    """Metrics of each date, over its pairs: the firms with both a forecast and a label.

    Examples
    --------
    >>> forecast = SortedPanel("forecast", np.array([[1.0, 2.0, 3.0]]))
    >>> daily_metrics(forecast, forecast, quantiles=3).quantile_TQ
    array([[1., 2., 3.]])
    """

    pairs_T: IntArray
    """Number of pairs."""
    tied_T: IntArray
    """Number of pairs whose forecast equals that of another pair of the date."""
    ic_T: FloatArray
    rank_ic_T: FloatArray
    """`ic_T`, `rank_ic_T`: Pearson and Spearman correlation, with the conventions of
    `features.information_coefficient`."""
    hits_T: FloatArray
    """Share of the highest forecasts whose label is at least zero; NaN with fewer pairs than that number."""
    top_T: FloatArray
    """Mean label of the highest forecasts; NaN with fewer pairs than that number."""
    squared_error_T: FloatArray
    squared_label_T: FloatArray
    """`squared_error_T`, `squared_label_T`: sums over pairs of ``(label - forecast)^2`` and ``label^2``."""
    quantile_TQ: FloatArray
    """Mean label of each quantile of the forecasts, lowest first; NaN with fewer pairs than quantiles."""


def daily_metrics(
    forecast: SortedPanel, label: SortedPanel, *, quantiles: int = 5, hits: int = 10, top: int = 5
) -> DailyMetrics:
    """Measure forecasts against labels on every date.

    With n pairs on a date, quantile i (from 0) takes the ranks from ``ceil(i n / q)`` up to
    ``ceil((i + 1) n / q)``, lowest first, so sizes differ by at most one. Tied firms at the edge of a
    quantile, or of the highest forecasts, share the places that are left equally. This is the expectation
    over a random order of the tied firms: the label of a tied firm is replaced by the mean label of its tie.

    ``forecast`` is made at t, and ``label`` is what it forecasts. There are at least 2 ``quantiles``;
    ``hits`` and ``top`` are the numbers of highest forecasts in ``hits_T`` and ``top_T``, at least 1. A
    date's metrics are known when its labels are. ValueError if the shapes differ or a number is out of range.

    Examples
    --------
    >>> forecast = SortedPanel("forecast", np.array([[1.0, 2.0, 3.0, 4.0]]))
    >>> label = SortedPanel("label", np.array([[0.01, 0.03, 0.02, 0.04]]))
    >>> daily_metrics(forecast, label, quantiles=2).rank_ic_T
    array([0.8])
    """
    from backtest.forecasts.kernels import measure_pairs

    require_shape(f"the {label.name}", label.x_TN, forecast.x_TN.shape)
    require_quantiles(quantiles)
    for k in (hits, top):
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1 firm.")
    T, N = forecast.x_TN.shape
    out_TM, quantile_TQ = np.empty((T, 8)), np.empty((T, quantiles))

    def work(rows: slice) -> None:
        measure_pairs(forecast.rows(rows), label.rows(rows), (hits, top), quantile_TQ[rows], out_TM[rows])

    for_each(work, date_blocks(T, N))
    pairs_T, tied_T, ic_T, rank_ic_T, hits_T, top_T, error_T, label_T = out_TM.T.copy()
    counts = (pairs_T.astype(np.int64), tied_T.astype(np.int64))
    return DailyMetrics(*counts, ic_T, rank_ic_T, hits_T, top_T, error_T, label_T, quantile_TQ)


@dataclass(frozen=True, slots=True, eq=False)
class Persistence:
    """How much of a signal is left after some dates; one value per date but the first ones.

    Examples
    --------
    >>> signal = SortedPanel("signal", np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    >>> persistence(signal, (1,), quantiles=3)[1].top_turnover_T
    array([1.])
    """

    rank_autocorrelation_T: FloatArray
    """Pearson correlation of the average ranks of both dates, over the firms that are known on both. NaN for
    fewer than 3 firms, or if either signal is constant."""
    bottom_turnover_T: FloatArray
    top_turnover_T: FloatArray
    """`bottom_turnover_T`, `top_turnover_T`: share of the bottom and top quantile that was not in it ``lag``
    dates before. A tied firm at the edge is in it with the share of its tie. NaN if either date has fewer
    values than quantiles."""


def persistence(signal: SortedPanel, lags: tuple[int, ...], *, quantiles: int = 5) -> dict[int, Persistence]:
    """Compare a signal with itself some dates before.

    The ranks of a date are over all its known values, with or without a label, as in alphalens'
    ``factor_rank_autocorrelation`` and ``quantile_turnover``.

    Each row is compared with the row ``lag`` rows above it, for each of the ``lags``, which are at least 1.
    Row i of a series compares date ``i + lag`` with date i, and is known at the later of them; series are
    empty for a lag of T or more. The sizes of the quantiles, of which there are at least 2, are those of
    `daily_metrics`. ValueError if a lag or the number of quantiles is out of range.

    Examples
    --------
    >>> signal = SortedPanel("signal", np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    >>> persistence(signal, (1,), quantiles=3)[1].rank_autocorrelation_T
    array([0.5])
    """
    from backtest.forecasts.kernels import compare_dates, rank_with_edges

    require_quantiles(quantiles)
    if min(lags, default=1) < 1:
        raise ValueError(f"A lag is {min(lags)}; it must be at least 1 date.")
    T, N = signal.x_TN.shape
    rank_TN, edge_TE = np.empty((T, N), dtype=np.float32), np.empty((T, 6))
    blocks = date_blocks(T, N)
    for_each(lambda rows: rank_with_edges(signal.rows(rows), quantiles, rank_TN[rows], edge_TE[rows]), blocks)
    out_KTM = np.full((len(lags), T, 3), np.nan)

    def work(rows: slice) -> None:
        for k, lag in enumerate(lags):
            now = slice(max(rows.start, lag), rows.stop)
            if now.start < now.stop:
                then = slice(now.start - lag, now.stop - lag)
                compare_dates(
                    (frozen(rank_TN[now]), frozen(edge_TE[now])),
                    (frozen(rank_TN[then]), frozen(edge_TE[then])),
                    out_KTM[k, now],
                )

    for_each(work, blocks)
    return {lag: Persistence(*out_KTM[k, lag:].T.copy()) for k, lag in enumerate(lags)}


def require_quantiles(quantiles: int) -> None:
    """Raise ValueError for fewer than 2 quantiles."""
    if quantiles < 2:
        raise ValueError(f"q is {quantiles}; there must be at least 2 quantiles.")


_CELLS = 2**17  # per block: 1 MiB as float64, so that its arrays stay in a core's cache


def as_signal(name: str, x_TN: AnyFloatArray) -> FloatArray:
    """Check a (date, firm) array and return it as float64, itself if it is; NaN means unknown.

    ValueError if it is not two-dimensional or contains an infinite value.
    """
    if x_TN.ndim != 2:
        msg = f"The {name} has shape {x_TN.shape}; it must have one row per date and one column per firm."
        raise ValueError(msg)
    out_TN = x_TN.astype(np.float64, copy=False)
    highest, lowest = (of.reduce(out_TN, axis=None, initial=0.0) for of in (np.fmax, np.fmin))  # not NaN
    if np.isinf(highest) or np.isinf(lowest):
        t, n = (int(i) for i in np.argwhere(np.isinf(out_TN))[0])
        raise ValueError(f"The {name} is infinite at date {t}, firm {n}: use NaN for unknown values.")
    return out_TN


def date_blocks(n_dates: int, n_firms: int) -> list[slice]:
    """Split the dates into contiguous blocks whose rows fit the processor's cache, in order."""
    height = max(1, _CELLS // max(n_firms, 1))
    return [slice(start, min(start + height, n_dates)) for start in range(0, n_dates, height)]
