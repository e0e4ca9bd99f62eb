"""Who is told of a night, and when."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr, field_validator

from pipelines.secrets import register_secret
from pipelines.settings import PathSetting, Section

_HOST: Final = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::\d+)?/?")


def _check_url(url: SecretStr) -> SecretStr:
    """Require the form of an Apprise URL, and remember it as a secret: most of them hold a token."""
    text = url.get_secret_value()
    scheme, _, rest = text.partition("://")
    register_secret(text)
    if not (scheme and rest):
        raise ValueError("an Apprise URL begins with its service, such as mailto:// or slack://")
    if not _HOST.fullmatch(rest):  # the name of a host is not secret, and is part of other messages
        register_secret(rest)
    return url


class AlertsConfig(Section):
    """Channels of alerts. A night alerts on failure, on a warning that is new, and on recovery."""

    urls: tuple[Annotated[SecretStr, AfterValidator(_check_url)], ...] = ()
    """Apprise URLs, such as mailto://... or slack://...; needs the extra ``alerts``. They are never printed
    or stored. Take them from the environment: ``${SLACK_URL}``."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Command and its arguments, which gets the alert as JSON on its standard input; no shell. Null: none."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a channel may take."""
    metrics: PathSetting | None = None
    """File for metrics in Prometheus' text format, as node_exporter's textfile collector reads it; its name
    must end with .prom. Null: none."""

    @field_validator("metrics")
    @classmethod
    def _check_name(cls, path: str | None) -> str | None:
        if path is not None and not path.endswith(".prom"):
            raise ValueError("the collector reads only files whose name ends with .prom")
        return path
