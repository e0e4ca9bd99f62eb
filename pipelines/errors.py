"""Errors that end a command. Each has one sentence for the user and one exit code for the scheduler."""

from __future__ import annotations

from typing import ClassVar

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


class DivergedError(PeerglassError):
    """Training produced no model: the loss is not finite, the labels are constant, or memory ran out."""

    exit_code = 5


class TrackingError(PeerglassError):
    """The tracking server cannot be reached."""

    exit_code = 6
