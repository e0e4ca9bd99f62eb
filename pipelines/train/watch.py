"""Report the progress of tasks in other processes from the learning curves that they write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.progress import Progress

_EVERY_SECONDS = 10.0


@contextmanager
def watch_curves(folder: Path, progress: Progress) -> Iterator[None]:
    """Report the newest epoch of every growing learning curve while the ``with`` block runs."""
    stop = threading.Event()
    lengths = {path: _length(path) for path in folder.glob("*.jsonl")}

    def poll() -> None:
        while not stop.wait(_EVERY_SECONDS):
            for path in sorted(folder.glob("*.jsonl")):
                length = _length(path)
                if length == lengths.get(path):
                    continue
                lengths[path] = length
                record = _newest(path)
                if record is not None:
                    score = record["valid_rank_ic"]
                    progress.note(f"{path.stem}: epoch {record['epoch']}, validation rank IC {score:+.4f}")

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the task is just replacing the file
        return 0


def _newest(path: Path) -> dict[str, float] | None:
    """Last complete line of a learning curve; None if there is none yet."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    if not lines:
        return None
    record: dict[str, float] = json.loads(lines[-1])
    return record
