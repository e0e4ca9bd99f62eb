"""Stand-ins for pydantic and pytest, so that a GPU box needs nothing but torch, numpy and scipy.

Options are made from their defaults and from what is given, and are not checked. Tests are called with every
combination of their parameters; those that need another fixture than ``monkeypatch`` are left out. To import
this module installs the stand-ins that are needed.
"""

from __future__ import annotations

import importlib
import itertools
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

REQUIRED = object()
"""Default of a field that must be given."""


class FieldInfo:
    """What `Field` says of a field: its default."""

    def __init__(self, default: Any = REQUIRED, **_: Any) -> None:  # noqa: ANN401 (of any type)
        self.default = default


class BaseModel:
    """Options with the fields of a class and its bases."""

    model_fields: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the fields and their defaults."""
        own: dict[str, Any] = {}
        for name, kind in vars(cls).get("__annotations__", {}).items():
            if not str(kind).startswith(("ClassVar", "typing.ClassVar")):
                default = vars(cls).get(name, REQUIRED)
                own[name] = default.default if isinstance(default, FieldInfo) else default
        cls.model_fields = {**cls.model_fields, **own}

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 (of any type)
        for name, default in self.model_fields.items():
            value = given.pop(name, default)
            if value is REQUIRED:
                raise ValueError(f"{type(self).__name__} needs {name}.")
            if isinstance(value, dict) and isinstance(default, BaseModel):
                value = type(default)(**value)
            vars(self)[name] = value
        if given:
            raise ValueError(f"{type(self).__name__} has no {', '.join(given)}.")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def model_copy(self, *, update: dict[str, Any] | None = None) -> BaseModel:
        """Copy with other values of some fields."""
        return type(self)(**{**vars(self), **(update or {})})

    def model_dump(
        self, *, include: set[str] | None = None, exclude: set[str] | None = None, mode: str = "python"
    ) -> dict[str, Any]:
        """Convert to a mapping; nested options too."""
        left = set(self.model_fields if include is None else include) - (exclude or set())
        return {
            name: value.model_dump(mode=mode) if isinstance(value, BaseModel) else value
            for name, value in vars(self).items()
            if name in left
        }


def _unchanged(*_: Any, **__: Any) -> Callable[[Any], Any]:  # noqa: ANN401 (of any type)
    """A decorator that does nothing."""
    return lambda function: function


def _pydantic() -> types.ModuleType:
    module = types.ModuleType("pydantic")
    vars(module).update(
        AfterValidator=_unchanged,
        BaseModel=BaseModel,
        ConfigDict=dict,
        Field=FieldInfo,
        ValidationInfo=object,
        model_validator=_unchanged,
        field_validator=_unchanged,
    )
    return module


def _pydantic_core() -> types.ModuleType:
    module = types.ModuleType("pydantic_core")
    vars(module)["PydanticCustomError"] = ValueError
    return module


class Mark:
    """``pytest.mark``: keeps the parameters of a test, and whether it is skipped."""

    def parametrize(
        self,
        names: str | tuple[str, ...],
        values: Iterable[Any],
        **_: Any,  # noqa: ANN401 (of any type)
    ) -> Callable[[Any], Any]:
        """Add values of parameters to a test."""
        listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        sets = [dict(zip(listed, [one] if len(listed) == 1 else one, strict=True)) for one in values]

        def add(test: Any) -> Any:  # noqa: ANN401 (a function)
            test.parameters = [sets, *getattr(test, "parameters", [])]
            return test

        return add

    def skipif(self, condition: bool, **_: Any) -> Skip:  # noqa: ANN401 (a reason)
        """Skip a test, or all of a module, if the condition holds."""
        return Skip(condition)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return Unmarked()


class Unmarked:
    """A mark that says nothing here, with arguments or without."""

    def __call__(self, *given: Any, **_: Any) -> Any:  # noqa: ANN401 (a function, or arguments)
        """Return what is marked, or a decorator."""
        return given[0] if len(given) == 1 and callable(given[0]) else Unmarked()


class MonkeyPatch:
    """Changes names of modules until it is told to undo that."""

    def __init__(self) -> None:
        self.changed: list[tuple[Any, str, Any]] = []

    def setattr(self, target: str, value: Any) -> None:  # noqa: ANN401 (of any type)
        """Give a name of a module another value."""
        module, _, name = target.rpartition(".")
        owner = importlib.import_module(module)
        self.changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Give all names their values back."""
        for owner, name, value in reversed(self.changed):
            setattr(owner, name, value)


class Skip:
    """The mark of what is skipped."""

    def __init__(self, condition: bool) -> None:
        self.condition = condition

    def __call__(self, test: Any) -> Any:  # noqa: ANN401 (a function)
        """Mark a test."""
        test.skipped = self.condition
        return test


def _pytest() -> types.ModuleType:
    module = types.ModuleType("pytest")
    vars(module).update(
        mark=Mark(), MonkeyPatch=MonkeyPatch, fixture=_unchanged, param=lambda *values, **_: values
    )
    return module


def run_functions(path: Path) -> Iterator[tuple[str, str]]:
    """Call the tests of a file, and yield the name of each with ``passed``, ``skipped`` or an error."""
    module = runpy.run_path(str(path))
    marks = module.get("pytestmark", [])
    skipped = any(
        isinstance(one, Skip) and one.condition for one in (marks if isinstance(marks, list) else [marks])
    )
    for name, test in module.items():
        if not name.startswith("test_") or not callable(test):
            continue
        if skipped or getattr(test, "skipped", False):
            yield name, "skipped"
            continue
        for chosen in itertools.product(*getattr(test, "parameters", [])):
            given = {key: value for one in chosen for key, value in one.items()}
            chosen_values = list(given.values())
            missing = set(test.__code__.co_varnames[: test.__code__.co_argcount]) - set(given)
            patch = MonkeyPatch()
            if "monkeypatch" in missing:
                missing, given = missing - {"monkeypatch"}, {**given, "monkeypatch": patch}
            full = f"{name}[{'-'.join(map(str, chosen_values))}]" if chosen_values else name
            if missing:
                yield full, f"left out: needs the fixture {', '.join(sorted(missing))}"
                continue
            try:
                test(**given)
            except Exception:
                yield full, traceback.format_exc()
            else:
                yield full, "passed"
            finally:
                patch.undo()


def _install_missing() -> list[str]:
    """Put stand-ins in the place of pydantic and pytest where these are missing, and name them."""
    made = {"pydantic": _pydantic, "pydantic_core": _pydantic_core, "pytest": _pytest}
    missing = [name for name in made if not _is_there(name)]
    for name in missing:
        sys.modules[name] = made[name]()
    return missing


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


MISSING = _install_missing()
"""Libraries whose place a stand-in has taken."""
