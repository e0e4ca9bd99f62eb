"""The configuration of a run: what a YAML file may say, and nothing else.

Frozen pydantic models; an unknown key is refused by :mod:`pipelines.config.load`, which reads files.
Settings of models, of their fitting and of the simulated market are the dataclasses of those modules,
checked by :func:`pipelines.config.load.load_config` as well, so that they are written down once.
"""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from pipelines.quality.settings import QualityConfig
from pipelines.secrets import REFERENCE, names_a_secret
from pipelines.settings import Section, Settings, masked_settings
from pipelines.sources.settings import SourceConfig

Path = tuple[str | int, ...]
"""Where a setting is: keys and places in lists, from the outermost in."""


class UniverseConfig(Section):
    """Which firms may be forecast at ``t``, decided with what is known at ``t``."""

    membership: str | None = None  # name of a universe in the lake's membership table
    min_price: float | None = Field(default=None, ge=0)
    min_dollar_volume: float | None = Field(default=None, ge=0)
    dollar_volume_window: int = Field(default=63, ge=1)
    min_history: int = Field(default=60, ge=1)


class TransformConfig(Section):
    """What is done to characteristics within each date (`features.library.standardise.TransformRule`)."""

    winsorise: float | None = Field(default=None, ge=0, lt=0.5)
    neutralise: Literal["none", "group"] = "none"
    kind: Literal["rank_normal", "zscore"] = "rank_normal"
    missing: Literal["zero", "median", "group_median"] = "zero"
    indicator: bool = False


class FeaturesConfig(Section):
    """Window length, channels and characteristics; null means every one that the data allow."""

    window: int = Field(default=20, ge=2, le=2048)
    channels: tuple[str, ...] | None = None
    characteristics: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None  # a user's own numbers in the lake's table of that name
    group_by: Literal["sector", "industry"] = "industry"
    transform: TransformConfig = TransformConfig()


class LabelConfig(Section):
    """The label ``close[t+delay+horizon] / close[t+delay] - 1`` and the target made of it within a date."""

    horizon: int = Field(default=1, ge=1)
    delay: int = Field(default=1, ge=0)
    transform: Literal["raw", "demean", "rank"] = "rank"
    clip: float | None = Field(default=None, gt=0)  # models are fitted to targets cut off at +- this
    residualise_factors: int = Field(
        default=0, ge=0
    )  # fit what so many statistical factors leave of the label
    # what an ending with neither a recorded return nor a reason pays; 0 is the last price
    unknown_ending_return: float = Field(default=0.0, ge=-1, allow_inf_nan=False)
    forecast_frequency: Literal["daily", "weekly", "monthly", "quarterly"] = (
        "daily"  # on the first session of each
    )
    also_delays: tuple[int, ...] = ()  # the same forecasts are measured at these delays as well
    shorter_horizons: tuple[int, ...] = ()  # what seq2seq forecasts on the way to the horizon

    @model_validator(mode="after")
    def _horizons_rise(self) -> LabelConfig:
        rising = (0, *self.horizons)
        if any(a >= b for a, b in itertools.pairwise(rising)):
            raise ValueError(
                f"shorter_horizons are {list(self.shorter_horizons)}: they must rise from 1 or more and stay "
                f"below horizon ({self.horizon})"
            )
        return self

    @property
    def horizons(self) -> tuple[int, ...]:
        """The shorter horizons, ascending, and the label's last."""
        return (*self.shorter_horizons, self.horizon)

    @property
    def delays(self) -> tuple[int, ...]:
        """The trained delay first, then the others that are reported."""
        return (self.delay, *(d for d in self.also_delays if d != self.delay))

    @property
    def reach(self) -> int:
        """Longest delay in use: the purge covers every label that is ever looked at."""
        return max(self.delays)


class WalkForwardConfig(Section):
    """Expanding or rolling folds, in sessions."""

    scheme: Literal["expanding", "rolling"]
    train: int = Field(ge=1)
    valid: int = Field(ge=1)
    test: int = Field(ge=1)
    embargo: int = Field(ge=0)
    step: int | None = Field(default=None, ge=1)
    max_folds: int | None = Field(default=None, ge=1)


class DatedFoldConfig(Section):
    """One fold between given dates, as published benchmarks define it."""

    scheme: Literal["dated"]
    train_from: dt.date
    valid_from: dt.date
    test_from: dt.date
    test_to: dt.date
    embargo: int = Field(ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> DatedFoldConfig:
        if not self.train_from < self.valid_from < self.test_from <= self.test_to:
            raise ValueError(
                "train_from < valid_from < test_from <= test_to must hold, "
                f"but they are {self.train_from}, {self.valid_from}, {self.test_from}, {self.test_to}"
            )
        return self


FoldsConfig = Annotated[WalkForwardConfig | DatedFoldConfig, Field(discriminator="scheme")]


class QuantileBookConfig(Section):
    """Long the top quantile, short the bottom one."""

    kind: Literal["quantile_long_short"]
    quantiles: int = Field(default=5, ge=2)
    rebalance_every: int = Field(default=1, ge=1)


class TopKBookConfig(Section):
    """Long the ``k`` highest forecasts, equally weighted."""

    kind: Literal["top_k_long_only"]
    k: int = Field(default=20, ge=1)
    rebalance_every: int = Field(default=1, ge=1)


BookConfig = Annotated[QuantileBookConfig | TopKBookConfig, Field(discriminator="kind")]


class CostsConfig(Section):
    """Trading and borrowing costs in basis points."""

    half_spread_bps: float = Field(default=5.0, ge=0)
    commission_bps: float = Field(default=0.5, ge=0)
    borrow_bps_per_year: float = Field(default=50.0, ge=0)


class BacktestConfig(Section):
    """Books and costs; trades are made at the close of ``t + label.delay`` unless ``delay`` is set.

    ``risk_free`` is what Sharpe ratios are over: an annual rate as a fraction (0.03 is 3% a year), or a CSV
    or Parquet file with columns date and rate (`pipelines.dataset.risk_free`).
    """

    books: dict[str, BookConfig] = Field(
        default={
            "long_short": QuantileBookConfig(kind="quantile_long_short"),
            "long_only": TopKBookConfig(kind="top_k_long_only"),
        }
    )
    costs: CostsConfig = CostsConfig()
    delay: int | None = Field(default=None, ge=0)
    risk_free: float | str = 0.0

    @model_validator(mode="after")
    def _rate_is_a_fraction(self) -> BacktestConfig:
        if not isinstance(self.risk_free, str) and not abs(self.risk_free) < 1:
            raise ValueError(f"risk_free is {self.risk_free:g}; give an annual fraction, 0.05 for 5%")
        return self


class ExplainConfig(Section):
    """How many test forecasts are attributed, and for which models (null: every neural one).

    ``dates`` times ``firms_per_date`` forecasts are split between days, feature families and peers, with
    ``permutations`` antithetic permutations and as many background firms. The network is played on
    ``network_dates`` with every firm as a player; beyond ``max_peers`` firms, those that receive most
    attention play alone and the others together.
    """

    models: tuple[str, ...] | None = None
    dates: int = Field(default=12, ge=1)
    firms_per_date: int = Field(default=4, ge=1)
    network_dates: int = Field(default=24, ge=1)
    max_peers: int = Field(default=150, ge=2)
    permutations: int = Field(default=8, ge=1)
    network_permutations: int = Field(default=1, ge=1)
    seed: int = 0


class TrackingConfig(Section):
    """Where MLflow keeps runs; any tracking URI."""

    uri: str = "sqlite:///data/mlflow.db"
    artifacts: str = "data/mlartifacts"
    experiment: str | None = None


class AuditConfig(Section):
    """The audit for look-ahead; ``peerglass run`` makes a quick one before it trains.

    ``times`` sessions have their future replaced by noise (in ``run`` half of them). With ``warn``
    a failure is reported and the run goes on; checks named in ``skip`` are left out, and the report says so.
    """

    enabled: bool = True
    on_failure: Literal["stop", "warn"] = "stop"
    times: int = Field(default=6, ge=1)
    seed: int = 0
    skip: tuple[str, ...] = ()


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    source: SourceConfig
    lake: str  # a folder, or an object store's URL such as s3://bucket/lake
    # for a URL: endpoint, region, ...; credentials come from the environment
    lake_options: dict[str, str] = Field(default={})
    quality: QualityConfig = QualityConfig()
    universe: UniverseConfig = UniverseConfig()
    features: FeaturesConfig = FeaturesConfig()
    label: LabelConfig = LabelConfig()
    folds: FoldsConfig
    models: dict[str, Settings]
    fit: Settings = Field(default={})
    init_from: str | None = None  # a run whose day encoders the models begin with
    seeds: tuple[int, ...] = (0,)
    backtest: BacktestConfig = BacktestConfig()
    explain: ExplainConfig = ExplainConfig()
    audit: AuditConfig = AuditConfig()
    tracking: TrackingConfig = TrackingConfig()
    workers: int = Field(default=2, ge=1)
    stack_seeds: bool | None = None  # train a network's seeds as one; null: on a GPU alone
    device: str = "auto"
    output: str = "data/runs"

    # Path -> the text with ${NAME} that the setting was written as, and the value that it had then
    _written: dict[Path, tuple[str, Any]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _something_to_do(self) -> Config:
        if not self.models:
            raise ValueError("models is empty; name at least one, for example 'ridge: {}'")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be distinct and at least one, but they are {list(self.seeds)}")
        return self

    def without_secrets(self) -> Settings:
        """All settings with their values, but a secret is masked or stands as the reference that it was."""
        secret = {
            path: (text, value)
            for path, (text, value) in self._written.items()
            if any(names_a_secret(name) for name, _ in REFERENCE.findall(text))
        }
        return dict(masked_settings(_as_written(self.model_dump(mode="json"), secret)))

    def as_written(self) -> Settings:
        """All settings as they are printed and stored: references to the environment kept, secrets masked."""
        return dict(masked_settings(_as_written(self.model_dump(mode="json"), self._written)))

    @property
    def written(self) -> dict[Path, str]:
        """The settings that were written with references to the environment, as they were written."""
        return {path: text for path, (text, _) in self._written.items()}

    def from_environment(self) -> dict[str, Any]:
        """Setting -> its value, of those that came from the environment and bear on a run's numbers.

        Where things are (source, lake, tracking, output) may differ from machine to machine, and how work is
        spread may as well. Secrets are left out.
        """
        elsewhere = {"source", "lake", "lake_options", "tracking", "output", "workers", "device"}
        return {
            ".".join(map(str, path)): masked_settings(value)
            for path, (text, value) in self._written.items()
            if path[0] not in elsewhere
            and not any(names_a_secret(name) for name, _ in REFERENCE.findall(text))
        }

    def remember(self, written: dict[Path, str]) -> None:
        """Remember which settings were written with references to the environment, and as what."""
        values = self.model_dump(mode="json")
        for path, text in written.items():
            found = _at(values, path)
            if found is not None:
                self._written[path] = (text, found)


def _at(settings: Any, path: Path) -> Any:  # noqa: ANN401
    """The setting at a path; None if it is not there."""
    for step in path:
        if isinstance(settings, list):
            settings = dict(enumerate(settings))
        if not isinstance(settings, dict) or step not in settings:
            return None
        settings = settings[step]
    return settings


def _as_written(settings: Settings, written: dict[Path, tuple[str, Any]]) -> Settings:
    """Put references back where the settings still have the values that they were read with."""
    for path, (text, value) in written.items():
        if _at(settings, path) == value and value is not None:
            _at(settings, path[:-1])[path[-1]] = text
    return settings
