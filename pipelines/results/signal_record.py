"""The folder of measured signals, ``<output>/<file's name>-<digest>/``: a record, the config, evaluations.

The digest covers what the evaluations are of: the values of the signals, the tables of the lake with their
versions, the universe and the label. Books, costs and delays make another evaluation in the same folder.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from pipelines.config.load import digest, load_config, to_yaml
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.files import damaged, write_text
from pipelines.run.fingerprint import installed
from pipelines.run.record import LATEST, list_records

RECORD: Final = "signals.json"
"""Name of the record in the folder."""

_LIBRARIES: Final = ("numba", "numpy", "polars", "scipy")
_NAME = re.compile(r"[^a-z0-9_]+")


class SignalRecord(BaseModel):
    """What was measured, and on which data.

    ``signals`` gives the digest of each signal's values, ``tables`` version and rows. ``notes`` name columns
    that were not measured and settings that were added. Commit and libraries are those of the first
    measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    file: str
    signals: dict[str, str]
    rows: int
    notes: tuple[str, ...]
    lake: str
    tables: dict[str, tuple[int, int]]
    hazards: tuple[str, ...]
    firms: float
    commit: str
    libraries: dict[str, str]
    made_at: dt.datetime


@dataclass(frozen=True, slots=True)
class MeasuredSignals:
    """The signals of a file, measured on one version of the data, with the config of the last measurement."""

    run_id: str
    config: Config
    folder: Path
    record: SignalRecord

    def save(self) -> None:
        """Write the record and the config; the record of an earlier measurement is kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "config.yaml", to_yaml(self.config))
        if not (self.folder / RECORD).is_file():
            write_text(self.folder / RECORD, self.record.model_dump_json(indent=1))

    def write_report(self, text: str) -> Path:
        """Write ``report.html`` atomically and return its path."""
        return write_text(self.folder / "report.html", text)


def signals_id(path: Path, contents: Mapping[str, str], config: Config, tables: Mapping[str, object]) -> str:
    """Name of the folder: the file's name, and a digest of signals, data, universe and label."""
    measured = config.model_dump(mode="json", include={"universe", "label", "features"})
    label = {key: value for key, value in measured["label"].items() if key != "extra_delays"}
    parts = {
        "signals": contents,
        "tables": {name: str(table) for name, table in tables.items()},
        "universe": measured["universe"],
        "label": label,
        "earn_nothing": sorted(config.quality.earn_nothing),
        "group_by": measured["features"]["group_by"],
    }
    name = _NAME.sub("-", path.stem.lower()).strip("-_")[:40].rstrip("-_")
    return f"{name if name[:1].isalpha() else f'signals-{name}'.rstrip('-')}-{digest(parts)}"


def library_versions() -> dict[str, str]:
    """Versions of the libraries that measure signals."""
    return {name: installed(name) for name in _LIBRARIES}


def find_signals(name: str, output: Path) -> MeasuredSignals | None:
    """Find measured signals by id, by a unique prefix of the id, or by folder; None if there are none.

    ``latest`` is the run that was started last, and never the signals of a file of that name.
    """
    if (Path(name) / RECORD).is_file():
        return _open(Path(name))
    if name == LATEST or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        return None
    folders = sorted(path.parent for path in output.glob(f"{name}*/{RECORD}"))
    exact = [folder for folder in folders if folder.name == name]
    if folders and not exact:
        folders += [folder for folder, _ in list_records(output) if folder.name.startswith(name)]
    if len(exact or folders) > 1:
        listed = ", ".join(folder.name for folder in folders)
        raise ConfigError(
            f"More than one run or measured file begins with {name!r} under {output}: {listed}; give one of "
            "them."
        )
    return _open((exact or folders)[0]) if folders else None


def _open(folder: Path) -> MeasuredSignals:
    with damaged(f"The record {folder / RECORD}", "delete the folder and measure the file again"):
        record = SignalRecord.model_validate_json((folder / RECORD).read_text(encoding="utf-8"))
    return MeasuredSignals(record.run_id, load_config(folder / "config.yaml", models=False), folder, record)
