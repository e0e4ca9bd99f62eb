"""What the nights trade, and a config that changed between nights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl

from backtest.books.book import Book
from pipelines.config.load import members_of, model_settings
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.files import write_text
from pipelines.format import abbreviate
from pipelines.lake.lake import Lake
from pipelines.nightly.result import FINISHED, ModelVersion, NightFinding, nights_folder, read_nights
from pipelines.nightly.versions import champion, open_version
from pipelines.run.identity import setting_changes
from pipelines.settings import Settings, masked_settings

_SHOWN: Final = 8  # maximum number of changes in a sentence
_ACCEPTED: Final = "accepted.json"


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """Settings that decide the orders and differ from those of the last night or training."""

    since: str
    phrases: tuple[str, ...]

    def __str__(self) -> str:
        return f"The config has changed since {self.since}: {abbreviate(self.phrases, _SHOWN)}."


def traded_settings(config: Config) -> Settings:
    """Return the settings that decide what the nights trade: signals, book and its terms."""
    name, book = nightly_book(config)
    terms = {"costs", "execution", "capital", "delay"}
    traded = {
        "book": {"name": name, **book.model_dump(mode="json")},
        "backtest": config.backtest.model_dump(mode="json", include=terms),
        "account": {"filled_by": filled_by(config), "min_trade": config.nightly.account.min_trade},
    }
    return trained_settings(config, nightly_model(config)) | _plain(traded)


def filled_by(config: Config) -> Literal["rule", "fills", "positions"]:
    """What says which trades the account has made."""
    account = config.nightly.account
    return "fills" if account.fills else "positions" if account.positions else "rule"


def trained_settings(config: Config, model: str) -> Settings:
    """Return the settings that decide the signals of a model: universe, features, label, model and seeds."""
    settings = {
        "universe": config.universe.model_dump(mode="json"),
        "features": config.features.deciding(),
        "label": config.label.model_dump(mode="json", exclude={"extra_delays"}),
        "model": {"name": model, **_model(config, model)},
        "seeds": list(config.seeds),
    }
    return _plain(settings)


def _plain(settings: Settings) -> Settings:
    """Settings as they are stored: plain JSON values, without secrets."""
    return dict(masked_settings(json.loads(json.dumps(settings))))


def _model(config: Config, entry: str) -> Settings:
    one, members = model_settings(config, entry), members_of(config, entry)
    settings = {"kind": one.registered, **one.options.deciding(), "fit": one.fit.deciding()}
    return settings | ({"of": {name: _model(config, name) for name in members}} if members else {})


def changes_since(config: Config, lake: Lake) -> SettingChanges:
    """Compare a config with the last finished night that has its settings; without one, with the champion."""
    settings_known = pl.col("settings").is_not_null() & pl.col("state").is_in(FINISHED)
    recorded = read_nights(lake, config.name).filter(settings_known)
    if recorded.height:
        before: Settings = json.loads(recorded["settings"][0])
        one = model_settings(config, nightly_model(config))
        for section, computed in (
            (before["model"], one.options.COMPUTED),
            (before["model"]["fit"], one.fit.COMPUTED),
        ):
            section |= {key: value for key, value in computed.items() if key in section}
        since, now = f"the night of {recorded['session'][0]}", traded_settings(config)
        return SettingChanges(since, tuple(setting_changes(_with_new_settings(before, now), now)))
    best = champion(lake, config.name)
    return SettingChanges("no night", ()) if best is None else _since_training(best, config)


def _with_new_settings(before: Settings, now: Settings) -> Settings:
    """Add the settings that did not exist when a night was recorded: an upgrade changes no config."""
    filled = {**now, **before}
    for key in now.keys() & before.keys():
        if isinstance(now[key], dict) and isinstance(before[key], dict):
            filled[key] = _with_new_settings(before[key], now[key])
    return filled


def _since_training(version: ModelVersion, config: Config) -> SettingChanges:
    """Compare a config with the run of a version; no changes if the run is gone, which scoring reports."""
    since = f"the training of the champion {version}"
    try:
        run = open_version(version, Path(config.output))
    except (ConfigError, DataError):
        return SettingChanges(since, ())
    before = trained_settings(run.config, version.model)
    changes = setting_changes(before, trained_settings(config, nightly_model(config)))
    return SettingChanges(since, tuple(changes))


def require_accepted(config: Config, changes: SettingChanges, *, accept: bool) -> None:
    """Refuse changes that nobody has accepted; ``accept`` accepts them."""
    path, text = nights_folder(config) / _ACCEPTED, _acceptance(config, changes)
    if changes.phrases and not accept and not (path.is_file() and path.read_bytes() == text.encode()):
        raise ConfigError(
            f"{changes} This changes what is traded: run the night with --accept-changes, which records the "
            "change, or give the config another name, which starts with an empty book."
        )


def keep_acceptance(config: Config, changes: SettingChanges) -> None:
    """Keep that changes are accepted, for the calls up to the next night."""
    write_text(nights_folder(config) / _ACCEPTED, _acceptance(config, changes))


def _acceptance(config: Config, changes: SettingChanges) -> str:
    return json.dumps({"since": changes.since, "settings": traded_settings(config)}, indent=1, sort_keys=True)


def champion_findings(version: ModelVersion, config: Config) -> list[NightFinding]:
    """Warn if the champion was trained with other settings than those of the config."""
    changes = _since_training(version, config)
    if not changes.phrases:
        return []
    said = f"{changes} The champion keeps the settings of its training until another version is promoted."
    return [NightFinding("champion settings", "warn", said)]


def nightly_book(config: Config) -> tuple[str, Book]:
    """Return the name and the settings of the book that the nights trade."""
    books = config.backtest.books
    name = config.nightly.book or next(iter(books), None)
    if name is None or name not in books:
        raise ConfigError(
            f"nightly.book is {name!r}; it must be one of backtest.books: {', '.join(books) or 'none'}."
        )
    return name, books[name]


def trading_delay(config: Config) -> int:
    """Sessions from the decision to the trade: as in the backtest, but at least 1."""
    delay = config.label.delay if config.backtest.delay is None else config.backtest.delay
    return max(1, delay)


def nightly_model(config: Config) -> str:
    """Entry of ``models`` that is trained and scored every night."""
    model = config.nightly.model or next(iter(config.models))
    if model not in config.models:
        raise ConfigError(
            f"nightly.model is {model!r}, but models has only {', '.join(config.models)}; name one of them."
        )
    return model
