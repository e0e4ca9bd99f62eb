"""Verify a sealed record with the standard library alone: ``python verify_record.py FOLDER``.

FOLDER holds ``record.jsonl`` and a folder for each night or registration. Every line has the SHA-256 of its
files, the hash of the line before, and its own. A record written anew is consistent: keep a copy of its hash.
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
    text = (folder / RECORD).read_text("utf-8") if (folder / RECORD).is_file() else ""
    return [dict(json.loads(line)) for line in text.splitlines()]


def problems(folder: Path) -> Iterator[str]:
    """Name everything that differs from what was sealed; nothing if the record is whole."""
    entries = read_record(folder)
    before: dict[str, Any] = {"number": 0, "session": "", "sealed_at": "", "hash": FIRST}
    sealed = {entry["session"]: entry for entry in entries}
    for entry in entries:
        session, last = entry["session"], before["number"]
        if entry_hash(entry) != entry["hash"]:
            yield f"The entry of {session} was changed after it was sealed."
        if entry["number"] != last + 1 or entry["previous"] != before["hash"]:
            yield f"The entry of {session} does not follow entry {last}: one was changed or removed."
        if session < before["session"] or entry["sealed_at"][: len(session)] < session:
            yield f"The entry of {session} is out of order, or was sealed before its session."
        if entry["sealed_at"] < before["sealed_at"]:
            yield f"The clock was set back before {session} was sealed."
        if sealed[session] is entry:  # the newest entry counts
            for name, digest in entry["files"].items():
                path = folder / session / name
                if not path.is_file():
                    yield f"{name} of {session} is missing."
                elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                    yield f"{name} of {session} was changed after it was sealed."
        before = entry
    for path in sorted(folder.glob(f"*/{SEAL}")):
        if sealed.get(path.parent.name) != json.loads(path.read_text("utf-8")):
            yield f"The seal of {path.parent.name} is not its entry in the record."


if __name__ == "__main__":
    said = "\n".join(problems(Path(sys.argv[1])))
    print(said or "The record is whole.")
    sys.exit(4 if said else 0)
