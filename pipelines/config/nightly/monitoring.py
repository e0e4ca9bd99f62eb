"""Limits of the figures that a night watches."""

from __future__ import annotations

from pipelines.settings import Section


class MonitoringConfig(Section):
    """Limits of realised skill, drift and agreement."""
