"""The checks by name. To add a check, write its file and add it to ``MODULES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipelines.audit.checks import (
    backfill,
    cross_section,
    fingerprints,
    fit_scope,
    forecasts,
    future,
    label_spans,
    membership,
    shuffled,
    splits,
    statements,
    survivorship,
    timing,
    too_good,
    warm_up,
)
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

Check = Callable[[Subject], Result]

MODULES: Final = (
    fingerprints,
    statements,
    membership,
    survivorship,
    splits,
    backfill,
    timing,
    future,
    warm_up,
    cross_section,
    label_spans,
    fit_scope,
    forecasts,
    shuffled,
    too_good,
)
"""The checks in the order in which they run: data, features, folds, models."""

CHECKS: Final[dict[str, Check]] = {module.NAME: module.check for module in MODULES}
