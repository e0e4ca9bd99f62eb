"""Evaluate forecasts: the tables and the record of an evaluation, and that of a run in its folder.

The last part analyses books one by one: what they earn, from what, with whom, and at what size. Shape
suffixes there: T sessions of the book, N firms, S sectors, K styles.
"""

import datetime as dt
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.market import BookMarket
from backtest.accounts.performance import book_metrics, counted_sessions, exposure_before
from backtest.accounts.variants import SparseTargets, Variant
from backtest.analysis import ledger, regression
from backtest.analysis.capacity import capacity
from backtest.analysis.styles import FactorData, FactorReturns, factor_data
from backtest.risk import BookRisk, CharacteristicRisk, book_risk, by_risk, characteristic_risk
from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.cleaned import in_currency_of
from features.panel.panel import Panel, to_panel
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.backtest_files import (
    PublishedFactors,
    published_factors,
    require_rates,
    risk_free_rates,
)
from pipelines.dataset.folds import describe_tested, plan_folds
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.results import books, comparisons, forecast_tables
from pipelines.results.evaluate import NO_SCORES, comparable, ensemble, evaluate
from pipelines.results.recount import keep_returns, recount, trials_of
from pipelines.run import completeness, evaluations
from pipelines.run.provenance import EvaluationMade, environment
from pipelines.run.provenance import record as record_event
from pipelines.run.record import RecordedRun, read_scores
from pipelines.secrets import redact
from pipelines.train.trials import Scope, Trial, count_trials, record


def evaluate_run(
    run: RecordedRun, dataset: Market, lake: Lake, progress: Progress
) -> evaluations.StoredEvaluation:
    """Record a run's books as trials, evaluate its forecasts on common dates, and store the evaluation."""
    completeness.require_test(run.config, run.run_id)
    config, started = run.config, time.monotonic()
    with progress.stage("backtest"):
        forecasts = _forecasts(run, lake)
        plan = plan_folds(dataset, config)
        folds = [fold.index for fold in plan]
        missing = completeness.missing_tasks(config.models, folds, config.seeds, forecasts)
        complete = completeness.comparable_folds(folds, missing, forecasts)
        ordered, dates_T = comparable(forecasts, dataset, config, plan)
        now = environment()
        measured, trials = evaluate_trials(
            ordered,
            dataset,
            config,
            read_scores(run).filter(pl.col("fold").is_in(complete)),
            run_id=run.run_id,
            output=run.folder.parent,
            tried=trials_of(run),
            truth_TN=load_truth(run, dataset, lake),
            sessions=np.unique(np.concatenate([fold.test for fold in plan])),
        )
        tables = {
            **measured,
            "ladder": completeness.add_missing_column(measured["ladder"], missing, folds, config.seeds),
            "horizons": forecast_tables.horizon_table(run, lake, dataset, dates_T),
            "quantile_scores": forecast_tables.quantile_score_table(run, complete),
            "ensemble_weights": forecast_tables.member_weight_table(run, complete),
            "paths": comparisons.path_table(forecasts, plan, dataset, config),
        }
        run.write_table("ensembles", forecast_tables.ensemble_table(ordered, dataset.panel))
        of_run = {
            "missing": missing,
            "incomplete": completeness.describe_missing(missing, folds, config.seeds),
            "tested": describe_tested(dataset, config, plan),
        }
        new = evaluation_record(config, dataset.panel, dates_T, trials, now.commit).model_copy(update=of_run)
        stored = evaluations.store_evaluation(run, new, tables)
        if stored.record == new:  # otherwise the same evaluation existed already
            seconds = round(time.monotonic() - started, 1)
            event = EvaluationMade(environment=now, evaluation=new.evaluation, trials=trials, seconds=seconds)
            record_event(run, event)
    return recount(run, stored)


def complete_signal(run: RecordedRun, dataset: Market, lake: Lake, model: str) -> FloatArray:
    """Signal (T, N) of a model that :func:`evaluate_run` trades; ConfigError without forecasts of it."""
    ordered, _ = comparable(_forecasts(run, lake), dataset, run.config, plan_folds(dataset, run.config))
    if model not in ordered:
        raise ConfigError(f"Run {run.run_id} has no forecasts of {model}; train it with 'peerglass train'.")
    return ensemble(ordered[model])


def missing_tasks_of_run(run: RecordedRun, dataset: Market, lake: Lake) -> tuple[tuple[str, int, int], ...]:
    """List the tasks (model, fold, seed) of a run that currently have no forecasts."""
    folds = [fold.index for fold in plan_folds(dataset, run.config)]
    return completeness.missing_tasks(
        run.config.models, folds, run.config.seeds, completeness.committed_tasks(run.run_id, lake)
    )


def load_truth(run: RecordedRun, dataset: Market, lake: Lake) -> FloatArray | None:
    """True conditional mean return of a simulated market, shape (T, N); None on real data."""
    if "truth_mu" not in run.versions:
        return None
    frame = lake.read("truth_mu", version=run.versions["truth_mu"])
    return to_panel(frame, "mu", dataset.panel)


def _forecasts(run: RecordedRun, lake: Lake) -> pl.DataFrame:
    columns = ["model", "fold", "seed", "date", "ticker", "forecast"]
    frame = lake.rows("forecasts", columns, pl.col("run_id") == run.run_id)
    if frame.is_empty():
        raise DataError(
            f"Run {run.run_id} has no forecasts in {lake.root}; run 'peerglass train' on its config."
        )
    return frame


Forecasts = Mapping[str, Mapping[int, FloatArray]]  # model or signal -> seed -> (T, N) as of close t


def evaluate_trials(
    forecasts: Forecasts,
    market: Market,
    config: Config,
    scores: pl.DataFrame = NO_SCORES,
    *,
    run_id: str,
    output: Path,
    tried: Mapping[str, Trial],
    sessions: IntArray,
    truth_TN: FloatArray | None = None,
) -> tuple[dict[str, pl.DataFrame], int]:
    """Record every book as a trial, compute all tables and keep returns; also how many trials count."""
    record(output, run_id, (one for name in forecasts for one in tried[name].traded(config.backtest.books)))
    trials = count_trials(output, Scope.of(config)).trials
    analysis = BookAnalysis(market, config)
    result = evaluate(
        forecasts, market, config, scores, truth_TN=truth_TN, sessions=sessions, on_book=analysis.add
    )
    series = comparisons.TradableSeries(result, config, market.panel.dates_T, market.panel.periods_per_year)
    keep_returns(output, result["equity"], tried, config)
    signals = ((model, ensemble(seeds)) for model, seeds in forecasts.items())
    behaviour = in_background(lambda: forecast_tables.forecast_tables(signals, market, config))
    endings = ending_table(forecasts, market, config)
    trained = set(forecasts) <= set(config.models)
    tables: dict[str, pl.DataFrame | None] = {
        **result,
        **behaviour.result(),
        "comparisons": comparisons.comparison_table(series) if trained else None,
        "yearly": comparisons.yearly_table(series) if trained else None,
        "significance": comparisons.significance_table(series, trials),
        "multiple_tests": comparisons.multiple_test_table(series),
        "endings": endings,
        "flagged_rows": flagged_rows(market, result["equity"]),
        **analysis.tables(),
    }
    return {name: frame for name, frame in tables.items() if frame is not None}, trials


def flagged_rows(market: Market, equity: pl.DataFrame) -> pl.DataFrame | None:
    """Return the open quality flags on price rows of the sessions of the books; None if there are none."""
    if market.flags is None:
        return None
    first, last = equity["date"].min(), equity["date"].max()
    rows = market.flags.filter(pl.col("date").is_between(pl.lit(first), pl.lit(last)))
    return table("flagged_rows").frame(rows.sort("earns", "date", "ticker", "rule")) if rows.height else None


def evaluation_record(
    config: Config, panel: Panel, measured_T: BoolArray | IntArray, trials: int, commit: str
) -> evaluations.EvaluationRecord:
    """Make the record of an evaluation of the sessions ``measured_T`` (a mask, or indices in order)."""
    backtest = config.backtest
    costs, execution = backtest.costs, backtest.execution
    shown = {  # a path can hold a secret
        "risk_free": _printable(backtest.risk_free),
        "costs": costs.model_copy(update={"borrow_file": _printable(costs.borrow_file)}),
        "execution": execution.model_copy(
            update={"price_limit_file": _printable(execution.price_limit_file)}
        ),
        "benchmarks": {
            name: one.model_copy(update={"file": _printable(one.file)})
            for name, one in backtest.benchmarks.items()
        },
        "factors": {name: tuple(map(redact, files)) for name, files in backtest.factors.items()},
    }
    digests = {name: evaluations.file_digest(one.file) for name, one in backtest.benchmarks.items()}
    days = panel.dates_T[measured_T]
    return evaluations.EvaluationRecord(
        evaluation=evaluations.evaluation_id(config),
        made_at=dt.datetime.now(dt.UTC),
        backtest=backtest.model_copy(update=shown),
        rates=evaluations.file_digest(backtest.risk_free),
        borrow_fees=evaluations.file_digest(costs.borrow_file),
        indices={name: found for name, found in digests.items() if found is not None},
        factors=evaluations.factor_digests(backtest),
        delays=config.label.delays,
        code=evaluations.evaluation_code(),
        commit=commit,
        trials=trials,
        dates=len(days),
        first=days[0].item(),
        last=days[-1].item(),
        periods_per_year=panel.periods_per_year,
    )


def _printable(setting: float | str | None) -> float | str | None:
    return redact(setting) if isinstance(setting, str) else setting


UNKNOWN_RETURNS = {"0": 0.0, "30": -0.30, "55": -0.55}  # by the suffix of the table's columns


def ending_table(forecasts: Forecasts, dataset: Market, config: Config) -> pl.DataFrame | None:
    """Evaluate every book, and its sides, with returns of 0, -30% and -55% for unknown delistings.

    Books are traded at the first delay that can be traded.
    """
    panel, delay = dataset.panel, evaluations.tradable_delay(config.label.delays)
    if not panel.unknown_TN.any():
        return None
    indices = {suffix: panel.total_return_index_assuming(paid) for suffix, paid in UNKNOWN_RETURNS.items()}
    dates_T = panel.dates_T
    rate_T = risk_free_rates(config.backtest.risk_free, dates_T, panel.periods_per_year)
    rows: list[dict[str, Any]] = []
    for model, seeds in forecasts.items():
        signal_TN = ensemble(seeds)
        rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
        markets: dict[str, BookMarket] = {}
        for orders in books.book_orders(signal_TN, rows_T, dataset, config, delay):
            unknown_TN, target_TN = panel.unknown_TN[orders.held], orders.target_TN
            if not (unknown_TN[1:] & ~unknown_TN[:-1]).any():
                continue
            require_rates(config.backtest.risk_free, rate_T[orders.held], dates_T[orders.held])
            if not markets:  # books of one delay are held on the same sessions
                markets = {
                    key: books.book_market(panel, orders.held, index) for key, index in indices.items()
                }
            sides = {"book": target_TN}
            if (target_TN < 0).any() and (target_TN > 0).any():  # false for NaN
                sides |= {"long": np.maximum(target_TN, 0.0), "short": np.minimum(target_TN, 0.0)}
            for side, weight_TN in sides.items():
                started = {
                    suffix: in_background(
                        partial(
                            orders.run, panel, target_TN=weight_TN, market=market, keep_ledger=suffix == "0"
                        )
                    )
                    for suffix, market in markets.items()
                }
                results = {suffix: one.result() for suffix, one in started.items()}
                # positions that a delisting for an unknown reason turned into cash, under any return
                released = results["0"].ledger.filter(pl.col("released") != 0)
                paid_out = unknown_TN[released["session"].to_numpy(), released["firm"].to_numpy()].sum()
                row: dict[str, Any] = {"model": model, "book": orders.name, "side": side}
                row["paid_out"] = int(paid_out)
                for suffix, result in results.items():
                    metrics = book_metrics(result, rate_T[orders.held])
                    row[f"sharpe_net_{suffix}"] = metrics.sharpe_net
                    row[f"annual_return_net_{suffix}"] = metrics.annual_return_net
                rows.append(row)
    return table("endings").frame(rows) if rows else None


Row = dict[str, Any]


class _AnalysedBook:
    """One book with its ledger and its parts of the panel: a method yields the rows of each table."""

    def __init__(
        self,
        book: books.MeasuredBook,
        panel: Panel,
        factors: FactorData,
        published: Mapping[str, PublishedFactors],
        settings: BacktestConfig,
    ) -> None:
        self.book, self.panel, self.settings, self.held = book, panel, settings, book.orders.held
        self.rows = ledger.ledger_rows(book.result.ledger)
        self.nav_T, self.counted = book.result.nav_ledger_T, counted_sessions(book.result)
        self.return_T = book.result.return_net_T[self.counted]
        self.scores, self.factors = factors.scores_on(self.held), factors.returns_on(self.held, delay=0)
        self.traded, self.published = factors.returns_on(self.held, book.orders.delay), published

    def _date(self, t: int) -> dt.date:
        """Date of a counted session; -1 is the session before the first one."""
        at = max(self.held.start + self.counted.start + t, 0)
        day: dt.date = self.panel.dates_T[at].item()
        return day

    def _losers(self, first: int, last: int) -> list[str]:
        """The firms that lost most from one counted session to another, over the NAV before."""
        sessions = range(self.counted.start + first, self.counted.start + last + 1)
        before = float(self.nav_T[sessions.start - 1]) if sessions.start else 1.0
        found = ledger.losers(self.rows, sessions, self.panel.n_firms, before)
        return [f"{self.panel.tickers_N[firm]} {lost:.2%}" for firm, lost in found]

    def figures(self) -> Iterator[Row]:
        """The usual figures, and how many of the dates with signals the book used."""
        orders = self.book.orders
        used = {"signal_dates": orders.signal_dates, "decisions": orders.decisions}
        yield asdict(self.book.metrics) | used

    def factor_alpha(self) -> Iterator[Row]:
        """A regression on factors that are built from the panel itself."""
        excess_TJ = self.traded.return_TJ.copy()
        excess_TJ[:, 0] -= self.book.rate_T  # the market is held with capital, the styles finance themselves
        factors, year = FactorReturns(self.traded.names, excess_TJ), self.book.result.periods_per_year
        found = regression.factor_regression(self.book.excess_T, factors, year)
        if found is not None:
            yield from _terms(found, sessions=found.n)

    def factor_models(self) -> Iterator[Row]:
        """Regressions of the gross and of the net returns on the factors of files, for each of them."""
        result, panel, start = self.book.result, self.panel, self.held.start
        counted = slice(start + self.counted.start, start + self.counted.stop)
        exposure_T = exposure_before(result)[self.counted]
        for name, published in self.published.items():
            period_T, count = published.complete(panel.dates_T, counted), len(published.end_P)
            rate_T = self.book.rate_T[self.counted]
            if published.rate_P is not None:  # the same in every session of a period
                sessions_P = np.bincount(period_T[period_T >= 0], minlength=count)
                rate_T = (published.rate_P / np.maximum(sessions_P, 1))[period_T]
            free_T = np.where(exposure_T == 0.0, 0.0, exposure_T * rate_T)
            factors = FactorReturns(published.names, published.return_PJ)
            for after_costs, every_T in ((False, result.return_gross_T), (True, result.return_net_T)):
                return_P = regression.period_returns(every_T[self.counted], free_T, period_T, count)
                found = regression.factor_regression(return_P, factors, published.per_year)
                if found is not None:
                    of_file = {"factors": name, "frequency": published.frequency, "after_costs": after_costs}
                    yield from _terms(found, periods=found.n, lags=found.lags, **of_file)

    def capacity(self) -> Iterator[Row]:
        """Net figures at growing amounts of capital, if the prices have volumes."""
        panel, orders, window = self.panel, self.book.orders, self.settings.execution.window
        if panel.volume_TN is None:
            return
        settings = self.settings.model_copy(
            update={
                "capital": 1.0,  # amounts of money, which would be of another capital, are left out
                "costs": self.settings.costs.model_copy(update={"commission_min": 0.0}),
                "execution": self.settings.execution.model_copy(update={"lot": None}),
            }
        )
        variant = Variant(
            SparseTargets.from_targets(orders.target_TN),
            books.book_costs(settings, panel, self.held),
            orders.delay,
            books.book_execution(settings, panel, self.held, orders.delay),
        )
        market, volume_TN = (
            books.book_market(panel, self.held),
            books.dollar_volumes(in_currency_of(panel, self.held.start), window)[self.held],
        )
        yield from map(asdict, capacity(variant, self.rows, market, volume_TN, self.book.rate_T))

    def contributions(self) -> Iterator[Row]:
        """What each sector, side, factor and name earned; without sectors, that partition is left out."""
        panel, rows = self.panel, self.rows
        parts = [*ledger.by_side(rows), *ledger.by_factor(rows, self.scores, self.factors)]
        parts += by_risk(rows, self._risk_model, len(self.nav_T))
        if panel.groups_S:
            parts += ledger.by_sector(rows, panel.group_TN[self.held], panel.groups_S)
        for part in (*parts, *ledger.by_name(rows, panel.tickers_N)):
            yield asdict(part) | {"net": part.net}

    def exposures(self) -> Iterator[Row]:
        """Mean, lowest and highest exposure to each sector and style, from the first trade on."""
        panel, rows, nav_T = self.panel, self.rows, self.nav_T
        exposures = [("style", self.scores.names, ledger.style_exposures(rows, self.scores, nav_T))]
        if panel.groups_S:
            sector_TS = ledger.sector_exposures(rows, panel.group_TN[self.held], len(panel.groups_S), nav_T)
            exposures.insert(0, ("sector", ledger.sector_names(panel.groups_S), sector_TS))
        for kind, keys, exposure_TX in exposures:
            for key, exposure_T in zip(keys, exposure_TX[self.counted].T, strict=True):
                if kind == "style" or exposure_T.any():
                    mean, low, high = (float(of(exposure_T)) for of in (np.mean, np.min, np.max))
                    yield {"kind": kind, "key": key, "mean": mean, "low": low, "high": high}

    @cached_property
    def _risk_model(self) -> CharacteristicRisk:
        return characteristic_risk(self.panel).since(self.held.start)

    @cached_property
    def _book_risk(self) -> BookRisk:
        """The book's risk at the last close of every week."""
        day_T = self.panel.dates_T[self.held][self.counted].astype("datetime64[D]").astype(np.int64)
        week_T = (day_T + 3) // 7  # day 0 is a Thursday, and weeks begin on Monday
        last = np.flatnonzero(np.append(np.diff(week_T) != 0, True)) + self.counted.start
        return book_risk(self.rows, self._risk_model, self.nav_T, last)

    def risk(self) -> Iterator[Row]:
        """Predicted volatility week by week, and the return of the week after it in units of that."""
        found, year = self._book_risk, self.book.result.periods_per_year
        ends = [*found.session_P[1:], self.counted.stop - 1]
        for p, first in enumerate(found.session_P):
            total, specific = float(found.variance_P[p]), float(found.specific_P[p])
            later = self.book.result.return_gross_T[first + 1 : ends[p] + 1]
            expected = math.sqrt(total * len(later))
            yield {
                "date": self._date(int(first) - self.counted.start),
                "volatility": math.sqrt(year * total),
                "factor_volatility": math.sqrt(year * max(total - specific, 0.0)),
                "specific_volatility": math.sqrt(year * specific),
                "surprise": float(later.sum()) / expected if expected > 0 else None,
            }

    def risk_exposures(self) -> Iterator[Row]:
        """Exposures and parts of the predicted variance; what is specific has no exposure."""
        found = self._book_risk
        total_P = np.where(found.variance_P > 0, found.variance_P, np.nan)
        share_PQ = np.column_stack([found.part_PQ, found.specific_P]) / total_P[:, None]
        for p, session in enumerate(found.session_P.tolist()):
            day = self._date(session - self.counted.start)
            for q, key in enumerate((*found.names, ledger.SPECIFIC)):
                exposure = float(found.exposure_PQ[p, q]) if q < len(found.names) else None
                yield {"date": day, "key": key, "exposure": exposure, "variance_share": float(share_PQ[p, q])}

    def drawdowns(self) -> Iterator[Row]:
        """The five deepest drawdowns with the firms that lost most from peak to trough."""
        for rank, one in enumerate(ledger.largest_drawdowns(self.return_T), start=1):
            yield {
                "rank": rank,
                "peak": self._date(one.peak),
                "trough": self._date(one.trough),
                "recovered": None if one.recovered is None else self._date(one.recovered),
                "depth": one.depth,
                "sessions": one.sessions,
                "names": self._losers(one.peak + 1, one.trough),
            }

    def worst_days(self) -> Iterator[Row]:
        """The ten worst days with the firms that lost most."""
        for rank, day in enumerate(ledger.worst_days(self.return_T), start=1):
            lost = {"return_net": float(self.return_T[day]), "names": self._losers(day, day)}
            yield {"rank": rank, "date": self._date(day), **lost}

    def positions(self) -> pl.DataFrame:
        """Every holding and trade, in float32."""
        rows, nav_T, session_R = self.rows, self.nav_T, self.rows.session_R
        nav_R = np.where(nav_T > 0, nav_T, np.nan)[session_R]
        before_R = np.concatenate([[1.0], nav_T[:-1]])[session_R]
        dates_T: npt.NDArray[np.datetime64] = self.panel.dates_T[self.held]
        amounts = {"weight": rows.position_R / nav_R, "trade": rows.trade_R / nav_R}
        amounts |= {"pnl": rows.pnl_R / before_R, "cost": rows.cost_R / before_R}
        return pl.DataFrame(
            {
                "date": pl.Series(dates_T).gather(session_R),
                "ticker": pl.Series(self.panel.tickers_N, dtype=pl.String).gather(rows.firm_R),
                **{name: amount_R.astype(np.float32) for name, amount_R in amounts.items()},
            }
        ).with_columns(model=pl.lit(self.book.model), book=pl.lit(self.book.orders.name))


def _terms(found: regression.FactorRegression, **of_all: object) -> Iterator[Row]:
    """Alpha and the betas of a regression; what they say stands in ``reading`` of alpha."""
    for term in found.terms:
        reading = regression.describe_regression(found) if term is found.alpha else None
        yield {**asdict(term), "term": term.name, "r2": found.r2, "reading": reading, **of_all}


_TABLES = (  # methods of a book
    *("figures", "capacity", "factor_alpha", "factor_models", "contributions", "exposures", "risk"),
    *("risk_exposures", "drawdowns", "worst_days"),
)
_OPTIONAL = (
    "capacity",
    "factor_models",
    "risk",
    "risk_exposures",
)  # without volumes, factors or enough firms


class BookAnalysis:
    """Analyses books one by one, so that only one ledger is in memory, and collects the tables."""

    def __init__(self, market: Market, config: Config) -> None:
        self._market, self._settings = market, config.backtest
        self._main_delay = evaluations.tradable_delay(config.label.delays)
        self._rows: dict[str, list[Row]] = {name: [] for name in _TABLES}
        self._positions: list[pl.DataFrame] = []

    @cached_property
    def _factors(self) -> FactorData:
        return factor_data(self._market.panel, self._market.universe_TN)

    @cached_property
    def _published(self) -> dict[str, PublishedFactors]:
        return published_factors(self._settings.factors, self._market.panel)

    def add(self, book: books.MeasuredBook) -> None:
        """Analyse a book; its result must hold the ledger."""
        one = _AnalysedBook(book, self._market.panel, self._factors, self._published, self._settings)
        keys = {"model": book.model, "book": book.orders.name, "delay": book.delay}
        main = book.delay == self._main_delay
        for name, rows in self._rows.items():
            if main or name != "capacity":
                rows.extend({**keys, **row} for row in getattr(one, name)())
        if main and book.orders.name == next(iter(self._settings.books)):
            self._positions.append(one.positions())

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all books; those without volumes, a tradable delay or factors are missing."""
        tables = {
            name: table(name).of(rows) for name, rows in self._rows.items() if rows or name not in _OPTIONAL
        }
        if self._positions:
            tables["positions"] = table("positions").frame(pl.concat(self._positions))
        return tables
