"""What an evaluation, the folds and the learning curves are in MLflow: metrics that sort, and tables.

A metric has the same name in every run, so a column of MLflow's table sorts runs by it: ``test.NAME`` is a
column of the ladder in the newest evaluation, for its first book at the shortest delay that can be traded.
``test.BOOK.NAME`` is of another book, ``test.delay_0.NAME`` of another delay.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from backtest.accounts.performance import sharpe
from pipelines.columns import BOOK_FIGURES, COLUMNS, of_book
from pipelines.run.evaluations import StoredEvaluation, tradable_delay

HEADLINE: Final = (  # of the model that leads on validation, on the parent run
    *("valid.rank_ic", "test.ic", "test.ic_t", "test.rank_ic", "test.sharpe_net", "test.sharpe_lower"),
    *("test.sharpe_upper", "test.deflated_sharpe", "test.annual_return_net", "test.max_drawdown_net"),
    "test.turnover",
)
_OTHER_DELAYS: Final = ("ic", "ic_t", "rank_ic", "sharpe_gross", "sharpe_net", "annual_return_net")
_TESTED: Final = ("sharpe_lower", "sharpe_upper", "probabilistic_sharpe", "deflated_sharpe")
_FORECAST: Final = ("ic", "ic_t", "rank_ic", "ensemble_ic", "coverage_dates", "coverage_firms")
_OF_FOLD: Final = ("test_from", "test_to", "n_test", "train_from", "train_to", "valid_from", "valid_to")
_BY_FOLD: Final = ("valid_rank_ic", "test_ic", "test_sharpe_net", "seconds")
_CURVES: Final = ("train_loss", "valid_rank_ic", "valid_ic")
_DIGITS: Final = 6  # significant digits of a table's cells


def test_metrics(evaluation: StoredEvaluation, model: str) -> dict[str, float]:
    """Metrics of a model or signal in an evaluation, by their names in MLflow; unknown figures are absent."""
    record = evaluation.record
    main, first = next(iter(record.backtest.books)), tradable_delay(record.delays)
    found: dict[str, float] = {}
    for row in evaluation.table("ladder").filter(pl.col("model") == model).iter_rows(named=True):
        for column, value in row.items():
            name = column.removeprefix(f"{main}.")
            if not isinstance(value, float) or name.startswith("valid_"):
                continue
            if row["delay"] == first:
                found[f"test.{name}"] = value
            elif name in _OTHER_DELAYS:
                found[f"test.delay_{row['delay']}.{name}"] = value
    tests = evaluation.read_table("significance")
    if tests is not None:
        own = pl.all_horizontal(pl.col("model") == model, pl.col("book") == main, pl.col("delay") == first)
        for row in tests.filter(own).iter_rows(named=True):
            found |= {f"test.{name}": row[name] for name in _TESTED if row[name] is not None}
    return found


def describe_result(evaluation: StoredEvaluation, numbers: Mapping[str, float]) -> str:
    """Say in one sentence what the test of a model or signal gave; ``numbers`` are its metrics."""
    record = evaluation.record

    def said(name: str) -> str:
        return COLUMNS[name].kind.text(numbers.get(f"test.{name}"), "unknown")

    return (
        f"From {record.first} to {record.last}, its book {next(iter(record.backtest.books))} at delay "
        f"{tradable_delay(record.delays)} had a net Sharpe ratio of {said('sharpe_net')} (95% interval "
        f"{said('sharpe_lower')} to {said('sharpe_upper')}; deflated {said('deflated_sharpe')} after "
        f"{record.trials} trials), and its IC was {said('ic')} (t {said('ic_t')})."
    )


def epoch_metrics(curves: pl.DataFrame, model: str) -> dict[int, dict[str, float]]:
    """Histories of a model's training by epoch: means over folds and seeds; none without epochs.

    A task that stopped early counts with its last value, so that a mean does not jump where one stops.
    """
    if curves.is_empty():
        return {}
    own = curves.filter(pl.col("model") == model)
    if not (own["lr"] > 0).any():  # rows without a learning rate are penalties, not epochs
        return {}
    task, last = ["fold", "seed"], int(own["epoch"].max())  # type: ignore[arg-type]  # a column of integers
    every = own.select(task).unique().join(pl.DataFrame({"epoch": range(last + 1)}), how="cross")
    filled = every.join(own.select(*task, "epoch", *_CURVES), on=[*task, "epoch"], how="left")
    filled = filled.sort(*task, "epoch").with_columns(pl.col(_CURVES).forward_fill().over(task))
    means = filled.group_by("epoch").agg(pl.col(_CURVES).mean()).sort("epoch")
    return {row["epoch"]: {f"epoch.{name}": row[name] for name in _CURVES} for row in means.to_dicts()}


def fold_table(
    folds: pl.DataFrame,
    scores: pl.DataFrame,
    seconds: Mapping[str, Mapping[int, float]],
    evaluation: StoredEvaluation | None,
    *,
    tested_once: bool,
) -> pl.DataFrame:
    """Table of every model and fold: dates, validation, test at the tradable delay, seconds.

    ``seconds`` of computing are by model and fold. The columns of the test are null without an evaluation,
    and where a date is not tested by one fold alone: its forecasts are not those of each fold then.
    """
    means = scores.group_by("model", "fold", maintain_order=True).agg(
        pl.col("valid_rank_ic", "valid_ic").mean(), pl.len().alias("seeds")
    )
    rows = []
    for row in means.sort("model", "fold", maintain_order=True).iter_rows(named=True):
        (fold,) = folds.filter(pl.col("fold") == row["fold"]).to_dicts()
        spans = fold["test_spans"] if tested_once else []
        rows.append(
            {"model": row["model"], "fold": row["fold"], "valid_rank_ic": row["valid_rank_ic"]}
            | _test_of_fold(evaluation, row["model"], spans)
            | {"valid_ic": row["valid_ic"], "seeds": row["seeds"]}
            | {"seconds": seconds.get(row["model"], {}).get(row["fold"])}
            | {name: fold[name] for name in _OF_FOLD}
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def by_fold(table: pl.DataFrame, model: str) -> dict[int, dict[str, float | None]]:
    """Histories of one model by fold, from the table of folds; none before a task is done."""
    if table.is_empty():
        return {}
    named = table.filter(pl.col("model") == model).iter_rows(named=True)
    return {row["fold"]: {f"fold.{name}": row[name] for name in _BY_FOLD} for row in named}


def _test_of_fold(
    evaluation: StoredEvaluation | None, model: str, spans: Sequence[Sequence[Any]]
) -> dict[str, float | None]:
    """Mean ICs and net Sharpe ratio of the first book in the spans of one fold's test."""
    if evaluation is None or not spans:
        return dict.fromkeys(("test_ic", "test_sharpe_net", "test_rank_ic"))
    record = evaluation.record
    own = (pl.col("model") == model) & (pl.col("delay") == tradable_delay(record.delays))
    inside = pl.any_horizontal(pl.col("date").is_between(*span) for span in spans)
    ic, rank_ic = (
        evaluation.table("ic_series").filter(own & inside).select(pl.col("ic", "rank_ic").mean()).row(0)
    )
    book = pl.col("book") == next(iter(record.backtest.books))
    excess = evaluation.table("equity").filter(own & inside & book)["excess_net"].drop_nulls()
    net = sharpe(excess.to_numpy(), record.periods_per_year) if len(excess) else None
    return {"test_ic": ic, "test_sharpe_net": net, "test_rank_ic": rank_ic}


def evaluation_table(evaluations: Iterable[StoredEvaluation]) -> pl.DataFrame:
    """Table of every evaluation, newest first: its assumptions, and figures by model, delay and book."""
    rows = []
    for one in evaluations:
        record = one.record
        for row in one.table("ladder").iter_rows(named=True):
            rows += [
                {"evaluation": record.evaluation, "model": row["model"], "delay": row["delay"], "book": book}
                | {name: row.get(name) for name in _FORECAST}
                | {name: row.get(of_book(book, name)) for name in BOOK_FIGURES}
                | {"first": record.first, "last": record.last, "assumptions": record.assumptions}
                for book in record.backtest.books
            ]
    return pl.DataFrame(rows, infer_schema_length=None)


def shown_tables(tables: Mapping[str, pl.DataFrame]) -> tuple[dict[str, str], dict[str, str]]:
    """Artifacts that MLflow shows as tables (pandas' orient ``split``), and the tag that names them."""
    named = json.dumps([{"path": place, "type": "table"} for place in tables])
    return {place: _as_json(table) for place, table in tables.items()}, {"mlflow.loggedArtifacts": named}


def _as_json(table: pl.DataFrame) -> str:
    floats = [name for name, dtype in table.schema.items() if dtype.is_float()]
    known = pl.when(pl.col(floats).is_finite()).then(pl.col(floats))  # JSON has no other numbers
    short = table.with_columns(known.round_sig_figs(_DIGITS))
    content = {"columns": short.columns, "data": [list(row) for row in short.iter_rows()]}
    return json.dumps(content, default=str)
