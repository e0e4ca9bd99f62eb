"""A run that is trained and explained where models are not in the host's memory, on a mock of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
import yaml
from command import command
from mock_device import NAME, MockDevice

from pipelines.config.load import load_config
from pipelines.dataset.tables import open_lake
from pipelines.explain import forecasts as values
from pipelines.explain import games
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run
from pipelines.stages import explain_run, train_config
from pipelines.train import walkforward

MODELS = {
    "ridge": {},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2, "peer_width": 8},
}


@contextmanager
def on_the_device() -> Iterator[None]:
    """Training and explanation take the mock for the machine's GPU."""
    with pytest.MonkeyPatch.context() as patched, MockDevice():
        for module in (walkforward, games, values):
            patched.setattr(module, "resolve_device", lambda _: NAME)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """The folder of a run of two seeds, which were trained together."""
    folder = tmp_path_factory.mktemp("device")
    settings = {
        **tiny_settings,
        "models": MODELS,
        "seeds": [4, 7],
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "fit": {"epochs": 1, "batch_dates": 16},
        "audit": {"enabled": False},
        "execution": {"engine": "serial"},
        "lake": str(folder / "lake"),
        "output": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "artifacts")},
    }
    (folder / "sim.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(folder / "sim.yaml")
    ingest_config(config, lambda _: None)
    with on_the_device():
        train_config(config)
    return folder / "runs"


def close(ours: pl.DataFrame, of_cpu: pl.DataFrame) -> None:
    """Numbers agree up to the rounding of float32, and everything else is equal."""
    assert ours.shape == of_cpu.shape
    exact = ~cs.float() & ~cs.by_name("facts", require_all=False)  # facts are numbers as text
    assert ours.select(exact).equals(of_cpu.select(exact))
    for name in ours.select(cs.float()).columns:
        a, b = ours[name].to_numpy(), of_cpu[name].to_numpy()
        spread = float(np.std(b, where=np.isfinite(b))) if np.isfinite(b).any() else 0.0
        # a null is a correlation of ranks, of which rounding may exchange two that are nearly tied, and the
        # bounds of a share divide by a variance that may be nearly zero
        most = 0.02 if name.startswith(("null_", "share_")) else 1e-3
        np.testing.assert_allclose(a, b, rtol=most, atol=most * spread, err_msg=name)


def test_the_attribution_of_a_run_is_that_of_the_cpu(runs: Path) -> None:
    with on_the_device():
        explain_run("latest", runs)
    tables = open_run("latest", runs).folder / "tables"
    there = {path: pl.read_parquet(path) for path in sorted(tables.glob("explain_*"))}
    filled = {path.stem for path, frame in there.items() if frame.height}
    assert {path.stem for path in there} - filled <= {"explain_evidence"}, "no edge is found on two dates"
    assert len(filled) > 5
    explain_run("latest", runs)
    for path, frame in there.items():
        close(frame, pl.read_parquet(path))


def test_the_explanation_of_a_date_is_that_of_the_cpu(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    explain = command(monkeypatch, capsys)
    config = open_run("latest", runs).config
    day = str(open_lake(config).read("forecasts", columns=["date"])["date"].min())
    asked = ("explain", "latest", "--output", str(runs), "--model", "temporal_peer", "--date", day)
    with on_the_device():
        answer = explain(*asked, "--out", str(tmp_path / "there.parquet"))
        assert answer.code == 0, answer.err
    assert explain(*asked, "--out", str(tmp_path / "here.parquet")).code == 0
    there = pl.read_parquet(tmp_path / "there.parquet")
    assert there.height
    close(there, pl.read_parquet(tmp_path / "here.parquet"))
