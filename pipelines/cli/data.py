"""Verbs about features and data: ``features``, ``lake`` and ``quarantine``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.cli import group, lake_of, load
from pipelines.errors import ConfigError
from pipelines.terminal import say

if TYPE_CHECKING:
    from features.library.registry import Feature

FIELDS = ("close", "open", "high", "low", "volume", "group", "statements")  # kinds that a feature needs
_WIDTH_WITHOUT_TERMINAL = 250  # columns of the table when the output is a pipe or a file


def features(
    family: str | None = None,
    needs: str | None = None,
    as_json: bool = False,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> None:
    """List the feature library: formula, window, warm-up, unit, required data and source of each feature.

    Features of plugins are listed as well: those of a config with `--config`, and of installed packages.
    """
    from pipelines import plugins

    if config is None:
        plugins.load(plugins.announced())
    else:
        load(config, overrides)
    chosen = select(family, needs)
    if not as_json:
        print_table(chosen)
        return
    names = ("name", "family", "formula", "window", "warmup", "unit", "nan_rule", "needs", "source")
    records = [{name: getattr(one, name) for name in names} for one in chosen]
    print(json.dumps(records, indent=2, ensure_ascii=False, default=sorted))  # needs are a set


def select(family: str | None = None, needs: str | None = None) -> list[Feature]:
    """List channels and characteristics, optionally of one family and of those that use one kind of data."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from features.library.sets import ADDED

    known = {"family": (*CHANNELS.families, *CHARACTERISTICS.families), "needs": FIELDS}
    for name, given in (("family", family), ("needs", needs)):
        if given is not None and given not in known[name]:
            raise ConfigError(f"--{name} {given} does not exist: choose among {', '.join(known[name])}.")
    return [
        feature
        for registry in (CHANNELS, CHARACTERISTICS, *(one for added in ADDED.values() for one in added))
        for feature in registry.values()
        if family in (None, feature.family) and (needs is None or needs in _kinds(feature))
    ]


def _kinds(feature: Feature) -> tuple[str, ...]:
    """Kinds of data that a feature uses, in the order of `FIELDS`."""
    kinds = {need.partition(":")[0] for need in feature.needs}
    return tuple(field for field in FIELDS if field in kinds)


def needed(feature: Feature) -> str:
    """List the data that a feature uses, items of statements by name."""
    kinds = (kind for kind in _kinds(feature) if kind != "statements")
    return ", ".join([*kinds, *sorted(need.partition(":")[2] for need in feature.needs if ":" in need)])


def print_table(chosen: Iterable[Feature]) -> None:
    """Print features as a table in the width of the terminal, and the rules that apply to all of them."""
    from rich.console import Console
    from rich.table import Table

    from features.library.registry import NAN_RULE

    table = Table(show_lines=False, header_style="bold", pad_edge=False)
    for heading in ("name", "family", "formula", "window", "warm-up", "unit", "needs", "source"):
        numeric = heading in ("window", "warm-up")
        table.add_column(heading, overflow="fold", justify="right" if numeric else "left")
    for one in chosen:
        numbers = (str(one.window), str(one.warmup))
        table.add_row(one.name, one.family, one.formula, *numbers, one.unit, needed(one), one.source)
    width = None if Console().is_terminal else _WIDTH_WITHOUT_TERMINAL
    console = Console(markup=False, highlight=False, width=width)
    console.print(table, markup=False)
    console.print(f"{table.row_count} features. {NAN_RULE}", markup=False)


lake = group("lake")


@lake.command()
def status(config: Path, overrides: list[str] | None = None) -> None:
    """Print the version, rows, files and size of each table, and how much only old versions use."""
    from pipelines.lake import upkeep

    with lake_of(config, overrides) as (checked, held, _):
        runs = upkeep.recorded_by_runs(held, [Path(checked.output)])
        say(upkeep.describe_status(held, upkeep.recorded_in_lake(held) | runs))


@lake.command()
def compact(config: Path, overrides: list[str] | None = None, wait: bool = False) -> None:
    """Join small files of many ingests into larger ones. All versions stay readable, and so do all runs."""
    from pipelines.lake import upkeep

    with lake_of(config, overrides, wait=wait) as (_, held, progress):
        with progress.stage("compact"):
            done = upkeep.compact(held)
        say(upkeep.describe_compaction(done))


@lake.command()
def vacuum(
    config: Path,
    *,
    keep_days: int,
    dry_run: bool = False,
    runs: list[Path] | None = None,
    forget: list[str] | None = None,
    forget_runs: bool = False,
    overrides: list[str] | None = None,
    wait: bool = False,
) -> None:
    """Remove files that only old versions use, and files left by interrupted writes.

    The versions that a run or a night has read are kept at any age: every run is registered in its lake when
    it starts, and every signal of a night names the versions that it was computed from.
    Runs in the tracking store, in the config's output folder and in every `--runs` folder are kept as well.
    Nothing is removed if the tracking store cannot be reached. The newest version of each table is always
    kept.

    Start with a dry run, which takes no lock: `peerglass lake vacuum my.yaml --keep-days 90 --dry-run`
    """
    from pipelines.lake import upkeep
    from pipelines.tracking.store import versions_in_use

    for folder in runs or []:
        if not folder.is_dir():
            raise ConfigError(f"--runs: {folder} is not a folder; check the path.")
    with lake_of(config, overrides, wait=None if dry_run else wait) as (checked, held, progress):
        recorded = versions_in_use(checked, held, runs or [])
        run_ids = {run for _, _, run in recorded}
        for name in forget or []:
            if name not in run_ids:
                raise ConfigError(
                    f"--forget {name}: no run of that id has recorded a version of the lake {held.root}; "
                    f"choose among {', '.join(sorted(run_ids)) or 'none'}."
                )
        with progress.stage("vacuum"):
            plans = upkeep.vacuum(
                held,
                keep=timedelta(days=keep_days),
                recorded={entry for entry in recorded if entry[2] not in (forget or [])},
                protect=not forget_runs,
                dry_run=dry_run,
            )
        say(upkeep.describe_vacuum(plans, dry_run=dry_run))


quarantine = group("quarantine")


@quarantine.command(name="list")
def list_rows(
    config: Path,
    *,
    rule: str | None = None,
    ticker: str | None = None,
    table: str | None = None,
    limit: int = 20,
    overrides: list[str] | None = None,
) -> None:
    """Count rejected, resolved, flagged and released rows by rule, and show the first rows.

    Each line shows the hash of the row (a prefix of it is enough for `release --row`), its state and the
    time of that state, the table, ticker and date, the rule, and the values or the evidence.
    """
    from pipelines.ingest.quarantine import Selection, describe_listing, listing

    with lake_of(config, overrides) as (_, held, _):
        say(describe_listing(listing(held, Selection(rule, ticker, table)), limit))


@quarantine.command()
def release(
    config: Path,
    *,
    rule: str | None = None,
    ticker: str | None = None,
    row: str | None = None,
    table: str | None = None,
    overrides: list[str] | None = None,
    wait: bool = False,
) -> None:
    """Accept rows as they are: rejected rows go into their table, and flags on stored rows are cleared.

    Give at least one of `--rule`, `--ticker` and `--row`; a row must match all that are given. A released row
    is not checked again until one of its values changes. The lake records what was released and when.

    A resolved row (rejected, and corrected by a later delivery) cannot be released, because it would replace
    the correction. Rows that cannot be stored stay in the quarantine: unreadable, missing or infinite values,
    names that are paths or markup, and two rows with the same key (release one of them by its hash).
    """
    from pipelines.ingest.quarantine import Selection
    from pipelines.ingest.quarantine import release as accept

    with lake_of(config, overrides, wait=wait) as (_, held, _):
        say(accept(held, Selection(rule, ticker, table, row)))


VERBS: Final = (features, lake, quarantine)
