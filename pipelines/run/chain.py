"""A chain of sealed entries: ``record.jsonl`` in a folder, with a folder of sealed files for each entry.

An entry has the hash of the entry before, so that no earlier one can be changed alone (Haber and Stornetta
1991, "How to time-stamp a digital document"). :mod:`pipelines.run.verify_record` verifies a chain.
"""

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import DataError
from pipelines.files import write_text
from pipelines.run.verify_record import FIRST, RECORD, SEAL, entry_hash, read_record


def read_entries(folder: Path) -> list[dict[str, Any]]:
    """Read the entries of a chain, oldest first; a DataError if the file cannot be read."""
    try:
        return read_record(folder)
    except ValueError as error:
        raise DataError(
            f"{folder / RECORD} cannot be read ({error}); restore it from a backup or from the repository of "
            "nightly.record, because what it has sealed can be proved by nothing else."
        ) from error


def append_entry(folder: Path, session: str, now: dt.datetime, content: Mapping[str, Any]) -> dict[str, Any]:
    """Append an entry and return it; the newest, if it is of the same session and content.

    ``session`` is the entry's name, which begins with a date and is not before those of earlier entries; the
    files that are sealed are in the folder of that name. ``content`` are plain JSON values; its ``files`` map
    names to the SHA-256 of their bytes.
    """
    entries = read_entries(folder)
    last: Mapping[str, Any] = entries[-1] if entries else {"number": 0, "session": "", "hash": FIRST}
    if last["session"] != session or {name: last.get(name) for name in content} != content:
        entry = {
            "number": last["number"] + 1,
            "session": session,
            "sealed_at": now.astimezone(dt.UTC).isoformat(timespec="microseconds"),
            "previous": last["hash"],
            **content,
        }
        entries.append({**entry, "hash": entry_hash(entry)})
        lines = (json.dumps(one, sort_keys=True, separators=(",", ":")) for one in entries)
        write_text(folder / RECORD, "".join(f"{line}\n" for line in lines))
    write_text(folder / session / SEAL, json.dumps(entries[-1], indent=1, sort_keys=True))
    return entries[-1]
