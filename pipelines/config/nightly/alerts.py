"""Who is told of a night, and when."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import PathSetting, Section


class AlertsConfig(Section):
    """Channels of alerts. A night alerts on failure, on a warning that is new, and on recovery."""

    urls: tuple[str, ...] = ()
    """Apprise URLs, such as mailto://... or slack://...; needs the extra ``alerts``. Take secrets from the
    environment: ``${SLACK_URL}``."""
    command: tuple[str, ...] | None = None
    """Command and its arguments, which gets the alert as JSON on its standard input; no shell. Null: none."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """How long the command may take before it is killed."""
    metrics: PathSetting | None = None
    """File for metrics in Prometheus' text format, as node_exporter's textfile collector reads it. Null:
    none."""
