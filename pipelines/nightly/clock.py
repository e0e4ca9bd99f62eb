"""The clock of the nightly pipeline, in one place, so that tests can replace it.

The clock names moments and limits waiting. Which session a night decides on comes from the data and the
exchange calendar; a clock that is wrong by days changes neither signals nor books.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions that tell the time and wait.

    Attributes
    ----------
    now
        Returns the current time in UTC. It may jump.
    monotonic
        Returns seconds since an arbitrary moment; never goes back.
    sleep
        Waits for a number of seconds.
    """

    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM: Final = Clock()
"""The clock of the machine."""
