"""An evaluation for a terminal, or as one JSON document (docs/backtesting.md lists its keys)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

from backtest.analysis.regression import ALPHA
from backtest.analysis.styles import FAMILIES
from pipelines.columns import COLUMNS, of_book
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import describe_rate
from pipelines.format import IC, RATIO, Kind, T, abbreviate, describe_difference, interval, json_rows, number
from pipelines.results.comparisons import MIN_DEFLATED_SHARPE, deciding_rows
from pipelines.results.evaluate_signals import USED, failed
from pipelines.run.evaluations import StoredEvaluation, tradable_delay
from pipelines.run.registration import Registration
from pipelines.terminal import text_table

VERSION: Final = 1  # of the JSON document; no key is renamed or removed without a new one

_OWN_NAMES = (
    *("benchmarks", "comparisons", "yearly", "multiple_tests", "overfitting"),
    *("factor_alpha", "factor_models"),
)
_KEYS: Final = {  # of the JSON document -> tables
    **{"results": "ladder", "books": "figures", "tests": "significance"},
    **{name: name for name in (*_OWN_NAMES, "guard", "cutoffs", "rows", "flagged_rows")},
}

_NAMED = 5
_COVERAGE = ("coverage_dates", "coverage_firms", "tied")
_OF_MODEL = ("model", "valid_rank_ic", "ic", "icir", "rank_ic", "ensemble_ic", "ic_t", *_COVERAGE)
_AGAINST: Final = {
    **{name: name for name in ("model", "book", "benchmark")},
    **{"information_ratio": "IR", "active_return": "return %", "tracking_error": "risk %"},
    **{"active_drawdown": "drawdown %", "beta": "beta", "up_capture": "up %", "down_capture": "down %"},
}
_OF_SIGNAL = ("model", "ic", "ic_t", "rank_ic", *_COVERAGE)


def describe_evaluation(evaluation: StoredEvaluation, config: Config) -> str:
    """Format an evaluation: its settings, the ladder, the tests, and the tasks without forecasts."""
    record, table = evaluation.record, evaluation.read_table
    main = evaluation.table("significance").row(0, named=True)
    parts = [
        f"evaluation {record.evaluation}: {record.assumptions}",
        record.tested,
        describe_ladder(evaluation.table("ladder"), config),
        _if_any(describe_decisions, table("figures")),
        describe_benchmarks(evaluation, config),
        describe_tests(evaluation.table("significance"), table("comparisons"), table("trials")),
        _if_any(describe_years, table("yearly")),
        describe_together(table("multiple_tests"), table("overfitting")),
        _if_any(describe_paths, table("paths")),
        _if_any(lambda frame: describe_factors(frame, main["book"], main["delay"]), table("factor_alpha")),
        describe_factor_models(evaluation, config),
        *describe_flagged(table("flagged_rows")),
        _if_any(describe_notes, table("book_notes")),
    ]
    if record.incomplete is not None:
        parts.append(
            f"The run is incomplete. Missing: {record.incomplete}. Models are compared on the {record.dates} "
            f"dates that all of them forecast ({record.first} to {record.last}). To complete the run, use "
            "'peerglass train' with its config."
        )
    return "\n".join(filter(None, parts))


def _if_any(describe: Callable[[pl.DataFrame], str], frame: pl.DataFrame | None) -> str:
    return "" if frame is None else describe(frame)


def describe_signals(evaluation: StoredEvaluation, config: Config) -> str:
    """Format the evaluation of a signal file: rows used, the guard, the results, and the tests."""
    parts = [
        *_used_rows(evaluation.table("rows")),
        *describe_flagged(evaluation.read_table("flagged_rows")),
        *_guard(evaluation.table("guard")),
        *_cutoffs(evaluation.read_table("cutoffs")),
        "",
        *_results(evaluation, config),
        *filter(
            None,
            (
                describe_decisions(evaluation.table("figures")),
                describe_benchmarks(evaluation, config),
                describe_factor_models(evaluation, config),
            ),
        ),
        "",
        *_signal_tests(evaluation.table("significance"), evaluation.read_table("trials")),
    ]
    return "\n".join(parts)


def _lines(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], titles: Mapping[str, str], left: int = 1
) -> list[str]:
    """A table of rows: declared columns, and those with titles of their own, such as books'."""
    columns = {name: COLUMNS[name.rpartition(".")[2]] for name in (*names, *titles)}
    cells = [[one.text(row[name]) if name in row else "" for name, one in columns.items()] for row in rows]
    return text_table(cells, [titles.get(name, one.heading) for name, one in columns.items()], left=left)


def describe_ladder(ladder: pl.DataFrame, config: Config) -> str:
    """Format the ladder: one block per delay, one line per model, and a legend of the columns."""
    lines = []
    for delay in config.label.delays:
        rows = ladder.filter(pl.col("delay") == delay)
        own = delay == config.label.delay
        trained = "as in training" if own else "same forecasts, not trained for this delay"
        lines.append(
            f"test results, horizon {config.label.horizon} sessions, delay {delay} ({trained}"
            f"{_traded_at(config, delay)})"
        )
        of_books = {of_book(book, "sharpe_net"): f"{book} net" for book in config.backtest.books}
        ratios = {of_book(book, "information_ratio"): f"{book} IR" for book in config.backtest.books}
        of_books |= {name: title for name, title in ratios.items() if rows[name].drop_nulls().len()}
        shown = rows.to_dicts()
        if rows["truth_ic"].drop_nulls().len():
            truth = {"ic": rows["truth_ic"][0], "rank_ic": rows["truth_rank_ic"][0]}
            shown.append({"model": "(true mean)", **truth})
        lines += _lines(shown, _OF_MODEL, of_books)
    rate = describe_rate(config.backtest.risk_free)
    lines += [
        "valid rIC: rank IC on validation. IC, ICIR, rank IC: test, mean over single seeds.",
        "ens. IC and its Newey-West t: seed ensemble. dates %: share of test dates with a forecast.",
        "firms %: share of the universe's firms with a forecast on these dates.",
        "tied %: share of forecasts that equal another forecast of the same date.",
        f"net: annualised Sharpe ratio after costs, with {rate} charged on net exposure.",
        *(
            f"IR: information ratio of long-only books after costs against {name}, {one.words}."
            for name, one in list(config.backtest.benchmarks.items())[:1]
        ),
    ]
    if ladder["truth_ic"].drop_nulls().len():
        lines.append("(true mean): the simulated market's true expected return, the best possible forecast.")
    return "\n".join(lines)


def _traded_at(config: Config, delay: int) -> str:
    traded = config.backtest.delay
    return "" if traded in (None, delay) else f"; books trade at delay {traded}"


def describe_flagged(rows: pl.DataFrame | None) -> tuple[str, ...]:
    """Describe flagged price rows: those that earn nothing by name, the others by number."""
    if rows is None:
        return ()
    sentences, (others, wrong) = [], (rows.filter(pl.col("earns") == earns) for earns in (True, False))
    if wrong.height:
        named = [
            f"{row['ticker']} on {row['date']} ({row['rule']}: {row['evidence']})" for row in wrong.to_dicts()
        ]
        cells = wrong.select("date", "ticker").n_unique()
        sentences.append(
            f"{cells:,} price row(s) of the measured dates are flagged as wrong and earn nothing: "
            f"{abbreviate(named, _NAMED)}. See 'peerglass quarantine list CONFIG' and quality.earn_nothing."
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


def describe_benchmarks(evaluation: StoredEvaluation, config: Config) -> str:
    """Format every book against the benchmarks at the delay of the tests; empty if the config names none."""
    found, settings = evaluation.read_table("benchmarks"), config.backtest
    if found is None or not settings.own_benchmarks:  # the ratio to the default stands in the ladder
        return ""
    delay = tradable_delay(config.label.delays)
    lines = (
        f"books net of costs against benchmarks at delay {delay}",
        *_lines(found.filter(pl.col("delay") == delay).to_dicts(), (), _AGAINST, left=3),
        "return, risk: annual, of the active return. drawdown: its largest fall from a peak.",
        "up, down: share of the benchmark's moves.",
        *(f"{name}: {one.words}." for name, one in settings.benchmarks.items()),
    )
    return "\n".join(lines)


def describe_tests(
    significance: pl.DataFrame, comparisons: pl.DataFrame | None, counted: pl.DataFrame | None = None
) -> str:
    """Format the tests: one line per model with the main book's Sharpe ratio and the answers on baselines."""
    first = significance.row(0, named=True)
    delay, book = first["delay"], first["book"]
    tradable = "" if delay >= 1 else " (cannot be traded; set label.extra_delays to 1 or more)"
    answers: dict[str, list[str]] = {}
    for row in [] if comparisons is None else deciding_rows(comparisons):
        answers.setdefault(row["model"], []).append(describe_comparison(row))
    lines = [f"tests at delay {delay}{tradable}, {book} net of costs, intervals at {1 - first['level']:.0%}"]
    cells = []
    for row in significance.filter(pl.col("book") == book).iter_rows(named=True):
        own = f"Sharpe {_estimate(row, 'sharpe')}, {_deflated(row)}"
        cells.append((row["model"], "; ".join((own, *answers.get(row["model"], ())))))
    lines += text_table(cells, left=2)
    lines += describe_count(first, counted)
    if answers:
        lines.append(
            "beats: yes if the interval of the IC difference is above 0 and net Sharpe is higher; no if the "
            "interval of the IC or of the Sharpe difference is below 0."
        )
    return "\n".join(lines)


def describe_years(yearly: pl.DataFrame) -> str:
    """Format the comparisons by year with the last baseline: IC, t of the difference, net Sharpe ratio."""
    first, rival = yearly.row(0, named=True), yearly["rival"][-1]
    own = yearly.filter(pl.col("model") == rival).unique("year", keep="first", maintain_order=True)
    against = yearly.filter(pl.col("rival") == rival)
    rows = []
    for (model,), part in pl.concat([own, against]).group_by("model", maintain_order=True):
        cells = []
        for row in part.iter_rows(named=True):
            t = "-" if model == rival else number(row["ic_t"], 1)
            cells.append(f"{number(row['ic'], 4)} ({t}, {number(row['sharpe_net'], 2)})")
        rows.append((str(model), *cells))
    shown = f"IC (t of the difference to {rival}, net Sharpe of {first['book']})"
    head = f"by year at delay {first['delay']}: {shown}"
    return "\n".join((head, *text_table(rows, ("", *against["year"].unique(maintain_order=True)))))


def _estimate(row: Mapping[str, Any], what: str) -> str:
    """IC or net Sharpe ratio of a row of ``significance``, with its interval."""
    name, kind = ("sharpe_net", RATIO) if what == "sharpe" else ("ic", IC)
    return interval(row[name], row[f"{what}_lower"], row[f"{what}_upper"], kind)


def _deflated(row: Mapping[str, Any]) -> str:
    """Format a row of ``significance``: "deflated 0.71, effective 0.83, at least -2.10"."""
    text = f"deflated {number(row['deflated_sharpe'], 2)}"
    if "deflated_effective" not in row:
        return text
    effective, lower = (number(row[name], 2) for name in ("deflated_effective", "rademacher_lower"))
    return f"{text}, effective {effective}, at least {lower}"


def describe_count(row: Mapping[str, Any], counted: pl.DataFrame | None) -> list[str]:
    """Say what the figures of the tests mean, and how many trials they count up to when."""
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
            f"all models together: no model earns more than nothing p {number(rows['spa_p'][0], 3)} (SPA); "
            f"better than nothing: {', '.join(superior) or 'none'} (StepM); cannot be told from the best: "
            f"{', '.join(equal) or 'unknown'} (model confidence set)"
        )
        tested = rows.drop_nulls("baseline_spa_p")
        if tested.height:
            better = tested.filter("in_baseline_stepm")["model"].to_list()
            p_value = number(tested["baseline_spa_p"][0], 3)
            lines.append(
                f"against {tested['baseline'][0]}, the best baseline: p {p_value} (SPA); better: "
                f"{', '.join(better) or 'none'} (StepM)"
            )
    lines += [
        f"probability of overfitting {number(row['pbo'], 2)}, of a loss {number(row['loss_probability'], 2)}"
        f", when the best of {row['variants']} is selected ({row['candidates']}, {row['blocks']} blocks)"
        for row in ([] if overfitting is None else overfitting.to_dicts())
    ]
    return "\n".join(lines)


def describe_paths(paths: pl.DataFrame) -> str:
    """Format the distribution over paths of combinatorial folds: median, lowest and highest per model."""
    first = paths.row(0, named=True)
    rows = []
    for (model,), part in paths.group_by("model", maintain_order=True):
        spreads = []
        for name, title, kind in (("ic", "IC", IC), ("sharpe_net", "net Sharpe", RATIO)):
            ends = (part[name].median(), part[name].min(), part[name].max())
            spreads.append(f"{title} {interval(*ends, kind)}")  # type: ignore[arg-type]  # numbers or null
        rows.append((str(model), ", ".join(spreads)))
    lines = [
        f"{paths['path'].n_unique()} paths of combinatorial folds, delay {first['delay']}, {first['book']}: "
        "median [lowest, highest]",
        *text_table(rows, left=2),
        "All other results are those of the first path. Models are trained on sessions before and after "
        "their tests, so none of these results could have been earned.",
    ]
    return "\n".join(lines)


def describe_factors(factor_alpha: pl.DataFrame, book: str, delay: int) -> str:
    """Format what the factor regressions say of one book: one line per model."""
    main = factor_alpha.filter(pl.col("book") == book, pl.col("delay") == delay)
    families = dict.fromkeys(FAMILIES[term] for term in main["term"] if term in FAMILIES)
    rows = main.filter(pl.col("term") == "alpha").select("model", "reading").rows()
    head = f"{book} net of costs at delay {delay} against factors of the same firms ({', '.join(families)})"
    return "\n".join((head, *text_table(rows, left=2)))


def describe_factor_models(evaluation: StoredEvaluation, config: Config) -> str:
    """Format the regressions of every book on published factors; empty if the config names none."""
    found, delay = evaluation.read_table("factor_models"), tradable_delay(config.label.delays)
    own = None if found is None else found.filter(pl.col("delay") == delay)
    lines = []
    for name in config.backtest.factors:
        rows = pl.DataFrame() if own is None else own.filter(pl.col("factors") == name)
        if rows.is_empty():
            lines.append(f"{name}: the books fill too few periods of these factors for a regression.")
            continue
        terms = [term for term in rows["term"].unique(maintain_order=True) if term != ALPHA]
        cells = []
        for (model, book), part in rows.group_by(["model", "book"], maintain_order=True):
            by = {(row["term"], row["after_costs"]): row for row in part.iter_rows(named=True)}
            net = by[ALPHA, True]
            alphas = [_with_t(by[ALPHA, costs], Kind(1, 100.0, signed=True)) for costs in (False, True)]
            betas = [_with_t(by.get((term, True)), RATIO) for term in terms]
            cells.append([str(model), str(book), *alphas, RATIO.text(net["r2"]), str(net["periods"]), *betas])
        titles = ["model", "book", "gross alpha %", "net alpha %", "R2", "periods", *terms]
        frequency = rows["frequency"][0]
        lines.append(f"books at delay {delay} against published factors: {name} ({frequency} returns)")
        lines += text_table(cells, titles, left=2)
    if not lines:
        return ""
    legend = "alpha: per year. In brackets: Newey-West t. R2 and betas: of net returns."
    return "\n".join((*lines, legend))


def _with_t(row: Mapping[str, Any] | None, kind: Kind) -> str:
    """A coefficient with its t-statistic."""
    return "-" if row is None else f"{kind.text(row['coefficient'])} ({T.text(row['t'])})"


def describe_notes(notes: pl.DataFrame) -> str:
    """Format notes on books: one line per model and book."""
    lines = []
    for (model, book), part in notes.group_by(["model", "book"], maintain_order=True):
        last = part.row(-1, named=True)
        dates = "1 date" if part.height == 1 else f"{part.height:,} dates"
        lines.append(f"{book} of {model}: notes on {dates}; the newest, {last['date']}: {last['note']}.")
    return "\n".join(lines)


def describe_comparison(row: Mapping[str, Any]) -> str:
    """Format a row of ``comparisons``: "beats ridge: yes (IC difference +0.0100 [+0.0020, +0.0180])"."""
    text = f"IC difference {describe_difference(row, 'ic', IC)}"
    if row["beats"] == "no" and not (row["ic_upper"] is not None and row["ic_upper"] < 0):
        text += f", net Sharpe difference {describe_difference(row, 'sharpe', RATIO)}"
    elif row["beats"] == "unclear" and row["ic_lower"] is not None and row["ic_lower"] > 0:
        text += ", net Sharpe not higher"
    return f"beats {row['rival']}: {row['beats']} ({text})"


def _used_rows(rows: pl.DataFrame) -> Iterator[str]:
    for (signal,), own in rows.partition_by(["signal"], as_dict=True, maintain_order=True).items():
        counts = dict(own.select("reason", "rows").iter_rows())
        left = [f"{count:,} {reason}" for reason, count in counts.items() if count and reason != USED]
        yield f"{signal}: {counts[USED]:,} of {sum(counts.values()):,} rows used" + (
            f"; left out: {', '.join(left)}" if left else ""
        )


def _guard(guard: pl.DataFrame) -> Iterator[str]:
    bad, warned = failed(guard), guard.filter(pl.col("verdict") == "warn")
    checks = guard.filter(pl.col("verdict") != "skipped").height
    if not bad and warned.is_empty():
        yield f"look-ahead guard: {checks} checks, nothing found"
        return
    yield "look-ahead guard: " + (
        f"NOT BELIEVABLE: {', '.join(bad)}" if bad else f"{checks} checks, nothing that proves look-ahead"
    )
    for row in guard.filter(pl.col("verdict").is_in(["fail", "warn"])).iter_rows(named=True):
        yield f"  {row['verdict']}  {row['signal']}, {row['check']}: {row['sentence']}"


def _cutoffs(cutoffs: pl.DataFrame | None) -> list[str]:
    """Skill before and after the knowledge cutoffs; no line without them."""
    if cutoffs is None:
        return []
    return [
        f"knowledge cutoff {cutoffs['known_from'][0]}: figures are of forecasts from then on, because a "
        "model may remember outcomes of its training data",
        *_lines(cutoffs.to_dicts(), ("signal", "part", "dates", "ic", "ic_t"), {}, left=2),
    ]


def _results(evaluation: StoredEvaluation, config: Config) -> Iterator[str]:
    ladder, costs, record = evaluation.table("ladder"), config.backtest.costs, evaluation.record
    yield (
        f"{record.first} to {record.last}, {record.dates:,} sessions; horizon {config.label.horizon}; half-"
        f"spread {costs.half_spread_bps:g} bps, commission {costs.commission_bps:g} bps"
    )
    figures = {"sharpe_gross": "gross", "sharpe_net": "net", "turnover": "turnover"}
    of_books = {
        of_book(book, name): f"{book} {title}"
        for book in config.backtest.books
        for name, title in figures.items()
    }
    for delay in config.label.delays:
        yield f"delay {delay}{'' if delay >= 1 else ' (cannot be traded)'}{_traded_at(config, delay)}"
        yield from _lines(
            ladder.filter(pl.col("delay") == delay).to_dicts(), _OF_SIGNAL, {"model": "signal", **of_books}
        )
    yield (
        f"gross, net: annual Sharpe ratio before and after costs, {record.periods_per_year:g} sessions a "
        "year. turnover: one-way, per session, % of NAV."
    )


def _signal_tests(significance: pl.DataFrame, counted: pl.DataFrame | None) -> Iterator[str]:
    first = significance.row(0, named=True)
    yield f"tests at delay {first['delay']}, intervals at {1 - first['level']:.0%}"
    cells = []
    for row in significance.iter_rows(named=True):
        estimates = (f"IC {_estimate(row, 'ic')}", f"Sharpe net {_estimate(row, 'sharpe')}")
        cells.append((row["model"], row["book"], *estimates, _deflated(row)))
    yield from text_table(cells, left=5)
    yield from describe_count(first, counted)


def document(
    run_id: str,
    evaluation: StoredEvaluation,
    verdict: Mapping[str, Any] | None,
    paths: Mapping[str, Path],
    registered: Registration | None = None,
) -> str:
    """Format an evaluation as one JSON object: a table is a list of rows, or null if there is none."""
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
        "registered": None if registered is None else asdict(registered),
        "verdict": verdict,
        **{
            key: None if (table := evaluation.read_table(name)) is None else json_rows(table)
            for key, name in _KEYS.items()
        },
        "paths": {name: str(path) for name, path in paths.items()},
    }
    return json.dumps(content, indent=1, default=str, allow_nan=False)
