"""Horizons shorter than the label's: from the config to the lake and the report's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from features.panel.holding import forward_returns
from pipelines.config.load import check_config
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError
from pipelines.progress import Progress
from pipelines.results.evaluate_run import evaluate_run
from pipelines.run.fetch import ingest_config
from pipelines.run.open import reopen_run
from pipelines.stages import train_config, write_report

SEQ2SEQ = {"encoder": {"width": 8, "heads": 2, "layers": 1}}


@pytest.mark.slow(3)
def test_forecasts_of_every_horizon_are_stored_measured_and_shown(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    label = {"horizon": 5, "delay": 1, "transform": "demean", "shorter_horizons": [1, 3]}
    folds = {**tiny["folds"], "max_folds": 1}
    models = {"zero": {}, "seq2seq": SEQ2SEQ}
    settings = {**tiny, "label": label, "folds": folds, "seeds": [0, 1], "models": models}
    config = check_config(settings, origin="tiny")
    ingest_config(config)
    run_id = train_config(config)
    run, dataset, lake = reopen_run(run_id, Path("runs"), Progress())
    paths, own = lake.read("forecast_paths"), lake.read("forecasts")
    one = own.filter(pl.col("model") == "seq2seq")
    assert paths["model"].unique().to_list() == ["seq2seq"]
    assert sorted(paths["horizon"].unique()) == [1, 3]
    assert paths.height == 2 * one.height
    first = plan_folds(dataset, config)[0].test[0]
    day = paths.filter(pl.col("date") == dataset.panel.dates_T[first].astype("datetime64[D]").item())
    for horizon in (1, 3):
        returns_N = forward_returns(dataset.panel, 1, horizon)[first]
        rows = day.filter((pl.col("horizon") == horizon) & (pl.col("seed") == 0))
        expected = [returns_N[dataset.panel.tickers_N.index(ticker)] for ticker in rows["ticker"]]
        np.testing.assert_allclose(rows["label"].to_numpy(), expected, rtol=1e-12)
    evaluation = evaluate_run(run, dataset, lake, Progress())
    table, ladder = evaluation.table("horizons"), evaluation.table("ladder")
    assert table["horizon"].to_list() == [1, 3, 5]
    of_label = ladder.filter(pl.col("model") == "seq2seq")["ensemble_rank_ic"].item()
    assert table["rank_ic"][-1] == pytest.approx(of_label, abs=1e-12)
    report = write_report(run, evaluation, dataset, lake, Progress()).read_text(encoding="utf-8")
    assert "Shorter horizons" in report
    assert train_config(config) == run_id  # all tasks are done
    assert lake.read("forecast_paths").height == paths.height


@pytest.mark.parametrize("shorter", [[5], [2, 2], [0, 1], [3, 1]])
def test_shorter_horizons_must_be_ascending_and_below_the_labels(
    tiny: dict[str, Any], shorter: list[int]
) -> None:
    with pytest.raises(ConfigError, match="shorter_horizons"):
        check_config({**tiny, "label": {"horizon": 5, "shorter_horizons": shorter}}, origin="tiny")
