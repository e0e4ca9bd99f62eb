"""Turn the inputs of the audit's cases into signal files, and count those that the guard catches.

python benchmarks/guard_cases.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from audit_bases import bases, make_subject
from audit_clean import CLEAN
from audit_doctored import DOCTORED
from audit_fresh import FRESH_CLEAN, FRESH_DOCTORED, SECOND_CLEAN, SECOND_DOCTORED

from backtest.look_ahead.finding import VERDICTS, Finding
from features.panel.panel import to_panel
from pipelines.audit.registry import DATA_CHECKS
from pipelines.results.evaluate_signals import Guard

ROOT = Path(__file__).parents[1]
OF_INPUTS = ("fingerprints", "full_sample", "leads", "horizons", "coverage", "timing", "backfill")


def worst(found: list[Finding]) -> tuple[str, str]:
    """The worst verdict, and the check that gives it."""
    bad = sorted((one for one in found if one.verdict in VERDICTS[:2]), key=lambda one: one.verdict)
    return (bad[0].verdict, bad[0].check) if bad else ("-", "")


def main() -> None:
    """Print one line per case and market, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--market", default="", help="part of the names of the markets to run")
    parser.add_argument("--kind", choices=["clean", "doctored"])
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    count: Counter[tuple[str, str, str]] = Counter()
    cases = {
        "clean": {**CLEAN, **FRESH_CLEAN, **SECOND_CLEAN},
        "doctored": {**DOCTORED, **FRESH_DOCTORED, **SECOND_DOCTORED},
    }
    for base in bases(given.data):
        if given.market not in base.name:
            continue
        subject = make_subject(base.tables)
        guard, spent = Guard(subject.dataset, 1), 0.0
        for kind, named in cases.items():
            if given.kind not in (None, kind):
                continue
            for name, case in named.items():
                tables = case.make(base) if given.only in name else {}
                if "inputs" not in tables or tables["prices"] is not base.tables["prices"]:
                    continue
                names = tuple(tables["inputs"]["name"].unique())
                delivery = replace(subject.delivery, tables=tables, inputs=names)
                audit = [DATA_CHECKS[check](delivery) for check in OF_INPUTS]
                said = [Finding(check, one.verdict) for check, one in zip(OF_INPUTS, audit, strict=True)
                        if "nput signal" in one.sentence or one.verdict == "pass"]  # fmt: skip
                started = time.perf_counter()
                rows = tables["inputs"].filter(pl.col("name") == names[0]).drop("name")
                value_TN = to_panel(rows, "value", subject.dataset.panel)
                value_TN = np.where(subject.dataset.universe_TN, value_TN, np.nan)
                asked = list(guard.check(value_TN, rows))
                spent += time.perf_counter() - started
                both = worst(said), worst(asked)
                count.update(
                    {(kind, who, one[0]): 1 for who, one in zip(("audit", "guard"), both, strict=True)}
                )
                both_fail = both[0][0] == both[1][0] == "fail"
                count[kind, "both", "fail" if both_fail else "-"] += 1
                shown = "".join(f"{verdict:<6}{check:<26}" for verdict, check in both)
                print(f"{kind[:5]} {base.name[:12]:<13}{name:<58}{shown}", flush=True)
        print(f"{base.name}: the guard took {spent:.1f} s", flush=True)
    for key, times in sorted(count.items()):
        print(*key, times)


if __name__ == "__main__":
    main()
