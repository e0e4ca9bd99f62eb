"""Rewritten history: tables of the lake that differ from those of the last night up to its session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import polars as pl

from pipelines.errors import DataError
from pipelines.nightly.data import NightData
from pipelines.nightly.finding import Finding
from pipelines.nightly.monitor.corrections import differing_dates

_DATED: Mapping[str, str] = {
    "prices": "date",
    "inputs": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
}
"""Table -> the column that says since when a row is known."""


def vintage_findings(data: NightData, then: Mapping[str, int], through: dt.date) -> list[Finding]:
    """Compare the tables of a night with those of the last one, as ``peerglass audit --vintage`` does.

    Parameters
    ----------
    data
        The data of the night.
    then
        Versions of the last night's tables.
    through
        Session of the last night.

    Returns
    -------
    list of Finding
        ``vintages``; empty if no table has another version, or a vacuum removed the earlier ones.
    """
    from pipelines.audit.checks.data.vintages import compare_vintages

    older: dict[str, pl.DataFrame] = {}
    newer: dict[str, pl.DataFrame] = {"prices": data.tables["prices"]}
    for table, known in _DATED.items():
        before, now = then.get(table), data.versions.get(table)
        if before is None or now is None or before == now:
            continue
        within = pl.col(known) <= through
        if known == "date":  # only the dates of files that differ
            span = differing_dates(data.lake, table, before, now)
            if span is None:
                continue
            within &= pl.col(known).is_between(*span)
        try:
            older[table] = data.lake.read(table, version=before, filters=within)
        except DataError:  # a vacuum removed the version, which the check of corrections reports
            continue
        newer[table] = data.lake.read(table, version=now, filters=within)
    if not older:
        return []
    compared = compare_vintages(older, newer, through)
    return [Finding("vintages", "warn" if compared.verdict == "fail" else "ok", compared.sentence)]
