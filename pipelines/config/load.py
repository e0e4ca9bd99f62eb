"""Loading a configuration: ``extends``, ``--set``, environment variables, and validation."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from features.options import UNKNOWN_KEY
from pipelines.config.models import KEY, registry_name, validation_error
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
from pipelines.settings import Settings

DataclassT = TypeVar("DataclassT")
_NOT_OPTIONS = (KEY, "fit", "init_from")  # keys of a model's entry that are not options of the model


def load_config(
    path: Path, overrides: Iterable[str] = (), *, root: Path | None = None, models: bool = True
) -> Config:
    """Read, merge and check a configuration file.

    A relative path in a file is relative to the file's ``root``, by default the folder of the file. Paths
    that no file sets are relative to the root of ``path``, and so is a relative path from an environment
    variable. All paths of the result are absolute.

    Parameters
    ----------
    path
        YAML file. A file named in ``extends:`` (relative to this file) is read first and then overridden. A
        key under ``models`` that is null removes an inherited model. ``${NAME}`` in a string is replaced by
        the environment variable, in memory only; ``${NAME:-default}`` has a default for an unset variable.
    overrides
        ``a.b=c`` pairs, applied last; ``c`` is parsed as YAML. They come from a command line, so paths in
        them are relative to the current folder.
    root
        Folder used instead of the root of ``path``; an override of ``root`` comes first.
    models
        Whether to check the settings of models, of their fitting and of features. A command that uses none of
        them saves the import of torch.

    Raises
    ------
    ConfigError
        If a setting is invalid; the message names the key's path, the given value and what is allowed. Also
        if an environment variable is unset and has no default.
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


def build_settings(cls: type[DataclassT], given: Mapping[str, Any], where: str) -> DataclassT:
    """Build a settings dataclass from a mapping; refuse unknown keys and wrong types."""
    assert dataclasses.is_dataclass(cls)
    known = [field.name for field in dataclasses.fields(cls)]
    hints, adapter = _types(cls)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(unknown_key(f"{where}.{key}", str(key), known))
        for nested in (hints[key], *get_args(hints[key])):
            if isinstance(value, Mapping) and isinstance(nested, type) and dataclasses.is_dataclass(nested):
                build_settings(nested, value, f"{where}.{key}")
    try:
        built: DataclassT = adapter.validate_python(dict(given))
    except ValidationError as error:
        raise ConfigError(describe(error, where, given)) from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return built


@functools.lru_cache(maxsize=256)
def _types(cls: type[Any]) -> tuple[dict[str, Any], TypeAdapter[Any]]:
    """Return the types of a dataclass's fields, and what checks values against them; both are slow."""
    return get_type_hints(cls), TypeAdapter(cls)


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
    if config.source.kind == "simulated":
        from pipelines.sources.simulated.source import MarketConfig

        build_settings(MarketConfig, config.source.market, f"{origin}: source.market")


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


RENAMED: Mapping[str, str | tuple[str, ...]] = {
    "label.decide": "label.forecast_frequency",
    "label.beyond_factors": "label.residualise_factors",
    "label.also_delays": "label.extra_delays",
    "label.unknown_ending_return": "label.unknown_delisting_return",
    "features.transform.indicator": "features.transform.add_indicator",
    "source.zero_is_unknown": "source.zero_means_missing",
    "source.assumed_lag_days": "source.reporting_lag_days",
    "source.shares_stated": "source.share_counts_as_of",
    "source.batch": "source.batch_size",
    "workers": "execution.workers",
    "audit.times": "audit.sessions",
    "models.*.day_layers": "models.*.encoder.layers",
    "models.*.heads": ("models.*.encoder.heads", "models.*.peer_heads"),
    "models.*.dropout": ("models.*.encoder.dropout", "models.*.peer_dropout"),
    **{
        f"models.*.{option}": f"models.*.encoder.{option}"
        for option in (
            *("width", "layers", "causal", "pooling", "positions"),
            *("kernel", "radius", "temperature", "norm", "activation"),
        )
    },
}
"""Old path of a key -> its new path or paths. The error sentence of an old key names the new one.

``*`` matches one part, such as a model's name: ``models.*.width`` -> ``models.*.encoder.width``. An entry
applies only where the section has the new key: the example does not apply to models without an encoder.
"""


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is unknown, and which one was probably meant."""
    names = sorted(known)
    new = _new_path(where.rpartition(": ")[2], names)
    if new is not None:
        return f"{where} is now called {new}; rename the key."
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(names)}."
    return f"{where} is not a known name; {hint}"


def _new_path(path: str, known: Iterable[str]) -> str | None:
    """Look an unknown key up in `RENAMED`; None if it is not there, or not a key of this section."""
    parts = path.split(".")
    *section, _ = parts
    names = []
    for old, new in RENAMED.items():
        old_parts = old.split(".")
        if len(old_parts) != len(parts) or any(
            a not in ("*", b) for a, b in zip(old_parts, parts, strict=True)
        ):
            continue
        for one in [new] if isinstance(new, str) else new:
            new_parts = [b if a == "*" else a for a, b in itertools.zip_longest(one.split("."), parts) if a]
            moved = new_parts[: len(section)] != section
            if moved or new_parts[len(section)] in known:
                names.append(".".join(new_parts))
    return " and ".join(names) or None


def describe(error: ValidationError, origin: str, raw: Any) -> str:  # noqa: ANN401 (YAML holds anything)
    """Describe one problem of a validation in one sentence: the first unknown key, else the first problem."""
    problems = error.errors()
    problem = next((p for p in problems if p["type"] == UNKNOWN_KEY), problems[0])
    if problem["type"] == UNKNOWN_KEY:
        context = problem["ctx"]
        return unknown_key(f"{origin}: {_key_path((*problem['loc'], context['key']), raw)}", **context)
    where = _key_path(problem["loc"], raw)
    given = "" if problem["type"] == "missing" else f" (given: {problem['input']!r})"
    message = problem["msg"].removeprefix("Value error, ")
    more = f" {len(problems) - 1} more problem(s) follow." if len(problems) > 1 else ""
    return f"{origin}: {where or 'settings'}: {message}{given}.{more}"


def _key_path(location: Iterable[str | int], raw: Any) -> str:  # noqa: ANN401 (YAML holds anything)
    """Convert pydantic's location of a problem to a key's path, without the tags of unions."""
    path: list[str] = []
    for part in location:
        if isinstance(raw, Mapping) and part not in raw and part in (raw.get("kind"), raw.get("scheme")):
            continue
        if isinstance(raw, Mapping):
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int):
            raw = raw[part]
        path.append(str(part))
    return ".".join(path)
