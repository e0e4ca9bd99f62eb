"""The channels of alerts: Apprise URLs, and a command that reads JSON."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipelines.nightly.alerts.events import Alert


class ChannelError(Exception):
    """An alert could not be delivered; the message says why, without the channel's address."""


def notify(url: str, alert: Alert, timeout: float) -> None:
    """Send an alert to an Apprise URL.

    Apprise's own messages are dropped, because they may hold parts of the URL.

    Raises
    ------
    ChannelError
        If Apprise is not installed, does not know the URL, or the service does not take the message in time.
    """
    try:
        import apprise
    except ImportError:
        raise ChannelError(
            "Apprise is not installed; install the extra with pip install '.[alerts]'"
        ) from None
    kinds = {
        "failure": apprise.NotifyType.FAILURE,
        "warning": apprise.NotifyType.WARNING,
        "recovery": apprise.NotifyType.SUCCESS,
    }
    with _silenced("apprise"):
        channel = apprise.Apprise()
        if not channel.add(url):
            raise ChannelError("Apprise does not know this kind of URL, or it is incomplete")
        taken = channel.notify(
            title=alert.title,
            body=alert.text,
            notify_type=kinds[alert.kind],
            body_format=apprise.NotifyFormat.TEXT,  # services that show HTML escape it
            timeout=timeout,
        )
    if not taken:
        raise ChannelError("the service did not take the message; try the URL with the command 'apprise'")


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Drop what a library logs."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def run_command(command: Sequence[str], document: Mapping[str, Any], timeout: float) -> int:
    """Run a command with JSON on its standard input, without a shell, and return its exit code.

    Its output goes to standard error of this process. A command that takes too long is killed with the
    processes that it started.

    Raises
    ------
    ChannelError
        If the command cannot be started, or takes longer than ``timeout`` seconds.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 (the user's own command, without a shell)
            list(command), stdin=subprocess.PIPE, stdout=2, start_new_session=True
        )
    except OSError as error:
        raise ChannelError(f"it cannot be started ({error.strerror})") from None
    try:
        process.communicate(json.dumps(document).encode() + b"\n", timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise ChannelError(f"it took longer than {timeout:g} s and was killed") from None
    return process.returncode
