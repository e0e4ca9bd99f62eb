"""Paths in a configuration: they become absolute when a config is read, whatever the current folder is.

A relative path belongs to the file that contains it: it is relative to that file's ``root``, which is the
file's own folder by default. The settings that are paths are those whose type is marked with
`pipelines.settings.PathKind`; a new setting needs only the mark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipelines.config.schema import Config
from pipelines.secrets import REFERENCE
from pipelines.settings import PathKind, Settings

_STORE = re.compile(r"sqlite:///(?:file:)?|file:(?!/)")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")
_NOT_A_FOLDER = (":memory:", "databricks", "uc")  # tracking stores that are neither a URL nor a path


def absolute_paths(settings: Mapping[str, Any], folder: Path) -> Settings:
    """Make the relative paths in the settings of a config absolute.

    Parameters
    ----------
    settings
        Settings as read from YAML, before they are validated; a value of the wrong type is left as it is.
    folder
        Absolute folder that relative paths are relative to.

    Returns
    -------
    dict
        The settings. The default of a reference, ``${NAME:-default}``, is made absolute as well. A value that
        begins with a reference without a default is left as it is: call this again once it is resolved.
    """
    changed = _in_section(Config, settings, folder)
    models = changed.get("models")
    if isinstance(models, Mapping):
        changed["models"] = {
            name: {**entry, "init_from": absolute(entry["init_from"], PathKind.RUN, folder)}
            if isinstance(entry, Mapping) and isinstance(entry.get("init_from"), str)
            else entry
            for name, entry in models.items()
        }
    return changed


def default_paths(root: Path) -> Settings:
    """Return the settings of a config that are paths and have a relative default, as absolute paths."""
    return _defaults(Config, root)


def absolute(text: str, kind: PathKind, folder: Path) -> str:
    """Make the text of one setting absolute, if it is a relative path.

    Unchanged are URLs, names of runs, and paths that are absolute once ``~`` and ``$NAME`` are expanded.
    """
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
        kind = _kind_of_field(field)
        if isinstance(value, str) and kind is not None:
            changed[name] = absolute(value, kind, folder)
        if isinstance(value, Mapping):
            for section in _sections_of(field.annotation):
                changed[name] = _in_section(section, changed[name], folder)
    return changed


def _defaults(cls: type[BaseModel], root: Path) -> Settings:
    found: Settings = {}
    for name, field in cls.model_fields.items():
        default = field.default
        kind = _kind_of_field(field)
        if isinstance(default, str) and kind is not None:
            found[name] = absolute(default, kind, root)
        elif isinstance(default, BaseModel) and (below := _defaults(type(default), root)):
            found[name] = below
    return found


def _kind_of_field(field: FieldInfo) -> PathKind | None:
    marks = (mark for mark in field.metadata if isinstance(mark, PathKind))
    return next(marks, None) or _kind_of(field.annotation)


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
