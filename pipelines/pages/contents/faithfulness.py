"""How far the attention of one model can be believed, as a report shows it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.pages.contents.frames import require_columns

VERDICT_COLUMNS = (
    "over",
    "answer",
    "question",
    "value",
    "low",
    "high",
    "threshold",
    "fails",
    "above",
    "outcome",
    "margin",
    "near",
)
CURVE_COLUMNS = ("over", "method", "removal", "share", "cumulative")
AGREEMENT_COLUMNS = ("over", "kind", "method", "value", "low", "high", "null")
INFERENCE_COLUMNS = ("over", "weights", "ic", "lost", "lost_low", "lost_high", "moved")
HEAD_COLUMNS = ("over", "layer", "head", "trait", "value", "low", "high", "null")
DAY_COLUMNS = ("day", "regime", "weight", "low", "high", "null")
DAY_MAP_COLUMNS = ("layer", "head", "query", "key", "weight")
FIRM_MAP_COLUMNS = ("date", "method", "target", "source", "value")


@dataclass(frozen=True, slots=True)
class ModelFaithfulness:
    """The verdict on one model's attention, and what it follows from; frames are None where not measured.

    Attributes
    ----------
    verdict
        One row per criterion, with the answer for days or peers in ``answer``, and other answers that a small
        move of a figure would give in ``near``.
    curves
        Cumulative change of the forecasts when units are removed in the order of a method.
    agreement
        Rank correlations with intervals: with SHAP, between seeds, folds and days, and with the model whose
        parameters are shuffled.
    inference
        Rank IC as trained, and with uniform and permuted weights.
    heads, day_weights, day_map, firm_map
        What attention looks at.
    """

    verdict: pl.DataFrame
    curves: pl.DataFrame | None = None
    agreement: pl.DataFrame | None = None
    inference: pl.DataFrame | None = None
    heads: pl.DataFrame | None = None
    day_weights: pl.DataFrame | None = None
    day_map: pl.DataFrame | None = None
    firm_map: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("verdict", self.verdict, VERDICT_COLUMNS)
        require_columns("curves", self.curves, CURVE_COLUMNS)
        require_columns("agreement", self.agreement, AGREEMENT_COLUMNS)
        require_columns("inference", self.inference, INFERENCE_COLUMNS)
        require_columns("heads", self.heads, HEAD_COLUMNS)
        require_columns("day_weights", self.day_weights, DAY_COLUMNS)
        require_columns("day_map", self.day_map, DAY_MAP_COLUMNS)
        require_columns("firm_map", self.firm_map, FIRM_MAP_COLUMNS)
