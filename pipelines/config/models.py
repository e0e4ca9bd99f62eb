"""Entries of a config's ``models``: an entry's name, and the registered model that it is.

The lake, folders, tracking and reports use the entry's name; code that builds or fits a model uses the
registered name. Without the key ``model``, an entry is the registered model of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pipelines.config.schema import Config

KEY = "model"
"""Key of an entry that names its registered model."""
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,40}$")


def registry_name(config: Config, entry: str) -> str:
    """Return the registered model of an entry of ``models``."""
    return str(config.models[entry].get(KEY, entry))


def validation_error(entry: str, registered: str, known: Collection[str]) -> str | None:
    """Return why an entry cannot have its name, as half a sentence; None if it can.

    Parameters
    ----------
    entry
        Name of the entry, which becomes the name of files and folders.
    registered
        Its registered model.
    known
        All registered models.
    """
    if entry == registered:
        return None
    if entry in known:
        return f"is the name of a model, but its key '{KEY}' is {registered}; give the variant another name"
    if _NAME.match(entry) is None:
        return (
            "is not a valid name; use lower-case letters, digits, _ and -, starting with a letter, "
            "41 characters at most"
        )
    return None
