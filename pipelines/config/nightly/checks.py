"""Checks of the data of a night."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import Section


class ChecksConfig(Section):
    """Limits of the data checks. A check that fails is a warning of the night unless it says otherwise."""

    min_coverage: float = Field(default=0.9, ge=0, le=1)
    """Minimum share of yesterday's priced firms that have a price tonight; with fewer, the night fails."""
    max_stale: float = Field(default=0.05, ge=0, le=1)
    """Maximum share of firms whose close and volume equal those of the session before."""
    max_missing: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of the universe for which a characteristic is missing, if it was known for more firms in
    training."""
    retry_minutes: float = Field(default=60.0, ge=0)
    """How long a source that is gone, throttled or late is asked again before the night fails."""
