"""Make the golden figures, or check that the code still gives them.

    python tests/golden/make.py            make both files anew (`make golden`)
    python tests/golden/make.py --check    compare both with what the code gives (`make golden-check`)

``quick.json`` holds the demo's market with the models that take seconds and one short attention model; the
tests compare it (`tests/test_golden.py`). ``demo.json`` holds the ladder and one backtest of
``configs/demo.yaml`` as it stands, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BOOK = "long_short"
NAV_DATES = 12
Figures = dict[str, dict[str, float | None]]

QUICK: Mapping[str, Any] = {
    "models": {
        "zero": {},
        "reversal": {},
        "ridge": {},
        "lightgbm": {"rounds": 40, "evaluate_every": 20},
        "temporal_transformer": {"layers": 1, "width": 16, "heads": 2},
    },
    "folds": {"scheme": "expanding", "train": 1800, "valid": 200, "test": 200, "embargo": 1, "max_folds": 1},
    "seeds": [0],
    "fit": {"epochs": 1, "batch_dates": 16, "lr": 0.002, "weight_decay": 1.0},
}
"""What replaces the demo's settings in the quick figures."""

STEADY = ("zero", "reversal", "ridge")
"""Models that rounding cannot turn. It can turn a tree's split, and gradient descent adds it up."""

TOLERANCE: Mapping[str, tuple[float, float]] = {
    "ic": (1e-5, 2e-3),
    "sharpe": (2e-3, 0.2),
    "nav": (1e-4, 0.01),
}
"""Largest difference of correlations, Sharpe ratios and net asset values: of a steady model, of another.

With kernels of SSE4, AVX2 and AVX-512 the quick figures of steady models and LightGBM are equal to nine
digits, and those of the attention model within 3e-6.
"""

OTHERWISE = (1e-3, 0.05)
"""Largest difference of any other figure, as a share of it."""


def measure(settings: Mapping[str, Any], folder: Path) -> Figures:
    """Ingest, train and backtest a config in an empty folder, and give its figures by model and delay."""
    own = {
        "lake": "lake",
        "output": "runs",
        "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "artifacts"},
    }
    config = folder / "golden.yaml"
    config.write_text(yaml.safe_dump({**settings, **own}))
    peerglass(folder, "ingest", "golden.yaml")
    peerglass(folder, "train", "golden.yaml")
    (run,) = (path.parent for path in (folder / "runs").glob("*/config.yaml"))
    peerglass(folder, "backtest", run.name, "--output", "runs")
    (tables,) = (run / "evaluations").iterdir()
    return dict(
        figures(pl.read_parquet(tables / "ladder.parquet"), pl.read_parquet(tables / "equity.parquet"))
    )


def peerglass(folder: Path, *arguments: str) -> None:
    """Call the command line of this checkout in a folder."""
    call = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipelines.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", call, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"peerglass {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")


def figures(ladder: pl.DataFrame, equity: pl.DataFrame) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Every number of the ladder, and some dates of one book's net asset value."""
    for row in ladder.iter_rows(named=True):
        numbers = {name: value for name, value in row.items() if isinstance(value, float | None)}
        values = {name: rounded(value) for name, value in numbers.items() if name != "missing"}
        yield f"{row['model']} at delay {row['delay']}", values
    wanted = (pl.col("book") == BOOK) & (pl.col("delay") == 0)
    for (model,), book in equity.filter(wanted).sort("date").group_by("model", maintain_order=True):
        some = book.gather_every(math.ceil(book.height / NAV_DATES))
        navs = {f"nav {date}": rounded(nav) for date, nav in some.select("date", "nav_net").iter_rows()}
        yield f"{model} {BOOK}", navs


def rounded(value: float | None) -> float | None:
    """Nine digits of a number; no number is None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")


def differences(golden: Figures, found: Figures) -> Iterator[str]:
    """Name every golden figure that was not found again within its tolerance."""
    for row, values in golden.items():
        for name, wanted in values.items():
            got = found.get(row, {}).get(name)
            if wanted is None or got is None:
                near = wanted is got
            else:
                near = abs(got - wanted) <= tolerance(row, name, wanted)
            if not near:
                yield f"{row}, {name}: {got} instead of {wanted}"


def tolerance(row: str, name: str, wanted: float) -> float:
    """Largest difference of a figure that another processor's rounding explains."""
    unsteady = not row.startswith(STEADY)
    for part, bounds in TOLERANCE.items():
        if name.endswith("_" + part) or name == part or (part != "ic" and part in name):
            return bounds[unsteady]
    return OTHERWISE[unsteady] * abs(wanted) + 1e-6


def settings_of(kind: str) -> dict[str, Any]:
    """Give the settings behind one of the two files."""
    demo: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    return {**demo, **(QUICK if kind == "quick" else {}), "name": "golden"}


def main() -> None:
    """Make or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", choices=("quick", "demo"), help="one of the two files")
    asked = parser.parse_args()
    kinds = [asked.only] if asked.only else ["quick", "demo"]
    missing = [f"{kind}.json" for kind in kinds if not (HERE / f"{kind}.json").is_file()]
    if asked.check and missing:
        sys.exit(f"There is nothing to compare with: {HERE} lacks {', '.join(missing)}; run make golden.")
    wrong = []
    for kind in kinds:
        path = HERE / f"{kind}.json"
        with tempfile.TemporaryDirectory() as folder:
            found = measure(settings_of(kind), Path(folder))
        if asked.check:
            wrong += [f"{kind}: {line}" for line in differences(json.loads(path.read_text()), found)]
        else:
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(f"wrote {path.relative_to(ROOT)}: {sum(map(len, found.values()))} figures")
    if wrong:
        sys.exit("\n".join([*wrong, "If this is meant, explain it in docs/experiments and run make golden."]))


if __name__ == "__main__":
    main()
