"""The identity of a run: everything that its forecasts depend on, and the differences between two runs.

A run's id is a digest of its `Identity`. Settings that cannot change a forecast are not part of it: books,
costs, explanations, the audit, tracking, how a source is queried, and how the work is spread over processes.
The data are identified by the tables of the lake and their versions, not by the settings of the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pipelines.config.load import digest
from pipelines.config.models import KEY, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.device import resolve_device
from pipelines.lake.versions import TableVersion
from pipelines.run.fingerprint import fingerprint, folders_digest, installed
from pipelines.settings import Settings, masked_settings

LIBRARIES = ("lightgbm", "numba", "numpy", "scipy", "torch")
"""Libraries whose results affect forecasts; a different version of one gives a different run."""

CODE = ("features", "models", "backtest/splits", "pipelines/dataset", "pipelines/run", "pipelines/train")
"""Folders with the code that turns tables into forecasts."""

APART = "models/explain"
"""Folder below `CODE` that explains forecasts and computes none."""

_SHOWN = 60  # maximum number of characters of a value in a sentence


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that forecasts depend on."""

    settings: Mapping[str, Any]
    """Settings with every default filled in: universe, features by name, label, folds, seeds, and models with
    their fit settings."""
    code: str
    libraries: Mapping[str, str]
    device: str
    """``cpu`` or ``cuda``."""
    lake: str
    """Absolute path or URL of the lake."""
    tables: Mapping[str, TableVersion]
    """Lake table -> id of the Delta table, and the version that is read."""

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that identify the run."""
        return digest(self.record())

    def record(self) -> dict[str, Any]:
        """Convert to plain values, as stored in ``run.json``."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Restore from `record`; KeyError or TypeError if the mapping is not a valid record."""
        tables = {name: TableVersion(**table) for name, table in record["tables"].items()}
        return cls(**{**record, "tables": tables})

    def differences(self, earlier: Identity) -> list[str]:
        """List the changes since an earlier run, one phrase per change: ``label.horizon (1 -> 5)``."""
        changes = list(setting_changes(earlier.settings, self.settings))
        if self.code != earlier.code:
            changes.append("the code that computes forecasts")
        changes += setting_changes(earlier.libraries, self.libraries, "library ")
        changes += setting_changes({"device": earlier.device}, {"device": self.device})
        if self.lake != earlier.lake:
            changes.append(f"location of the lake ({earlier.lake} -> {self.lake})")
        for name in sorted({*earlier.tables, *self.tables}):
            old, new = earlier.tables.get(name), self.tables.get(name)
            if old is None or new is None:
                changes.append(f"table {name} ({'added' if old is None else 'removed'})")
            elif old.id != new.id:
                changes.append(f"table {name} (a different table of that name)")
            elif old.version != new.version:
                changes.append(f"table {name} (version {old.version} -> {new.version})")
        return changes


def build_identity(
    config: Config,
    dataset: Dataset,
    lake: str,
    tables: Mapping[str, TableVersion],
    warm_starts: Mapping[str, str],
) -> Identity:
    """Build the identity of a run: a config on these tables."""
    return Identity(
        settings=forecasting_settings(config, dataset, warm_starts),
        code=code_digest(),
        libraries={name: installed(name) for name in LIBRARIES},
        device=resolve_device(config.device).partition(":")[0],
        lake=lake,
        tables=dict(sorted(tables.items())),
    )


def forecasting_settings(config: Config, dataset: Dataset, warm_starts: Mapping[str, str]) -> Settings:
    """Settings that forecasts depend on, with every default filled in, as plain JSON values."""
    resolved = {"channels", "characteristics", "inputs"}
    stack = config.stack_seeds
    if stack is None:
        stack = resolve_device(config.device) != "cpu"
    folds = config.folds.model_dump(mode="json")
    if config.folds.scheme in ("expanding", "rolling"):
        folds["step"] = config.folds.step or config.folds.test
    settings = {
        "universe": config.universe.model_dump(mode="json"),
        "features": {
            **config.features.model_dump(mode="json", exclude=resolved),
            "channels": list(dataset.channel_names),
            "characteristics": list(dataset.characteristic_names),
        },
        # Forecasts are measured at further delays but not trained for them; the longest delay sets the purge.
        "label": config.label.model_dump(mode="json", exclude={"extra_delays"})
        | {"max_delay": config.label.max_delay},
        "earn_nothing": sorted(config.quality.earn_nothing),
        "folds": folds,
        "models": {model: _model(config, model, warm_starts) for model in config.models},
        "seeds": list(config.seeds),
        # stacked seeds share their dropout draws
        "stacked": stack and len(config.seeds) > 1,
    }
    plain: Settings = json.loads(json.dumps(masked_settings(settings)))  # tuples become lists, as in run.json
    return plain


def _model(config: Config, model: str, warm_starts: Mapping[str, str]) -> Settings:
    """Settings of one model, with the fit settings that it uses."""
    from models.fitting.config import BASELINES_READ
    from models.registry import MODELS

    one = model_settings(config, model)
    read = set(BASELINES_READ) if MODELS[one.registered].kind == "baseline" else None
    fit = one.fit.model_dump(mode="json", include=read)
    settings = {**one.options.model_dump(mode="json"), KEY: one.registered, "fit": fit}
    return settings | ({"init_from": warm_starts[model]} if model in warm_starts else {})


def code_digest() -> str:
    """Digest of the code that computes forecasts, without comments, docstrings and layout.

    Covers the folders in `CODE`, and all features and models in the registries. A function that was
    registered or replaced outside these folders is included by its source text (`fingerprint`).
    """
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.registry import MODELS

    registered = fingerprint((CHANNELS, CHARACTERISTICS, MODELS))
    return digest((folders_digest(*CODE, without=APART), registered))


def setting_changes(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Phrases for the differences between two nested mappings."""
    for key in sorted({*old, *new}):
        if key not in old or key not in new:
            yield f"{where}{key} ({'added' if key not in old else 'removed'})"
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            yield from setting_changes(old[key], new[key], f"{where}{key}.")
        elif old[key] != new[key]:
            yield f"{where}{key} ({_change(old[key], new[key])})"


def _change(old: object, new: object) -> str:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        moved = [*(f"-{one}" for one in old if one not in new), *(f"+{one}" for one in new if one not in old)]
        return _short(", ".join(moved) or "another order")
    return f"{_short(str(old))} -> {_short(str(new))}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
