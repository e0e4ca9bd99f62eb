"""Configs: merging, overriding, and error sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config.load import load_config, to_yaml
from pipelines.config.sections import LabelConfig
from pipelines.errors import ConfigError
from pipelines.ingest.calendars import require_calendar
from pipelines.sources.settings import YFinanceSourceConfig

MINIMAL = {
    "name": "tiny",
    "source": {"kind": "sample"},
    "lake": "data/lake/tiny",
    "folds": {"scheme": "expanding", "train": 100, "valid": 20, "test": 20, "embargo": 1},
    "models": {"zero": {}, "ridge": {}},
}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_defaults_are_filled_in_and_the_resolved_text_reads_back_to_the_same_config(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "a.yaml", MINIMAL))
    assert config.label.delay == 1
    assert config.seeds == (0,)
    again = load_config(write(tmp_path, "b.yaml", to_yaml(config)))
    assert again == config


@pytest.mark.parametrize(
    ("given", "clip"),
    [
        ({}, 3.0),
        ({"transform": "zscore"}, 3.0),
        ({"clip": None}, None),
        ({"clip": 2}, 2.0),
        ({"transform": "rank"}, None),
    ],
)
def test_standardised_labels_are_clipped_unless_the_config_says_otherwise(
    given: dict[str, Any], clip: float | None
) -> None:
    label = LabelConfig.model_validate(given)
    assert (label.clip, label.residualise_factors) == (clip, 5)
    assert LabelConfig.model_validate(label.model_dump()) == label, "a resolved config keeps it"


def test_extends_merges_mappings_replaces_lists_and_null_removes_a_model(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", {**MINIMAL, "seeds": [0, 1, 2]})
    child = {"extends": "base.yaml", "seeds": [5], "folds": {"train": 120}, "models": {"zero": None}}
    config = load_config(write(tmp_path, "child.yaml", child))
    assert config.seeds == (5,)
    assert config.folds.model_dump(include={"scheme", "train", "valid"}) == {
        "scheme": "expanding",
        "train": 120,
        "valid": 20,
    }
    assert list(config.models) == ["ridge"]


def test_a_section_of_another_kind_replaces_the_inherited_one(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", {**MINIMAL, "source": {"kind": "files", "prices": "p.csv"}})
    child = {"extends": "base.yaml", "source": {"kind": "sample"}}
    assert load_config(write(tmp_path, "child.yaml", child)).source.kind == "sample"


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", {"extends": "b.yaml"})
    write(tmp_path, "b.yaml", {"extends": "a.yaml"})
    assert "extends itself" in refused(tmp_path / "a.yaml")


def test_set_is_applied_last_and_parsed_as_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", MINIMAL)
    config = load_config(path, ["fit.epochs=3", "models.ridge.alphas=[0.1, 1]", "seeds=[1,2]"])
    assert config.fit == {"epochs": 3}
    assert config.models["ridge"] == {"alphas": [0.1, 1]}
    assert config.seeds == (1, 2)


def test_environment_variables_and_defaults_are_substituted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"kind": "files", "prices": "${PEERGLASS_TEST_PRICES:-here.csv}"}
    path = write(tmp_path, "a.yaml", {**MINIMAL, "source": source})
    monkeypatch.delenv("PEERGLASS_TEST_PRICES", raising=False)
    assert load_config(path).source.prices == f"{tmp_path}/here.csv"  # type: ignore[union-attr]  # of a files source
    monkeypatch.setenv("PEERGLASS_TEST_PRICES", "/there.csv")
    assert load_config(path).source.prices == "/there.csv"  # type: ignore[union-attr]  # of a files source


@pytest.mark.parametrize(
    ("override", "path_named", "hint"),
    [
        ("univers.min_price=1", "univers", "'universe'"),
        ("universe.min_prise=1", "universe.min_prise", "'min_price'"),
        ("folds.embargoo=1", "folds.embargoo", "'embargo'"),
        ("source.knd=1", "source.knd", "'kind'"),
        ("backtest.costs.half_spread=1", "backtest.costs.half_spread", "'half_spread_bps'"),
        ("backtest.books.mine={kind: top_k_long_only, kk: 3}", "backtest.books.mine.kk", "'k'"),
        ("models.rigde={}", "models.rigde", "'ridge'"),
        ("models.ridge.alphaz=[1]", "models.ridge.alphaz", "'alphas'"),
        ("fit.epoch=1", "fit.epoch", "'epochs'"),
        ("models.ridge.fit={patienc: 1}", "models.ridge.fit.patienc", "'patience'"),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_name(
    tmp_path: Path, override: str, path_named: str, hint: str
) -> None:
    message = refused(write(tmp_path, "a.yaml", MINIMAL), override)
    assert path_named in message
    assert hint in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("label.horizon=0", ("label.horizon", "greater than or equal to 1", "0")),
        ("folds={scheme: rolling, train: 9, valid: 9, test: 9}", ("embargo", "required")),
        ("source={kind: bloomberg}", ("source", "bloomberg")),
        ("seeds=[1,1]", ("distinct",)),
        ("models=null", ("models",)),
        ("name=../../etc", ("name",)),
        ("fit.epochs=many", ("fit", "many")),
    ],
)
def test_a_wrong_value_is_reported_with_its_key_and_value(
    tmp_path: Path, override: str, words: tuple[str, ...]
) -> None:
    message = refused(write(tmp_path, "a.yaml", MINIMAL), override)
    for word in words:
        assert word in message


def test_keys_are_text_even_if_yaml_reads_their_word_as_a_truth_value(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.yaml", yaml.safe_dump(MINIMAL) + "features: {expressions: {on: close, one: volume}}\n"
    )
    assert dict(load_config(path).features.expressions) == {"on": "close", "one": "volume"}


def test_invalid_config_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    assert "no config file" in refused(tmp_path / "absent.yaml")
    assert "not valid YAML" in refused(write(tmp_path, "a.yaml", "a: [1"))
    twice = refused(write(tmp_path, "a.yaml", "fit:\n  lr: 0.1\n  epochs: 3\n  lr: 0.2\n"))
    assert "the key lr stands twice in its section (remove one) in line 4, column 3" in twice
    assert "mapping" in refused(write(tmp_path, "b.yaml", "- 1"))
    assert "form a.b=c" in refused(write(tmp_path, "c.yaml", MINIMAL), "fit.epochs")


def test_yaml_cannot_construct_objects(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "name: !!python/object/apply:os.system ['true']")
    assert "not valid YAML" in refused(path)


def test_tickers_that_yaml_reads_as_something_else_are_text(tmp_path: Path) -> None:
    words = ["ON", "NO", "TRUE", "off", "NULL", "1e5", "000660", "7203", "005930", "1_000", "2020-01-01", "A"]
    text = yaml.safe_dump({**MINIMAL, "source": {"kind": "yfinance"}})
    text = text.replace("kind: yfinance", f"kind: yfinance\n  tickers: [{', '.join(words)}]")
    (tmp_path / "a.yaml").write_text(text)
    source = load_config(tmp_path / "a.yaml").source
    assert isinstance(source, YFinanceSourceConfig)
    assert list(source.tickers) == words
    changed = load_config(tmp_path / "a.yaml", ["source.tickers=[ON, 000660]"]).source
    assert isinstance(changed, YFinanceSourceConfig)
    assert changed.tickers == ("ON", "000660")


def test_a_calendar_that_is_nearly_right_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'XNYZ', which is not a calendar .*; did you mean .*XNYS.*\?"):
        require_calendar("XNYZ")


@pytest.mark.parametrize(
    ("retrain", "horizon", "least", "most"),
    [({"when": "monthly"}, 5, 18, 17), ({"when": "sessions", "every": 5}, 1, 4, 3)],
)
def test_a_challenger_can_have_the_sessions_that_a_night_asks_for(
    tmp_path: Path, retrain: dict[str, Any], horizon: int, least: int, most: int
) -> None:
    def nightly(sessions: int, **others: object) -> Path:
        promotion = {"automatic": True, "min_sessions": sessions}
        section = {"retrain": {**retrain, **others}, "promotion": promotion}
        return write(tmp_path, "a.yaml", {**MINIMAL, "label": {"horizon": horizon}, "nightly": section})

    said = refused(nightly(least))
    assert f"min_sessions is {least}, but" in said
    assert f"has at most {most} shadow sessions with a known label" in said
    assert load_config(nightly(most)).nightly.promotion.min_sessions == most
    assert load_config(nightly(least, when="never")).nightly.promotion.automatic


def test_a_proof_needs_trainings_that_are_far_apart(tmp_path: Path) -> None:
    def nightly(every: int) -> Path:
        section = {
            "retrain": {"when": "sessions", "every": every},
            "promotion": {"automatic": True, "proof": True, "margin": 0.02},
        }
        return write(tmp_path, "a.yaml", {**MINIMAL, "label": {"horizon": 2}, "nightly": section})

    assert "proof needs 80 shadow sessions, but" in refused(nightly(82))
    assert load_config(nightly(83)).nightly.promotion.proof
