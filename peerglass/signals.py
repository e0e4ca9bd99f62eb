"""Signals of a user's own, measured like a model's forecasts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from peerglass.frames import check_signals
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.market import build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.errors import ConfigError, DataError
from pipelines.results.evaluate_signals import guard_table, place_signals, signal_tables, with_tradable_delay
from pipelines.results.recount import recounted_tables
from pipelines.results.signal_file import SignalTable
from pipelines.train.trials import signal_trials

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Backtest:
    """The measures of one or more signals.

    Attributes
    ----------
    config
        The config whose lake, universe, label, books and costs were used.
    tables
        Name -> table, as in the evaluation of a run; the column ``model`` holds the name of the signal. Also
        ``rows`` (values left out, by reason) and ``guard`` (checks of each signal for look-ahead).
    used
        Signal -> number of its values that were measured: firms of the universe on sessions of the lake.
    left_out
        Signal -> number of its other values, which were ignored.
    trials
        Number of trials that count against these signals at the time of the call, themselves included.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml")
    >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
    >>> found = peerglass.backtest(signal, "tiny.yaml", ["output=elsewhere"])
    >>> found.ladder["model"][0]
    'reversal'
    """

    config: Config
    tables: Mapping[str, pl.DataFrame]
    used: Mapping[str, int]
    left_out: Mapping[str, int]
    trials: int

    @property
    def ladder(self) -> pl.DataFrame:
        """One row per signal and delay: information coefficients, Sharpe ratios and turnover."""
        return self.tables["ladder"]


def backtest(
    frame: pl.DataFrame | pd.DataFrame, config: str | Path | Config, overrides: Iterable[str] = ()
) -> Backtest:
    """Measure signals before and after costs, on the newest data in a config's lake.

    Every book of every signal is a trial, and is recorded in the ledger of the config's output folder before
    it is measured, with its returns afterwards. Nothing else is stored.

    Parameters
    ----------
    frame
        date, ticker, and one column of numbers per signal. A value dated t must have been known at the close
        of t; the table ``guard`` shows what betrays that it was not. Higher means better. Null and NaN mean
        no signal.
    config
        Path of a YAML config, or a loaded one; gives lake, universe, label, books and costs.
    overrides
        ``key=value`` settings as in ``--set``, for a config that is given by its path.

    Raises
    ------
    ConfigError
        If the config is invalid.
    DataError
        If a column is missing or of the wrong type, a firm appears twice on a date, a value is infinite, a
        signal has no value in the universe or is constant on every date, or the lake is empty.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml")
    >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
    >>> found = peerglass.backtest(signal, "tiny.yaml", ["output=elsewhere"])
    >>> sorted(found.tables)[:2]
    [...]
    """
    checked = config if isinstance(config, Config) else load_config(Path(config), overrides, models=False)
    if isinstance(config, Config) and list(overrides):
        raise ConfigError("overrides are for a config that is given by its path; this one is loaded already.")
    signals = check_signals(frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame))
    checked, _ = with_tradable_delay(checked)
    table = SignalTable(Path("frame"), signals, ())
    lake = open_lake(checked)
    market = build_market(read_market_tables(lake, input_versions(lake)), checked)
    quarantine = lake.read("quarantine") if lake.exists("quarantine") else None
    placed = place_signals(table, market, quarantine)
    used = {name: int(np.isfinite(values_TN).sum()) for name, values_TN in placed.signals.items()}
    for name, number in used.items():
        if number == 0:
            raise DataError(
                f"The signal {name!r} has no value for a firm of the universe on a session of the lake "
                f"{lake.root}; check its dates and tickers, and the section universe of the config."
            )
    if placed.constant:
        raise DataError(
            f"The signal {placed.constant[0]!r} has the same value for all firms of a date, on every date, "
            "so it ranks no firm above another; leave this column out."
        )
    output, content = Path(checked.output), {name: table.content(name) for name in used}
    run_id = f"signals-{hashlib.sha256(''.join(content.values()).encode()).hexdigest()[:10]}"
    tried = signal_trials(content, checked)
    own = checked.model_copy(update={"models": {}})  # so that no signal is taken for a model
    tables, trials = signal_tables(placed, market, own, run_id=run_id, output=output, tried=tried)
    tables |= recounted_tables(
        tables["equity"],
        tables["significance"],
        tried,
        own,
        output,
        periods_per_year=market.panel.periods_per_year,
    )
    tables["guard"] = guard_table(table, placed, market, checked.label.horizon)
    return Backtest(
        config=checked,
        tables=tables,
        used=used,
        left_out={name: signals[name].count() - number for name, number in used.items()},
        trials=trials,
    )
