"""Entries of a config's ``models``: the name that one bears in its run, and the registered model that it is.

Lake, folders, tracking and reports know an entry by its name; whoever fits or builds a model asks for the
registered one. Without the key ``model`` an entry is the registered model that it is named after.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pipelines.config.schema import Config

KEY = "model"
"""What an entry says its registered model by."""
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,40}$")


def registry_name(config: Config, entry: str) -> str:
    """Look up which registered model an entry of ``models`` is."""
    return str(config.models[entry].get(KEY, entry))


def validation_error(entry: str, registered: str, known: Collection[str]) -> str | None:
    """Say in half a sentence why an entry cannot bear its name; None if it can.

    Parameters
    ----------
    entry
        Its name, which becomes a file's and a folder's.
    registered
        The registered model that it is.
    known
        All registered models.
    """
    if entry == registered:
        return None
    if entry in known:
        return f"is the name of a model, but its key '{KEY}' says {registered}; name the variant otherwise"
    if _NAME.match(entry) is None:
        return (
            "is no name for a variant; take lower-case letters, digits, _ and -, a letter first, 41 at most"
        )
    return None
