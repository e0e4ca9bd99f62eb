"""A replication is a chain of runs: its table is theirs, it is resumed, and its trials are counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count

from pipelines.commands.replicate import FOLDER, configs_of, list_replications, read_replication
from pipelines.errors import ConfigError
from pipelines.run.evaluations import list_evaluations
from pipelines.run.record import open_run

STEPS: Mapping[str, Any] = {
    "the same inputs": {"changes": "All inputs.", "config": "tiny.yaml", "settings": {"label": {"delay": 0}}},
    "after the audit": {"changes": "Nothing."},
    "tradable": {"changes": "Delay 1.", "settings": {"label": {"delay": 1}}},
    "net of costs": {"changes": "Costs.", "settings": {"backtest": {"costs": {"half_spread_bps": 50}}}},
}
LADDER: Mapping[str, Any] = {
    "title": "A paper",
    "source": "Its table 1.",
    "data": "none",
    "published": {"ic": 0.5, "icir": 1.5},
    "model": "ridge",
    "book": "long_short",
    "settings": {"explain": {"models": []}, "models": {"ridge": {}}},
    "steps": STEPS,
}


@pytest.fixture
def home(tmp_path: Path, tiny_settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(dict(tiny_settings), sort_keys=False))
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(dict(LADDER), sort_keys=False))
    return tmp_path


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.mark.slow(8)
@pytest.mark.usefixtures("untracked")
def test_a_ladder_has_the_figures_of_its_runs_and_continues(home: Path, peerglass: Call) -> None:
    first = peerglass("replicate", "paper.yaml")
    assert first.code == 0, first.err
    assert {step["message"].split(":")[0].split()[0] for step in first.steps} == {"ridge"}, "no other model"
    *shown, path = first.out.splitlines()
    assert all(name in first.out for name in ("published", "Its table 1.", *STEPS))

    table = pl.read_parquet(Path(path).parent / "tables" / "replication.parquet")
    assert table["step"].to_list() == ["published", *STEPS]
    published, same, audited, tradable, net = table.to_dicts()
    assert (published["ic"], published["icir"], published["rank_ic"], published["run"]) == (
        0.5,
        1.5,
        None,
        None,
    )
    assert {**same, "step": "", "note": ""} == {**audited, "step": "", "note": ""}, "a step without a change"
    assert same["run"] != tradable["run"] == net["run"] == Path(path).parent.name
    assert net["sharpe_net"] < tradable["sharpe_net"] < tradable["sharpe_gross"]
    assert net["sharpe_gross"] == pytest.approx(tradable["sharpe_gross"], abs=0.01), (
        "costs change the weights"
    )
    assert same["audit"] == "pass"

    evaluations = list_evaluations(open_run(tradable["run"], home / "runs"))
    assert len(evaluations) == 2, "one with the costs of the config, and one with higher ones"
    for row, evaluation in zip((net, tradable), evaluations, strict=True):
        (of_run,) = evaluation.table("ladder").filter(model="ridge", delay=1).to_dicts()
        assert [row[name] for name in ("ic", "icir", "rank_ic", "ic_t")] == [
            of_run[name] for name in ("ic", "icir", "rank_ic", "ic_t")
        ]
        assert row["sharpe_net"] == of_run["long_short.sharpe_net"]
    trials = trial_count(home / "runs")
    assert trials == 2 * 2, "two trainings, each with two books; other costs are no other trial"

    again = peerglass("replicate", "paper.yaml")
    assert (again.code, again.steps) == (0, [])
    assert again.out.splitlines()[:-1] == shown
    assert trial_count(home / "runs") == trials
    markdown = Path(path).read_text()
    assert markdown.count("\n") == 2 + len(table)
    assert "| published " in markdown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "lstm"}, "the model 'lstm' is not in the config of the step 'the same inputs'"),
        ({"book": "other"}, "choose one of long_short, long_only"),
        ({"steps": {"tradable": {"changes": "Delay 1."}}}, "the first step has no config"),
        ({"published": {"return": 3}}, "published"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_run(
    change: dict[str, Any], said: str, home: Path, peerglass: Call
) -> None:
    (home / "paper.yaml").write_text(yaml.safe_dump({**LADDER, **change}, sort_keys=False))
    answer = peerglass("replicate", "paper.yaml")
    assert answer.code == 2
    assert said in answer.err
    assert not (home / "lake").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe", "cannot be read as a text file"),
        (b"", "must hold a mapping"),
        (b"steps:\n  a: {changes: One.}\n  a: {changes: Two.}\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        read_replication(path)


def test_an_unknown_name_lists_the_known_ones(peerglass: Call) -> None:
    answer = peerglass("replicate", "alphago")
    assert answer.code == 2
    assert "choose among master, qlib_lightgbm, stock_mixer" in answer.err
    assert all(name in list_replications() for name in ("master", "qlib_lightgbm", "stock_mixer"))
    assert peerglass("replicate").out.strip() == list_replications()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_comes_with_peerglass_ends_tradable_and_net_of_costs(path: Path) -> None:
    replication = read_replication(path)
    configs = dict(configs_of(replication, path))
    assert list(configs) == ["the same inputs", "after the audit", "causal", "tradable", "net of costs"]
    assert [config.label.delay for config in configs.values()][-2:] == [1, 1]
    *_, tradable, net = configs.values()
    assert tradable.backtest.capital is None
    assert net.backtest.capital is not None
    assert net.backtest.costs == tradable.backtest.costs
    assert not any(config.label.residualise_factors for config in configs.values()), "published labels"
    assert {tuple(config.models) for config in configs.values()} == {(replication.model,)}
    tests = {(config.folds.test_from, config.folds.test_to) for config in configs.values()}  # type: ignore[union-attr]
    assert len(tests) == 1, "all steps forecast the same dates"
