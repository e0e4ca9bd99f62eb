"""The ladder of a report: that of the evaluation, with the results of the tests."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pipelines.results.comparisons import BASELINES, deciding_rows

_OF_BOOK = ("sharpe_gross", "sharpe_net", "turnover", "annual_return_net", "max_drawdown_net")
_TESTED = ("ic_lower", "ic_upper", "sharpe_lower", "sharpe_upper", "deflated_sharpe")


def report_ladder(
    ladder: pl.DataFrame,
    book: str,
    registered: Mapping[str, str],
    *,
    comparisons: pl.DataFrame | None,
    significance: pl.DataFrame | None,
) -> pl.DataFrame:
    """Add the main book's columns without prefix, the intervals, and the answers on the baselines.

    Parameters
    ----------
    ladder
        Table ``ladder`` of an evaluation.
    book
        The main book.
    registered
        Model -> registered name.
    comparisons, significance
        Tables of `pipelines.results.comparisons`; None if the evaluation has none. The columns are null then.

    Returns
    -------
    polars.DataFrame
        The ladder with the columns of :class:`.contents.report.ReportData`. If a baseline has variants, a
        model beats it if it beats all of them; the variants are not compared with each other.
    """
    frame = ladder.with_columns(
        *(pl.col(f"{book}.{name}").fill_nan(None).alias(name) for name in _OF_BOOK),
        share_of_truth=(pl.col("rank_ic") / pl.col("truth_rank_ic")).cast(pl.Float64),
        baseline=pl.col("model").replace_strict(
            {name: model if model in BASELINES else None for name, model in registered.items()},
            return_dtype=pl.String,
        ),
    )
    keys: dict[str, pl.DataType | type[pl.DataType]] = {"model": pl.String, "delay": ladder.schema["delay"]}
    if significance is None:
        significance = pl.DataFrame(schema={**keys, "book": pl.String, **dict.fromkeys(_TESTED, pl.Float64)})
    own = significance.filter(pl.col("book") == book).select(*keys, *_TESTED)
    answers = [] if comparisons is None else list(deciding_rows(comparisons))
    for baseline in BASELINES:
        rows = [(row["model"], row["delay"], row["beats"]) for row in answers if row["baseline"] == baseline]
        schema = {**keys, f"beats_{baseline}": pl.String}
        own = own.join(pl.DataFrame(rows, schema=schema, orient="row"), on=list(keys), how="left")
    return frame.join(own, on=list(keys), how="left", maintain_order="left")
