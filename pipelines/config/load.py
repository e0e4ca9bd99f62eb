"""Loading a configuration: ``extends``, ``--set``, environment variables, and validation."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from pipelines.config.errors import describe, unknown_key
from pipelines.config.models import KEY, registry_name, validation_error
from pipelines.config.schema import Config
from pipelines.config.schema import Path as SettingPath
from pipelines.errors import ConfigError
from pipelines.lake.options import validation_error as lake_validation_error
from pipelines.secrets import REFERENCE, register_all_secrets, register_secrets
from pipelines.settings import Settings

DataclassT = TypeVar("DataclassT")
_NOT_OPTIONS = (KEY, "fit", "init_from")  # keys of a model's entry that are not options of the model


def load_config(path: Path, overrides: Iterable[str] = (), *, models: bool = True) -> Config:
    """Read, merge and check a configuration file.

    Parameters
    ----------
    path
        YAML file. A file named in ``extends:`` (relative to this file) is read first and then overridden. A
        key under ``models`` that is null removes an inherited model. ``${NAME}`` in a string is replaced by
        the environment variable, in memory only; ``${NAME:-default}`` has a default for an unset variable.
    overrides
        ``a.b=c`` pairs, applied last; ``c`` is parsed as YAML.
    models
        Whether to check the settings of models, of their fitting and of features. A command that uses none of
        them saves the import of torch.

    Raises
    ------
    ConfigError
        If a setting is invalid; the message names the key's path, the given value and what is allowed. Also
        if an environment variable is unset and has no default.
    """
    raw = _read(path, seen=())
    for override in overrides:
        raw = _merge(raw, _parse_override(override))
    written: dict[SettingPath, str] = {}
    raw = _resolve(raw, (), written, str(path))
    if isinstance(raw.get("models"), dict):
        raw["models"] = {name: settings for name, settings in raw["models"].items() if settings is not None}
    config = check_config(raw, origin=str(path), models=models)
    config.remember(written)
    return config


def check_config(raw: Mapping[str, Any], *, origin: str, models: bool = True) -> Config:
    """Validate merged settings; the error of an invalid setting is one sentence.

    ``models`` is that of `load_config`.
    """
    register_all_secrets(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe(error, origin, raw)) from None
    if models:
        _check_models(config, origin)
    _check_settings(config, origin)
    return config


def override_backtest(config: Config, overrides: Iterable[str]) -> Config:
    """Change the backtest settings of a finished run's config.

    Parameters
    ----------
    config
        The run's config.
    overrides
        ``backtest.b=c`` pairs, as in `load_config`.

    Raises
    ------
    ConfigError
        If an override changes anything else, because the forecasts are fixed.
    """
    raw = config.model_dump(mode="json")
    for override in overrides:
        wanted = _parse_override(override)
        if set(wanted) != {"backtest"}:
            raise ConfigError(
                f"--set {override!r} on a finished run: only backtest.* can be set, because its forecasts "
                "are fixed; "
                "to change anything else, use 'peerglass train CONFIG --set ...'."
            )
        raw = _merge(raw, wanted)
    checked = check_config(raw, origin="--set")
    return config.model_copy(update={"backtest": checked.backtest})  # keeps the references to the environment


def build_settings(cls: type[DataclassT], given: Mapping[str, Any], where: str) -> DataclassT:
    """Build a settings dataclass from a mapping; refuse unknown keys and wrong types."""
    assert dataclasses.is_dataclass(cls)
    known = [field.name for field in dataclasses.fields(cls)]
    hints = get_type_hints(cls)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(unknown_key(f"{where}.{key}", str(key), known))
        for nested in (hints[key], *get_args(hints[key])):
            if isinstance(value, Mapping) and isinstance(nested, type) and dataclasses.is_dataclass(nested):
                build_settings(nested, value, f"{where}.{key}")
    try:
        return TypeAdapter(cls).validate_python(dict(given))
    except ValidationError as error:
        raise ConfigError(describe(error, where, given)) from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def digest(value: object) -> str:
    """Return the first ten hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def to_yaml(config: Config) -> str:
    """Return a configuration as YAML text that :func:`load_config` can read.

    References to the environment are kept; a literal secret becomes ``***``.
    """
    return yaml.safe_dump(config.as_written(), sort_keys=False, allow_unicode=True)


def _check_models(config: Config, origin: str) -> None:
    """Check the settings of models and of their fitting, and the names of features."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.fitting.fit import FitConfig
    from models.registry import MODELS

    build_settings(FitConfig, config.fit, f"{origin}: fit")
    for name, settings in config.models.items():
        registered = registry_name(config, name)
        if registered not in MODELS:
            raise ConfigError(_unknown_model(f"{origin}: models.{name}", registered, settings, MODELS))
        about_name = validation_error(name, registered, MODELS)
        if about_name is not None:
            raise ConfigError(f"{origin}: models.{name} {about_name}.")
        own = {key: value for key, value in settings.items() if key not in _NOT_OPTIONS}
        build_settings(MODELS[registered].config, own, f"{origin}: models.{name}")
        fit = settings.get("fit", {})
        if not isinstance(fit, dict):
            raise ConfigError(
                f"{origin}: models.{name}.fit is {fit!r}; give a mapping such as {{epochs: 10}}."
            )
        build_settings(FitConfig, {**config.fit, **fit}, f"{origin}: models.{name}.fit")
        about_days = [key for key in ("pretrain", "layer_decay") if key in fit]
        about_days += ["init_from"] if "init_from" in settings else []
        if about_days and not MODELS[registered].has_day_encoder:
            with_days = ", ".join(key for key, entry in MODELS.items() if entry.has_day_encoder)
            raise ConfigError(
                f"{origin}: models.{name} sets {about_days[0]}, which needs a day encoder, but the model has "
                f"none; models with one are {with_days}."
            )
    wanted: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        "channels": (config.features.channels or (), CHANNELS),
        "characteristics": (config.features.characteristics or (), CHARACTERISTICS),
    }
    for kind, (names, known) in wanted.items():
        for name in names:
            if name not in known:
                raise ConfigError(unknown_key(f"{origin}: features.{kind}.{name}", name, known))


def _check_settings(config: Config, origin: str) -> None:
    """Check the lake, the delays, the calendar and the simulated market."""
    about_lake = lake_validation_error(config.lake, config.lake_options)
    if about_lake is not None:
        raise ConfigError(f"{origin}: {about_lake}.")
    if min(config.label.delays) < 0:
        raise ConfigError(
            f"{origin}: label.extra_delays is {list(config.label.extra_delays)}; delays must be at least 0."
        )
    if config.quality.calendar is not None:
        from pipelines.quality.calendars import require_calendar

        require_calendar(config.quality.calendar)
    if config.source.kind == "simulated":
        from pipelines.sources.simulated.source import MarketConfig

        build_settings(MarketConfig, config.source.market, f"{origin}: source.market")


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(
            f"{path} extends itself through {' -> '.join(p.name for p in seen)}; remove one of these extends."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no config file at {path}; check the path, or start from configs/demo.yaml."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a text file: {error}.") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_what_is_wrong(error)}.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, but it holds {type(raw).__name__}.")
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    return _merge(_read(path.parent / str(parent), (*seen, path.resolve())), raw)


def _what_is_wrong(error: yaml.YAMLError) -> str:
    """Return the problem and its position, without the text of the line, which may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    problem = re.sub(r"'[^'<]{4,}'", "'...'", str(error.problem))
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Override ``base`` by ``top``: mappings are merged, everything else is replaced.

    A section whose ``kind``, ``scheme`` or ``model`` changes is replaced as a whole.
    """
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and _same_thing(old, value):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _same_thing(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(new.get(tag, old.get(tag)) == old.get(tag) for tag in ("kind", "scheme", KEY))


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form a.b=c; for example --set fit.epochs=5.")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(
            f"--set {key}=...: the value is not valid YAML; quote it if it holds special characters."
        ) from None
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    result: dict[str, Any] = nested
    return result


def _resolve(
    value: Any,  # noqa: ANN401 (YAML holds anything)
    path: SettingPath,
    written: dict[SettingPath, str],
    origin: str,
) -> Any:  # noqa: ANN401
    """Replace references to the environment, record them in ``written``, and register their secrets."""
    if isinstance(value, dict):
        return {key: _resolve(item, (*path, key), written, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, (*path, i), written, origin) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    for reference in REFERENCE.finditer(value):
        name, default = reference.groups()
        if name in os.environ:
            found[name] = os.environ[name]
        elif default is None:
            raise ConfigError(
                f"{origin}: {'.'.join(map(str, path))} refers to the environment variable {name}, which is "
                f"not set: set it, or write ${{{name}:-}} with a default after the dash."
            )
    resolved = REFERENCE.sub(lambda match: os.environ.get(match[1], match[2] or ""), value)
    register_secrets(value, resolved, found)
    if resolved != value:
        written[path] = value
    return resolved


def _unknown_model(where: str, registered: str, settings: Settings, known: Iterable[str]) -> str:
    if KEY in settings:
        return unknown_key(f"{where}.{KEY} {registered!r}", registered, known)
    return f"{unknown_key(where, registered, known)} (A variant names its model with the key '{KEY}'.)"


def settings_of(config: Config, model: str) -> tuple[Settings, Settings]:
    """Return a model's own settings and its fitting settings, with all defaults filled in."""
    from models.fitting.fit import FitConfig
    from models.registry import MODELS

    settings = config.models[model]
    own = {key: value for key, value in settings.items() if key not in _NOT_OPTIONS}
    options = build_settings(MODELS[registry_name(config, model)].config, own, f"models.{model}")
    fit = build_settings(FitConfig, {**config.fit, **settings.get("fit", {})}, f"models.{model}.fit")
    return dataclasses.asdict(options), dataclasses.asdict(fit)


def init_from_of(config: Config, model: str) -> str | None:
    """Return the run whose day encoder a model is initialised with; None if there is none."""
    from models.registry import MODELS

    name = config.models[model].get("init_from", config.init_from)
    has_day_encoder = MODELS[registry_name(config, model)].has_day_encoder
    return str(name) if name is not None and has_day_encoder else None
