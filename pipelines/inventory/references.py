"""The runs that nights refer to: models with an alias, and models that have scored a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.lake.lake import Lake
from pipelines.nightly.version import ModelVersion

_SCORED = {"signals": ("version",), "nights": ("version", "challenger")}
"""Table -> columns with the versions that scored a session."""


def referred_runs(lake: Lake) -> Mapping[str, str]:
    """Return the runs that the nights of a lake refer to, each with a reason to keep it.

    These are the runs of champions and challengers, present and past, and of every version that has scored a
    session: signals are never rewritten, and a comparison or an attribution of a past night needs its model.

    Returns
    -------
    Mapping
        Run -> what it is, as the end of a sentence that begins with its id.
    """
    reasons: dict[str, str] = {}
    for run_id, reason in (*_with_alias(lake), *_scored(lake)):
        reasons.setdefault(run_id, reason)
    return reasons


def _with_alias(lake: Lake) -> Iterator[tuple[str, str]]:
    """Return the runs with an alias, present ones first."""
    if not lake.exists("promotions"):
        return
    rows = lake.read("promotions", columns=["config", "number", "alias", "version"]).sort("number")
    newest = rows.group_by("config", "alias", maintain_order=True).last()
    for is_now, changes in ((True, newest), (False, rows)):
        for config, alias, version in changes.select("config", "alias", "version").iter_rows():
            if version is not None:
                yield (
                    ModelVersion.parse(version).run_id,
                    f"{'is' if is_now else 'was'} the {alias} of {config}",
                )


def _scored(lake: Lake) -> Iterator[tuple[str, str]]:
    found = [
        lake.read(table, columns=["config", "session", column], ordered=False)
        .rename({column: "version"}, strict=False)
        .drop_nulls("version")
        .unique()
        for table, columns in _SCORED.items()
        if lake.exists(table)
        for column in columns
    ]
    if not found:
        return
    nights = pl.concat(found, how="diagonal").unique()
    last = (
        nights.group_by("config", "version").agg(pl.len(), pl.col("session").max()).sort("config", "version")
    )
    for config, version, count, session in last.iter_rows():
        scored = f"scored {count} night{'' if count == 1 else 's'} of {config}, the last one {session}"
        yield ModelVersion.parse(version).run_id, scored
