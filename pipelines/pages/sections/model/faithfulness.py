"""The part of the section on attribution about attention: the verdict, its measures, and maps."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.pages.charts import faithfulness as charts
from pipelines.pages.contents.faithfulness import ModelFaithfulness
from pipelines.pages.sections.section import Block, beside, paragraph
from pipelines.pages.tables import Column, number, signed, table, text

_VERDICT = (
    Column("over", "attention over", text, numeric=False),
    Column("question", "criterion", text, numeric=False),
    Column("value", "value", number(2)),
    Column("interval", "90% interval", text, numeric=False),
    Column("needs", "needs", text, numeric=False),
    Column("outcome", "outcome", text, numeric=False),
    Column("margin", "margin", number(2), hint="distance to another outcome, in halves of the interval"),
)
_INFERENCE = (
    Column("over", "attention over", text, numeric=False),
    Column("weights", "weights", text, numeric=False),
    Column("ic", "rank IC", signed(4)),
    Column("lost", "rank IC lost", signed(4)),
    Column("lost_interval", "90% interval", text, numeric=False),
    Column("moved", "change of forecasts", number(2)),
)
_STABILITY = (
    Column("over", "over", text, numeric=False),
    Column("kind", "between", text, numeric=False),
    Column("method", "importance", text, numeric=False),
    Column("value", "rank correlation", number(2)),
    Column("interval", "90% interval", text, numeric=False),
    Column("dates", "dates", number(0)),
)
_HEADS = (
    Column("over", "over", text, numeric=False),
    Column("layer", "layer", number(0)),
    Column("head", "head", number(0)),
    Column("trait", "looks at", text, numeric=False),
    Column("value", "value", number(2)),
    Column("interval", "90% interval", text, numeric=False),
    Column("null", "if permuted", number(2)),
)
_TRAITS = {
    "own_group": "own group (share of the weight)",
    "large_firms": "large firms (mean size rank, 0 to 1)",
    "no_peer": "no peer (weight of the null key)",
    "effective_firms": "how many firms (effective number)",
    "recent_days": "the newest three days (share of the weight)",
    "effective_days": "how many days (effective number)",
}
_NOT_SHOWN = (
    "A weight says how much of a state is read, not what the reading does to the forecast. It has no sign "
    "and no unit of return, and it does not contain the value that it multiplies."
)


def faithfulness_blocks(found: ModelFaithfulness) -> Iterator[Block]:
    """Show the verdict with its criteria, the measures behind it, and what attention looks at."""
    yield "<h4>Is attention usable as an explanation?</h4>"
    answers = found.verdict.select("over", "answer", "near").unique(maintain_order=True)
    words = "; ".join(
        f"over {over}: {answer}" + (f", but near {near}" if near else "")
        for over, answer, near in answers.iter_rows()
    )
    yield paragraph(
        f"Attention usable as an explanation, {words}. It is usable if every criterion passes, and not "
        "usable if one fails. Near means that other draws, or another machine, can give the other answer."
    )
    yield table(verdict_rows(found.verdict), _VERDICT, label="Criteria of the verdict on attention")
    yield from beside(list(_measures(found)))
    if found.inference is not None:
        yield table(
            _with_interval(found.inference, "lost_low", "lost_high", "lost_interval"),
            _INFERENCE,
            label="Forecasts under other attention weights",
        )
        yield paragraph(
            "The change of the forecasts is relative to the removal of all days, or of all peers. Only a few "
            "dates are sampled: compare the loss with its interval, not the rank IC with other tables."
        )
    if found.agreement is not None:
        rows = found.agreement.filter(
            (pl.col("kind") != "agreement with SHAP") & pl.col("method").is_in(["shap", "attention"])
        )
        if not rows.is_empty():
            yield table(_with_interval(rows), _STABILITY, label="Stability of SHAP and of attention")
    yield from _exploration(found)


def _measures(found: ModelFaithfulness) -> Iterator[Block]:
    if found.curves is not None:
        for part in found.curves.partition_by("over", maintain_order=True):
            yield (
                charts.removal_curves(part, part["over"][0]),
                "Units are removed in the order of each importance. The earlier a line rises, the more "
                "faithful the order. Changes of opposite sign do not cancel. A line like that of the random "
                "order explains nothing.",
            )
    if found.agreement is not None:
        rows = found.agreement.filter(pl.col("kind") == "agreement with SHAP")
        if not rows.is_empty():
            yield (
                charts.agreement_with_shap(rows),
                "Dots: agreement with its 90% interval. Rings: its null, which is uniform attention for days "
                "and the values of another firm of the date for peers. The noise of SHAP lowers every figure "
                "here; the verdict corrects for it.",
            )


def _exploration(found: ModelFaithfulness) -> Iterator[Block]:
    figures: list[Block] = []
    if found.day_weights is not None:
        figures.append(
            (
                charts.weight_of_past_days(found.day_weights),
                "Mean attention to each past day, by the volatility of the market on that day. " + _NOT_SHOWN,
            )
        )
    if found.day_map is not None:
        figures.append((charts.day_map(found.day_map), "Mean over sampled forecasts. " + _NOT_SHOWN))
    if found.firm_map is not None:
        for method in ("attention", "shap"):
            caption = "Rows are targets, columns sources, in the order of their groups; one date, the "
            caption += "firms that receive most attention. "
            caption += (
                _NOT_SHOWN
                if method == "attention"
                else ("Absolute Shapley values, in the unit of the forecast. Cells of one date are noisy.")
            )
            figures.append((charts.firm_map(found.firm_map, method), caption))
    if figures or found.heads is not None:
        yield "<h4>What attention looks at (for exploration)</h4>"
    yield from beside(figures)
    if found.heads is not None:
        rows = found.heads.with_columns(trait=pl.col("trait").replace(_TRAITS))
        yield table(_with_interval(rows), _HEADS, label="What each attention head looks at")


def verdict_rows(verdict: pl.DataFrame) -> pl.DataFrame:
    """Add to the criteria of a verdict, as texts, the ``interval`` of the value and what it ``needs``."""
    passes, fails = (pl.col(name).round(2).cast(pl.String) for name in ("threshold", "fails"))
    zone = pl.when(pl.col("threshold") == pl.col("fails")).then(pl.lit(""))
    above = pl.lit("at least ") + passes + zone.otherwise(pl.lit(", fails below ") + fails)
    below = pl.lit("below ") + passes + zone.otherwise(pl.lit(", fails above ") + fails)
    return _with_interval(verdict).with_columns(needs=pl.when("above").then(above).otherwise(below))


def _with_interval(
    frame: pl.DataFrame, low: str = "low", high: str = "high", name: str = "interval"
) -> pl.DataFrame:
    """Write the bounds as one text: an unbounded side in words, an unknown interval as a dash."""

    def bound(column: str) -> pl.Expr:
        written = pl.col(column).round(4 if "lost" in column else 2).cast(pl.String)
        return pl.when(pl.col(column).is_infinite()).then(pl.lit("unbounded")).otherwise(written)

    known = pl.col(low).is_not_null() & pl.col(low).is_not_nan()
    written = pl.concat_str(bound(low), pl.lit(" to "), bound(high))
    return frame.with_columns(pl.when(known).then(written).otherwise(pl.lit("\N{EN DASH}")).alias(name))
