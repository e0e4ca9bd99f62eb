"""``peerglass init``: look at a price file and write a config that runs on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


def init(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="CSV, Excel or Parquet file of prices, a quoted pattern, or a folder."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="CONFIG", help="Config to write. Default: the file's name with .yaml, here."
        ),
    ] = None,
    *,
    date_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="strptime format of the dates, such as %d.%m.%Y, if it is ambiguous; or excel, or epoch.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing config.")] = False,
) -> None:
    """Look at a price file and write a config that runs on it.

    The file has one row per date and ticker with at least a close, or one column of closes per ticker. A
    folder or a pattern may have one file per ticker, named after it. Vendor, separator, decimal mark,
    encoding, column names and dates are recognised and written into the config, with folds and books that fit
    the length of the history and the number of firms. Read it before you run it: costs and the universe are
    assumptions.

    Example: `peerglass init prices.csv`, then `peerglass run prices.yaml`
    """
    from pipelines.config.draft import write_draft

    stem = re.sub(r"[*?\[\]]", "", file.name.partition(".")[0]).strip() or "prices"
    target = Path(f"{stem}.yaml") if config is None else config
    draft = write_draft(file, target, date_format, force=force)
    typer.echo(
        f"{target}: {draft.rows:,} prices of {draft.firms:,} firms, {draft.sessions:,} sessions from "
        f"{draft.first} to {draft.last}"
    )
    if draft.rejected:
        what = "rows cannot be used as prices and will be quarantined"
        typer.echo(f"{draft.rejected:,} {what}: {draft.broken}")
    for note in (*draft.notes, *draft.hazards):
        typer.echo(f"note: {note}")
    typer.echo(f"next: read {target}, then run: peerglass run {target}")
