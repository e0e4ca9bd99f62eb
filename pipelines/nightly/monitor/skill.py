"""Realised skill: the IC of past signals as their labels become known, and its CUSUM."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import polars as pl

from backtest.forecasts.daily import SortedPanel, daily_metrics
from backtest.inference.means import mean_test
from backtest.monitoring.cusum import Cusum, limit_for, lower_cusum, mean_delay
from features.arrays import IntArray
from pipelines.config.schema import Config
from pipelines.dataset.market import to_panel
from pipelines.nightly.data import NightData
from pipelines.nightly.finding import Finding
from pipelines.nightly.monitor.history import CHALLENGER, CHAMPION, signal_history
from pipelines.nightly.monitor.reference import BacktestReference, backtest_reference
from pipelines.nightly.version import ModelVersion
from pipelines.results.evaluate import label_overlap

HORIZON: Final = 250
"""Sessions over which the probability of a false alarm counts."""
_MIN_SESSIONS: Final = 5

_REALISED: Final = {
    "session": pl.Date,
    "role": pl.String,
    "version": pl.String,
    "firms": pl.Int64,
    "ic": pl.Float64,
    "rank_ic": pl.Float64,
}
_CUSUM: Final = {
    "session": pl.Date,
    "version": pl.String,
    "rank_ic": pl.Float64,
    "sum": pl.Float64,
    "limit": pl.Float64,
    "alarm": pl.Boolean,
}


def skill(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> tuple[list[Finding], dict[str, pl.DataFrame]]:
    """Measure past signals against the labels that are known at the night, and watch the champion's."""
    realised = realised_ic(config, data, signal_history(config, data, champion, challenger))
    reference = backtest_reference(config, data, champion)
    of_champion = realised.filter(pl.col("role") == CHAMPION)
    findings = [
        _mean_finding(config, part, role, reference)
        for role, part in (
            (CHAMPION, of_champion),
            (CHALLENGER, realised.filter(pl.col("role") == CHALLENGER)),
        )
        if role == CHAMPION or challenger is not None
    ]
    finding, table = _watch(config, of_champion, reference)
    return [*findings, finding], {"realised_ic": realised, "cusum": table}


def realised_ic(config: Config, data: NightData, signals: pl.DataFrame) -> pl.DataFrame:
    """Measure signals on every session whose label has ended by the night.

    The label is that of the dataset, at the trained delay: it ends ``delay + horizon`` sessions after the
    session, and the firms are those with a signal, which is the universe.

    Parameters
    ----------
    config
        Delay and horizon of the label.
    data
        The data of the night.
    signals
        As `pipelines.nightly.monitor.history.signal_history` returns them.

    Returns
    -------
    polars.DataFrame
        session, role, version, firms, ic, rank_ic; sorted by role and session. ICs are NaN-free: a session
        with fewer than 3 firms with signal and label has no row.
    """
    label, panel = config.label, data.market.panel
    known = panel.n_sessions - label.delay - label.horizon
    dates_T = panel.dates_T.astype("datetime64[D]")
    parts = [pl.DataFrame(schema=_REALISED)]
    for (role,), part in signals.drop_nulls("signal").partition_by("role", as_dict=True).items():
        rows = np.flatnonzero(np.isin(dates_T, part["session"].unique().to_numpy().astype("datetime64[D]")))
        rows = rows[rows < known]
        if not len(rows):
            continue
        signal_TN = to_panel(part.rename({"session": "date"}), "signal", panel)
        label_RN = np.where(data.market.universe_TN[rows], data.market.labels[label.delay][rows], np.nan)
        daily = daily_metrics(SortedPanel("signal", signal_TN[rows]), SortedPanel("label", label_RN))
        versions = part.select("session", "version").unique()
        measured = pl.DataFrame(
            {
                "session": dates_T[rows],
                "firms": daily.pairs_T,
                "ic": daily.ic_T,
                "rank_ic": daily.rank_ic_T,
            }
        ).with_columns(pl.lit(role).alias("role"))
        measured = measured.filter(pl.col("rank_ic").is_not_nan())
        parts.append(measured.join(versions, on="session", how="left").select(*_REALISED))
    return pl.concat(parts).sort("role", "session")


def watch_skill(
    config: Config, rank_ic_T: np.ndarray, replaced_T: np.ndarray, reference: BacktestReference
) -> tuple[Cusum, float, float]:
    """Run the CUSUM of a champion's realised rank ICs with the settings of a config.

    Returns
    -------
    cusum : Cusum
    slack, limit : float
        In standard deviations of the reference.
    """
    settings, base = config.nightly.monitoring, reference.reference
    slack = settings.cusum_slack or max(base.mean / base.std / 2.0, _MIN_SLACK)
    limit = settings.cusum_limit or limit_for(slack, settings.cusum_false_alarms, sessions=HORIZON, n=base.n)
    return lower_cusum(rank_ic_T, base, slack=slack, limit=limit, replaced_T=replaced_T), slack, limit


_MIN_SLACK: Final = 0.05
"""Slack for a reference without skill: there is nothing to lose, and the CUSUM then detects losses."""


def _watch(
    config: Config, realised: pl.DataFrame, found: BacktestReference | None
) -> tuple[Finding, pl.DataFrame]:
    """Run the CUSUM of the champion, and say where it stands."""
    if found is None:
        sentence = (
            "There is nothing to compare realised rank ICs with: the champion's rank IC does not vary on its "
            "validation sessions. Train a model that makes forecasts."
        )
        return Finding("reference", "warn", sentence), pl.DataFrame(schema=_CUSUM)
    versions = realised["version"]
    replaced_T = (versions != versions.shift(1)).fill_null(value=False).to_numpy()
    cusum, slack, limit = watch_skill(config, realised["rank_ic"].to_numpy(), replaced_T, found)
    table = realised.select("session", "version", "rank_ic").with_columns(
        pl.Series("sum", cusum.sum_T, dtype=pl.Float64),
        pl.lit(limit).alias("limit"),
        pl.Series("alarm", cusum.alarm_T, dtype=pl.Boolean),
    )
    base = found.reference
    expected = f"the rank IC of {base.mean:+.4f} (daily deviation {base.std:.4f}) in {found.origin}"
    delay = mean_delay(slack, limit, shift=base.mean / base.std)
    if not table.height:
        return Finding(
            "cusum", "ok", f"No label of a night is known yet; expected is {expected}.", limit=limit
        ), table
    value = float(cusum.sum_T[-1])
    if not cusum.alarm_T[-1]:
        sentence = (
            f"The CUSUM of realised rank IC is {value:.1f}, below its limit of {limit:.1f}; it compares with "
            f"{expected}, and finds a complete loss of skill after {delay:.0f} sessions on average."
        )
        return Finding("cusum", "ok", sentence, value=value, limit=limit), table
    started = _alarm_start(cusum)
    since, low = table["session"][started], _low_start(cusum, started)
    mean = float(realised["rank_ic"][low:].mean())  # type: ignore[arg-type]  # a mean of floats
    sentence = (
        f"The champion forecasts worse than its backtest since {table['session'][low]}: its mean rank IC is "
        f"{mean:+.4f} against {expected}, and the CUSUM reached its limit of {limit:.1f} on {since}. Look "
        "for changes in the data first; then train a new version and promote it."
    )
    return Finding("cusum", "warn", sentence, value=value, limit=limit), table


def _alarm_start(cusum: Cusum) -> int:
    """First session of the alarm that stands at the end."""
    quiet = np.flatnonzero(~cusum.alarm_T)
    return int(quiet[-1]) + 1 if len(quiet) else 0


def _low_start(cusum: Cusum, alarm: int) -> int:
    """First session of the climb that led to an alarm: the maximum-likelihood estimate of the change."""
    zero = np.flatnonzero(cusum.sum_T[:alarm] == 0.0)
    return int(zero[-1]) + 1 if len(zero) else 0


def _mean_finding(
    config: Config, realised: pl.DataFrame, role: str, found: BacktestReference | None
) -> Finding:
    """Compare the mean realised rank IC of the last sessions with the backtest's."""
    recent = realised.tail(config.nightly.monitoring.sessions)
    rank_ic_T = recent["rank_ic"].to_numpy()
    if len(rank_ic_T) < _MIN_SESSIONS:
        sentence = (
            f"The labels of {len(rank_ic_T)} sessions of the {role} are known; {_MIN_SESSIONS} are needed "
            "for a mean."
        )
        return Finding("realised_ic", "ok", sentence, subject=role)
    overlap = _overlap(config, recent)
    test = mean_test(rank_ic_T, overlap=overlap)
    band = f"95% interval {test.lower:+.4f} to {test.upper:+.4f}"
    limit = None if found is None else found.reference.mean
    base = f"The mean rank IC of the {role} on {test.n} sessions is {test.mean:+.4f} ({band})"
    if limit is None or math.isnan(test.upper) or test.upper >= limit:
        against = "" if limit is None else f"; its backtest had {limit:+.4f}"
        return Finding("realised_ic", "ok", f"{base}{against}.", subject=role, value=test.mean, limit=limit)
    sentence = (
        f"{base}, below the {limit:+.4f} of its backtest. A smaller IC than in a backtest is usual; if it "
        "stays, train a new version."
    )
    return Finding("realised_ic", "warn", sentence, subject=role, value=test.mean, limit=limit)


def _overlap(config: Config, realised: pl.DataFrame) -> int:
    """Number of consecutive sessions whose labels overlap."""
    days: IntArray = realised["session"].to_physical().to_numpy().astype(np.int64)
    if config.label.forecast_frequency == "daily":
        return config.label.horizon
    return label_overlap(days * 5 // 7, config.label.horizon)  # calendar days -> sessions
