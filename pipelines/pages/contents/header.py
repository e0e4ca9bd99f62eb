"""The header of a report: the run's identity, data versions and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from features.panel.periods import SESSIONS_PER_YEAR
from pipelines.pages.contents.frames import require_columns

VERSION_COLUMNS = ("table", "version", "rows")
AUDIT_COLUMNS = ("check", "verdict", "sentence")
EVALUATION_COLUMNS = ("evaluation", "made_at", "commit", "assumptions", "shown")
SESSION_SCHEMA = {
    "started": pl.String,
    "tasks": pl.Int64,
    "commit": pl.String,
    "code": pl.String,
    "device": pl.String,
    "torch": pl.String,
    "trials": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What makes the numbers of a report traceable: run, code, data, settings and warnings.

    Attributes
    ----------
    run_id, name, created_at
        Identity of the run. ``created_at`` is the time of the newest result shown, printed as given.
    git_commit
        Commits of the code that trained the models, in the order of the training sessions; None if they
        were not recorded.
    config_yaml, config_hash
        The resolved configuration and its digest.
    device
        Description of the device that trained the models.
    libraries
        Library -> version used in training. If training sessions used different versions, all are listed.
    data_versions
        table, version (Int, null if the table has no versions), rows.
    trial_count
        Number of trials that count against the results, including those that were discarded, when the report
        was made.
    trial_reach
        Newest trial among them, and their hypothesis, to stand behind "3 trials in the ledger".
    seeds
        Seeds of the ensemble.
    label_delay, label_horizon
        In sessions.
    verdict_delay
        The first delay that can be traded among those that were measured, in sessions; ``label_delay`` if
        there is none. The verdict is based on the rows of the ladder with this delay.
    execution_delay
        Sessions between decision and trade of the books in these rows.
    label_transform
        raw, demean or rank.
    universe
        Description of the universe rule.
    mean_firms_per_date
        Mean number of firms in the universe over the test sessions.
    main_book
        The book in ``equity`` to which the ladder's Sharpe ratio, turnover, return and drawdown refer.
    stage_seconds
        Stage -> wall-clock seconds, in order of execution.
    sharpe_rate
        Description of the risk-free rate that Sharpe ratios subtract.
    periods_per_year
        Sessions in a year, which annual figures use.
    hazards
        Reasons why the numbers may be wrong, one sentence each. Shown in the amber box.
    notes
        Other things that a reader should know, one sentence each.
    audit
        check, verdict (fail, warn, pass, skipped), sentence: the latest audit; None if there was none.
    evaluation
        Id of the evaluation whose tables are shown.
    evaluations
        evaluation, made_at, commit, assumptions, shown (bool): all evaluations of the run, newest first.
    sessions
        started, tasks (number completed), commit, code (digest), device, torch, trials: one row per training
        session.
    incomplete
        Description of the tasks that have no forecasts; None if the run is complete.
    measured_on
        Description of the dates that all models forecast. Models are compared on these dates.
    trained
        Whether models were trained. False for the signals of a file: there is no validation then, and the
        report is about the first signal.
    tables
        Folder of the evaluation's Parquet files, relative to the report.
    coverage
        What was and was not tested, one sentence each.
    """

    run_id: str
    name: str
    created_at: str
    git_commit: str | None
    config_yaml: str
    config_hash: str
    device: str
    libraries: Mapping[str, str]
    data_versions: pl.DataFrame
    trial_count: int
    seeds: tuple[int, ...]
    label_delay: int
    label_horizon: int
    verdict_delay: int
    execution_delay: int
    label_transform: str
    universe: str
    mean_firms_per_date: float
    main_book: str
    stage_seconds: Mapping[str, float]
    sharpe_rate: str = "a rate of 0"
    periods_per_year: float = SESSIONS_PER_YEAR
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    audit: pl.DataFrame | None = None
    evaluation: str = ""
    evaluations: pl.DataFrame | None = None
    sessions: pl.DataFrame | None = None
    incomplete: str | None = None
    measured_on: str | None = None
    trained: bool = True
    tables: str | None = None
    coverage: tuple[str, ...] = ()
    trial_reach: str = ""

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("data_versions", self.data_versions, VERSION_COLUMNS)
        require_columns("audit", self.audit, AUDIT_COLUMNS)
        require_columns("evaluations", self.evaluations, EVALUATION_COLUMNS)
        require_columns("sessions", self.sessions, tuple(SESSION_SCHEMA))
