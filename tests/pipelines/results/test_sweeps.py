"""Sweeps give the numbers of single backtests, count every variant, and keep table and page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count

from backtest.inference.overfitting import deflated_sharpe, probability_of_overfitting
from pipelines.config.load import load_config
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run
from pipelines.stages import train_config

pytestmark = pytest.mark.usefixtures("untracked")

AXES = "quantiles=3,4; delay=1,2; half_spread_bps=0,20"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> tuple[Path, str]:
    """A run of two models, not evaluated yet."""
    home = tmp_path_factory.mktemp("sweep")
    label = {"horizon": 1, "delay": 1, "transform": "demean"}
    settings = {**tiny_settings, "label": label, "models": {"ridge": {}, "reversal": {}}}
    settings |= {"lake": f"{home}/lake", "output": f"{home}/runs"}
    settings["tracking"] = {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": f"{home}/artifacts"}
    (home / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    config = load_config(home / "tiny.yaml")
    ingest_config(config, print)
    return home / "runs", train_config(config)


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.mark.slow(2)
def test_a_run_that_was_not_measured_says_so(run: tuple[Path, str], peerglass: Call) -> None:
    output, name = run
    answer = peerglass("backtest", name, "--sweep", AXES, "--output", str(output))
    assert answer.code == 3
    assert f"run 'peerglass backtest {name}' first" in answer.err
    assert peerglass("backtest", name, "--output", str(output)).code == 0  # for the tests below


@pytest.mark.slow(2)
def test_variants_have_the_numbers_of_single_backtests(run: tuple[Path, str], peerglass: Call) -> None:
    output, name = run
    place = ("--output", str(output))
    before = trial_count(output)
    answer = peerglass("backtest", name, "--sweep", AXES, "--json", *place)
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    variants = pl.DataFrame(document["variants"])
    assert variants.height == 2 * 2 * 2 * 2
    assert trial_count(output) == before + 2, "one new book of two models; costs and delays are no trials"
    daily = pl.read_parquet(Path(document["folder"]) / "daily.parquet")
    sets = pl.DataFrame(document["overfitting"])
    assert sets.select("signal", "delay", "half_spread_bps", "variants").rows() == [
        (model, delay, costs, 2) for model in ("ridge", "reversal") for delay in (1, 2) for costs in (0, 20)
    ]
    for row in sets.iter_rows(named=True):
        same = variants.with_row_index().filter(
            pl.col("signal") == row["signal"],
            pl.col("delay") == row["delay"],
            pl.col("half_spread_bps") == row["half_spread_bps"],
        )["index"]
        return_TV = daily.select(str(at) for at in same).drop_nulls().to_numpy()
        assert row["pbo"] == probability_of_overfitting(return_TV).probability
    for quantiles, delay, half_spread in ((4, 1, 20), (3, 2, 0)):
        settings = (
            f"backtest.books.long_short.quantiles={quantiles}",
            f"backtest.delay={delay}",
            f"backtest.costs.half_spread_bps={half_spread}",
        )
        options = [part for one in settings for part in ("--set", one)]
        assert peerglass("backtest", name, *options, *place).code == 0
        evaluation = newest_evaluation(open_run(name, output))
        assert evaluation is not None
        equity = evaluation.table("equity").filter(pl.col("book") == "long_short")
        ladder = evaluation.table("ladder")
        for model in ("ridge", "reversal"):
            (row,) = variants.filter(
                pl.col("signal") == model,
                pl.col("quantiles") == quantiles,
                pl.col("delay") == delay,
                pl.col("half_spread_bps") == half_spread,
            ).iter_rows(named=True)
            single = equity.filter(pl.col("model") == model)["excess_net"].drop_nulls().to_numpy()
            daily = pl.read_parquet(Path(document["folder"]) / "daily.parquet")
            at = variants.with_row_index().filter(
                pl.col("signal") == model,
                pl.col("quantiles") == quantiles,
                pl.col("delay") == delay,
                pl.col("half_spread_bps") == half_spread,
            )["index"][0]
            ours = daily[str(at)].drop_nulls().to_numpy()[: len(single)]
            np.testing.assert_allclose(ours, single, rtol=0, atol=1e-12)
            if row["sessions"] == len(single):  # a sweep holds every variant to the end of the longest delay
                (known,) = ladder.filter(pl.col("model") == model).iter_rows(named=True)
                assert row["sharpe_net"] == pytest.approx(known["long_short.sharpe_net"])
                assert row["sharpe_gross"] == pytest.approx(known["long_short.sharpe_gross"])
            assert row["deflated_sharpe"] == pytest.approx(
                deflated_sharpe(daily[str(at)].drop_nulls().to_numpy(), trial_count(output))
            )


@pytest.mark.slow(2)
def test_the_same_sweep_again_counts_no_new_trial(run: tuple[Path, str], peerglass: Call) -> None:
    output, name = run
    place = ("--output", str(output))
    assert peerglass("backtest", name, "--sweep", AXES, *place).code == 0
    counted = trial_count(output)
    assert peerglass("backtest", name, "--sweep", AXES, *place).code == 0
    assert trial_count(output) == counted
    assert peerglass("backtest", name, "--sweep", "quantiles=5", *place).code == 0
    assert trial_count(output) == counted + 2
    assert peerglass("backtest", name, "--set", "backtest.books.long_short.quantiles=5", *place).code == 0
    assert trial_count(output) == counted + 2, "the sweep has counted that book"


@pytest.mark.slow(2)
def test_without_a_delay_a_sweep_trades_at_the_first_one_that_can_be_traded(
    tmp_path: Path, tiny_settings: Mapping[str, Any], peerglass: Call
) -> None:
    label = {"horizon": 1, "delay": 0, "extra_delays": [1], "transform": "demean"}
    settings = {**tiny_settings, "label": label, "models": {"reversal": {}}}
    settings |= {"lake": f"{tmp_path}/lake", "output": f"{tmp_path}/runs"}
    settings["tracking"] = {"uri": f"sqlite:///{tmp_path}/mlflow.db", "artifacts": f"{tmp_path}/artifacts"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    config = load_config(tmp_path / "tiny.yaml")
    ingest_config(config, print)
    name, place = train_config(config), ("--output", f"{tmp_path}/runs")
    measured = json.loads(peerglass("backtest", name, "--json", *place).out)
    answer = peerglass("backtest", name, "--sweep", "half_spread_bps=5", "--json", *place)
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["variants"]
    known = {one["delay"]: one["long_short.sharpe_net"] for one in measured["results"]}
    assert abs(known[0] - known[1]) > 0.1
    assert row["sharpe_net"] == pytest.approx(known[1])
    (tested,) = (one for one in measured["tests"] if one["book"] == "long_short")
    assert (tested["delay"], tested["deflated_effective"]) == (1, pytest.approx(row["deflated_effective"]))


@pytest.mark.slow(1)  # reads what the first test has evaluated
def test_terminal_and_page_show_every_variant(run: tuple[Path, str], peerglass: Call) -> None:
    output, name = run
    answer = peerglass("backtest", name, "--sweep", AXES, "--output", str(output))
    assert answer.code == 0, answer.err
    page = Path(answer.out.splitlines()[-1]).read_text()
    table = pl.read_parquet(Path(answer.out.splitlines()[-1]).parent / "variants.parquet")
    heat = re.findall(r'<td style="background[^>]*>([^<]+)<small>', page)
    written = [f"{value:.2f}".replace("-", "\N{MINUS SIGN}") for value in table["sharpe_net"]]
    assert sorted(heat) == sorted(written)
    assert "<script" not in page
    cells = re.findall(r"-?\d+\.\d\d \(\d\.\d\d\)", answer.out)
    assert len(cells) == table.height
    assert "probability of overfitting" in " ".join(answer.out.split())


@pytest.mark.slow(1)  # reads what the first test has evaluated
@pytest.mark.parametrize(
    ("options", "code", "advice"),
    [
        (("--sweep", "quantiles=50"), 2, "lower its size"),
        (("--sweep", "delay=1", "--book", "nobody"), 2, "There is no book 'nobody'"),
        (("--book", "long_only"), 2, "--sweep"),
    ],
)
def test_mistakes_end_with_one_sentence(
    run: tuple[Path, str], peerglass: Call, options: tuple[str, ...], code: int, advice: str
) -> None:
    output, name = run
    answer = peerglass("backtest", name, *options, "--output", str(output))
    assert answer.code == code, answer.err
    assert advice in answer.err
