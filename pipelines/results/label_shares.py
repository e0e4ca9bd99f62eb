"""Compare pretrained and fine-tuned models with models trained from scratch, by share of the labels.

Entries of ``models`` are variants of each other if they have the same options and differ only in their
initialisation (from scratch, pretrained, or from an earlier run) or in ``fit.label_share``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from backtest.forecasts.metrics import forecast_metrics
from features.arrays import FloatArray
from models.registry import MODELS
from pipelines.config.load import digest, init_from_of, settings_of
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.results.evaluate import ensemble
from pipelines.settings import Settings
from pipelines.tracking.store import flatten


@dataclass(frozen=True, slots=True)
class _Variant:
    """An entry of ``models`` with the settings by which variants are compared."""

    model: str
    options: str  # digest of the registered model and its options, defaults included
    group: str
    start: str | None
    pretrain: Settings | None
    share: float

    @property
    def from_scratch(self) -> bool:
        return self.start is None and self.pretrain is None

    @property
    def initialisation(self) -> str:
        steps = [f"from {self.start}"] if self.start is not None else []
        if self.pretrain is not None:
            steps.append(str(self.pretrain["objective"]).replace("_", " "))
        return ", then ".join(steps) or "scratch"


def label_share_table(
    config: Config,
    forecasts: Mapping[str, Mapping[int, FloatArray]],
    dataset: Market,
    scores: pl.DataFrame,
) -> pl.DataFrame | None:
    """Measure variants of a model that differ in initialisation or in their share of the labels.

    Parameters
    ----------
    config
        Config of the run.
    forecasts
        model -> seed -> array of shape (T, N): test forecasts known at the close of session t; NaN where
        there is none.
    dataset
        Labels.
    scores
        Validation scores: model, seed, fold, valid_rank_ic. The score of a seed is the mean over its folds.

    Returns
    -------
    polars.DataFrame or None
        Columns as in `pipelines.pages.contents.report.ReportData.label_shares`; None if no model has two
        such variants.
    """
    variants = [_variant(config, model) for model in forecasts]
    rows: list[dict[str, Any]] = []
    for options in dict.fromkeys(variant.options for variant in variants):
        alike = [variant for variant in variants if variant.options == options]
        if len({(variant.initialisation, str(variant.pretrain), variant.share) for variant in alike}) < 2:
            continue
        descriptions = _describe_initialisations(alike)
        order = list(dict.fromkeys(descriptions))
        test = {one.model: _test(config, forecasts[one.model], dataset) for one in alike}
        for description, variant in sorted(
            zip(descriptions, alike, strict=True), key=lambda pair: (order.index(pair[0]), -pair[1].share)
        ):
            valid = scores.filter(pl.col("model") == variant.model).group_by("seed")
            rows.append(
                {
                    "group": alike[0].group,
                    "model": variant.model,
                    "beginning": description,
                    "share": variant.share,
                    "seeds": len(forecasts[variant.model]),
                    **_over_seeds(
                        "valid_rank_ic",
                        "valid_",
                        valid.agg(pl.col("valid_rank_ic").mean())["valid_rank_ic"].to_list(),
                    ),
                    **_over_seeds("rank_ic", "", test[variant.model].values()),
                    **_over_seeds("gain", "gain_", _gains(variant, alike, test)),
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None


def _variant(config: Config, model: str) -> _Variant:
    registered, (options, fit) = registry_name(config, model), settings_of(config, model)
    pretrained = fit["pretrain"] is not None and MODELS[registered].has_day_encoder
    given = {key: value for key, value in config.models[model].items() if key in options}
    named = ", ".join(f"{key} {value}" for key, value in flatten(given).items())
    return _Variant(
        model=model,
        options=digest([registered, options]),
        group=f"{registered} ({named})" if named else registered,
        start=init_from_of(config, model),
        pretrain=fit["pretrain"] if pretrained else None,
        share=fit["label_share"],
    )


def _describe_initialisations(variants: list[_Variant]) -> list[str]:
    """Describe each variant's initialisation; pretrainings with the same objective list what differs."""
    descriptions = []
    for one in variants:
        others = [other.pretrain for other in variants if other.initialisation == one.initialisation]
        differing = [
            f"{key} {value}"
            for key, value in (one.pretrain or {}).items()
            if any(other is not None and other[key] != value for other in others)
        ]
        descriptions.append(
            f"{one.initialisation} ({', '.join(differing)})" if differing else one.initialisation
        )
    return descriptions


def _test(config: Config, seeds: Mapping[int, FloatArray], dataset: Market) -> dict[int, float]:
    """Test rank IC of each seed, over all sessions with forecasts."""
    label_TN = dataset.labels[config.label.delay]
    rows_T = np.flatnonzero(np.isfinite(ensemble(seeds)).any(axis=1))
    return {
        seed: forecast_metrics(forecast_TN[rows_T], label_TN[rows_T]).rank_ic
        for seed, forecast_TN in seeds.items()
    }


def _gains(
    variant: _Variant, alike: Sequence[_Variant], test: Mapping[str, Mapping[int, float]]
) -> list[float]:
    """Test rank IC of each seed minus that of the same seed from scratch with the same share of labels."""
    scratch = [one for one in alike if one.from_scratch and one.share == variant.share]
    if variant.from_scratch or len(scratch) != 1:
        return []
    return [value - test[scratch[0].model][seed] for seed, value in test[variant.model].items()]


def _over_seeds(mean: str, prefix: str, values: Iterable[float]) -> dict[str, float | None]:
    """Mean, minimum and maximum over the seeds with a finite value; null if there is none."""
    known = [value for value in values if np.isfinite(value)]
    numbers = (sum(known) / len(known), min(known), max(known)) if known else (None, None, None)
    return dict(zip((mean, f"{prefix}lowest", f"{prefix}highest"), numbers, strict=True))
