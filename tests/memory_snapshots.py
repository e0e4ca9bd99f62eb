"""A keeper of snapshots that dies like a process."""

from __future__ import annotations

from models.fitting.snapshot import Snapshot


class KilledError(Exception):
    """The process is gone."""


class Memory:
    """Keeps a snapshot in memory, and dies after some saves."""

    def __init__(self, kept: Snapshot | None = None, dies_after: int | None = None) -> None:
        self.kept, self.dies_after, self.saves = kept, dies_after, 0

    def load(self) -> Snapshot | None:
        """Give what was kept last."""
        return self.kept

    def save(self, snapshot: Snapshot) -> None:
        """Keep it, and die if it is time."""
        self.kept, self.saves = snapshot, self.saves + 1
        if self.saves == self.dies_after:
            raise KilledError
