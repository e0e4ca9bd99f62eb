"""Error sentences of configs: paths of unknown keys, and old names of keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from models.registry import MODELS
from pipelines.config import load as errors
from pipelines.config.load import RENAMED, check_config
from pipelines.config.schema import Config
from pipelines.config.sections import AuditConfig, ExecutionConfig, LabelConfig, TransformConfig
from pipelines.errors import ConfigError
from pipelines.settings import Section
from pipelines.sources.settings import FilesSourceConfig, YFinanceSourceConfig

MINIMAL: dict[str, Any] = {
    "name": "tiny",
    "source": {"kind": "files", "prices": "prices.csv"},
    "lake": "data/lake/tiny",
    "folds": {"scheme": "expanding", "train": 100, "valid": 20, "test": 20, "embargo": 1},
    "models": {"zero": {}, "ridge": {}},
}
YAHOO: dict[str, Any] = {"kind": "yfinance", "tickers": ["AAPL"]}


def message_of(**changes: Any) -> str:  # noqa: ANN401 (settings)
    with pytest.raises(ConfigError) as caught:
        check_config({**MINIMAL, **changes}, origin="a.yaml")
    return str(caught.value)


OF_SECTIONS = {old: new for old, new in RENAMED.items() if isinstance(new, str) and "*" not in old}


@pytest.mark.parametrize("old", OF_SECTIONS)
def test_an_old_key_is_reported_with_its_new_name(old: str) -> None:
    outermost, *inner = old.split(".")
    if not inner:
        assert message_of(**{outermost: 1}) == f"a.yaml: {old} is now called {RENAMED[old]}; rename the key."
        return
    *sections, key = inner
    settings = copy.deepcopy(YAHOO if old == "source.batch" else MINIMAL.get(outermost, {}))
    section = settings
    for name in sections:
        section = section.setdefault(name, {})
    section[key] = 1
    message = message_of(**{outermost: settings})
    assert message == f"a.yaml: {old} is now called {RENAMED[old]}; rename the key."


def test_new_names_of_keys_exist_and_old_ones_do_not() -> None:
    sections: dict[str, tuple[type[Section], ...]] = {
        "label": (LabelConfig,),
        "features.transform": (TransformConfig,),
        "source": (FilesSourceConfig, YFinanceSourceConfig),
        "audit": (AuditConfig,),
        "execution": (ExecutionConfig,),
    }
    for old, new in OF_SECTIONS.items():
        section, _, key = new.rpartition(".")
        known = {name for model in sections[section] for name in model.model_fields}
        assert key in known
        parent, _, name = old.rpartition(".")
        assert name not in (known if parent else Config.model_fields)


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        ("temporal_transformer", "width", "{0}.encoder.width"),
        ("temporal_transformer", "dropout", "{0}.encoder.dropout"),
        ("temporal_transformer", "kernel", "{0}.encoder.kernel"),
        ("seq2seq", "heads", "{0}.encoder.heads"),
        ("temporal_peer", "day_layers", "{0}.encoder.layers"),
        ("temporal_peer", "positions", "{0}.encoder.positions"),
        ("temporal_peer", "heads", "{0}.encoder.heads and {0}.peer_heads"),
        ("temporal_peer", "dropout", "{0}.encoder.dropout and {0}.peer_dropout"),
    ],
)
def test_an_option_that_moved_into_the_day_encoder_is_answered_with_its_new_place(
    model: str, old: str, new: str
) -> None:
    section = "models.mine"
    assert message_of(models={"mine": {"model": model, old: 1}}) == (
        f"a.yaml: {section}.{old} is now called {new.format(section)}; rename the key."
    )


def test_every_moved_option_exists_in_its_new_place() -> None:
    moved = {old: (new,) if isinstance(new, str) else new for old, new in RENAMED.items() if "*" in old}
    assert len(moved) > 10
    for old, names in moved.items():
        for new in names:
            path = new.removeprefix("models.*.").split(".")
            config: Any = MODELS["temporal_peer"].config()
            for part in path:
                config = getattr(config, part)
        assert not hasattr(MODELS["temporal_peer"].config(), old.removeprefix("models.*.")), old


def test_an_unknown_option_of_the_day_encoder_is_named_by_its_path() -> None:
    message = message_of(models={"mine": {"model": "temporal_peer", "encoder": {"widht": 8}}})
    assert message == "a.yaml: models.mine.encoder.widht is not a known name; did you mean 'width'?"
    message = message_of(models={"temporal_peer": {"encoder": {"layers": 0}}})
    assert message.startswith("a.yaml: models.temporal_peer.encoder: ")
    assert "layers is 0" in message
    message = message_of(models={"temporal_peer": {"encoder": {"layers": "many"}}})
    assert message.startswith("a.yaml: models.temporal_peer.encoder: layers: ")


def test_a_renamed_option_of_models_is_named_only_where_the_model_has_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "RENAMED", {"models.*.penalties": "models.*.alphas"})
    assert message_of(models={"mine": {"model": "ridge", "penalties": [1]}}) == (
        "a.yaml: models.mine.penalties is now called models.mine.alphas; rename the key."
    )
    message = message_of(models={"zero": {"penalties": [1]}})
    assert message.startswith("a.yaml: models.zero.penalties is not a known name; ")


def test_a_key_that_moved_to_another_section_is_named_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "RENAMED", {"models.*.old": "models.*.fit.epochs", "fit.old": "seeds"})
    moved = message_of(models={"mlp": {"old": 3}})
    assert moved.startswith("a.yaml: models.mlp.old is not a known name; ")  # "fit" is no option of a model
    assert message_of(fit={"old": 3}) == "a.yaml: fit.old is now called seeds; rename the key."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"source": {**MINIMAL["source"], "price": "p"}},
            "source.price is not a known name; did you mean 'prices'?",
        ),
        (
            {"backtest": {"books": {"mine": {"kind": "top_k_long_only", "kk": 3}}}},
            "backtest.books.mine.kk is not a known name; did you mean 'k'?",
        ),
        (
            {"folds": {"scheme": "rolling", "train": 9, "valid": 9, "test": 9}},
            "folds.embargo: Field required.",
        ),
        (
            {"folds": {**MINIMAL["folds"], "train": 0}},
            "folds.train: Input should be greater than or equal to 1 (given: 0).",
        ),
        (
            {"seeds": [0, "x"]},
            "seeds.1: Input should be a valid integer, unable to parse string as an integer (given: 'x').",
        ),
    ],
)
def test_paths_are_those_of_the_file_without_the_kinds_of_unions(
    changes: dict[str, Any], expected: str
) -> None:
    assert message_of(**changes) == f"a.yaml: {expected}"


def test_an_unknown_key_comes_before_other_problems() -> None:
    message = message_of(label={"horizon": 0}, universe={"min_prise": 1})
    assert message == "a.yaml: universe.min_prise is not a known name; did you mean 'min_price'?"
