"""Loading a configuration: ``extends``, ``--set``, environment variables, and validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.config.models import check_models
from pipelines.config.reading import (
    absolute_paths,
    default_paths,
    merge_settings,
    parse_override,
    read_settings,
    resolve_references,
)
from pipelines.config.schema import Config
from pipelines.config.schema import Path as SettingPath
from pipelines.errors import ConfigError
from pipelines.lake.options import is_url, unusable_part
from pipelines.lake.options import validation_error as lake_validation_error
from pipelines.secrets import register_all_secrets
from pipelines.settings import describe


def load_config(
    path: Path, overrides: Iterable[str] = (), *, root: Path | None = None, models: bool = True
) -> Config:
    """Read, merge and check a configuration file.

    A relative path in a file is relative to the file's ``root``, by default the folder of the file. Paths
    that no file sets are relative to the root of ``path``, and so is a relative path from an environment
    variable. All paths of the result are absolute.
    """
    given = [parse_override(override) for override in overrides]
    root = next((Path(one["root"]) for one in given if isinstance(one.get("root"), str)), root)
    raw = read_settings(path, root)
    root = Path(raw["root"])
    for one in given:
        raw = merge_settings(raw, one)
    written: dict[SettingPath, str] = {}
    raw = resolve_references(raw, (), written, str(path))
    raw = merge_settings(default_paths(root), absolute_paths(raw, root))
    if isinstance(raw.get("models"), dict):
        raw["models"] = {name: settings for name, settings in raw["models"].items() if settings is not None}
    config = check_config(raw, origin=str(path), models=models)
    config.remember(written)
    return config


def check_config(raw: Mapping[str, Any], *, origin: str, models: bool = True) -> Config:
    """Validate merged settings; the error of an invalid setting is one sentence.

    Paths stay as they are. ``models`` is that of `load_config`.
    """
    register_all_secrets(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe(error, origin, raw)) from None
    if models:
        check_models(config, origin)
    _check_settings(config, origin)
    return config


def override_backtest(config: Config, overrides: Iterable[str]) -> Config:
    """Change the backtest settings of a finished run's config."""
    raw = config.model_dump(mode="json")
    for override in overrides:
        wanted = parse_override(override)
        if set(wanted) != {"backtest"}:
            raise ConfigError(
                f"--set {override!r} on a finished run: only backtest.* can be set, because its forecasts "
                "are fixed; "
                "to change anything else, use 'peerglass train CONFIG --set ...'."
            )
        raw = merge_settings(raw, wanted)
    checked = check_config(raw, origin="--set")
    return config.model_copy(update={"backtest": checked.backtest})  # keeps the references to the environment


def digest(value: object) -> str:
    """Return the first ten hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def to_yaml(config: Config, folder: Path | None = None) -> str:
    """Return a configuration as YAML text that :func:`load_config` can read.

    References to the environment are kept; a literal secret becomes ``***``. A config that was built in
    memory may have relative paths and no root: they are written relative to ``folder``, if that is given.
    """
    settings = config.as_written()
    if config.root is None and folder is not None:
        settings = absolute_paths(settings, folder) | {"root": str(folder)}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _check_settings(config: Config, origin: str) -> None:
    """Check the lake, the stores, the delays and the calendar."""
    about_lake = lake_validation_error(config.lake, config.lake_options)
    if about_lake is not None:
        raise ConfigError(f"{origin}: {about_lake}.")
    if not is_url(config.lake) and (unusable := unusable_part(config.lake)):
        raise ConfigError(f"{origin}: lake is {config.lake}, {unusable}.")
    copy = config.output_store
    about_copy = lake_validation_error(
        copy.url or "", copy.options, "output_store.url", "output_store.options"
    ) or (None if copy.url is None or is_url(copy.url) else f"output_store.url is {copy.url!r}, not a URL")
    if about_copy is not None:
        raise ConfigError(f"{origin}: {about_copy}.")
    store, _, query = config.tracking.uri.partition("?")
    store = store if "/" not in query else config.tracking.uri  # a question mark in a folder's name
    if store.startswith("sqlite:") and (unusable := unusable_part(store)):
        raise ConfigError(f"{origin}: tracking.uri is {config.tracking.uri}, {unusable}.")
    if min(config.label.delays) < 0:
        raise ConfigError(
            f"{origin}: label.extra_delays is {list(config.label.extra_delays)}; delays must be at least 0."
        )
    if config.quality.calendar is not None:
        from pipelines.ingest.calendars import require_calendar

        require_calendar(config.quality.calendar)
