"""The section ``nightly`` of a configuration: what a night trains, scores, trades and watches."""

from __future__ import annotations

from pydantic import Field

from pipelines.config.nightly.alerts import AlertsConfig
from pipelines.config.nightly.checks import ChecksConfig
from pipelines.config.nightly.housekeeping import HousekeepingConfig
from pipelines.config.nightly.monitoring import MonitoringConfig
from pipelines.config.nightly.promotion import PromotionConfig
from pipelines.config.nightly.retrain import RetrainConfig
from pipelines.settings import Section


class NightlyConfig(Section):
    """The nightly pipeline. None of these settings changes a backtest."""

    model: str | None = None
    """Entry of ``models`` that is trained for use and scored every night. Null: the first one."""
    book: str | None = None
    """Entry of ``backtest.books`` that is traded. Null: the first one."""
    train: int | None = Field(default=None, ge=1)
    """Sessions of the training segment of a live fold. Null: as in ``folds`` if these are rolling, otherwise
    all sessions."""
    valid: int | None = Field(default=None, ge=1)
    """Sessions of the validation segment of a live fold. Null: as in ``folds``, which must then give lengths
    in sessions."""
    attributed: int = Field(default=3, ge=0)
    """Number of the highest and of the lowest signals whose causes the page shows (Shapley values); 0 for
    none. The time that it takes does not depend on the number."""
    retrain: RetrainConfig = RetrainConfig()
    """When a new model version is trained."""
    promotion: PromotionConfig = PromotionConfig()
    """When a challenger may become the champion."""
    checks: ChecksConfig = ChecksConfig()
    """Checks of the data that arrived."""
    monitoring: MonitoringConfig = MonitoringConfig()
    """Limits of the figures that are watched."""
    alerts: AlertsConfig = AlertsConfig()
    """Who is told, and when."""
    housekeeping: HousekeepingConfig = HousekeepingConfig()
    """Upkeep of the lake."""
