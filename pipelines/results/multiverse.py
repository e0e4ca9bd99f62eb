"""What a multiverse shows: the spread of results over designs, what moves them, and what the best is worth.

All designs are compared on the sessions that all of them have. The standard deviation and the interquartile
range over designs, the *non-standard error* of Menkveld et al. (2024), stand beside the usual standard error.

Shape suffixes: D designs, K choices, T sessions, N firms, R bootstrap samples.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.accounts.performance import excess_return
from backtest.forecasts.metrics import forecast_metrics
from backtest.inference.bootstrap import sharpe_interval
from backtest.inference.designs import designs_needed, variance_shares
from backtest.inference.means import mean_test
from backtest.inference.overfitting import deflated_sharpe, effective_trials
from features.arrays import FloatArray
from pipelines.columns import COLUMNS, table
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import require_rates, risk_free_rates
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.format import Kind, interval, number
from pipelines.results.books import book_orders
from pipelines.results.comparisons import samples
from pipelines.results.evaluate import label_overlap
from pipelines.run.evaluations import tradable_delay
from pipelines.train.trials import TrialCount

OUTCOMES: Final = {  # result -> its column in the table of designs, and those of its interval
    "net Sharpe ratio": ("sharpe_net", "sharpe_lower", "sharpe_upper"),
    "IC": ("ic", "ic_lower", "ic_upper"),
}
REST: Final = "rest"  # what more than two choices do together, and noise
_FEWEST_SESSIONS: Final = 10
_NORMAL: Final = 1.96  # standard errors from an estimate to an end of its 95% interval
_SHOWN: Final = 6  # largest shares in a sentence
_LEAST: Final = 0.01  # smallest share in a sentence


def daily_results(forecast_TN: FloatArray, market: Market, config: Config) -> pl.DataFrame:
    """Daily IC and net excess return of forecasts known at the close of t, in the only book of a config.

    After a pause of the forecasts, as between the validation segments of two folds, the book starts anew.
    ``overlap`` is that of the labels, and ``year`` the sessions in a year.
    """
    panel, horizon, delay = market.panel, config.label.horizon, tradable_delay(config.label.delays)
    rows_T = np.flatnonzero(np.isfinite(forecast_TN).any(axis=1))
    label_TN = np.where(market.universe_TN, market.labels[delay], np.nan)
    ic_T, excess_T = np.full((2, panel.n_sessions), np.nan)
    ic_T[rows_T] = forecast_metrics(forecast_TN[rows_T], label_TN[rows_T]).ic_T
    rate_T = risk_free_rates(config.backtest.risk_free, panel.dates_T, panel.periods_per_year)
    pause = max(horizon, int(np.median(np.diff(rows_T))) if len(rows_T) > 1 else 1)
    for part_T in np.split(rows_T, np.flatnonzero(np.diff(rows_T) > pause) + 1):
        (orders,) = book_orders(forecast_TN, part_T, market, config, delay)
        held, result = orders.held, orders.run(panel)
        require_rates(config.backtest.risk_free, rate_T[held], panel.dates_T[held])
        if result.first_trade is not None:
            own_T = excess_return(result, rate_T[held])
            excess_T[held] = np.where(np.isnan(own_T), excess_T[held], own_T)
    series = {"date": panel.dates_T.astype("datetime64[D]"), "ic": ic_T, "excess_net": excess_T}
    return pl.DataFrame(series, nan_to_null=True).select(
        *series, overlap=pl.lit(label_overlap(rows_T, horizon)), year=pl.lit(float(panel.periods_per_year))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Multiverse:
    """The tables of a multiverse (``multiverse_designs``, ...), and what is said about it."""

    designs: pl.DataFrame  # the highest net Sharpe ratio first
    outcomes: pl.DataFrame
    shares: pl.DataFrame
    choices: Mapping[str, tuple[str, ...]]  # choice -> its values, as written
    sentences: tuple[str, ...]


def summarise(
    choices: Mapping[str, tuple[str, ...]],
    designs: Sequence[Mapping[str, str]],
    daily: Sequence[pl.DataFrame],
    counted: TrialCount,
) -> Multiverse:
    """Compare the `daily_results` of designs, with the key of each one's trial (``forecast``, ``traded``).

    All other trials that count, such as designs of an earlier call, count in full in the effective number.
    """
    traded = [at for at, frame in enumerate(daily) if frame["excess_net"].count()]
    if not traded:
        raise DataError("No book of these designs ever traded: choose other books or firms.")
    excess_TD, ic_TD = (_common([daily[at] for at in traded], name) for name in ("excess_net", "ic"))
    keys = pl.concat(daily[at].select("forecast", "traded").head(1) for at in traded)
    others = counted.rows.join(keys, on=["forecast", "traded"], how="anti").height
    effective = max(effective_trials(excess_TD) + others, 1.0)
    year, counts_RT = daily[traded[0]]["year"][0], samples(len(excess_TD))
    rows: list[dict[str, Any]] = []
    for at, excess_T, ic_T in zip(traded, excess_TD.T, ic_TD.T, strict=True):
        ratio = sharpe_interval(excess_T, counts_RT=counts_RT, periods_per_year=year)
        ic = mean_test(ic_T, overlap=daily[at]["overlap"][0])
        rows.append(
            {**designs[at], "sessions": len(excess_T)}
            | {"sharpe_net": ratio.estimate, "sharpe_lower": ratio.lower, "sharpe_upper": ratio.upper}
            | {"ic": ic.mean, "ic_lower": ic.lower, "ic_upper": ic.upper}
            | {"deflated_sharpe": deflated_sharpe(excess_T, max(counted.trials, 1)), "trials": counted.trials}
            | {"deflated_effective": deflated_sharpe(excess_T, effective), "effective_trials": effective}
        )
    found = table("multiverse_designs").frame(rows, *choices)
    outcomes = [{"outcome": name, **_spread(found.drop_nulls([*of]), *of)} for name, of in OUTCOMES.items()]
    shares = [row for name, (of, *_) in OUTCOMES.items() for row in _shares(found, choices, name, of)]
    tables = {
        "designs": found.sort("sharpe_net", descending=True, nulls_last=True, maintain_order=True),
        "outcomes": table("multiverse_outcomes").frame(outcomes),
        "shares": table("multiverse_shares").frame(shares),
    }
    said = tuple(_sentences(**tables, choices=choices, reach=counted.reach))
    return Multiverse(**tables, choices=choices, sentences=said)


def _common(daily: Collection[pl.DataFrame], column: str) -> FloatArray:
    """Values of designs on the dates that all of them have, shape (T, D)."""
    frames = [frame.select("date", column).drop_nulls() for frame in daily]
    dates = reduce(np.intersect1d, [frame["date"].to_numpy() for frame in frames])
    if len(dates) < _FEWEST_SESSIONS:
        raise DataError(
            f"The designs have {len(dates)} sessions in common, and {_FEWEST_SESSIONS} are needed to compare "
            "them; leave out choices of folds or horizons that move the sessions."
        )
    same = pl.DataFrame({"date": dates})
    return np.column_stack(
        [same.join(f, on="date", maintain_order="left")[column].to_numpy() for f in frames]
    )


def _spread(designs: pl.DataFrame, of: str, lower: str, upper: str) -> dict[str, float | int]:
    """Spread of a result, and the mean standard error by the widths of the intervals."""
    result_D = designs[of].to_numpy()
    low, first, median, third, high = np.quantile(result_D, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()
    width = float((designs[upper].to_numpy() - designs[lower].to_numpy()).mean())
    return {
        **{"designs": len(result_D), "q05": low, "median": median, "q95": high},
        **{"interquartile_range": third - first, "mean_error": width / (2 * _NORMAL)},
        "deviation": float(result_D.std(ddof=1)) if len(result_D) > 1 else math.nan,
    }


def _shares(
    designs: pl.DataFrame, choices: Mapping[str, tuple[str, ...]], outcome: str, of: str
) -> Iterator[dict[str, Any]]:
    """Shares in the variance of a result, largest first; none if there are too few designs."""
    if designs[of].count() < designs_needed([len(values) for values in choices.values()]):
        return
    levels = [[values.index(one) for one in designs[path]] for path, values in choices.items()]
    found = variance_shares(np.array(levels).T, designs[of].fill_null(np.nan).to_numpy())
    for one in sorted(found, key=lambda one: -one.share):
        effect = " x ".join(list(choices)[k] for k in one.choices) or REST
        bounds = {"share_lower": one.lower, "share_upper": one.upper}
        yield {"outcome": outcome, "effect": effect, "share": one.share, **bounds}


def _sentences(
    designs: pl.DataFrame,
    outcomes: pl.DataFrame,
    shares: pl.DataFrame,
    choices: Mapping[str, tuple[str, ...]],
    reach: str,
) -> Iterator[str]:
    """Say how far the results spread, what moves them, and what the best and the median design are worth."""
    for row in outcomes.iter_rows(named=True):
        kind = COLUMNS[OUTCOMES[row["outcome"]][0]].kind
        text = {name: kind.text(value) for name, value in row.items()}
        ratio = Kind(1).text((row["deviation"] or math.nan) / (row["mean_error"] or math.nan))
        yield (
            f"The {row['outcome']} has the median {text['median']}, and 90% of the designs are between "
            f"{text['q05']} and {text['q95']}. Its non-standard error (interquartile range) is "
            f"{text['interquartile_range']}; the standard deviation over designs, {text['deviation']}, is "
            f"{ratio} times the mean standard error, {text['mean_error']}."
        )
        own = shares.filter((pl.col("outcome") == row["outcome"]) & (pl.col("share") >= _LEAST))
        leading = [
            f"{effect} {interval(share, low, high, Kind(0, 100.0))}"
            for _, effect, share, low, high in own.head(_SHOWN).iter_rows()
        ]
        if leading:
            yield f"What moves it, in % of the variance [95% interval]: {'; '.join(leading)}."
    if shares.is_empty():
        needed = designs_needed([len(values) for values in choices.values()])
        yield f"The variance is divided among these choices from {needed} designs on."
    known = designs.drop_nulls("sharpe_net")
    for title, at in (("best", 0), ("median", known.height // 2)):
        row = known.row(at, named=True)
        ratio = interval(row["sharpe_net"], row["sharpe_lower"], row["sharpe_upper"])
        yield (
            f"The {title} design has the net Sharpe ratio {ratio}, deflated "
            f"{number(row['deflated_sharpe'], 2)}, or {number(row['deflated_effective'], 2)} by the "
            f"effective number of trials: {', '.join(f'{path} {row[path]}' for path in choices)}."
        )
    yield (
        f"{designs['trials'][0]:,} trials in the ledger count{reach}; by the correlation of the designs "
        f"these are worth {designs['effective_trials'][0]:.1f} independent ones."
    )
