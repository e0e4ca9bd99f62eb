"""Markets for the tests of the audit: clean ones, and planted leaks, each of them a small change."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from backtest.splits.folds import make_folds
from features.arithmetic.rolling import rolling_mean
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.panel import panel as panels
from features.panel.asof import statements_as_of
from features.panel.derived import daily_return
from features.panel.panel import Panel, forward_factor
from features.panel.universe import universe
from pipelines.audit.subject import Subject, budget
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset import build as datasets
from pipelines.dataset import folds as dataset_folds
from pipelines.dataset import market as markets
from pipelines.dataset.build import build_dataset
from pipelines.dataset.folds import fit_inputs
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.train import task as tasks
from pipelines.train import walkforward

Tables = dict[str, pl.DataFrame]
Array = npt.NDArray[Any]
Patch = pytest.MonkeyPatch
INDEX = "index"


def market(
    base: Mapping[str, Any], seed: int = 3, changes: Mapping[str, Any] | None = None, **settings: object
) -> tuple[Config, Tables]:
    """A simulated market as the lake returns it, with inputs and a membership table without look-ahead."""
    chosen = {**base["source"], "seed": seed, "market": {**base["source"]["market"], **(changes or {})}}
    config = check_config({**base, "source": chosen, **settings}, origin="tiny")
    now = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    source = make_source(config)
    assert isinstance(source, SimulatedSource)
    tables = dict(source.fetch().tables)
    tables["prices"] = tables["prices"].with_columns(
        pl.lit("simulated").alias("source"), pl.lit(now).dt.cast_time_unit("us").alias("ingested_at")
    )
    tables = {name: check(name, frame).valid for name, frame in tables.items() if "truth" not in name}
    panel = panels.build_panel(tables["prices"])
    tables["inputs"] = pl.concat(clean_inputs(panel, seed))
    tables["membership"] = reviewed_membership(panel)
    universe = {**base["universe"], "membership": INDEX}
    return config.model_copy(update={"universe": config.universe.model_copy(update=universe)}), tables


def make_subject(config: Config, tables: Tables, *, quick: bool = True) -> Subject:
    return Subject(
        config=config,
        tables=tables,
        dataset=build_dataset(tables, config),
        budget=budget(config, quick=quick),
    )


def as_input(name: str, value_TN: Array, panel: Panel) -> pl.DataFrame:
    """Rows of the inputs table where a value is known and the firm trades."""
    rows, columns = np.nonzero(np.isfinite(value_TN) & np.isfinite(panel.close_TN))
    frame = pl.DataFrame(
        {
            "date": panel.dates_T.astype("datetime64[D]")[rows],
            "ticker": np.asarray(panel.tickers_N)[columns],
            "value": value_TN[rows, columns],
        }
    )
    return frame.select(pl.lit(name).alias("name"), pl.col("date").cast(pl.Date), "ticker", "value")


def clean_inputs(panel: Panel, seed: int) -> list[pl.DataFrame]:
    """A user's inputs without look-ahead: the causal counterparts of the planted leaks."""
    close_TN = np.where(np.isnan(panel.close_TN), 0.0, panel.close_TN)
    running_TN = np.maximum.accumulate(close_TN, axis=0)
    mean_TN = rolling_mean(panel.close_TN, 20, 20)
    spread_TN = np.sqrt(rolling_mean((panel.close_TN - mean_TN) ** 2, 20, 10))
    rng = np.random.default_rng(seed)
    counts_TN = rng.poisson(0.7, close_TN.shape).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return [
            as_input("below_high", close_TN / running_TN, panel),
            as_input("standing", (panel.close_TN - mean_TN) / spread_TN, panel),
            as_input("average", rolling_mean(panel.close_TN, 5, 5), panel),
            as_input("last_return", daily_return(panel), panel),
            as_input("news", counts_TN, panel),
        ]


def reviewed_membership(panel: Panel, every: int = 40, count: int = 12) -> pl.DataFrame:
    """An index that selects the firms with the longest history at that time, every 40 sessions."""
    traded_TN = np.isfinite(panel.close_TN)
    dates = panel.dates_T.astype("datetime64[D]")
    rows = []
    for start in range(0, len(dates), every):
        stop = min(start + every, len(dates))
        listed_N = np.flatnonzero(traded_TN[start])
        longest = listed_N[np.argsort(-traded_TN[: start + 1, listed_N].sum(axis=0), kind="stable")][:count]
        for n in longest:
            end = dates[stop].item() if stop < len(dates) else None
            rows.append((INDEX, panel.tickers_N[n], dates[start].item(), end))
    schema = {"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    return pl.DataFrame(rows, schema=schema, orient="row")


@dataclass(frozen=True)
class Leak:
    """One way to look ahead.

    Attributes
    ----------
    plant
        (monkeypatch, config, tables) -> (config, tables).
    caught_by
        The check that must fail.
    names
        What its sentence must name.
    verdict
        Its verdict: a failure, or a warning where honest data look the same.
    market
        Settings of the simulated market that the leak needs.
    """

    plant: Callable[[Patch, Config, Tables], tuple[Config, Tables]]
    caught_by: str
    names: str
    market: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    verdict: str = "fail"


def in_channel(compute: Callable[[Panel], Array], name: str = "return") -> Callable[..., Any]:
    """Plant a computation in the registry of channels."""

    def plant(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
        patch.setitem(CHANNELS, name, dataclasses.replace(CHANNELS[name], compute=compute))
        return config, tables

    return plant


def in_characteristic(compute: Callable[[Panel], Array], name: str = "momentum_63") -> Callable[..., Any]:
    """Plant a computation in the registry of characteristics."""

    def plant(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
        patch.setitem(CHARACTERISTICS, name, dataclasses.replace(CHARACTERISTICS[name], compute=compute))
        return config, tables

    return plant


def in_input(compute: Callable[[Panel], Array], name: str = "signal") -> Callable[..., Any]:
    """Plant a computation in a user's inputs, so that no code of this project looks ahead."""

    def plant(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
        panel = panels.build_panel(tables["prices"], tables["securities"])
        added = as_input(name, compute(panel), panel)
        return config, {**tables, "inputs": pl.concat([tables["inputs"], added])}

    return plant


def ahead(x_TN: Array, k: int = 1) -> Array:
    out_TN = np.full_like(x_TN, np.nan)
    out_TN[:-k] = x_TN[k:]
    return out_TN


def centred_mean(panel: Panel) -> Array:
    close_TN = panel.close_TN
    return (ahead(close_TN) + close_TN + np.roll(close_TN, 1, axis=0)) / 3.0


def full_sample_zscore(panel: Panel) -> Array:
    mean_N, spread_N = np.nanmean(panel.close_TN, axis=0), np.nanstd(panel.close_TN, axis=0)
    return np.asarray((panel.close_TN - mean_N) / spread_N)


def full_sample_maximum(panel: Panel) -> Array:
    return np.asarray(panel.close_TN / np.nanmax(panel.close_TN, axis=0))


def smoothed_maximum(panel: Panel) -> Array:
    return rolling_mean(full_sample_maximum(panel), 5, 5)


def sector_mean_of_the_target(panel: Panel) -> Array:
    """Each firm gets the next session's mean return of its industry."""
    target_TN, out_TN = ahead(daily_return(panel)), np.full(panel.close_TN.shape, np.nan)
    for code in np.unique(panel.group_TN[panel.group_TN >= 0]):
        inside_TN = panel.group_TN == code
        known_TN = inside_TN & np.isfinite(target_TN)
        count_T1 = known_TN.sum(axis=1, keepdims=True)
        total_T1 = np.where(known_TN, target_TN, 0.0).sum(axis=1, keepdims=True)
        mean_T1 = np.where(count_T1 > 0, total_T1 / np.maximum(count_T1, 1), np.nan)
        out_TN = np.where(inside_TN, mean_T1, out_TN)
    return out_TN


def backfilled(panel: Panel) -> Array:
    """A mean over 60 sessions whose first 59 values are filled with the sixtieth."""
    value_TN = rolling_mean(panel.close_TN, 60, 60) / np.nanmean(panel.close_TN[:1])
    for column in value_TN.T:
        known = np.flatnonzero(np.isfinite(column))
        if len(known):
            column[: known[0]] = column[known[0]]
    return value_TN


def off_by_one(panel: Panel) -> Array:
    assert panel.high_TN is not None
    assert panel.low_TN is not None
    return ahead(np.log(panel.high_TN / panel.low_TN))


def scaler_on_all_sessions(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:

    def fitted(dataset: Any, fold: Any) -> Any:  # noqa: ANN401 (patched)
        everything = np.arange(dataset.panel.n_sessions)
        return dataclasses.replace(
            fit_inputs(dataset, fold),
            scaler=fit_inputs(dataset, dataclasses.replace(fold, train=everything)).scaler,
        )

    patch.setattr(walkforward, "fit_inputs", fitted)
    return config, tables


def groups_of_all_sessions(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:

    def fitted(dataset: Any, fold: Any) -> Any:  # noqa: ANN401 (patched)
        return dataclasses.replace(fit_inputs(dataset, fold), groups=dataset.panel.groups_S)

    patch.setattr(walkforward, "fit_inputs", fitted)
    return config, tables


def restated_at_the_original_date(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """A vendor's table that shows the latest value of an item on all its dates."""
    latest = tables["fundamentals"].sort("known_at").group_by("ticker", "period_end", "item")
    values = latest.agg(pl.col("value").last())
    rows = tables["fundamentals"].drop("value").join(values, on=["ticker", "period_end", "item"])
    return config, {**tables, "fundamentals": rows.select(tables["fundamentals"].columns)}


def latest_versions_too_early(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """The same leak in our code: the newest version is used from the first date on."""
    patch_target = panels

    def early(fundamentals: pl.DataFrame, *rest: Any) -> Mapping[str, Array]:  # noqa: ANN401 (passed on)
        key = ["ticker", "period_end", "item"]
        ordered = fundamentals.sort("known_at").with_columns(
            pl.col("value").last().over(key), pl.col("known_at").first().over(key)
        )
        return statements_as_of(ordered.unique(key, keep="last", maintain_order=True), *rest)

    _.setattr(patch_target, "statements_as_of", early)
    return config, tables


def current_members(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """Current members are members on all earlier dates as well."""
    now = tables["membership"].filter(pl.col("to_date").is_null())
    since = tables["prices"]["date"].min()
    return config, {**tables, "membership": now.with_columns(pl.lit(since).alias("from_date"))}


def universe_with_next_price(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:

    def survivors(panel: Panel, *rest: Any) -> Array:  # noqa: ANN401 (passed on)
        kept: Array = universe(panel, *rest) & np.isfinite(ahead(panel.close_TN))
        return kept

    patch.setattr(markets, "universe", survivors)
    return config, tables


def overlapping_labels(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    def unpurged(n_sessions: int, plan: Any, *_: int) -> Any:  # noqa: ANN401 (passed on)
        folds = make_folds(n_sessions, plan, delay=0, horizon=1)
        gap = 1 + plan.embargo
        return [
            dataclasses.replace(fold, train=np.arange(fold.train[0], fold.train[-1] + gap + 1))
            for fold in folds
        ]

    patch.setattr(dataset_folds, "make_folds", unpurged)
    return config, tables


def _split_of_some(tables: Tables, recorded_early: int) -> Tables:
    """Give every fourth firm a split of 2 for 1 on one session, recorded on it or some sessions before."""
    prices = tables["prices"]
    days = prices["date"].unique().sort()
    ex_date, recorded = days[150], days[150 - recorded_early]
    firms = prices.filter(pl.col("date").is_between(recorded, ex_date)).group_by("ticker").len()
    chosen = firms.filter(pl.col("len") == recorded_early + 1)["ticker"].sort().gather_every(4)
    split = pl.col("ticker").is_in(chosen.implode())
    changes = {**dict.fromkeys(("open", "high", "low", "close"), 0.5), "volume": 2.0}
    half = [
        pl.when(split & (pl.col("date") >= ex_date))
        .then(pl.col(name) * factor)
        .otherwise(pl.col(name))
        .alias(name)
        for name, factor in changes.items()
    ]
    ratio = pl.when(split & (pl.col("date") == recorded)).then(2.0).otherwise(pl.col("split_ratio"))
    return {**tables, "prices": prices.with_columns(*half, ratio.alias("split_ratio"))}


def splits_recorded_early(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    return config, _split_of_some(tables, recorded_early=1)


def correctly_dated_splits(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    return config, _split_of_some(tables, recorded_early=0)


def splits_applied_early(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    def early(close_TN: Array, split_TN: Array, dividend_TN: Array) -> Array:
        return forward_factor(close_TN, np.roll(split_TN, -1, axis=0), dividend_TN)

    patch.setattr(panels, "forward_factor", early)
    return config, tables


def prices_over_their_maximum(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    columns = ["open", "high", "low", "close"]
    scaled = tables["prices"].with_columns(pl.col(columns) / pl.col("close").max().over("ticker"))
    universe = config.universe.model_copy(update={"min_price": None})
    return config.model_copy(update={"universe": universe}), {**tables, "prices": scaled}


def prices_before_listing(_: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """Every firm has a price on every session: gaps are closed with the next close."""
    prices = tables["prices"]
    grid = prices.select("date").unique().join(prices.select("ticker").unique(), how="cross")
    ends = prices.group_by("ticker").agg(pl.col("date").max().alias("last"))
    whole = grid.join(ends, on="ticker").filter(pl.col("date") <= pl.col("last")).drop("last")
    whole = whole.join(prices, on=["date", "ticker"], how="left").sort("ticker", "date")
    filled = whole.with_columns(
        pl.col("open", "high", "low", "close", "source", "ingested_at").backward_fill().over("ticker"),
        pl.col("split_ratio").fill_null(1.0),
        pl.col("dividend", "volume").fill_null(0.0),
    )
    return config, {**tables, "prices": filled.select(prices.columns).sort("date", "ticker")}


LEAVERS = {"delistings_per_year": 0.8}


def with_shorter_horizons(config: Config) -> Config:
    label = config.label.model_copy(update={"horizon": 5, "shorter_horizons": (1, 3)})
    return config.model_copy(update={"label": label})


def ranks_over_the_past(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """Scale a firm by the mean and deviation of all dates so far: no look-ahead, but it mixes dates."""

    def expanding(raw_TNF: Array, universe_TN: Array, *rest: Any) -> Array:  # noqa: ANN401 (passed on)
        inside_TNF = np.where(universe_TN[:, :, None], raw_TNF, np.nan).astype(np.float64)
        count_TF = np.maximum(np.cumsum(np.isfinite(inside_TNF).sum(axis=1), axis=0), 1)
        mean_TF = np.cumsum(np.nansum(inside_TNF, axis=1), axis=0) / count_TF
        square_TF = np.cumsum(np.nansum(inside_TNF**2, axis=1), axis=0) / count_TF
        std_TF = np.sqrt(np.maximum(square_TF - mean_TF**2, 1e-12))
        scaled_TNF = np.nan_to_num((inside_TNF - mean_TF[:, None]) / std_TF[:, None])
        scaled: Array = scaled_TNF.astype(np.float32)
        return scaled

    patch.setattr("pipelines.dataset.characteristics.transform_characteristics", expanding)
    return config, tables


def targets_over_the_past(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    from features.panel.holding import target as original

    def carried(label_TN: Array, universe_TN: Array, kind: Any) -> Array:  # noqa: ANN401 (passed on)
        target_TN = original(label_TN, universe_TN, kind)
        level_T1 = np.cumsum(np.nan_to_num(np.abs(label_TN)).sum(axis=1, keepdims=True), axis=0)
        scaled: Array = (target_TN * (1.0 + level_T1)).astype(np.float32)
        return scaled

    patch.setattr(datasets, "target", carried)
    return config, tables


def too_long_shorter_label(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """The label of horizon 1 covers four sessions, so it extends beyond the purge."""
    from features.panel.holding import forward_returns as original

    def longer(panel: Panel, delay: int, horizon: int) -> Array:
        return original(panel, delay, 4 if horizon == 1 else horizon)

    patch.setattr(markets, "forward_returns", longer)
    return with_shorter_horizons(config), tables


def path_with_look_ahead(patch: Patch, config: Config, tables: Tables) -> tuple[Config, Tables]:
    """Forecasts at the label's horizon are clean; those at shorter horizons are the future returns."""
    original = tasks.run_task

    def knowing(task: Any, arrays: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 (patched)
        path_BNK = np.asarray(arrays.path_TNK)[task.fold.test]
        return dataclasses.replace(original(task, arrays), path_BNK=path_BNK)

    patch.setattr("pipelines.train.work.run_task", knowing)
    return with_shorter_horizons(config), tables


LEAKS: dict[str, Leak] = {
    "rank over all dates so far": Leak(ranks_over_the_past, "cross_section", "haracteristic return_1"),
    "target scaled over all dates": Leak(targets_over_the_past, "cross_section", "The target of horizon"),
    "shorter label that spans more than it says": Leak(
        too_long_shorter_label, "future", "label of horizon 1"
    ),
    "forecast of a shorter horizon that knew it": Leak(
        path_with_look_ahead, "forecasts", "forecasts of shorter horizons"
    ),
    "centred window": Leak(in_channel(centred_mean), "future", "Channel return"),
    "centred window, delivered": Leak(in_input(centred_mean), "too_good", "input_signal"),
    "full-sample z-score": Leak(in_characteristic(full_sample_zscore), "future", "momentum_63"),
    "full-sample z-score, delivered": Leak(in_input(full_sample_zscore), "fingerprints", "input signal"),
    "scaler fitted on test": Leak(scaler_on_all_sessions, "fit_scope", "channel scaler"),
    "groups fitted on test": Leak(groups_of_all_sessions, "fit_scope", "The groups"),
    "restated value at original date": Leak(
        restated_at_the_original_date, "statements", "original date", verdict="warn"
    ),
    "restated value at original date, in code": Leak(latest_versions_too_early, "future", "Statement"),
    "today's membership for all dates": Leak(current_members, "membership", "Today's membership", LEAVERS),
    "universe that needs t+1": Leak(universe_with_next_price, "future", "The universe"),
    "label overlap": Leak(overlapping_labels, "label_spans", "train label"),
    "split applied before its ex-date": Leak(splits_recorded_early, "splits", "before its ex-date"),
    "split applied before its ex-date, in code": Leak(splits_applied_early, "future", "The panel's close"),
    "target leaked through a sector mean": Leak(
        in_characteristic(sector_mean_of_the_target), "future", "momentum_63"
    ),
    "target leaked through a sector mean, delivered": Leak(
        in_input(sector_mean_of_the_target), "too_good", "input_signal"
    ),
    "backfilled NaN": Leak(in_characteristic(backfilled), "future", "momentum_63"),
    "backfilled NaN, delivered": Leak(in_input(backfilled), "backfill", "input signal"),
    "backfilled NaN in prices": Leak(prices_before_listing, "backfill", "price close", LEAVERS),
    "off-by-one channel": Leak(in_channel(off_by_one, "intraday_range"), "future", "intraday_range"),
    "off-by-one channel, delivered": Leak(in_input(off_by_one), "timing", "channel intraday_range of t+1"),
    "full-sample maximum normalisation": Leak(in_channel(full_sample_maximum), "future", "Channel return"),
    "full-sample maximum normalisation, delivered": Leak(
        in_input(full_sample_maximum), "fingerprints", "Full-sample maximum: input signal"
    ),
    "full-sample maximum normalisation of prices": Leak(
        prices_over_their_maximum, "fingerprints", "Full-sample maximum: price close"
    ),
    "full-sample maximum normalisation, smoothed": Leak(
        in_input(smoothed_maximum), "fingerprints", "input signal", {"sessions": 900}
    ),
}
"""The leaks by kind. Most have more than one form: in our code, and in the delivered data."""
