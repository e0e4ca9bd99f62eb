"""Count the honest deliveries that each check of the data accuses.

python benchmarks/audit_false_alarms.py --data ../shared/data --count 200             # to choose limits
python benchmarks/audit_false_alarms.py --data ../shared/data --count 200 --held-out  # the other firms

A delivery is a cut of a real market (one to six years of 15 to 80 firms) or a simulated one, with three
honest inputs drawn from `audit_clean` and `audit_fresh`. All of its checks are one family: it fails if one
of them does.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Base, cut, is_held_out, make_subject, read_prices, simulated
from audit_clean import CLEAN
from audit_fresh import FRESH_CLEAN, SECOND_CLEAN

from pipelines.audit.registry import CHECKS, DATA_CHECKS

ROOT = Path(__file__).parents[1]
MARKETS: Final = ("nasdaq", "sp500", "csi300", "simulated")
_EXPECTED: Final = "Survivorship bias"  # true of these files: their firms were chosen at the end


def draw(folder: Path, k: int, *, held_out: bool) -> Base:
    """Draw a market: a window of years, and some of the firms of this half."""
    rng = np.random.default_rng((k, held_out))
    market = MARKETS[k % len(MARKETS)]
    if market == "simulated":
        sessions, firms = int(rng.integers(400, 1500)), int(rng.integers(15, 80))
        leave = float(rng.uniform(0.0, 0.08))
        seed = 2 * k + held_out + 1000
        return simulated(seed, firms=firms, sessions=sessions, delistings_per_year=leave)
    prices = read_prices(folder, market)
    days = prices["date"].unique().sort()
    length = int(rng.integers(250, 1500))
    first = int(rng.integers(0, len(days) - length))
    inside = prices.filter(pl.col("date").is_between(days[first], days[first + length - 1]))
    counts = inside.group_by("ticker").len().filter(pl.col("len") >= 20)["ticker"].sort()
    own = [ticker for ticker in counts if is_held_out(ticker) == held_out]
    some = rng.choice(own, min(int(rng.integers(15, 80)), len(own)), replace=False)
    inside = inside.filter(pl.col("ticker").is_in(list(some)))
    name = f"{market} {days[first]:%Y-%m}, {length} sessions, {len(some)} firms"
    return cut(folder, market, inside, name, k)


def inputs(base: Base, only: str) -> tuple[list[str], pl.DataFrame | None]:
    """Draw three honest inputs; or all whose names contain a text."""
    cases = {**CLEAN, **FRESH_CLEAN, **SECOND_CLEAN}
    named = [name for name, case in cases.items() if case.of_input]
    drawn = np.random.default_rng((base.seed, 99)).choice(named, 3, replace=False)
    chosen = [name for name in named if only in name] if only else drawn.tolist()
    rows = [
        cases[name].make(base)["inputs"].with_columns(name=pl.lit(f"own_{named.index(name)}"))
        for name in chosen
    ]
    return chosen, pl.concat(rows) if rows else None


def alarms(
    folder: Path, count: int, only: str, *, held_out: bool
) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield each delivery's name and its alarms: check, verdict and sentence."""
    for k in range(count):
        base = draw(folder, k, held_out=held_out)
        names, frame = inputs(base, only)
        tables = base.tables if frame is None else {**base.tables, "inputs": frame}
        changes = {"universe": {"min_history": 20, "membership": "csi300"}} if "membership" in tables else {}
        subject = make_subject(tables, changes)
        found = [CHECKS[name](subject) for name in DATA_CHECKS]
        bad = [
            one for one in found if one.verdict in ("fail", "warn") and not one.sentence.startswith(_EXPECTED)
        ]
        yield f"{base.name}: {'; '.join(names)}", [(one.check, str(one.verdict), one.sentence) for one in bad]


def main() -> None:
    """Print the alarms of each delivery, and the shares per check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--held-out", action="store_true", help="firms on which no limit was chosen")
    parser.add_argument(
        "--only", default="", help="inputs with this in their names instead of three drawn ones"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    kinds: Counter[tuple[str, str]] = Counter()
    worst: Counter[str] = Counter()
    rows = []
    for name, bad in alarms(given.data, given.count, given.only, held_out=given.held_out):
        kinds.update({(check, verdict) for check, verdict, _ in bad})
        verdicts = {verdict for _, verdict, _ in bad}
        worst["fail" if "fail" in verdicts else "warn" if verdicts else "pass"] += 1
        rows.append({"delivery": name, "alarms": bad})
        for check, verdict, sentence in bad:
            print(f"{verdict:<5}{check:<14}{name}\n     {sentence}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    for (check, verdict), n in sorted(kinds.items()):
        print(f"{verdict:<5}{check:<14}{n:>4} ({n / given.count:.1%})")
    print(f"{given.count} deliveries: {', '.join(f'{n} {verdict}' for verdict, n in worst.items())}")


if __name__ == "__main__":
    main()
