"""``peerglass compare``: models of different runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.options import RUNS_FOLDER, OutputOption


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Two or more runs. RUN:MODEL names a model; RUN alone means the leader on validation.",
        ),
    ],
    *,
    delay: Annotated[
        int | None, typer.Option(min=0, help="Delay in sessions. Default: the first that can be traded.")
    ] = None,
    book: Annotated[str | None, typer.Option(help="Name of a book. Default: the first one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: OutputOption = RUNS_FOLDER,
) -> None:
    """Put models of different runs side by side, with paired tests of the difference to the first one.

    Every figure is measured on the dates that all of them have, from each run's newest evaluation. The answer
    to "beats" is yes, no or unclear, by the tests that a report uses. What differs is listed: data versions,
    settings, code, costs and books. ICs are compared only if the labels are the same.

    Examples
    --------
    - `peerglass compare my-run-1a2b my-run-3c4d`
    - `peerglass compare my-run-1a2b:ridge my-run-1a2b:self_peer --delay 1`
    """
    from pipelines.results.compare.candidates import open_candidate
    from pipelines.results.compare.compare import compare as compare_candidates
    from pipelines.results.compare.describe import comparison_json, describe_comparison

    comparison = compare_candidates([open_candidate(name, output, delay, book) for name in runs])
    typer.echo(comparison_json(comparison) if as_json else describe_comparison(comparison))
