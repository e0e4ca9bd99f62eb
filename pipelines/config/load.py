"""Reading and checking a configuration: extends, --set, relative paths, the environment and validation.

Of an entry of ``models``, the lake, folders, tracking and reports use the name; code that builds or fits a
model uses the registered name. Without the key ``model``, an entry is the registered model of the same name.
Models are imported when their settings are asked for, because that imports torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from features.options import Options
from pipelines import plugins
from pipelines.config.schema import Config
from pipelines.config.schema import Path as SettingPath
from pipelines.errors import ConfigError
from pipelines.lake.options import is_url, unusable_part
from pipelines.lake.options import validation_error as lake_validation_error
from pipelines.secrets import REFERENCE, register_all_secrets, register_secrets
from pipelines.settings import PathKind, Settings, describe, unknown_key, yaml_problem
from pipelines.sources.base import YAML_LOADER
from pipelines.sources.settings import OWN_SOURCES

if TYPE_CHECKING:
    from models.fitting.config import FitConfig


def load_config(
    path: Path, overrides: Iterable[str] = (), *, root: Path | None = None, models: bool = True
) -> Config:
    """Read, merge and check a configuration file; paths are relative to its root, by default its folder."""
    given = [parse_override(override) for override in overrides]
    root = next((Path(one["root"]) for one in given if isinstance(one.get("root"), str)), root)
    raw = read_settings(path, root)
    root = Path(raw["root"])
    for one in given:
        raw = merge_settings(raw, one)
    raw = plugins.load_named(raw, str(path))
    written: dict[SettingPath, str] = {}
    raw = resolve_references(raw, (), written, str(path))
    raw = merge_settings(default_paths(root), absolute_paths(raw, root))
    removed: set[str] = set()
    if isinstance(raw.get("models"), dict):
        removed = {name for name, settings in raw["models"].items() if settings is None}
        raw["models"] = {name: own for name, own in raw["models"].items() if name not in removed}
    config = check_config(raw, origin=str(path), models=models, removed=removed)
    members = {at: text for at, text in written.items() if at[0] == "models" and at[2:3] == ("members",)}
    config.remember({**written, **{("models", *at[3:]): text for at, text in members.items()}})
    return config


def check_config(
    raw: Mapping[str, Any], *, origin: str, models: bool = True, removed: Collection[str] = ()
) -> Config:
    """Validate merged settings, whose paths stay; ensembles do not add the models that were ``removed``."""
    register_all_secrets(raw)
    raw = plugins.load_named(raw, origin)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe(error, origin, raw)) from None
    if models:
        entries = with_members(config, origin, removed)
        if entries != config.models:
            config = check_config({**raw, "models": entries}, origin=origin, models=False)
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
                "are fixed; to change anything else, use 'peerglass train CONFIG --set ...'."
            )
        raw = merge_settings(raw, wanted)
    checked = check_config(raw, origin="--set")
    return config.model_copy(update={"backtest": checked.backtest})  # keeps the references to the environment


def digest(value: object) -> str:
    """Return the first ten hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def to_yaml(config: Config, folder: Path | None = None) -> str:
    """Return a configuration as YAML text for :func:`load_config`, with references and without secrets."""
    settings = config.as_written()
    if config.root is None and folder is not None:
        settings = absolute_paths(settings, folder) | {"root": str(folder)}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _check_settings(config: Config, origin: str) -> None:
    """Check the lake, the stores, the delays and the calendar."""
    books: dict[str, Any] = {f"backtest.books.{name}": book for name, book in config.backtest.books.items()}
    plugins.require_usable({"source": config.source, **books}, config.plugins, origin)
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


_STORE = re.compile(r"sqlite:///(?:file:)?|file:(?!/)")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")
_NOT_A_FOLDER = (":memory:", "databricks", "uc")  # tracking stores that are neither a URL nor a path
_ANY = "*"  # stands for the names of a mapping, or the places of a list, among the keys of a setting
_OF_MODELS = tuple(  # settings of models have no section in the config
    (keys, PathKind.RUN)
    for keys in (("models", _ANY, "init_from"), ("models", _ANY, "members", _ANY, "init_from"))
)

Place = tuple[tuple[str, ...], PathKind]  # keys of a setting that is a path, outermost first
_TICKERS: Final = "tickers"
_TEXT: Final = "tag:yaml.org,2002:str"


def read_settings(path: Path, root: Path | None = None, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a config file and the files that it extends. Paths become absolute; references are kept."""
    if path.resolve() in seen:
        raise ConfigError(
            f"{path} extends itself through {' -> '.join(p.name for p in seen)}; remove one of these extends."
        )
    raw = read_mapping(path)
    parent = raw.pop("extends", None)
    folder = root or _root(raw.get("root"), path)
    raw = absolute_paths(raw, folder) | {"root": str(folder)}
    if parent is None:
        return raw
    return merge_settings(read_settings(path.parent / str(parent), seen=(*seen, path.resolve())), raw)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, as it is; ConfigError if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no config file at {path}; check the path, or write one "
            "with 'peerglass init prices.csv'."
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name a config file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read as a text file; name a config file.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        raw = _load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {yaml_problem(error)}.") from None
    if not isinstance(raw, dict):
        cure = f"; 'peerglass init {path}' writes one for a file of prices"
        cure = "" if path.suffix in (".yaml", ".yml") else cure
        holds = "is empty" if raw is None else f"holds {type(raw).__name__}"
        raise ConfigError(f"A config must hold a mapping of settings, but {path} {holds}{cure}.")
    return raw


def _load(text: str, key: str = "") -> Any:  # noqa: ANN401 (YAML holds anything)
    """Parse YAML in which tickers are text without quotes as well."""
    loader = YAML_LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_text(node, inside=key == _TICKERS)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _keep_text(node: yaml.Node, *, inside: bool) -> None:
    """Make keys (``on`` too) and items of lists of tickers text, and refuse a mapping with a key twice."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            if isinstance(name, yaml.ScalarNode) and name.value != "<<":
                if name.value in seen:
                    problem = f"the key {name.value} stands twice in its section (remove one)"
                    raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
                seen.add(name.value)
                name.tag = _TEXT
            _keep_text(value, inside=name.value == _TICKERS)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if inside and isinstance(item, yaml.ScalarNode):
                item.tag = _TEXT
            _keep_text(item, inside=False)


def merge_settings(
    base: Mapping[str, Any], top: Mapping[str, Any], section: str | None = None
) -> dict[str, Any]:
    """Override ``base`` by ``top``: mappings are merged, everything else is replaced.

    A section whose ``kind`` or ``scheme`` changes is replaced as a whole, and so is an entry of ``models`` or
    a member of an ensemble whose ``model`` changes. ``section`` is the name of the section that is merged;
    None for the whole config.
    """
    merged, tags = dict(base), ("kind", "scheme", *["model"] * (section in ("models", "members")))
    for key, value in top.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            is_same = all(value.get(tag, old.get(tag)) == old.get(tag) for tag in tags)
            value = merge_settings(old, value, key) if is_same else value  # noqa: PLW2901
        merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """Parse ``a.b=c`` of a command line; a relative path in it is relative to the current folder."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form a.b=c; for example --set fit.epochs=5.")
    try:
        parsed = _load(value, key=key.strip().rpartition(".")[2])
    except yaml.YAMLError:
        raise ConfigError(
            f"--set {key}=...: the value is not valid YAML; quote it if it holds special characters."
        ) from None
    return absolute_paths(nested(key.strip().split("."), parsed), Path.cwd())


def nested(keys: Sequence[str], value: Any) -> dict[str, Any]:  # noqa: ANN401 (YAML holds anything)
    """Return ``{a: {b: value}}`` for the keys a and b."""
    first, *below = keys
    return {first: nested(below, value) if below else value}


def resolve_references(
    value: Any,  # noqa: ANN401 (YAML holds anything)
    path: SettingPath,
    written: dict[SettingPath, str],
    origin: str,
) -> Any:  # noqa: ANN401
    """Replace references to the environment, record them in ``written``, and register their secrets."""
    if isinstance(value, dict):
        return {key: resolve_references(item, (*path, key), written, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_references(item, (*path, i), written, origin) for i, item in enumerate(value)]
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


def _root(given: object, path: Path) -> Path:
    """Return the absolute folder that relative paths in a file are relative to."""
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"{path}: root is {given!r}; give a folder, relative to the file, such as '..'.")
    resolved = str(resolve_references(given or ".", ("root",), {}, str(path)))
    return Path(os.path.normpath(path.parent.absolute() / Path(resolved).expanduser()))


def absolute_paths(settings: Mapping[str, Any], folder: Path) -> Settings:
    """Make the relative paths in the settings of a config absolute."""
    own = [place for source in OWN_SOURCES.values() for place in _places(source, ("source",))]
    changed = dict(settings)
    for keys, kind in (*_places_of_config(), *own, *_OF_MODELS):
        changed = _change(changed, keys, functools.partial(absolute, kind=kind, folder=folder))
    if isinstance(given := changed.get("plugins"), list | tuple):
        places = (absolute(one, PathKind.PATH, folder) if plugins.is_file(one) else one for one in given)
        changed["plugins"] = list(places)
    return changed


def _change(value: Any, keys: tuple[str, ...], change: Callable[[str], str]) -> Any:  # noqa: ANN401 (YAML)
    """Change the texts at a place in nested settings; a text alone may stand for a list or mapping."""
    if isinstance(value, Mapping) and keys:
        names = value if keys[0] == _ANY else {keys[0]} & value.keys()
        return {**value, **{name: _change(value[name], keys[1:], change) for name in names}}
    if isinstance(value, list | tuple) and keys[:1] == (_ANY,):
        return [_change(one, keys[1:], change) for one in value]
    return change(value) if isinstance(value, str) and {*keys} <= {_ANY} else value


def absolute(text: str, kind: PathKind, folder: Path) -> str:
    """Make the text of one setting absolute, if it is a relative path and no URL or run's name."""
    reference = REFERENCE.match(text)
    if reference is not None:
        name, default = reference.groups()
        if not default:
            return text
        return f"${{{name}:-{absolute(default, kind, folder)}}}{text[reference.end() :]}"
    if kind is PathKind.STORE:
        prefix = _STORE.match(text)
        if prefix is not None and not text[prefix.end() :].startswith(_NOT_A_FOLDER):
            return prefix[0] + absolute(text[prefix.end() :], PathKind.PATH, folder)
        if text in _NOT_A_FOLDER:
            return text
    is_path = text and not _SCHEME.match(text)
    if kind is PathKind.RUN:  # a name holds no separator
        is_path = is_path and ("/" in text or text in (".", ".."))
    if not is_path or os.path.isabs(os.path.expandvars(os.path.expanduser(text))):
        return text
    return _joined(folder, text)


def _joined(folder: Path, text: str) -> str:
    """Join a folder and a relative path. Only its first steps are normalised, since a query may follow."""
    while text.startswith(("./", "../")):
        step, _, text = text.partition("/")
        folder = folder.parent if step == ".." else folder
    if text in ("", "."):
        return str(folder)
    return str(folder.parent) if text == ".." else f"{str(folder).rstrip('/')}/{text}"


def default_paths(root: Path) -> Settings:
    """Settings of a config that are paths and have a relative default, as absolute paths."""
    found: Settings = {}
    for keys, kind in _places_of_config():
        first: Any = Config.model_fields[keys[0]].default
        default = functools.reduce(lambda section, key: getattr(section, key, None), keys[1:], first)
        if isinstance(default, str):
            found = merge_settings(found, nested(keys, absolute(default, kind, root)))
    return found


@functools.cache
def _places_of_config() -> tuple[Place, ...]:
    return tuple(dict.fromkeys(_places(Config)))


def _places(annotation: Any, keys: tuple[str, ...] = ()) -> Iterator[Place]:  # noqa: ANN401 (any annotation)
    """Paths among the settings of a section, or of a type that is made of sections."""
    if get_origin(annotation) is Annotated:
        yield from ((keys, mark) for mark in get_args(annotation) if isinstance(mark, PathKind))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from (((*keys, name), mark) for mark in field.metadata if isinstance(mark, PathKind))
            yield from _places(field.annotation, (*keys, name))
    else:
        below = (*keys, _ANY) if get_origin(annotation) in (dict, Mapping, tuple) else keys
        for part in get_args(annotation):
            yield from _places(part, below)


OptionsT = TypeVar("OptionsT", bound=Options)
KEY = "model"  # key of an entry that names its registered model
OF = "of"  # key under which the settings of an ensemble's members are recorded, in their order
_NOT_OPTIONS = (KEY, "fit", "init_from")
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,40}$")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a config says of one model, with every default filled in, and the run it starts from."""

    registered: str
    options: Options
    fit: FitConfig
    init_from: str | None


def registry_name(config: Config, entry: str) -> str:
    """Return the registered model of an entry of ``models``."""
    return str(config.models[entry].get(KEY, entry))


def members_of(config: Config, entry: str) -> tuple[str, ...]:
    """Return the entries of ``models`` that an ensemble combines; none for other models."""
    return tuple(getattr(model_settings(config, entry).options, "members", ()))


def with_members(config: Config, origin: str, removed: Collection[str] = ()) -> dict[str, Settings]:
    """Return ``models`` with the members of ensembles that it does not list, after all others.

    A model that the config has ``removed`` (``lightgbm: null``) is no member by default.
    """
    from models.registry import MODELS

    entries, known = dict(config.models), {*config.models, *MODELS}
    for entry, given in config.models.items():
        where, registered = f"{origin}: models.{entry}.members", registry_name(config, entry)
        if registered not in MODELS or MODELS[registered].kind != "ensemble":
            continue
        if "fit" in given:
            raise ConfigError(
                f"{origin}: models.{entry}.fit: an ensemble is not trained; give fit to its members."
            )
        by_default = [name for name in MODELS[registered].config().members if name not in removed]
        wanted = given.get("members", by_default)
        if isinstance(wanted, Mapping):  # null removes a member, as it does an entry of models
            wanted = {member: own for member, own in wanted.items() if own is not None}
            names = list(wanted)
        elif isinstance(wanted, list | tuple):
            names = list(map(str, wanted))
            wanted = {name: {} for name in names}
        if not isinstance(wanted, Mapping) or not wanted:
            raise ConfigError(f"{where} is {wanted!r}; list the names of models, such as [ridge, lightgbm].")
        for member, own in wanted.items():
            if not isinstance(own, Mapping):
                raise ConfigError(
                    f"{where}.{member} is {own!r}; give its settings, or {{}} for the defaults."
                )
            if member in removed and not own:
                raise ConfigError(
                    f"{where} names {member}, which models.{member}: null removes; leave out one of the two."
                )
            if member not in known and KEY not in own:
                raise ConfigError(unknown_key(f"{where} {member!r}", str(member), known))
            if member in entries and own and own != entries[member]:
                raise ConfigError(
                    f"{where}.{member} has other settings than models.{member}; give them in one of the two."
                )
            name = str(entries.get(member, {}).get(KEY, own.get(KEY, member)))
            if name in MODELS and MODELS[name].kind == "ensemble":
                raise ConfigError(f"{where}: {member} is an ensemble itself; name its members instead.")
            entries.setdefault(member, dict(own))
        entries[entry] = {**given, "members": names}
    return entries


def model_settings(config: Config, entry: str, origin: str = "config") -> ModelSettings:
    """Return the settings of an entry of ``models``; a ConfigError names ``origin``."""
    from models.fitting.config import NET_UTILITY, FitConfig
    from models.registry import MODELS

    given, registered, path = config.models[entry], registry_name(config, entry), f"models.{entry}"
    where = f"{origin}: {path}"
    if registered not in MODELS or not plugins.usable(MODELS[registered], config.plugins):
        if KEY in given:
            raise ConfigError(unknown_key(f"{where}.{KEY} {registered!r}", registered, MODELS))
        hint = f"(A variant names its model with the key '{KEY}'.)"
        raise ConfigError(f"{unknown_key(where, registered, MODELS)} {hint}")
    if entry != registered and entry in MODELS:
        raise ConfigError(
            f"{where} is the name of a model, but its key '{KEY}' is {registered}; give the variant another "
            "name."
        )
    if entry != registered and _NAME.match(entry) is None:
        raise ConfigError(
            f"{where} is not a valid name; use lower-case letters, digits, _ and -, starting with a letter, "
            "41 characters at most."
        )
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
    fitting = _parse(FitConfig, {**model.build.fit_defaults, **config.fit, **fit}, origin, f"{path}.fit")
    label = config.label
    trades_daily = model.kind == "neural" and fitting.loss == NET_UTILITY
    if trades_daily and (label.horizon != 1 or label.forecast_frequency != "daily"):
        raise ConfigError(
            f"{where}.fit.loss is {NET_UTILITY}, whose book trades every session, and label.horizon is "
            f"{label.horizon} and label.forecast_frequency {label.forecast_frequency}; set label.horizon to "
            "1 and label.forecast_frequency to daily, or use the loss sharpe."
        )
    return ModelSettings(registered, options, fitting, None if init_from is None else str(init_from))


def check_models(config: Config, origin: str) -> None:
    """Check the settings of models and of their fitting, and the names of features."""
    from features.library.sets import bases_of, channels_of, characteristics_of, hidden
    from models.fitting.config import FitConfig

    _parse(FitConfig, config.fit, origin, "fit")
    for entry in config.models:
        model_settings(config, entry, origin)
    try:
        every = [known(config.features.expressions) for known in (channels_of, characteristics_of)]
        registries = [known.keys() - hidden(config.plugins) for known in every]
    except ValueError as error:
        raise ConfigError(f"{origin}: features.expressions: {error}.") from None
    given = {"channels": config.features.channels, "characteristics": config.features.characteristics}
    for (kind, names), known in zip(given.items(), registries, strict=True):
        for name in names or ():
            if name not in known:
                raise ConfigError(unknown_key(f"{origin}: features.{kind}.{name}", name, known))
    try:
        bases_of(config.features.channels or ())
    except ValueError as error:
        raise ConfigError(f"{origin}: features.channels: {error}.") from None


def _parse(cls: type[OptionsT], given: Mapping[str, Any], origin: str, path: str) -> OptionsT:
    try:
        return cls.model_validate(given)
    except ValidationError as error:
        raise ConfigError(describe(error, origin, given, path)) from None
