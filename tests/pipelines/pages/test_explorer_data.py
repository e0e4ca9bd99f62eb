"""The data of the explorer: columns keep their numbers, rows are complete, a missing network is an error."""

from __future__ import annotations

import dataclasses
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import command
from made_networks import DATES, HOSTILE, MODEL, TICKERS, made_tables, value_of, write_tables
from page_data import unpack

from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError, PeerglassError
from pipelines.explain.shown import unit_of
from pipelines.pages.explorer import (
    has_networks,
    model_payload,
    read_networks,
    unit_payload,
    write_explorer,
)
from pipelines.pages.figure import plain
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun


@pytest.fixture
def run(tmp_path: Path, tiny: dict[str, Any]) -> RecordedRun:
    """A run without any table."""
    config = check_config({**tiny, "models": {"ridge": {}, MODEL: {}}}, origin="tiny")
    return RecordedRun("tiny-0123456789", config, Identity.nothing(), tmp_path)


def test_every_stored_value_is_in_the_page_with_its_date_leader_and_follower(run: RecordedRun) -> None:
    tables = made_tables()
    write_tables(run, tables)
    ((model, network),) = read_networks(run).items()
    payload = plain(model_payload(model, network, orders=4))
    assert payload["dates"] == [str(date) for date in DATES]
    assert payload["firms"] == sorted(TICKERS)
    dated = payload["dated"]
    assert len(dated["value"]) == tables["dated_edges"].height > 50
    place = {ticker: number for number, ticker in enumerate(TICKERS)}
    for date, (start, end) in enumerate(
        zip(payload["dated"]["starts"], payload["dated"]["starts"][1:], strict=False)
    ):
        for row in range(start, end):
            leader, follower = (place[payload["firms"][dated[name][row]]] for name in ("leader", "follower"))
            assert dated["value"][row] == pytest.approx(value_of(leader, follower, date), rel=1e-5)
    forecasts = np.array(payload["forecasts"]["forecast"], dtype=np.float64).reshape(len(DATES), len(TICKERS))
    stored = tables["dated_firms"].filter(pl.col("ticker") == HOSTILE).sort("date")["forecast"]
    np.testing.assert_allclose(forecasts[:, payload["firms"].index(HOSTILE)], stored.to_numpy(), rtol=1e-5)
    assert payload["interval"] == pytest.approx(3.182, abs=1e-3)  # Student's t with 3 degrees of freedom


def test_values_are_basis_points_unless_ranks_are_forecast(run: RecordedRun, tiny: dict[str, Any]) -> None:
    ranks = check_config({**tiny, "label": {**tiny.get("label", {}), "transform": "rank"}}, origin="tiny")
    returns = check_config({**tiny, "label": {**tiny.get("label", {}), "transform": "demean"}}, origin="tiny")
    model = next(iter(returns.models))
    in_bps, in_scores = (unit_payload([unit_of(one, model)]) for one in (returns, ranks))
    assert (in_bps["name"], in_bps["factor"]) == ("bps", 1e4)
    assert (in_scores["name"], in_scores["factor"]) == ("", 1.0)
    assert "not returns" in in_scores["sentence"]


def without(name: str) -> Callable[[RecordedRun], None]:
    def change(run: RecordedRun) -> None:
        (run.folder / "tables" / f"explain_{name}.parquet").unlink()

    return change


@pytest.mark.parametrize(
    ("change", "model", "kind", "words"),
    [
        (without("firms"), None, DataError, "has no peer network"),
        (without("groups"), None, DataError, "lacks tables"),
        (lambda run: None, "mlp", ConfigError, "has no model 'mlp'"),
        (
            lambda run: None,
            "ridge",
            ConfigError,
            "The model ridge of the run tiny-0123456789 has no peer network",
        ),
    ],
)
def test_a_missing_network_is_one_sentence_and_nothing_is_written(
    run: RecordedRun,
    change: Callable[[RecordedRun], None],
    model: str | None,
    kind: type[PeerglassError],
    words: str,
) -> None:
    write_tables(run, made_tables())
    change(run)
    with pytest.raises(kind, match=words) as raised:
        write_explorer(run, model)
    assert raised.value.exit_code == (3 if kind is DataError else 2)
    assert not list(run.folder.glob("*explorer*"))
    assert has_networks(run) == (kind is ConfigError)


def test_the_page_is_written_to_the_asked_file_or_to_the_run(run: RecordedRun, tmp_path: Path) -> None:
    write_tables(run, made_tables())
    text = write_explorer(run).read_text(encoding="utf-8")
    assert write_explorer(run) == run.folder / "explorer.html"
    other = write_explorer(run, MODEL, tmp_path / "other.html")
    assert other.read_text(encoding="utf-8") == text
    assert HOSTILE not in text, "names are only in the compressed data of the page"
    assert HOSTILE in unpack(text)["models"][0]["firms"]
    with pytest.raises(ConfigError, match="cannot be written"):
        write_explorer(run, None, tmp_path / "other.html" / "another.html")
    renamed = dataclasses.replace(run, run_id="<i>x</i>")
    assert "<i>x</i>" not in write_explorer(renamed).read_text(encoding="utf-8")


@pytest.mark.parametrize("found", [True, False])
def test_the_command_prints_the_path_and_opens_the_page_if_asked(
    found: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    asked: list[tuple[object, ...]] = []

    def explore_run(*arguments: object, wait: bool) -> Path:
        asked.append((*arguments, wait))
        return Path("/runs/one/explorer.html")

    def browse(address: str) -> bool:
        opened.append(address)
        return found

    monkeypatch.setattr("pipelines.stages.explore_run", explore_run)
    monkeypatch.setattr(webbrowser, "open", browse)
    answer = command(monkeypatch, capfd)("explore", "one", "--model", MODEL, "--out", "x.html", "--open")
    assert (answer.code, answer.out) == (0, "/runs/one/explorer.html\n")
    assert asked == [("one", Path("data/runs"), MODEL, Path("x.html"), False)]
    assert opened == ["file:///runs/one/explorer.html"]
    assert ("no browser" in answer.err) != found
    assert command(monkeypatch, capfd)("explore", "one").code == 0
    assert len(opened) == 1
