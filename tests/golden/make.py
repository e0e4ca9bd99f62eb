"""Write the golden figures, or check that the code still reproduces them.

    python tests/golden/make.py            write both files (`make golden`)
    python tests/golden/make.py --check    compare both files with the code (`make golden-check`)

``quick.json`` holds the figures of the demo's market with models that take seconds and one short attention
model; `tests/test_golden.py` compares them. ``demo.json`` holds the ladder and one backtest of
``configs/demo.yaml``, unchanged, which takes minutes.
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
        "lightgbm": {
            **{"rounds": 40, "evaluate_every": 20, "patience": 5, "min_data_in_leaf": 500},
            **{"feature_fraction": 0.7, "bagging_fraction": 0.7, "lambda_l2": 1.0, "stop_on": "rank_ic"},
        },
        "temporal_transformer": {"encoder": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1}},
    },
    "folds": {"scheme": "expanding", "train": 1800, "valid": 200, "test": 200, "embargo": 1, "max_folds": 1},
    "seeds": [0],
    "fit": {
        **{"epochs": 1, "batch_dates": 16, "lr": 0.002, "weight_decay": 1.0},
        **{"average": 0, "stop_on": "rank_ic"},
    },
}
"""Settings that replace those of the demo in the quick figures."""

STEADY = ("zero", "reversal", "ridge")
"""Models that are stable under rounding. Rounding can change a tree's split, and accumulates in training."""

TOLERANCE: Mapping[str, tuple[float, float]] = {
    "ic": (1e-5, 2e-3),
    "sharpe": (2e-3, 0.2),
    "nav": (1e-4, 0.01),
}
"""Largest absolute difference of correlations, Sharpe ratios and net asset values: (steady models, others).

With SSE4, AVX2 and AVX-512 kernels, the quick figures of steady models and LightGBM are equal to nine digits,
and those of the attention model within 3e-6.
"""

CALL = """
import json, sys
root, commands = sys.argv[1:]
sys.path.insert(0, root)
from pipelines.cli.main import main
for words in json.loads(commands):
    sys.argv = ["peerglass", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
RELATIVE_TOLERANCE = (1e-3, 0.05)
"""Largest relative difference of all other figures: (steady models, others)."""


def measure(settings: Mapping[str, Any], folder: Path) -> Figures:
    """Ingest, train and backtest a config in an empty folder; return its figures by model and delay."""
    own = {
        "root": ".",
        "lake": "lake",
        "output": "runs",
        "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "artifacts"},
    }
    config = folder / "golden.yaml"
    config.write_text(yaml.safe_dump({**settings, **own}))
    peerglass(
        folder,
        ("ingest", "golden.yaml"),
        ("train", "golden.yaml"),
        ("backtest", "latest", "--output", "runs"),
    )
    (run,) = (path.parent for path in (folder / "runs").glob("*/config.yaml"))
    (tables,) = (run / "evaluations").iterdir()
    return dict(
        figures(pl.read_parquet(tables / "ladder.parquet"), pl.read_parquet(tables / "equity.parquet"))
    )


def peerglass(folder: Path, *commands: tuple[str, ...]) -> None:
    """Call commands of this checkout in a folder, in one process; the first failure ends it."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(ROOT), json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"one of {commands} ended with {done.returncode}: {done.stderr[-2000:]}")


def figures(ladder: pl.DataFrame, equity: pl.DataFrame) -> Iterator[tuple[str, dict[str, float | None]]]:
    """All numbers of the ladder, and one book's net asset value on some dates."""
    for row in ladder.iter_rows(named=True):
        numbers = {name: value for name, value in row.items() if isinstance(value, float | None)}
        values = {name: rounded(value) for name, value in numbers.items() if name != "missing"}
        yield f"{row['model']} at delay {row['delay']}", values
    own = (pl.col("book") == BOOK) & (pl.col("delay") == 0)
    for (model,), book in equity.filter(own).sort("date").group_by("model", maintain_order=True):
        sample = book.gather_every(math.ceil(book.height / NAV_DATES))
        navs = {f"nav {date}": rounded(nav) for date, nav in sample.select("date", "nav_net").iter_rows()}
        yield f"{model} {BOOK}", navs


def rounded(value: float | None) -> float | None:
    """Round to nine digits; None for a missing or non-finite number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")


def differences(golden: Figures, new: Figures) -> Iterator[str]:
    """Name every golden figure that the new figures do not reproduce within its tolerance."""
    for row, values in golden.items():
        for name, expected in values.items():
            actual = new.get(row, {}).get(name)
            if expected is None or actual is None:
                is_close = expected is actual
            else:
                is_close = abs(actual - expected) <= tolerance(row, name, expected)
            if not is_close:
                yield f"{row}, {name}: {actual} instead of {expected}"


def tolerance(row: str, name: str, expected: float) -> float:
    """Largest difference of a figure that rounding on another processor explains."""
    unsteady = not row.startswith(STEADY)
    for part, bounds in TOLERANCE.items():
        if name.endswith("_" + part) or name == part or (part != "ic" and part in name):
            return bounds[unsteady]
    return RELATIVE_TOLERANCE[unsteady] * abs(expected) + 1e-6


def settings_of(kind: str) -> dict[str, Any]:
    """Return the settings of one of the two files."""
    demo: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    return {**demo, **(QUICK if kind == "quick" else {}), "name": "golden"}


def main() -> None:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", choices=("quick", "demo"), help="only one of the two files")
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["quick", "demo"]
    missing = [f"{kind}.json" for kind in kinds if not (HERE / f"{kind}.json").is_file()]
    if options.check and missing:
        sys.exit(f"There is nothing to compare with: {HERE} lacks {', '.join(missing)}; run make golden.")
    wrong = []
    for kind in kinds:
        path = HERE / f"{kind}.json"
        with tempfile.TemporaryDirectory() as folder:
            new = measure(settings_of(kind), Path(folder))
        if options.check:
            wrong += [f"{kind}: {line}" for line in differences(json.loads(path.read_text()), new)]
        else:
            path.write_text(json.dumps(new, indent=1) + "\n")
            print(f"wrote {path.relative_to(ROOT)}: {sum(map(len, new.values()))} figures")
    if wrong:
        cure = "If the change is intended, explain it in docs/experiments and run make golden."
        sys.exit("\n".join([*wrong, cure]))


if __name__ == "__main__":
    main()
