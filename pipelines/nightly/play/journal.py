"""What a night has decided so far: ``journal.json`` in its folder.

Every decision is written before the step that acts on it. A night that was killed therefore reads the same
table versions and scores the same models when it is resumed, although newer data or another champion may have
arrived since.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.errors import DataError
from pipelines.files import write_text
from pipelines.lake.lake import Lake
from pipelines.nightly.result import ModelVersion, Promotion, Retraining, read_signals
from pipelines.nightly.versions import alias_history

FILE: Final = "journal.json"


class Journal(BaseModel):
    """The decisions of one night.

    Attributes
    ----------
    session
        The session that the night decides at.
    versions
        Input table -> version that all steps read.
    table_ids
        Input table -> id of the Delta table, which tells a table from another one at the same place.
    judged_retraining
        Whether it has been decided if a version is trained.
    retraining
        That decision; None if no version is trained.
    trained
        The version that was trained, as text.
    chose_versions
        Whether champion and challenger have been fixed.
    champion, challenger
        The versions that the night scores, as text; fixed before the first is scored.
    promotion
        The guard's judgement; None before it was made, or if there was none to make.
    recorded
        Whether the night's row in the table ``nights`` has been written.
    seconds
        Step -> wall-clock seconds, summed over interruptions as far as they were written. A step is there
        after it has ended well, so what it writes is in the lake.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: dt.date
    versions: dict[str, int]
    table_ids: dict[str, str] = {}
    judged_retraining: bool = False
    retraining: Retraining | None = None
    trained: str | None = None
    chose_versions: bool = False
    champion: str | None = None
    challenger: str | None = None
    promotion: Promotion | None = None
    recorded: bool = False
    seconds: dict[str, float] = {}

    @property
    def champion_version(self) -> ModelVersion | None:
        """The champion of the night."""
        return None if self.champion is None else ModelVersion.parse(self.champion)

    @property
    def challenger_version(self) -> ModelVersion | None:
        """The challenger of the night."""
        return None if self.challenger is None else ModelVersion.parse(self.challenger)


def read_journal(folder: Path) -> Journal | None:
    """Read the journal of a night that has begun; None if it has not.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return Journal.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(
            f"{path} is damaged ({str(error).splitlines()[0]}); delete it, and run the night again."
        ) from None


def write_journal(folder: Path, journal: Journal) -> Journal:
    """Write the journal, atomically, and return it."""
    write_text(folder / FILE, journal.model_dump_json(indent=1))
    return journal


def discard_journal(folder: Path) -> None:
    """Delete the journal, so that the night begins anew on the newest data."""
    (folder / FILE).unlink(missing_ok=True)


def lost_since(journal: Journal, lake: Lake, config_name: str) -> str | None:
    """Return what a journal has read or written and the lake does not have; None if the lake has it all.

    Every step writes to the lake before the journal says that it is done. So a journal that says more belongs
    to a lake that was since replaced by an older one.
    """
    for table, version in journal.versions.items():
        newest = lake.version(table)
        if newest is None or newest < version:
            return f"it has read version {version} of {table}, of which the lake has {newest or 'none'}"
        if table in journal.table_ids and lake.table_id(table) != journal.table_ids[table]:
            return f"it has read another table {table}"
    entered = alias_history(lake, config_name)["version"].to_list()
    if "training" in journal.seconds and journal.trained is not None and journal.trained not in entered:
        return f"it has trained {journal.trained}, which is not in promotions"
    scored = journal.champion_version
    if "signals" in journal.seconds and scored is not None:
        stored = read_signals(lake, config_name, through=journal.session, version=scored)
        if stored.filter(pl.col("session") == journal.session).is_empty():
            return f"it has scored {scored}, of which signals has no row"
    return None
