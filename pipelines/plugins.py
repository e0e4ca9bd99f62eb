"""Plugins: modules of a user's own that register models, features, books, sources and audit checks.

A config names them (``plugins``), and an installed package can announce one by the entry point group
``peerglass.plugins``. What a plugin registers is known to every config in the process, but a config can use
only what its own plugins register: features are kept apart (`features.library.sets.ADDED`), and everything
else belongs to the plugin whose module defines it.
"""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pipelines.errors import ConfigError, PeerglassError, one_line

GROUP: Final = "peerglass.plugins"
_PREFIX: Final = "peerglass_plugin_"  # of the name of a module that is loaded from a file


@dataclass(frozen=True, slots=True)
class Plugin:
    """A loaded plugin: its name in configs, its top-level module, and its source files."""

    name: str
    module: str
    files: tuple[Path, ...]
    content: str  # digest of the files when they were loaded


_LOADED: dict[str, Plugin] = {}


def is_file(name: object) -> bool:
    """Whether a plugin is named by the path of its file, not by its module."""
    return isinstance(name, str) and name.endswith(".py")


def announced() -> tuple[str, ...]:
    """Modules that installed packages announce."""
    return _announced(tuple((place, _changed(place)) for place in sys.path))


@functools.lru_cache(maxsize=8)
def _announced(_places: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Read the files of all installed packages: a tenth of a second, which every config would take."""
    from importlib.metadata import entry_points  # takes a moment

    return tuple(sorted({one.module for one in entry_points(group=GROUP)}))


def _changed(place: str) -> int:
    """When a folder of packages changed; 0 if it is not there."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def load(names: Iterable[str]) -> None:
    """Import plugins, each once; a file that was edited since is loaded again.

    ConfigError if a plugin is not there, raises an error, or registers a name that is taken.
    """
    for name in names:
        loaded = _LOADED.get(name)
        if loaded is not None and (not is_file(name) or loaded.content == _content(loaded.files)):
            continue
        if loaded is not None:
            _forget(loaded)
        _load(name)


def load_those_there(names: Iterable[str]) -> None:
    """Import in a worker the plugins of its parent, without those of other configs that are gone by now."""
    for name in names:
        with suppress(PeerglassError):
            load([name])


def load_named(raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Load the plugins of merged settings and those that installed packages announce; name all of them."""
    named = raw.get("plugins") or ()
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
        raise ConfigError(f"{origin}: plugins is {named!r}; give a list, such as [./my_features.py].")
    every = tuple(dict.fromkeys((*named, *announced())))
    load(every)
    return {**raw, "plugins": list(every)} if every else dict(raw)


def loaded() -> list[str]:
    """Names of the plugins of this process."""
    return list(_LOADED)


def _load(name: str) -> None:
    from features.library.sets import added_by

    path, top = Path(name), name.partition(".")[0]
    if is_file(name):
        if not path.is_file():
            raise ConfigError(f"plugins: there is no file {name}; a relative path is relative to the config.")
        top = f"{_PREFIX}{path.stem}_{_content((path,))[:8]}"
    before, there = [(registry, dict(registry)) for registry in _registries()], set(sys.modules)
    try:
        with added_by(name):
            module = _import_file(path, top) if is_file(name) else importlib.import_module(name)
        for registry, entries in before:
            if taken := [key for key in entries if registry.get(key) is not entries[key]]:
                registry.update(entries)
                raise ValueError(f"{taken[0]!r} is there already; choose another name")
        for one in [sys.modules[key] for key in list(sys.modules) if _top(key) == top]:
            _register_classes(one)
    except PeerglassError:
        raise
    except Exception as error:
        files = (path,) if is_file(name) else _files(top, sys.modules.get(top))
        _forget(Plugin(name, top, files, ""))
        for key in [key for key in set(sys.modules) - there if _top(key) == top]:
            del sys.modules[key]  # what it has registered is forgotten, so the next attempt imports it again
        if isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name)):
            raise ConfigError(
                f"plugins: there is no module {error.name}; install its package in this environment, or give "
                "the path of a file, such as ./my_features.py."
            ) from None
        raise ConfigError(f"plugins: {name} cannot be loaded: {_told(error, files)}.") from error
    files = (path,) if is_file(name) else _files(top, module)
    _LOADED[name] = Plugin(name, top, files, _content(files))


def _import_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the suffix is that of Python files"
    assert spec.loader is not None, "it is read from a file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    spec.loader.exec_module(module)
    return module


def _files(top: str, module: ModuleType | None) -> tuple[Path, ...]:
    """Source files of a package, or of a module."""
    place = getattr(sys.modules.get(top), "__file__", None) or getattr(module, "__file__", None)
    if place is None:
        return ()
    path = Path(place)
    return tuple(sorted(path.parent.rglob("*.py"))) if path.name == "__init__.py" else (path,)


def _content(files: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for path in files:
        sha.update(path.read_bytes() if path.is_file() else b"")
    return sha.hexdigest()


def _register_classes(module: ModuleType) -> None:
    """Register the books and sources that a module defines: these need no decorator."""
    from backtest.books.book import Book
    from backtest.books.registry import BOOKS
    from pipelines.sources.settings import OWN_SOURCES, OwnSource

    registries: tuple[tuple[type[Any], dict[str, type[Any]]], ...] = ((Book, BOOKS), (OwnSource, OWN_SOURCES))
    for value in vars(module).values():
        for base, registry in registries:
            own = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
            if not own or "kind" not in value.model_fields:
                continue
            kind = value.model_fields["kind"].default
            if not isinstance(kind, str) or registry.get(kind, value) is not value:
                raise ValueError(
                    f"{value.__name__} has the kind {kind!r}; give it one of its own, as in kind: "
                    "Literal['mine'] = 'mine'"
                )
            registry[kind] = value


def _registries() -> Iterator[dict[str, Any]]:
    """Registries of this process that hold objects of plugins, except those of features."""
    places = (
        ("models.registry", "MODELS"),
        ("backtest.books.registry", "BOOKS"),
        ("pipelines.sources.settings", "OWN_SOURCES"),
        ("pipelines.audit.registry", "DATA_CHECKS"),
        ("pipelines.audit.registry", "CODE_CHECKS"),
    )
    for module, name in places:
        if module in sys.modules:
            yield getattr(sys.modules[module], name)


def _forget(plugin: Plugin) -> None:
    from features.library.sets import ADDED

    ADDED.pop(plugin.name, None)
    _LOADED.pop(plugin.name, None)
    for registry in _registries():
        for key in [key for key, value in registry.items() if _top(_module_of(value)) == plugin.module]:
            del registry[key]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _module_of(value: Any) -> str:  # noqa: ANN401 (an entry of any registry)
    """Module that defines a class, a function, or the class of a registered model."""
    return str(getattr(getattr(value, "build", value), "__module__", ""))


def owner(value: object) -> str | None:
    """Name of the plugin that an entry of a registry comes from; None for Peerglass's own."""
    top = _top(_module_of(value))
    return next((plugin.name for plugin in _LOADED.values() if plugin.module == top), None)


def usable(value: object, plugins: Collection[str]) -> bool:
    """Whether a config with these plugins may use an entry of a registry."""
    return owner(value) in (None, *plugins)


def require_usable(sections: Mapping[str, Any], plugins: Collection[str], origin: str) -> None:
    """Refuse books and sources, by their keys, that come from other plugins than these."""
    for where, one in sections.items():
        if not usable(type(one), plugins):
            raise ConfigError(
                f"{origin}: {where}: the kind {one.kind} is of {owner(type(one))}; name that in plugins."
            )


def sources(plugins: Iterable[str]) -> Mapping[str, tuple[Path, ...]]:
    """Source files of plugins, by the name of the file or module."""
    return {Path(name).name if is_file(name) else name: _LOADED[name].files for name in plugins}


def blame(error: BaseException) -> ConfigError | None:
    """Error that names the plugin's function in which another one was raised; None if it was in none."""
    if isinstance(error, PeerglassError):
        return None
    files = tuple(path for plugin in _LOADED.values() for path in plugin.files)
    told = _told(error, files)
    return ConfigError(f"A plugin failed: {told}.") if _frames(error, files) else None


def _frames(error: BaseException, files: Collection[Path]) -> list[traceback.FrameSummary]:
    """Calls of a plugin's functions in the traceback of an error or of its causes, the innermost last."""
    names = {str(path) for path in files}
    cause: BaseException | None = error
    while cause is not None:
        found = [one for one in traceback.extract_tb(cause.__traceback__) if one.filename in names]
        if found:
            return found
        cause = cause.__cause__ or cause.__context__
    return []


def _told(error: BaseException, files: Collection[Path]) -> str:
    """Say what was raised, and where in the plugin."""
    words = f"{type(error).__name__}: {one_line(error)}".rstrip(".: ")
    frames = _frames(error, files)
    if not frames:
        return words
    last = frames[-1]
    function = "" if last.name == "<module>" else f"the function {last.name} of "
    return f"{function}{last.filename}, line {last.lineno}, raised {words}"
