"""The table of agreement has the same columns for every model, so that the models' tables can be joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from models.explain.design import FigureOverDates, columns_of
from models.explain.faithful.study import Faithfulness
from models.explain.faithful.verdict import Correlation
from pipelines.dataset.build import Dataset
from pipelines.explain import attribution


def agreement(monkeypatch: pytest.MonkeyPatch, found: Correlation) -> pl.DataFrame:
    made = SimpleNamespace(
        rows=lambda: {"agreement": [columns_of(found)]}, attention_rows=lambda volatility_T: {}, parts=()
    )
    monkeypatch.setattr(attribution, "market_return", lambda panel: np.zeros((30, 1)))
    dataset = cast("Dataset", SimpleNamespace(panel=None))
    return attribution._about_attention(cast("Faithfulness", made), dataset)["agreement"]


def test_a_model_without_a_null_has_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    value = FigureOverDates(0.5, 0.4, 0.6, 3)
    without = agreement(monkeypatch, Correlation("shuffled parameters", "rollout", value))
    compared = agreement(monkeypatch, Correlation("agreement with SHAP", "attention", value, value))
    joined = pl.concat([without, compared], how="diagonal")
    assert without.schema == compared.schema
    assert joined["null"].to_list() == [None, 0.5]
