"""Sections of a configuration: universe, features, label, folds, books, attribution, tracking and audit."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.settings import Section


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


class WalkForwardConfig(Section):
    """Walk-forward folds. All lengths are in sessions."""

    scheme: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on the last ``train`` of them."""
    train: int = Field(ge=1)
    """Length of the training segment; for ``expanding``, of the first fold's."""
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
    """Maximum number of folds; the earliest are kept. Null: all that fit."""


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


FoldsConfig = Annotated[WalkForwardConfig | DatedFoldConfig, Field(discriminator="scheme")]


class QuantileBookConfig(Section):
    """A long-short book: long the top quantile of forecasts, short the bottom one."""

    kind: Literal["quantile_long_short"]
    """Selects this kind of book."""
    quantiles: int = Field(default=5, ge=2)
    """Number of quantiles; 5 trades the top and bottom fifth."""
    rebalance_every: int = Field(default=1, ge=1)
    """Sessions from one rebalancing to the next."""


class TopKBookConfig(Section):
    """A long-only book: the ``k`` highest forecasts, equally weighted."""

    kind: Literal["top_k_long_only"]
    """Selects this kind of book."""
    k: int = Field(default=20, ge=1)
    """Number of positions."""
    rebalance_every: int = Field(default=1, ge=1)
    """Sessions from one rebalancing to the next."""


BookConfig = Annotated[QuantileBookConfig | TopKBookConfig, Field(discriminator="kind")]


class CostsConfig(Section):
    """Trading and borrowing costs, in basis points."""

    half_spread_bps: float = Field(default=5.0, ge=0)
    """Half-spread, per traded amount."""
    commission_bps: float = Field(default=0.5, ge=0)
    """Commission, per traded amount."""
    borrow_bps_per_year: float = Field(default=50.0, ge=0)
    """Borrowing cost of short positions, per year."""


class BacktestConfig(Section):
    """Books and costs of the backtest."""

    books: dict[str, BookConfig] = Field(
        default={
            "long_short": QuantileBookConfig(kind="quantile_long_short"),
            "long_only": TopKBookConfig(kind="top_k_long_only"),
        }
    )
    """Name -> book."""
    costs: CostsConfig = CostsConfig()
    """Trading and borrowing costs."""
    delay: int | None = Field(default=None, ge=0)
    """Sessions from the decision to the trade. Null: ``label.delay``."""
    risk_free: float | str = 0.0
    """Risk-free rate that Sharpe ratios are measured over: an annual rate as a fraction (0.03 is 3% a year),
    or a CSV or Parquet file with columns date and rate (`pipelines.dataset.risk_free`)."""

    @model_validator(mode="after")
    def _check_risk_free(self) -> BacktestConfig:
        if not isinstance(self.risk_free, str) and not abs(self.risk_free) < 1:
            raise ValueError(f"risk_free is {self.risk_free:g}; it must be an annual fraction, 0.05 for 5%")
        return self


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
    """Number of test dates that the peer network is computed on."""
    max_peers: int = Field(default=150, ge=2)
    """Maximum number of single firms as players of the network. With more firms, those that receive most
    attention are players of their own and the others are one player together."""
    permutations: int = Field(default=8, ge=1)
    """Number of antithetic permutations, and of background firms, per attributed forecast."""
    network_permutations: int = Field(default=1, ge=1)
    """Number of antithetic permutations per date of the network."""
    seed: int = 0
    """Seed of the random draws."""


class TrackingConfig(Section):
    """The MLflow tracking store."""

    uri: str = "sqlite:///data/mlflow.db"
    """MLflow tracking URI: a database such as SQLite, or a server."""
    artifacts: str = "data/mlartifacts"
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
