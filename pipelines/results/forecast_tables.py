"""Tables that describe forecasts beyond the ladder: decay, quantile spread, persistence and exposures.

They measure the seed ensembles on the sessions that these forecast (`backtest.forecasts.daily`). The decay
uses labels of other horizons and delays than the ladder, but none that ends after the last session that the
ladder's own labels reach, so long horizons have fewer dates.

Shape suffixes: T sessions, R measured sessions, N firms, S sectors.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.analysis.ledger import sector_names
from backtest.analysis.styles import STYLES
from backtest.forecasts.daily import DailyMetrics, SortedPanel, daily_metrics, persistence
from backtest.forecasts.metrics import forecast_metrics
from backtest.inference.means import mean_test
from features.arrays import DateArray, FloatArray, IntArray
from features.information_coefficient import mean_known
from features.panel.holding import forward_returns
from features.panel.panel import Panel, to_panel
from pipelines.columns import table
from pipelines.config.load import members_of
from pipelines.config.schema import Config
from pipelines.dataset.folds import path_of_tests, plan_folds
from pipelines.dataset.market import Market
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import EnsembleForecasts, schema
from pipelines.results.evaluate import ensemble, label_overlap, seed_dispersion, standardised
from pipelines.run.completeness import forecast_by_all
from pipelines.run.record import QUANTILE_SCORES, RecordedRun, task_of

HORIZONS: Final = (1, 2, 3, 5, 10, 21, 63)  # sessions held, at the first tradable delay; and the label's
DELAYS: Final = (0, 1, 2, 5)  # sessions until the trade, at the label's horizon; and the config's
LAGS: Final = (1, 5, 21)  # forecast dates from one signal to the one it is compared with

QUANTILES: Final = 5

_INDEPENDENT_LABELS: Final = 4  # at least; with fewer, a horizon has no error that could be estimated
_ROUNDING: Final = 1e-7  # of a correlation with a characteristic, which is in float32
_BETA: Final = ("beta", "beta_252", 1)


def forecast_tables(
    signals: Iterable[tuple[str, FloatArray]], market: Market, config: Config
) -> dict[str, pl.DataFrame]:
    """Compute the tables of seed ensembles, known at the close of session t; NaN: none, or no test."""
    measured = [_measured(model, signal_TN, market) for model, signal_TN in signals]
    decay, spread, series = _label_tables(measured, market, config)
    exposures = [*_style_rows(measured, market.panel), *_sector_rows(measured, market.panel)]
    rank = pl.col("model").replace_strict(
        {one.model: i for i, one in enumerate(measured)}, return_dtype=pl.Int64
    )
    rows = {
        "ic_decay": decay,
        "quantile_spread": spread,
        "quantile_series": pl.concat(series) if series else [],
        "persistence": [row for one in measured for row in _persistence_rows(one)],
        "signal_exposures": exposures,
    }
    by = {"ic_decay": ("delay", "horizon")}
    return {
        name: table(name).frame(found).sort(rank, *by.get(name, ()), maintain_order=True)
        for name, found in rows.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A model's signal on the sessions that it forecasts: the sessions, and their sorted signals."""

    model: str
    sessions_R: IntArray
    signal: SortedPanel


def _measured(model: str, signal_TN: FloatArray, market: Market) -> _Measured:
    inside_TN = np.where(market.universe_TN, signal_TN, np.nan)
    sessions_R = np.flatnonzero(~np.isnan(inside_TN).all(axis=1))
    return _Measured(model, sessions_R, SortedPanel(f"signal {model}", inside_TN[sessions_R]))


def _label_tables(
    measured: list[_Measured], market: Market, config: Config
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[pl.DataFrame]]:
    """Rows of ``ic_decay`` and ``quantile_spread``, and the parts of ``quantile_series``."""
    own, delays = config.label.horizon, config.label.delays
    first = min((int(one.sessions_R[0]) for one in measured if len(one.sessions_R)), default=0)
    newest = max((int(one.sessions_R[-1]) for one in measured if len(one.sessions_R)), default=0)
    limit = min(newest + config.label.max_delay + own, market.panel.n_sessions - 1)
    tradable = min((delay for delay in delays if delay >= 1), default=1)
    spans = {(horizon, tradable) for horizon in (*HORIZONS, own)} | {(own, d) for d in (*DELAYS, *delays)}
    decay, spread, series = [], [], []
    for horizon in sorted({horizon for horizon, _ in spans}):
        bought_TN = forward_returns(market.panel, 0, horizon, first)  # a delay of d moves it up by d rows
        for delay in sorted(d for h, d in spans if h == horizon):
            last = limit - delay - horizon
            for sessions_R, group in _by_sessions(measured):
                rows_R = sessions_R[sessions_R <= last]
                overlap = label_overlap(sessions_R, horizon)
                if not len(rows_R) or (horizon != own and len(rows_R) < _INDEPENDENT_LABELS * overlap):
                    continue
                label = SortedPanel("label", bought_TN[rows_R + delay - first])
                for one in group:
                    daily = daily_metrics(one.signal.first(len(rows_R)), label, quantiles=QUANTILES)
                    ic, rank_ic = (mean_test(x_T, overlap=overlap) for x_T in (daily.ic_T, daily.rank_ic_T))
                    tests = {"ic": ic.mean, "ic_t": ic.t, "rank_ic": rank_ic.mean, "rank_ic_t": rank_ic.t}
                    key: dict[str, Any] = {"model": one.model, "delay": delay}
                    decay.append({**key, "horizon": horizon, **tests, "dates": ic.n})
                    if horizon == own and delay in delays:
                        difference_T = 1e4 * (daily.quantile_TQ[:, -1] - daily.quantile_TQ[:, 0])
                        test = mean_test(difference_T, overlap=overlap)
                        interval = {"t": test.t, "lower_bps": test.lower, "upper_bps": test.upper}
                        spread.append({**key, "quantiles": QUANTILES, "spread_bps": test.mean, **interval})
                    if horizon == own and delay == tradable:
                        series.append(_quantile_series(one.model, delay, market.panel.dates_T[rows_R], daily))
    return decay, spread, series


def _by_sessions(measured: list[_Measured]) -> Iterator[tuple[IntArray, list[_Measured]]]:
    """Group models with the same sessions, which share sorted labels."""
    groups: dict[bytes, list[_Measured]] = {}
    for one in measured:
        groups.setdefault(one.sessions_R.tobytes(), []).append(one)
    for group in groups.values():
        yield group[0].sessions_R, group


def _quantile_series(model: str, delay: int, dates_R: DateArray, daily: DailyMetrics) -> pl.DataFrame:
    """Mean label of each quantile by date, in basis points."""
    count = daily.quantile_TQ.shape[1]
    return pl.DataFrame(
        {
            "date": np.repeat(dates_R.astype("datetime64[D]"), count),
            "quantile": np.tile(np.arange(1, count + 1), len(dates_R)),
            "mean_return_bps": 1e4 * daily.quantile_TQ.reshape(-1),
        }
    ).with_columns(model=pl.lit(model), delay=pl.lit(delay))


def _persistence_rows(one: _Measured) -> Iterator[dict[str, Any]]:
    lags = tuple(lag for lag in LAGS if lag < len(one.sessions_R))
    for lag, found in persistence(one.signal, lags, quantiles=QUANTILES).items():
        names = ("rank_autocorrelation", "top_turnover", "bottom_turnover")
        means = {name: mean_known(getattr(found, f"{name}_T")) for name in names}
        yield {"model": one.model, "lag": lag, **means}


def _style_rows(measured: list[_Measured], panel: Panel) -> Iterator[dict[str, Any]]:
    """Rank correlation with each characteristic, times the sign of its style."""
    from features.library.characteristics import CHARACTERISTICS

    styles = (*((style.name, style.characteristic, style.sign) for style in STYLES), _BETA)
    usable = [style for style in styles if CHARACTERISTICS[style[1]].needs <= panel.fields]
    for name, characteristic, sign in usable:  # one array at a time
        raw_TN = CHARACTERISTICS.compute(panel, [characteristic])[:, :, 0]
        for sessions_R, group in _by_sessions(measured):
            style = SortedPanel(f"style {name}", raw_TN[sessions_R])
            for one in group:
                test = mean_test(sign * daily_metrics(one.signal, style).rank_ic_T)
                if test.n:
                    t = test.t if test.error > _ROUNDING else math.nan  # the signal is the style itself
                    yield {"model": one.model, "kind": "style", "key": name, "mean": test.mean, "t": t}


def _sector_rows(measured: list[_Measured], panel: Panel) -> Iterator[dict[str, Any]]:
    """Mean standardised signal of the firms of each sector; nothing if the data have no sectors."""
    names = sector_names(panel.groups_S)
    if len(names) < 2:
        return
    S = len(names)
    for one in measured:
        score_RN = standardised(one.signal.x_TN)
        r_M, firm_M = np.nonzero(~np.isnan(score_RN))
        code_M = r_M * S + panel.group_TN[one.sessions_R[r_M], firm_M].astype(np.intp) + 1
        size = len(one.sessions_R) * S
        count_RS = np.bincount(code_M, minlength=size).reshape(-1, S)
        total_RS = np.bincount(code_M, weights=score_RN[r_M, firm_M], minlength=size).reshape(-1, S)
        mean_RS = np.divide(total_RS, count_RS, out=np.full(count_RS.shape, np.nan), where=count_RS > 0)
        for s, name in enumerate(names):
            test = mean_test(mean_RS[:, s])
            if test.n:
                yield {"model": one.model, "kind": "sector", "key": name, "mean": test.mean, "t": test.t}


def horizon_table(
    run: RecordedRun, lake: Lake, dataset: Market, dates_T: npt.NDArray[np.bool_]
) -> pl.DataFrame | None:
    """Measure seed ensembles at every horizon; None if no model forecasts shorter ones than the label's."""
    label = run.config.label
    if not label.shorter_horizons:
        return None
    path = path_of_tests(dataset, plan_folds(dataset, run.config))
    stored = stored_forecasts(run, lake).join(path, on=["date", "fold"], how="semi")
    shorter = (pl.col("horizon") < label.horizon).any().over("model")
    labels = {**dataset.shorter_labels, label.horizon: dataset.labels[label.delay]}
    rows = []
    for (model, horizon), part in sorted(
        stored.filter(shorter).partition_by(["model", "horizon"], as_dict=True).items()
    ):
        seeds = {
            int(seed): to_panel(frame, "forecast", dataset.panel)
            for (seed,), frame in part.partition_by(["seed"], as_dict=True).items()
        }
        joint_TN, label_TN = ensemble(seeds), labels[int(horizon)]
        rows_T = np.flatnonzero(np.isfinite(joint_TN).any(axis=1) & dates_T)
        metrics = forecast_metrics(
            joint_TN[rows_T], label_TN[rows_T], horizon=label_overlap(rows_T, int(horizon))
        )
        figures = {name: getattr(metrics, name) for name in ("ic", "ic_t", "icir", "rank_ic")}
        rows.append({"model": model, "horizon": horizon, "seeds": len(seeds), **figures})
    return table("horizons").frame(rows) if rows else None


def stored_forecasts(run: RecordedRun, lake: Lake) -> pl.DataFrame:
    """Read the stored forecasts of a run, with their ``horizon``: the label's, and shorter ones."""
    forecasts = _rows_of(run, lake, "forecasts").with_columns(
        pl.lit(run.config.label.horizon, dtype=pl.Int64).alias("horizon")
    )
    if not lake.exists("forecast_paths"):
        return forecasts
    return pl.concat([_rows_of(run, lake, "forecast_paths").select(forecasts.columns), forecasts])


def _rows_of(run: RecordedRun, lake: Lake, table: str) -> pl.DataFrame:
    if run.config.folds.scheme == "live":  # it has no test, and its lake may have no forecasts at all
        return schema(table).create_empty()
    return lake.read(table, filters=pl.col("run_id") == run.run_id)


def quantile_score_table(run: RecordedRun, folds: Collection[int]) -> pl.DataFrame | None:
    """Average quantile scores over seeds and common folds, weighted by dates; None without quantiles."""
    rows: list[dict[str, Any]] = []
    for path in sorted((run.folder / QUANTILE_SCORES).glob("*.json")):
        task = task_of(path)
        if task["fold"] in folds:
            rows += [{"model": task["model"], **row} for row in json.loads(path.read_text())]
    if not rows:
        return None
    weight = pl.col("dates") / pl.col("dates").sum()
    means = [(pl.col(name) * weight).sum() for name in ("pinball", "reference", "below")]
    known = pl.DataFrame(rows).filter(pl.col("dates") > 0)
    order = pl.col("model").replace_strict({name: i for i, name in enumerate(run.config.models)})
    return table("quantile_scores").frame(known.group_by("model", "level").agg(means).sort(order, "level"))


def member_weight_table(run: RecordedRun, folds: Collection[int]) -> pl.DataFrame | None:
    """Weights of the members of ensembles by fold, which all seeds share; None without ensembles."""
    first, rows = run.config.seeds[0], []
    for model in run.config.models:
        members = members_of(run.config, model)
        if not members:
            continue
        from pipelines.run.checkpoints import checkpoint_config  # imports PyTorch

        for fold in sorted(folds):
            weights = checkpoint_config(run.checkpoint(model, fold, first)).get("weights", {})
            row = {"model": model, "fold": fold}
            rows += [row | {"member": one, "member_weight": weights.get(one)} for one in members]
    return table("ensemble_weights").frame(rows) if rows else None


def ensemble_table(forecasts: Mapping[str, Mapping[int, FloatArray]], panel: Panel) -> pl.DataFrame:
    """Compute every model's seed ensemble, on the dates and firms that all its seeds forecast."""
    dates_T, tickers_N = panel.dates_T, np.asarray(panel.tickers_N)
    parts = []
    for model, seeds in forecasts.items():
        rows_T = forecast_by_all(seeds.values())
        of_rows = {seed: forecast_TN[rows_T] for seed, forecast_TN in seeds.items()}
        signal_RN, seed_dispersion_RN = ensemble(of_rows), seed_dispersion(of_rows)
        r, n = np.nonzero(np.isfinite(signal_RN))
        columns = {"date": dates_T[rows_T][r], "ticker": tickers_N[n], "signal": signal_RN[r, n]}
        known = pl.DataFrame({**columns, "seed_dispersion": seed_dispersion_RN[r, n]}).fill_nan(None)
        seeds_of = pl.lit(len(seeds), dtype=pl.Int64)
        parts.append(known.select(pl.lit(model).alias("model"), pl.all(), seeds_of.alias("seeds")))
        EnsembleForecasts.validate(parts[-1])
    return pl.concat(parts)
