"""The checks by name. To add one, write its function and add a line here."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from backtest.look_ahead import (
    bars,
    coverage,
    full_sample,
    hindsight,
    leads,
    prices,
    splits,
    vintages,
)
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Result
from pipelines.audit.checks import books, canary, features, fits, labels, skill
from pipelines.audit.subject import Subject
from pipelines.config.schema import Config
from pipelines.plugins import owner

Check = Callable[[Subject], Result]

DATA_CHECKS: Final[dict[str, Callable[[Delivery], Result]]] = {  # of the delivered data
    "vintages": vintages.check,
    "fingerprints": full_sample.scales,
    "full_sample": full_sample.fits,
    "leads": leads.check,
    "horizons": hindsight.horizons,
    "beyond_prices": prices.beyond,
    "coverage": coverage.check,
    "timing": prices.later_values,
    "backfill": coverage.backfill,
    "bars": bars.bars,
    "ranges": bars.ranges,
    "splits": splits.check,
    "codes": hindsight.codes,
    "statements": vintages.statements,
    "membership": hindsight.membership,
    "survivorship": hindsight.survivorship,
}
CODE_CHECKS: Final[dict[str, Check]] = {  # of what needs code, models or a run
    "future": features.future,
    "dates": features.dates,
    "canary": canary.canary,
    "stored_features": features.stored_features,
    "warm_up": features.warm_up,
    "cross_section": features.cross_section,
    "labels": labels.labels,
    "label_spans": labels.label_spans,
    "fit_scope": fits.fit_scope,
    "forecasts": fits.forecasts,
    "retrained": fits.retrained,
    "shuffled_labels": skill.shuffled_labels,
    "too_good": skill.too_good,
    "ensembles": books.ensembles,
    "books": books.books,
    "performance": skill.performance,
}


# whose failure is a proof; all others compare with what honest data show, and their failure is evidence
EXACT: Final = frozenset({"vintages", "full_sample", *CODE_CHECKS}) - {
    *("shuffled_labels", "too_good", "performance")
}


def _run(name: str, subject: Subject) -> Result:
    of_data = DATA_CHECKS.get(name)
    result = CODE_CHECKS[name](subject) if of_data is None else of_data(subject.delivery)
    return replace(result, check=name, exact=name in EXACT)


def checks_of(config: Config) -> dict[str, Check]:
    """All checks of a config: those of Peerglass, then those of its plugins."""
    added = {
        name: partial(_run, name)
        for name, check in (*DATA_CHECKS.items(), *CODE_CHECKS.items())
        if name not in CHECKS and owner(check) in config.plugins
    }
    return {**CHECKS, **added}


# in the order in which they run: data, features, folds, models, results
CHECKS: Final[dict[str, Check]] = {name: partial(_run, name) for name in (*DATA_CHECKS, *CODE_CHECKS)}
