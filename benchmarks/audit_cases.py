"""Try the audit on doctored and on honest deliveries of three real and three simulated markets.

python benchmarks/audit_cases.py --data ../shared/data              # from one delivery
python benchmarks/audit_cases.py --data ../shared/data --vintage    # from doctored data delivered twice

No limit was chosen on these firms. Doctored cases are counted by mechanism, with what they cost: the mean
rank IC that a doctored input has beyond its honest twin, over the next 1, 5 or 21 sessions
(`audit_early.information`).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from audit_bases import Base, Tables, bases
from audit_clean import CLEAN, Case
from audit_doctored import DOCTORED
from audit_early import EARLY_CLEAN, EARLY_DOCTORED, costs, delivered, worst_cost
from audit_fresh import FRESH_CLEAN, FRESH_DOCTORED, SECOND_CLEAN, SECOND_DOCTORED
from audit_selection import DOCTORED as SELECTED
from audit_selection import HONEST

from backtest.look_ahead import hindsight
from backtest.look_ahead.finding import VERDICTS
from pipelines.audit.registry import DATA_CHECKS

ROOT = Path(__file__).parents[1]
KINDS: Final[Mapping[str, Mapping[str, Case]]] = {
    "known early or chosen late": {**EARLY_DOCTORED, **SELECTED},
    "doctored otherwise": {**DOCTORED, **FRESH_DOCTORED, **SECOND_DOCTORED},
    "honest": {**EARLY_CLEAN, **HONEST, **CLEAN, **FRESH_CLEAN, **SECOND_CLEAN},
}
COUNTS: Final = 0.01  # least IC that a doctored case costs if it counts
Alarm = tuple[str, str, str]  # check, verdict, sentence


def alarms_of_tables(tables: Tables, older: Tables | None) -> list[Alarm]:
    """What all checks of the data say of a delivery."""
    data = replace(delivered(tables), older=older)
    if older is not None:
        one = DATA_CHECKS["vintages"](data)
        return [("vintages", one.verdict, one.sentence)]
    found = [(name, check(data)) for name, check in DATA_CHECKS.items()]
    return [(name, one.verdict, one.sentence) for name, one in found if one.verdict in ("fail", "warn")]


def alarms_of_inputs(base: Base, cases: Mapping[str, Case], *, vintage: bool) -> dict[str, list[Alarm]]:
    """What the checks of inputs say of inputs that are delivered together, by the name of each."""
    found: dict[str, list[Alarm]] = {name: [] for name in cases}
    if not cases:
        return found
    tables, older = (_together(one, cases) for one in (base, base.until(len(base.dates_T) - 40)))
    data = delivered(tables)
    if vintage:
        rows = DATA_CHECKS["vintages"](replace(data, older=older)).evidence
        for name, verdict in rows.filter(pl.col("table") == "inputs").select("column", "verdict").iter_rows():
            found[name].append(("vintages", verdict, f"input {name}: signal differs"))
        return found
    for check in ("fingerprints", "full_sample", "leads", "beyond_prices", "coverage", "timing", "backfill"):
        rows = DATA_CHECKS[check](data).evidence.filter(pl.col("verdict").is_in(["fail", "warn"]))
        for subject, verdict, sentence in rows.select("subject", "verdict", "sentence").iter_rows():
            name = subject.removeprefix("input ")
            if name in found:
                found[name].append((check, verdict, f"signal: {sentence}"))
    for name in cases:
        one = hindsight.horizons(replace(data, inputs=(name,)))
        if name in one.sentence:
            found[name].append(("horizons", one.verdict, f"signal: {one.sentence}"))
    return found


def _together(base: Base, cases: Mapping[str, Case]) -> Tables:
    rows = [case.make(base)["inputs"].with_columns(name=pl.lit(name)) for name, case in cases.items()]
    return {**base.tables, "inputs": pl.concat(rows)}


def tried(base: Base, cases: Mapping[str, Case], *, vintage: bool) -> Iterator[tuple[str, list[Alarm]]]:
    """Yield each case's name and its alarms."""
    inputs = {name: case for name, case in cases.items() if case.of_input}
    yield from alarms_of_inputs(base, inputs, vintage=vintage).items()
    for name, case in cases.items():
        if name not in inputs:
            older = case.make(base.until(len(base.dates_T) - 40)) if vintage else None
            yield name, alarms_of_tables(case.make(base), older)


def is_wanted(alarm: Alarm, case: Case) -> bool:
    """Whether an alarm is about the case, and not of firms chosen at the end or statements never restated."""
    _, verdict, sentence = alarm
    if verdict not in ("fail", "warn"):
        return False
    right = any(word in sentence for word in case.expects)
    return right or not (sentence.startswith("Survivorship bias") or "no restat" in sentence)


def main() -> None:
    """Print a line for each mechanism, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--vintage", action="store_true", help="deliver doctored data twice")
    parser.add_argument("--only", default="", help="part of the names to run")
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--market", default="", help="part of the names of the markets to run")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    rows: list[dict[str, Any]] = []
    for base in bases(given.data):
        if given.market not in base.name:
            continue
        for kind, cases in KINDS.items():
            if given.kind not in (None, kind) or (given.vintage and kind == "honest"):
                continue
            chosen = {name: case for name, case in cases.items() if given.only in name}
            for name, found in tried(base, chosen, vintage=given.vintage):
                alarms = sorted(
                    (one for one in found if is_wanted(one, cases[name])),
                    key=lambda one: VERDICTS.index(one[1]),
                )
                right = [one for one in alarms if any(word in one[2] for word in cases[name].expects)]
                cost = costs(base, cases[name])
                rows.append(
                    {
                        "kind": kind,
                        "case": name,
                        "market": base.name,
                        "alarms": alarms,
                        "right": right[:1],
                        "cost": None if cost is None else cost.tolist(),
                    }
                )
                if kind == "honest" and alarms:
                    print(f"{alarms[0][1]:<5}{base.name}: {name}: {alarms[0][2][:150]}", flush=True)
        print(f"{base.name}: {base.close_TN.shape[0]} sessions, {base.close_TN.shape[1]} firms", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Print what was caught by mechanism, the text before the first comma of a case, and what it costs."""
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        if kind == "honest" or not own:
            continue
        print(f"{kind:<58}{'of':>4}{'caught':>8}{'right':>7}{'fail':>6}{'cost':>8}  that count: right, of")
        total = np.zeros(6, dtype=int)
        for mechanism in dict.fromkeys(row["case"].split(",")[0] for row in own):
            line, most = np.zeros(6, dtype=int), 0.0
            for case in dict.fromkeys(row["case"] for row in own if row["case"].split(",")[0] == mechanism):
                some = [row for row in own if row["case"] == case]
                right = [row["right"][0][1] for row in some if row["right"]]
                found = len(some), sum(bool(row["alarms"]) for row in some), len(right), right.count("fail")
                cost = worst_cost([np.asarray(row["cost"]) for row in some if row["cost"] is not None])
                most = max(most, cost)
                line += (*found, len(right), len(some)) if cost >= COUNTS else (*found, 0, 0)
            of, caught, right_, fail, *dear = line
            print(
                f"{mechanism:<58}{of:>4}{caught:>8}{right_:>7}{fail:>6}{most:>8.3f}  {dear[0]:>4}{dear[1]:>4}"
            )
            total += line
        print(
            f"{kind}: {total[1]} caught, {total[2]} with the right cause ({total[3]} failures) "
            f"of {total[0]}; of those that cost an IC of {COUNTS}: {total[4]} of {total[5]}"
        )
    honest = [row for row in rows if row["kind"] == "honest"]
    worst = [min((one[1] for one in row["alarms"]), default="pass") for row in honest]
    print(f"honest: {worst.count('fail')} fail, {worst.count('warn')} warn of {len(honest)}")


if __name__ == "__main__":
    main()
