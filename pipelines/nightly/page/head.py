"""The head of a night's page: its state in one sentence, and what to do if it failed."""

from __future__ import annotations

import html

import polars as pl

from pipelines.nightly.book.describe import total
from pipelines.nightly.result import NightResult

_TONES = {"done": "good", "warned": "caution", "failed": "bad"}
_WORDS = {"done": "Done", "warned": "Done, with warnings", "failed": "Failed"}


def head(result: NightResult) -> str:
    """Build the head as HTML, every value escaped."""
    version = f"model {result.champion}" if result.champion is not None else "no model"
    if result.challenger is not None:
        version += f"; challenger {result.challenger}"
    todo = "".join(f"<li>{html.escape(step)}</li>" for step in what_to_do(result))
    return (
        f"<header><h1>{html.escape(result.config)}, {result.session}</h1>"
        f'<p class="byline">{html.escape(version)}</p>'
        f'<div class="verdict {_TONES[result.state]}"><p class="headline"><b>{_WORDS[result.state]}.</b> '
        f"{html.escape(headline(result))}</p>{f'<ol>{todo}</ol>' if todo else ''}</div></header>\n"
    )


def headline(result: NightResult) -> str:
    """Say in one sentence how the night ended."""
    if result.state == "failed":
        return result.error or _first_failure(result)
    signals = result.signals.filter(pl.col("signal").is_not_null())
    if result.champion is not None:
        signals = signals.filter(pl.col("version") == str(result.champion))
    trades = result.book.filter(pl.col("trade") != 0)
    turnover, cost = 0.5 * total(trades["trade"].abs()), 1e4 * total(trades["expected_cost"])
    book = (
        f"{trades.height:,} trades turn over {turnover:.1%} of NAV at an expected cost of {cost:.1f} bps"
        if trades.height
        else "nothing is traded"
    )
    warnings = sorted({finding.check for finding in result.findings if finding.level != "ok"})
    noted = f" Warnings: {', '.join(warnings)}." if warnings else ""
    return f"{signals.height:,} signals for the session after {result.session}; {book}.{noted}"


def what_to_do(result: NightResult) -> tuple[str, ...]:
    """Steps after a failed night; none after the others."""
    if result.state != "failed":
        return ()
    return (
        "Mend the cause: the sentence above and the failed checks below name it and its cure.",
        f"Run peerglass nightly CONFIG --date {result.session} again. Steps that are done are not repeated.",
        "Until then there is no book for the next session; the account keeps its positions.",
    )


def _first_failure(result: NightResult) -> str:
    failures = [finding.sentence for finding in result.findings if finding.level == "fail"]
    return failures[0] if failures else "The night ended with an error that has no message."
