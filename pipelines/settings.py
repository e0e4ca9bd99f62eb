"""Sections of the configuration, the types of settings that are places, and what is wrong with settings."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)

from features.options import UNKNOWN_KEY, Options
from pipelines.secrets import masked

Settings = dict[str, Any]
# for the error of a file that is not there
RELATIVE_PATHS = "a relative path in a config is relative to the config's file, or to its root"


class PathKind(Enum):
    """Marks the type of a setting that is a path, which `pipelines.config.load` makes absolute."""

    PATH = "path or URL"
    RUN = "name or folder of a run"
    STORE = "URI of a tracking store"


PathSetting = Annotated[str, PathKind.PATH]  # or a URL, where the setting allows one
RunSetting = Annotated[str, PathKind.RUN]  # a name without ``/``, or the path of a folder
StoreSetting = Annotated[str, PathKind.STORE]  # the URI of a server or of an SQLite file, or a path


class Section(Options):
    """A block of the configuration that is printed without its secrets."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the settings with their secrets masked."""
        for name, value in super().__repr_args__():
            yield name, masked_settings(value)


def by_kind(registry: Mapping[str, type[BaseModel]]) -> tuple[Any, ...]:
    """Metadata of a union of sections by ``kind`` that also takes what plugins add to a registry later."""
    known = frozenset(registry.values())

    def added(kind: object) -> type[BaseModel] | None:
        found = registry.get(kind) if isinstance(kind, str) else None
        return None if found in known else found

    def read(given: Any, of_union: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401 (of any kind)
        own = added(given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None))
        return of_union(given) if own is None else own.model_validate(given)

    def write(value: Any, of_union: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:  # noqa: ANN401
        own = added(getattr(value, "kind", None))
        if own is None:
            return of_union(value)
        return value.model_dump(mode=info.mode, exclude_defaults=info.exclude_defaults)

    return Field(discriminator="kind"), WrapValidator(read), WrapSerializer(write)


def masked_settings(value: Any) -> Any:  # noqa: ANN401 (settings hold anything)
    """Mask the secrets in every string of nested settings."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_settings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked_settings(item) for item in value)
    return value


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is unknown, and which one was probably meant."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(names) or 'nothing'}."
    return f"{where} is not a known name; {hint}"


def describe(error: ValidationError, origin: str, raw: Any, section: str = "") -> str:  # noqa: ANN401 (YAML holds anything)
    """Describe the first unknown key of a section (empty: the config), else the first problem."""
    inside = [section] if section else []
    problems = error.errors()
    problem = next((p for p in problems if p["type"] == UNKNOWN_KEY), problems[0])
    if problem["type"] == UNKNOWN_KEY:
        context = problem["ctx"]
        path = ".".join([*inside, _key_path((*problem["loc"], context["key"]), raw)])
        return unknown_key(f"{origin}: {path}", **context)
    where = ".".join([*inside, *filter(None, [_key_path(problem["loc"], raw)])])
    given = "" if problem["type"] == "missing" else f" (given: {problem['input']!r})"
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
    more = f" {len(problems) - 1} more problem(s) follow." if len(problems) > 1 else ""
    return f"{origin}: {where or 'settings'}: {message}{given}.{more}"


def _key_path(location: Iterable[str | int], raw: Any) -> str:  # noqa: ANN401 (YAML holds anything)
    """Convert pydantic's location of a problem to a key's path, without the tags of unions."""
    path: list[str] = []
    for part in location:
        if isinstance(raw, Mapping) and part not in raw and part in (raw.get("kind"), raw.get("scheme")):
            continue
        if isinstance(raw, Mapping):
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int):
            raw = raw[part]
        path.append(str(part))
    return ".".join(path)


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return the problem and its position, without the text of the line, which may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    problem = re.sub(r"'[^'<]{4,}'", "'...'", str(error.problem))
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
