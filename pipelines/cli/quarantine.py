"""``peerglass quarantine``: list the rows that ingest rejected or flagged, and release correct ones."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import ConfigArgument, SetOption, WaitOption

app = typer.Typer(
    name="quarantine",
    help=(
        "List the rows that ingest rejected or flagged, and release those that are correct.\n\n"
        "A row that contradicts itself (a negative price, a high below the low, a key delivered twice with "
        "different values) is rejected: it goes into the quarantine and not into its table. A row that looks "
        "suspicious next to its neighbours (a spike that reverts, a split-like return without a recorded "
        "split, a repeated price) is flagged: it stays in its table and is also listed here. The config's "
        "section 'quality' sets each of these rules to reject, flag or off.\n\n"
        "Usual steps:\n\n"
        "1. `peerglass quarantine list my.yaml` counts the rows by rule. Add `--rule RULE` to see the rows "
        "of one rule.\n"
        "2. Correct them at the source and ingest again. A corrected row replaces a flagged one; a rejected "
        "row that was corrected is listed as resolved.\n"
        "3. Use `peerglass quarantine release` for rows that are correct as they are."
    ),
    no_args_is_help=True,
)

RuleOption = Annotated[
    str | None, typer.Option("--rule", metavar="RULE", help="Only rows that broke this rule.")
]
TickerOption = Annotated[
    str | None, typer.Option("--ticker", metavar="TICKER", help="Only rows of this ticker.")
]
TableOption = Annotated[
    str | None, typer.Option("--table", metavar="TABLE", help="Only rows of this lake table, such as prices.")
]


@app.command(name="list")
def list_(
    config: ConfigArgument,
    *,
    rule: RuleOption = None,
    ticker: TickerOption = None,
    table: TableOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of rows to show below the counts.")] = 20,
    overrides: SetOption = None,
) -> None:
    """Count rejected, resolved, flagged and released rows by rule, and show the first rows.

    Each line shows the hash of the row (a prefix of it is enough for `release --row`), its state and the
    time of that state, the table, ticker and date, the rule, and the values or the evidence.
    """
    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.ingest.quarantine import Selection, describe_listing, listing

    lake = open_lake(load_config(config, overrides or []))
    print(describe_listing(listing(lake, Selection(rule, ticker, table)), limit))


@app.command()
def release(
    config: ConfigArgument,
    *,
    rule: RuleOption = None,
    ticker: TickerOption = None,
    row: Annotated[
        str | None,
        typer.Option("--row", metavar="HASH", help="Only the row with this hash, or with this prefix of it."),
    ] = None,
    table: TableOption = None,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Accept rows as they are: rejected rows go into their table, and flags on stored rows are cleared.

    Give at least one of `--rule`, `--ticker` and `--row`; a row must match all that are given. A released row
    is not checked again until one of its values changes. The lake records what was released and when.

    A resolved row (rejected, and corrected by a later delivery) cannot be released, because it would replace
    the correction. Rows that cannot be stored stay in the quarantine: unreadable, missing or infinite values,
    names that are paths or markup, and two rows with the same key (release one of them by its hash).
    """
    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.ingest.quarantine import Selection
    from pipelines.ingest.quarantine import release as accept
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks

    progress = Progress()
    lake = open_lake(load_config(config, overrides or []), progress.note)
    with Locks(wait=wait, notify=progress.note) as locks:
        locks.lock_existing_lake(lake)
        summary = accept(lake, Selection(rule, ticker, table, row))
    print(summary)
