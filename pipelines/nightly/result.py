"""What a night finds, the model versions that it uses, its outcome, and the folder of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.config.schema import Config


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; a warning is new if the last night had none of this check and subject.

    A failure ends the night. ``subject`` is a feature or table; None means the whole night. ``value`` and
    ``limit`` are None if the check has no number.
    """

    check: str
    level: Literal["ok", "warn", "fail"]
    sentence: str
    subject: str | None = None
    value: float | None = None
    limit: float | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Check and subject: two findings with the same key are about the same thing."""
        return (self.check, self.subject)


def judged(
    check: str,
    base: str,
    otherwise: str,
    *,
    fine: bool,
    value: float | None = None,
    limit: float | None = None,
    subject: str | None = None,
) -> Finding:
    """Say what was seen, and if it is not fine, ``otherwise``: the limit and the cure, as a warning."""
    sentence = f"{base}." if fine else f"{base}{otherwise}"
    return Finding(check, "ok" if fine else "warn", sentence, subject, value, limit)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Name the first ones, and say how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One model of one run that was trained for use."""

    run_id: str
    model: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``RUN/MODEL``; ValueError if the text is not of that form."""
        run_id, slash, model = text.partition("/")
        if not (run_id and slash and model):
            raise ValueError(f"{text!r} is not the name of a model version; it must be RUN/MODEL")
        return cls(run_id, model)


class Retraining(BaseModel):
    """The decision to train a version: why, and the alias that it gets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why: str
    alias: Literal["champion", "challenger"]


@dataclass(frozen=True, slots=True, eq=False)
class NightResult:
    """The outcome of one night, its rows of the lake's tables, and what was found.

    ``state`` is ``done``, ``warned`` or ``failed``. ``signals`` are of all versions; ``tables`` are those of
    the monitoring, ``limits`` and ``attributions``; ``nights`` are the earlier nights and ``promotions`` the
    aliases of the config, newest first.
    """

    config: str
    session: dt.date
    state: str
    folder: Path
    champion: ModelVersion | None
    challenger: ModelVersion | None
    signals: pl.DataFrame
    book: pl.DataFrame
    findings: tuple[Finding, ...]
    tables: Mapping[str, pl.DataFrame]
    nights: pl.DataFrame
    promotions: pl.DataFrame
    error: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def signal_count(self) -> int:
        """Number of the champion's signals."""
        if self.champion is None or self.signals.is_empty():
            return 0
        of_champion = pl.col("version") == str(self.champion)
        return self.signals.filter(of_champion & pl.col("signal").is_not_null()).height

    @property
    def trade_count(self) -> int:
        """Number of firms that the book trades."""
        return self.book.filter(pl.col("trade") != 0.0).height

    @property
    def turnover(self) -> float:
        """Half the sum of the absolute trades over NAV; 0 without a book."""
        return 0.5 * float(self.book["trade"].abs().sum())

    @property
    def expected_cost(self) -> float:
        """Expected cost of the orders over NAV; 0 without a book."""
        return float(self.book["expected_cost"].sum())


def nights_folder(config: Config) -> Path:
    """Folder of all nights of a config."""
    return Path(config.output) / "nights" / config.name


def night_folder(config: Config, session: dt.date) -> Path:
    """Folder of one night's files."""
    return nights_folder(config) / session.isoformat()
