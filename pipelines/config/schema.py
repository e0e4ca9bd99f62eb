"""The configuration of a run: every setting that a YAML file may contain.

Frozen pydantic models (`features.options`). What a source, a book, a fold, a model or its fitting can be told
is defined next to the code that reads it, and is a section here; :mod:`pipelines.config.load` reads the
files.
"""

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic_core import to_jsonable_python

from pipelines.config import sections
from pipelines.config.nights import NightlyConfig
from pipelines.ingest.settings import QualityConfig
from pipelines.secrets import REFERENCE, is_secret_name
from pipelines.settings import PathSetting, RunSetting, Section, Settings, masked_settings
from pipelines.sources.settings import SourceConfig

_LONGEST_MONTH: Final = 23  # sessions

Path = tuple[str | int, ...]
"""Path of a setting: keys and list positions, outermost first."""


class Config(Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    """Name of the configuration: lower-case letters, digits, ``_`` and ``-``, starting with a letter, at most
    41 characters."""
    hypothesis: str | None = Field(default=None, min_length=1, max_length=80)
    """Name of the idea that is tested. Its trials alone count against its results. Null: all trials on the
    market count. Name it before the first trial, and keep the name for every variant of the idea."""
    root: PathSetting | None = None
    """Folder that the relative paths in this file are relative to; itself relative to the file. Null: the
    folder of the file."""
    plugins: tuple[str, ...] = ()
    """Modules of your own that register models, features, books, sources or audit checks: the name of an
    installed module, such as mypackage.models, or the path of a file, such as ./my_features.py
    (docs/extending.md)."""
    source: SourceConfig
    """Where the data come from."""
    lake: PathSetting
    """Folder of the lake, or its URL on an object store, such as s3://bucket/lake."""
    lake_options: dict[str, str] = Field(default={})
    """Options of the object store (endpoint, region, ...) if ``lake`` is a URL. Credentials come from the
    environment."""
    quality: QualityConfig = QualityConfig()
    """Rules that flag or reject suspicious price rows."""
    universe: sections.UniverseConfig = sections.UniverseConfig()
    """Firms that may be forecast at each date."""
    features: sections.FeaturesConfig = sections.FeaturesConfig()
    """Inputs of the models."""
    label: sections.LabelConfig = sections.LabelConfig()
    """What is forecast."""
    known_from: dt.date | None = None
    """Knowledge cutoff of a file or frame of signals: the first session after the training data of the
    language or foundation model that made them. Earlier forecasts count in no figure. Null: a column
    ``known_from`` of the file says so for each row, or all forecasts count. It has no effect on a run."""
    folds: sections.FoldsConfig
    """Walk-forward folds."""
    models: dict[str, Settings]
    """Name -> settings of a model. ``fit`` overrides the fitting settings for this model. ``model`` names the
    registered model if the entry has another name."""
    fit: Settings = Field(default={})
    """Fitting settings of all models (`models.fitting.fit.FitConfig`); a model's own ``fit``
    overrides them."""
    init_from: RunSetting | None = None
    """Run whose day encoders the models are initialised with: its id, a unique prefix of it, or its folder.
    Null: none."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; every model is fitted once per seed and fold."""
    backtest: sections.BacktestConfig = sections.BacktestConfig()
    """Books and costs."""
    explain: sections.ExplainConfig = sections.ExplainConfig()
    """Attribution."""
    audit: sections.AuditConfig = sections.AuditConfig()
    """Audit for look-ahead."""
    nightly: NightlyConfig = NightlyConfig()
    """The nightly pipeline."""
    multiverse: dict[str, tuple[Any, ...]] = Field(default={})
    """Design choices of ``peerglass multiverse``: settings with two or more values, such as
    ``{label: {horizon: [1, 5]}, book: [long_short, long_only]}``. ``model`` and ``book`` choose entries of
    ``models`` and ``backtest.books``, and ``book.X`` is a setting of the chosen book. Empty: what papers
    vary."""
    tracking: sections.TrackingConfig = sections.TrackingConfig()
    """MLflow tracking store."""
    execution: sections.EngineConfig = sections.EngineConfig()
    """Where tasks are computed."""
    stack_seeds: bool | None = None
    """Whether to train all seeds of a network together. Null: only on a GPU."""
    device: str = "auto"
    """Device for training: ``cpu``, ``cuda``, or ``auto`` for the GPU if there is one."""
    output: PathSetting = "data/runs"
    """Folder of the runs."""
    output_store: sections.OutputStoreConfig = sections.OutputStoreConfig()
    """Copy of the runs' folders on an object store."""
    feature_store: sections.FeatureStoreConfig = sections.FeatureStoreConfig()
    """Files with the features of markets, shared by runs and processes."""

    # Path -> the text with ${NAME} in the file, and the value that it resolved to
    _written: dict[Path, tuple[str, Any]] = PrivateAttr(default_factory=dict)

    @field_validator("multiverse", mode="before")
    @classmethod
    def _name_choices(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        """Name nested choices by their paths, and write dates as in JSON."""
        if not isinstance(given, Mapping):
            return given
        given, named = to_jsonable_python(given), dict[str, Any]()
        for key, value in given.items():
            below = cls._name_choices(value) if isinstance(value, Mapping) else None
            named |= {key: value} if below is None else {f"{key}.{path}": one for path, one in below.items()}
        return named

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        for path, values in self.multiverse.items():
            if len(values) < 2 or len(set(map(repr, values))) < len(values):
                raise ValueError(
                    f"multiverse.{path} is {list(values)}; it must hold distinct values, at least two"
                )
        return self

    @model_validator(mode="after")
    def _check_models_and_seeds(self) -> Self:
        if not self.models:
            raise ValueError("models is empty; it must name at least one, for example 'ridge: {}'")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}; it must hold distinct seeds, at least one")
        return self

    @model_validator(mode="after")
    def _check_pretraining(self) -> Self:
        fits = [self.fit, *(options.get("fit") or {} for options in self.models.values())]
        if self.folds.scheme == "combinatorial" and any(fit.get("pretrain") for fit in fits):
            raise ValueError(
                "fit.pretrain reads all windows between the first and the last training session, and with "
                "folds.scheme combinatorial the tests lie between them; use another scheme, or no pretraining"
            )
        return self

    @model_validator(mode="after")
    def _check_promotion(self) -> Self:
        retrain, promotion = self.nightly.retrain, self.nightly.promotion
        between = {"monthly": _LONGEST_MONTH, "sessions": retrain.every}.get(retrain.when, math.inf)
        known = between - self.label.delay - self.label.horizon
        needed, setting = promotion.min_sessions, f"min_sessions is {promotion.min_sessions}"
        if promotion.automatic and promotion.proof:
            from backtest.inference.anytime import BURN_IN

            needed = max(needed, BURN_IN * self.label.horizon)
            setting = f"proof needs {needed} shadow sessions"
        if promotion.automatic and needed > known:
            raise ValueError(
                f"nightly.promotion.{setting}, but the next training replaces a challenger when it has at "
                f"most {max(known, 0)} shadow sessions with a known label, so none would ever be promoted; "
                "ask for less, or train less often (nightly.retrain)"
            )
        return self

    @property
    def through(self) -> dt.date | None:
        """Session at which the data are cut (``folds.through`` of live folds); None for all data."""
        return self.folds.through if self.folds.scheme == "live" else None

    def without_secrets(self) -> Settings:
        """All settings with their values; a secret is masked, or the reference that it was read from."""
        return self._shown({path: kept for path, kept in self._written.items() if _holds_secret(kept[0])})

    def as_written(self) -> Settings:
        """All settings as printed and stored: with references to the environment, and masked secrets."""
        return self._shown(self._written)

    def _shown(self, written: Mapping[Path, tuple[str, Any]]) -> Settings:
        """Mask the secrets of all settings, with references where they still have the values of these."""
        settings = self.model_dump(mode="json")
        for path, (text, value) in written.items():
            if _at(settings, path) == value and value is not None:
                _at(settings, path[:-1])[path[-1]] = text
        return dict(masked_settings(settings))

    @property
    def written(self) -> dict[Path, str]:
        """Path -> text of the settings that contain references to the environment."""
        return {path: text for path, (text, _) in self._written.items()}

    def from_environment(self) -> dict[str, Any]:
        """Setting -> value from the environment that affects numbers: the others may differ by machine."""
        not_numbers = {"source", "lake", "lake_options", "tracking", "output", "feature_store"}
        not_numbers |= {"output_store", "execution", "device", "nightly"}
        return {
            ".".join(map(str, path)): masked_settings(value)
            for path, (text, value) in self._written.items()
            if path[0] not in not_numbers and not _holds_secret(text)
        }

    def remember(self, written: dict[Path, str]) -> None:
        """Record the settings that contain references to the environment, with their text."""
        values = self.model_dump(mode="json")
        for path, text in written.items():
            value = _at(values, path)
            if value is not None:
                self._written[path] = (text, value)


def _at(settings: Any, path: Path) -> Any:  # noqa: ANN401
    """Return the setting at a path; None if there is none."""
    for step in path:
        if isinstance(settings, list):
            settings = dict(enumerate(settings))
        if not isinstance(settings, dict) or step not in settings:
            return None
        settings = settings[step]
    return settings


def _holds_secret(text: str) -> bool:
    """Whether a text refers to an environment variable that holds a secret."""
    return any(is_secret_name(name) for name, _ in REFERENCE.findall(text))
