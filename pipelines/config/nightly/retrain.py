"""When a new model version is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings import Section


class RetrainConfig(Section):
    """Schedule of retraining. The first night trains in any case, because there is no model yet."""

    when: Literal["never", "sessions", "monthly"] = "monthly"
    """``sessions`` retrains every ``every`` sessions; ``monthly`` on the first session of a month."""
    every: int = Field(default=21, ge=1)
    """Sessions between two trainings with ``when: sessions``."""
    on_drift: bool = False
    """Whether an alarm of the monitoring also retrains."""
