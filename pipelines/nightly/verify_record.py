"""Verify a sealed record of nights with the standard library alone: ``python verify_record.py FOLDER``.

This file may be copied anywhere. FOLDER holds ``record.jsonl`` and a folder for each night. Every line is a
night: the SHA-256 of its files, the hash of the line before, and the hash of its own canonical JSON. A record
that was written anew from one night on is consistent: compare its last hash with a copy kept elsewhere.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORD, SEAL, FIRST = "record.jsonl", "seal.json", "0" * 64


def entry_hash(entry: dict[str, Any]) -> str:
    """SHA-256 of an entry's canonical JSON without its own hash."""
    body = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_record(folder: Path) -> list[dict[str, Any]]:
    """Read the entries, oldest first; a ValueError if a line is no JSON object."""
    path = folder / RECORD
    return [dict(json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def problems(folder: Path) -> Iterator[str]:
    """Name everything that differs from what was sealed; nothing if the record is whole."""
    entries, before = read_record(folder), {"number": 0, "session": "", "sealed_at": "", "hash": FIRST}
    sealed = {entry["session"]: entry for entry in entries}
    for entry in entries:
        session, number, last = entry["session"], entry["number"], before["number"]
        if entry_hash(entry) != entry["hash"]:
            yield f"The entry of the night of {session} was changed after it was sealed."
        if number != last + 1 or entry["previous"] != before["hash"]:
            yield f"Entry {number} ({session}) does not follow entry {last}: one was changed or removed."
        if session < before["session"] or entry["sealed_at"][:10] < session:
            yield f"The night of {session} is out of order, or was sealed before its session."
        if entry["sealed_at"] < before["sealed_at"]:
            yield f"The clock was set back before the night of {session} was sealed."
        if sealed[session] is entry:  # the newest entry of a night that was decided anew
            for name, digest in entry["files"].items():
                path = folder / session / name
                if not path.is_file():
                    yield f"{name} of the night of {session} is missing."
                elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                    yield f"{name} of the night of {session} was changed after it was sealed."
        before = entry
    for path in sorted(folder.glob(f"*/{SEAL}")):
        if sealed.get(path.parent.name) != json.loads(path.read_text("utf-8")):
            yield f"The seal of the night of {path.parent.name} is not its entry in the record."


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "The record is whole.")
    sys.exit(4 if found else 0)
