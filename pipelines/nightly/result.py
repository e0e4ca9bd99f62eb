"""What a night finds, the model versions that it uses, its outcome, and the folder of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.config.schema import Config


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check
        Name of the check, such as ``coverage``. A warning is new if the last night had none of this name and
        subject.
    level
        ``ok``, ``warn`` or ``fail``. A failure ends the night.
    sentence
        What was seen, with its number and limit, and the cure if there is one.
    subject
        What it is about, such as a feature or a table; None for the whole night.
    value, limit
        The number that was checked and its limit; None if the check has no number.
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


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One model of one run that was trained for use.

    Attributes
    ----------
    run_id
        Run that trained it.
    model
        Entry of the config's ``models``.
    """

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
    """The outcome of one night.

    Attributes
    ----------
    config
        Name of the config.
    session
        The session at whose close the signals were decided.
    state
        ``done``, ``warned`` or ``failed``, as in the table ``nights``.
    folder
        Folder of the night's files.
    champion, challenger
        Versions that were scored; None if there was none.
    signals
        Rows of the table ``signals`` for this session, all versions.
    book
        Rows of the table ``books`` for this session.
    findings
        Of the data checks, the book and the monitoring.
    tables
        Tables of the monitoring by name, and ``attributions``.
    nights
        The table ``nights`` of this config up to this session, newest first, without this night.
    promotions
        The table ``promotions`` of this config, newest first.
    error
        Sentence of the error that ended the night; None if there was none.
    seconds
        Step -> wall-clock seconds.
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
