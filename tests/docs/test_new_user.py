"""The first week of a user who installs the wheel: own prices, signals, a model, nights with real fills.

The wheel of this checkout is installed in an empty environment, which takes its libraries from that of the
tests. Every step is a command of that environment, in a folder that has nothing but the user's files.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from notebook_pages import expect_page
from places import ROOT

PACKAGES = ("features", "models", "backtest", "pipelines", "peerglass")
FIRMS, SESSIONS = 16, 450
GUIDE = (ROOT / "docs/extending.md").read_text("utf-8").partition("## In a clone")[0]
(OWN_MODEL,) = [
    block
    for block in re.findall(r"^```py\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    if "MODELS[" in block
]
"""The model `linear` of the guide."""

QUERY = """
import json, mlflow
mlflow.set_tracking_uri("sqlite:///data/mlflow.db")
rows = mlflow.search_runs(
    search_all_experiments=True,
    filter_string="metrics.`test.ic` > -1",
    order_by=["metrics.`test.sharpe_net` DESC"],
)
rows = rows.rename(columns={"tags.mlflow.runName": "name"}).set_index("name")
print(json.dumps(rows[["metrics.test.sharpe_net", "metrics.test.ic"]].values.tolist()))
print(json.dumps(rows.index.tolist()))
"""


class Desk:
    """A folder of a user, and the environment whose commands are called in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "week", folder / "environment" / "bin"
        self.folder.mkdir()

    def python(self, *words: str) -> str:
        """Run the environment's Python, and return what it prints."""
        return self._call("python", *words)

    def peerglass(self, *words: str) -> str:
        """Run a command that must succeed without a warning, and return what it prints."""
        return self._call("peerglass", "--quiet", *words)

    def fails(self, *words: str) -> str:
        """Run a command that must fail in one sentence, and return the sentence."""
        done = self._run("peerglass", "--quiet", *words)
        assert done.returncode in (2, 3)
        (sentence,) = done.stderr.splitlines()
        return sentence

    def _call(self, *words: str) -> str:
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, "a command that succeeds has nothing to say on stderr"
        return done.stdout

    def _run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MLFLOW"))}
        environment = known | {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        return subprocess.run(
            [self.bin / name, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """An empty environment with the wheel, and a folder with a user's prices."""
    folder = tmp_path_factory.mktemp("new")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *wheel], check=True)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = ["install", "--no-deps", "--no-index", "--no-compile", *map(str, folder.glob("*.whl"))]
    subprocess.run([*pip, "--python", str(environment / "bin" / "python"), *install], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # a folder that a .pth file names is searched, but its own .pth files, such as the clone's, are not read
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    reuse_compiled(site)
    made = Desk(folder)
    write_prices(made.folder / "prices.csv")
    return made


def reuse_compiled(site: Path) -> None:
    """Share what Numba compiles from the same source in the checkout: to compile it again takes a minute."""
    for package in PACKAGES:
        for source in (ROOT / package).rglob("*.py"):
            copy = site / source.relative_to(ROOT)
            assert copy.read_bytes() == source.read_bytes()
            os.utime(copy, ns=(source.stat().st_mtime_ns,) * 2)
            if not (copy.parent / "__pycache__").exists():
                (source.parent / "__pycache__").mkdir(exist_ok=True)
                (copy.parent / "__pycache__").symlink_to(source.parent / "__pycache__")


def write_prices(path: Path) -> None:
    """Prices with names of columns that are not ours."""
    rng = np.random.default_rng(5)
    days = pl.date_range(dt.date(2021, 1, 4), dt.date(2022, 12, 31), eager=True)
    days = days.filter(days.dt.weekday() <= 5)[:SESSIONS]
    close_TN = 30 * np.exp(rng.normal(0, 0.015, (SESSIONS, FIRMS)).cumsum(axis=0))
    wide = pl.DataFrame(close_TN.round(4), [f"F{n:02}" for n in range(FIRMS)]).insert_column(
        0, days.alias("Date")
    )
    long = wide.unpivot(index="Date", variable_name="Symbol", value_name="Close").sort("Date", "Symbol")
    long.with_columns(Volume=pl.Series(rng.integers(100_000, 1_000_000, long.height))).write_csv(path)


def test_the_wheel_is_used_and_is_whole(desk: Desk) -> None:
    """Nothing comes from the clone, and every file of a package that is no Python is in the wheel as well."""
    names = ", ".join(PACKAGES)
    code = f"import json, {names}; print(json.dumps([one.__file__ for one in ({names})]))"
    (site,) = (desk.bin.parent / "lib").glob("python*/site-packages")
    for name, file in zip(PACKAGES, json.loads(desk.python("-c", code)), strict=True):
        assert Path(file) == site / name / "__init__.py"
        assert (site / name / "py.typed").is_file(), "the wheel is marked as typed"
        for source in (ROOT / name).rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                assert (site / source.relative_to(ROOT)).is_file(), f"{source} is not in the wheel"
    assert desk.peerglass("--version").split()[-1] == importlib.metadata.version("peerglass")


@pytest.mark.slow(110)
def test_a_first_week(desk: Desk) -> None:
    """From a file of prices to nights with fills."""
    config = draft(desk)
    run = first_run(desk)
    signals = three_signals(desk)
    compared(desk, run, signals)
    nights(desk, config)
    tracked(desk, signals)
    page = desk.peerglass("notebook", "06", "--html", "research.html").strip()
    text = Path(page).read_text("utf-8")
    assert Path(page) == desk.folder / "research.html"
    expect_page("06_research_in_python", text)
    assert "momentum" in text


def draft(desk: Desk) -> Path:
    """`init`, and the edits of a user: a small config with a model of one's own, and an account."""
    said = desk._run("peerglass", "init", "prices.csv")
    assert said.returncode == 0, said.stderr
    assert f"{FIRMS * SESSIONS:,} prices of {FIRMS} firms, {SESSIONS} sessions from 2021-01-04" in (
        said.stdout + said.stderr
    )
    path = desk.folder / "prices.yaml"
    settings = yaml.safe_load(path.read_text())
    assert settings["source"]["columns"] == {
        "date": "Date",
        "ticker": "Symbol",
        "close": "Close",
        "volume": "Volume",
    }
    settings |= {
        "plugins": ["./my_models.py"],
        "models": {"ridge": {}, "linear": {}},
        "features": {
            "window": 5,
            "characteristics": ["return_1", "return_5", "return_21", "volatility_21"],
        },
        "fit": {"epochs": 2, "batch_dates": 16},
        "explain": {"dates": 2, "firms_per_date": 2, "network_dates": 2, "permutations": 2},
        "nightly": {"model": "ridge", "account": {"fills": "fills.csv", "capital": 500_000}},
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert "there is no file" in desk.fails("validate", "prices.yaml")  # of the plugin
    (desk.folder / "my_models.py").write_text(OWN_MODEL)
    checked = yaml.safe_load(desk.peerglass("validate", "prices.yaml"))
    assert list(checked["models"]) == ["ridge", "linear"]
    return path


def first_run(desk: Desk) -> str:
    """`run`, and the report that it writes."""
    said = desk.peerglass("run", "prices.yaml")
    assert re.search(r"^audit: \d+ passed, \d+ skipped$", said, re.MULTILINE)
    report = Path(said.splitlines()[-1])
    assert report.parent.parent == desk.folder / "data" / "runs"
    assert "<html" in report.read_text("utf-8")
    assert report.read_text("utf-8").count("linear") > 3, "the own model is in the report"
    return report.parent.name


def three_signals(desk: Desk) -> dict[str, dict[str, float]]:
    """Files of a momentum, a reversal and a noise, each measured; the first IC is computed anew."""
    prices = pl.read_csv(desk.folder / "prices.csv", try_parse_dates=True)
    prices = prices.select(date="Date", ticker="Symbol", close="Close")
    close = pl.col("close")
    past = {21: close.shift(21).over("ticker"), 5: close.shift(5).over("ticker")}
    noise = pl.Series(np.random.default_rng(2).normal(size=prices.height))
    made: dict[str, pl.Expr | pl.Series] = {
        "momentum": past[21] / close.shift(63).over("ticker") - 1,
        "noise": noise,
        "reversal": 1 - close / past[5],
    }
    found, first = {}, ""
    for name, values in made.items():
        rows = prices.select("date", "ticker", values.alias(name)).drop_nulls()
        rows.write_csv(desk.folder / f"{name}.csv")
        answer = json.loads(desk.peerglass("backtest", f"{name}.csv", "--config", "prices.yaml", "--json"))
        (row,) = answer["results"]
        found[name], first = row, answer["dates"]["first"]
    late = close.shift(-2).over("ticker") / close.shift(-1).over("ticker") - 1
    both = prices.with_columns(label=late, signal=made["reversal"]).drop_nulls()
    daily = both.group_by("date").agg(ic=pl.corr("signal", "label")).sort("date")
    known = daily.filter(pl.col("date") >= dt.date.fromisoformat(first))
    assert found["reversal"]["ic"] == pytest.approx(known["ic"].mean(), abs=1e-9)
    return found


def compared(desk: Desk, run: str, signals: dict[str, dict[str, float]]) -> None:
    """`compare` of the signals and both models, by the names that `runs list` shows."""
    listed = desk.peerglass("runs", "list")
    names = {name: re.search(rf"^({name}-\w{{10}}) .* signals ", listed, re.MULTILINE) for name in signals}
    assert all(names.values()), listed
    assert re.search(rf"^{run} .* complete .* to 2022-09-21 ", listed, re.MULTILINE), (
        "2 before the last price"
    )
    measured = [one[1] for one in names.values() if one]
    answer = json.loads(desk.peerglass("compare", *measured, f"{run}:ridge", f"{run}:linear", "--json"))
    assert [row["name"].partition(":")[2] for row in answer["figures"]] == [*signals, "ridge", "linear"]
    (sessions,) = {row["sessions"] for row in answer["figures"]}
    assert 100 < sessions < SESSIONS
    assert [row["reference"] for row in answer["tests"]] == [answer["figures"][0]["name"]] * 4


def nights(desk: Desk, config: Path) -> None:
    """Three nights: orders of the first are filled worse than their prices, one in part, one not at all."""
    days = pl.read_csv(desk.folder / "prices.csv")["Date"].unique().sort().to_list()
    first, second, third = days[-4:-1]
    asked = ("nightly", config.name, "--date")
    (desk.folder / "fills.csv").write_text("session,ticker,shares,price,fee\n")
    assert f"night of {first}: done\n" in desk.peerglass(*asked, first)
    folder = desk.folder / "data/runs/nights/prices"
    orders = pl.read_csv(folder / first / "book.csv").filter(pl.col("shares") != 0).sort("ticker")
    filled = orders.head(-1).select(
        session=pl.lit(second),
        ticker="ticker",
        shares=(pl.col("shares") * pl.when(pl.int_range(pl.len()) == 0).then(0.4).otherwise(1.0)).round(),
        price=(pl.col("price") * (1 + 0.0002 * pl.col("shares").sign())).round(4),
        fee=(pl.col("shares").abs() * 0.002).round(2),
    )
    filled.write_csv(desk.folder / "fills.csv")
    said = desk.peerglass(*asked, third)
    whole, none, part = filled.height - 1, orders["ticker"][-1], orders["ticker"][0]
    assert f"Of {orders.height} orders for {second}, {whole} were filled; 1 in another size: {part} (" in said
    assert f"1 not at all: {none} (" in said
    account = json.loads(desk.peerglass("account", "show", config.name, "--json"))
    booked = {row["session"]: row for row in account["sessions"]}
    assert list(booked) == [first, second, third]
    paid = filled.select((pl.col("shares") * pl.col("price") + pl.col("fee")).sum()).item()
    assert booked[second]["cash"] == pytest.approx(500_000 - paid, abs=1e-6)
    held = {row["ticker"]: row["shares"] for row in account["positions"]}
    assert held == pytest.approx(dict(filled.select("ticker", "shares").iter_rows()), abs=1e-9)
    closes = pl.read_csv(desk.folder / "prices.csv").filter(Date=third)
    worth = sum(held.get(name, 0) * close for name, close in closes.select("Symbol", "Close").iter_rows())
    assert booked[third]["nav"] == pytest.approx(booked[third]["cash"] + worth, abs=1e-6)
    page = (folder / "nightly.html").read_text("utf-8")
    assert third in page
    assert f"{booked[third]['nav']:,.0f}" in page


def tracked(desk: Desk, signals: dict[str, dict[str, float]]) -> None:
    """MLflow finds models and signals by their metrics, the best Sharpe ratio first."""
    printed = desk.python("-W", "ignore", "-c", QUERY).splitlines()
    values, names = json.loads(printed[-2]), json.loads(printed[-1])
    assert {*signals, "ridge", "linear"} <= set(names)
    assert len(names) == 6, "the models with their parent, and the signals"
    sharpes = [sharpe for sharpe, _ in values]
    assert sharpes == sorted(sharpes, reverse=True)
    for name, measured in signals.items():
        sharpe, ic = values[names.index(name)]
        assert sharpe == pytest.approx(measured["long_short.sharpe_net"], abs=1e-12)
        assert ic == pytest.approx(measured["ic"], abs=1e-12)
