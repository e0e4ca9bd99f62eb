"""Settings of the quality rules: what a config's section ``quality`` may say."""

from __future__ import annotations

from typing import Literal

from pipelines.settings import Section

Action = Literal["reject", "flag", "off"]


class QualityConfig(Section):
    """What becomes of a price row that a rule of :mod:`pipelines.quality.rules` doubts.

    ``flag`` keeps it in the lake and lists the doubt; ``reject`` keeps it out, in the quarantine, from the
    next ingest on; ``off`` does not apply the rule. ``calendar`` holds every firm to one exchange calendar;
    null goes by the firm's recorded exchange.
    """

    spike_that_reverts: Action = "flag"
    stale_run: Action = "flag"
    split_without_return: Action = "flag"
    return_without_split: Action = "flag"
    volume_on_closed_session: Action = "flag"
    currency_jump: Action = "flag"
    coverage_collapse: Literal["flag", "off"] = "flag"  # the rows that are there are sound
    calendar: str | None = None
