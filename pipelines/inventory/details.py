"""Everything about one run: identity, data versions, folds, evaluations, trials and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.inventory.summaries import size_of, summarise_run
from pipelines.run.evaluations import Evaluated, list_evaluations
from pipelines.run.provenance import AuditMade, TrainingStarted, read_provenance
from pipelines.run.record import Run
from pipelines.train.trials import Scope, count_trials

Details = Mapping[str, Any]


def run_details(run: Run) -> Details:
    """Collect what is recorded of a run.

    Returns
    -------
    mapping
        ``summary`` (`pipelines.inventory.summaries.RunSummary`), ``identity`` (lake, device, digest of the
        code, libraries), ``tables`` (table -> version), ``folds`` (first and last date of each segment),
        ``evaluations`` (newest first), ``trials`` (of this run, and all that count against it), ``audit``
        (the last verdict; None without one), ``commit`` (of the last training), ``files`` (entry of the
        folder -> bytes).
    """
    assert run.identity is not None, "an opened run has recorded its identity"
    counted = count_trials(run.folder.parent, Scope.of(run.config))
    events = read_provenance(run)
    audits = [event.verdict for event in events if isinstance(event, AuditMade)]
    commits = [event.environment.commit for event in events if isinstance(event, TrainingStarted)]
    folds = run.read_table("folds")
    segments = [f"{name}_{end}" for name in ("train", "valid", "test") for end in ("from", "to")]
    return {
        "summary": asdict(summarise_run(run.folder)),
        "identity": {
            "lake": run.identity.lake,
            "device": run.identity.device,
            "code": run.identity.code,
            "libraries": dict(run.identity.libraries),
        },
        "tables": dict(run.versions),
        "folds": [] if folds is None else folds.select("fold", *segments).to_dicts(),
        "evaluations": evaluation_rows(run),
        "trials": {
            "of_this_run": counted.rows.filter(pl.col("runs").list.contains(run.run_id)).height,
            "in_ledger": counted.trials,
        },
        "audit": audits[-1] if audits else None,
        "commit": commits[-1] if commits else None,
        "files": {path.name: size_of(path) for path in sorted(run.folder.iterdir())},
    }


def evaluation_rows(run: Evaluated) -> list[dict[str, Any]]:
    """Id, time, delays and assumptions of the evaluations in a folder, newest first."""
    return [
        {
            "evaluation": one.record.evaluation,
            "made": one.record.made_at,
            "delays": list(one.record.delays),
            "assumptions": one.record.assumptions,
            "incomplete": one.record.incomplete,
        }
        for one in list_evaluations(run)
    ]


def describe_details(details: Details) -> str:
    """Describe a run for a terminal."""
    summary, identity, trials = details["summary"], details["identity"], details["trials"]
    state = f"{summary['state']}, {summary['done']} of {summary['planned']} tasks"
    lines = [
        f"run {summary['run_id']}",
        f"  folder    {Path(summary['folder']).absolute()}  ({megabytes(summary['size'])} MB)",
        f"  started   {summary['started']:%Y-%m-%d %H:%M:%S} UTC; {state}",
        f"  models    {', '.join(summary['models'])}",
        f"  lake      {identity['lake']}",
        f"  versions  {', '.join(f'{table} {version}' for table, version in details['tables'].items())}",
        f"  code      {identity['code']}, commit {details['commit'] or 'unknown'}, on {identity['device']}",
        f"  audit     {details['audit'] or 'none'}",
        f"  trials    {trials['of_this_run']} of this run; {trials['in_ledger']} count with others",
    ]
    if summary["holder"] is not None:
        lines.insert(3, f"  locked    by {summary['holder']}")
    for fold in details["folds"]:
        spans = "  ".join(
            f"{one} {fold[f'{one}_from']} to {fold[f'{one}_to']}" if fold[f"{one}_from"] else f"no {one}"
            for one in ("train", "valid", "test")
        )
        lines.append(f"  fold {fold['fold']:<4} {spans}")
    return "\n".join([*lines, *content_lines(details)])


def content_lines(details: Details) -> list[str]:
    """Describe the evaluations of a folder and its entries of at least 50 kB, one line each."""
    return [
        *(
            f"  evaluation {one['evaluation']}  {one['made']:%Y-%m-%d %H:%M}  {one['assumptions']}"
            for one in details["evaluations"]
        ),
        *(f"  {megabytes(size):>8} MB  {name}" for name, size in details["files"].items() if size >= 50_000),
    ]


def details_json(details: Details) -> str:
    """Write details as JSON."""
    return json.dumps(details, indent=1, default=str)


def megabytes(size: int) -> str:
    """Write bytes as megabytes with one decimal."""
    return f"{size / 1e6:,.1f}"
