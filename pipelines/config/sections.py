"""Sections of a configuration, except ``backtest`` and ``nightly``, which are in modules of their own."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.settings import PathSetting, Section, StoreSetting


class UniverseConfig(Section):
    """Firms that may be forecast at ``t``, decided with what is known at ``t``."""

    membership: str | None = None
    """Name of a universe in the lake's membership table; only its members at ``t`` are included. Null: no
    such limit."""
    min_price: float | None = Field(default=None, ge=0)
    """Minimum raw (unadjusted) close at ``t``, in the price's currency. Null: no limit."""
    min_dollar_volume: float | None = Field(default=None, ge=0)
    """Minimum trailing median of raw close times volume, in the price's currency per session. Null:
    no limit."""
    dollar_volume_window: int = Field(default=63, ge=1)
    """Number of sessions of the trailing median for ``min_dollar_volume``; half of them must be known."""
    min_history: int = Field(default=60, ge=1)
    """Minimum number of sessions with a price, ``t`` included."""


class FeatureStoreConfig(Section):
    """Where channels and characteristics are kept between commands; lost ones are computed again."""

    folder: PathSetting | None = None
    """Folder on a local disk. Null: ``features`` beside the folder of the runs (``output``), or in the user's
    cache if ``output`` is a URL."""
    limit_gib: float = Field(default=50.0, gt=0)
    """GiB that they may take; those that were not used for the longest time are removed first."""


class OutputStoreConfig(Section):
    """A copy of the runs' folders on an object store, for machines without a disk in common."""

    url: str | None = None
    """Where the folders are copied to, such as s3://bucket/runs. Null: nowhere."""
    options: dict[str, str] = Field(default={})
    """Options of the object store, as ``lake_options``. Credentials come from the environment."""


class TransformConfig(Section):
    """Transformation of characteristics within each date (`features.library.standardise.TransformRule`)."""

    winsorise: float | None = Field(default=None, ge=0, lt=0.5)
    """Share of each tail, in [0, 0.5), that is clipped to its quantile. Null: no clipping."""
    neutralise: Literal["none", "group"] = "none"
    """``group`` subtracts the mean of the firm's group (``features.group_by``) on the date; ``none`` does
    not."""
    kind: Literal["rank_normal", "zscore"] = "rank_normal"
    """``rank_normal`` maps ranks to a standard normal distribution; ``zscore`` subtracts the mean and divides
    by the standard deviation."""
    missing: Literal["zero", "median", "group_median"] = "zero"
    """Value that replaces a missing one: zero, the median of the date, or the median of the group."""
    add_indicator: bool = False
    """Whether to add, for each characteristic, an indicator of whether its value was missing."""


class FeaturesConfig(Section):
    """Inputs of the models: the window of days and the characteristics of the cross-section."""

    window: int = Field(default=20, ge=2, le=2048)
    """Number of sessions in a window, the decision date included."""
    channels: tuple[str, ...] | None = None
    """Names of the channels (daily series) of the window. Null: all that the data allow."""
    characteristics: tuple[str, ...] | None = None
    """Names of the characteristics. Null: all that the data allow."""
    inputs: tuple[str, ...] | None = None
    """Names of your own numbers (the lake's table ``inputs``) to use as characteristics. Null: all
    of them."""
    hold_inputs: int = Field(default=0, ge=0)
    """Number of sessions for which the last known value of your own numbers is held. A value that is dated on
    a day without a session is then known from the next session on. 0: a value is used on its own session
    alone, so that monthly numbers are known on one session a month."""
    group_by: Literal["sector", "industry"] = "industry"
    """Groups for neutralisation, group medians and models of peers by group."""
    transform: TransformConfig = TransformConfig()
    """Transformation of the characteristics within each date."""


class LabelConfig(Section):
    """The label ``close[t+delay+horizon] / close[t+delay] - 1`` and the target that models are fitted to."""

    horizon: int = Field(default=1, ge=1)
    """Sessions from the trade to the end of the label."""
    delay: int = Field(default=1, ge=0)
    """Sessions from the decision to the trade; 0 trades at the close of the decision."""
    transform: Literal["raw", "demean", "rank"] = "rank"
    """Transformation of the label within each date: none, demeaned, or ranked to a standard normal
    distribution."""
    clip: float | None = Field(default=None, gt=0)
    """Models are fitted to targets clipped to [-clip, clip]. Null: no clipping."""
    residualise_factors: int = Field(default=0, ge=0)
    """Number of statistical factors that are removed from the label before fitting. Models are trained on the
    residual and evaluated on the full label."""
    unknown_delisting_return: float = Field(default=0.0, ge=-1, allow_inf_nan=False)
    """Return paid on a delisting that has neither a recorded return nor a reason; 0 pays the last price."""
    periods_per_year: float | None = Field(default=None, gt=0, le=366)
    """Sessions in a year, which annual figures use. Null: what the dates of the prices say
    (`features.panel.periods.periods_per_year`): 252 for days, 365 if weekends are sessions, 52 for weeks, 12
    for months."""
    forecast_frequency: Literal["daily", "weekly", "monthly", "quarterly"] = "daily"
    """How often forecasts are made: every session, or the first session of each week, month or quarter."""
    extra_delays: tuple[int, ...] = ()
    """Further delays at which the same forecasts are evaluated, in sessions."""
    shorter_horizons: tuple[int, ...] = ()
    """Horizons below ``horizon`` that seq2seq also forecasts, ascending, in sessions."""

    @model_validator(mode="after")
    def _check_horizons(self) -> LabelConfig:
        rising = (0, *self.horizons)
        if any(a >= b for a, b in itertools.pairwise(rising)):
            raise ValueError(
                f"shorter_horizons is {list(self.shorter_horizons)}; it must be ascending, start at 1 or "
                f"more and stay below horizon ({self.horizon})"
            )
        return self

    @property
    def horizons(self) -> tuple[int, ...]:
        """The shorter horizons, ascending, then the label's horizon."""
        return (*self.shorter_horizons, self.horizon)

    @property
    def delays(self) -> tuple[int, ...]:
        """The trained delay, then the further delays that are evaluated."""
        return (self.delay, *(d for d in self.extra_delays if d != self.delay))

    @property
    def max_delay(self) -> int:
        """Longest delay in use. The purge covers the labels of every delay that is evaluated."""
        return max(self.delays)


class ExplainConfig(Section):
    """Attribution of test forecasts by Shapley values.

    ``dates`` times ``firms_per_date`` forecasts are attributed to days, feature families and peers. The peer
    network is computed on ``network_dates`` dates, with every firm as a player.
    """

    models: tuple[str, ...] | None = None
    """Models to explain. Null: every neural model."""
    dates: int = Field(default=12, ge=1)
    """Number of test dates whose forecasts are attributed."""
    firms_per_date: int = Field(default=4, ge=1)
    """Number of forecasts that are attributed on each date."""
    network_dates: int = Field(default=24, ge=1)
    """Number of test dates that the peer network is computed on, over all folds. The seeds take turns."""
    max_peers: int = Field(default=150, ge=2)
    """Maximum number of firms on one side of the measured pairs. With more firms, this many are drawn at
    random: as followers of a model with one peer layer, as leaders of other models."""
    permutations: int = Field(default=8, ge=1)
    """Number of antithetic permutations, and of background firms, per attributed forecast: the draws of the
    engine."""
    engine: Literal["permutation", "linear", "tree", "integrated_gradients"] = "permutation"
    """How the values are computed. ``linear`` is for ridge, ``tree`` for lightgbm; gradients are for neural
    models and ridge."""
    removal: Literal["date", "train", "conditional"] = "date"
    """What absent characteristics are replaced with: the values of another firm of the same ``date``, those
    of a random firm and session of the training fold (``train``), or draws from the training fold given the
    characteristics that are kept (``conditional``). Absent peers are masked, and so are absent days, except
    in models that read them through a linear map or a convolution, where they are set to 0."""
    precision: float | None = Field(default=None, gt=0)
    """Largest standard error of a value, as a share of the standard deviation of the date's forecasts. The
    engine draws until it is reached, at most 1,000 times. Null: ``permutations`` draws."""
    skill_dates: int = Field(default=24, ge=0)
    """Number of test dates whose rank IC is divided among the players, over all folds. The seeds take turns.
    0: none."""
    network_permutations: int = Field(default=16, ge=2)
    """Number of antithetic pairs of orders per date of the network."""
    faithfulness: Literal["quick", "thorough"] = "quick"
    """How many forecasts are used to measure whether attention can be believed. ``thorough`` uses more dates,
    firms, random draws and background firms: narrower intervals, but 10 to 40 s of processor time for each
    fold and seed of a model of the demo, instead of less than 1 s."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw: orders, replacements, firms, shuffled parameters and bootstraps."""


class TrackingConfig(Section):
    """The MLflow tracking store."""

    uri: StoreSetting = "sqlite:///data/mlflow.db"
    """MLflow tracking URI: a database such as SQLite, or a server."""
    artifacts: PathSetting = "data/mlartifacts"
    """Folder or URL where MLflow stores artifacts."""
    experiment: str | None = None
    """Name of the MLflow experiment. Null: the config's ``name``."""


class AuditConfig(Section):
    """The audit for look-ahead. ``peerglass run`` runs a shorter version of it before it trains."""

    enabled: bool = True
    """Whether ``peerglass run`` runs the audit."""
    on_failure: Literal["stop", "warn"] = "stop"
    """``stop`` ends the run if a check fails; ``warn`` reports the failure and continues."""
    sessions: int = Field(default=6, ge=1)
    """Number of sessions whose future is replaced by noise to detect look-ahead; ``peerglass run`` uses half
    as many."""
    seed: int = 0
    """Seed of the noise and of all draws."""
    skip: tuple[str, ...] = ()
    """Names of checks to leave out; the report lists them."""


class ExecutionConfig(Section):
    """Where the tasks of training, tuning and attribution are computed. No setting changes a result."""

    engine: Literal["serial", "pool", "ray"] = "pool"
    """``serial`` computes one task after the other in the command's own process; ``pool`` uses processes of
    this machine; ``ray`` uses a Ray cluster (extra ``cluster``)."""
    workers: int = Field(default=2, ge=1)
    """Maximum number of tasks that are computed at once, over all machines. ``serial`` computes one."""
    address: str | None = None
    """Ray: address of a running cluster, as ``HOST:PORT``, or ``auto`` on one of its machines. Null: Ray is
    started on this machine and ends with the command."""
    gpus_per_task: float = Field(default=0.0, ge=0)
    """Ray: number of GPUs that every task reserves. With a fraction, tasks share a GPU."""

    @model_validator(mode="after")
    def _check_engine(self) -> ExecutionConfig:
        if self.engine != "ray" and (self.address is not None or self.gpus_per_task):
            given = "address" if self.address is not None else "gpus_per_task"
            raise ValueError(f"{given} is a setting of engine ray, and engine is {self.engine}; remove one")
        if self.address is not None and "://" in self.address:
            raise ValueError(
                f"address is {self.address!r}; Ray's client protocol is not supported: run the command on a "
                "machine of the cluster with address auto, or give HOST:PORT of its head"
            )
        if self.gpus_per_task > 1 and not self.gpus_per_task.is_integer():
            raise ValueError(f"gpus_per_task is {self.gpus_per_task}; above 1 it must be a whole number")
        return self


class WalkForwardConfig(Section):
    """Walk-forward folds of fixed lengths. All lengths are in sessions."""

    scheme: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on the last ``train`` of them."""
    train: int = Field(ge=1)
    """Length of the training segment; for ``expanding``, at least that of the first fold."""
    valid: int = Field(ge=1)
    """Length of the validation segment."""
    test: int = Field(ge=1)
    """Length of the test segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    step: int | None = Field(default=None, ge=1)
    """Sessions from the start of one test segment to the start of the next, at least ``test``. Null:
    ``test``."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the latest are kept, or the earliest with ``anchor: start``. Null: all that
    fit."""
    anchor: Literal["end", "start"] = "end"
    """``end`` lays the test segments backwards from the newest session, so that the latest data are tested.
    ``start`` lays them forwards from the first possible one, so that new data add folds and change none."""


class DatedFoldConfig(Section):
    """One fold with given dates, as published benchmarks define it."""

    scheme: Literal["dated"]
    """Selects this scheme."""
    train_from: dt.date
    """First date of the training segment."""
    valid_from: dt.date
    """First date of the validation segment."""
    test_from: dt.date
    """First date of the test segment."""
    test_to: dt.date
    """Last date of the test segment, inclusive."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""

    @model_validator(mode="after")
    def _check_order(self) -> DatedFoldConfig:
        if not self.train_from < self.valid_from < self.test_from <= self.test_to:
            raise ValueError(
                "train_from < valid_from < test_from <= test_to must hold, "
                f"but the dates are {self.train_from}, {self.valid_from}, {self.test_from}, {self.test_to}"
            )
        return self


class CalendarFoldsConfig(Section):
    """Walk-forward folds whose tests are calendar years or quarters. Lengths count these periods."""

    scheme: Literal["calendar"]
    """Selects this scheme."""
    period: Literal["year", "quarter"]
    """Length of a test. The newest period is tested as far as its labels are known."""
    window: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on ``train`` periods."""
    train: int = Field(ge=1)
    """Periods of the training segment; for ``expanding``, at least that many in the first fold."""
    valid: int = Field(ge=1)
    """Periods of the validation segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the latest are kept. Null: all that fit."""


class CombinatorialFoldsConfig(Section):
    """Combinatorial purged cross-validation: one fold for every choice of groups that are tested."""

    scheme: Literal["combinatorial"]
    """Selects this scheme."""
    groups: int = Field(ge=3)
    """Number N of groups of consecutive sessions that the history is cut into."""
    test_groups: int = Field(ge=1)
    """Number k of groups that are tested together, at most ``groups - 2``. There are ``N! / (k! (N - k)!)``
    folds, and ``k / N`` times as many paths."""
    embargo: int = Field(ge=0)
    """Sessions left out on both sides of a test and of the validation, in addition to the purge of label
    spans."""

    @model_validator(mode="after")
    def _check_groups(self) -> CombinatorialFoldsConfig:
        if self.test_groups > self.groups - 2:
            raise ValueError(
                f"test_groups is {self.test_groups} and groups is {self.groups}; test_groups must be at most "
                "groups - 2, because one group validates and at least one trains"
            )
        return self


class LiveFoldConfig(Section):
    """One fold without a test, for a model that is used: it trains on the newest known labels.

    Lengths are in sessions. Such a run makes no test forecasts and cannot be backtested.
    """

    scheme: Literal["live"]
    """Selects this scheme."""
    through: dt.date
    """Date of the data: what was not known at the close of this session is left out."""
    train: int | None = Field(default=None, ge=1)
    """Length of the training segment. Null: all sessions."""
    valid: int = Field(ge=1)
    """Length of the validation segment; its last label ends on ``through``."""
    embargo: int = Field(ge=0)
    """Sessions left out between the segments, in addition to the purge of label spans."""


FoldsConfig = Annotated[
    WalkForwardConfig | DatedFoldConfig | CalendarFoldsConfig | CombinatorialFoldsConfig | LiveFoldConfig,
    Field(discriminator="scheme"),
]
"""The folds of a config: sessions for training, validation and test, purged and embargoed."""
