"""Errors that end a command. Each has one sentence for the user and one exit code for the scheduler."""

import errno
import re
from typing import ClassVar, Final

from pipelines.secrets import redact


class PeerglassError(Exception):
    """Base of all errors that the user can fix. The message names the problem and the cure, no secrets."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class ConfigError(PeerglassError):
    """The configuration or the command line is wrong."""

    exit_code = 2


class DataError(PeerglassError):
    """Data is missing, stale, damaged or locked by another process."""

    exit_code = 3


class AuditError(PeerglassError):
    """The audit found look-ahead, or a result that is too good to be true."""

    exit_code = 4


class PromotionRefused(PeerglassError):  # noqa: N818  (names the decision, as StopIteration does)
    """The guard refused to make a model version the champion."""

    exit_code = 4


class DivergedError(PeerglassError):
    """Training produced no model: the loss is not finite, the labels are constant, or memory ran out."""

    exit_code = 5


class TrackingError(PeerglassError):
    """The tracking server cannot be reached."""

    exit_code = 6


class FullDiskError(DataError):
    """The disk is full."""


# how libraries in Rust and C report a full disk, in errors of their own kinds
_FULL_DISK: Final = ("no space left on device", "disk is full", "disk quota exceeded")


def full_disk(error: BaseException) -> FullDiskError | None:
    """Return the error to end with if a full disk caused this one, whatever library met it; None if not."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, FullDiskError):
            return cause
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or any(words in str(cause).lower() for words in _FULL_DISK):
            where = f" ({cause.filename})" if isinstance(cause, OSError) and cause.filename else ""
            return FullDiskError(
                f"The disk is full{where}; what was committed is kept. Free some space and run the same "
                "command again to continue."
            )
        cause = cause.__cause__ or cause.__context__
    return None


def one_line(error: object) -> str:
    """Shorten the message of a library to one line without colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:300]
