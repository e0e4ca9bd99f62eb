"""Three nights on the prices of a file, played once; every test starts from a copy of what they left."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from command import Answer, Call

from pipelines.lake.lake import Lake

FIRST = 150
"""Place of the first night's session in `days`."""
PLAYED = 3
TICKERS = tuple(f"F{n:02d}" for n in range(16))


def days() -> list[dt.date]:
    """Sessions of the market: weekdays."""
    first = dt.date(2023, 1, 2)
    dates = (first + dt.timedelta(days=n) for n in range(230))
    return [day for day in dates if day.weekday() < 5]


def prices(through: dt.date) -> pl.DataFrame:
    """Random walks of sixteen firms up to a session."""
    sessions = days()
    rng = np.random.default_rng(5)
    close_TN = 20 * np.exp(np.cumsum(rng.normal(scale=0.02, size=(len(sessions), len(TICKERS))), axis=0))
    frame = pl.DataFrame(
        {
            "date": [day for day in sessions for _ in TICKERS],
            "ticker": TICKERS * len(sessions),
            "close": close_TN.round(4).ravel(),
            "volume": rng.integers(1000, 9000, size=close_TN.size),
        },
        schema_overrides={"date": pl.Date},
    )
    return frame.filter(pl.col("date") <= through)


def settings(tiny: Mapping[str, Any]) -> dict[str, Any]:
    """A night of seconds: ridge on three characteristics, no audit."""
    return {
        **tiny,
        "name": "desk",
        "source": {"kind": "files", "prices": "prices.csv"},
        "universe": {"min_history": 30},
        "features": {
            "window": 5,
            "channels": ["return"],
            "characteristics": ["return_1", "return_5", "volatility_21"],
        },
        "label": {"horizon": 1, "delay": 1},
        "folds": {"scheme": "rolling", "train": 80, "valid": 20, "test": 20, "embargo": 1},
        "models": {"ridge": {}},
        "audit": {"enabled": False},
        "nightly": {"attributed": 0, "retrain": {"when": "never"}, "checks": {"retry_minutes": 0}},
    }


@dataclass(frozen=True)
class Nights:
    """A folder in which three nights were played, the command line, and the sessions."""

    folder: Path
    peerglass: Call
    played: tuple[dt.date, ...]
    next: dt.date

    def night(self, *more: str) -> Answer:
        """Play the next night, whose prices are delivered."""
        self.deliver(self.next)
        return self.peerglass("nightly", "desk.yaml", *more)

    def deliver(self, through: dt.date) -> None:
        """Write the file of the prices."""
        prices(through).write_csv(self.folder / "prices.csv")

    @property
    def lake(self) -> Lake:
        return Lake(self.folder / "lake")

    def rows(self, table: str) -> pl.DataFrame:
        return self.lake.read(table)

    def remove(self, *tables: str) -> None:
        for table in tables:
            shutil.rmtree(self.folder / "lake" / table)

    def roll_back(self, table: str, sessions: int) -> None:
        """Take the newest sessions out of a table, as a restore at an earlier version does."""
        rows = self.rows(table)
        kept = rows["session"].unique().sort().to_list()[:-sessions]
        self.lake.upsert(table, rows.filter(pl.col("session").is_in(kept)), scope=pl.lit(value=True))

    def states(self) -> dict[dt.date, str]:
        return dict(self.rows("nights").sort("session").select("session", "state").iter_rows())


def play(folder: Path, tiny: Mapping[str, Any], peerglass: Call) -> Nights:
    """Play the nights in an empty folder, which is the current one."""
    sessions = tuple(days()[FIRST : FIRST + PLAYED + 1])
    nights = Nights(folder, peerglass, sessions[:-1], sessions[-1])
    # outside the folder, because MLflow keeps a store open that a test replaces
    tracking = {"uri": f"sqlite:///{folder.parent}/mlflow.db", "artifacts": str(folder.parent / "artifacts")}
    text = yaml.safe_dump({**settings(tiny), "tracking": tracking}, sort_keys=False)
    (folder / "desk.yaml").write_text(text)
    for day in nights.played:
        nights.deliver(day)
        answer = peerglass("nightly", "desk.yaml")
        assert answer.code == 0, answer.err
    return nights
