"""The section on provenance: identity, sessions, evaluations, data, times, libraries and configuration."""

from __future__ import annotations

import html
from collections.abc import Iterator

import polars as pl

from pipelines.pages.contents.header import RunHeader
from pipelines.pages.sections.section import count_sessions
from pipelines.pages.tables import Column, neutral_yes_no, number, pairs, table, text


def provenance_blocks(header: RunHeader) -> Iterator[str]:
    """Show everything that is needed to trace and repeat the run.

    Parameters
    ----------
    header
        Header of the report.

    Yields
    ------
    str
        HTML, every value escaped.
    """
    trained = (
        {}
        if not header.seeds
        else {
            "device": header.device,
            "seeds": ", ".join(str(seed) for seed in header.seeds),
        }
    )
    yield pairs(
        {
            "run" if trained else "signals": f"{header.name} ({header.run_id})",
            "results as of": header.created_at,
            "commit used in training" if trained else "commit": header.git_commit or "not recorded",
            "config hash": header.config_hash,
            **trained,
            "trials": f"{header.trial_count:,} in the ledger{header.trial_reach}",
            "label": f"{header.label_transform}, delay {count_sessions(header.label_delay)}, "
            f"horizon {count_sessions(header.label_horizon)}",
            "universe": f"{header.universe} ({header.mean_firms_per_date:,.0f} firms per date on average)",
        }
    )
    yield from _history(header)
    if not header.data_versions.is_empty():
        yield "<h3>Data versions</h3>"
        yield table(
            header.data_versions,
            (
                Column("table", "table", text, numeric=False),
                Column("version", "version", number(0)),
                Column("rows", "rows", number(0)),
            ),
            label="Data versions",
        )
    if header.stage_seconds:
        yield "<h3>Time by stage</h3>"
        seconds = pl.DataFrame(
            {
                "stage": list(header.stage_seconds),
                "seconds": [float(s) for s in header.stage_seconds.values()],
            }
        )
        yield table(
            seconds,
            (Column("stage", "stage", text, numeric=False), Column("seconds", "seconds", number(1))),
            label="Time by stage",
        )
    if header.libraries:
        yield "<h3>Libraries</h3>"
        yield pairs(dict(header.libraries))


def config_blocks(header: RunHeader) -> Iterator[str]:
    """Show the resolved configuration."""
    yield f"<pre>{html.escape(header.config_yaml)}</pre>"


def _history(header: RunHeader) -> Iterator[str]:
    """Show the training sessions and the evaluations of the run."""
    if header.sessions is not None and not header.sessions.is_empty():
        yield "<h3>Training sessions</h3>"
        yield table(
            header.sessions,
            (
                Column("started", "started", text, numeric=False),
                Column("tasks", "tasks done", number(0)),
                Column("commit", "commit", text, numeric=False),
                Column(
                    "code",
                    "code digest",
                    text,
                    numeric=False,
                    hint="digest of the code that computes forecasts",
                ),
                Column("device", "device", text, numeric=False),
                Column("torch", "torch", text, numeric=False),
                Column("trials", "trials in ledger", number(0)),
            ),
            label="Training sessions",
        )
    if header.evaluations is not None:
        yield "<h3>Evaluations</h3>"
        yield (
            "<p>This report shows one evaluation of the run. To see another, use "
            "<code>peerglass report RUN --evaluation ID</code>.</p>"
        )
        yield table(
            header.evaluations,
            (
                Column("evaluation", "evaluation", text, numeric=False),
                Column("shown", "shown here?", neutral_yes_no, numeric=False),
                Column("made_at", "created", text, numeric=False),
                Column("commit", "commit", text, numeric=False),
                Column("assumptions", "assumptions", text, numeric=False),
            ),
            label="Evaluations",
        )
