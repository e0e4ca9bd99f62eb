"""The command line on bad input: the exit code, one sentence with a cure, and an unchanged lake."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Answer, Call, command
from warm import PEERGLASS, Process

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config
from pipelines.stages import train_config

GOOD_ROWS = [
    f"2020-01-{day:02d},{ticker},10,11,9,{close},100"
    for day in range(2, 31)
    for ticker, close in (
        ("AAA", 10 + day % 3 * 0.2),
        ("BBB", 10 - day % 2 * 0.3),
        ("CCC", 9.5 + day % 5 * 0.1),
    )
]
HEADER = "date,ticker,open,high,low,close,volume"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, two levels below ``tmp_path``, so that a path that escapes it is noticed."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command, in this process."""
    return command(monkeypatch, capsys)


def files_config(
    here: Path,
    tiny: dict[str, Any],
    rows: list[str],
    header: str = HEADER,
    **changes: Any,  # noqa: ANN401 (settings)
) -> str:
    """Write a CSV of prices and a config that reads it; return the config's name."""
    (here / "prices.csv").write_text("\n".join([header, *rows]) + "\n")
    settings = {
        **tiny,
        "source": {"kind": "files", "prices": "prices.csv"},
        "universe": {"min_history": 5},
        **changes,
    }
    (here / "mine.yaml").write_text(yaml.safe_dump(settings))
    return "mine.yaml"


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(answer: Answer, code: int, *words: str) -> None:
    """Check that a command printed one sentence with these words on stderr, nothing else and no traceback."""
    assert answer.code == code, answer.err
    assert answer.out == ""
    lines = [
        line for line in answer.err.splitlines() if not line.startswith("{")
    ]  # progress events are JSON lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("peerglass: ")
    assert "Traceback" not in answer.err
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture
def lake(here: Path, tiny: dict[str, Any], peerglass: Call) -> dict[str, tuple[int, int]]:
    """Ingest good prices; return the listing of the lake."""
    assert peerglass("ingest", files_config(here, tiny, GOOD_ROWS)).code == 0
    before = listing(here / "lake")
    assert any(name.startswith("prices/_delta_log") for name in before)
    assert Lake(here / "lake").read("prices").height == len(GOOD_ROWS)
    return before


# Errors that stop a command.


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({"univers": {}}, (), ("univers is not a known name", "did you mean 'universe'?")),
        ({"folds": {"scheme": "expanding", "trian": 1}}, (), ("folds.trian", "did you mean 'train'?")),
        ({"models": {"temporal_per": {}}}, (), ("models.temporal_per", "did you mean 'temporal_peer'?")),
        ({"models": {"ridge": {"alpha": 1}}}, (), ("models.ridge.alpha", "did you mean 'alphas'?")),
        ({}, ("--set", "fit.epoch=3"), ("fit.epoch", "did you mean 'epochs'?")),
        ({}, ("--set", "fit.epochs"), ("not of the form a.b=c",)),
        ({}, ("--set", "label.horizon=0"), ("label.horizon", "given: 0")),
        ({}, ("--set", "features.channels=[retrun]"), ("features.channels.retrun", "did you mean 'return'?")),
        ({}, ("--set", "features.characteristics=[return_6]"), ("features.characteristics.return_6",)),
        ({}, ("--set", "label.extra_delays=[1, -1]"), ("label.extra_delays", "-1")),
    ],
)
@pytest.mark.parametrize("command", ["ingest", "train"])
def test_a_wrong_setting_is_a_usage_error(  # noqa: PLR0917 (fixtures)
    here: Path,
    tiny: dict[str, Any],
    peerglass: Call,
    lake: dict[str, tuple[int, int]],
    changes: dict[str, Any],
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    command: str,
) -> None:
    config = files_config(here, tiny, GOOD_ROWS, **changes)
    refused(peerglass(command, config, *arguments), 2, *words)
    assert listing(here / "lake") == lake


def test_files_that_are_missing_are_named(
    here: Path, tiny: dict[str, Any], peerglass: Call, lake: dict[str, tuple[int, int]]
) -> None:
    refused(peerglass("ingest", "absent.yaml"), 2, "There is no config file at absent.yaml")
    config = files_config(here, tiny, GOOD_ROWS)
    (here / "prices.csv").unlink()
    refused(peerglass("ingest", config), 3, f"there is no file {here}/prices.csv", "or to its root")
    (here / "mine.yaml").write_text("name: [")
    refused(peerglass("ingest", config), 2, "mine.yaml is not valid YAML")
    assert listing(here / "lake") == lake


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx", "zip"])
@pytest.mark.parametrize("content", ["folder", "binary", "empty", "words"])
def test_a_wrong_kind_of_file_is_one_sentence(
    here: Path, tiny: dict[str, Any], peerglass: Call, content: str, ending: str
) -> None:
    files_config(here, tiny, GOOD_ROWS)
    wrong = here / f"wrong.{ending}"
    if content == "folder":
        wrong.mkdir()
    else:
        wrong.write_bytes({"binary": bytes(range(256)) * 20, "empty": b"", "words": b"hello world"}[content])
    before = listing(here)
    refused(peerglass("init", str(wrong)), 3, f"wrong.{ending}")
    refused(peerglass("ingest", "mine.yaml", "--set", f"source.prices={wrong}"), 3, f"wrong.{ending}")
    refused(peerglass("backtest", str(wrong), "--config", "mine.yaml"), 3, f"wrong.{ending}")
    refused(peerglass("ingest", str(wrong)), 2, f"wrong.{ending}")
    left = {name: facts for name, facts in listing(here).items() if not name.endswith(".lock")}
    assert left == before, "a lock is all that an ingest leaves"


def test_an_error_has_no_codes_that_a_terminal_would_obey(peerglass: Call, here: Path) -> None:
    (here / "odd.csv").write_text("\x1b[31mday\x07,b\n1,2\n3,4\n")
    answer = peerglass("init", "odd.csv")
    refused(answer, 3, "?[31mday?")
    assert "\x1b" not in answer.err


@pytest.mark.parametrize("column", ["date", "ticker", "close"])
def test_a_csv_without_a_column_that_is_needed(
    here: Path, tiny: dict[str, Any], peerglass: Call, lake: dict[str, tuple[int, int]], column: str
) -> None:
    config = files_config(here, tiny, GOOD_ROWS, header=HEADER.replace(column, "other"))
    refused(peerglass("ingest", config), 3, f"prices.csv has no column '{column}'", "map it")
    assert listing(here / "lake") == lake


def test_a_file_with_only_bad_rows(
    here: Path, tiny: dict[str, Any], peerglass: Call, lake: dict[str, tuple[int, int]]
) -> None:
    config = files_config(here, tiny, ["2020-01-02,AAA,10,11,9,-1,100", "2020-01-03,AAA,10,11,12,11,100"])
    wrong = (
        "close_is_positive (1 rows, such as close '-1.0' of AAA",
        "high_not_below_low (1 rows, such as high",
    )
    refused(peerglass("ingest", config), 3, *wrong)
    config = files_config(here, tiny, [])
    refused(peerglass("ingest", config), 3, "no rows")
    assert listing(here / "lake") == lake


def test_an_empty_universe(
    here: Path, tiny: dict[str, Any], peerglass: Call, lake: dict[str, tuple[int, int]]
) -> None:
    config = files_config(here, tiny, GOOD_ROWS, universe={"min_history": 5, "min_price": 1000})
    answer = peerglass("train", config)
    refused(answer, 3, "The universe is empty on all 29 sessions", "'min_price': 1000.0", "loosen")
    assert listing(here / "lake") == lake


def test_a_book_that_is_larger_than_the_market(here: Path, tiny: dict[str, Any], peerglass: Call) -> None:
    books = {"books": {"wide": {"kind": "top_k_long_only", "k": 50}}}
    (here / "sim.yaml").write_text(yaml.safe_dump({**tiny, "backtest": books, "audit": {"enabled": False}}))
    assert peerglass("ingest", "sim.yaml").code == 0
    run_id = peerglass("train", "sim.yaml").out.strip()
    refused(
        peerglass("backtest", run_id, "--output", "runs"), 2, "backtest.books.wide", "50", "lower its size"
    )


def test_fewer_sessions_than_a_fold_needs(
    here: Path, tiny: dict[str, Any], peerglass: Call, lake: dict[str, tuple[int, int]]
) -> None:
    features = {"window": 2, "channels": ["return"], "characteristics": ["return_1"]}
    folds = {"scheme": "rolling", "train": 20, "valid": 5, "test": 5, "embargo": 2}
    config = files_config(here, tiny, GOOD_ROWS, features=features, folds=folds)
    # 4 sessions of history first; two gaps of delay 0 + horizon 1 + embargo 2; 1 for the last label
    refused(peerglass("train", config), 3, "One fold needs 41 sessions", "there are 29", "shorten")
    assert listing(here / "lake") == lake
    dated = {"scheme": "dated", "embargo": 0, "train_from": "2021-01-01", "valid_from": "2021-02-01"}
    dated |= {"test_from": "2021-03-01", "test_to": "2021-04-01"}
    config = files_config(here, tiny, GOOD_ROWS, features=features, folds=dated)
    refused(peerglass("train", config), 3, "segment", "2020-01-02 to 2020-01-30")
    assert listing(here / "lake") == lake


def test_an_empty_lake(here: Path, tiny: dict[str, Any], peerglass: Call) -> None:
    config = files_config(here, tiny, GOOD_ROWS)
    refused(peerglass("train", config), 3, "holds no prices yet", "peerglass ingest")
    assert not (here / "lake").exists()


@pytest.mark.parametrize(
    ("command", "table"),
    [
        ("ingest", "prices"),
        ("ingest", "quarantine"),
        ("ingest", "sources"),
        ("train", "prices"),
        ("train", "forecasts"),
    ],
)
def test_a_lake_table_that_is_not_delta(  # noqa: PLR0917 (fixtures)
    here: Path,
    tiny: dict[str, Any],
    peerglass: Call,
    lake: dict[str, tuple[int, int]],
    table: str,
    command: str,
) -> None:
    folder = here / "lake" / table
    if (folder / "_delta_log").exists():
        (folder / "_delta_log").rename(here / "log")
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    before = listing(here / "lake")
    features = {"window": 2, "channels": ["return"], "characteristics": ["return_1"]}
    folds = {"scheme": "rolling", "train": 8, "valid": 4, "test": 4, "embargo": 0}
    config = files_config(here, tiny, GOOD_ROWS, features=features, folds=folds)
    refused(peerglass(command, config), 3, f"lake/{table} is not a Delta table", "move it")
    assert listing(here / "lake") == before


# Bad rows that are quarantined while the others are stored.


BAD_ROWS = {
    "duplicate_key": ["2020-02-03,AAA,10,11,9,10,100", "2020-02-03,AAA,10,11,9,10.5,100"],
    "close_is_positive": ["2020-02-04,AAA,10,11,9,-10,100"],
    "high_not_below_low": ["2020-02-04,BBB,10,9,11,10,100"],
    "volume_is_finite_and_not_negative": ["2020-02-05,BBB,10,11,9,10,inf"],
    "ticker_is_plain": ["2020-02-05,../../x,10,11,9,10,100", "2020-02-05,<script>,10,11,9,10,100"],
}


@pytest.mark.parametrize("rule", BAD_ROWS)
def test_a_bad_row_is_quarantined_and_named(
    here: Path, tiny: dict[str, Any], peerglass: Call, rule: str
) -> None:
    bad = BAD_ROWS[rule]
    config = files_config(here, tiny, [*bad, *GOOD_ROWS])
    answer = peerglass("ingest", config)
    assert answer.code == 0
    assert f"quarantined {len(bad)} by rule {rule}" in answer.out
    assert f"{len(GOOD_ROWS)} added" in " ".join(answer.out.split())
    lake = Lake(here / "lake")
    quarantine = lake.read("quarantine")
    assert quarantine["rule"].to_list() == [rule] * len(bad)
    for row in bad:
        day, ticker = row.split(",")[:2]
        assert quarantine.filter(
            pl.col("row").str.contains(f'"{day}","ticker":"{ticker}"', literal=True)
        ).height
    assert lake.read("prices").height == len(GOOD_ROWS)
    assert sorted(path.name for path in here.parent.parent.iterdir()) == ["outer"]
    assert sorted(path.name for path in here.parent.iterdir()) == ["inner"]
    assert sorted(path.name for path in here.iterdir()) == ["lake", "mine.yaml", "prices.csv"]

    before = listing(here / "lake")
    again = peerglass("ingest", config)
    assert again.code == 0
    assert f"quarantined {len(bad)} by rule {rule}" in again.out
    assert f"0 added 0 updated {len(GOOD_ROWS)} unchanged" in " ".join(again.out.split())
    assert listing(here / "lake") == before


def test_unsorted_dates_are_sorted(here: Path, tiny: dict[str, Any], peerglass: Call) -> None:
    assert peerglass("ingest", files_config(here, tiny, GOOD_ROWS)).code == 0
    sorted_rows = Lake(here / "lake").read("prices").drop("ingested_at")
    config = files_config(here, tiny, GOOD_ROWS[::-1], lake="other")
    answer = peerglass("ingest", config)
    assert answer.code == 0
    assert "quarantined" not in answer.out
    assert Lake(here / "other").read("prices").drop("ingested_at").equals(sorted_rows)
    assert sorted_rows["date"].is_sorted()
    before = listing(here / "lake")
    assert peerglass("ingest", files_config(here, tiny, GOOD_ROWS[::-1])).code == 0
    assert listing(here / "lake") == before


def test_an_exact_duplicate_collapses(here: Path, tiny: dict[str, Any], peerglass: Call) -> None:
    answer = peerglass("ingest", files_config(here, tiny, [*GOOD_ROWS, GOOD_ROWS[3]]))
    assert answer.code == 0
    assert "1 duplicates with an equal close collapsed" in answer.out
    assert Lake(here / "lake").read("prices").height == len(GOOD_ROWS)


# Errors in the middle of a run.


def test_a_training_that_diverges_exits_5_and_keeps_the_folds_that_did_not(
    here: Path, tiny: dict[str, Any], peerglass: Call
) -> None:
    models = {"ridge": {}, "self_peer": {"width": 8, "heads": 2, "layers": 1}}
    (here / "sim.yaml").write_text(yaml.safe_dump({**tiny, "models": models}))
    assert peerglass("ingest", "sim.yaml").code == 0
    wild = ("sim.yaml", "--set", "models.self_peer.fit.lr=1e30")
    refused(peerglass("train", *wild), 5, "self_peer, fold 0", "lower", "models.self_peer.fit.lr", "are kept")
    kept = Lake(here / "lake").read("forecasts")
    assert kept["model"].unique().to_list() == ["ridge"]


@pytest.mark.slow(2)
def test_an_unreachable_tracking_server_exits_6_and_loses_nothing(
    here: Path, tiny: dict[str, Any], peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:  # no process listens on this port once the socket is closed
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**tiny, "models": {"ridge": {}}, "audit": {"enabled": False}}
    (here / "sim.yaml").write_text(yaml.safe_dump(settings))
    answer = peerglass("run", "sim.yaml", "--set", f"tracking.uri=http://127.0.0.1:{port}")
    assert answer.code == 6, answer.err
    sentence = answer.err.splitlines()[-1]
    assert sentence.startswith(f"peerglass: The tracking store http://127.0.0.1:{port} cannot be used")
    assert "Traceback" not in answer.err
    trained = Lake(here / "lake").read("forecasts")
    assert len(list((here / "runs").rglob("report.html"))) == 1
    store = f"sqlite:///{here}/own.db"
    assert peerglass("run", "sim.yaml", "--set", f"tracking.uri={store}").code == 0
    assert Lake(here / "lake").read("forecasts").equals(trained)


# Damaged runs.


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> tuple[str, Path]:
    """Train one small attention model; return the run id and the working folder."""
    folder = tmp_path_factory.mktemp("trained")
    settings = {
        **tiny_settings,
        "models": {"self_peer": {"width": 8, "heads": 2, "layers": 1}},
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "lake": str(folder / "lake"),
        "output": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "mlartifacts")},
    }
    (folder / "sim.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(folder / "sim.yaml")
    ingest_config(config, print)
    return train_config(config), folder


@pytest.fixture
def trained(
    one_run: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """The run id and the working folder, whose run is whole again after the test."""
    run_id, folder = one_run
    monkeypatch.chdir(folder)
    shutil.copytree(folder / "runs", tmp_path / "runs")
    yield run_id, folder
    shutil.rmtree(folder / "runs")
    shutil.copytree(tmp_path / "runs", folder / "runs")


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    "damage", ["cut", "empty", "other bytes", "garbage json", "json of another", "gone", "shape"]
)
def test_a_corrupted_checkpoint(peerglass: Call, trained: tuple[str, Path], damage: str) -> None:
    run_id, here = trained
    folder = here / "runs" / run_id / "checkpoints" / "self_peer" / "fold-0-seed-0"
    tensors, config = folder / "model.safetensors", folder / "model.json"
    whole = tensors.read_bytes()
    match damage:
        case "cut":
            tensors.write_bytes(whole[: len(whole) // 2])
        case "empty":
            tensors.write_bytes(b"")
        case "other bytes":
            tensors.write_bytes(b"\x80\x04garbage" * 100)
        case "garbage json":
            config.write_text("{]")
        case "json of another":
            config.write_text("[1, 2]")
        case "gone":
            tensors.unlink()
        case "shape":
            config.write_text(config.read_text().replace('"width": 8', '"width": 16'))
    before = listing(here / "lake")
    answer = peerglass("explain", run_id, "--output", "runs")
    words = "There is no checkpoint in" if damage == "gone" else "corrupted"
    refused(answer, 3, words, "fold-0-seed-0", "peerglass train ")
    assert listing(here / "lake") == before

    for one in re.findall(r"'((?:rm|peerglass) [^']*)'", answer.err):  # the cure
        program, *arguments = shlex.split(one)
        if program == "rm":
            shutil.rmtree(arguments[-1])
        else:
            assert peerglass(*arguments).out.strip() == run_id
    assert listing(here / "lake") == before
    assert tensors.read_bytes() == whole


def test_runs_that_do_not_exist(peerglass: Call, trained: tuple[str, Path]) -> None:
    run_id, here = trained
    for verb in ("explain", "report", "backtest"):
        refused(peerglass(verb, "nothing", "--output", "runs"), 2, "No run begins with 'nothing'", run_id)
        refused(peerglass(verb, "../../x", "--output", "runs"), 2, "neither a run id nor a run's folder")
    (here / "runs" / run_id / "run.json").write_text("{")
    refused(peerglass("report", run_id, "--output", "runs"), 3, run_id, "damaged")


# The command itself.


def test_usage_errors_of_the_command_line_exit_2(here: Path, peerglass: Call) -> None:
    assert peerglass("fly").code == 2
    assert peerglass("train").code == 2
    assert peerglass("train", "a.yaml", "--nonsense").code == 2
    assert not list(here.iterdir())


def test_the_version_is_printed(peerglass: Call) -> None:
    answer = peerglass("--version")
    assert (answer.code, answer.out) == (0, f"peerglass {version('peerglass')}\n")


def test_a_bug_exits_1_without_a_traceback_unless_asked(
    peerglass: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.config import load as config_load

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(config_load, "load_config", broken)
    refused(peerglass("validate", "a.yaml"), 1, "this is a bug (RuntimeError: boom)", "--debug")
    with_traceback = peerglass("--debug", "validate", "a.yaml")
    assert with_traceback.code == 1
    assert "Traceback (most recent call last)" in with_traceback.err
    assert 'raise RuntimeError("boom")' in with_traceback.err


def test_an_interrupted_command_says_how_to_continue(
    peerglass: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.config import load as config_load

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config_load, "load_config", interrupted)
    refused(peerglass("validate", "a.yaml"), 130, "interrupted; run the same command again to continue.")


@pytest.mark.parametrize("before", [True, False])
def test_options_of_all_commands_may_stand_anywhere(peerglass: Call, here: Path, *, before: bool) -> None:
    common = ("--log", "text", "--debug")
    words = ("validate", "absent.yaml")
    answer = peerglass(*common, *words) if before else peerglass(*words, *common)
    assert answer.code == 2
    assert "Traceback" in answer.err
    assert peerglass("validate", "absent.yaml", "--log", "loud").code == 2
    assert peerglass("validate", "absent.yaml", "--log").code == 2


@pytest.mark.slow(3)
def test_the_real_command_exits_with_the_same_codes(here: Path, tiny: dict[str, Any]) -> None:
    config = files_config(here, tiny, GOOD_ROWS)
    command = [sys.executable, "-c", PEERGLASS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
        )

    wrong = run("ingest", config, "--set", "lak=x")
    assert (wrong.returncode, wrong.stdout) == (2, ""), wrong.stderr
    assert wrong.stderr.count("\n") == 1
    training = Process(PEERGLASS, ["train", config])
    out, error = training.communicate(timeout=300)
    assert (training.returncode, out) == (3, ""), error
    assert "peerglass: The lake" in error.splitlines()[-1]


def test_a_list_of_runs_does_not_wait_for_torch() -> None:
    code = "import sys, pipelines.commands.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
