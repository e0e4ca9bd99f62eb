"""Runs: make one from a config, open one, and read its forecasts, tables, evaluations and report."""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from backtest.look_ahead.returns import session_returns
from peerglass.frames import cells
from pipelines import stages
from pipelines.config.draft import write_draft
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import is_url
from pipelines.progress import Progress
from pipelines.results.recount import RECOUNTED, recount
from pipelines.results.signal_file import MeasuredSignals, find_signals
from pipelines.run.evaluations import StoredEvaluation, find_evaluation, list_evaluations
from pipelines.run.fetch import ingest_config
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
            stages.report_run(str(self.folder), self.folder.parent)
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
        written = None if out is None else Path(out)
        return stages.explore_run(str(self.trained.folder), self.folder.parent, model, written)

    @functools.cached_property
    def data(self) -> tuple[Dataset, Lake]:
        """Dataset that the run was made on, built from the recorded data versions, and its lake."""
        return load_run_data(self.trained, Progress(quiet=True))

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


def _quiet(_: str) -> None:
    """Print nothing."""


def init(
    prices: str | Path, config: str | Path, *, date_format: str | None = None, replace: bool = False
) -> str:
    """Look at a price file and write a config that runs on it, as `peerglass init` does.

    Parameters
    ----------
    prices
        CSV or Parquet file with one row per date and ticker and at least a close, or one column of closes per
        ticker.
    config
        YAML file to write.
    date_format
        strptime format of the dates. None recognises it.
    replace
        Whether an existing config is overwritten.

    Returns
    -------
    str
        The text of the config.

    Raises
    ------
    ConfigError
        If the config exists, or the file is neither CSV nor Parquet.
    DataError
        If the file cannot be read, or is too short for a walk-forward.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml").select("date", "ticker", "close")
    >>> prices.write_csv("prices.csv")
    >>> text = peerglass.init("prices.csv", "drafted.yaml", replace=True)
    >>> "kind: files" in text
    True
    """
    return write_draft(Path(prices), Path(config), date_format, force=replace).text


def ingest(
    config: str | Path, overrides: Iterable[str] = (), *, echo: Callable[[str], None] = _quiet
) -> None:
    """Load the data of a config's source into its lake, as `peerglass ingest` does.

    Parameters
    ----------
    config
        Path of a YAML config.
    overrides
        ``key=value`` settings as in ``--set``.
    echo
        Gets the counts of rows, line by line; ``print`` shows them.

    Raises
    ------
    ConfigError
        If the config is invalid, or the lake belongs to another source.
    DataError
        If the source cannot be read.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.ingest("tiny.yaml")
    """
    ingest_config(load_config(Path(config), overrides), echo, Progress(quiet=True))


def run_config(
    config: str | Path, overrides: Iterable[str] = (), *, echo: Callable[[str], None] = _quiet
) -> Run:
    """Ingest, audit, train, backtest, explain and report, as `peerglass run` does, and open the run.

    A finished run is not trained again, and an interrupted one continues.

    Parameters
    ----------
    config, overrides
        As in :func:`ingest`.
    echo
        Gets the results of the stages as text; ``print`` shows them.

    Raises
    ------
    PeerglassError
        As `peerglass run`; the message is one sentence.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.run_config("tiny.yaml").models  # finished before: nothing is trained again
    ('ridge', 'lightgbm', 'temporal_peer')
    """
    report = stages.run_config(load_config(Path(config), overrides), echo, progress=Progress(quiet=True))
    return open_run(report.parent)


def prices(config: str | Path | Config, overrides: Iterable[str] = ()) -> pl.DataFrame:
    """Return the prices of a config's lake, adjusted, with the universe: what a signal can be made from.

    Parameters
    ----------
    config
        Path of a YAML config, or a loaded one.
    overrides
        ``key=value`` settings as in ``--set``, for a config that is given by its path.

    Returns
    -------
    polars.DataFrame
        date, ticker, close (adjusted for splits and dividends), total_return (the session's simple return),
        dollar_volume (close as quoted times volume; null without volume), group (sector or industry, as
        ``features.group_by`` says; null if unknown) and in_universe. One row per firm and session on which it
        has a price, sorted by ticker and date. A row dated t was known at the close of t. The total return is
        null on a firm's first session.

    Raises
    ------
    ConfigError
        If the config is invalid.
    DataError
        If the lake is empty, or no firm is ever in the universe.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.prices("tiny.yaml").columns[:4]
    ['date', 'ticker', 'close', 'total_return']
    """
    checked = config if isinstance(config, Config) else load_config(Path(config), overrides, models=False)
    lake = open_lake(checked, warnings.warn)
    market = build_market(read_market_tables(lake, input_versions(lake)), checked)
    panel = market.panel
    return_TN = session_returns(panel.total_return_index_TN)
    volume_TN = np.full(return_TN.shape, np.nan) if panel.volume_TN is None else panel.volume_TN
    firm_E, session_E = np.nonzero(panel.traded_TN.T)
    at, names = (session_E, firm_E), np.array([*panel.groups_S, None], dtype=object)  # code -1 is the last
    found = cells(
        panel,
        session_E,
        firm_E,
        close=panel.close_TN[at],
        total_return=return_TN[at],
        dollar_volume=(panel.raw_close_TN * volume_TN)[at],
        group=pl.Series(names[panel.group_TN[at]].tolist(), dtype=pl.String),
        in_universe=market.universe_TN[at],
    )
    return found.with_columns(pl.col("close", "total_return", "dollar_volume").fill_nan(None))
