"""The short way out of ``peerglass nightly``: nothing is new and the night is done.

It takes no lock, reads no source, and imports nothing that computes features or models.
"""

from __future__ import annotations

import datetime as dt

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.nightly.clock import SYSTEM, Clock
from pipelines.nightly.plan import next_night, plan_nights
from pipelines.nightly.records import require_agreement
from pipelines.nightly.sources import is_unchanged


def already_done(config: Config, day: dt.date | None, clock: Clock = SYSTEM) -> str | None:
    """Return the sentence that there is nothing to do; None if there is, or if it is not certain."""
    lake = open_lake(config)
    day = next_night(config, lake, day)
    try:
        if not is_unchanged(config, lake, day, clock):
            return None
        require_agreement(config, lake)
        plan = plan_nights(lake, config.name, day)
    except (ConfigError, DataError):
        return None  # the long way reports it
    return None if plan.sessions else done_sentence(config.name, plan.newest)


def done_sentence(config_name: str, session: dt.date) -> str:
    """Say that a night is done."""
    return f"{config_name}: the night of {session} is already done."
