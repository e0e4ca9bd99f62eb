"""Format a comparison for a terminal, or as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from pipelines.results.compare.compare import Comparison
from pipelines.results.describe import describe_interval

_LEGEND = (
    "All figures are of the dates that all models have. Sharpe ratios are annualised and net of costs.",
    "deflated: probability of skill, given the trials in the ledger by now; 0.95 or more is strong evidence.",
    "effective: the same with the number of independent trials that they amount to by their correlation.",
    "beats: yes if the interval of the IC difference is above 0 and the net Sharpe ratio is higher;",
    "no if the interval of the IC or of the Sharpe difference is below 0; unclear otherwise.",
)


def describe_comparison(comparison: Comparison) -> str:
    """Format figures, tests against the first model, and what differs."""
    rows = list(comparison.figures.iter_rows(named=True))
    width = max(len("model"), *(len(row["name"]) for row in rows)) + 2
    level = round(100 * (1 - comparison.level))
    lines = [
        f"{rows[0]['sessions']:,} sessions; intervals at {level}%",
        f"  {'model':<{width}}{'book':<14}{'delay':>5}   {'IC':<30}{'net Sharpe':<26}"
        f"{'deflated':>8}{'trials':>8}{'effective':>11}",
    ]
    for row in rows:
        ic = describe_interval(row["ic"], row["ic_lower"], row["ic_upper"], digits=4)
        sharpe = describe_interval(row["sharpe_net"], row["sharpe_lower"], row["sharpe_upper"], digits=2)
        lines.append(
            f"  {row['name']:<{width}}{row['book']:<14}{row['delay']:>5}   {ic:<30}{sharpe:<26}"
            f"{_number(row['deflated_sharpe'], 2):>8}{row['trials']:>8,}"
            f"{_number(row['deflated_effective'], 2):>11}"
        )
    lines.append(f"against {rows[0]['name']}")
    ends = ("difference", "lower", "upper")
    for row in comparison.tests.iter_rows(named=True):
        ic, sharpe = (
            describe_interval(*(row[f"{of}_{end}"] for end in ends), digits=digits, signed=True)
            for of, digits in (("ic", 4), ("sharpe", 2))
        )
        ics = f"IC {ic}" if row["dates"] else "IC not compared, because the labels differ"
        lines.append(f"  {row['name']:<{width}}beats: {row['beats']}; {ics}; net Sharpe {sharpe}")
        differences = comparison.differences[row["name"]]
        lines.append(f"  {'':<{width}}differs in: {'; '.join(differences) or 'the model alone'}")
    return "\n".join((*lines, *_LEGEND))


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one JSON document: ``level``, ``figures``, ``tests`` and ``differences``."""
    document: dict[str, Any] = {
        "level": comparison.level,
        "figures": comparison.figures.to_dicts(),
        "tests": comparison.tests.to_dicts(),
        "differences": {name: list(phrases) for name, phrases in comparison.differences.items()},
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _number(value: float | None, digits: int, sign: str = "") -> str:
    return "?" if value is None or math.isnan(value) else f"{value:{sign}.{digits}f}"
