"""Format an evaluation for a terminal: its settings, the ladder, and the missing tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.analysis.styles import FAMILIES
from pipelines.config.schema import Config
from pipelines.dataset.risk_free import describe_rate
from pipelines.results.comparisons import MIN_DEFLATED_SHARPE, deciding_rows
from pipelines.run.evaluations import StoredEvaluation

_NAMED = 5
_LADDER_CELLS = (  # column, heading, scale, digits, width
    ("valid_rank_ic", "valid rIC", 1, 4, 11),
    ("ic", "IC", 1, 4, 9),
    ("icir", "ICIR", 1, 2, 8),
    ("rank_ic", "rank IC", 1, 4, 9),
    ("ensemble_ic", "ens. IC", 1, 4, 9),
    ("ic_t", "t", 1, 1, 7),
    ("coverage_dates", "dates %", 100, 1, 9),
    ("coverage_firms", "firms %", 100, 1, 9),
    ("tied", "tied %", 100, 1, 8),
)


def describe_evaluation(evaluation: StoredEvaluation, config: Config) -> str:
    """Format an evaluation: its settings, the ladder, the tests, and the tasks without forecasts."""
    record = evaluation.record
    settings = f"evaluation {record.evaluation}: {record.assumptions}"
    parts = [settings, *filter(None, [record.tested]), describe_ladder(evaluation.table("ladder"), config)]
    figures = evaluation.read_table("figures")
    if figures is not None:
        parts.append(describe_decisions(figures))
    significance = evaluation.read_table("significance")
    if significance is not None:
        counted = evaluation.read_table("trials")
        parts.append(describe_tests(significance, evaluation.read_table("comparisons"), counted))
    together = describe_together(
        evaluation.read_table("multiple_tests"), evaluation.read_table("overfitting")
    )
    if together:
        parts.append(together)
    paths = evaluation.read_table("paths")
    if paths is not None:
        parts.append(describe_paths(paths))
    factor_alpha = evaluation.read_table("factor_alpha")
    if significance is not None and factor_alpha is not None:
        main = significance.row(0, named=True)
        parts.append(describe_factors(factor_alpha, main["book"], main["delay"]))
    parts += describe_flagged(evaluation.read_table("flagged_rows"))
    notes = evaluation.read_table("book_notes")
    if notes is not None:
        parts.append(describe_notes(notes))
    if record.incomplete is not None:
        parts.append(
            f"The run is incomplete. Missing: {record.incomplete}. Models are compared on the {record.dates} "
            f"dates that all of them forecast ({record.first} to {record.last}). To complete the run, use "
            "'peerglass train' with its config."
        )
    return "\n".join(parts)


def describe_ladder(ladder: pl.DataFrame, config: Config) -> str:
    """Format the ladder: one block per delay, one line per model, and a legend of the columns."""
    lines = []
    for delay in config.label.delays:
        rows = ladder.filter(pl.col("delay") == delay)
        label = f"horizon {config.label.horizon} sessions, delay {delay}"
        trained = (
            "as in training" if delay == config.label.delay else "same forecasts, not trained for this delay"
        )
        traded = config.backtest.delay
        books = "" if traded in (None, delay) else f"; books trade at delay {traded}"
        lines.append(f"test results, {label} ({trained}{books})")
        columns = [(f"{book}.sharpe_net", f"{book} net") for book in config.backtest.books]
        ratios = ((f"{book}.information_ratio", f"{book} IR") for book in config.backtest.books)
        columns += [(column, heading) for column, heading in ratios if rows[column].drop_nulls().len()]
        width = max([22, *(len(model) + 2 for model in rows["model"])])
        headings = "".join(f"{heading:>{cell}}" for _, heading, _, _, cell in _LADDER_CELLS)
        lines.append(f"  {'model':<{width}}{headings}{''.join(f'{heading:>18}' for _, heading in columns)}")
        for row in rows.iter_rows(named=True):
            cells = "".join(
                f"{_number(row[key], digits, scale):>{cell}}" for key, _, scale, digits, cell in _LADDER_CELLS
            )
            of_books = "".join(f"{_number(row[column], 2):>18}" for column, _ in columns)
            lines.append(f"  {row['model']:<{width}}{cells}{of_books}")
        if rows["truth_ic"].drop_nulls().len():
            truth = rows.row(0, named=True)
            lines.append(
                f"  {'(true mean)':<{width + 11}}"
                f"{truth['truth_ic']:>9.4f}{'':>8}{truth['truth_rank_ic']:>9.4f}"
            )
    rate = describe_rate(config.backtest.risk_free)
    lines += [
        "valid rIC: rank IC on validation. IC, ICIR, rank IC: test, mean over single seeds.",
        "ens. IC and its Newey-West t: seed ensemble. dates %: share of test dates with a forecast.",
        "firms %: share of the universe's firms with a forecast on these dates. tied %: share of forecasts",
        "that equal another forecast of the same date.",
        f"net: annualised Sharpe ratio after costs, with {rate} charged on net exposure.",
        "IR: information ratio after costs against the equal-weighted universe before costs.",
    ]
    if ladder["truth_ic"].drop_nulls().len():
        lines.append("(true mean): the simulated market's true expected return, the best possible forecast.")
    return "\n".join(lines)


def describe_flagged(rows: pl.DataFrame | None) -> tuple[str, ...]:
    """Describe flagged price rows: those that earn nothing by name, the others by number.

    Parameters
    ----------
    rows
        Table ``flagged_rows`` (`pipelines.results.evaluation_tables.flagged_rows`); None if there are none.
    """
    if rows is None:
        return ()
    sentences = []
    wrong, others = rows.filter(~pl.col("earns")), rows.filter("earns")
    if wrong.height:
        named = [
            f"{ticker} on {day} ({rule}: {evidence})"
            for day, ticker, rule, evidence in wrong.head(_NAMED)
            .select("date", "ticker", "rule", "evidence")
            .iter_rows()
        ]
        more = f" and {wrong.height - _NAMED:,} more" if wrong.height > _NAMED else ""
        cells = wrong.select("date", "ticker").n_unique()
        sentences.append(
            f"{cells:,} price row(s) of the measured dates are flagged as wrong and earn nothing: "
            f"{', '.join(named)}{more}. See 'peerglass quarantine list CONFIG' and quality.earn_nothing."
        )
    if others.height:
        by_rule = others.group_by("rule").len().sort("len", "rule", descending=[True, False])
        counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
        sentences.append(
            f"{others.height:,} flag(s) on price rows of the measured dates that earn as delivered: {counts}."
        )
    return tuple(sentences)


def describe_decisions(figures: pl.DataFrame) -> str:
    """Format how many of the dates with signals each book used, the fewest of all signals in one line."""
    parts = []
    for (book,), part in figures.group_by(["book"], maintain_order=True):
        row = part.sort("decisions").row(0, named=True)
        parts.append(f"{book} {row['decisions']:,} of {row['signal_dates']:,}")
    return f"dates with signals on which a book decided: {', '.join(parts)}"


def describe_tests(
    significance: pl.DataFrame, comparisons: pl.DataFrame | None, counted: pl.DataFrame | None = None
) -> str:
    """Format the tests: one line per model with the main book's Sharpe ratio and the answers on baselines.

    Parameters
    ----------
    significance, comparisons
        Tables of `pipelines.results.comparisons`; None if the run has no baseline to compare with.
    counted
        Table ``trials`` of `pipelines.results.recount.recount`; None: ``significance`` is not
        recounted.
    """
    first = significance.row(0, named=True)
    delay, book = first["delay"], first["book"]
    tradable = "" if delay >= 1 else " (cannot be traded; set label.extra_delays to 1 or more)"
    answers: dict[str, list[str]] = {}
    for row in [] if comparisons is None else deciding_rows(comparisons):
        answers.setdefault(row["model"], []).append(describe_comparison(row))
    lines = [f"tests at delay {delay}{tradable}, {book} net of costs, intervals at {1 - first['level']:.0%}"]
    rows = significance.filter(pl.col("book") == book)
    width = max(22, *(len(model) + 2 for model in rows["model"]))
    for row in rows.iter_rows(named=True):
        sharpe = describe_interval(*(row[f"sharpe_{name}"] for name in ("net", "lower", "upper")), digits=2)
        parts = [f"Sharpe {sharpe}, {describe_deflated(row)}"]
        parts += answers.get(row["model"], [])
        lines.append(f"  {row['model']:<{width}}{'; '.join(parts)}")
    lines += describe_count(first, counted)
    if answers:
        lines.append(
            "beats: yes if the interval of the IC difference is above 0 and net Sharpe is higher; no if the "
            "interval of the IC or of the Sharpe difference is below 0."
        )
    return "\n".join(lines)


def describe_deflated(row: Mapping[str, Any]) -> str:
    """Format a row of ``significance``: "deflated 0.71, effective 0.83, at least -2.10"."""
    text = f"deflated {_number(row['deflated_sharpe'], 2)}"
    if "deflated_effective" not in row:
        return text
    effective, lower = (_number(row[name], 2) for name in ("deflated_effective", "rademacher_lower"))
    return f"{text}, effective {effective}, at least {lower}"


def describe_count(row: Mapping[str, Any], counted: pl.DataFrame | None) -> list[str]:
    """Say what the figures of `describe_deflated` mean, and how many trials they count up to when."""
    plural = "" if row["trials"] == 1 else "s"
    reach = "" if counted is None else counted["reach"][0]
    lines = [
        f"deflated: probability of skill, given {row['trials']:,} trial{plural} in the ledger{reach}; "
        f"{MIN_DEFLATED_SHARPE:.2f} or more is strong evidence."
    ]
    if counted is not None:
        lines += [
            f"effective: the same, given {counted['effective_trials'][0]:.1f} independent trials, which is "
            "what they are worth by their correlation.",
            "at least: Rademacher bound of the true Sharpe ratio, which holds for all trials together.",
        ]
    return lines


def describe_together(multiple_tests: pl.DataFrame | None, overfitting: pl.DataFrame | None) -> str:
    """Format the tests of all models together in one line each; empty without any of them."""
    lines = []
    if multiple_tests is not None:
        rows = multiple_tests.filter(pl.col("book") == multiple_tests["book"][0])
        superior = rows.filter("in_stepm")["model"].to_list()
        equal = rows.filter(pl.col("in_mcs").fill_null(False))["model"].to_list()
        lines.append(
            f"all models together: no model earns more than nothing p {_number(rows['spa_p'][0], 3)} (SPA); "
            f"better than nothing: {', '.join(superior) or 'none'} (StepM); cannot be told from the best: "
            f"{', '.join(equal) or 'unknown'} (model confidence set)"
        )
        tested = rows.drop_nulls("baseline_spa_p")
        if tested.height:
            better = tested.filter("in_baseline_stepm")["model"].to_list()
            p_value = _number(tested["baseline_spa_p"][0], 3)
            lines.append(
                f"against {tested['baseline'][0]}, the best baseline: p {p_value} (SPA); better: "
                f"{', '.join(better) or 'none'} (StepM)"
            )
    for row in [] if overfitting is None else overfitting.iter_rows(named=True):
        lines.append(
            f"probability of overfitting {_number(row['pbo'], 2)}, of a loss "
            f"{_number(row['loss_probability'], 2)}, when the best of {row['variants']} is selected "
            f"({row['candidates']}, {row['blocks']} blocks)"
        )
    return "\n".join(lines)


def describe_paths(paths: pl.DataFrame) -> str:
    """Format the distribution over paths of combinatorial folds: median, lowest and highest per model."""
    first = paths.row(0, named=True)
    lines = [
        f"{paths['path'].n_unique()} paths of combinatorial folds, delay {first['delay']}, {first['book']}: "
        "median [lowest, highest]"
    ]
    width = max(22, *(len(model) + 2 for model in paths["model"]))
    for (model,), part in paths.group_by("model", maintain_order=True):
        cells = []
        for name, title, digits in (("ic", "IC", 4), ("sharpe_net", "net Sharpe", 2)):
            known = part[name].drop_nulls().drop_nans().to_numpy()
            bounds = (np.median(known), known.min(), known.max()) if len(known) else (None, None, None)
            cells.append(f"{title} {describe_interval(*bounds, digits=digits)}")
        lines.append(f"  {model:<{width}}{', '.join(cells)}")
    lines.append(
        "All other results are those of the first path. Models are trained on sessions before and after "
        "their tests, so none of these results could have been earned."
    )
    return "\n".join(lines)


def describe_factors(factor_alpha: pl.DataFrame, book: str, delay: int) -> str:
    """Format what the factor regressions say of one book: one line per model.

    Parameters
    ----------
    factor_alpha
        Table of `pipelines.results.book_analysis.BookAnalysis`.
    book, delay
        The main book, and the delay of the tests.
    """
    main = factor_alpha.filter(pl.col("book") == book, pl.col("delay") == delay)
    families = dict.fromkeys(FAMILIES[term] for term in main["term"] if term in FAMILIES)
    rows = main.filter(pl.col("term") == "alpha").select("model", "reading")
    width = max([22, *(len(model) + 2 for model in rows["model"])])
    lines = [
        f"{book} net of costs at delay {delay} against factors of the same firms ({', '.join(families)})"
    ]
    lines += [f"  {model:<{width}}{reading}" for model, reading in rows.iter_rows()]
    return "\n".join(lines)


def describe_notes(notes: pl.DataFrame) -> str:
    """Format notes on books (`pipelines.results.books.note_table`): one line per model and book."""
    lines = []
    for (model, book), part in notes.group_by(["model", "book"], maintain_order=True):
        last = part.row(-1, named=True)
        dates = "1 date" if part.height == 1 else f"{part.height:,} dates"
        lines.append(f"{book} of {model}: notes on {dates}; the newest, {last['date']}: {last['note']}.")
    return "\n".join(lines)


def describe_comparison(row: Mapping[str, Any]) -> str:
    """Format a row of `comparison_table`: "beats ridge: yes (IC difference +0.0100 [+0.0020, +0.0180])"."""
    ic = describe_interval(row["ic_difference"], row["ic_lower"], row["ic_upper"], digits=4, signed=True)
    text = f"IC difference {ic}"
    if row["beats"] == "no" and not (row["ic_upper"] is not None and row["ic_upper"] < 0):
        bounds = (row[f"sharpe_{name}"] for name in ("difference", "lower", "upper"))
        text += f", net Sharpe difference {describe_interval(*bounds, digits=2, signed=True)}"
    elif row["beats"] == "unclear" and row["ic_lower"] is not None and row["ic_lower"] > 0:
        text += ", net Sharpe not higher"
    return f"beats {row['rival']}: {row['beats']} ({text})"


def describe_interval(
    estimate: float | None, lower: float | None, upper: float | None, *, digits: int, signed: bool = False
) -> str:
    """Format an estimate with its interval, as in "1.20 [0.31, 2.10]"; a dash if it is unknown."""
    if estimate is None:
        return "-"
    style = f"{'+' if signed else ''}.{digits}f"
    if lower is None or upper is None:
        return f"{estimate:{style}} (no interval)"
    return f"{estimate:{style}} [{lower:{style}}, {upper:{style}}]"


def _number(value: float | None, digits: int, scale: int = 1) -> str:
    if value is None or math.isnan(value):
        return "-"
    value *= scale
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.0e}"  # wider would run into its neighbour


VERSION: Final = 1
"""Version of the document. A key is never renamed or removed without a new version."""

_TABLES: Final = {
    "results": "ladder",
    "books": "figures",
    "tests": "significance",
    "comparisons": "comparisons",
    "multiple_tests": "multiple_tests",
    "overfitting": "overfitting",
    "factor_alpha": "factor_alpha",
    "guard": "guard",
    "rows": "rows",
    "flagged_rows": "flagged_rows",
}


def document(
    run_id: str,
    evaluation: StoredEvaluation,
    verdict: Mapping[str, Any] | None,
    paths: Mapping[str, Path],
) -> str:
    """Format an evaluation as JSON.

    Parameters
    ----------
    run_id
        Id of the run, or of the measured signals.
    evaluation
        The evaluation.
    verdict
        tone (good, caution or bad), headline and evidence; None if there is no report to take it from.
    paths
        Name -> file or folder.

    Returns
    -------
    str
        One object. A table is a list of rows, or null if the evaluation does not have it. NaN and unknown
        values are null, dates are YYYY-MM-DD.
    """
    record = evaluation.record
    content = {
        "version": VERSION,
        "id": run_id,
        "evaluation": record.evaluation,
        "made_at": record.made_at.isoformat(timespec="seconds"),
        "commit": record.commit,
        "dates": {"first": str(record.first), "last": str(record.last), "count": record.dates},
        "delays": list(record.delays),
        "periods_per_year": record.periods_per_year,
        "backtest": record.backtest.model_dump(mode="json"),
        "trials": int(evaluation.table("trials")["trials"][0]),
        "incomplete": record.incomplete,
        "verdict": verdict,
        **{key: _rows(evaluation.read_table(name)) for key, name in _TABLES.items()},
        "paths": {name: str(path) for name, path in paths.items()},
    }
    return json.dumps(content, indent=1, default=str, allow_nan=False)


def _rows(table: pl.DataFrame | None) -> list[dict[str, Any]] | None:
    if table is None:
        return None
    floats = [name for name, dtype in table.schema.items() if dtype.is_float()]
    known = table.with_columns(pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in floats)
    return known.to_dicts()
