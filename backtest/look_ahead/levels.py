"""Checks of a signal against later values: a later return or price, or statistics of the whole sample.

Shape suffixes: T sessions, N firms, D dates of the signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Finding
from backtest.look_ahead.profile import MIN_FIRMS
from features.arrays import FloatArray, IntArray

_SPANS: Final = (1, 2, 3, 5, 10, 21)  # sessions of a return
_EQUAL: Final = 1e-6  # relative
_MIN_EQUAL, _EQUAL_SHARE = 20, 0.001
_DATES, _GLANCE = 60, 6  # dates whose ranks are compared with prices; fewer to rule a price out
_FAR: Final = 0.1  # distance from which a price is ruled out
_LATER, _EARLIER = (1, 2, 5), (0, -1, -2)  # sessions from the signal's date
_CLOSE: Final = 0.99  # rank correlation from which a signal counts as a price
_NEARER: Final = 0.2  # share of the distance to earlier prices
_EXACT, _EXACT_SHARE = 1e-6, 0.9
_MIN_ROWS, _MIN_VALUES, _MIN_NUMBER = 30, 10, 5
_STATIC: Final = 1e-6  # of the deviation over firms: smaller changes are rounding
_STATIC_CEILING: Final = 0.5


def equal_to_later_return(signal_TN: FloatArray, index_TN: FloatArray, rows_D: IntArray) -> Finding:
    """Check that the values of a signal are not returns that start at or after its date.

    Returns over 1 to 21 sessions from the close of t or of t+1 are compared, simple ones and logarithms, with
    either sign, to six digits.

    Parameters
    ----------
    signal_TN : signal.
    index_TN : total return index.
    rows_D : sampled dates of the signal.
    """
    name = "equal to a later return"
    signal_DN = signal_TN[rows_D]
    known = int(np.isfinite(signal_DN).sum())
    best: tuple[int, str] = (0, "")
    for start in (0, 1):
        for span in _SPANS:
            inside_D = rows_D + start + span < len(index_TN)
            if not inside_D.any():
                continue
            rows = rows_D[inside_D]
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio_DN = index_TN[rows + start + span] / index_TN[rows + start]
                for earned_DN in (ratio_DN - 1.0, np.log(ratio_DN)):
                    size_DN = np.abs(earned_DN)
                    gap_DN = np.abs(np.abs(signal_DN[inside_D]) - size_DN)
                    equal = int(((gap_DN <= _EQUAL * size_DN) & (size_DN > 1e-4)).sum())
                    if equal > best[0]:
                        best = (equal, f"from the close of t+{start} to that of t+{start + span}")
    if best[0] >= max(_MIN_EQUAL, _EQUAL_SHARE * known):
        share = best[0] / known
        return Finding(name, "fail", f"{share:.1%} of the values equal the firm's return {best[1]}.", share)
    return Finding(name, "pass", "The values are no later returns.", best[0] / known if known else 0.0)


def equal_to_later_price(
    signal_TN: FloatArray,
    fields: Mapping[str, FloatArray],
    restated: Mapping[str, FloatArray],
    rows_D: IntArray,
) -> Finding:
    """Check that a signal is not nearer to a later price or volume than to all earlier ones.

    Nearness is one less the mean rank correlation over firms. A signal that is the close of t is at distance
    zero from it, and cannot be nearer to the close of t+1.

    Parameters
    ----------
    signal_TN : signal.
    fields : name -> prices or volumes; row t is known at the close of t.
    restated : name -> prices that were adjusted with events after t.
    rows_D : sampled dates of the signal.
    """
    name = "equal to a later price"
    chosen = rows_D[:: max(1, len(rows_D) // _DATES)][:_DATES]
    chosen = chosen[(chosen >= -min(_EARLIER)) & (chosen + max(_LATER) < len(signal_TN))]
    distances: dict[str, float] = {}
    later: list[str] = []
    few = chosen[:: max(1, len(chosen) // _GLANCE)]

    def alike(value_TN: FloatArray) -> bool:
        return _distance(signal_TN[few], value_TN[few]) < _FAR

    for field, value_TN in fields.items():
        if not alike(value_TN):
            continue
        for lag in (*_EARLIER, *_LATER):
            words = f"{field} of session t{lag:+d}" if lag else f"{field} of session t"
            distances[words] = _distance(signal_TN[chosen], value_TN[chosen + lag])
            later += [words] if lag > 0 else []
    for field, value_TN in restated.items():
        if not alike(value_TN):
            continue
        distances[field] = _distance(signal_TN[chosen], value_TN[chosen])
        later.append(field)
    known = {words: one for words, one in distances.items() if not np.isnan(one)}
    earlier = min((one for words, one in known.items() if words not in later), default=np.nan)
    nearest = min((words for words in later if words in known), key=known.__getitem__, default=None)
    if nearest is None or np.isnan(earlier):
        return Finding(name, "pass", "The signal does not rank firms as a price or volume does.")
    if known[nearest] < 1 - _CLOSE and known[nearest] < _NEARER * earlier:
        return Finding(
            name,
            "fail",
            f"The signal ranks the firms as the {nearest} does (rank correlation "
            f"{1 - known[nearest]:.6f}), more exactly than as any price up to t ({1 - earlier:.6f}).",
            1 - known[nearest],
        )
    return Finding(name, "pass", "The signal is no later price or volume.", 1 - known[nearest])


def _distance(signal_DN: FloatArray, value_DN: FloatArray) -> float:
    """One less the mean absolute rank correlation of the dates with enough firms; NaN without one."""
    found = []
    for x_N, y_N in zip(signal_DN, value_DN, strict=True):
        both_N = np.isfinite(x_N) & np.isfinite(y_N)
        if both_N.sum() < MIN_FIRMS:
            continue
        x, y = _ranks(x_N[both_N]), _ranks(y_N[both_N])
        if x.std() > 0 and y.std() > 0:
            found.append(abs(float(np.corrcoef(x, y)[0, 1])))
    return 1.0 - float(np.mean(found)) if found else float("nan")


def whole_sample_statistics(rows: pl.DataFrame, signal: str) -> Finding:
    """Check that no statistic of a firm's signal over the whole file is exact by construction.

    A signal that was standardised with a firm's own mean and deviation over the whole sample has the mean 0
    or the deviation 1 to the last digit; one that was divided by its largest value has the maximum 1 once for
    every firm. No signal that was computed day by day has that.

    Parameters
    ----------
    rows
        date, ticker and the signal: all rows of the file.
    signal
        Name of the column.
    """
    name = "statistics of the whole sample"
    value, firm = pl.col(signal), rows.select("ticker", signal).drop_nulls().group_by("ticker")
    firms = firm.agg(
        value.len().alias("rows"),
        value.mean().alias("mean"),
        value.std().alias("std"),
        value.max().alias("max"),
    ).filter((pl.col("rows") >= _MIN_ROWS) & (pl.col("std") > 0))
    if firms.height < _MIN_NUMBER:
        return Finding(name, "skipped", f"Too few firms have {_MIN_ROWS} different values.")
    std, top, number = pl.col("std"), pl.col("max"), pl.col("rows")
    median = float(firms.select(top.median()).item())
    tests = {
        "mean of exactly 0": pl.col("mean").abs() <= _EXACT * std,
        "standard deviation of exactly 1": ((std - 1).abs() <= _EXACT)
        | ((std * ((number - 1) / number).sqrt() - 1).abs() <= _EXACT),
        f"maximum of exactly {median:g}, reached once": (top - median).abs() <= _EXACT * std,
    }
    for words, exact in tests.items():
        if firms.select(exact.mean()).item() < _EXACT_SHARE * 0.5:
            continue
        exact_firms = firms.select("ticker", exact.alias("exact")).join(
            firm.agg(
                value.n_unique().alias("values"),
                (value == value.max()).sum().alias("at_max"),
                value.arg_max().alias("max_at"),
            ),
            on="ticker",
        )
        counted = exact_firms.filter(pl.col("values") >= _MIN_VALUES)
        if words.startswith("maximum"):  # a rolling window may begin with its highest value
            counted = counted.filter(pl.col("max_at") >= _MIN_ROWS).with_columns(
                pl.col("exact") & (pl.col("at_max") == 1)
            )
        share = counted.select(pl.col("exact").mean()).item() if counted.height >= _MIN_NUMBER else 0.0
        if share >= _EXACT_SHARE:
            return Finding(
                name,
                "fail",
                f"Over the whole file, {share:.0%} of {counted.height:,} firms have a {words}. Their "
                "signals were scaled with values that were not known yet.",
                share,
            )
    return Finding(name, "pass", f"None is exact for most of {firms.height:,} firms.")


def static_signal(signal_TN: FloatArray, return_TN: FloatArray) -> Finding:
    """Check that a signal that never changes does not know the firms' mean returns.

    Parameters
    ----------
    signal_TN : signal.
    return_TN : returns of single sessions; row t is the return from t-1 to t.
    """
    name = "constant per firm"
    rows_D = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    signal_DN = signal_TN[rows_D]
    known_DN = np.isfinite(signal_DN)
    count_N = known_DN.sum(axis=0)
    used_N = count_N >= _MIN_ROWS
    if used_N.sum() < MIN_FIRMS:
        return Finding(name, "skipped", f"Too few firms have {_MIN_ROWS} dates.")
    first_N = signal_DN[np.argmax(known_DN, axis=0), np.arange(signal_DN.shape[1])]
    scale = float(np.std(first_N[used_N]))
    moved_DN = known_DN & (np.abs(signal_DN - first_N) > _STATIC * scale)
    if moved_DN.any() or scale == 0:
        return Finding(name, "pass", "The signal changes over time.")
    mean_N = first_N[used_N]
    rows_D = rows_D[rows_D + 1 < len(return_TN)]
    later_DN = return_TN[rows_D + 1][:, used_N]
    known_DN = np.isfinite(later_DN) & known_DN[: len(rows_D), used_N]
    earned_N = np.where(known_DN, later_DN, 0.0).sum(axis=0) / np.maximum(known_DN.sum(axis=0), 1)
    correlation = float(np.corrcoef(_ranks(mean_N), _ranks(earned_N))[0, 1])
    bound = abs(correlation) - 4.0 / float(used_N.sum()) ** 0.5
    if bound > _STATIC_CEILING:
        return Finding(
            name,
            "fail",
            "The signal never changes, and its rank correlation with the firms' mean returns over the whole "
            f"file is {correlation:+.2f}: it was computed from them.",
            correlation,
        )
    return Finding(
        name, "pass", f"Rank correlation with the firms' mean returns: {correlation:+.2f}.", correlation
    )


def _ranks(x_N: FloatArray) -> FloatArray:
    """Ranks from 1; ties share their mean rank (scipy.stats would take over a second to import)."""
    ranks: FloatArray = pl.Series(x_N).rank("average").to_numpy()
    return ranks
