"""The aliases ``champion`` and ``challenger`` of a config, as the lake's table ``promotions`` records them.

The newest row of an alias says which version it names. Rows are only added, so the table is the history of
all changes, and it works without a tracking server. MLflow's aliases are a copy.
"""

from __future__ import annotations

import datetime as dt
import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.version import ModelVersion
from pipelines.run.locks import Locks

Alias = Literal["champion", "challenger"]
_TABLE: Final = "promotions"
_DEMOTED: Final = "demoted"  # key of the evidence of a demotion: the version that lost the alias


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an alias is changed, and by whom.

    Attributes
    ----------
    why
        One sentence.
    by
        ``user@host`` of a person, see `this_user`; ``nightly`` for a night.
    session
        Session of the night that makes the change; None if a person does.
    forced
        Whether the guard's refusal was overridden.
    evidence
        Numbers behind the decision, as JSON values.
    """

    why: str
    by: str
    session: dt.date | None = None
    forced: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


def champion(lake: Lake, config_name: str) -> ModelVersion | None:
    """Return the version that the alias ``champion`` names; None if there is none."""
    return _named(_newest_first(lake, config_name), "champion")


def challenger(lake: Lake, config_name: str) -> ModelVersion | None:
    """Return the version that the alias ``challenger`` names; None if there is none."""
    return _named(_newest_first(lake, config_name), "challenger")


def alias_history(lake: Lake, config_name: str) -> pl.DataFrame:
    """Return the rows of the table ``promotions`` of a config, newest first; empty if there are none."""
    return _newest_first(lake, config_name)


def previous_champion(lake: Lake, config_name: str) -> ModelVersion | None:
    """Return the champion to which a demotion goes back; None if there was no other.

    A promotion puts a version on top of a stack, and a demotion takes the top away. After the champions A, B
    and C, two demotions give B and then A.
    """
    stack: list[str] = []
    for row in alias_history(lake, config_name).filter(pl.col("alias") == "champion").reverse().to_dicts():
        if _DEMOTED in json.loads(row["evidence"]):
            stack.pop()
        elif row["version"] is not None:
            stack.append(row["version"])
    return ModelVersion.parse(stack[-2]) if len(stack) > 1 else None


def set_alias(
    lake: Lake, config_name: str, alias: Alias, version: ModelVersion | None, reason: Reason
) -> bool:
    """Let an alias name a version, or remove it.

    A challenger that becomes the champion is no longer the challenger; both changes are one commit. Processes
    that change aliases of the same lake wait for each other.

    Parameters
    ----------
    lake
        Lake with the table ``promotions``.
    config_name
        Name of the config.
    alias
        The alias.
    version
        The version that it names from now on; None removes the alias.
    reason
        Why, and by whom.

    Returns
    -------
    bool
        Whether anything was written; False if the alias is that version already.

    Raises
    ------
    ValueError
        If the champion is named as its own challenger, or the reason is empty.
    """
    if not reason.why.strip():
        raise ValueError("an alias is changed for a reason; why is empty")
    with Locks(wait=True, notify=lambda _: None) as locks:
        locks.lock_promotions(lake.root)
        known = _newest_first(lake, config_name)
        if _named(known, alias) == version:
            return False
        if alias == "challenger" and version is not None and _named(known, "champion") == version:
            raise ValueError(f"{version} is the champion and cannot be its own challenger")
        changes: list[tuple[Alias, ModelVersion | None, str]] = [(alias, version, reason.why)]
        if alias == "champion" and version is not None and _named(known, "challenger") == version:
            changes.append(("challenger", None, "became the champion"))
        _append(lake, config_name, changes, reason, after=known.height)
    return True


def enter_version(
    lake: Lake, config_name: str, version: ModelVersion, by: str, session: dt.date, *, why: str
) -> bool:
    """Give a newly trained version its first alias: the first becomes champion, a later one challenger.

    Parameters
    ----------
    lake, config_name, version
        As in `set_alias`.
    by, session, why
        Who trained it at which night, and why (`Reason`).

    Returns
    -------
    bool
        Whether anything was written; False if the version had an alias before, also if it has lost it.
    """
    known = alias_history(lake, config_name)
    if str(version) in known["version"].to_list():
        return False
    first = champion(lake, config_name) is None
    alias: Alias = "champion" if first else "challenger"
    return set_alias(lake, config_name, alias, version, Reason(why, by, session))


def demotion(version: ModelVersion, why: str, by: str) -> Reason:
    """Return the reason of a demotion of the champion ``version``, which `previous_champion` recognises."""
    return Reason(why, by, evidence={_DEMOTED: str(version)})


def this_user() -> str:
    """Return ``user@host`` of this process, as the table ``promotions`` records it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _newest_first(lake: Lake, config_name: str) -> pl.DataFrame:
    if not lake.exists(_TABLE):
        return schema(_TABLE).create_empty()
    rows = lake.read(_TABLE, filters=pl.col("config") == config_name)
    return rows.sort("number", descending=True)


def _named(newest_first: pl.DataFrame, alias: Alias) -> ModelVersion | None:
    rows = newest_first.filter(pl.col("alias") == alias)
    version = rows["version"][0] if rows.height else None
    return None if version is None else ModelVersion.parse(version)


def _append(
    lake: Lake,
    config_name: str,
    changes: list[tuple[Alias, ModelVersion | None, str]],
    reason: Reason,
    *,
    after: int,
) -> None:
    """Add one row per change, numbered from ``after + 1``."""
    rows = [
        {
            "config": config_name,
            "number": after + place,
            "alias": alias,
            "version": None if version is None else str(version),
            "session": reason.session,
            "by": reason.by,
            "why": why,
            "forced": reason.forced,
            "evidence": json.dumps(dict(reason.evidence), sort_keys=True, allow_nan=False),
            "created_at": dt.datetime.now(dt.UTC),
        }
        for place, (alias, version, why) in enumerate(changes, start=1)
    ]
    lake.upsert(_TABLE, pl.DataFrame(rows, schema=schema(_TABLE).create_empty().schema))
