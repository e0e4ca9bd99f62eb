"""``peerglass demo``: the whole pipeline on the simulated market that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from pipelines.cli import SetOption, WaitOption

# configs/ is next to the packages, both in a checkout and in an installed wheel.
DEMO_CONFIG: Final = Path(__file__).parents[2] / "configs" / "demo.yaml"


def demo(overrides: SetOption = None, wait: WaitOption = False) -> None:
    """Run the whole pipeline on a simulated market and print the path of the report.

    Needs no data and no network. Everything is written under `data/` in the current folder. The market has
    planted structure, so the report can compare each model's information coefficient with the highest
    possible one, and can check whether the Shapley values find the planted peer edges.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import run_config

    print(run_config(load_config(DEMO_CONFIG, overrides or [], root=Path.cwd()), echo=typer.echo, wait=wait))
