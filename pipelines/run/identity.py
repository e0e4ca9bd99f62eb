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
import inspect
import json
import marshal
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

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
    """Digest of the code in `CODE` and of all registered features and models (`fingerprint`).

    Plugins have digests of their own (`plugin_digests`).
    """
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.registry import MODELS

    own = {name: model for name, model in MODELS.items() if plugins.owner(model) is None}
    registered = fingerprint((CHANNELS, CHARACTERISTICS, own))
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


_INSTALLED = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))
_ROOT = Path(__file__).parents[2].resolve()
_OURS = tuple(f"{_ROOT / package}/" for package in ("features", "models", "backtest", "pipelines"))
_MOST_KEPT = 50  # digests in the cache
# attributes that hold the function of methods, caches, compiled or partial functions, and properties
_PARTS = ("__func__", "__self__", "__wrapped__", "py_func", "func", "args", "keywords", "fget")


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


def fingerprint(value: object) -> str:
    """SHA-256 of the code of a function, a class, or an object made of them.

    Followed through closures, defaults and used names; code of the packages (:func:`folders_digest` covers
    it) and of libraries counts by name, an object that is no function, class, dataclass, array or plain value
    by type.
    """
    return hashlib.sha256(repr(_Walk().describe(value)).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class _Walk:
    """State of one :func:`fingerprint`."""

    def __init__(self) -> None:
        self.home: str | None = None  # package of the first function, followed even if it is installed
        self.seen: dict[int, object] = {}  # by id, and kept alive, so that no id is used twice

    def describe(self, value: Any) -> Any:  # noqa: ANN401, PLR0911
        """Describe a value by nested tuples of plain values."""
        if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes):
            return value
        if isinstance(value, list | tuple):
            return (type(value).__name__, *map(self.describe, value))
        if isinstance(value, set | frozenset):
            return ("set", *sorted(repr(self.describe(item)) for item in value))
        if isinstance(value, Mapping):
            return ("mapping", *(self.describe((key, value[key])) for key in sorted(value, key=repr)))
        if isinstance(value, np.ndarray):
            return ("array", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        if id(value) in self.seen:
            return "seen"
        self.seen[id(value)] = value
        return tuple(map(self.describe, self._parts(value)))

    def _parts(self, value: Any) -> Iterable[Any]:  # noqa: ANN401
        """Kind and parts of an object; of code that other digests or versions cover, its names."""
        if isinstance(value, FunctionType | type | ModuleType):
            return self._code(value)
        if isinstance(value, BaseModel):
            return (type(value).__qualname__, *value)
        names: tuple[str, ...] = _PARTS
        if dataclasses.is_dataclass(value):
            names = tuple(field.name for field in dataclasses.fields(value))
        parts = ((name, getattr(value, name)) for name in names if hasattr(value, name))
        return (type(value).__qualname__, *parts)

    def _code(self, value: Any) -> Iterable[Any]:  # noqa: ANN401
        """Parts of a function, with its closure and defaults, of a class or of a module."""
        is_module, is_function = isinstance(value, ModuleType), isinstance(value, FunctionType)
        module = value.__name__ if is_module else value.__module__
        file = value.__code__.co_filename if is_function else getattr(sys.modules.get(module), "__file__", "")
        names, file = (module, "" if is_module else value.__qualname__), file or ""
        bound: tuple[object, ...] = ()
        if is_function:
            cells = [_content(cell) for cell in value.__closure__ or ()]
            bound = (value.__defaults__, value.__kwdefaults__, cells)
        if _resolved(file).startswith(_OURS):
            return (*names, bound)
        if is_function:
            self.home = self.home or _package(module)
        if module == "builtins" or self._is_library(module, file):
            return names
        if is_module:
            return (*names, normalise_source(Path(file).read_text("utf-8")) if file.endswith(".py") else "")
        if is_function:
            used = {key: value.__globals__[key] for key in _names(value.__code__) if key in value.__globals__}
            return (_text(value), bound, used)
        own = {k: one for k, one in vars(value).items() if isinstance(one, FunctionType) or k[:2] != "__"}
        if issubclass(value, BaseModel):  # pydantic takes the defaults out of the class
            own |= {key: (one.default, one.default_factory) for key, one in value.model_fields.items()}
        return (value.__qualname__, value.__bases__, own)

    def _is_library(self, module: str, file: str) -> bool:
        """Whether code belongs to an installed library other than the package that is described."""
        installed = file.startswith("<frozen") or _resolved(file).startswith(_INSTALLED)
        return installed and _package(module) != self.home


@functools.cache
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def _text(function: FunctionType) -> str:
    """Source text of a function; its compiled form if it has none, as after ``exec``."""
    code = function.__code__  # the source of a decorated function itself is that of the one it wraps
    try:
        source = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return marshal.dumps(code, 2).hex()  # later versions depend on how often a constant is referred to
    try:
        return normalise_source(source)
    except SyntaxError:  # a lambda in the middle of a statement
        return source


def _content(cell: Any) -> object:  # noqa: ANN401 (a cell has no public type)
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def _names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names(one) for one in inner))


def _package(module: str) -> str:
    return module.partition(".")[0]


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
    """Digest of the code, registered features included, and the libraries that compute features."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS

    libraries = {name: installed(name) for name in _LIBRARIES}
    registered = fingerprint((CHANNELS, CHARACTERISTICS))
    return digest((folders_digest("features", "pipelines/dataset"), libraries, registered))
