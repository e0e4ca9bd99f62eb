"""Entries of a config's ``models``: the registered model, its options, and how it is fitted.

The lake, folders, tracking and reports use the entry's name; code that builds or fits a model uses the
registered name. Without the key ``model``, an entry is the registered model of the same name. Models are
imported when their settings are asked for, because that imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from features.options import Options
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.settings import describe, unknown_key

if TYPE_CHECKING:
    from models.fitting.config import FitConfig

OptionsT = TypeVar("OptionsT", bound=Options)
KEY = "model"
"""Key of an entry that names its registered model."""
_NOT_OPTIONS = (KEY, "fit", "init_from")
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,40}$")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a config says of one model, with every default filled in.

    ``init_from`` is the run whose day encoder it is initialised with; None for none, and for models without
    a day encoder.
    """

    registered: str
    options: Options
    fit: FitConfig
    init_from: str | None


def registry_name(config: Config, entry: str) -> str:
    """Return the registered model of an entry of ``models``."""
    return str(config.models[entry].get(KEY, entry))


def model_settings(config: Config, entry: str, origin: str = "config") -> ModelSettings:
    """Return the settings of an entry of ``models``; a ConfigError names ``origin``."""
    from models.fitting.config import FitConfig
    from models.registry import MODELS

    given, registered, path = config.models[entry], registry_name(config, entry), f"models.{entry}"
    where = f"{origin}: {path}"
    if registered not in MODELS:
        if KEY in given:
            raise ConfigError(unknown_key(f"{where}.{KEY} {registered!r}", registered, MODELS))
        hint = f"(A variant names its model with the key '{KEY}'.)"
        raise ConfigError(f"{unknown_key(where, registered, MODELS)} {hint}")
    about_name = _wrong_name(entry, registered, MODELS)
    if about_name is not None:
        raise ConfigError(f"{where} {about_name}.")
    model = MODELS[registered]
    own = {key: value for key, value in given.items() if key not in _NOT_OPTIONS}
    options = _parse(model.config, own, origin, path)
    fit = given.get("fit", {})
    if not isinstance(fit, dict):
        raise ConfigError(f"{where}.fit is {fit!r}; give a mapping such as {{epochs: 10}}.")
    of_days = [
        *(key for key in ("pretrain", "layer_decay") if key in fit),
        *(key for key in ("init_from",) if key in given),
    ]
    if of_days and not model.has_day_encoder:
        with_days = ", ".join(key for key, one in MODELS.items() if one.has_day_encoder)
        raise ConfigError(
            f"{where} sets {of_days[0]}, which needs a day encoder, but the model has none; models with one "
            f"are {with_days}."
        )
    init_from = given.get("init_from", config.init_from) if model.has_day_encoder else None
    return ModelSettings(
        registered,
        options,
        _parse(FitConfig, {**config.fit, **fit}, origin, f"{path}.fit"),
        None if init_from is None else str(init_from),
    )


def check_models(config: Config, origin: str) -> None:
    """Check the settings of models and of their fitting, and the names of features."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from models.fitting.config import FitConfig

    _parse(FitConfig, config.fit, origin, "fit")
    for entry in config.models:
        model_settings(config, entry, origin)
    wanted: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        "channels": (config.features.channels or (), CHANNELS),
        "characteristics": (config.features.characteristics or (), CHARACTERISTICS),
    }
    for kind, (names, known) in wanted.items():
        for name in names:
            if name not in known:
                raise ConfigError(unknown_key(f"{origin}: features.{kind}.{name}", name, known))


def _parse(cls: type[OptionsT], given: Mapping[str, Any], origin: str, path: str) -> OptionsT:
    try:
        return cls.model_validate(given)
    except ValidationError as error:
        raise ConfigError(describe(error, origin, given, path)) from None


def _wrong_name(entry: str, registered: str, known: Collection[str]) -> str | None:
    """Why an entry cannot have its name, as half a sentence; None if it can."""
    if entry == registered:
        return None
    if entry in known:
        return f"is the name of a model, but its key '{KEY}' is {registered}; give the variant another name"
    if _NAME.match(entry) is None:
        return (
            "is not a valid name; use lower-case letters, digits, _ and -, starting with a letter, "
            "41 characters at most"
        )
    return None
