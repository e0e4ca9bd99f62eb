"""What a report shows: the numbers of one run, already computed, as frames with named columns.

The report computes nothing that a decision could rest on; it draws what a run measured. Rates are fractions
(0.12 is 12%) unless a column's name says ``bps``. Null and NaN both mean "not known" and show as a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

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
    "sharpe_gross",
    "sharpe_net",
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
COST_COLUMNS = ("model", "book", "half_spread", "commission", "borrow")
QUANTILE_SCORE_COLUMNS = ("model", "level", "pinball", "reference", "below")
LABEL_SHARE_COLUMNS = (
    "group",
    "model",
    "beginning",
    "share",
    "seeds",
    "valid_rank_ic",
    "valid_lowest",
    "valid_highest",
    "rank_ic",
    "lowest",
    "highest",
    "gain",
    "gain_lowest",
    "gain_highest",
)
ENDING_COLUMNS = (
    "model",
    "book",
    "side",
    "paid_out",
    *(f"{name}_{suffix}" for name in ("sharpe_net", "annual_return_net") for suffix in ("0", "30", "55")),
)
HORIZON_COLUMNS = ("model", "horizon", "seeds", "ic", "ic_t", "icir", "rank_ic")
LEARNING_COLUMNS = ("model", "fold", "seed", "epoch", "train_loss", "valid_rank_ic")
VERSION_COLUMNS = ("table", "version", "rows")
CEILING_COLUMNS = ("delay", "ic", "rank_ic")
AUC_COLUMNS = ("method", "auc")
ROC_COLUMNS = ("method", "fpr", "tpr")
PLANTED_COLUMNS = ("leader", "follower", "weight", "planted")
PLAYER_COLUMNS = ("kind", "player", "mean_abs_shap")
AGREEMENT_COLUMNS = ("kind", "rank_correlation")
CONTRIBUTION_COLUMNS = ("player", "value")
AUDIT_COLUMNS = ("check", "verdict", "sentence")
EVALUATION_COLUMNS = ("evaluation", "made_at", "commit", "assumptions", "shown")
SESSION_SCHEMA = {
    "started": pl.String,
    "tasks": pl.Int64,
    "commit": pl.String,
    "code": pl.String,
    "device": pl.String,
    "torch": pl.String,
    "trials": pl.Int64,
}
EDGE_COLUMNS = ("leader", "follower", "weight", "share", "same_group")


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Who, when, on what data and with which settings: what makes the numbers traceable.

    Attributes
    ----------
    run_id, name, created_at
        Identity of the run; ``created_at`` is when the newest of what is shown was made, shown as given.
    git_commit
        Commits of the code that trained the models, in the order of the sessions; None if not recorded.
    config_yaml, config_hash
        The resolved configuration and its digest.
    device
        What trained the models, in words.
    libraries
        Library -> version that trained the models; several where sessions had different ones.
    data_versions
        table, version (Int, null if unversioned), rows.
    trial_count
        Configurations that the ledger has counted, kept or thrown away.
    seeds
        Seeds of the ensemble.
    label_delay, label_horizon
        In sessions; the ladder's rows of this delay are the ones that the verdict reads.
    label_transform
        raw, demean or rank.
    universe
        The rule in words.
    mean_firms_per_date
        Mean number of firms in the universe over the test sessions.
    main_book
        The book of ``equity`` that the ladder's Sharpe, turnover, return and drawdown belong to.
    stage_seconds
        Stage -> wall-clock seconds, in the order they ran.
    sharpe_rate
        The risk-free rate that Sharpe ratios are over, in words.
    hazards
        One sentence each: what may make the numbers wrong. Shown in the amber box.
    notes
        One sentence each: what a reader should know, but need not fear.
    audit
        check, verdict (fail, warn, pass, skipped), sentence: the last audit's; None if none was made.
    evaluation
        Id of the evaluation whose tables are shown.
    evaluations
        evaluation, made_at, commit, assumptions, shown (bool): every evaluation of the run, the newest first.
    sessions
        started, tasks (done in it), commit, code (digest), device, torch, trials: the training sessions.
    incomplete
        The tasks that have no forecasts, in words; None for a complete run.
    measured_on
        The dates that all models forecast and are compared on, in words.
    """

    run_id: str
    name: str
    created_at: str
    git_commit: str | None
    config_yaml: str
    config_hash: str
    device: str
    libraries: Mapping[str, str]
    data_versions: pl.DataFrame
    trial_count: int
    seeds: tuple[int, ...]
    label_delay: int
    label_horizon: int
    label_transform: str
    universe: str
    mean_firms_per_date: float
    main_book: str
    stage_seconds: Mapping[str, float]
    sharpe_rate: str = "a rate of 0"
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    audit: pl.DataFrame | None = None
    evaluation: str = ""
    evaluations: pl.DataFrame | None = None
    sessions: pl.DataFrame | None = None
    incomplete: str | None = None
    measured_on: str | None = None

    def __post_init__(self) -> None:
        """Refuse frames that lack a column."""
        require("data_versions", self.data_versions, VERSION_COLUMNS)
        require("audit", self.audit, AUDIT_COLUMNS)
        require("evaluations", self.evaluations, EVALUATION_COLUMNS)
        require("sessions", self.sessions, tuple(SESSION_SCHEMA))


@dataclass(frozen=True, slots=True)
class SimulatedTruth:
    """What the simulated market knows and a real one never tells.

    Attributes
    ----------
    ceiling
        delay, ic, rank_ic: what the planted conditional mean itself scores on the test sessions.
    edge_model
        The model whose peer network was compared with the planted edges; None if none was.
    edge_auc
        method (shap, attention, random, ...), auc: area under the ROC curve of "this pair is planted".
    roc
        method, fpr, tpr: fractions in [0, 1], in the order of falling score.
    top_edges
        leader, follower, weight, planted (bool): the strongest edges by SHAP.
    n_planted, n_pairs
        Planted edges, and ordered pairs that were ranked.
    """

    ceiling: pl.DataFrame
    edge_model: str | None = None
    edge_auc: pl.DataFrame | None = None
    roc: pl.DataFrame | None = None
    top_edges: pl.DataFrame | None = None
    n_planted: int | None = None
    n_pairs: int | None = None

    def __post_init__(self) -> None:
        """Refuse frames that lack a column."""
        require("ceiling", self.ceiling, CEILING_COLUMNS)
        require("edge_auc", self.edge_auc, AUC_COLUMNS)
        require("roc", self.roc, ROC_COLUMNS)
        require("top_edges", self.top_edges, PLANTED_COLUMNS)


@dataclass(frozen=True, slots=True)
class ExampleForecast:
    """One forecast taken apart: ``base_value`` plus the players' values is ``forecast``.

    Attributes
    ----------
    date, ticker
        Which forecast.
    base_value, forecast
        With every player absent, and with all present; in the unit of the forecast.
    contributions
        player, value: Shapley values, in the unit of the forecast.
    """

    date: str
    ticker: str
    base_value: float
    forecast: float
    contributions: pl.DataFrame

    def __post_init__(self) -> None:
        """Refuse a frame that lacks a column."""
        require("contributions", self.contributions, CONTRIBUTION_COLUMNS)


@dataclass(frozen=True, slots=True)
class ModelAttribution:
    """Why one model forecast what it did, and how far that answer can be believed.

    Attributes
    ----------
    model
        Name, as in the ladder.
    n_forecasts
        Forecasts explained.
    players
        kind (days, features, peers), player, mean_abs_shap in the unit of the forecast.
    additivity_max_abs, additivity_relative
        Largest |base + sum of values - forecast|: in the unit of the forecast, and as a fraction of
        mean |forecast - base|.
    monte_carlo_error
        Mean standard error of a Shapley value, in the unit of the forecast; None if enumerated exactly.
    agreement
        kind, rank_correlation: mean over forecasts of Spearman's correlation of attention with |SHAP|.
    example
        One forecast, taken apart.
    edges
        leader, follower, weight (mean |SHAP| of the leader in the follower's forecast), share (of all
        weight, fraction), same_group (bool, null if unknown).
    homophily, homophily_by_chance
        Share of all edge weight within a group, and what random pairs would give; fractions.
    """

    model: str
    n_forecasts: int
    players: pl.DataFrame
    additivity_max_abs: float
    additivity_relative: float
    monte_carlo_error: float | None = None
    agreement: pl.DataFrame | None = None
    example: ExampleForecast | None = None
    edges: pl.DataFrame | None = None
    homophily: float | None = None
    homophily_by_chance: float | None = None

    def __post_init__(self) -> None:
        """Refuse frames that lack a column."""
        require("players", self.players, PLAYER_COLUMNS)
        require("agreement", self.agreement, AGREEMENT_COLUMNS)
        require("edges", self.edges, EDGE_COLUMNS)


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a report shows. An optional part that is None has no section.

    Attributes
    ----------
    header
        Identity and provenance.
    ladder
        One row a (model, delay), in the order to be shown: model, delay (sessions), seeds (count), ic, icir,
        ic_t (Newey-West), rank_ic, rank_icir, coverage_dates, coverage_firms (shares of the test dates and of
        the universe's firms that were forecast), tied (share of forecasts that equal another one of their
        date), precision_at_10 (fraction), literature_sr (annualised, no
        costs), valid_rank_ic (validation), share_of_truth (fraction of the ceiling, null on real data),
        sharpe_gross, sharpe_net (annualised), turnover (fraction of NAV traded per session),
        annual_return_net (fraction), max_drawdown_net (fraction, negative or positive), beats_ridge,
        beats_lightgbm (bool: higher net Sharpe with the same book and costs; null where not comparable). May
        have seed_dispersion: mean over firms and dates of the standard deviation between seeds,
        missing: in words, the folds and seeds that a model has no forecasts of (null: none),
        and baseline (ridge, lightgbm or null): which of the two a model is; and of a long-only book, under
        its name and a point, sharpe_gross, sharpe_net, information_ratio, tracking_error (fraction a year),
        annual_return_net.
        All but valid_rank_ic are of the test sessions.
    folds
        fold, train_from, train_to, valid_from, valid_to, test_from, test_to (Date), n_train, n_valid,
        n_test (sessions).
    equity
        date, model, book, nav_gross, nav_net: test sessions, NAV of 1 at the start, delay of the header.
    ic_series
        date, model, ic, rank_ic: per test session, delay of the header.
    quantiles
        model, quantile (1 = lowest forecasts), mean_return_bps (mean label, basis points).
    cost_assumptions
        assumption, value, unit.
    cost_breakdown
        model, book, half_spread, commission, borrow: basis points of NAV per year.
    learning
        model, fold, seed, epoch, train_loss, valid_rank_ic.
    truth
        Of a simulated market only.
    horizons
        model, horizon (sessions), seeds, ic, ic_t, icir, rank_ic: test sessions, seed ensemble, of models
        that forecast shorter horizons on the way to the label's.
    quantile_scores
        model, level, pinball and reference (that of the training targets' quantile; target's unit), below
        (share of targets not above the quantile, fraction): test sessions, mean over folds and seeds, of
        models that were fitted to the quantile loss.
    label_shares
        group (a model with its options), model, beginning (in words), share (of the training dates whose
        labels were used, fraction), seeds, and of the seeds the mean, the lowest and the highest rank IC on
        validation (valid_rank_ic, valid_lowest, valid_highest) and on test sessions (rank_ic, lowest,
        highest), and of the test's less that of the same seed from scratch on the same labels (gain,
        gain_lowest, gain_highest; null where there is no such variant). Of variants of one model that differ
        in how they begin or in their share of the labels.
    endings
        model, book, side (book; of a long-short book also long and short), paid_out (positions that ended
        for an unknown reason without a recorded return), and sharpe_net_0, _30, _55 and annual_return_net_0,
        _30, _55 (fraction) if such endings pay 0, -30% and -55%. None if there were none.
    attribution
        One entry per explained model.

    Raises
    ------
    ValueError
        If a frame lacks a column, or the ladder has no row for the header's delay.
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
    horizons: pl.DataFrame | None = None
    quantile_scores: pl.DataFrame | None = None
    label_shares: pl.DataFrame | None = None
    endings: pl.DataFrame | None = None
    attribution: tuple[ModelAttribution, ...] = ()

    def __post_init__(self) -> None:
        """Refuse frames that lack a column and a ladder without the label's delay."""
        require("ladder", self.ladder, LADDER_COLUMNS)
        require("folds", self.folds, FOLD_COLUMNS)
        require("equity", self.equity, EQUITY_COLUMNS)
        require("ic_series", self.ic_series, IC_COLUMNS)
        require("quantiles", self.quantiles, QUANTILE_COLUMNS)
        require("cost_assumptions", self.cost_assumptions, ASSUMPTION_COLUMNS)
        require("cost_breakdown", self.cost_breakdown, COST_COLUMNS)
        require("learning", self.learning, LEARNING_COLUMNS)
        require("horizons", self.horizons, HORIZON_COLUMNS)
        require("quantile_scores", self.quantile_scores, QUANTILE_SCORE_COLUMNS)
        require("endings", self.endings, ENDING_COLUMNS)
        require("label_shares", self.label_shares, LABEL_SHARE_COLUMNS)
        if self.header.label_delay not in self.ladder["delay"].to_list():
            raise ValueError(
                f"the ladder has no row with delay {self.header.label_delay}, which the label trades at: "
                "give one row per model for that delay"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """Model names in the ladder's order."""
        return tuple(self.ladder["model"].unique(maintain_order=True).to_list())

    @property
    def main_ladder(self) -> pl.DataFrame:
        """The ladder's rows at the label's own delay."""
        return self.ladder.filter(pl.col("delay") == self.header.label_delay)


def require(name: str, frame: pl.DataFrame | None, columns: tuple[str, ...]) -> None:
    """Raise ValueError, naming the frame, if it lacks one of the columns; None passes."""
    if frame is None:
        return
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"the report's {name} frame lacks {', '.join(missing)}: add the column(s)")
