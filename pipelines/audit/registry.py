"""The checks by name. To add a check, write its file and add it to ``MODULES`` or ``DATA_MODULES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipelines.audit.checks.data import (
    backfill,
    bars,
    beyond_prices,
    codes,
    coverage,
    fingerprints,
    full_sample,
    horizons,
    leads,
    membership,
    ranges,
    splits,
    statements,
    survivorship,
    timing,
    vintages,
)
from pipelines.audit.checks.features import cross_section, dates, future, label_spans, labels, warm_up
from pipelines.audit.checks.models import fit_scope, forecasts, retrained, shuffled, too_good
from pipelines.audit.checks.results import books, ensembles, performance
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

Check = Callable[[Subject], Result]

DATA_MODULES: Final = (
    vintages,
    fingerprints,
    full_sample,
    leads,
    horizons,
    beyond_prices,
    coverage,
    timing,
    backfill,
    bars,
    ranges,
    splits,
    codes,
    statements,
    membership,
    survivorship,
)
"""Checks of the delivered data."""

MODULES: Final = (
    *DATA_MODULES,
    future,
    dates,
    warm_up,
    cross_section,
    labels,
    label_spans,
    fit_scope,
    forecasts,
    retrained,
    shuffled,
    too_good,
    ensembles,
    books,
    performance,
)
"""The checks in the order in which they run: data, features, folds, models, results."""

CHECKS: Final[dict[str, Check]] = {module.NAME: module.check for module in MODULES}
DATA_CHECKS: Final = tuple(module.NAME for module in DATA_MODULES)
"""Names of the checks of the delivered data."""
