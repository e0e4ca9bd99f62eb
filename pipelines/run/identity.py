"""The identity of a run: everything that its forecasts depend on, and the differences between two runs.

A run's id is a digest of its `Identity`. Settings that cannot change a forecast are not part of it: books,
costs, explanations, the audit, tracking, how a source is queried, and how the work is spread over processes.
The data are identified by the tables of the lake and their versions, not by the settings of the source.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import json
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, Self

from pipelines import plugins
from pipelines.config.load import KEY, OF, digest, members_of, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.feature_store import FeatureStore
from pipelines.device import resolve_device
from pipelines.files import write_text
from pipelines.lake.options import is_url
from pipelines.lake.versions import TableVersion
from pipelines.progress import Progress
from pipelines.settings import Settings, masked_settings

LIBRARIES = ("lightgbm", "numba", "numpy", "scipy", "torch")  # another version gives a different run
CODE = ("features", "models", "backtest/splits", "pipelines/dataset", "pipelines/run", "pipelines/train")
"""Folders with the code that turns tables into forecasts."""

APART = "models/explain"  # folder below `CODE` that explains forecasts and computes none

_SHOWN = 60  # maximum number of characters of a value in a sentence


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that forecasts depend on."""

    settings: Mapping[str, Any]  # with every default: universe, features, label, folds, seeds, models, fits
    code: str
    libraries: Mapping[str, str]
    device: str  # ``cpu`` or ``cuda``
    lake: str  # absolute path or URL of the lake
    tables: Mapping[str, TableVersion]  # lake table -> id of the Delta table, and the version that is read

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

    @classmethod
    def nothing(cls) -> Self:
        """The identity of a temporary run, which is never recorded."""
        return cls({}, "", {}, "", "", {})

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
    resolved = ("set", "channels", "characteristics", "inputs")
    stack = config.stack_seeds
    if stack is None:
        stack = resolve_device(config.device) != "cpu"
    folds = config.folds.model_dump(mode="json")
    if config.folds.scheme in ("expanding", "rolling"):
        folds["step"] = config.folds.step or config.folds.test
    settings = {
        "universe": config.universe.model_dump(mode="json"),
        "features": {
            **{name: value for name, value in config.features.deciding().items() if name not in resolved},
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
    if config.plugins:
        settings["plugins"] = plugin_digests(config)
    plain: Settings = json.loads(json.dumps(masked_settings(settings)))  # tuples become lists, as in run.json
    return plain


def _model(config: Config, model: str, warm_starts: Mapping[str, str]) -> Settings:
    """Settings of one model, with the fit settings that it uses, and of the members of an ensemble."""
    from models.fitting.config import BASELINES_READ
    from models.registry import MODELS

    one = model_settings(config, model)
    read = {"baseline": set(BASELINES_READ), "ensemble": set[str]()}.get(MODELS[one.registered].kind)
    fit = {name: value for name, value in one.fit.deciding().items() if read is None or name in read}
    settings = {**one.options.deciding(), KEY: one.registered, "fit": fit}
    if members := members_of(config, model):
        settings[OF] = [_model(config, member, warm_starts) for member in members]
    return settings | ({"init_from": warm_starts[model]} if model in warm_starts else {})


def plugin_digests(config: Config) -> dict[str, str]:
    """Plugin of a config -> digest of its source files (`source_digest`)."""
    found = {}
    for name, files in plugins.sources(config.plugins).items():
        root = Path(os.path.commonpath([path.parent for path in files])) if files else Path()
        found[name] = source_digest(files, root)[:10]
    return found


def code_digest() -> str:
    """Digest of the code in `CODE`, and of features and models from elsewhere (`code_from_elsewhere`).

    Plugins have digests of their own (`plugin_digests`).
    """
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.registry import MODELS

    own = {name: model for name, model in MODELS.items() if plugins.owner(model) is None}
    elsewhere = code_from_elsewhere(CHANNELS, CHARACTERISTICS, own)
    return digest((folders_digest(*CODE, without=APART), elsewhere))


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


_ROOT = Path(__file__).parents[2].resolve()
_OURS = tuple(f"{_ROOT / package}/" for package in ("features", "models", "backtest", "pipelines"))
_MOST_KEPT = 50  # digests in the cache


@functools.cache
def installed(library: str) -> str:
    """Version of an installed library, as it was when this process first asked."""
    return version(library)


@functools.cache
def folders_digest(*folders: str, without: str | None = None) -> str:
    """Digest of the Python files in folders of the packages, below each of them, as :func:`source_digest`."""
    files = {path for folder in folders for path in (_ROOT / folder).rglob("*.py")}
    apart = set() if without is None else set((_ROOT / without).rglob("*.py"))
    return source_digest(files - apart, _ROOT)


def source_digest(files: Iterable[Path], root: Path) -> str:
    """SHA-256 of Python files without comments, docstrings and layout, kept in the user's cache."""
    sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(files)}
    exact = hashlib.sha256(repr((sys.version, Path(__file__).read_bytes(), sources)).encode()).hexdigest()
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
        known = (_cache() / exact).read_text("ascii")
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    sha = hashlib.sha256()
    for name, source in sources.items():
        sha.update(f"{name}\n{normalise_source(source.decode())}\n".encode())
    with suppress(OSError, RuntimeError):
        _keep(_cache() / exact, sha.hexdigest())
    return sha.hexdigest()


def _cache() -> Path:
    return Path.home() / ".cache" / "peerglass" / "code"


def _keep(path: Path, digest: str) -> None:
    """Write a digest into the cache, and remove the oldest ones beyond `_MOST_KEPT`."""
    write_text(path, digest)
    by_age = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
    for old in by_age[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)


def normalise_source(source: str) -> str:
    """Remove comments, docstrings and layout from Python source."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def code_from_elsewhere(*registries: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Entries of registries with a function or class that none of the packages defines, and its source.

    The source is the whole file, or cell of a notebook; :func:`folders_digest` covers that of the packages.
    """
    found: list[tuple[str, ...]] = []
    for name, entry in (item for registry in registries for item in registry.items()):
        for field in dataclasses.fields(entry):
            value = getattr(entry, field.name)
            for file in sorted(_files_of(value)):
                lines = linecache.getlines(file)  # none of what a dataclass generates
                if lines and not str(Path(file).resolve()).startswith(_OURS):
                    found.append((name, field.name, value.__qualname__, normalise_source("".join(lines))))
    return found


def _files_of(value: object) -> set[str]:
    """Files, or cells of a notebook, with the source of a function or a class; none of another value."""
    if isinstance(value, FunctionType):
        return {value.__code__.co_filename}
    if not isinstance(value, type):
        return set()
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    functions = (one for one in vars(value).values() if isinstance(one, FunctionType))
    return {file} if file else {one.__code__.co_filename for one in functions}


_LIBRARIES = ("numba", "numpy", "polars", "scipy")


def feature_store(config: Config, progress: Progress) -> FeatureStore:
    """Return the feature store of a config; nothing is created before it is used."""
    folder = Path(config.output).absolute().parent / "features"
    if is_url(config.output):
        folder = Path.home() / ".cache" / "peerglass" / "features"
    return FeatureStore(
        folder=folder if config.feature_store.folder is None else Path(config.feature_store.folder),
        limit=int(config.feature_store.limit_gib * 2**30),
        code=digest((features_digest(), plugin_digests(config))) if config.plugins else features_digest(),
        notify=progress.note,
    )


def features_digest() -> str:
    """Digest of the code and the libraries that compute features."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS

    libraries = {name: installed(name) for name in _LIBRARIES}
    elsewhere = code_from_elsewhere(CHANNELS, CHARACTERISTICS)
    return digest((folders_digest("features", "pipelines/dataset"), libraries, elsewhere))
