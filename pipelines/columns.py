"""The result tables, declared once: which columns each has, and what a column of a name holds everywhere.

`COLUMNS` gives type, unit, meaning and number format of every column, `TABLES` the columns of every table.
Evaluation writes by them (`ResultTable.frame`); the terminal, the JSON document, pages, MLflow and the
guide's page on result tables read names, units and formats from them.

Returns, weights and costs are fractions unless the unit says otherwise. Null: unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, cast

import dataframely as dy
import polars as pl

from backtest.costs import COST_KINDS
from backtest.look_ahead.finding import VERDICTS
from pipelines.format import (
    ANSWER,
    BPS,
    COUNT,
    IC,
    NAMES,
    PERCENT,
    PLAIN,
    RATIO,
    SCORE,
    TEXT,
    YES_NO,
    Kind,
    P,
    T,
)

_SESSION: Final = "% / session"
_YEAR: Final = "% / year"
_DIGITS_2: Final = PERCENT.at(2)
_EXPOSURE: Final = Kind(3, signed=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of result tables: name, label without unit, meaning, how a value is written and its unit."""

    name: str
    label: str
    meaning: str = ""
    kind: Kind = RATIO
    unit: str = ""
    dtype: pl.DataType = pl.Float64()  # noqa: RUF009 (a type, which never changes)
    optional: bool = False

    @property
    def heading(self) -> str:
        """Label with its unit, as in ``turnover % / session``."""
        return f"{self.label} {self.unit}".strip()

    def text(self, value: Any) -> str:  # noqa: ANN401 (a cell of any type)
        """Write a value for a terminal (`Kind.text`)."""
        return self.kind.text(value)

    @property
    def contract(self) -> dy.Column:
        """The column as dataframely checks it."""
        if self.dtype.is_float():
            kind = dy.Float32 if self.dtype == pl.Float32 else dy.Float64
            return kind(nullable=True, allow_inf=True)
        if self.dtype == pl.Enum:
            return dy.Enum(VERDICTS)
        if self.dtype == pl.List:
            return dy.List(dy.String(), nullable=True)
        types = {pl.String(): dy.String, pl.Int64(): dy.Int64, pl.Date(): dy.Date, pl.Boolean(): dy.Bool}
        contract: dy.Column = types[self.dtype](nullable=self.name not in KEYS)
        return contract


KEYS: Final = frozenset({"model", "book", "delay", "benchmark", "signal", "name"})  # never null


def _text(name: str, label: str, meaning: str = "", kind: Kind = TEXT) -> Column:
    return Column(name, label, meaning, kind, dtype=pl.String())


def _count(name: str, label: str, meaning: str = "", unit: str = "") -> Column:
    return Column(name, label, meaning, COUNT, unit, pl.Int64())


def _share(name: str, label: str, meaning: str, unit: str = "%", kind: Kind = PERCENT) -> Column:
    return Column(name, label, meaning, kind, unit)


def _day(name: str, label: str, meaning: str = "") -> Column:
    return Column(name, label, meaning, TEXT, dtype=pl.Date())


def _flag(name: str, label: str, meaning: str = "") -> Column:
    return Column(name, label, meaning, YES_NO, dtype=pl.Boolean())


def _position(name: str, label: str, meaning: str, kind: Kind = _DIGITS_2, unit: str = "%") -> Column:
    return Column(name, label, meaning, kind, unit, pl.Float32())


_DEFINED: Final = (
    _text("model", "model", "entry of the config's models, or a signal"),
    _text("book", "book", "book of the config"),
    _count("delay", "delay", "delay of the label", "sessions"),
    _text("signal", "signal"),
    _text("name", "model", "RUN:MODEL"),
    _day("date", "date"),
    _text("ticker", "name"),
    _count("seeds", "seeds", "number of seeds"),
    # forecasts
    Column("valid_rank_ic", "valid rIC", "rank IC on validation, used to choose the model", IC),
    Column("valid_ic", "valid IC", "IC on validation", IC),
    Column("ic", "IC", "mean daily Pearson correlation with the label", IC),
    Column("icir", "ICIR", "mean over standard deviation of the daily ICs"),
    Column("rank_ic", "rank IC", "mean daily Spearman correlation with the label", IC),
    Column("rank_icir", "rank ICIR", "mean over standard deviation of the daily rank ICs"),
    _share("precision_at_10", "prec@10", "share of the 10 highest forecasts that do not fall"),
    Column("literature_sr", "SR (lit.)", "annual Sharpe ratio of the 5 highest forecasts, without costs"),
    Column("r2_oos", "R2", "out of sample, against a forecast of zero", IC),
    Column("ensemble_ic", "ens. IC", "IC of the seed ensemble", IC),
    Column("ensemble_rank_ic", "ens. rank IC", "rank IC of the seed ensemble", IC),
    Column("ic_t", "t (NW)", "Newey-West t-statistic of the mean IC", T),
    Column("rank_ic_t", "t (NW)", "Newey-West t-statistic of the mean rank IC", T),
    _share("coverage_dates", "dates", "share of test dates with forecasts"),
    _share("coverage_firms", "firms", "share of the universe's firms on these dates with a forecast"),
    _share("tied", "tied", "share of forecasts that equal another forecast of the same date"),
    Column("seed_dispersion", "seed SD", "standard deviation between seeds, in those of the forecast"),
    Column("truth_ic", "true IC", "IC of a simulated market's true mean", IC),
    Column("truth_rank_ic", "true rank IC", "rank IC of a simulated market's true mean", IC),
    replace(_text("missing", "missing", "folds and seeds without forecasts"), optional=True),
    _count("horizon", "horizon", "sessions that the label spans", "sessions"),
    _count("dates", "dates", "dates measured"),
    _count("quantile", "quantile", "1 holds the lowest forecasts"),
    _count("quantiles", "quantiles", "number of quantiles"),
    Column("mean_return_bps", "mean return", "mean label of the quantile", Kind(1), "bps"),
    Column("spread_bps", "top less bottom", "mean label, top less bottom quantile", Kind(1).with_sign, "bps"),
    Column("lower_bps", "from", "lower end of the 95% interval", Kind(1, signed=True), "bps"),
    Column("upper_bps", "to", "upper end of the 95% interval", Kind(1, signed=True), "bps"),
    Column("t", "t (NW)", "Newey-West t-statistic", T.with_sign),
    _count("lag", "lag", "forecast dates between the signals that are compared", "dates"),
    Column("rank_autocorrelation", "rank autocorrelation", "of the signal, mean over dates", Kind(3)),
    _share("top_turnover", "top quantile replaced", "share of its firms"),
    _share("bottom_turnover", "bottom quantile replaced", "share of its firms"),
    Column("level", "level", "of the tests, or of the quantile"),
    Column("pinball", "pinball", "score in the target's unit; lower is better", SCORE),
    _count("fold", "fold", "number of the fold, from 0"),
    _text("member", "member", "entry of the config's models"),
    Column("member_weight", "weight", "of the member's standardised forecast; those of a fold sum to 1"),
    Column("reference", "reference", "score of the training targets' quantile", SCORE),
    _share("below", "below", "share of targets not above the quantile"),
    # books
    Column("nav_gross", "gross NAV", "before costs, 1 at the start"),
    Column("nav_net", "net NAV", "after costs, 1 at the start"),
    _share(
        "excess_net", "net excess return", "over the risk-free rate; null without positions", kind=_DIGITS_2
    ),
    Column("sharpe_gross", "gross Sharpe", "annual Sharpe ratio before costs"),
    Column("sharpe_net", "net Sharpe", "annual Sharpe ratio after costs"),
    Column("sharpe_lower", "from", "lower end of the 95% interval of the net Sharpe ratio"),
    Column("sharpe_upper", "to", "upper end of the 95% interval of the net Sharpe ratio"),
    Column(
        "information_ratio", "IR", "active return over tracking error; in the ladder, to the first benchmark"
    ),
    _share("tracking_error", "tracking error", "active risk: standard deviation of the active return", _YEAR),
    _text("benchmark", "benchmark", "entry of backtest.benchmarks"),
    _text("returns", "returns", "of the benchmark: total, or price (without dividends)"),
    _share("benchmark_return", "benchmark's return", "geometric mean", _YEAR),
    _share("tracking_difference", "tracking difference", "net return less benchmark's return", _YEAR),
    _share("active_return", "active return", "mean of the session's net return less the benchmark's", _YEAR),
    Column("beta", "beta", "of session returns to the benchmark's"),
    _share("up_capture", "up capture", "mean return over the benchmark's when that rises"),
    _share("down_capture", "down capture", "mean return over the benchmark's when that falls"),
    _share("active_drawdown", "active drawdown", "largest fall of the compounded active return from a peak"),
    Column("nav_benchmark", "benchmark NAV", "1 until the first trade of the book"),
    _share("annual_return_gross", "gross return", "geometric mean before costs", _YEAR),
    _share("annual_return_net", "net return", "geometric mean after costs", _YEAR),
    _share("annual_volatility_net", "volatility", "standard deviation of net returns", _YEAR),
    _share("max_drawdown_net", "max drawdown", "largest loss from a peak, after costs"),
    Column("sortino_net", "Sortino", "annual net excess return over its downside deviation"),
    Column("calmar_net", "Calmar", "return per year over the largest drawdown"),
    _share("hit_rate_net", "hit rate", "share of sessions with a gain"),
    Column("skew_net", "skewness", "of daily net returns", RATIO.with_sign),
    _share("worst_day_net", "worst day", "lowest net return of a session", kind=_DIGITS_2),
    _share("best_day_net", "best day", "highest net return of a session", kind=_DIGITS_2),
    Column("leverage", "leverage", "gross value of positions over NAV"),
    _share("net_exposure", "net exposure", "net value of positions over NAV", "% of NAV"),
    _share("turnover", "turnover", "one-way, of NAV", _SESSION),
    _share("unfilled", "unfilled", "orders not traded, one-way, of NAV", _SESSION, _DIGITS_2),
    _count("n_sessions", "sessions", "from the first trade to the last session"),
    _count("sessions", "sessions", "sessions measured"),
    _count("signal_dates", "dates with signals"),
    _count("decisions", "dates with decisions", "dates with signals that the book used"),
    *(
        Column(kind, kind.replace("_", "-"), "cost of this kind", BPS, "bps of NAV / year")
        for kind in COST_KINDS
    ),
    Column("turnover_per_year", "turnover", "one-way", Kind(1), "x NAV / year"),
    Column("cost_bps_per_year", "costs", "of all kinds", BPS, "bps / year"),
    _text("note", "note", "what happened, and why"),
    _text("side", "side", "book, or only its long or short weights"),
    _count("paid_out", "positions", "positions in firms delisted for an unknown reason"),
    *(
        replace(column, name=f"{column.name}_{paid}", meaning=f"if unknown delistings pay -{paid}%")
        for paid in (0, 30, 55)
        for column in (
            Column("sharpe_net", "net Sharpe"),
            _share("annual_return_net", "net return", "", _YEAR),
        )
    ),
    Column("capital", "capital", "in the currency of the prices", COUNT),
    Column("impact_bps_per_year", "impact", "market impact", BPS, "bps / year"),
    _share(
        "participation_p95", "participation", "95th percentile, of trailing dollar volume", kind=_DIGITS_2
    ),
    _text("term", "term", "alpha or a factor"),
    Column("coefficient", "coefficient", "of the regression; alpha's is a year's", _EXPOSURE),
    Column("p_value", "p", "p-value", P),
    _share("variance_share", "of variance", "share of the variance of the book's returns"),
    _share("per_year", "return", "coefficient times the factor's mean return", _YEAR),
    Column("r2", "R\N{SUPERSCRIPT TWO}", "of the regression"),
    _text("reading", "reading", "what alpha says, in words; null for other terms"),
    _text("factors", "factors", "entry of backtest.factors"),
    _flag("after_costs", "after costs", "whether the returns are net of costs"),
    _text("frequency", "frequency", "of the factors: daily, weekly or monthly"),
    Column("error", "standard error", "Newey-West, in the unit of the coefficient", _EXPOSURE),
    _count("periods", "periods", "used in the regression"),
    _text("by", "by", "side, factor, risk, name, or sector: the group that features.group_by names"),
    _text("key", "key", "sector, style, side, factor or name"),
    _text("kind", "kind", "style, or sector: the group that features.group_by names"),
    _share("volatility", "predicted volatility", "of the book in the next session, by the risk model", _YEAR),
    _share("factor_volatility", "of factors", "the part that comes from the factors", _YEAR),
    _share("specific_volatility", "specific", "the part that is specific to the firms", _YEAR),
    Column("surprise", "surprise", "return until the next row over its predicted volatility"),
    Column("exposure", "exposure", "weights times exposures, added up", _EXPOSURE),
    _share("gross", "before costs", "of starting capital", "%", _DIGITS_2),
    _share("cost", "costs", "of starting capital", "%", _DIGITS_2),
    _share("net", "net", "of starting capital", "%", _DIGITS_2),
    Column("mean", "mean exposure", "over dates: weight, standardised signal or rank correlation", _EXPOSURE),
    Column("low", "low", "lowest", _EXPOSURE),
    Column("high", "high", "highest", _EXPOSURE),
    _count("rank", "rank", "1 is the worst"),
    _day("peak", "peak"),
    _day("trough", "trough"),
    _day("recovered", "recovered", "null: not yet"),
    _share("depth", "depth", "loss from the peak"),
    _share("return_net", "net return", "of the session", "%", _DIGITS_2),
    Column("names", "names responsible", "firms that lost most", NAMES, dtype=pl.List(pl.String)),
    _position("weight", "weight", "after trades, of the day's NAV"),
    _position("trade", "traded", "of the day's NAV"),
    _position("pnl", "profit", "before costs, of the NAV before", Kind(1, 1e4, signed=True), "bps"),
    _text("rule", "rule"),
    _text("evidence", "evidence"),
    _flag("earns", "earns", "whether the price row earns as delivered"),
    # tests and trials
    _text("baseline", "baseline", "ridge or lightgbm; in multiple_tests the best one"),
    _text("rival", "compared with", "the entry that is this baseline, or a variant of it"),
    _text("year", "year", "calendar year, or all"),
    _count("lags", "lags", "Newey-West lags"),
    Column("ic_difference", "IC difference", "of the daily ICs", IC.with_sign),
    Column("ic_lower", "from", "lower end of the 95% interval of the IC or its difference", IC),
    Column("ic_upper", "to", "upper end of the 95% interval of the IC or its difference", IC),
    Column("ic_bootstrap_lower", "from", "the same by stationary bootstrap", IC),
    Column("ic_bootstrap_upper", "to", "the same by stationary bootstrap", IC),
    Column("ic_p", "p", "p-value of the IC test with Newey-West errors", P),
    Column("dm_t", "t (DM)", "Diebold-Mariano of losses 1 - IC; positive: loses less", T.with_sign),
    Column("dm_p", "p (DM)", "Diebold-Mariano test of the losses 1 - IC", P),
    Column("sharpe_difference", "Sharpe difference", "annual, net of costs", RATIO.with_sign),
    Column("sharpe_p", "p", "stationary bootstrap", P),
    _text("beats", "beats", "yes, no or unclear", ANSWER),
    Column("probabilistic_sharpe", "probabilistic Sharpe", "probability that the true ratio is above 0"),
    Column("deflated_sharpe", "deflated Sharpe", "probability of skill, given the trials in the ledger"),
    Column("deflated_effective", "effective", "the same with the effective number of trials", optional=True),
    Column("rademacher_lower", "at least", "Rademacher bound of the true net Sharpe ratio", optional=True),
    _count("trials", "trials", "trials in the ledger that count"),
    Column("effective_trials", "effective trials", "independent trials", Kind(1), optional=True),
    Column("spa_p", "p (SPA)", "no model earns more than the risk-free rate", P),
    _flag("in_stepm", "StepM", "better than nothing with every model counted"),
    Column("mcs_p", "p", "model confidence set", P),
    _flag("in_mcs", "in it?", "in the model confidence set: its p is at least the level"),
    Column("baseline_spa_p", "p (SPA)", "no model earns more than the best baseline", P),
    _flag("in_baseline_stepm", "StepM", "better than the best baseline with every model counted"),
    _count("path", "path", "of combinatorial folds, from 1"),
    _text("candidates", "candidates", "what was selected from"),
    _count("variants", "variants", "number of candidates"),
    _count("blocks", "blocks", "of sessions"),
    Column("pbo", "probability of overfitting", "the best of one half is at most the median of the other"),
    Column("loss_probability", "probability of a loss", "the best of one half loses in the other"),
    _count("trials_left_out", "left out", "trials that count and have no returns on these sessions"),
    _count("on_market", "on this market", "trials of all hypotheses"),
    _text("hypothesis", "hypothesis", "null: the trials of the whole market count"),
    _text("reach", "reach", "which trials count, in words"),
    # signal files
    _text("reason", "reason", "used, or why rows are left out"),
    _text("known_from", "known from", "first and last knowledge cutoff of the rows"),
    _text("part", "forecasts", "before or after their cutoff"),
    _count("rows", "rows"),
    _text("check", "check"),
    Column("verdict", "verdict", ", ".join(VERDICTS), TEXT, dtype=pl.Enum(VERDICTS)),
    _text("sentence", "finding"),
    # multiverses
    _text("outcome", "result", "net Sharpe ratio or IC"),
    _count("designs", "designs", "with a result"),
    Column("median", "median", "over designs", PLAIN),
    Column("q05", "5%", "quantile over designs", PLAIN),
    Column("q95", "95%", "quantile over designs", PLAIN),
    Column("interquartile_range", "non-standard error", "interquartile range over designs", PLAIN),
    Column("deviation", "standard deviation", "over designs", PLAIN),
    Column("mean_error", "standard error", "mean over designs", PLAIN),
    _text("effect", "choice", "a setting, two for their interaction, or the rest"),
    _share("share", "of variance", "over designs, without noise; that of a weak effect may be below 0"),
    _share("share_lower", "from", "lower end of the 95% interval"),
    _share("share_upper", "to", "upper end of the 95% interval"),
    # revisions
    _text("compared", "compared", "data versions, or statements as filed, as published and as restated"),
    _text("data", "data", "tables whose version is new, or which values of statements"),
    _text("committed", "committed", "when the newest of these versions was, in UTC"),
    _text("table", "table", "of the lake; gaps and flags are those of prices; null: all others together"),
    Column("sharpe_net_moved", "net Sharpe moved", "share in the difference", Kind(4, signed=True)),
    Column("sharpe_net_moved_error", "error", "Monte Carlo standard error; 0: exact", Kind(4)),
    Column("ic_moved", "IC moved", "share in the difference", Kind(6, signed=True)),
    Column("ic_moved_error", "error", "Monte Carlo standard error; 0: exact", Kind(6)),
    Column("rank_ic_moved", "rank IC moved", "share in the difference", Kind(6, signed=True)),
    Column("rank_ic_moved_error", "error", "Monte Carlo standard error; 0: exact", Kind(6)),
    _day("day", "day", "of the row that changed most"),
    _text("column", "column", "that changed most, or added, or withdrawn"),
    _text("before", "before"),
    _text("after", "after"),
    # replications
    _text("step", "step", "published, then what is changed one after the other"),
    _text("audit", "audit", "worst verdict of the audit, and the checks with it"),
    _text("run", "run", "id of the run"),
    Column("value", "value", "what the check measured", PLAIN),
)
COLUMNS: Final[Mapping[str, Column]] = MappingProxyType({column.name: column for column in _DEFINED})
BOOK_FIGURES: Final = (  # of each book in the ladder, as `of_book` names them
    *("sharpe_gross", "sharpe_net", "information_ratio", "tracking_error", "turnover", "annual_return_net"),
    "max_drawdown_net",
)


def of_book(book: str, figure: str) -> str:
    """Name of a ladder's column: ``long_short.sharpe_net``."""
    return f"{book}.{figure}"


def validated(contract: type[dy.Schema], frame: pl.DataFrame) -> pl.DataFrame:
    """Cast a frame to the types of a contract; dataframely's ``ValidationError`` if a row breaks it."""
    typed = contract.cast(frame)
    # whether all rows are valid takes half the time of looking for those that are not
    return typed if contract.is_valid(typed) else contract.validate(typed)


@dataclass(frozen=True)
class ResultTable:
    """A result table: its name, what it holds, and its columns in order."""

    name: str
    meaning: str
    columns: Mapping[str, Column]

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """Name -> type of all columns."""
        return {name: column.dtype for name, column in self.columns.items()}

    @cached_property
    def schema(self) -> Mapping[str, pl.DataType]:
        """Name -> type of the columns that every such table has."""
        return {name: column.dtype for name, column in self.columns.items() if not column.optional}

    def frame(self, rows: pl.DataFrame | Iterable[Mapping[str, Any]], *further: str) -> pl.DataFrame:
        """Make the table, checked, in order, with null for NaN; ``further`` names undeclared columns."""
        if not isinstance(rows, pl.DataFrame):
            listed = list(rows)
            rows = (
                pl.DataFrame(listed, infer_schema_length=None) if listed else pl.DataFrame(schema=self.schema)
            )
        unknown = [name for name in rows.columns if name not in self.columns and name not in further]
        lacking = [name for name in self.schema if name not in rows.columns]
        assert not unknown, f"{self.name} has no columns {unknown}"
        assert not lacking, f"{self.name} needs the columns {lacking}"
        names = [name for name in self.columns if name in rows.columns]
        columns = {name: self.columns[name].contract for name in names}
        contract = cast("type[dy.Schema]", type(self.name, (dy.Schema,), columns))
        floats = [name for name, dtype in rows.schema.items() if dtype.is_float()]
        known = rows.with_columns(pl.col(floats).fill_nan(None))
        checked = validated(contract, known.select(names))
        return checked.hstack(known.select(further)) if further else checked

    def of(self, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
        """Make the table of rows that hold its columns and others, which are left out."""
        return self.frame({name: row[name] for name in self.columns if name in row} for row in rows)


_INTERVALS: Final = "sharpe_net sharpe_lower sharpe_upper"
_COSTS: Final = " ".join(COST_KINDS)
_REFERENCE: Final = _text("reference", "against", "the first model")  # of ``compared_tests`` alone
_DECLARED: Final = f"""\
ladder = model delay seeds valid_rank_ic valid_ic ic icir rank_ic rank_icir precision_at_10 literature_sr
    r2_oos ensemble_ic ensemble_rank_ic ic_t coverage_dates coverage_firms tied seed_dispersion truth_ic
    truth_rank_ic missing
    -- Every model at every delay: means over single seeds; the ensemble's IC, t-statistic, coverage and ties;
    and for each book the columns `BOOK.figure`.
ic_series = date ic rank_ic model delay
    -- Daily ICs of the seed ensembles.
quantiles = model delay quantile mean_return_bps
    -- Mean label of each quantile of the forecasts.
equity = date nav_gross nav_net excess_net turnover unfilled leverage net_exposure model book delay
    -- Every book by session, from the first forecast to the end of the last holding period.
benchmarks = model book delay benchmark returns n_sessions annual_return_net benchmark_return
    tracking_difference active_return tracking_error information_ratio beta up_capture down_capture
    active_drawdown
    -- Every book, net of costs, against every benchmark.
benchmark_series = date model book delay benchmark nav_benchmark
    -- Value of every benchmark on the sessions of a book.
costs = model book delay {_COSTS} turnover_per_year
    -- Costs of each book by kind. Trades pay half-spread and commission on twice the turnover.
book_notes = model book date note
    -- Decisions that a book could not make as configured.
ic_decay = model horizon delay ic ic_t rank_ic rank_ic_t dates
    -- IC by horizon and delay. A horizon needs four labels that do not overlap.
quantile_spread = model delay quantiles spread_bps t lower_bps upper_bps
    -- Top less bottom quantile, with its interval.
quantile_series = date model delay quantile mean_return_bps
    -- Mean label of each quantile by date, at the first delay that can be traded.
persistence = model lag rank_autocorrelation top_turnover bottom_turnover
    -- How long a signal stays the same.
signal_exposures = model kind key mean t
    -- Exposures of the signal to styles and sectors.
comparisons = model baseline rival delay level dates lags ic_difference ic_lower ic_upper ic_t ic_p dm_t dm_p
    book sessions sharpe_difference sharpe_lower sharpe_upper sharpe_p beats
    -- Every model less every baseline and its variants, at the first delay that can be traded.
yearly = model rival year delay dates ic ic_difference ic_t book sessions sharpe_net
    -- The same comparisons by calendar year, and over all years; none for tests within one year.
significance = model book delay level ic ic_lower ic_upper ic_p ic_bootstrap_lower ic_bootstrap_upper sessions
    {_INTERVALS} probabilistic_sharpe trials deflated_sharpe effective_trials deflated_effective
    rademacher_lower
    -- Intervals by book, and what all trials leave of its Sharpe ratio, counted again when it is read.
multiple_tests = model book delay sessions spa_p in_stepm mcs_p in_mcs baseline baseline_spa_p
    in_baseline_stepm level
    -- Tests of all models or signals of a book at once, on their common sessions.
endings = model book side paid_out sharpe_net_0 annual_return_net_0 sharpe_net_30 annual_return_net_30
    sharpe_net_55 annual_return_net_55
    -- Books and their sides if delistings for unknown reasons pay 0, -30% or -55%.
flagged_rows = date ticker rule evidence earns
    -- Open quality flags on the price rows.
horizons = model horizon seeds ic ic_t icir rank_ic
    -- The seed ensemble at every horizon, for models that also forecast shorter ones than the label's.
quantile_scores = model level pinball reference below
    -- Quantile forecasts of the test.
ensemble_weights = model fold member member_weight
    -- Weights of the members of every ensemble, as validation has chosen them in each fold.
figures = model book delay n_sessions annual_return_gross annual_return_net annual_volatility_net sharpe_gross
    sharpe_net sortino_net calmar_net hit_rate_net skew_net worst_day_net best_day_net max_drawdown_net
    leverage net_exposure turnover unfilled signal_dates decisions
    -- Return, risk and trading of each book.
capacity = model book delay capital sharpe_net annual_return_net impact_bps_per_year participation_p95
    unfilled
    -- The book at growing amounts of capital, at the first delay that can be traded.
factor_alpha = model book delay term coefficient t p_value variance_share per_year r2 sessions reading
    -- Regression of net returns on factors of the same firms.
factor_models = model book delay factors frequency after_costs term coefficient error t p_value variance_share
    per_year r2 periods lags reading
    -- Regressions of gross and net returns on the published factors of backtest.factors.
contributions = model book delay by key gross cost net
    -- Profit by side, sector, factor and name; each breakdown adds up to the same total.
exposures = model book delay kind key mean low high
    -- Exposures of the book over sessions.
risk = model book delay date volatility factor_volatility specific_volatility surprise
    -- Predicted volatility of the book by the risk model, at the last close of every week.
risk_exposures = model book delay date key exposure variance_share
    -- Exposures to the factors of the risk model on these dates, and shares of the predicted variance.
drawdowns = model book delay rank peak trough recovered depth sessions names
    -- The five deepest drawdowns, and who caused them.
worst_days = model book delay rank date return_net names
    -- The ten worst sessions.
positions = model book date ticker weight trade pnl cost
    -- Every holding and trade of the first book at the first delay that can be traded; costs are of NAV.
paths = model path delay book dates ic rank_ic sharpe_net
    -- The seed ensembles on every path of combinatorial folds.
overfitting = candidates variants delay blocks pbo loss_probability sessions trials_left_out
    -- Probability of overfitting by combinatorially symmetric cross-validation (CSCV).
trials = trials effective_trials on_market hypothesis reach
    -- What was tried by now, in one row.
rows = signal reason rows
    -- How the rows of a signal file were used.
cutoffs = signal known_from part dates ic ic_t
    -- Forecasts before their knowledge cutoff, which no other table counts, and after.
guard = signal check verdict sentence value
    -- The look-ahead guard on a signal file.
sweep_variants = signal sessions {_INTERVALS} sharpe_gross annual_return_net annual_volatility_net
    max_drawdown_net turnover cost_bps_per_year unfilled probabilistic_sharpe deflated_sharpe trials
    deflated_effective effective_trials
    -- Every signal and variant of a sweep, and a column for each swept setting.
sweep_overfitting = signal variants pbo loss_probability
    -- Overfitting of the choice among a signal's books, by set of assumptions.
multiverse_designs = {_INTERVALS} ic ic_lower ic_upper sessions deflated_sharpe trials deflated_effective
    effective_trials
    -- Every design of `peerglass multiverse`, and a column for each choice.
multiverse_outcomes = outcome designs q05 median q95 interquartile_range deviation mean_error
    -- Spread of the results over designs, beside the usual standard error.
multiverse_shares = outcome effect share share_lower share_upper
    -- Shares of choices, of their interactions and of the rest in the variance over designs.
revisions = compared data committed rows model book delay dates sharpe_net ic rank_ic
    -- Headline figures on every data version (`peerglass revisions`), with the rows corrected since the one
    before. It is stored in the folder of the run, as is the next table.
revision_shares = compared table ticker rows sharpe_net_moved sharpe_net_moved_error ic_moved ic_moved_error
    rank_ic_moved rank_ic_moved_error day column before after
    -- What the corrections of a firm in a table move between the first and the last of these states.
compared_figures = name book delay dates ic ic_lower ic_upper sessions {_INTERVALS} deflated_sharpe trials
    deflated_effective effective_trials
    -- Models of `peerglass compare` on their common dates.
compared_tests = name reference dates lags ic_difference ic_lower ic_upper ic_t ic_p dm_t dm_p
    sharpe_difference sharpe_lower sharpe_upper sharpe_p beats
    -- Every model of `peerglass compare` less the first one. The IC is compared only for the same label.
replication = step ic ic_t icir rank_ic sharpe_gross sharpe_net information_ratio audit run note
    -- The steps of `peerglass replicate`: the published figures, then a run for each step. It is stored in
    the folder of the last run. Columns are those of ladder.
"""


def _read_tables(declared: str) -> Iterator[ResultTable]:
    """Read lines ``NAME = COLUMN COLUMN -- MEANING``; an indented line continues the one before."""
    for entry in re.split(r"\n(?=\S)", declared.strip()):
        head, meaning = " ".join(entry.split()).split(" -- ")
        name, _, names = head.partition(" = ")
        own = {"reference": _REFERENCE} if name == "compared_tests" else {}
        columns = {column: own.get(column, COLUMNS[column]) for column in names.split()}
        yield ResultTable(name, meaning, MappingProxyType(columns))


TABLES: Final[Mapping[str, ResultTable]] = MappingProxyType(
    {one.name: one for one in _read_tables(_DECLARED)}
)


def table(name: str) -> ResultTable:
    """Return the declaration of a table."""
    return TABLES[name]
