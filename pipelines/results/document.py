"""An evaluation as one JSON document, for `peerglass backtest --json`; docs/backtesting.md lists its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from pipelines.run.evaluations import StoredEvaluation

VERSION: Final = 1
"""Version of the document. A key is never renamed or removed without a new version."""

_TABLES: Final = {
    "results": "ladder",
    "books": "figures",
    "tests": "significance",
    "comparisons": "comparisons",
    "multiple_tests": "multiple_tests",
    "overfitting": "overfitting",
    "factor_alpha": "factor_alpha",
    "guard": "guard",
    "rows": "rows",
    "flagged_rows": "flagged_rows",
}


def document(
    run_id: str,
    evaluation: StoredEvaluation,
    verdict: Mapping[str, Any] | None,
    paths: Mapping[str, Path],
) -> str:
    """Format an evaluation as JSON.

    Parameters
    ----------
    run_id
        Id of the run, or of the measured signals.
    evaluation
        The evaluation.
    verdict
        tone (good, caution or bad), headline and evidence; None if there is no report to take it from.
    paths
        Name -> file or folder.

    Returns
    -------
    str
        One object. A table is a list of rows, or null if the evaluation does not have it. NaN and unknown
        values are null, dates are YYYY-MM-DD.
    """
    record = evaluation.record
    content = {
        "version": VERSION,
        "id": run_id,
        "evaluation": record.evaluation,
        "made_at": record.made_at.isoformat(timespec="seconds"),
        "commit": record.commit,
        "dates": {"first": str(record.first), "last": str(record.last), "count": record.dates},
        "delays": list(record.delays),
        "periods_per_year": record.periods_per_year,
        "backtest": record.backtest.model_dump(mode="json"),
        "trials": int(evaluation.table("trials")["trials"][0]),
        "incomplete": record.incomplete,
        "verdict": verdict,
        **{key: _rows(evaluation.read_table(name)) for key, name in _TABLES.items()},
        "paths": {name: str(path) for name, path in paths.items()},
    }
    return json.dumps(content, indent=1, default=str, allow_nan=False)


def _rows(table: pl.DataFrame | None) -> list[dict[str, Any]] | None:
    if table is None:
        return None
    floats = [name for name, dtype in table.schema.items() if dtype.is_float()]
    known = table.with_columns(pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in floats)
    return known.to_dicts()
