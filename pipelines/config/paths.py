"""Relative paths in the settings of a config, and their absolute forms."""

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from pipelines import plugins
from pipelines.config.schema import Config
from pipelines.secrets import REFERENCE
from pipelines.settings import PathKind, Settings
from pipelines.sources.settings import OWN_SOURCES

_STORE = re.compile(r"sqlite:///(?:file:)?|file:(?!/)")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")
_NOT_A_FOLDER = (":memory:", "databricks", "uc")  # tracking stores that are neither a URL nor a path


def absolute_paths(settings: Mapping[str, Any], folder: Path) -> Settings:
    """Make the relative paths in the settings of a config absolute."""
    changed = _in_section(Config, settings, folder)
    if isinstance(given := changed.get("plugins"), list | tuple):
        places = (absolute(one, PathKind.PATH, folder) if plugins.is_file(one) else one for one in given)
        changed["plugins"] = list(places)
    if "models" in changed:
        changed["models"] = _absolute_entries(changed["models"], folder)
    return changed


def _absolute_entries(entries: Any, folder: Path) -> Any:  # noqa: ANN401 (YAML holds anything)
    """Make ``init_from`` absolute in the entries of ``models``, and in the members that these give."""
    if not isinstance(entries, Mapping):
        return entries
    changed = dict(entries)
    for name, entry in entries.items():
        if isinstance(entry, Mapping):
            changed[name] = own = dict(entry)
            if isinstance(own.get("init_from"), str):
                own["init_from"] = absolute(own["init_from"], PathKind.RUN, folder)
            if "members" in own:
                own["members"] = _absolute_entries(own["members"], folder)
    return changed


def absolute(text: str, kind: PathKind, folder: Path) -> str:
    """Make the text of one setting absolute, if it is a relative path and no URL or run's name."""
    reference = REFERENCE.match(text)
    if reference is not None:
        name, default = reference.groups()
        if not default:
            return text
        return f"${{{name}:-{absolute(default, kind, folder)}}}{text[reference.end() :]}"
    if kind is PathKind.STORE:
        prefix = _STORE.match(text)
        if prefix is not None and not text[prefix.end() :].startswith(_NOT_A_FOLDER):
            return prefix[0] + absolute(text[prefix.end() :], PathKind.PATH, folder)
        if text in _NOT_A_FOLDER:
            return text
    is_path = text and not _SCHEME.match(text)
    if kind is PathKind.RUN:  # a name holds no separator
        is_path = is_path and ("/" in text or text in (".", ".."))
    if not is_path or os.path.isabs(os.path.expandvars(os.path.expanduser(text))):
        return text
    return _joined(folder, text)


def _joined(folder: Path, text: str) -> str:
    """Join a folder and a relative path. Only its first steps are normalised, since a query may follow."""
    while text.startswith(("./", "../")):
        step, _, text = text.partition("/")
        folder = folder.parent if step == ".." else folder
    if text in ("", "."):
        return str(folder)
    return str(folder.parent) if text == ".." else f"{str(folder).rstrip('/')}/{text}"


def _in_section(cls: type[BaseModel], settings: Mapping[str, Any], folder: Path) -> Settings:
    """Make the paths in the settings of a section absolute; a section of several kinds has one class each."""
    changed = dict(settings)
    for name, field in cls.model_fields.items():
        value = changed.get(name)
        kind = _kinds(cls)[name]
        if isinstance(value, str) and kind is not None:
            changed[name] = absolute(value, kind, folder)
        if isinstance(value, Mapping):
            if kind is not None:  # files by a name of the user's
                changed[name] = {key: _each_absolute(one, kind, folder) for key, one in value.items()}
            own = OWN_SOURCES.values() if name == "source" else ()
            for section in (*_sections_of(field.annotation), *own):
                changed[name] = _in_section(section, changed[name], folder)
            for section in _sections_by_name(field.annotation):
                changed[name] = {
                    key: _in_section(section, entry, folder) if isinstance(entry, Mapping) else entry
                    for key, entry in changed[name].items()
                }
    return changed


def _each_absolute(value: Any, kind: PathKind, folder: Path) -> Any:  # noqa: ANN401 (YAML holds anything)
    """Make a path or a list of paths absolute."""
    if isinstance(value, list | tuple):
        return [_each_absolute(one, kind, folder) for one in value]
    return absolute(value, kind, folder) if isinstance(value, str) else value


def default_paths(cls: type[BaseModel], root: Path) -> Settings:
    """Settings that are paths and have a relative default, as absolute paths."""
    found: Settings = {}
    for name, field in cls.model_fields.items():
        default = field.default
        kind = _kinds(cls)[name]
        if isinstance(default, str) and kind is not None:
            found[name] = absolute(default, kind, root)
        elif isinstance(default, BaseModel) and (below := default_paths(type(default), root)):
            found[name] = below
    return found


@functools.cache
def _kinds(cls: type[BaseModel]) -> dict[str, PathKind | None]:
    """Kinds of the paths among the settings of a section."""
    found = {}
    for name, field in cls.model_fields.items():
        marks = (mark for mark in field.metadata if isinstance(mark, PathKind))
        found[name] = next(marks, None) or _kind_of(field.annotation)
    return found


def _kind_of(annotation: Any) -> PathKind | None:  # noqa: ANN401 (any annotation)
    """Return the mark of a type, or of one of the types that it is a union of."""
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        return next((mark for mark in marks if isinstance(mark, PathKind)), None) or _kind_of(base)
    return next((kind for part in get_args(annotation) if (kind := _kind_of(part)) is not None), None)


def _sections_of(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 (any annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (dict, Mapping):  # by a name of the user's
        return []
    return [section for part in get_args(annotation) for section in _sections_of(part)]


def _sections_by_name(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 (any annotation)
    """Sections that have a name of the user's."""
    of_entry = get_args(annotation)[1:] if get_origin(annotation) is dict else ()
    return [section for part in of_entry for section in _sections_of(part)]
