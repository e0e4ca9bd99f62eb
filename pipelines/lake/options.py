"""What a lake on an object store is told: where it is comes from the config, who asks from the environment.

Credentials are refused in a config, because a config is printed, kept in every run's folder and logged; the
store's own variables (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, a profile, an
instance's role) are read by the store itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.secrets import holds_a_secret

_SECRET: Final = re.compile(r"secret|token(?!_file)|passw|sas|signature|access_key|account_key|customer_key")
_UNSAFE: Final = re.compile(r"unsafe_rename|conditional_put|copy_if_not_exists|locking_provider")
_FOR_S3: Final = {"aws_conditional_put": "etag"}
"""A commit is a put that the store refuses if the object is there (If-None-Match), which is what makes it
atomic. S3 itself, MinIO, R2, Ceph and Garage have it; a store that ignores the header can lose commits."""


def is_url(root: str) -> bool:
    """Tell an object store's URL from a local path."""
    return "://" in root


def place(root: str) -> str:
    """Name a lake's place the same however it was written: an absolute path without links, or the URL."""
    local = root.removeprefix("file://")
    return local.rstrip("/") if is_url(local) else str(Path(local).expanduser().resolve())


def storage_options(root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the object store's options for a lake's root, empty for a local path."""
    if not is_url(root) or root.startswith("file://"):
        return {}
    scheme = root.partition("://")[0].lower()
    return {**(_FOR_S3 if scheme in {"s3", "s3a"} else {}), **given}


def validation_error(root: str, given: Mapping[str, str]) -> str | None:
    """Say what is wrong with a config's ``lake`` and ``lake_options``, repeating no value; or None."""
    if holds_a_secret(root) or (is_url(root) and "@" in root.partition("://")[2].partition("/")[0]):
        return "lake holds a user name or a password; take them out and set them in the environment"
    if given and (not is_url(root) or root.startswith("file://")):
        return "lake_options are for an object store's URL, but lake is a local path; remove one of them"
    for key, value in given.items():
        name = key.lower()
        if _SECRET.search(name):
            return (
                f"lake_options.{key} is a credential, and a config is printed and logged; set it in the "
                f"environment instead (for example {name.upper()})"
            )
        if _UNSAFE.search(name):
            return (
                f"lake_options.{key} would change how two writers are kept apart, and commits could be lost; "
                "remove it"
            )
        if holds_a_secret(value) or ("://" in value and "@" in value.partition("://")[2].partition("/")[0]):
            return f"lake_options.{key} holds a user name or a password; set them in the environment instead"
    return None
