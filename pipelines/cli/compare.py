"""``peerglass compare``: models of different runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, JsonOption, OutputOption
from pipelines.errors import ConfigError


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Two or more runs or measured signals, by the names that `peerglass runs list` shows. "
            "RUN:MODEL names a model or a signal; RUN alone means the leader on validation. Or "
            "two or more model versions: RUN/MODEL, `champion` or `challenger`; aliases need --config.",
        ),
    ],
    *,
    delay: Annotated[
        int | None, typer.Option(min=0, help="Delay in sessions. Default: the first that can be traded.")
    ] = None,
    book: Annotated[str | None, typer.Option(help="Name of a book. Default: the first one.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="Aliases, books and costs of versions. Default: the run's."),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = RUNS_FOLDER,
) -> None:
    """Put models of different runs side by side, with paired tests of the difference to the first one.

    Every figure is measured on the dates that all of them have, from each run's newest evaluation. The answer
    to "beats" is yes, no or unclear, by the tests that a report uses. What differs is listed: data versions,
    settings, code, costs and books. ICs are compared only if the labels are the same.

    Model versions are compared on the sessions that all of them forecast at night without having seen their
    labels, by the first revision of their signals.

    Examples
    --------
    - `peerglass compare champion challenger --config configs/nightly_demo.yaml`
    - `peerglass compare my-run-1a2b my-run-3c4d`
    - `peerglass compare my-run-1a2b:ridge my-run-1a2b:self_peer --delay 1`
    """
    from pipelines.commands.compare import is_version, open_versions
    from pipelines.commands.promote import config_of_option
    from pipelines.results.run_comparison import compare as compare_candidates
    from pipelines.results.run_comparison import comparison_json, describe_candidates, open_candidate

    of_nights = [name for name in runs if is_version(name)]
    if of_nights and len(of_nights) < len(runs):
        raise ConfigError(
            f"{of_nights[0]} is a model version, which is measured on its nights, and the others are runs, "
            "which are measured on their tests; compare versions with versions."
        )
    if of_nights:
        settings = config_of_option(config, [])
        folder = output if settings is None else Path(settings.output)
        candidates = open_versions(runs, settings, folder, delay, book)
    else:
        candidates = [open_candidate(name, output, delay, book) for name in runs]
    comparison = compare_candidates(candidates)
    typer.echo(comparison_json(comparison) if as_json else describe_candidates(comparison))
