"""Tables of a run's newest evaluation, for tests of the results."""

from __future__ import annotations

import polars as pl

from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import RecordedRun


def measured(run: RecordedRun, name: str) -> pl.DataFrame:
    """Return a table of the run's newest evaluation."""
    evaluation = newest_evaluation(run)
    assert evaluation is not None, "the run has no evaluation"
    return evaluation.table(name)
