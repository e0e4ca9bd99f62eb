"""The identity of a run: its id covers everything that its forecasts depend on, and nothing else.

This file is long because every key of a config has a row that tells whether it changes the id.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
import yaml
from command import Answer, Call, command
from pydantic import BaseModel

from features.arrays import FloatArray
from features.library.characteristics import CHARACTERISTICS
from features.library.standardise import TransformRule
from features.options import Options
from features.panel.panel import Panel
from models.baselines.ridge import Ridge
from models.registry import MODELS
from pipelines.audit.registry import CHECKS
from pipelines.config.load import check_config, load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.versions import TableVersion
from pipelines.run import identity
from pipelines.run import identity as fingerprints
from pipelines.run.identity import Identity, build_identity, fingerprint, normalise_source
from pipelines.run.record import name_run, open_run

pytestmark = pytest.mark.usefixtures("untracked")

FEATURES = ["momentum_63", "return_1", "return_5"]


@pytest.fixture
def peerglass(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """The command line, in a folder with a config of a ridge on three characteristics."""
    monkeypatch.chdir(tmp_path)
    settings = {
        **tiny,
        "models": {"ridge": {}},
        "features": {"window": 5, "characteristics": FEATURES},
        "explain": {"models": []},
        "audit": {"sessions": 1, "skip": [name for name in CHECKS if name not in ("labels", "future")]},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    return command(monkeypatch, capfd)


def trained(answer: Answer) -> str:
    assert answer.code == 0, answer.err
    return answer.out.strip().splitlines()[-1]


# A changed feature gives a new run, which is audited.


@pytest.mark.slow(3)
def test_a_feature_with_look_ahead_gives_a_new_run_and_its_audit_fails(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = peerglass("run", "tiny.yaml")
    assert first.code == 0, first.err
    (original,) = Path("runs").glob("tiny-*")
    feature = CHARACTERISTICS["return_5"]

    def tomorrow(panel: Panel) -> FloatArray:
        return np.roll(feature.compute(panel), -5, axis=0)

    monkeypatch.setitem(CHARACTERISTICS, "return_5", dataclasses.replace(feature, compute=tomorrow))
    second = peerglass("run", "tiny.yaml")
    assert "has passed its audit" not in second.err
    assert second.code == 4, second.out
    assert "return_5" in second.out
    (leaky,) = set(Path("runs").glob("tiny-*")) - {original}
    message = (
        f"{leaky.name} is a new run; it differs from {original.name} in: the code that computes forecasts."
    )
    assert message in second.err


@pytest.mark.slow(5)
def test_the_audit_is_made_again_when_its_own_settings_change(peerglass: Call) -> None:
    assert peerglass("run", "tiny.yaml").code == 0
    again = peerglass("run", "tiny.yaml")
    assert "has passed its audit" in again.err
    deeper = peerglass("run", "tiny.yaml", "--set", "audit.sessions=2")
    assert deeper.code == 0
    assert "has passed its audit" not in deeper.err
    assert deeper.out.splitlines()[-1] == again.out.splitlines()[-1], "the audit is not part of the run's id"


def test_the_digest_of_code_covers_statements_but_not_comments_and_docstrings() -> None:
    source = '''
def f(x: int) -> int:
    """Add one."""
    return x + 1  # one more
'''
    reworded = '''
# A comment.
def f(x: int) -> int:
    """Return the
    successor."""

    return (
        x + 1
    )
'''
    assert normalise_source(source) == normalise_source(reworded)
    assert normalise_source(source) != normalise_source(source.replace("+ 1", "+ 2"))


def test_every_module_that_leads_to_a_forecast_is_in_the_digest_or_listed_here() -> None:
    cannot_change_a_forecast = {
        "backtest.books.book",  # says what a book needs
        "backtest.forecasts.metrics",  # measures forecasts
        "pipelines.columns",  # names and formats of results
        "pipelines.device",  # the identity holds the device
        "pipelines.errors",
        "pipelines.files",  # writes files
        "pipelines.format",
        "pipelines.machine",  # measures memory
        "pipelines.plugins",  # the identity holds the digests of plugins
        "pipelines.progress",
        "pipelines.secrets",
        "pipelines.settings",
    }
    # settings are in the identity, the lake and the ledger hold rows, and an engine says where it computes
    rooms = ("config", "execution", "ingest", "lake", "quality", "sources", "tracking")
    root = Path(identity.__file__).parents[2]
    apart = set((root / identity.APART).rglob("*.py"))
    files = {path for folder in identity.CODE for path in (root / folder).rglob("*.py")} - apart
    covered = {".".join(path.relative_to(root).with_suffix("").parts) for path in files}
    imported, libraries = set(), set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    is_module = (root / f"{whole.replace('.', '/')}.py").is_file()
                    imported.add(whole if is_module else node.module)
                libraries.add(node.module.partition(".")[0])
    ours = {name for name in imported if name.startswith(("backtest.", "pipelines."))}
    assert len(covered) > 60
    assert not any(name.startswith("models.explain") for name in imported)
    in_rooms = {name for name in ours if name.startswith(tuple(f"pipelines.{room}." for room in rooms))}
    assert ours - covered - in_rooms <= cannot_change_a_forecast
    libraries -= {"backtest", "features", "models", "pipelines", *sys.stdlib_module_names}
    in_frames = {"polars"}  # only joins and filters rows
    assert libraries >= {"scipy", "torch"}
    no_numbers = {"deltalake", "filelock", "optuna", "pyarrow", "pydantic", "pydantic_core", "safetensors"}
    no_numbers |= {"threadpoolctl"}
    assert libraries - in_frames - no_numbers <= set(identity.LIBRARIES)


def test_a_new_file_in_a_folder_of_the_code_gives_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "_ROOT", tmp_path)
    digest = fingerprints.folders_digest.__wrapped__
    (tmp_path / "models" / "explain").mkdir(parents=True)
    (tmp_path / "models" / "batch.py").write_text("x = 1")
    before = digest("models", without="models/explain")
    (tmp_path / "models" / "explain" / "scores.py").write_text("y = 1")
    assert digest("models", without="models/explain") == before
    (tmp_path / "models" / "new.py").write_text("z = 1")
    assert digest("models", without="models/explain") != before


def _user_feature(panel: Panel) -> FloatArray:
    return panel.close_TN * _factor()


def _factor() -> float:
    return 2.0


def test_a_function_from_elsewhere_is_identified_by_its_source_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(factor: float) -> object:
        return lambda panel: panel.close_TN * factor

    assert fingerprint(scaled(1.0)) == fingerprint(scaled(1.0))
    assert fingerprint(scaled(1.0)) != fingerprint(scaled(2.0))
    one = fingerprint(lambda panel: panel.close_TN + 1)
    assert one != fingerprint(lambda panel: panel.close_TN + 2)

    def doubled(panel: Panel) -> FloatArray:
        return 2 * _user_feature(panel)

    def tripled(panel: Panel) -> FloatArray:
        return 3 * _user_feature(panel)

    wrap = functools.wraps(_user_feature)
    assert fingerprint(wrap(doubled)) != fingerprint(wrap(tripled)), "a decorator counts"
    before = fingerprint(_user_feature)
    monkeypatch.setattr(sys.modules[__name__], "_factor", lambda: 3.0)
    assert fingerprint(_user_feature) != before, "functions that it calls are included"


def test_options_that_a_function_holds_are_part_of_the_code() -> None:
    def ranked(winsorise: float) -> object:
        rule = TransformRule(winsorise=winsorise)
        return lambda panel: (panel.close_TN, rule)

    assert fingerprint(ranked(0.01)) == fingerprint(ranked(0.01))
    assert fingerprint(ranked(0.01)) != fingerprint(ranked(0.02))

    def own(default: float) -> type[Options]:
        class Own(Options):
            share: float = default

        return Own

    assert fingerprint(own(0.01)) == fingerprint(own(0.01))
    assert fingerprint(own(0.01)) != fingerprint(own(0.02)), "their defaults as well"


def test_a_users_own_feature_and_model_are_part_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.code_digest()
    assert identity.code_digest() == before
    feature = CHARACTERISTICS["return_5"]
    with monkeypatch.context() as patched:
        patched.setitem(CHARACTERISTICS, "own", dataclasses.replace(feature, compute=_user_feature))
        with_own = identity.code_digest()
    assert with_own != before

    class Louder(Ridge):
        def forecast_date(self, batch: Any) -> Any:  # noqa: ANN401 (passed on)
            return 2 * super().forecast_date(batch)

    with monkeypatch.context() as patched:
        patched.setitem(MODELS, "ridge", dataclasses.replace(MODELS["ridge"], build=Louder))
        assert identity.code_digest() not in (before, with_own)
    assert identity.code_digest() == before


# Settings.


@pytest.fixture(scope="module")
def dataset(tiny_config: Config, tiny_tables: Mapping[str, Any]) -> Dataset:
    return build_dataset(tiny_tables, tiny_config)


TABLES = {"prices": TableVersion("a", 1)}


def digest_of(settings: Mapping[str, Any], dataset: Dataset) -> str:
    config = check_config(settings, origin="tiny")
    return build_identity(config, dataset, "/lake", TABLES, {}).digest


def test_omitted_and_spelled_out_defaults_give_the_same_run(
    tmp_path: Path, tiny: dict[str, Any], dataset: Dataset
) -> None:
    models = {"ridge": {}, "temporal_transformer": {"fit": {"lr": 0.003}}}
    base = digest_of({**tiny, "models": models}, dataset)
    spelled = {
        "temporal_transformer": {
            "model": "temporal_transformer",
            "fit": {"epochs": 2, "lr": "3e-3", "pretrain": None, "patience": 12},
            **MODELS["temporal_transformer"].config().model_dump(),
        },
        "ridge": {"alphas": [0.0001, 0.001, 0.01, 0.1, 1, 10]},
    }
    assert digest_of({**tiny, "models": spelled}, dataset) == base
    assert digest_of({**tiny, "models": models, "folds": {**tiny["folds"], "step": 40}}, dataset) == base
    assert digest_of({**tiny, "models": {**models, "ridge": {"alphas": [1.0]}}}, dataset) != base

    path = tmp_path / "a.yaml"  # YAML 1.1 reads 3e-3 as a string
    path.write_text(yaml.safe_dump({**tiny, "models": models}))
    written = [load_config(path, [f"models.temporal_transformer.fit.lr={lr}"]) for lr in ("3e-3", "0.003")]
    assert written[0].models != written[1].models, "the strings differ"
    assert len({digest_of(one.model_dump(mode="json"), dataset) for one in written}) == 1


def test_a_number_written_as_a_string_gives_the_same_run(peerglass: Call) -> None:
    assert peerglass("ingest", "tiny.yaml").code == 0
    network = "models={temporal_transformer: {encoder: {width: 8, heads: 2, layers: 1, dropout: %s}}}"
    once = trained(peerglass("train", "tiny.yaml", "--set", network % "1e-1"))
    again = peerglass("train", "tiny.yaml", "--set", network % "0.1")
    assert trained(again) == once
    assert "were already done" in again.err


def test_the_default_of_all_features_equals_naming_all_features(
    tiny: dict[str, Any], dataset: Dataset
) -> None:
    named = {
        "window": 5,
        "channels": list(dataset.channel_names),
        "characteristics": list(dataset.characteristic_names),
    }
    assert digest_of({**tiny, "features": named}, dataset) == digest_of(tiny, dataset)
    fewer = dataclasses.replace(dataset, characteristic_names=dataset.characteristic_names[1:])
    assert digest_of(tiny, fewer) != digest_of(tiny, dataset), "a new characteristic gives a new run"


def test_the_run_of_a_warm_start_is_part_of_the_identity(tiny: dict[str, Any], dataset: Dataset) -> None:
    config = check_config({**tiny, "models": {"lstm": {}}}, origin="tiny")
    warm_starts: tuple[dict[str, str], ...] = ({}, {"lstm": "tiny-1"}, {"lstm": "tiny-2"})
    digests = {build_identity(config, dataset, "/lake", TABLES, one).digest for one in warm_starts}
    assert len(digests) == 3


FORECAST = "part of the identity"
BY_DATA = "represented by the lake's tables and the names of the features"
APART = "changes no forecast"

# Every leaf of the config -> its class and a different value. A new key must be classified here.
CLASSIFIED: Mapping[str, tuple[str, Any]] = {
    "name": (APART, "other"),  # the id begins with it, but the digest does not depend on it
    "hypothesis": (APART, "an idea"),  # it counts trials
    "known_from": (APART, "2016-01-04"),  # of signals of a file, which no model makes
    "multiverse": (APART, {"label.horizon": [1, 5]}),
    "source.simulated.kind": (BY_DATA, None),
    "source.simulated.seed": (BY_DATA, 4),
    "source.simulated.market.firms": (BY_DATA, 17),  # for all settings of the market
    "source.simulated.grows_from": (BY_DATA, "2015-05-01"),
    "source.sample.kind": (BY_DATA, None),
    "source.files.kind": (BY_DATA, None),
    "source.files.prices": (BY_DATA, "other.csv"),
    "source.files.layout": (BY_DATA, "wide"),
    "source.files.vendor": (BY_DATA, "stooq"),
    "source.files.securities": (BY_DATA, "other.csv"),
    "source.files.fundamentals": (BY_DATA, "other.csv"),
    "source.files.membership": (BY_DATA, "other.csv"),
    "source.files.inputs": (BY_DATA, "other.csv"),
    "source.files.columns": (BY_DATA, {"close": "c"}),
    "source.files.units": (BY_DATA, {"close": 2.0}),
    "source.files.items": (BY_DATA, {"net_income": "n"}),
    "source.files.zero_means_missing": (BY_DATA, ["net_income"]),
    "source.files.statement_months": (BY_DATA, 3),
    "source.files.reporting_lag_days": (BY_DATA, 60),
    "source.files.share_counts_as_of": (BY_DATA, "today"),
    "source.files.date_format": (BY_DATA, "%m/%d/%Y"),
    "source.files.separator": (BY_DATA, ";"),
    "source.files.decimal": (BY_DATA, ","),
    "source.files.encoding": (BY_DATA, "latin-1"),
    "source.files.start": (BY_DATA, "2011-01-01"),
    "source.files.renames": (BY_DATA, "r.csv"),
    "source.files.end": (BY_DATA, "2021-01-01"),
    "source.files.hazards": (APART, ["h"]),
    "source.yfinance.kind": (BY_DATA, None),
    "source.yfinance.tickers": (BY_DATA, ["B"]),
    "source.yfinance.start": (BY_DATA, "2011-01-01"),
    "source.yfinance.end": (BY_DATA, "2021-01-01"),
    "source.yfinance.statements": (BY_DATA, False),
    "source.yfinance.renames": (BY_DATA, "r.csv"),
    "source.yfinance.batch_size": (APART, 7),
    "source.yfinance.reporting_lag_days": (BY_DATA, 60),
    "source.yfinance.timeout_seconds": (APART, 99.0),
    "source.yfinance.retries": (APART, 1),
    "source.sec.kind": (BY_DATA, None),
    "source.sec.tickers": (BY_DATA, ["B"]),
    "source.sec.identity": (APART, "Jo jo@example.com"),
    "source.sec.start": (BY_DATA, "2011-01-01"),
    "lake": (BY_DATA, "other"),  # the identity holds its absolute location
    "lake_options": (APART, None),  # how an object store is reached; a local lake has none
    "quality.spike_that_reverts": (BY_DATA, "reject"),
    "quality.stale_run": (BY_DATA, "reject"),
    "quality.split_without_return": (BY_DATA, "reject"),
    "quality.return_without_split": (BY_DATA, "reject"),
    "quality.closed_session": (BY_DATA, "flag"),
    "quality.sparse_date": (BY_DATA, "flag"),
    "quality.currency_jump": (BY_DATA, "reject"),
    "quality.dividend_above_price": (BY_DATA, "off"),
    "quality.earn_nothing": (FORECAST, []),
    "quality.coverage_collapse": (BY_DATA, "off"),
    "quality.calendar": (BY_DATA, "XNYS"),
    "quality.calendar_overrides.closures": (BY_DATA, ["2020-01-03"]),
    "quality.calendar_overrides.sessions": (BY_DATA, ["2020-01-04"]),
    "universe.membership": (FORECAST, "index"),
    "universe.min_price": (FORECAST, 2.0),
    "universe.min_dollar_volume": (FORECAST, 5.0),
    "universe.dollar_volume_window": (FORECAST, 21),
    "universe.min_history": (FORECAST, 31),
    "features.window": (FORECAST, 6),
    "features.set": (BY_DATA, "alpha158"),
    "features.expressions": (FORECAST, {"mine": "close / open"}),
    "features.channels": (BY_DATA, ["return"]),
    "features.characteristics": (BY_DATA, ["return_1"]),
    "features.inputs": (BY_DATA, ["signal"]),
    "features.hold_inputs": (FORECAST, 3),
    "features.group_by": (FORECAST, "sector"),
    "features.transform.winsorise": (FORECAST, 0.01),
    "features.transform.neutralise": (FORECAST, "group"),
    "features.transform.kind": (FORECAST, "zscore"),
    "features.transform.missing": (FORECAST, "median"),
    "features.transform.add_indicator": (FORECAST, True),
    "label.horizon": (FORECAST, 2),
    "label.delay": (FORECAST, 1),
    "label.transform": (FORECAST, "rank"),
    "label.clip": (FORECAST, 1.0),
    "label.unknown_delisting_return": (FORECAST, -0.3),
    "label.residualise_factors": (FORECAST, 1),
    "label.forecast_frequency": (FORECAST, "weekly"),
    "label.extra_delays": (FORECAST, [3]),  # the longest one sets the purge
    "label.shorter_horizons": (FORECAST, None),  # needs a longer horizon: tested separately
    "label.periods_per_year": (FORECAST, 52.0),  # no forecast: the year of all of a run's annual figures
    "folds.walk.scheme": (FORECAST, "rolling"),
    "folds.walk.train": (FORECAST, 121),
    "folds.walk.valid": (FORECAST, 26),
    "folds.walk.test": (FORECAST, 41),
    "folds.walk.embargo": (FORECAST, 2),
    "folds.walk.step": (FORECAST, 50),
    "folds.walk.max_folds": (FORECAST, 1),
    "folds.walk.anchor": (FORECAST, "start"),
    "folds.dated.scheme": (FORECAST, None),
    "folds.dated.train_from": (FORECAST, "2015-01-05"),
    "folds.dated.valid_from": (FORECAST, "2016-01-05"),
    "folds.dated.test_from": (FORECAST, "2017-01-05"),
    "folds.dated.test_to": (FORECAST, "2018-01-05"),
    "folds.dated.embargo": (FORECAST, 2),
    "folds.by_period.scheme": (FORECAST, None),
    "folds.by_period.period": (FORECAST, "quarter"),
    "folds.by_period.window": (FORECAST, "rolling"),
    "folds.by_period.train": (FORECAST, 4),
    "folds.by_period.valid": (FORECAST, 2),
    "folds.by_period.embargo": (FORECAST, 2),
    "folds.by_period.max_folds": (FORECAST, 1),
    "folds.combinatorial.scheme": (FORECAST, None),
    "folds.combinatorial.groups": (FORECAST, 7),
    "folds.combinatorial.test_groups": (FORECAST, 3),
    "folds.combinatorial.embargo": (FORECAST, 2),
    "folds.live.scheme": (FORECAST, None),
    "folds.live.through": (FORECAST, "2017-01-03"),
    "folds.live.train": (FORECAST, 100),
    "folds.live.valid": (FORECAST, 20),
    "folds.live.embargo": (FORECAST, 2),
    "models": (FORECAST, {"zero": {}, "mlp": {"width": 9}}),
    "fit": (FORECAST, {"valid_dates": 3}),
    "init_from": (FORECAST, None),  # by the run's id: tested separately
    "seeds": (FORECAST, [1]),
    "backtest.books": (APART, {"other": {"kind": "top_k_long_only", "k": 3}}),
    "backtest.benchmarks": (APART, {"own": {"weights": "cap_weighted"}}),
    "backtest.factors": (APART, {"ff5": ["ff5.csv"]}),
    "backtest.costs.half_spread_bps": (APART, 9.0),
    "backtest.costs.commission_bps": (APART, 9.0),
    "backtest.costs.borrow_bps_per_year": (APART, 9.0),
    "backtest.costs.spread_window": (APART, 9),
    "backtest.costs.impact_coefficient": (APART, 0.5),
    "backtest.costs.borrow_file": (APART, "fees.csv"),
    "backtest.costs.financing_bps_per_year": (APART, 9.0),
    "backtest.costs.commission_min": (APART, None),  # needs a capital; no setting of the section is in the id
    "backtest.execution.price": (APART, "open"),
    "backtest.execution.participation_cap": (APART, 0.2),
    "backtest.execution.window": (APART, 9),
    "backtest.execution.unfilled": (APART, "drop"),
    "backtest.execution.price_limit": (APART, 0.1),
    "backtest.execution.price_limit_file": (APART, "limits.csv"),
    "backtest.execution.lot": (APART, None),  # the same
    "backtest.capital": (APART, 1e6),
    "backtest.delay": (APART, 2),
    "backtest.risk_free": (APART, 0.03),
    "explain.models": (APART, []),
    "explain.dates": (APART, 3),
    "explain.firms_per_date": (APART, 3),
    "explain.network_dates": (APART, 3),
    "explain.max_peers": (APART, 9),
    "explain.permutations": (APART, 3),
    "explain.network_permutations": (APART, 3),
    "explain.engine": (APART, "linear"),
    "explain.removal": (APART, "train"),
    "explain.precision": (APART, 0.1),
    "explain.skill_dates": (APART, 3),
    "explain.faithfulness": (APART, "thorough"),
    "explain.seed": (APART, 1),
    "audit.enabled": (APART, False),
    "audit.on_failure": (APART, "warn"),
    "audit.sessions": (APART, 2),
    "audit.seed": (APART, 1),
    "audit.skip": (APART, ["noise"]),
    "tracking.uri": (APART, "sqlite:///other.db"),
    "tracking.artifacts": (APART, "other"),
    "tracking.experiment": (APART, "other"),
    "execution.engine": (APART, "serial"),
    "execution.workers": (APART, 3),
    "execution.address": (APART, None),  # only with engine ray; no setting of the section is in the id
    "execution.gpus_per_task": (APART, None),
    "stack_seeds": (APART, True),  # with several seeds, stacking shares the dropout draws: tested separately
    "device": (FORECAST, "cuda"),
    "output": (APART, "other"),
    "output_store.url": (APART, "s3://bucket/runs"),
    "output_store.options": (APART, None),  # only with a url
    "feature_store.folder": (APART, "other"),
    "feature_store.limit_gib": (APART, 3.0),
    "root": (APART, "/other"),
    "plugins": (FORECAST, None),  # only with a file that is there: tests/pipelines/test_plugins.py
}
VARIANTS = {
    "SimulatedSourceConfig": "simulated",
    "SampleSourceConfig": "sample",
    "FilesSourceConfig": "files",
    "YFinanceSourceConfig": "yfinance",
    "SecSourceConfig": "sec",
    "FoldPlan": "walk",
    "DatedPlan": "dated",
    "CalendarPlan": "by_period",
    "CombinatorialPlan": "combinatorial",
    "LivePlan": "live",
}
DATED = {
    "scheme": "dated",
    "train_from": "2015-01-01",
    "valid_from": "2016-01-01",
    "test_from": "2017-01-01",
    "test_to": "2018-01-01",
    "embargo": 1,
}
BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "sample": {"kind": "sample"},
    "files": {"kind": "files", "prices": "prices.csv", "fundamentals": "f.csv", "separator": "|"},
    "yfinance": {"kind": "yfinance", "tickers": ["A"]},
    "sec": {"kind": "sec", "tickers": ["A"], "identity": "Jane jane@example.com"},
    "dated": DATED,
    "by_period": {
        "scheme": "calendar",
        "period": "year",
        "window": "expanding",
        "train": 3,
        "valid": 1,
        "embargo": 1,
    },
    "combinatorial": {"scheme": "combinatorial", "groups": 6, "test_groups": 2, "embargo": 1},
    "live": {"scheme": "live", "through": "2017-01-02", "valid": 10, "embargo": 1},
}


def leaves(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every leaf key of the schema; the members of a union are distinguished by `VARIANTS`."""
    for key, field in section.model_fields.items():
        where, sections = f"{path}{key}", list(_sections(field.annotation))
        if not sections:
            yield where
        for one in sections:
            name = f"{where}.{VARIANTS[one.__name__]}." if len(sections) > 1 else f"{where}."
            yield from leaves(one, name)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _sections(one)


def test_every_key_of_a_config_is_classified() -> None:
    # no setting of the nightly pipeline is part of a run's id (`forecasting_settings`)
    keys = {key for key in leaves(Config) if not key.startswith(("nightly.", "source.simulated.market."))}
    assert keys | {"source.simulated.market.firms"} == set(CLASSIFIED)
    assert len(CLASSIFIED) > 90


@pytest.mark.slow(6)
@pytest.mark.parametrize("key", [key for key, (_, other) in CLASSIFIED.items() if other is not None])
def test_a_key_changes_the_id_if_and_only_if_it_can_change_a_forecast(
    key: str, tiny: dict[str, Any], dataset: Dataset
) -> None:
    kind, other = CLASSIFIED[key]
    block, *rest = key.split(".")
    changed: Any
    if rest and rest[0] in BLOCKS.keys() | {"simulated", "walk"}:
        variant = rest.pop(0)
        tiny[block] = BLOCKS.get(variant, tiny[block])
    changed = other
    for depth in range(len(rest), 0, -1):
        there: Any = tiny.get(block, {})
        for part in rest[: depth - 1]:
            there = there.get(part, {})
        changed = {**there, rest[depth - 1]: changed}
    same = digest_of(tiny, dataset) == digest_of({**tiny, block: changed}, dataset)
    assert same is (kind != FORECAST)


def test_keys_that_change_a_forecast_only_together_with_others(
    tiny: dict[str, Any], dataset: Dataset
) -> None:
    longer = {**tiny, "label": {"horizon": 5}}
    shorter = {**tiny, "label": {"horizon": 5, "shorter_horizons": [1]}}
    assert digest_of(longer, dataset) != digest_of(shorter, dataset)
    seeds = {**tiny, "seeds": [0, 1]}
    assert digest_of({**seeds, "stack_seeds": False}, dataset) == digest_of(seeds, dataset), "as on a CPU"
    assert digest_of({**seeds, "stack_seeds": True}, dataset) != digest_of(seeds, dataset)
    again = {**tiny, "label": {**tiny["label"], "extra_delays": [1, 2]}}
    assert digest_of(again, dataset) == digest_of(
        {**tiny, "label": {**tiny["label"], "extra_delays": [2]}}, dataset
    )
    baselines = {**tiny, "models": {"ridge": {}}}
    assert digest_of({**baselines, "fit": {"lr": 0.5}}, dataset) == digest_of(baselines, dataset)
    assert digest_of({**baselines, "fit": {"valid_dates": 3}}, dataset) != digest_of(baselines, dataset)
    network = {**tiny, "models": {"mlp": {}, "lightgbm": {}}}
    computed = {**network, "fit": {**tiny["fit"], "compile": True}}
    computed["models"] = {"mlp": {}, "lightgbm": {"num_threads": 4}}
    assert digest_of(computed, dataset) == digest_of(network, dataset), "how, not what"
    fitted = {**network, "models": {"mlp": {}, "lightgbm": {"num_leaves": 7}}}
    assert digest_of(fitted, dataset) != digest_of(network, dataset)


def test_device_libraries_code_lake_and_tables_are_part_of_the_id(
    tiny: dict[str, Any], dataset: Dataset
) -> None:
    config = check_config(tiny, origin="tiny")
    base = build_identity(config, dataset, "/lake", TABLES, {})
    others = [
        dataclasses.replace(base, device="cuda"),
        dataclasses.replace(base, code="x"),
        dataclasses.replace(base, libraries={**base.libraries, "torch": "1.0"}),
        dataclasses.replace(base, lake="/elsewhere"),
        dataclasses.replace(base, tables={"prices": TableVersion("b", 1)}),
        dataclasses.replace(base, tables={"prices": TableVersion("a", 2)}),
    ]
    assert len({one.digest for one in [base, *others]}) == 7
    assert [one.differences(base) for one in others] == [
        ["device (cpu -> cuda)"],
        ["the code that computes forecasts"],
        [f"library torch ({base.libraries['torch']} -> 1.0)"],
        ["location of the lake (/lake -> /elsewhere)"],
        ["table prices (a different table of that name)"],
        ["table prices (version 1 -> 2)"],
    ]
    assert Identity.from_record(base.record()) == base
    assert base.differences(base) == []


def test_differences_in_settings_are_named(tiny: dict[str, Any], dataset: Dataset) -> None:
    config = check_config({**tiny, "models": {"ridge": {}, "zero": {}}}, origin="tiny")
    changes = {"models": {"ridge": {"alphas": [1.0, 2.0]}, "lstm": {}}, "seeds": [0, 4]}
    other = check_config({**tiny, **changes}, origin="tiny")
    base = build_identity(config, dataset, "/lake", TABLES, {})
    fewer = dataclasses.replace(dataset, characteristic_names=dataset.characteristic_names[1:])
    assert build_identity(other, fewer, "/lake", TABLES, {}).differences(base) == [
        f"features.characteristics (-{dataset.characteristic_names[0]})",
        "models.lstm (added)",
        "models.ridge.alphas (-0.0001, -0.001, -0.01, -0.1, -10.0, +2.0)",
        "models.zero (removed)",
        "seeds (+4)",
    ]


# Data.


def test_a_lake_that_was_deleted_and_filled_again_gives_a_new_run(
    tmp_path: Path, peerglass: Call, tiny: dict[str, Any]
) -> None:
    assert peerglass("ingest", "tiny.yaml").code == 0
    first = trained(peerglass("train", "tiny.yaml"))
    versions = Lake("lake").versions()["prices"]
    shutil.rmtree("lake")
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    settings["source"]["seed"] = 4
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert peerglass("ingest", "tiny.yaml").code == 0
    assert Lake("lake").versions()["prices"] == versions, "the version number alone does not distinguish them"

    again = peerglass("train", "tiny.yaml")
    second = trained(again)
    assert second != first
    assert "table prices (a different table of that name)" in again.err
    for verb in ("backtest", "report", "explain", "audit"):
        refused = peerglass(verb, first, "--output", "runs")
        assert refused.code == 3, verb
        assert refused.err.splitlines()[-1] == (
            f"peerglass: Run {first} was made on a table fundamentals of {tmp_path}/lake that has since been "
            "deleted and created again; restore the lake, or run the config again to make a new run."
        )
    shutil.rmtree("lake")
    gone = peerglass("report", second, "--output", "runs")
    assert gone.code == 3
    assert "which no longer exists; restore the lake at that location" in gone.err
    assert tiny


@pytest.mark.slow(2)
def test_a_moved_lake_gives_a_new_run_and_a_message(
    tmp_path: Path, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peerglass("ingest", "tiny.yaml").code == 0
    first = trained(peerglass("train", "tiny.yaml"))
    Path("lake").rename("renamed")
    assert peerglass("report", first, "--output", "runs").code == 3
    moved = peerglass("train", "tiny.yaml", "--set", "lake=renamed")
    assert trained(moved) != first
    assert f"in: location of the lake ({tmp_path}/lake -> {tmp_path}/renamed)." in moved.err
    Path("renamed").rename("lake")
    back = peerglass("train", "tiny.yaml")
    assert trained(back) == first
    assert "were already done" in back.err
    assert "is a new run" not in back.err
    monkeypatch.chdir("/")
    elsewhere = peerglass("backtest", first, "--output", str(tmp_path / "runs"))
    assert elsewhere.code == 0, "the run finds its lake from any working folder"


def test_the_identity_is_stored_in_full(peerglass: Call) -> None:
    assert peerglass("ingest", "tiny.yaml").code == 0
    run = open_run(trained(peerglass("train", "tiny.yaml")), Path("runs"))
    assert run.identity is not None
    assert name_run(run.config, run.identity).run_id == run.run_id
    there = Lake("lake").versions()
    assert run.versions == {table: there[table] for table in run.tables}
    assert set(run.tables) >= {"prices", "securities", "fundamentals"}
    assert all(len(table.id) > 30 for table in run.tables.values())
    assert list(run.identity.settings["features"]["characteristics"]) == FEATURES
    (run.folder / "run.json").write_text('{"run_id": "tiny-1", "versions": {}}')
    with pytest.raises(DataError, match=r"damaged .* run its config again"):
        open_run(str(run.folder))
