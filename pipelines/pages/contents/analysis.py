"""The analysis of books, signals and trials, as a report shows it.

Every table has all models, books and delays that were measured; the sections choose. Returns, weights and
costs are fractions unless the name of a column contains ``bps``.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.pages.contents.frames import require_columns

FIGURE_COLUMNS = (
    "model",
    "book",
    "delay",
    "n_sessions",
    "annual_return_gross",
    "annual_return_net",
    "annual_volatility_net",
    "sharpe_gross",
    "sharpe_net",
    "sortino_net",
    "calmar_net",
    "hit_rate_net",
    "skew_net",
    "worst_day_net",
    "best_day_net",
    "max_drawdown_net",
    "leverage",
    "net_exposure",
    "turnover",
    "unfilled",
)
CAPACITY_COLUMNS = (
    "model",
    "book",
    "delay",
    "capital",
    "sharpe_net",
    "annual_return_net",
    "impact_bps_per_year",
    "participation_p95",
    "unfilled",
)
FACTOR_COLUMNS = ("model", "book", "delay", "term", "coefficient", "t", "p_value", "r2", "sessions")
CONTRIBUTION_COLUMNS = ("model", "book", "delay", "by", "key", "gross", "cost", "net")
EXPOSURE_COLUMNS = ("model", "book", "delay", "kind", "key", "mean", "low", "high")
DRAWDOWN_COLUMNS = (
    "model",
    "book",
    "delay",
    "rank",
    "peak",
    "trough",
    "recovered",
    "depth",
    "sessions",
    "names",
)
WORST_DAY_COLUMNS = ("model", "book", "delay", "rank", "date", "return_net", "names")
POSITION_COLUMNS = ("model", "book", "date", "ticker", "weight", "trade", "pnl", "cost")
NOTE_COLUMNS = ("model", "book", "date", "note")
DECAY_COLUMNS = ("model", "horizon", "delay", "ic", "ic_t", "rank_ic", "rank_ic_t", "dates")
SPREAD_COLUMNS = ("model", "delay", "quantiles", "spread_bps", "t", "lower_bps", "upper_bps")
QUANTILE_SERIES_COLUMNS = ("date", "model", "delay", "quantile", "mean_return_bps")
PERSISTENCE_COLUMNS = ("model", "lag", "rank_autocorrelation", "top_turnover", "bottom_turnover")
SIGNAL_EXPOSURE_COLUMNS = ("model", "kind", "key", "mean", "t")
PATH_COLUMNS = ("model", "path", "delay", "book", "dates", "ic", "rank_ic", "sharpe_net")
MULTIPLE_TEST_COLUMNS = ("model", "book", "spa_p", "in_stepm", "in_mcs", "mcs_p", "level")
RECOUNTED_COLUMNS = ("model", "book", "effective_trials", "deflated_effective", "rademacher_lower")
OVERFITTING_COLUMNS = ("candidates", "variants", "blocks", "pbo", "loss_probability", "sessions")


@dataclass(frozen=True, slots=True)
class BookTables:
    """What is known of the books beyond their NAV; a table that is None is not shown.

    Attributes
    ----------
    figures
        Return, risk and trading of each book, one row per model, book and delay. turnover and unfilled are
        one-way means per session; leverage and net_exposure are means over sessions.
    capacity
        The book at several amounts of capital (in the currency of the prices): net Sharpe ratio and return,
        impact_bps_per_year, participation_p95 (95th percentile of the share of the dollar volume), unfilled.
    factor_alpha
        Regression of net returns on factors: term is "alpha" (coefficient per year) or a factor.
    contributions
        Profit by sector, side, factor or name (column by), as fractions of the starting capital. The rows of
        every breakdown add up to the same total.
    exposures
        Mean, low and high over sessions of the net weight of a sector, or of the weighted score of a style.
    drawdowns
        The deepest drawdowns: peak, trough and recovered (null if not yet) are dates; names lists the firms
        that lost most.
    worst_days
        The sessions with the lowest net returns, and the firms that lost most.
    positions
        Weight, trade, profit and cost of every firm held or traded, by session, at the main delay.
    book_notes
        Decisions that a book could not make as configured: the date, and what happened and why (note).
    """

    figures: pl.DataFrame | None = None
    capacity: pl.DataFrame | None = None
    factor_alpha: pl.DataFrame | None = None
    contributions: pl.DataFrame | None = None
    exposures: pl.DataFrame | None = None
    drawdowns: pl.DataFrame | None = None
    worst_days: pl.DataFrame | None = None
    positions: pl.DataFrame | None = None
    book_notes: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("figures", self.figures, FIGURE_COLUMNS)
        require_columns("capacity", self.capacity, CAPACITY_COLUMNS)
        require_columns("factor_alpha", self.factor_alpha, FACTOR_COLUMNS)
        require_columns("contributions", self.contributions, CONTRIBUTION_COLUMNS)
        require_columns("exposures", self.exposures, EXPOSURE_COLUMNS)
        require_columns("drawdowns", self.drawdowns, DRAWDOWN_COLUMNS)
        require_columns("worst_days", self.worst_days, WORST_DAY_COLUMNS)
        require_columns("positions", self.positions, POSITION_COLUMNS)
        require_columns("book_notes", self.book_notes, NOTE_COLUMNS)


@dataclass(frozen=True, slots=True)
class SignalTables:
    """What is known of the signals beyond their daily IC; a table that is None is not shown.

    Attributes
    ----------
    ic_decay
        IC and rank IC with their t-statistics, by horizon and delay (sessions).
    quantile_spread
        Mean return of the top less the bottom quantile, with its interval.
    quantile_series
        Mean label of each quantile (1 holds the lowest forecasts) by date.
    persistence
        Rank autocorrelation of the signal over ``lag`` sessions, and the share of the top and the bottom
        quantile that is replaced.
    signal_exposures
        Mean exposure of the signal to sectors and styles, with its t-statistic.
    """

    ic_decay: pl.DataFrame | None = None
    quantile_spread: pl.DataFrame | None = None
    quantile_series: pl.DataFrame | None = None
    persistence: pl.DataFrame | None = None
    signal_exposures: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("ic_decay", self.ic_decay, DECAY_COLUMNS)
        require_columns("quantile_spread", self.quantile_spread, SPREAD_COLUMNS)
        require_columns("quantile_series", self.quantile_series, QUANTILE_SERIES_COLUMNS)
        require_columns("persistence", self.persistence, PERSISTENCE_COLUMNS)
        require_columns("signal_exposures", self.signal_exposures, SIGNAL_EXPOSURE_COLUMNS)


@dataclass(frozen=True, slots=True)
class TrialTables:
    """Tests that count how much was tried; a table that is None is not shown.

    Attributes
    ----------
    significance
        Per model and book: effective number of trials, the deflated Sharpe ratio with it, and the Rademacher
        bound of the net Sharpe ratio (annualised); null: unknown.
    multiple_tests
        Per model and book: p-value of the test of superior predictive ability against earning nothing
        (spa_p), whether StepM counts the model as better than that (in_stepm), whether it is in the model
        confidence set (in_mcs) with its p-value (mcs_p). Optional: the same tests against the best baseline
        (baseline, baseline_spa_p, in_baseline_stepm).
    overfitting
        One row per set of candidates (a description) with the number of variants in it: probability of
        backtest overfitting (pbo) and of loss by combinatorially symmetric cross-validation.
    paths
        Per model and path of combinatorial folds: IC, rank IC and net Sharpe ratio; None for other folds.
    """

    significance: pl.DataFrame | None = None
    multiple_tests: pl.DataFrame | None = None
    overfitting: pl.DataFrame | None = None
    paths: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("significance", self.significance, RECOUNTED_COLUMNS)
        require_columns("multiple_tests", self.multiple_tests, MULTIPLE_TEST_COLUMNS)
        require_columns("overfitting", self.overfitting, OVERFITTING_COLUMNS)
        require_columns("paths", self.paths, PATH_COLUMNS)
