"""``peerglass explore``: the peer networks of a run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, OutputOption, RunArgument, WaitOption


def explore(
    run: RunArgument,
    *,
    model: Annotated[
        str | None, typer.Option(help="Model of the run. Default: every model that has a peer network.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write. Default: explorer.html in the run's folder."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the default browser.")] = False,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Write the peer network of a run as one self-contained HTML page and print its path.

    The page is made from the tables of `peerglass explain`, which `peerglass run` includes. Choose a date and
    a firm to see which peers moved its forecast and which forecasts it moved, with error bars, t-statistics
    and the edges that survive the control of false discoveries; what changed since an earlier date; and
    Shapley values beside attention. Sectors and t-statistics filter it. The verdict on attention is at the
    top.

    The page needs no server and requests nothing, so it can be mailed. Add `#TICKER/DATE` to its address to
    open a firm on a date.

    A run without a peer network ends with exit code 3, and a model without one with exit code 2.

    Examples
    --------
    - `peerglass explore latest --open`
    - `peerglass explore my-run-1a2b --model temporal_peer --out network.html`
    """
    from pipelines.stages import explore_run

    path = explore_run(run, output, model, out, wait=wait)
    print(path)
    if show:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            typer.echo("There is no browser here; open the file above in one.", err=True)
