"""Model versions as sides of ``peerglass compare``: their signals of the nights that all of them forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines.config.schema import Config
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.errors import DataError
from pipelines.nightly.guard import night_signals
from pipelines.nightly.versions import find_version, trained_through
from pipelines.progress import Progress
from pipelines.results.evaluate import evaluate
from pipelines.results.evaluate_run import evaluation_record
from pipelines.results.evaluate_signals import with_tradable_delay
from pipelines.results.run_comparison import ComparedModel, choose_delay_and_book, daily_series, tried_by_now
from pipelines.run.record import git_commit


def is_version(name: str) -> bool:
    """Whether a name of ``peerglass compare`` is that of a model version: ``RUN/MODEL`` or an alias."""
    return name in ("champion", "challenger") or ("/" in name and not Path(name).is_dir())


def open_versions(
    names: Sequence[str], config: Config | None, output: Path, delay: int | None, book: str | None
) -> list[ComparedModel]:
    """Open model versions for a comparison, measured on the sessions that all of them forecast at night.

    These are first revisions, made without having seen the labels. Books and costs are those of the config,
    or of the first version's run. Nothing is stored, and no trial is counted: the signals were used before
    they were measured.
    """
    found = [find_version(name, config, output) for name in names]
    settings, _ = with_tradable_delay(found[0][1].config if config is None else config)
    settings = settings.model_copy(update={"models": {}})
    progress = Progress()
    lake = open_lake(settings, progress.note)
    with progress.stage("prices"):
        market = build_market(read_market_tables(lake, input_versions(lake)), settings)
    signals = night_signals(lake, settings, market, {version: trained_through(run) for version, run in found})
    common_T = np.logical_and.reduce([np.isfinite(one_TN).any(axis=1) for one_TN in signals.values()])
    if not common_T.any():
        raise DataError(
            f"No session was forecast at night by all of {', '.join(map(str, signals))}; compare them after "
            "some nights with a challenger."
        )
    sessions = np.flatnonzero(common_T)
    forecasts = {
        str(version): {0: np.where(common_T[:, None], one_TN, np.nan)} for version, one_TN in signals.items()
    }
    delay, book = choose_delay_and_book(
        f"The config {settings.name}", delay, settings.label.delays, book, list(settings.backtest.books)
    )
    with progress.stage("backtest"):
        measured = evaluate(forecasts, market, settings, sessions=np.arange(sessions[0], sessions[-1] + 1))
    record = evaluation_record(settings, market.panel, sessions, 0, git_commit())
    tried = tried_by_now(record, settings, delay, Path(settings.output))
    return [
        ComparedModel(
            name=str(version),
            run=run,
            record=record,
            model=version.model,
            book=book,
            delay=delay,
            tried=tried,
            daily=daily_series(
                measured.ic_series, measured.equity, model=str(version), delay=delay, book=book
            ),
        )
        for version, run in found
    ]
