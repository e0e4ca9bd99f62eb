"""Configs, ingest and whole runs from Python."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.returns import session_returns
from peerglass.frames import cells
from peerglass.runs import Run, open_run
from pipelines.config.draft import write_draft
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.progress import Silent
from pipelines.run.fetch import ingest_config
from pipelines.stages import run_config as run_stages


def _quiet(_: str) -> None:
    """Print nothing."""


QUIET: Final[Callable[[str], None]] = _quiet


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


def ingest(config: str | Path, overrides: Iterable[str] = (), *, echo: Callable[[str], None] = QUIET) -> None:
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
    ingest_config(load_config(Path(config), overrides), echo, Silent())


def run_config(
    config: str | Path, overrides: Iterable[str] = (), *, echo: Callable[[str], None] = QUIET
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
    report = run_stages(load_config(Path(config), overrides), echo, progress=Silent())
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
