"""A small market in which firms split, pay, end, are renamed and lost, and its nights."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from nights import store_nights

from pipelines.config.schema import Config
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.book.holdings import read_recorded
from pipelines.nightly.book.next_book import NextBook, next_book
from pipelines.nightly.data import night_data
from pipelines.nightly.result import ModelVersion, read_nights
from pipelines.progress import Progress

SPAN = pl.date_range(dt.date(2021, 4, 1), dt.date(2021, 6, 18), eager=True).to_list()
HOLIDAY = dt.date(2021, 5, 31)
DAYS = [day for day in SPAN if day.weekday() < 5 and day != HOLIDAY]
FIRMS = [f"F{n:02}" for n in range(12)]
FIRST = dt.date(2021, 5, 14)
SPLIT_ON, DIVIDEND_ON = dt.date(2021, 5, 18), dt.date(2021, 5, 20)
DELISTED_ON, RETURN = dt.date(2021, 5, 26), -0.4
RENAMED_ON, TOLD_ON = (
    dt.date(2021, 6, 3),
    dt.date(2021, 6, 8),
)  # the user records the rename three nights late
LOST_ON = dt.date(2021, 6, 10)
SPLIT, PAYER, DELISTED, RENAMED, LOST = *FIRMS[:4], FIRMS[10]
LIKED = [RENAMED, "NEW", LOST]  # so that they are held when something happens to them
MODEL = ModelVersion("run", "model")


@dataclass
class World:
    """Prices as they are, and what the vendor delivers of them."""

    close: dict[str, dict[dt.date, float]] = field(default_factory=dict)
    troubled: bool = True  # a firm gets another ticker, and another one is not delivered any more

    def __post_init__(self) -> None:
        rng = np.random.default_rng(8)
        for n, firm in enumerate(FIRMS):
            path = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, len(DAYS))))
            self.close[firm] = dict(zip(DAYS, (path * (1 + 0.1 * n)).tolist(), strict=True))
        self.close[SPLIT] |= {day: c / 2 for day, c in self.close[SPLIT].items() if day >= SPLIT_ON}

    def name(self, firm: str, session: dt.date) -> str:
        return "NEW" if self.troubled and firm == RENAMED and session >= RENAMED_ON else firm

    def priced(self, firm: str, session: dt.date) -> bool:
        ends = {DELISTED: DELISTED_ON, **({LOST: LOST_ON} if self.troubled else {})}
        return session < ends.get(firm, dt.date.max)

    def quote(self, ticker: str, session: dt.date) -> float | None:
        """Close under a ticker; None if the vendor has none."""
        firm = RENAMED if ticker == "NEW" else ticker
        named = ticker == self.name(firm, session) and self.priced(firm, session)
        return self.close[firm][session] if named else None

    def open(self, firm: str, session: dt.date) -> float:
        """Price at the open, up to 2% from the close."""
        return self.close[firm][session] * (1.0 + 0.02 * math.sin(17.0 * session.day + FIRMS.index(firm)))

    def deliver(self, lake: Lake, session: dt.date) -> None:
        """Deliver the whole history; the vendor gives a renamed firm's history its new ticker at once."""
        rows = [
            {
                "date": day,
                "ticker": self.name(firm, session),
                "open": self.open(firm, day),
                "close": close,
                "volume": 1e6,
                "split_ratio": 2.0 if (firm, day) == (SPLIT, SPLIT_ON) else 1.0,
                "dividend": 1.5 if (firm, day) == (PAYER, DIVIDEND_ON) else 0.0,
            }
            for firm, closes in self.close.items()
            for day, close in closes.items()
            if day <= session
            and self.priced(firm, day)
            and not (self.troubled and firm == LOST and session >= LOST_ON)
        ]
        store(lake, "prices", [row | {"source": "files"} for row in rows])
        listed = {"ticker": DELISTED, "valid_from": DAYS[0]}
        if session >= DELISTED_ON:
            listed |= {"delisted_on": DELISTED_ON, "delisting_return": RETURN}
        store(lake, "securities", [listed])
        if self.troubled and session >= TOLD_ON:
            store(lake, "renames", [{"ticker": RENAMED, "from_date": RENAMED_ON, "new_ticker": "NEW"}])


def store(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    columns = schema(table).columns()
    stamp = dict.fromkeys({"ingested_at"} & set(columns), dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    frame = pl.DataFrame(
        [dict.fromkeys(columns) | stamp | row for row in rows],
        schema={name: column.dtype for name, column in columns.items()},
    )
    lake.upsert(table, frame, scope=pl.lit(value=True))


def play(lake: Lake, config: Config, session: dt.date, signals: pl.DataFrame) -> NextBook:
    """Decide the book of a night, and record the night."""
    data = night_data(config, lake, session, Progress())
    nights = read_nights(lake, config.name)
    recorded = read_recorded(lake, config.name, nights, session, data.renames)
    made = next_book(config, data, signals, recorded)
    for table in ("accounts", "books", "holdings", "positions", "profits"):
        lake.upsert(table, made.tables[table])
    store_nights(lake, config, {session: MODEL})
    return made
