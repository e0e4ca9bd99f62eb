"""Who is told of a night, and when."""

from __future__ import annotations

from pipelines.settings import PathSetting, Section


class AlertsConfig(Section):
    """Channels of alerts. A night alerts on failure, on a warning that is new, and on recovery."""

    urls: tuple[str, ...] = ()
    """Apprise URLs, such as mailto://... or slack://...; needs the extra ``alerts``. Take secrets from the
    environment: ``${SLACK_URL}``."""
    command: tuple[str, ...] | None = None
    """Command that gets the alert as JSON on its standard input. Null: none."""
    metrics: PathSetting | None = None
    """File for metrics in Prometheus' text format, as node_exporter's textfile collector reads it. Null:
    none."""
