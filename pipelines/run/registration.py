"""Registrations: configs and their test sessions, sealed in a chain before the test is opened.

The folder ``registered`` of an output folder holds a chain as that of the nights (`pipelines.run.chain`). An
entry names a run, which the config would make on the data of that day, and the SHA-256 of ``settings.json``:
the run's identity, what its returns depend on, and the test sessions of every fold. It also says what had
opened the test by then. A run whose settings, code or data differ from those registered has another id.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.files import read_json, write_text
from pipelines.format import abbreviate
from pipelines.run.chain import append_entry, read_entries
from pipelines.run.evaluations import return_settings
from pipelines.run.identity import Identity, setting_changes
from pipelines.run.provenance import TrainingStarted, read_provenance
from pipelines.run.record import MOST_LISTED, RecordedRun
from pipelines.run.verify_record import RECORD, problems

FOLDER: Final = "registered"  # in an output folder
_SETTINGS: Final = "settings.json"


@dataclass(frozen=True, slots=True)
class Registration:
    """Whether a run was registered before its test was opened."""

    state: Literal["before", "after", "changed", "unproved", "no"]
    sentence: str
    registered_at: str | None = None  # UTC; of the entry that the sentence speaks of
    hash: str | None = None  # of the same entry


def seal_registration(
    run: RecordedRun, tested: Mapping[int, Sequence[dt.date]], trials: int, *, trained: bool, now: dt.datetime
) -> dict[str, Any]:
    """Append the entry of a run to the registrations of its output folder, and return it.

    What is registered already gets no other entry: its first one is returned. The run is what the config
    makes on the data of its lake, and need not be recorded; ``trained`` is whether it has forecast its test.
    ``tested`` has the test sessions of each fold, and ``trials`` is the number of trials on the run's market
    that were measured on sessions of the test. DataError if the registrations do not verify.
    """
    folder = run.folder.parent / FOLDER
    if broken := _broken(folder):
        raise DataError(
            f"The registrations in {folder} do not verify ({broken}); restore the folder from a backup, or "
            "move it away to begin another record."
        )
    settings = {
        "identity": run.identity.record(),
        "returns": _returns(run.config),
        "test": {str(fold): [day.isoformat() for day in days] for fold, days in tested.items()},
    }
    text = json.dumps(settings, indent=1, sort_keys=True)
    own = {"run": run.run_id, "files": {_SETTINGS: hashlib.sha256(text.encode()).hexdigest()}}
    for entry in read_entries(folder):
        if {key: entry[key] for key in own} == own:
            return entry
    session = f"{now.astimezone(dt.UTC):%Y-%m-%dT%H-%M-%S-%f}"
    write_text(folder / session / _SETTINGS, text)
    return append_entry(folder, session, now, {**own, "opened": {"trained": trained, "trials": trials}})


def opened_before(entry: Mapping[str, Any]) -> str:
    """Say what had opened the test when an entry was sealed; empty if nothing had."""
    trained, trials = entry["opened"]["trained"], entry["opened"]["trials"]
    said = ["the run had forecast it"] if trained else []
    if trials:
        said.append(f"{trials:,} trial{' was' if trials == 1 else 's were'} measured on its sessions")
    return " and ".join(said)


def registration_of(run: RecordedRun) -> Registration:
    """Look a run up among the registrations, and compare what was registered with its config.

    The state is ``before`` if the run was registered as it is before its test was opened, ``after`` if the
    test had been opened by then, ``changed`` if something else was registered, ``unproved`` if the
    registrations do not verify, and ``no`` if there is none.
    """
    folder = run.folder.parent / FOLDER
    if broken := _broken(folder):
        return Registration("unproved", f"Not proved, because the registrations do not verify: {broken}")
    named = [one for one in read_entries(folder) if one["run"].rpartition("-")[0] == run.config.name]
    if not named:
        return Registration("no", "Not registered.")
    own = [one for one in named if one["run"] == run.run_id] or named[-1:]
    changes = {one["hash"]: _changes(run, read_json(folder / one["session"] / _SETTINGS)) for one in own}
    entry = next((one for one in own if not changes[one["hash"]]), own[-1])
    at, found = entry["sealed_at"], (entry["sealed_at"], entry["hash"])
    day = f"{at[:10]} {at[11:16]} UTC"
    if differs := abbreviate(changes[entry["hash"]], MOST_LISTED):
        sentence = f"Not registered as it is: {entry['run']}, registered on {day}, differs in: {differs}."
        return Registration("changed", sentence, *found)
    trained = [one.at for one in read_provenance(run) if isinstance(one, TrainingStarted)]
    opened = opened_before(entry)
    if not opened and trained and min(trained) <= dt.datetime.fromisoformat(at):
        opened = "the run was trained"
    if opened:
        return Registration("after", f"Registered on {day}, after the test was opened: {opened}.", *found)
    return Registration("before", f"Registered on {day}, before the test was opened.", *found)


def registered_runs(output: Path) -> dict[str, str]:
    """Run -> when it was registered in an output folder, and whether its test had been opened by then."""
    folder, found = output / FOLDER, dict[str, str]()
    if not _broken(folder):
        for one in read_entries(folder):
            late = opened_before(one)
            when = f"after the test was opened: {late}" if late else "before the test was opened"
            found.setdefault(one["run"], f"registered on {one['sealed_at'][:10]}, {when}")
    return found


def _broken(folder: Path) -> str:
    """The first thing that differs from what was sealed, in words; empty if the chain is whole."""
    try:
        return next(problems(folder), "")
    except (ValueError, LookupError, TypeError):
        return f"{folder / RECORD} cannot be read."


def _changes(run: RecordedRun, settings: Mapping[str, Any]) -> list[str]:
    """How a run differs from what was registered: in what it forecasts, and in what its returns depend on."""
    try:
        forecasts = run.identity.differences(Identity.from_record(settings["identity"]))
    except (KeyError, TypeError):  # a version of Peerglass that identified runs by something else
        forecasts = ["what identifies a run"]
    return [*forecasts, *setting_changes(settings["returns"], _returns(run.config), "backtest.")]


def _returns(config: Config) -> dict[str, Any]:
    """Books, costs and delays of a config as plain JSON values."""
    found: dict[str, Any] = json.loads(json.dumps(return_settings(config.backtest)))
    return found | {"delays": list(config.label.delays)}
