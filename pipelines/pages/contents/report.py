"""What a report shows: the results of one run, already computed, as frames with named columns.

Reports only display results; they compute nothing that a decision could depend on. Rates are fractions (0.12
is 12%) unless the name of a column contains ``bps``. Null and NaN both mean "not known"; either is shown as a
dash.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from pipelines.pages.contents.analysis import BookTables, SignalTables, TrialTables
from pipelines.pages.contents.attribution import ModelAttribution
from pipelines.pages.contents.frames import require_columns
from pipelines.pages.contents.header import RunHeader
from pipelines.pages.contents.signal_file import SignalFile
from pipelines.pages.contents.truth import SimulatedTruth

FOLD_COLUMNS = (
    "fold",
    "train_from",
    "train_to",
    "valid_from",
    "valid_to",
    "test_from",
    "test_to",
    "n_train",
    "n_valid",
    "n_test",
)
LADDER_COLUMNS = (
    "model",
    "delay",
    "seeds",
    "ic",
    "icir",
    "ic_t",
    "rank_ic",
    "rank_icir",
    "coverage_dates",
    "coverage_firms",
    "tied",
    "precision_at_10",
    "literature_sr",
    "valid_rank_ic",
    "share_of_truth",
    "ic_lower",
    "ic_upper",
    "sharpe_gross",
    "sharpe_net",
    "sharpe_lower",
    "sharpe_upper",
    "deflated_sharpe",
    "turnover",
    "annual_return_net",
    "max_drawdown_net",
    "beats_ridge",
    "beats_lightgbm",
)
EQUITY_COLUMNS = ("date", "model", "book", "nav_gross", "nav_net")
IC_COLUMNS = ("date", "model", "ic", "rank_ic")
QUANTILE_COLUMNS = ("model", "quantile", "mean_return_bps")
ASSUMPTION_COLUMNS = ("assumption", "value", "unit")
COST_COLUMNS = ("model", "book")  # and a column for each kind of cost
QUANTILE_SCORE_COLUMNS = ("model", "level", "pinball", "reference", "below")
ENDING_COLUMNS = (
    "model",
    "book",
    "side",
    "paid_out",
    *(f"{name}_{suffix}" for name in ("sharpe_net", "annual_return_net") for suffix in ("0", "30", "55")),
)
COMPARISON_COLUMNS = (
    "model",
    "baseline",
    "rival",
    "delay",
    "level",
    "ic_difference",
    "ic_lower",
    "ic_upper",
    "ic_p",
    "dm_p",
    "sharpe_difference",
    "sharpe_lower",
    "sharpe_upper",
    "sharpe_p",
    "beats",
)
HORIZON_COLUMNS = ("model", "horizon", "seeds", "ic", "ic_t", "icir", "rank_ic")
LEARNING_COLUMNS = ("model", "fold", "seed", "epoch", "train_loss", "valid_rank_ic")


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a report shows. A part that is None has no section.

    Attributes
    ----------
    header
        Identity and provenance.
    ladder
        One row per (model, delay), in display order. All columns except valid_rank_ic are measured on the
        test sessions:

        - model; delay (sessions); seeds (number of seeds);
        - ic, icir, ic_t (Newey-West t-statistic), rank_ic, rank_icir;
        - coverage_dates, coverage_firms: fractions of the test dates and of the universe's firms with a
          forecast; tied: fraction of forecasts that equal another forecast of the same date;
        - precision_at_10 (fraction); literature_sr (annualised Sharpe ratio without costs);
        - valid_rank_ic (validation); share_of_truth (fraction of the ceiling, null on real data);
        - sharpe_gross, sharpe_net (annualised); turnover (one-way, a fraction of NAV per session);
          annual_return_net (fraction); max_drawdown_net (fraction, negative or positive);
        - ic_lower, ic_upper (interval of the IC); sharpe_lower, sharpe_upper (interval of sharpe_net);
          deflated_sharpe (probability); null at other delays than that of the verdict;
        - beats_ridge, beats_lightgbm (yes, no or unclear): the answers of ``comparisons``; null where the
          models were not compared, and at other delays.

        Optional columns: seed_dispersion (standard deviation between seeds, averaged over firms and dates);
        missing (description of the folds and seeds without forecasts, null if there are none); baseline
        (ridge, lightgbm or null: which baseline the model is); and for a long-only book, prefixed with the
        book's name and a dot, sharpe_gross, sharpe_net, information_ratio, tracking_error (fraction per
        year) and annual_return_net.
    folds
        fold, train_from, train_to, valid_from, valid_to, test_from, test_to (Date), n_train, n_valid,
        n_test (sessions).
    equity
        date, model, book, nav_gross, nav_net: NAV on the test sessions, starting at 1, for the delay of the
        verdict. Optional: excess_net (net return over the risk-free rate), turnover, unfilled, leverage and
        net_exposure by session.
    ic_series
        date, model, ic, rank_ic: one row per test session and model, for the delay of the verdict.
    quantiles
        model, quantile (1 = lowest forecasts), mean_return_bps (mean label, basis points).
    cost_assumptions
        assumption, value, unit.
    cost_breakdown
        model, book, half_spread, commission, impact, borrow, financing: basis points of NAV per year.
    learning
        model, fold, seed, epoch, train_loss, valid_rank_ic: only models that are trained by epochs.
    truth
        Only for a simulated market.
    comparisons
        One row per model and rival (a baseline or a variant of one) at the delay of the verdict: model,
        baseline, rival, delay, level, then ic_difference, its interval (ic_lower, ic_upper) and p-value
        (ic_p), the p-value of the Diebold-Mariano test (dm_p), sharpe_difference (annualised, net of costs),
        its interval (sharpe_lower, sharpe_upper) and p-value (sharpe_p), and beats (yes, no or unclear). None
        if there was no baseline to compare with.
    horizons
        model, horizon (sessions), seeds, ic, ic_t, icir, rank_ic: scores of the seed ensemble on test
        sessions, for models that forecast shorter horizons before that of the label.
    quantile_scores
        model, level, pinball and reference (score of the quantile of the training targets; both in the
        target's unit), below (fraction of targets not above the quantile): test sessions, averaged over
        folds and seeds, for models trained with the quantile loss.
    endings
        model, book, side (book; for a long-short book also long and short), paid_out (number of positions in
        firms that were delisted for an unknown reason, without a recorded return), and sharpe_net_0, _30, _55
        and annual_return_net_0, _30, _55 (fraction) under the assumption that these delistings return 0, -30%
        and -55%. None if there were no such delistings.
    attribution
        One entry per explained model.
    explorer
        File beside the report that shows the peer networks; None if the run has none.
    books, signals, trials
        Further tables; see :mod:`.contents.analysis`.

    file
        Only for a file of signals: how its rows were used, and the look-ahead guard.

    Raises
    ------
    ValueError
        If a frame lacks a column, or if the ladder has no row for the delay of the label.
    """

    header: RunHeader
    ladder: pl.DataFrame
    folds: pl.DataFrame | None = None
    equity: pl.DataFrame | None = None
    ic_series: pl.DataFrame | None = None
    quantiles: pl.DataFrame | None = None
    cost_assumptions: pl.DataFrame | None = None
    cost_breakdown: pl.DataFrame | None = None
    learning: pl.DataFrame | None = None
    truth: SimulatedTruth | None = None
    comparisons: pl.DataFrame | None = None
    horizons: pl.DataFrame | None = None
    quantile_scores: pl.DataFrame | None = None
    endings: pl.DataFrame | None = None
    attribution: tuple[ModelAttribution, ...] = ()
    explorer: str | None = None
    books: BookTables = field(default_factory=BookTables)
    signals: SignalTables = field(default_factory=SignalTables)
    trials: TrialTables = field(default_factory=TrialTables)
    file: SignalFile | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame, and that the ladder covers the label's delay."""
        require_columns("ladder", self.ladder, LADDER_COLUMNS)
        require_columns("folds", self.folds, FOLD_COLUMNS)
        require_columns("equity", self.equity, EQUITY_COLUMNS)
        require_columns("ic_series", self.ic_series, IC_COLUMNS)
        require_columns("quantiles", self.quantiles, QUANTILE_COLUMNS)
        require_columns("cost_assumptions", self.cost_assumptions, ASSUMPTION_COLUMNS)
        require_columns("cost_breakdown", self.cost_breakdown, COST_COLUMNS)
        require_columns("learning", self.learning, LEARNING_COLUMNS)
        require_columns("comparisons", self.comparisons, COMPARISON_COLUMNS)
        require_columns("horizons", self.horizons, HORIZON_COLUMNS)
        require_columns("quantile_scores", self.quantile_scores, QUANTILE_SCORE_COLUMNS)
        require_columns("endings", self.endings, ENDING_COLUMNS)
        for delay, use in (
            (self.header.label_delay, "label"),
            (self.header.verdict_delay, "verdict"),
        ):
            if delay not in self.ladder["delay"].to_list():
                raise ValueError(
                    f"The ladder has no row with delay {delay}, the delay of the {use}; "
                    "add one row per model for that delay."
                )

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in the order of the ladder."""
        return tuple(self.ladder["model"].unique(maintain_order=True).to_list())

    @property
    def main_ladder(self) -> pl.DataFrame:
        """The rows of the ladder with the delay of the label."""
        return self.ladder.filter(pl.col("delay") == self.header.label_delay)

    @property
    def verdict_ladder(self) -> pl.DataFrame:
        """The rows of the ladder with the delay of the verdict."""
        return self.ladder.filter(pl.col("delay") == self.header.verdict_delay)
