"""Rows of the tables about what attention looks at: heads, past days, and maps of days and of firms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from features.panel.derived import market_return
from models.explain.attention.heads import head_traits
from models.explain.attention.regimes import day_profile, regimes_of
from models.explain.faithful.statistics import Estimate
from pipelines.dataset.build import Dataset
from pipelines.explain.faithfulness import FaithfulPart

_VOLATILITY_DAYS = 21
_MAX_CELLS = 20_000  # of a stored map of days

Row = Mapping[str, Any]


def attention_rows(parts: Sequence[FaithfulPart], dataset: Dataset, seed: int) -> dict[str, list[Row]]:
    """Rows of the tables ``heads``, ``day_weights``, ``day_map`` and ``firm_map``; a seed for all draws."""
    return {
        "heads": list(_heads(parts, seed)),
        "day_weights": list(_day_weights(parts, dataset, seed)),
        "day_map": list(_day_map(parts)),
        "firm_map": list(_firm_map(parts, dataset)),
    }


def figures(estimate: Estimate) -> dict[str, float | int]:
    """The columns of an estimate."""
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "dates": estimate.dates,
    }


def _heads(parts: Sequence[FaithfulPart], seed: int) -> Iterable[Row]:
    for one in head_traits((date for part in parts for date in part.dates), seed):
        yield {
            "over": one.over,
            "layer": one.layer,
            "head": one.head,
            "trait": one.trait,
            "null": one.null,
            **figures(one.estimate),
        }


def _day_weights(parts: Sequence[FaithfulPart], dataset: Dataset, seed: int) -> Iterable[Row]:
    """Weight of each past day, by the volatility of the market over the 21 sessions up to that day."""
    known = [part for part in parts if part.day_weights_EW is not None and part.day_sessions_E is not None]
    if not known:
        return
    weights_EW = np.concatenate([part.day_weights_EW for part in known if part.day_weights_EW is not None])
    session_E = np.concatenate([part.day_sessions_E for part in known if part.day_sessions_E is not None])
    market = pl.Series(market_return(dataset.panel)[:, 0]).fill_nan(None)
    volatility_T = market.rolling_std(_VOLATILITY_DAYS).fill_null(np.nan).to_numpy().copy()
    window = weights_EW.shape[1]
    explained_T = np.zeros(len(volatility_T), dtype=np.bool_)
    for day in range(window):
        explained_T[np.maximum(np.unique(session_E) - day, 0)] = True
    volatility_T[~explained_T] = np.nan
    for one in day_profile(weights_EW, session_E, regimes_of(volatility_T), seed):
        yield {
            "day": one.day,
            "regime": one.regime,
            "weight": one.estimate.value,
            "low": one.estimate.low,
            "high": one.estimate.high,
            "null": 1.0 / window,
            "dates": one.estimate.dates,
        }


def _day_map(parts: Sequence[FaithfulPart]) -> Iterable[Row]:
    """Mean weights of every layer and head of the day encoder; the last may have one query, the pooled."""
    records = [date.record for part in parts for date in part.dates if date.record.days]
    if not records:
        return
    layers = range(len(records[0].days))
    mean = [
        np.mean([record.days[layer].mean(dim=0).double().cpu().numpy() for record in records], axis=0)
        for layer in layers
    ]
    if sum(layer_HQK.size for layer_HQK in mean) > _MAX_CELLS:
        mean = [layer_HQK.mean(axis=0, keepdims=True) for layer_HQK in mean]
    window = records[0].window
    for layer, layer_HQK in enumerate(mean):
        heads, queries, keys = layer_HQK.shape
        for head in range(heads):
            for query in range(queries):
                for key in range(min(keys, window)):
                    yield {
                        "layer": layer + 1,
                        "head": head + 1 if heads > 1 else 0,
                        "query": queries - query,  # 1 is the newest state
                        "key": window - key,
                        "weight": float(layer_HQK[head, query, key]),
                    }


def _firm_map(parts: Sequence[FaithfulPart], dataset: Dataset) -> Iterable[Row]:
    shown = next((part.firms for part in reversed(parts) if part.firms is not None), None)
    if shown is None:
        return
    date = str(dataset.panel.dates_T[shown.session].astype("datetime64[D]"))
    tickers = [dataset.panel.tickers_N[firm] for firm in shown.firms_n]
    for method, matrix_nn in shown.values.items():
        for i, target in enumerate(tickers):
            for j, source in enumerate(tickers):
                if i != j and np.isfinite(matrix_nn[i, j]):
                    yield {
                        "date": date,
                        "method": method,
                        "target": target,
                        "source": source,
                        "value": float(matrix_nn[i, j]),
                    }
