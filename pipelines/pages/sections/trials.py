"""The section on trials: what is left of the result, given everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from backtest.inference.means import LEVEL
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import (
    MODEL_COLUMN,
    Block,
    has_values,
    in_book,
    main_model,
    paragraph,
    shown_rows,
)
from pipelines.pages.tables import Column, neutral_yes_no, number, pairs, table
from pipelines.pages.theme import Style
from pipelines.results.comparisons import MIN_DEFLATED_SHARPE

_STEPM = "better than this with every model counted"
_TEST_COLUMNS = (
    MODEL_COLUMN,
    Column("spa_p", "p (SPA)", number(3), group="against earning nothing", hint="of the best model"),
    Column("in_stepm", "StepM", neutral_yes_no, numeric=False, group="against earning nothing", hint=_STEPM),
    Column(
        "baseline_spa_p", "p (SPA)", number(3), group="against the best baseline", hint="of the best model"
    ),
    Column(
        "in_baseline_stepm",
        "StepM",
        neutral_yes_no,
        numeric=False,
        group="against the best baseline",
        hint=_STEPM,
    ),
    Column("mcs_p", "p", number(3), group="confidence set"),
    Column("in_mcs", "in it?", neutral_yes_no, numeric=False, group="confidence set"),
)


def trial_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Show the deflated Sharpe ratio with its trials, overfitting, and tests of many models at once."""
    model = main_model(data, best)
    tests, overfitting = shown_rows(data.trials.multiple_tests, data), data.trials.overfitting
    row = data.verdict_ladder.filter(pl.col("model") == model).row(0, named=True)
    facts = {"trials in the ledger": f"{data.header.trial_count:,}{data.header.trial_reach}"}
    counted = data.trials.significance
    own = None
    if counted is not None:
        of_book = (pl.col("model") == model) & (pl.col("book") == data.header.main_book)
        own = next(counted.filter(of_book).iter_rows(named=True), None)
    if row["deflated_sharpe"] is not None:
        facts |= {
            "net Sharpe ratio": number(2)(row["sharpe_net"]),
            "deflated Sharpe ratio": f"{number(2)(row['deflated_sharpe'])} (at least "
            f"{MIN_DEFLATED_SHARPE:.2f} is strong evidence)",
        }
    if own is not None and own["deflated_effective"] is not None:
        independent = number(1)(own["effective_trials"])
        facts["deflated, with the effective number of trials"] = (
            f"{number(2)(own['deflated_effective'])} ({independent} independent trials)"
        )
    if own is not None and own["rademacher_lower"] is not None:
        facts["Rademacher bound"] = f"the true net Sharpe ratio is above {number(2)(own['rademacher_lower'])}"
    if overfitting is not None:
        for one in overfitting.iter_rows(named=True):
            facts |= {
                f"overfitting, {one['candidates']}": f"probability {one['pbo']:.0%}, of a loss "
                f"{one['loss_probability']:.0%} ({one['variants']} candidates, {one['blocks']} blocks of "
                f"{one['sessions']:,} sessions)"
            }
    if len(facts) == 1 and tests.is_empty():
        yield from _path_blocks(data.trials.paths, styles, best)
        return
    yield paragraph(
        f"{in_book(data, model)}. The deflated Sharpe ratio is the probability that the true ratio is above "
        "the best that this many trials without skill would show. The effective number is that of "
        "independent trials whose best is as good by luck as the best of trials that resemble each other. "
        f"The Rademacher bound holds for all trials together at {1 - LEVEL:.0%}, and is strict. The "
        "probability of overfitting is the share of splits of the test in which the best candidate of one "
        "half is below the median of the other; the probability of a loss is the share in which it loses "
        "money there."
    )
    yield pairs(facts)
    if not tests.is_empty():
        level = tests["level"][0]
        named = tests["baseline"].drop_nulls() if "baseline" in tests.columns else pl.Series(dtype=pl.String)
        best_baseline = named[0] if named.len() else None
        yield "<h4>All models at once</h4>"
        yield paragraph(
            f"At the {level:.0%} level. SPA asks whether any model is better; StepM says which of them are. "
            "The confidence set holds the models that cannot be told apart from the best."
            + (f" The best baseline is {best_baseline}." if best_baseline is not None else "")
        )
        shown = [column for column in _TEST_COLUMNS if has_values(tests, column.field)]
        yield table(tests, shown, label="Tests of all models at once", styles=styles, highlight=best)
    yield from _path_blocks(data.trials.paths, styles, best)


def _path_blocks(
    paths: pl.DataFrame | None, styles: Mapping[str, Style], best: str | None
) -> Iterator[Block]:
    """Show the distribution of results over the paths of combinatorial folds."""
    if paths is None:
        return
    first = paths.row(0, named=True)
    yield "<h4>Paths of combinatorial folds</h4>"
    yield paragraph(
        f"{paths['path'].n_unique()} paths through the history, at delay {first['delay']}, {first['book']}. "
        "Each path tests every date once, with models that were trained on other groups of sessions, before "
        "and after the test. The spread shows how much a result depends on that; it is not a standard error, "
        "and no path could have been earned. All other sections show the first path."
    )
    values = [("ic", "IC", 4), ("sharpe_net", "net Sharpe ratio", 2)]
    summary = paths.group_by("model", maintain_order=True).agg(
        *(pl.col(name).median().alias(f"{name}_median") for name, _, _ in values),
        *(pl.col(name).min().alias(f"{name}_lowest") for name, _, _ in values),
        *(pl.col(name).max().alias(f"{name}_highest") for name, _, _ in values),
    )
    columns = [
        Column(f"{name}_{which}", which, number(digits), group=title)
        for name, title, digits in values
        for which in ("median", "lowest", "highest")
    ]
    yield table(summary, [MODEL_COLUMN, *columns], label="Paths", styles=styles, highlight=best)
