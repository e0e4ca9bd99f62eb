"""Runs: open one, and read its forecasts, tables, evaluations and report."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url
from pipelines.progress import Silent
from pipelines.results.recount import RECOUNTED, recount
from pipelines.results.signal_file import MeasuredSignals, find_signals
from pipelines.run.evaluations import StoredEvaluation, find_evaluation, list_evaluations
from pipelines.run.open import load_run_data
from pipelines.run.record import RecordedRun, list_records
from pipelines.run.record import open_run as open_recorded_run
from pipelines.train.trials import ledger_state

OUTPUT = Path("data/runs")


@dataclass(frozen=True, eq=False)
class Run:
    """A recorded run: a config on one version of the data, with its forecasts and results.

    The signals of a measured file are opened the same way. They have evaluations, tables and a report, but no
    forecasts, no dataset and no peer network.

    Made by :func:`open_run`. Reading changes nothing on disk, except for :meth:`report` and
    :meth:`explorer`.

    Attributes
    ----------
    recorded
        The run, or the measured signals, as the pipeline opens them.

    Examples
    --------
    >>> import peerglass
    >>> run = peerglass.open_run("latest")
    >>> run.table("ladder").columns[:2]
    ['model', ...]
    """

    recorded: RecordedRun | MeasuredSignals
    _counted: dict[tuple[object, ...], StoredEvaluation] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<peerglass run {self.id}>"

    @property
    def id(self) -> str:
        """Id of the run: name of the config and a digest of everything that its forecasts depend on."""
        return self.recorded.run_id

    @property
    def folder(self) -> Path:
        """Folder of the run's files."""
        return self.recorded.folder

    @property
    def config(self) -> Config:
        """Settings of the run, with every default filled in."""
        return self.recorded.config

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models in the order of the config, or of the signals in the order of their file."""
        if isinstance(self.recorded, MeasuredSignals):
            return tuple(self.recorded.record.signals)
        return tuple(self.config.models)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Ids of the evaluations (backtests) of the run, newest first."""
        return tuple(one.record.evaluation for one in list_evaluations(self.recorded))

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that :meth:`table` returns: those of the newest evaluation, then the run's."""
        newest = [self._evaluation(None)] if self.evaluations else []
        stored = [
            path.stem
            for folder in [*(one.folder for one in newest), self.folder / "tables"]
            for path in sorted(folder.glob("*.parquet"))
        ]
        counted = [name for one in newest for name in self._recount(one).recounted]
        return tuple(dict.fromkeys([*stored, *counted]))

    def table(self, name: str, evaluation: str | None = None) -> pl.DataFrame:
        """Return a table of an evaluation or of the run.

        Parameters
        ----------
        name
            Name of the table, one of :attr:`tables`. ``ladder`` has one row per model and delay with the
            information coefficients and Sharpe ratios; ``equity`` has the returns of every book;
            ``significance``, ``overfitting`` and ``trials`` count what was tried up to this call; the tables
            that begin with ``explain_`` are those of an attribution.
        evaluation
            Id of an evaluation, or a unique prefix of it. None: the newest one.

        Raises
        ------
        ConfigError
            If there is no such table or evaluation.
        """
        found = None
        if self.evaluations or evaluation:
            opened = self._evaluation(evaluation)
            found = (self._recount(opened) if name in RECOUNTED else opened).read_table(name)
        if found is None and evaluation is None:
            found = self.recorded.read_table(name) if isinstance(self.recorded, RecordedRun) else None
        if found is None:
            raise ConfigError(
                f"The run {self.id} has no table {name!r}; choose among: {', '.join(self.tables) or 'none'}. "
                f"'peerglass backtest {self.id}' makes the tables of an evaluation, 'peerglass explain "
                f"{self.id}' those of an attribution."
            )
        return found

    def _recount(self, evaluation: StoredEvaluation) -> StoredEvaluation:
        """Count an evaluation's trials again, once for each state of the ledger."""
        key = (evaluation.record.evaluation, evaluation.record.made_at, ledger_state(self.folder.parent))
        if key not in self._counted:
            self._counted.clear()
            self._counted[key] = recount(self.recorded, evaluation)
        return self._counted[key]

    def forecasts(self, models: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the out-of-sample forecasts of the run.

        Parameters
        ----------
        models
            Names of models. None: all of them.

        Returns
        -------
        polars.DataFrame
            date, ticker, model, fold, seed, forecast, label; sorted by model, seed, date and ticker. A
            forecast dated t uses what was known at the close of t, in the unit of the training target. The
            label is the return over the config's horizon and delay, a fraction; null where it is not known.

        Raises
        ------
        ConfigError
            If the run has no such model.
        DataError
            If nothing has been forecast yet.
        """
        for name in models or ():
            self._require_model(name)
        lake = self._lake()
        own = pl.col("run_id") == self.id
        if models is not None:
            own &= pl.col("model").is_in(list(models))
        rows = lake.read("forecasts", filters=own) if lake.exists("forecasts") else None
        if rows is None or rows.is_empty():
            raise DataError(f"The run {self.id} has no forecasts in {lake.root}; train its config first.")
        columns = ("date", "ticker", "model", "fold", "seed", "forecast", "label")
        return rows.select(columns).sort("model", "seed", "date", "ticker")

    def report(self) -> Path:
        """Return the path of the run's report, one HTML file; it is written first if there is none."""
        path = self.folder / "report.html"
        if not path.is_file():
            from pipelines.stages import report_run

            report_run(str(self.folder), self.folder.parent)
        return path

    def explorer(self, model: str | None = None, out: str | Path | None = None) -> Path:
        """Write the explorer of the run's peer networks, one HTML file, and return its path.

        Parameters
        ----------
        model
            The only model to show. None: every model that has a network.
        out
            File to write. None: ``explorer.html`` in the run's folder.

        Raises
        ------
        ConfigError
            If the run has no such model, or the model has no network.
        DataError
            If the run has no network; ``peerglass explain`` makes one for models with peers.

        Notes
        -----
        The page needs no server. In a notebook, show it by ``IPython.display.IFrame``. The address
        ``explorer.html#TICKER/2024-03-01`` opens a firm on a date.
        """
        from pipelines.stages import explore_run

        return explore_run(
            str(self.trained.folder), self.folder.parent, model, None if out is None else Path(out)
        )

    @functools.cached_property
    def data(self) -> tuple[Dataset, Lake]:
        """Dataset that the run was made on, built from the recorded data versions, and its lake."""
        return load_run_data(self.trained, Silent())

    def _lake(self) -> Lake:
        place = self.trained.identity.lake
        return Lake(self.config.lake if is_url(place) else place, self.config.lake_options)

    @property
    def trained(self) -> RecordedRun:
        """The run as the pipeline opens it; ConfigError for measured signals, which have no models."""
        if isinstance(self.recorded, MeasuredSignals):
            raise ConfigError(
                f"{self.id} are measured signals, which have no forecasts and no dataset; their tables are "
                f"{', '.join(self.tables) or 'none'}."
            )
        return self.recorded

    def _evaluation(self, name: str | None) -> StoredEvaluation:
        found = list_evaluations(self.recorded)[0] if name is None else None
        return found or find_evaluation(self.recorded, str(name))

    def _require_model(self, name: str) -> None:
        if name not in self.models:
            raise ConfigError(f"The run {self.id} has no model {name!r}, only {', '.join(self.models)}.")


def open_run(name: str | Path = "latest", output: str | Path = OUTPUT) -> Run:
    """Open a run, or the measured signals of a file.

    Parameters
    ----------
    name
        Id that ``peerglass runs list`` shows, a unique prefix of it, ``latest`` for the run that was started
        last, or the path of the folder.
    output
        Folder that holds the runs, relative to the current folder; not used if ``name`` is a folder.

    Raises
    ------
    ConfigError
        If no run or more than one matches.
    DataError
        If the run's folder is damaged.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.open_run("latest").models
    ('ridge', 'lightgbm', 'temporal_peer')
    """
    measured = find_signals(str(name), Path(output))
    return Run(measured or open_recorded_run(str(name), Path(output)))


def list_runs(output: str | Path = OUTPUT) -> pl.DataFrame:
    """List the runs in a folder of runs, the one that was started last first.

    Parameters
    ----------
    output
        Folder that holds the runs, relative to the current folder.

    Returns
    -------
    polars.DataFrame
        run, started (UTC), folder.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.list_runs().columns
    ['run', 'started', 'folder']
    """
    rows = [
        (str(record["run_id"]), str(record["started_at"]), str(folder))
        for folder, record in list_records(Path(output))
    ]
    found = pl.DataFrame(rows, dict.fromkeys(("run", "started", "folder"), pl.String), orient="row")
    return found.with_columns(pl.col("started").str.to_datetime(time_zone="UTC"))
