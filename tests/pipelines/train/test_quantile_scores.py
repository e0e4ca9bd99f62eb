"""Quantile scores: compared with scikit-learn, and from a run's tasks to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss

from pipelines.config.load import check_config
from pipelines.progress import Progress
from pipelines.results.evaluate_run import evaluate_run
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.stages import write_report
from pipelines.train.task import score_quantiles
from pipelines.train.walkforward import train

NAN = np.float32(np.nan)


def test_scores_equal_those_of_scikit_learn_averaged_over_dates() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=(40, 30)).astype(np.float32)
    target[:, 3] = NAN
    target[33] = NAN  # a date without a known target does not count
    levels = (0.1, 0.5, 0.9)
    quantiles = np.sort(rng.normal(size=(10, 30, 3)).astype(np.float32), axis=2)
    quantiles[2, 5] = NAN  # outside the universe
    rows = score_quantiles(quantiles, target, levels, np.arange(25), np.arange(30, 40))
    reference = np.quantile(np.delete(target[:25], 3, axis=1), levels)
    for q, row in enumerate(rows):
        scores, references, below = [], [], []
        for d in range(10):
            known = np.isfinite(target[30 + d]) & np.isfinite(quantiles[d, :, q])
            if known.any():
                y, forecast = target[30 + d][known], quantiles[d, known, q]
                scores.append(mean_pinball_loss(y, forecast, alpha=levels[q]))
                references.append(mean_pinball_loss(y, np.full(len(y), reference[q]), alpha=levels[q]))
                below.append(np.mean(y <= forecast))
        assert row["level"] == levels[q]
        assert row["dates"] == 9
        assert row["pinball"] == pytest.approx(np.mean(scores), rel=1e-6)
        assert row["reference"] == pytest.approx(np.mean(references), rel=1e-6)
        assert row["below"] == pytest.approx(np.mean(below))


def test_true_quantiles_beat_the_reference_and_are_calibrated() -> None:
    rng = np.random.default_rng(1)
    scale = np.exp(rng.normal(size=(300, 40)))
    target = (scale * rng.normal(size=(300, 40))).astype(np.float32)
    truth = np.stack([-1.2815516 * scale, 0 * scale, 1.2815516 * scale], axis=2).astype(np.float32)
    rows = score_quantiles(truth[200:], target, (0.1, 0.5, 0.9), np.arange(200), np.arange(200, 300))
    for row in rows:
        assert row["below"] == pytest.approx(row["level"], abs=0.02)
    assert rows[0]["pinball"] < 0.9 * rows[0]["reference"]
    assert rows[2]["pinball"] < 0.9 * rows[2]["reference"]


@pytest.mark.slow(2)
def test_the_report_shows_quantile_scores_only_if_there_are_some(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"ridge": {}, "mlp": {"width": 8, "fit": {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}}}
    config = check_config({**tiny, "models": models, "seeds": [0, 1]}, origin="tiny")
    ingest_config(config)
    run, dataset, lake = prepare_run(config, Progress())
    train(run, dataset, lake, Progress())
    evaluation = evaluate_run(run, dataset, lake, Progress())
    table = evaluation.table("quantile_scores")
    assert table["model"].to_list() == ["mlp"] * 3
    assert table["level"].to_list() == [0.1, 0.5, 0.9]
    below = table["below"].to_list()
    assert 0.0 < below[0] < below[1] < below[2] < 1.0
    assert ((table["pinball"] / table["reference"]) < 1.5).all()
    page = write_report(run, evaluation, dataset, lake, Progress()).read_text()
    assert "Forecast quantiles" in page
    (evaluation.folder / "quantile_scores.parquet").unlink()
    assert "Forecast quantiles" not in write_report(run, evaluation, dataset, lake, Progress()).read_text()
