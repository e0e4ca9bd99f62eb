"""Realised skill of model versions on shadow sessions: those that they forecast without having seen them.

Shape suffixes: S shadow sessions, T sessions of the market, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from features.information_coefficient import rank_ic_by_date
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, to_panel
from pipelines.lake.lake import Lake
from pipelines.nightly.version import ModelVersion


def first_signals(lake: Lake, config_name: str, version: ModelVersion) -> pl.DataFrame:
    """Read the first revision of a version's signals on every session: session, ticker, signal.

    The first revision is what was decided at the night. A later one saw corrected data.
    """
    if not lake.exists("signals"):
        return pl.DataFrame(schema={"session": pl.Date, "ticker": pl.String, "signal": pl.Float64})
    own = (pl.col("config") == config_name) & (pl.col("version") == str(version))
    rows = lake.read("signals", columns=["session", "ticker", "revision", "signal"], filters=own)
    first = rows.filter(pl.col("revision") == pl.col("revision").min().over("session"))
    return first.select("session", "ticker", "signal")


def shadow_ics(
    lake: Lake, config: Config, market: Market, unseen_from: Mapping[ModelVersion, dt.date]
) -> pl.DataFrame:
    """Compute the daily rank ICs of versions on the sessions that all of them forecast unseen.

    A session counts if every version has signals for it, made at the night (first revision), if it is not
    before the session that the version was trained through, and if the label of the trained delay is known. A
    version that was trained later than a session may have seen its label, also if its signals for the session
    are in the lake because a missed night was made up for.

    Parameters
    ----------
    lake
        Lake with the table ``signals``.
    config
        Name and label of the config.
    market
        Prices and labels. Labels that are not known yet are NaN.
    unseen_from
        Version -> first session that its training has not seen the label of: the session it was trained
        through.

    Returns
    -------
    polars.DataFrame
        session, firms (with a known label and a signal of every version), and one column of rank ICs per
        version, named by it. Sessions are ascending. All versions are measured on the same firms.
    """
    names = [str(version) for version in unseen_from]
    signals = {
        str(version): to_panel(
            first_signals(lake, config.name, version).rename({"session": "date"}), "signal", market.panel
        )
        for version in unseen_from
    }
    label_TN = market.labels[config.label.delay]
    known_TN = np.isfinite(label_TN) & _all_known(list(signals.values()))
    dates_T = market.panel.dates_T.astype("datetime64[D]")
    unseen_T = dates_T >= np.datetime64(max(unseen_from.values()), "D")
    ics = {
        name: rank_ic_by_date(np.where(known_TN, signal_TN, np.nan), label_TN)
        for name, signal_TN in signals.items()
    }
    measured_T = unseen_T & np.logical_and.reduce([np.isfinite(ic_T) for ic_T in ics.values()])
    return pl.DataFrame(
        {
            "session": dates_T[measured_T],
            "firms": known_TN.sum(axis=1)[measured_T],
            **{name: ics[name][measured_T] for name in names},
        }
    )


def _all_known(signals: Sequence[np.ndarray]) -> np.ndarray:
    known: np.ndarray = np.logical_and.reduce([np.isfinite(one_TN) for one_TN in signals])
    return known
