"""Realised skill of model versions on shadow sessions: those that they forecast without having seen them.

Shape suffixes: T sessions of the market, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import polars as pl

from features.arrays import FloatArray
from features.information_coefficient import rank_ic_by_date
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, to_panel
from pipelines.lake.lake import Lake
from pipelines.nightly.signals.store import read_signals
from pipelines.nightly.version import ModelVersion


def night_signals(
    lake: Lake, config: Config, market: Market, trained: Mapping[ModelVersion, dt.date]
) -> dict[ModelVersion, FloatArray]:
    """Read the signals that versions gave at night, as arrays of shape (T, N); NaN where there is none.

    Only first revisions count, which were decided at the night; a later one saw corrected data. Sessions
    before the one that a version was trained through are left out: its training may have seen their labels,
    and its signals for them exist only because missed nights were made up for.

    Parameters
    ----------
    lake
        Lake with the table ``signals``.
    config
        Names the config of the signals.
    market
        The market whose sessions and firms the arrays have.
    trained
        Version -> session that it was trained through.
    """
    arrays = {}
    for version, through in trained.items():
        rows = read_signals(lake, config.name, version=version, revision="first")
        unseen = rows.filter(pl.col("session") >= through).rename({"session": "date"})
        arrays[version] = to_panel(unseen, "signal", market.panel)
    return arrays


def shadow_ics(
    lake: Lake, config: Config, market: Market, trained: Mapping[ModelVersion, dt.date]
) -> pl.DataFrame:
    """Compute the daily rank ICs of versions on the sessions that all of them forecast unseen.

    Parameters
    ----------
    lake, config, market, trained
        As in `night_signals`. Labels of the trained delay that are not known yet are NaN in the market.

    Returns
    -------
    polars.DataFrame
        session, firms (with a known label and a signal of every version), and one column of rank ICs per
        version, named by it. Sessions are ascending. All versions are measured on the same firms.
    """
    signals = night_signals(lake, config, market, trained)
    label_TN = market.labels[config.label.delay]
    known_TN = np.isfinite(label_TN)
    for signal_TN in signals.values():
        known_TN &= np.isfinite(signal_TN)
    ics = {
        str(version): rank_ic_by_date(np.where(known_TN, signal_TN, np.nan), label_TN)
        for version, signal_TN in signals.items()
    }
    measured_T = np.logical_and.reduce([np.isfinite(ic_T) for ic_T in ics.values()])
    return pl.DataFrame(
        {
            "session": market.panel.dates_T.astype("datetime64[D]")[measured_T],
            "firms": known_TN.sum(axis=1)[measured_T],
            **{name: ic_T[measured_T] for name, ic_T in ics.items()},
        }
    )
