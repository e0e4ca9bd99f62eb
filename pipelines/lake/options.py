"""Options of a lake on an object store: the config names the location, the environment the credentials.

Credentials are refused in a config, because a config is printed, logged and stored in every run's folder. The
object store reads them itself from its own variables (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_SESSION_TOKEN``), a profile or an instance's role.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.secrets import contains_secret

_CREDENTIAL: Final = re.compile(
    r"secret|token(?!_file)|passw|sas|signature|access_key|account_key|customer_key"
)
_UNUSABLE: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\\?\[\]^|]")  # no character of a folder to Delta or SQLite
_UNSAFE: Final = re.compile(r"unsafe_rename|conditional_put|copy_if_not_exists|locking_provider")
_FOR_S3: Final = {"aws_conditional_put": "etag"}
"""A commit is a conditional put (If-None-Match), which the store refuses if the object exists; this makes
commits atomic. S3 itself, MinIO, R2, Ceph and Garage support it. A store that ignores the header can lose
commits."""


def is_url(root: str) -> bool:
    """Return whether a lake's root is the URL of an object store rather than a local path."""
    return "://" in root


def canonical_location(root: str) -> str:
    """Return a lake's location in one canonical form: an absolute path without links, or the URL."""
    local = root.removeprefix("file://")
    return local.rstrip("/") if is_url(local) else str(Path(local).expanduser().resolve())


def storage_options(root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the object store's options for a lake's root; empty for a local path."""
    if not is_url(root) or root.startswith("file://"):
        return {}
    scheme = root.partition("://")[0].lower()
    return {**(_FOR_S3 if scheme in {"s3", "s3a"} else {}), **given}


def validation_error(
    root: str, given: Mapping[str, str], place: str = "lake", options: str = "lake_options"
) -> str | None:
    """Say in half a sentence what is wrong with a lake and its options, without secrets; or None."""
    if contains_secret(root) or (is_url(root) and "@" in root.partition("://")[2].partition("/")[0]):
        return f"{place} contains a user name or a password; remove them and set them in the environment"
    if given and (not is_url(root) or root.startswith("file://")):
        return f"{options} is for the URL of an object store, but {place} is a local path; remove one of them"
    for key, value in given.items():
        name = key.lower()
        if _CREDENTIAL.search(name):
            return (
                f"{options}.{key} is a credential, and a config is printed and logged; set it in the "
                f"environment instead (for example {name.upper()})"
            )
        if _UNSAFE.search(name):
            return (
                f"{options}.{key} would change how concurrent writers are separated, so commits "
                "could be lost; remove it"
            )
        if contains_secret(value) or ("://" in value and "@" in value.partition("://")[2].partition("/")[0]):
            return f"{options}.{key} contains a user name or a password; set them in the environment instead"
    return None


def unusable_part(path: str) -> str | None:
    """Say which part of a local path a table or a database cannot have; None if all can be used."""
    found = _UNUSABLE.search(path)
    if found is None:
        return None
    return (
        f"whose {found[0]!r} is read as something else by the tables' format or by SQLite; rename that "
        "folder or name another one"
    )
