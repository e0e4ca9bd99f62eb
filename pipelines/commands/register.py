"""Register a config before its test is opened."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.config.schema import Config
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError
from pipelines.nightly.record import publish
from pipelines.progress import Progress
from pipelines.run.completeness import committed_tasks
from pipelines.run.evaluations import tradable_delay
from pipelines.run.locks import Locks
from pipelines.run.open import prepare_run
from pipelines.run.registration import FOLDER, opened_before, seal_registration
from pipelines.train.trials import Scope, count_measured


def register_config(config: Config, as_of: str | None = None, *, wait: bool = False) -> dict[str, Any]:
    """Seal what a config would run on the data of its lake, and say whether its test was opened before.

    Returned is the entry of the chain, with ``first``, ``last`` and ``sessions`` of the test, ``folds``,
    ``folder`` of the chain, and ``late`` (what had opened the test, in words; empty if nothing had).
    ConfigError if the folds have no test; DataError if the lake has no data, the registrations do not verify,
    or another process registers.
    """
    if config.folds.scheme == "live":
        raise ConfigError("folds.scheme is live, so there is no test to register; use walk-forward folds.")
    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks:
        run, dataset, lake = prepare_run(config, progress, as_of, record=False)
        output = Path(config.output)
        locks.lock_file(output / FOLDER / ".lock", f"The registrations in {output}")
        dates_T, folds = dataset.panel.dates_T, plan_folds(dataset, config)
        test = np.unique(np.concatenate([fold.test for fold in folds]))
        delay = config.backtest.delay
        delay = tradable_delay(config.label.delays) if delay is None else delay
        # a book earns after its decision, first at the close behind that of the trade
        earned = np.minimum(test[[0, -1]] + delay + 1, len(dates_T) - 1)
        entry = seal_registration(
            run,
            {fold.index: dates_T[fold.test].tolist() for fold in folds},
            count_measured(output, Scope.of(config), *dates_T[earned].tolist()),
            trained=committed_tasks(run.run_id, lake).height > 0,
            now=dt.datetime.now(dt.UTC),
        )
        for finding in publish(config, registered=True):
            progress.note(finding.sentence)
    first, last = dates_T[test[[0, -1]]].tolist()
    about = {"first": first, "last": last, "sessions": len(test), "folds": len(folds)}
    return {**entry, **about, "folder": str(output / FOLDER), "late": opened_before(entry)}


def describe_registered(entry: Mapping[str, Any]) -> str:
    """Format the answer of :func:`register_config` for a terminal."""
    late = entry["late"]
    when = f"LATE: the test was opened before; {late}" if late else "before the test was opened"
    at, plural = entry["sealed_at"], "" if entry["folds"] == 1 else "s"
    return "\n".join(
        [
            f"registered {entry['run']} on {at[:10]} {at[11:16]} UTC, {when}",
            f"  test     {entry['first']} to {entry['last']}, {entry['sessions']:,} sessions in "
            f"{entry['folds']} fold{plural}",
            f"  sealed   {entry['folder']}/{entry['session']}",
            f"  hash     {entry['hash']}",
            "Keep the hash where you cannot rewrite it, such as a mail to others or a git repository.",
        ]
    )
