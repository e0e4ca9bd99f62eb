"""Model versions: their aliases `champion` and `challenger`, their names, and what their runs say of them."""

import datetime as dt
import getpass
import json
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.result import ModelVersion
from pipelines.run.locks import Locks
from pipelines.run.record import RecordedRun, open_run

Alias = Literal["champion", "challenger"]
_TABLE: Final = "promotions"
_DEMOTED: Final = "demoted"  # key of the evidence of a demotion: the version that lost the alias


class AliasChangedError(DataError):
    """An alias names another version than the one on which a change was decided."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an alias is changed, by whom (``user@host`` or ``nightly``), and on which numbers."""

    why: str
    by: str
    session: dt.date | None = None
    forced: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


def alias_history(lake: Lake, config_name: str) -> pl.DataFrame:
    """Return the rows of the table ``promotions`` of a config, newest first; empty if there are none."""
    rows = lake.rows(_TABLE, filters=pl.col("config") == config_name)
    return rows.sort("number", descending=True)


def named(history: pl.DataFrame, alias: Alias) -> ModelVersion | None:
    """Return the version that an alias names after its history, newest first; None if there is none."""
    versions = history.filter(pl.col("alias") == alias)["version"].head(1).drop_nulls()
    return ModelVersion.parse(versions[0]) if len(versions) else None


def champion(lake: Lake, config_name: str) -> ModelVersion | None:
    """Return the version that the alias ``champion`` names; None if there is none."""
    return named(alias_history(lake, config_name), "champion")


def aliases(lake: Lake, config_name: str) -> dict[Alias, ModelVersion | None]:
    """Return the version of each alias; None where there is none."""
    history = alias_history(lake, config_name)
    return {alias: named(history, alias) for alias in get_args(Alias)}


def previous_champion(lake: Lake, config_name: str) -> ModelVersion | None:
    """Return the champion to which a demotion goes back (a stack of promotions); None without another."""
    stack: list[str] = []
    for row in alias_history(lake, config_name).filter(pl.col("alias") == "champion").reverse().to_dicts():
        if _DEMOTED in json.loads(row["evidence"]):
            stack.pop()
        elif row["version"] is not None:
            stack.append(row["version"])
    return ModelVersion.parse(stack[-2]) if len(stack) > 1 else None


def set_alias(
    lake: Lake,
    config_name: str,
    alias: Alias,
    version: ModelVersion | None,
    reason: Reason,
    *,
    decided_on: Mapping[Alias, ModelVersion | None] = MappingProxyType({}),
) -> bool:
    """Let an alias name a version, or remove it (None); False if it is so already.

    ``decided_on`` are the aliases on which that was decided: `AliasChangedError` if one has changed since.
    """
    if not reason.why.strip():
        raise ValueError("an alias is changed for a reason; why is empty")
    with Locks(wait=True, notify=lambda _: None) as locks:
        locks.lock_in_lake(lake.root, ".promotions", "The registry in the lake")
        known = alias_history(lake, config_name)
        if named(known, alias) == version:
            return False
        for other, judged in decided_on.items():
            if (now := named(known, other)) != judged:
                raise AliasChangedError(
                    f"The {other} of {config_name} is {now or 'nobody'} by now, and was "
                    f"{judged or 'nobody'}; repeat the command."
                )
        if alias == "challenger" and version is not None and named(known, "champion") == version:
            raise ValueError(f"{version} is the champion and cannot be its own challenger")
        changes: list[tuple[Alias, ModelVersion | None, str]] = [(alias, version, reason.why)]
        if alias == "champion" and version is not None and named(known, "challenger") == version:
            changes.append(("challenger", None, "became the champion"))
        rows = [
            {
                "config": config_name,
                "number": known.height + place,
                "alias": changed,
                "version": None if to is None else str(to),
                "session": reason.session,
                "by": reason.by,
                "why": why,
                "forced": reason.forced,
                "evidence": json.dumps(dict(reason.evidence), sort_keys=True, allow_nan=False),
                "created_at": dt.datetime.now(dt.UTC),
            }
            for place, (changed, to, why) in enumerate(changes, start=1)
        ]
        lake.upsert(_TABLE, pl.DataFrame(rows, schema=known.schema))
    return True


def enter_version(
    lake: Lake, config_name: str, version: ModelVersion, by: str, session: dt.date, *, why: str
) -> bool:
    """Give a newly trained version its first alias: the first becomes champion, a later one challenger."""
    known = alias_history(lake, config_name)
    if str(version) in known["version"].to_list():
        return False
    alias: Alias = "champion" if named(known, "champion") is None else "challenger"
    return set_alias(lake, config_name, alias, version, Reason(why, by, session))


def demotion(version: ModelVersion, why: str, by: str) -> Reason:
    """Return the reason of a demotion of the champion ``version``, which `previous_champion` recognises."""
    return Reason(why, by, evidence={_DEMOTED: str(version)})


def this_user() -> str:
    """Return ``user@host`` of this process, as the table ``promotions`` records it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def find_version(name: str, config: Config | None, output: Path) -> tuple[ModelVersion, RecordedRun]:
    """Find the model version that a command names: an alias of a config, ``RUN/MODEL``, or MLflow's name."""
    registered, _, number = name.removeprefix("models:/").partition("/")
    in_registry = "." in registered and number.isdigit()  # run ids have no dot
    if name in get_args(Alias) or in_registry:
        if config is None:
            raise ConfigError(f"{name!r} is a name within a config; add --config CONFIG.")
        if in_registry:
            from pipelines.tracking.store import find_registered

            version = ModelVersion(*find_registered(config, registered, int(number)))
        else:
            lake = open_lake(config)
            found = named(
                alias_history(lake, config.name), "champion" if name == "champion" else "challenger"
            )
            if found is None:
                raise ConfigError(f"The config {config.name!r} has no {name} in the lake {lake.root}.")
            version = found
        run = open_version(version, output)
    else:
        is_folder = (Path(name) / "run.json").is_file()
        run_name, _, model = (name, "", "") if is_folder else name.partition("/")
        run = open_run(run_name, output)
        models = list(run.config.models)
        if not model and len(models) > 1:
            raise ConfigError(f"Run {run.run_id} has several models; name one: {run.run_id}/{models[0]}.")
        version = ModelVersion(run.run_id, model or models[0])
        _require_usable(version, run)
    if config is not None and run.config.name != config.name:
        raise ConfigError(
            f"{version} is a version of the config {run.config.name!r}, not of {config.name!r}; name a "
            "version of the same config."
        )
    return version, run


def open_version(version: ModelVersion, output: Path) -> RecordedRun:
    """Open the run of a version."""
    run = open_run(str(folder_of(version, output)))
    _require_usable(version, run)
    return run


def folder_of(version: ModelVersion, output: Path) -> Path:
    """Return the folder of the run of a version; DataError if it is gone."""
    folder = output / version.run_id
    if not (folder / "run.json").is_file():
        raise DataError(
            f"The run of {version} is not under {output.absolute()}; restore its folder from a backup, look "
            "elsewhere (the config's 'output', --output FOLDER), or go back to the champion before it with "
            "'peerglass demote CONFIG --why TEXT'."
        )
    return folder


def _require_usable(version: ModelVersion, run: RecordedRun) -> None:
    if version.model not in run.config.models:
        known = ", ".join(run.config.models)
        raise ConfigError(f"Run {run.run_id} has no model {version.model!r}; it has {known}.")
    if run.config.folds.scheme != "live":
        raise ConfigError(
            f"Run {run.run_id} was trained with folds.scheme {run.config.folds.scheme}, to be tested. "
            "'peerglass nightly CONFIG' trains versions for use, on all data that are known at a session."
        )


def missing_seeds(run: RecordedRun, model: str) -> str | None:
    """Say of which seeds the run's folder has no fitted model; None if it has them all."""
    from pipelines.run.checkpoints import checkpoint_exists  # torch: a night that is done needs none

    seeds = [str(seed) for seed in run.config.seeds if not checkpoint_exists(run.checkpoint(model, 0, seed))]
    return f"no fitted model of seed {', '.join(seeds)}" if seeds else None


def require_complete(version: ModelVersion, run: RecordedRun) -> None:
    """Require a fitted model of every seed; DataError otherwise, because such a version cannot be scored."""
    missing = missing_seeds(run, version.model)
    if missing is not None:
        raise DataError(
            f"{version} is incomplete: {missing}; run 'peerglass train "
            f"{shlex.quote(str(run.folder.absolute()))}', which trains only what is missing."
        )


def failed_checks(run: RecordedRun) -> tuple[str, ...]:
    """Return the names of the checks that failed in a run's last audit."""
    table = run.read_table("audit")
    return () if table is None else tuple(table.filter(pl.col("verdict") == "fail")["check"])
