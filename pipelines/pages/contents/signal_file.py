"""What the report of a signal file shows beside the tables of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.pages.contents.frames import require_columns

ROW_COLUMNS = ("signal", "reason", "rows")
GUARD_COLUMNS = ("signal", "check", "verdict", "sentence")


@dataclass(frozen=True, slots=True)
class SignalFile:
    """A measured file of signals.

    Attributes
    ----------
    file
        Path of the file.
    rows
        signal, reason, rows: how many rows were used, and how many were left out for which reason.
    guard
        signal, check, verdict (fail, warn, pass, skipped), sentence: the look-ahead guard, per signal.
    """

    file: str
    rows: pl.DataFrame
    guard: pl.DataFrame

    def __post_init__(self) -> None:
        """Check the columns of the frames."""
        require_columns("rows", self.rows, ROW_COLUMNS)
        require_columns("guard", self.guard, GUARD_COLUMNS)

    @property
    def failed(self) -> dict[str, list[str]]:
        """Signal -> the checks that it failed; signals that failed none are left out."""
        found: dict[str, list[str]] = {}
        bad = self.guard.filter(pl.col("verdict") == "fail").select("signal", "check")
        for signal, check in bad.iter_rows():
            found.setdefault(signal, []).append(check)
        return found
