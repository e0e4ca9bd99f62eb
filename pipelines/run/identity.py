"""What a run is: everything that its forecasts depend on, and what two runs differ in.

A run's id is a digest of its `Identity`. A setting that cannot change a forecast is not part of it: books,
costs, explanations, the audit, tracking, how a source is asked for its data, and how the work is spread over
processes. What a source delivered counts by the tables of the lake, not by the source's settings.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pipelines.config.load import digest, settings_of
from pipelines.config.models import KEY, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.device import pick_device
from pipelines.lake.versions import TableVersion
from pipelines.run.fingerprint import fingerprint, source_digest
from pipelines.settings import Settings, masked_settings

LIBRARIES = ("lightgbm", "numba", "numpy", "scipy", "torch")
"""Libraries whose numbers reach a forecast; another version of one is another run."""

CODE = (
    "features/**/*.py",
    "models/**/*.py",
    "backtest/splits.py",
    "pipelines/dataset/build.py",
    "pipelines/run/warm_start.py",
    "pipelines/train/execute.py",
    "pipelines/train/plan.py",
    "pipelines/train/stacks.py",
    "pipelines/train/task.py",
)
"""Sources that lead from tables to forecasts, from the folder of the packages."""

_ROOT = Path(__file__).parents[2]
_SHOWN = 60  # characters of a value in a sentence


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that forecasts depend on.

    Attributes
    ----------
    settings
        Settings with every default filled in: universe, features by their names, label, folds, seeds, models
        with their fits.
    code
        `code_digest`.
    libraries
        Versions of `LIBRARIES`.
    device
        ``cpu`` or ``cuda``.
    lake
        Absolute place of the lake: folder or URL.
    tables
        Lake table -> the Delta table's own id, and the version that is read.
    """

    settings: Mapping[str, Any]
    code: str
    libraries: Mapping[str, str]
    device: str
    lake: str
    tables: Mapping[str, TableVersion]

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits."""
        return digest(self.record())

    def record(self) -> dict[str, Any]:
        """Plain values, as ``run.json`` stores them."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read `record` back; KeyError or TypeError if it is not one."""
        tables = {name: TableVersion(**table) for name, table in record["tables"].items()}
        return cls(**{**record, "tables": tables})

    def differences(self, earlier: Identity) -> list[str]:
        """Say what has changed since an earlier run, a phrase each: ``label.horizon (1 -> 5)``."""
        found = list(_changes(earlier.settings, self.settings))
        if self.code != earlier.code:
            found.append("the code that computes forecasts")
        found += _changes(earlier.libraries, self.libraries, "library ")
        found += _changes({"device": earlier.device}, {"device": self.device})
        if self.lake != earlier.lake:
            found.append(f"the lake's place ({earlier.lake} -> {self.lake})")
        for name in sorted({*earlier.tables, *self.tables}):
            old, new = earlier.tables.get(name), self.tables.get(name)
            if old is None or new is None:
                found.append(f"table {name} ({'added' if old is None else 'removed'})")
            elif old.id != new.id:
                found.append(f"table {name} (another table of that name)")
            elif old.version != new.version:
                found.append(f"table {name} (version {old.version} -> {new.version})")
        return found


def build_identity(
    config: Config,
    dataset: Dataset,
    lake: str,
    tables: Mapping[str, TableVersion],
    starts: Mapping[str, str],
) -> Identity:
    """Collect what the forecasts of a config on these data depend on.

    Parameters
    ----------
    config
        The configuration.
    dataset
        Built from these tables: says which features the config means.
    lake
        Absolute place of the lake, without secrets.
    tables
        The tables that are read.
    starts
        Model -> id of the run whose day encoder it begins with (`pipelines.run.warm_start.warm_start_runs`).
    """
    return Identity(
        settings=forecasting_settings(config, dataset, starts),
        code=code_digest(),
        libraries={name: version(name) for name in LIBRARIES},
        device=pick_device(config.device).partition(":")[0],
        lake=lake,
        tables=dict(sorted(tables.items())),
    )


def forecasting_settings(config: Config, dataset: Dataset, starts: Mapping[str, str]) -> Settings:
    """Settings that forecasts depend on, with every default filled in, as plain JSON values."""
    resolved = {"channels", "characteristics", "inputs"}
    folds = config.folds.model_dump(mode="json")
    if config.folds.scheme != "dated":
        folds["step"] = config.folds.step or config.folds.test
    found = {
        "universe": config.universe.model_dump(mode="json"),
        "features": {
            **config.features.model_dump(mode="json", exclude=resolved),
            "channels": list(dataset.channel_names),
            "characteristics": list(dataset.characteristic_names),
        },
        # Other delays are measured, not trained for; the longest one moves the purge.
        "label": config.label.model_dump(mode="json", exclude={"extra_delays"})
        | {"max_delay": config.label.max_delay},
        "folds": folds,
        "models": {model: _model(config, model, starts) for model in config.models},
        "seeds": list(config.seeds),
        "stacked": _stacked(config),
    }
    plain: Settings = json.loads(json.dumps(masked_settings(found)))  # as read back: lists, no tuples
    return plain


def _stacked(config: Config) -> bool:
    """Whether seeds are trained as one where that is possible: their dropout is then drawn together."""
    wanted = config.stack_seeds
    on = pick_device(config.device) != "cpu" if wanted is None else wanted
    return on and len(config.seeds) > 1


def _model(config: Config, model: str, starts: Mapping[str, str]) -> Settings:
    """One model's settings; of its fit, those that it reads."""
    from models.fitting.loop import BASELINES_READ
    from models.registry import MODELS

    registered = registry_name(config, model)
    own, fit = settings_of(config, model)
    if MODELS[registered].kind == "baseline":
        fit = {name: fit[name] for name in BASELINES_READ}
    found = {**own, KEY: registered, "fit": fit}
    return found | ({"init_from": starts[model]} if model in starts else {})


def code_digest() -> str:
    """Digest of the code that computes forecasts, without comments, docstrings and layout.

    Covers the sources in `CODE`, and the features and models in the registries wherever they come from: a
    function that was registered or replaced outside these sources counts by what it does.
    """
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.registry import MODELS

    registered = fingerprint((CHANNELS, CHARACTERISTICS, MODELS), _is_source)
    return digest((_sources(), registered))


@functools.cache
def _sources() -> str:
    return source_digest(_files(), _ROOT)


@functools.cache
def _files() -> frozenset[Path]:
    return frozenset(path.resolve() for pattern in CODE for path in _ROOT.resolve().glob(pattern))


@functools.cache
def _is_source(file: str) -> bool:
    return Path(file).resolve() in _files()


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Phrases for what differs between two nested mappings."""
    for key in sorted({*old, *new}):
        if key not in old or key not in new:
            yield f"{where}{key} ({'added' if key not in old else 'removed'})"
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            yield from _changes(old[key], new[key], f"{where}{key}.")
        elif old[key] != new[key]:
            yield f"{where}{key} ({_change(old[key], new[key])})"


def _change(old: object, new: object) -> str:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        moved = [f"-{item}" for item in old if item not in new] + [
            f"+{item}" for item in new if item not in old
        ]
        return _short(", ".join(moved) or "another order")
    return f"{_short(str(old))} -> {_short(str(new))}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
