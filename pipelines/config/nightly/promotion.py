"""When a challenger may become the champion."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import Section


class PromotionConfig(Section):
    """Guard of a promotion."""

    automatic: bool = False
    """Whether a night promotes its challenger as soon as the guard passes."""
    min_sessions: int = Field(default=20, ge=1)
    """Minimum number of shadow sessions with a known label: sessions that both versions forecast at night,
    before the label was known."""
    margin: float = Field(default=0.0, ge=0)
    """Mean rank IC by which the challenger may be worse than the champion on the shadow sessions."""
    level: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of the one-sided test that the challenger is worse than the margin allows."""
