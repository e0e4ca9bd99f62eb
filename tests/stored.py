"""Tables of a run's newest evaluation, for tests that look at what was measured."""

from __future__ import annotations

import polars as pl

from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import Run


def measured(run: Run, name: str) -> pl.DataFrame:
    """Give a table of the evaluation that was asked for last."""
    evaluation = newest_evaluation(run)
    assert evaluation is not None, "nothing was measured"
    return evaluation.table(name)
