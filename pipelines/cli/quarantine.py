"""``peerglass quarantine``: what ingest kept out or doubts, and accepting it in spite of the rule."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.options import ConfigArgument, SetOption, WaitOption

quarantine_app = typer.Typer(
    name="quarantine",
    help=(
        "Look at the rows that ingest kept out or doubts, and accept those that are right after all.\n\n"
        "A row that contradicts itself (a negative price, high below low, a key delivered twice with "
        "different values) is rejected: it is kept here and not in its table. A row that only looks wrong "
        "beside its neighbours (a spike that reverts, a return like a split's with no split recorded, a "
        "stale run) is flagged: it stays in its table and is listed here. The config's 'quality' section "
        "turns each of those rules to reject, flag or off.\n\n"
        "Usual course: 'list CONFIG' for the counts by rule, 'list CONFIG --rule RULE' for the rows; mend "
        "them at the source and ingest again: a corrected row takes the place of a flagged one, and a "
        "rejected row that was mended is listed as resolved. 'release' is for rows that are right as is."
    ),
    no_args_is_help=True,
)

RuleOption = Annotated[str | None, typer.Option("--rule", help="Rows that broke this rule.")]
TickerOption = Annotated[str | None, typer.Option("--ticker", help="Rows of this ticker.")]
TableOption = Annotated[str | None, typer.Option("--table", help="Rows of this lake table, such as prices.")]


@quarantine_app.command(name="list")
def list_(
    config: ConfigArgument,
    *,
    rule: RuleOption = None,
    ticker: TickerOption = None,
    table: TableOption = None,
    limit: Annotated[int, typer.Option(min=0, help="How many rows to show below the counts.")] = 20,
    overrides: SetOption = None,
) -> None:
    """Count the rejected, resolved, flagged and released rows by rule, and show the first of them.

    A line has the row's hash (its beginning is enough for 'release --row'), its state, when that was decided,
    the table, ticker and date, the rule, and the row's values or the evidence.
    """
    from pipelines.config.load import load_config
    from pipelines.quality.quarantine import Selection, describe_listing, listing
    from pipelines.run.open import open_lake

    lake = open_lake(load_config(config, overrides or []))
    print(describe_listing(listing(lake, Selection(rule, ticker, table)), limit))


@quarantine_app.command()
def release(
    config: ConfigArgument,
    *,
    rule: RuleOption = None,
    ticker: TickerOption = None,
    row: Annotated[
        str | None,
        typer.Option("--row", metavar="HASH", help="One row, by its hash or the hash's beginning."),
    ] = None,
    table: TableOption = None,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Accept rows as they are: rejected ones go into their table, doubts about stored ones are cleared.

    Name at least a rule, a ticker or a row; several together must all fit. No rule judges a released row
    again until one of its values changes, and the lake remembers what was released and when. A rejected row
    that a later delivery mended (resolved) cannot be released: it would replace the correction. What cannot
    be stored stays: unreadable, missing or infinite values, names that are paths or markup, and two rows of
    one key (release one of them by its hash).
    """
    from pipelines.config.load import load_config
    from pipelines.progress import Progress
    from pipelines.quality.quarantine import Selection
    from pipelines.quality.quarantine import release as accept
    from pipelines.run.locks import Locks
    from pipelines.run.open import open_lake

    progress = Progress()
    lake = open_lake(load_config(config, overrides or []), progress.note)
    with Locks(wait=wait, notify=progress.note) as locks:
        locks.lock_existing_lake(lake)
        told = accept(lake, Selection(rule, ticker, table, row))
    print(told)
