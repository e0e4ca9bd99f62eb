"""Upkeep of the lake as part of a night: compaction and vacuum on the schedule of the config."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from pipelines.config.schema import Config
from pipelines.errors import DataError, TrackingError, full_disk
from pipelines.lake.lake import Lake
from pipelines.lake.upkeep import compact, vacuum
from pipelines.run.locks import Locks
from pipelines.tracking.versions import versions_in_use


def keep_house(config: Config, lake: Lake, night_number: int) -> list[str]:
    """Compact and vacuum the lake if this night is due.

    A vacuum keeps the versions that runs have read and those that the signals of any night were computed
    from. What cannot be done tonight is done when it is due again: a night does not fail because another
    process holds the lake, or because the tracking store, which knows the versions of runs, cannot be asked.

    Parameters
    ----------
    config
        Gives the schedule (``nightly.housekeeping``) and names the tracking store.
    lake
        Lake of the config.
    night_number
        Number of this night, from 1.

    Returns
    -------
    list of str
        What was done or had to be left out, one sentence each.

    Raises
    ------
    DataError
        If the disk is full.
    """
    schedule = config.nightly.housekeeping
    said: list[str] = []
    if _is_due(night_number, schedule.compact_every):
        said += _try("compaction", lambda: _compact(lake))
    if _is_due(night_number, schedule.vacuum_every):
        said += _try("vacuum", lambda: _vacuum(config, lake))
    return said


def _is_due(night_number: int, every: int) -> bool:
    return every > 0 and night_number % every == 0


def _try(what: str, work: Callable[[], str]) -> list[str]:
    try:
        sentence = work()
    except (DataError, TrackingError) as error:
        if full_disk(error) is not None:
            raise
        return [f"The {what} of the lake was left out: {error}"]
    return [sentence]


def _compact(lake: Lake) -> str:
    with Locks(wait=False, notify=_nobody) as locks:
        locks.lock_existing_lake(lake)
        done = compact(lake)
    removed, added = sum(one.removed for one in done), sum(one.added for one in done)
    return f"The lake was compacted: {removed} small files were joined into {added}."


def _vacuum(config: Config, lake: Lake) -> str:
    days = config.nightly.housekeeping.keep_days
    with Locks(wait=False, notify=_nobody) as locks:
        locks.lock_existing_lake(lake)
        plans = vacuum(lake, keep=dt.timedelta(days=days), recorded=versions_in_use(config, lake, ()))
    files, size = sum(plan.files for plan in plans), sum(plan.size for plan in plans)
    return f"The lake was vacuumed: {files} files, {size / 1e6:,.1f} MB, were removed."


def _nobody(_: str) -> None:
    """Nothing waits for a lock here, so there is nobody to tell."""
