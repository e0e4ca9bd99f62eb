"""A snapshot store in memory that simulates a killed process."""

from __future__ import annotations

from models.fitting.snapshot import Snapshot


class KilledError(Exception):
    """The simulated process was killed."""


class Memory:
    """Keeps a snapshot in memory, and raises `KilledError` after a number of saves."""

    def __init__(self, kept: Snapshot | None = None, dies_after: int | None = None) -> None:
        self.kept, self.dies_after, self.saves = kept, dies_after, 0

    def load(self) -> Snapshot | None:
        """Return the newest snapshot."""
        return self.kept

    def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot, and raise if this is the last allowed save."""
        self.kept, self.saves = snapshot, self.saves + 1
        if self.saves == self.dies_after:
            raise KilledError
