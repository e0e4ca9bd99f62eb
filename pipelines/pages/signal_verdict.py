"""The verdict on a file of signals: first whether a signal is believable, then what it earns."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from pipelines.pages.contents.report import ReportData
from pipelines.pages.verdict import Verdict, judge


def judge_report(data: ReportData) -> Verdict:
    """Judge a run, or the first signal of a file that passes the look-ahead guard (`judge`).

    Returns
    -------
    Verdict
        ``bad``, without a chosen signal, if every signal of the file fails the guard.
    """
    failed = {} if data.file is None else data.file.failed
    if not failed:
        return judge(data)
    refused = "; ".join(f"{signal} fails {', '.join(checks)}" for signal, checks in failed.items())
    believable = [model for model in data.models if model not in failed]
    if not believable:
        words = f"{next(iter(failed))} is not" if len(failed) == 1 else "None of the signals is"
        return Verdict(
            "bad",
            f"{words} believable: look-ahead was found.",
            f"{refused}. The figures below are those of a signal that knows later prices.",
            None,
        )
    verdict = judge(replace(data, ladder=data.ladder.filter(pl.col("model").is_in(believable))))
    return replace(
        verdict, evidence=f"{verdict.evidence} Not believable, because look-ahead was found: {refused}."
    )
