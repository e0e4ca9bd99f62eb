"""Errors that end a command: one sentence for the user, one exit code for the scheduler."""

from __future__ import annotations

from typing import ClassVar

from pipelines.secrets import redact


class PeerglassError(Exception):
    """Base of the errors that are the user's to mend; the message names the thing and the cure, no secret."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class ConfigError(PeerglassError):
    """The configuration or the command line is wrong."""

    exit_code = 2


class DataError(PeerglassError):
    """Data is missing, stale, or not what it claims to be."""

    exit_code = 3


class AuditError(PeerglassError):
    """The audit found look-ahead, or a result that cannot be believed."""

    exit_code = 4


class DivergedError(PeerglassError):
    """Training ended without a model: a loss that is no number, nothing to learn, or no memory for it."""

    exit_code = 5


class TrackingError(PeerglassError):
    """The tracking server cannot be reached."""

    exit_code = 6
