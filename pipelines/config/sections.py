"""Sections of a configuration, except ``backtest`` and ``nightly``, which are in modules of their own."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from backtest.splits.calendar import CalendarPlan
from backtest.splits.combinatorial import CombinatorialPlan
from backtest.splits.folds import DatedPlan, FoldPlan, LivePlan
from features.library.standardise import TransformRule
from features.panel.universe import UniverseRule
from pipelines.settings import PathSetting, Section, StoreSetting


class UniverseConfig(UniverseRule):
    """Firms that may be forecast at ``t``, decided with what is known at ``t``."""

    membership: str | None = None
    """Name of a universe in the lake's membership table; only its members at ``t`` are included. Null: no
    such limit."""


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
    transform: TransformRule = TransformRule()
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


class EngineConfig(Section):
    """Where the tasks of training, tuning and attribution are computed. No setting changes a result."""

    engine: Literal["serial", "pool", "ray"] = "pool"
    """``serial`` computes one task after the other in the command's own process; ``pool`` uses processes of
    this machine; ``ray`` uses a Ray cluster (extra ``cluster``)."""
    workers: int = Field(default=2, ge=1)
    """Maximum number of tasks that are computed at once, over all machines. ``serial`` computes one. Each GPU
    of this machine computes one of them."""
    address: str | None = None
    """Ray: address of a running cluster, as ``HOST:PORT``, or ``auto`` on one of its machines. Null: Ray is
    started on this machine and ends with the command."""
    gpus_per_task: float = Field(default=0.0, ge=0)
    """Ray: number of GPUs that every task reserves. With a fraction, tasks share a GPU."""

    @model_validator(mode="after")
    def _check_engine(self) -> EngineConfig:
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


FoldsConfig = Annotated[
    FoldPlan | DatedPlan | CalendarPlan | CombinatorialPlan | LivePlan, Field(discriminator="scheme")
]
"""The folds of a config: sessions for training, validation and test, purged and embargoed."""
