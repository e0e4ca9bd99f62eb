"""Everything that a night found, as the page, the alerts and the metrics show it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from pipelines.nightly.finding import Finding
from pipelines.nightly.version import ModelVersion


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
