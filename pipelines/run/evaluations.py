"""The evaluations of a run: ``<run>/evaluations/<id>/`` holds the tables of a backtest and their settings.

Costs, books and delays do not change a forecast, so they are not part of a run's id. An evaluation has its
own id: a digest of those settings and of the code that measures forecasts. Different settings give an
additional evaluation. A report reads its tables and its assumptions from the folder of one evaluation.
"""

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl
from pydantic import BaseModel, ConfigDict

from features.panel.periods import SESSIONS_PER_YEAR
from pipelines.columns import TABLES
from pipelines.config.load import digest
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.backtest_files import describe_rate
from pipelines.errors import ConfigError
from pipelines.files import damaged, remove_partial, replacing
from pipelines.run.identity import folders_digest, plugin_digests
from pipelines.settings import Settings

_FOLDER: Final = "evaluations"
_RECORD: Final = "evaluation.json"
CODE: Final = (  # folders with the code that measures forecasts
    *("backtest", "features"),
    *("pipelines/config", "pipelines/dataset", "pipelines/results", "pipelines/run", "pipelines/train"),
)


class Evaluated(Protocol):
    """What has evaluations: a run, or the signals of a file."""

    @property
    def run_id(self) -> str:
        """Id of the run, or of the measured file."""

    @property
    def folder(self) -> Path:
        """Folder that holds the evaluations."""


class EvaluationRecord(BaseModel):
    """Settings and code that the tables of an evaluation were computed with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation: str
    made_at: dt.datetime  # the last time; a report shows the newest evaluation by default
    backtest: BacktestConfig
    rates: str | None = None  # `file_digest` of the file of risk-free rates; None if the rate is a number
    borrow_fees: str | None = None  # `file_digest` of the file of borrow fees that was used; None without one
    indices: dict[str, str] = {}  # benchmark -> `file_digest` of its file
    factors: dict[str, tuple[str, ...]] = {}  # entry of backtest.factors -> `file_digest` of its files
    delays: tuple[int, ...]  # at which forecasts were measured; that of training comes first
    code: str  # digest of the code that measured the forecasts
    commit: str
    trials: int  # number of trials that counted at that time. What is shown counts again.
    missing: tuple[tuple[str, int, int], ...] = ()  # (model, fold, seed) without forecasts
    incomplete: str | None = None  # description of the missing tasks; None for a complete run
    dates: int  # dates that all models forecast
    first: dt.date
    last: dt.date
    periods_per_year: float = SESSIONS_PER_YEAR  # sessions in a year, which annual figures use
    tested: str = ""  # the dates that the folds test, and those that they do not; empty without folds

    @property
    def assumptions(self) -> str:
        """Costs, books and execution delay in one line."""
        rate = describe_rate(self.backtest.risk_free)
        rate += "" if self.rates is None else f" (SHA-256 {self.rates})"
        return (
            f"{self.backtest.trading}, {self.periods_per_year:g} sessions a year, Sharpe ratios in excess of "
            f"{rate}; "
            f"books {', '.join(self.backtest.books)}; "
            f"benchmarks {', '.join(self.backtest.benchmarks) or 'none'}"
            + (f"; factors {', '.join(self.backtest.factors)}" if self.backtest.factors else "")
        )

    def apply_to(self, config: Config) -> Config:
        """Return a run's config with the settings of this evaluation."""
        label = config.label.model_copy(update={"extra_delays": self.delays[1:]})
        return config.model_copy(update={"backtest": self.backtest, "label": label})


@dataclass(frozen=True, slots=True)
class StoredEvaluation:
    """An evaluation on disk; ``recounted`` holds tables as they are now, read instead of stored ones."""

    record: EvaluationRecord
    folder: Path
    recounted: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def read_table(self, name: str) -> pl.DataFrame | None:
        """Read a table; None if the evaluation has no table of that name."""
        if name in self.recounted:
            return self.recounted[name]
        path = self.folder / f"{name}.parquet"
        again = f"delete {self.folder} and run 'peerglass backtest {self.folder.parents[1].name}' again"
        with damaged(f"The table {path}", again):
            return pl.read_parquet(path) if path.is_file() else None

    def table(self, name: str) -> pl.DataFrame:
        """Read a table that exists in every evaluation."""
        frame = self.read_table(name)
        assert frame is not None, f"every evaluation has the table {name}"
        return frame


def tradable_delay(delays: Iterable[int]) -> int:
    """Return the shortest delay of 1 session or more; the first (trained) delay if there is none."""
    every = tuple(delays)
    return min((delay for delay in every if delay >= 1), default=every[0])


def leader(ladder: pl.DataFrame) -> dict[str, Any]:
    """Row of the model with the highest validation rank IC; the first row if none has been validated."""
    ranked = ladder.drop_nulls("valid_rank_ic").sort("valid_rank_ic", descending=True, maintain_order=True)
    return (ranked if ranked.height else ladder).row(0, named=True)


def evaluation_id(config: Config) -> str:
    """Digest of everything that an evaluation of given forecasts depends on, the books' order too."""
    books = list(config.backtest.model_dump(mode="json")["books"].items())
    against = [
        (name, {**one.model_dump(mode="json"), "file": file_digest(one.file)})
        for name, one in config.backtest.benchmarks.items()
    ]
    parts = {**_assumptions(config.backtest), "books": books, "delays": config.label.delays}
    factors = list(factor_digests(config.backtest).items())
    own = {"plugins": plugin_digests(config)} if config.plugins else {}
    return digest({**parts, "benchmarks": against, "factors": factors, "code": evaluation_code(), **own})


def assumptions_id(backtest: BacktestConfig, delay: int) -> str:
    """Digest of what a book's returns depend on beside the book; ``delay`` is that of the label."""
    return digest(_assumptions(backtest) | {"delay": delay if backtest.delay is None else backtest.delay})


def return_settings(backtest: BacktestConfig) -> Settings:
    """Everything that the returns of books depend on beside forecasts and delay, books included."""
    return {**_assumptions(backtest), "books": backtest.model_dump(mode="json")["books"]}


def _assumptions(backtest: BacktestConfig) -> Settings:
    """What returns depend on beside the books, with digests instead of the paths of files."""
    parts: Settings = backtest.model_dump(mode="json", exclude={"books", "benchmarks", "factors"})
    rates = file_digest(backtest.risk_free)
    parts["risk_free"] = parts["risk_free"] if rates is None else rates
    parts["costs"]["borrow_file"] = file_digest(backtest.costs.borrow_file)
    parts["execution"]["price_limit_file"] = file_digest(backtest.execution.price_limit_file)
    return parts


def file_digest(setting: float | str | None) -> str | None:
    """First ten digits of the SHA-256 of a setting's file; None if it names none, empty if it is gone."""
    if not isinstance(setting, str):
        return None
    if not Path(setting).is_file():
        return ""
    return hashlib.sha256(Path(setting).read_bytes()).hexdigest()[:10]


def factor_digests(backtest: BacktestConfig) -> dict[str, tuple[str, ...]]:
    """Entry of ``factors`` -> `file_digest` of each of its files."""
    return {name: tuple(file_digest(one) or "" for one in files) for name, files in backtest.factors.items()}


def evaluation_code() -> str:
    """Digest of the code that measures forecasts, and of names and types of tables, not of their wording."""
    types = {name: {one: str(kind) for one, kind in table.types.items()} for name, table in TABLES.items()}
    return digest({"code": folders_digest(*CODE), "tables": types})


def store_evaluation(
    run: Evaluated, record: EvaluationRecord, made: Mapping[str, pl.DataFrame | None]
) -> StoredEvaluation:
    """Write an evaluation atomically, unless the newest is the same, and return it."""
    folder = run.folder / _FOLDER / record.evaluation
    tables = {name: frame for name, frame in made.items() if frame is not None}
    remove_partial(folder.parent)
    newest = newest_evaluation(run)
    if newest is not None and newest.folder == folder and _has_tables(folder, tables):
        return newest
    with replacing(folder) as partial:
        partial.mkdir()
        for name, frame in tables.items():
            frame.write_parquet(partial / f"{name}.parquet")
        (partial / _RECORD).write_text(record.model_dump_json(indent=1), encoding="utf-8")
    return StoredEvaluation(record, folder)


def list_evaluations(run: Evaluated) -> list[StoredEvaluation]:
    """List a run's evaluations, newest first."""
    found = []
    for path in (run.folder / _FOLDER).glob(f"[!.]*/{_RECORD}"):
        again = f"delete that folder and run 'peerglass backtest {run.run_id}' again"
        with damaged(f"The evaluation in {path.parent}", again):
            record = EvaluationRecord.model_validate_json(path.read_text(encoding="utf-8"))
        found.append(StoredEvaluation(record, path.parent))
    return sorted(found, key=lambda one: one.record.made_at, reverse=True)


def newest_evaluation(run: Evaluated) -> StoredEvaluation | None:
    """Return the newest evaluation; None if there is none."""
    return next(iter(list_evaluations(run)), None)


def find_evaluation(run: Evaluated, name: str) -> StoredEvaluation:
    """Return the evaluation of a run with this id, or with this unique prefix of its id."""
    known = list_evaluations(run)
    matches = [one for one in known if one.record.evaluation.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    listed = "; ".join(f"{one.record.evaluation} ({one.record.assumptions})" for one in known) or "none"
    wrong = "More than one evaluation" if matches else "No evaluation"
    raise ConfigError(f"{wrong} of {run.run_id} begins with {name!r}; choose among: {listed}.")


def _has_tables(folder: Path, tables: Mapping[str, pl.DataFrame]) -> bool:
    stored = {path.stem: path for path in folder.glob("*.parquet")}
    try:
        return stored.keys() == tables.keys() and all(
            pl.read_parquet(stored[name]).equals(frame) for name, frame in tables.items()
        )
    except (OSError, pl.exceptions.PolarsError):  # damaged, so written again
        return False
