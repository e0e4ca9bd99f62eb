"""Upkeep of the lake as part of a night."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import Section


class HousekeepingConfig(Section):
    """Schedule of the lake's upkeep, in nights."""

    compact_every: int = Field(default=5, ge=0)
    """Nights between two compactions of the lake's tables; 0 for never."""
    vacuum_every: int = Field(default=20, ge=0)
    """Nights between two vacuums, which delete files that no run and no night needs; 0 for never."""
    keep_days: int = Field(default=30, ge=1)
    """A vacuum keeps every version that was the newest one at some time in this number of days."""
