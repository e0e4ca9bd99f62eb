"""The files of nights: ``<output>/nights/<config>/<session>/``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from pipelines.config.schema import Config


def nights_folder(config: Config) -> Path:
    """Folder of all nights of a config."""
    return Path(config.output) / "nights" / config.name


def night_folder(config: Config, session: dt.date) -> Path:
    """Folder of one night's files."""
    return nights_folder(config) / session.isoformat()
