"""Lakes whose commits look as if they had been made days ago."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.lake.lake import Lake

DAY_MS = 86_400_000


def sources(name: str) -> pl.DataFrame:
    return pl.DataFrame({"source": ["s"], "notes": [name], "hazards": ["[]"]})


def aged(lake: Lake, table: str, days: Sequence[float]) -> None:
    """Rewrite a log as if its entries, including removals, had been made the given number of days ago."""
    now = time.time() * 1000
    for version, age in enumerate(days):
        path = Path(lake.root) / table / "_delta_log" / f"{version:020}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(now - age * DAY_MS)
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = int(now - age * DAY_MS)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
