"""Attribution of a night: values add up to the stored signal, and are exact for a linear model."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from growing_lakes import Tables, deliver, sessions_of

from features.arrays import FloatArray
from models.batch import Batch
from models.fitted import Fitted
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.explain.fitted import families_of
from pipelines.nightly import scoring as attribution
from pipelines.nightly.data import NightData, night_data
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.scoring import attribute, score, scoring_features, session_arrays
from pipelines.nightly.training import train_live
from pipelines.progress import Progress
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.locks import Locks
from pipelines.run.record import open_run
from pipelines.train.task import to_tensors


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(tiny: Mapping[str, Any], model: str, settings: dict[str, Any]) -> Config:
    return check_config(
        {**tiny, "models": {model: settings}, "seeds": [0, 1], "audit": {"enabled": False}}, origin="tiny"
    )


def trained(settings: Config, tables: Tables) -> tuple[ModelVersion, NightData]:
    lake, days = open_lake(settings), sessions_of(tables)
    deliver(lake, tables, days[260])
    session: dt.date = days[250]
    progress = Progress()
    with Locks(wait=False, notify=progress.note) as locks:
        data = night_data(settings, lake, session, progress)
        version = train_live(settings, data, progress, locks, lambda _: None)
    return version, night_data(settings, lake, days[260], progress)


@pytest.mark.slow(3)
@pytest.mark.parametrize("model", ["temporal_peer", "self_peer", "mlp", "ridge", "lightgbm", "zero"])
def test_values_add_up_to_the_stored_signal(
    model: str,
    tiny_settings: Mapping[str, Any],
    tiny_tables: Tables,
    every_model: dict[str, dict[str, Any]],
) -> None:
    settings = config(tiny_settings, model, every_model[model])
    version, data = trained(settings, tiny_tables)
    signals = score(version, settings, data).drop_nulls("signal")
    assert signals.height > 8
    asked = signals.sort("signal")["ticker"].gather([0, 1, -1]).to_list()
    table = attribute(version, settings, data, [*asked, "NOBODY"])
    assert set(table["ticker"]) == set(asked)
    kinds = {
        "temporal_peer": {"days", "family", "peers"},
        "self_peer": {"family", "peers"},
        "mlp": {"days", "family"},
    }
    assert set(table["kind"]) == kinds.get(model, {"family"})
    for (ticker,), rows in table.group_by("ticker"):
        stored = signals.filter(pl.col("ticker") == ticker)["signal"].item()
        total = rows["base"][0] + rows["value"].sum()
        assert math.isclose(total, stored, rel_tol=1e-4, abs_tol=1e-5)
        assert math.isclose(rows["signal"][0], stored, rel_tol=1e-4, abs_tol=1e-5)
    if model != "zero":
        assert table["value"].abs().max() > 0.05  # type: ignore[operator]  # a number


def test_values_equal_the_exact_shapley_values_of_a_linear_signal(
    tiny_settings: Mapping[str, Any],
    tiny_tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A linear forecast has no interactions: a family's value is the mean change by its donors."""
    settings = config(tiny_settings, "ridge", {})
    version, data = trained(settings, tiny_tables)
    monkeypatch.setattr(attribution, "PERMUTATIONS", 400)
    ticker = score(version, settings, data).drop_nulls("signal")["ticker"][0]
    table = attribute(version, settings, data, [ticker])

    run = open_run(version.run_id, Path("runs"))
    features = scoring_features(run, data)
    fitted, inputs = load_checkpoint(run.checkpoint("ridge", 0, 0))
    tensors = to_tensors(session_arrays(features, settings.features.window), inputs, "cpu")
    batch = tensors.batch(torch.tensor([len(features.universe_WN) - 1]))
    z_NF = batch.z_BNF[0].double().numpy()
    forecast_N = fitted.forecast_date(batch).astype(np.float64)
    n = [features.tickers_N[i] for i in batch.firms_N.tolist()].index(ticker)
    expected, errors = [], []
    for columns in families_of(features.names.characteristics).values():
        others = []
        for donor in itertools.chain(range(n), range(n + 1, len(z_NF))):
            mixed_F = z_NF[n].copy()
            mixed_F[columns] = z_NF[donor, columns]
            changed = z_NF.copy()
            changed[n] = mixed_F
            others.append(_ridge(fitted, batch, changed)[n])
        expected.append((forecast_N[n] - np.mean(others)) / forecast_N.std())
        errors.append(np.std(others) / forecast_N.std() / math.sqrt(2 * 400))
    got = table["value"].to_numpy()
    assert len(got) == len(expected) > 4
    assert np.all(np.abs(got - expected) < 4.5 * np.array(errors) + 1e-6)


def _ridge(fitted: Fitted, batch: Batch, z_NF: FloatArray) -> FloatArray:
    changed = replace(batch, z_BNF=torch.as_tensor(z_NF[None], dtype=torch.float32))
    forecast_N: FloatArray = fitted.forecast_date(changed).astype(np.float64)
    return forecast_N
