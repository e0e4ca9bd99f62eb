"""Checks of the data of a night."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import Section


class ChecksConfig(Section):
    """Limits of the data checks. A check that fails is a warning of the night unless it says otherwise."""

    min_coverage: float = Field(default=0.9, ge=0, le=1)
    """Minimum share of the firms priced on the last night's session, in its data, that have a price tonight;
    with fewer, the night fails. A tenth of a market is never halted or delisted at once; a vendor's batch
    that is missing is. A single firm is never too many."""
    max_stale: float = Field(default=0.05, ge=0, le=1)
    """Maximum share of firms whose close and volume equal those of the session before. Small firms that do
    not trade repeat their close without volume, which does not count."""
    max_missing: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of the universe for which a characteristic is missing, if it was known for more firms in
    training. The transform replaces missing values, so that a model does not notice them."""
    max_corrections: float = Field(default=0.01, ge=0, le=1)
    """Maximum share of the price rows of the last year that may have been corrected since the last night. A
    vendor corrects single rows every day; a hundredth of a year is another history."""
    max_withdrawn: float = Field(default=0.1, ge=0, le=1)
    """Maximum share of the last night's price rows that may have been withdrawn since; with more, the night
    fails. A vendor takes back single firms; a tenth of all rows is a truncated delivery."""
    retry_minutes: float = Field(default=60.0, ge=0)
    """How long a source that is gone, throttled or late is asked again before the night fails."""
