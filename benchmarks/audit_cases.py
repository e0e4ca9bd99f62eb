"""Try the audit on honest and on doctored deliveries, and print what it says of each.

python benchmarks/audit_cases.py --data ../shared/data                 # markets on which limits were set
python benchmarks/audit_cases.py --data ../shared/data --held-out      # markets that were not looked at
python benchmarks/audit_cases.py --data ../shared/data --last --fresh  # nor when the last checks were written
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from audit_bases import Base, bases, last_bases, make_subject
from audit_clean import CLEAN, Case
from audit_doctored import DOCTORED
from audit_fresh import FRESH_CLEAN, FRESH_DOCTORED, SECOND_CLEAN, SECOND_DOCTORED

from backtest.look_ahead.finding import Result
from pipelines.audit.registry import CHECKS, DATA_CHECKS

ROOT = Path(__file__).parents[1]


def run_case(case: Case, base: Base, *, vintage: bool) -> list[Result]:
    """Run the checks of the data, and those of features that the case names."""
    older = case.make(base.until(len(base.dates_T) - 40)) if vintage else None
    subject = make_subject(case.make(base), case.changes, older)
    return [CHECKS[name](subject) for name in (*DATA_CHECKS, "too_good", *case.checks)]


def main() -> None:
    """Print one line per case and market, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--last", action="store_true", help="other firms and years still")
    parser.add_argument("--vintage", action="store_true", help="deliver doctored data twice")
    parser.add_argument("--fresh", action="store_true", help="cases written after all limits were set")
    parser.add_argument("--only", default="", help="part of the names to run")
    parser.add_argument("--kind", choices=["clean", "doctored"])
    parser.add_argument("--market", default="", help="part of the names of the markets to run")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    rows = []
    markets = last_bases(given.data) if given.last else bases(given.data, held_out=given.held_out)
    for base in markets:
        if given.market not in base.name:
            continue
        clean, doctored = CLEAN, DOCTORED
        if given.fresh:
            clean, doctored = FRESH_CLEAN | SECOND_CLEAN, FRESH_DOCTORED | SECOND_DOCTORED
        for kind, cases in (("clean", clean), ("doctored", doctored)):
            if given.kind not in (None, kind):
                continue
            for name, case in cases.items():
                if given.only not in name:
                    continue
                started = time.perf_counter()
                results = run_case(case, base, vintage=given.vintage)
                alarms = [
                    r
                    for r in results
                    if r.verdict in ("fail", "warn")
                    and (r.check != "survivorship" or "urvivor" in " ".join(case.expects))
                ]
                alarms = [r for r in alarms if not (r.check == "statements" and "no restat" in r.sentence)]
                right = [r for r in alarms if any(word in r.sentence for word in case.expects)]
                shown = sorted(right or alarms, key=lambda r: r.verdict != "fail")[:1]
                verdict = shown[0].verdict if shown else "-"
                good = not alarms if kind == "clean" else bool(right)
                rows.append(
                    {
                        "kind": kind,
                        "case": name,
                        "market": base.name,
                        "verdict": verdict,
                        "check": shown[0].check if shown else "",
                        "good": good,
                        "all": [(r.check, r.verdict, r.sentence) for r in alarms],
                    }
                )
                text = shown[0].sentence[:150] if shown else ""
                mark, seconds = "  " if good else "X ", time.perf_counter() - started
                print(
                    f"{mark}{kind[:5]} {base.name[:12]:<13}{name:<58}{verdict:<6}"
                    f"{rows[-1]['check']:<14}{text} "
                    f"({seconds:.1f} s)",
                    flush=True,
                )
    for kind in ("clean", "doctored"):
        own = [row for row in rows if row["kind"] == kind]
        if own:
            verdicts = {v: sum(r["verdict"] == v for r in own) for v in ("fail", "warn", "-")}
            print(f"{kind}: {sum(bool(r['good']) for r in own)} of {len(own)} as wanted; {verdicts}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
