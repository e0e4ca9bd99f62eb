"""A source as it was at the close of an earlier session."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from pipelines.sources.base import Source, SourceTables
from pipelines.sources.known import known_by


@dataclass(frozen=True, slots=True)
class SourceThrough:
    """A source that delivers what it knew at the close of a session, and nothing later.

    A delivery is a prefix of the delivery of the next session: rows are added, and the ends of listings,
    memberships and edges appear on their day.

    Attributes
    ----------
    source
        The source; it delivers its whole scope.
    session
        The last session that is delivered.
    """

    source: Source
    session: dt.date

    @property
    def name(self) -> str:
        """Name of the origin, recorded with every price."""
        return self.source.name

    def fetch(self) -> SourceTables:
        """Deliver the tables up to the session; errors as in the source's own ``fetch``."""
        delivered = self.source.fetch()
        tables = {table: known_by(table, frame, self.session) for table, frame in delivered.tables.items()}
        return replace(delivered, tables=tables)
