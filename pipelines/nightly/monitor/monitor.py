"""The monitoring of a night: realised skill, drift of the inputs, and the behaviour of the signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from pipelines.config.schema import Config
from pipelines.nightly.data import NightData
from pipelines.nightly.finding import Finding
from pipelines.nightly.monitor.behaviour import behaviour
from pipelines.nightly.monitor.drift import drift
from pipelines.nightly.monitor.skill import skill
from pipelines.nightly.version import ModelVersion


@dataclass(frozen=True, slots=True, eq=False)
class Monitoring:
    """What the monitoring of a night found.

    Attributes
    ----------
    findings
        One per figure; a breach of a limit is a warning.
    tables
        realised_ic
            session, role (``champion`` or ``challenger``), version, firms, ic, rank_ic: of every past session
            whose label is known.
        cusum
            session, version, rank_ic, sum, limit, alarm: the CUSUM of the champion's realised rank IC.
        drift
            feature, kind, psi, psi_limit, ks, ks_limit, missing, missing_in_training, missing_limit, drifted.
        agreement
            session, firms, rank_correlation: of the signals of champion and challenger.
        dispersion
            session, role, version, mean_dispersion: mean seed dispersion of the session's signals.
        turnover
            session, role, version, firms, turnover: half the mean absolute change of the rank of a signal
            since the session before, as a share of what two unrelated signals have.
    """

    findings: tuple[Finding, ...]
    tables: Mapping[str, pl.DataFrame]


def monitor(
    config: Config, data: NightData, champion: ModelVersion, challenger: ModelVersion | None
) -> Monitoring:
    """Monitor the signals of a night and of the nights before it.

    Reads the tables ``signals`` (first revisions) and ``nights``. The signals of the night are stored before.
    The distribution of the features on the champion's training sessions is computed once per version and
    stored in the folder of its run.

    Parameters
    ----------
    config
        The configuration; ``nightly.monitoring`` and ``nightly.checks`` hold the limits.
    data
        The data of the night.
    champion, challenger
        Versions that the night scored.
    """
    parts = (
        skill(config, data, champion, challenger),
        drift(config, data, champion),
        behaviour(config, data, champion, challenger),
    )
    tables: dict[str, pl.DataFrame] = {}
    for _, part in parts:
        tables |= part
    return Monitoring(tuple(finding for found, _ in parts for finding in found), tables)
