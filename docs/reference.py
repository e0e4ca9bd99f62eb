"""Write the generated pages of the guide: config reference, command line and feature library.

``make reference`` writes them with ``python docs/reference.py PAGE``; a test compares the files with what
these functions return. The descriptions are the docstrings of the settings, commands and features.
"""

import dataclasses
import datetime as dt
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

Row = tuple[str, str, str, str]
Words = tuple[str, ...]
_WRITE = "python docs/reference.py"
_SCALARS = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "string",
    SecretStr: "secret string",
    dt.date: "date",
}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_TAGS = ("kind", "scheme")
"""Keys whose value decides which other keys a section has."""


def config_page() -> str:
    """Write the config reference: every setting with its type, default and meaning."""
    from models.fitting.config import FitConfig
    from models.registry import MODELS
    from pipelines.config.schema import Config
    from pipelines.sources.base import FLOWS, STOCKS

    parts = [
        "# Config reference",
        f"<!-- Written by `{_WRITE} config > docs/config_reference.md`; a test compares both. -->",
        "Every setting of a config, with its type, its default and its meaning. "
        "[Writing a config](config.md) explains how files, `extends` and `--set` work together. "
        "`peerglass validate CONFIG` prints a config with every default filled in.",
        "## Index",
        _index(Config, FitConfig, MODELS),
        "## Top level",
        _settings_table(_section_rows(Config)),
    ]
    for key, section in _sections(Config):
        parts += [f"## {key}", _prose(section), _settings_table(_section_rows(section))]
    parts += [
        "## fit",
        "How models are trained. An entry of `models` may have a `fit` of its own, which overrides these.",
        _settings_table(_section_rows(FitConfig, nested=True)),
        "## models",
        "The options of each registered model. [Models and when to use which](models.md) compares them.",
    ]
    for name, entry in MODELS.items():
        rows = list(_section_rows(entry.config, nested=True))
        parts += [f"### {name}", _settings_table(rows) if rows else "No options."]
    parts += [
        "## Statement items",
        "The names that `source.items`, `source.units` and `source.zero_means_missing` take.",
        "Over a period: " + ", ".join(f"`{item}`" for item in FLOWS) + ".",
        "At the end of a period: " + ", ".join(f"`{item}`" for item in STOCKS) + ".",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _index(config: type[BaseModel], fit: type[BaseModel], models: Mapping[str, Any]) -> str:
    """One line per section, with a link to it and the names of its settings."""
    named = [("Top level", config), *_sections(config), ("fit", fit)]
    named += [(name, entry.config) for name, entry in models.items()]
    lines = []
    for heading, section in named:
        anchor = re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
        keys = ", ".join(f"`{name}`" for name in section.model_fields) or "no options"
        lines.append(f"- [{heading}](#{anchor}): {keys}")
    return "\n".join(lines)


def commands_page() -> str:
    """Write the page of the command line: every command with its arguments and options."""
    from pipelines.cli.main import app

    parts = [
        "# Command line",
        f"<!-- Written by `{_WRITE} commands > docs/cli.md`; a test compares the file with the code. -->",
        _paragraphs(str(app.info.help)),
        "Every command also takes `--quiet` (print results and errors, no progress), `--debug` (show the "
        "traceback of an error), and `--log text` or `--log json` (how progress is printed on stderr; the "
        "default is text on a terminal, and one JSON object a line in a pipe or file). On a terminal, lines "
        "fit its width, and colours mark what failed; the variable `NO_COLOR` switches the colours off.",
    ]
    for words, function in _commands(app, ("peerglass",)):
        parameters = list(_parameters(function))
        arguments = [one.name for one in parameters if not one.name.startswith("-")]
        options = ["[OPTIONS]"] if len(parameters) > len(arguments) else []
        parts += [f"## {' '.join(words)}", f"```text\n{' '.join([*words, *arguments, *options])}\n```"]
        parts.append(_paragraphs(function.__doc__ or ""))
        if parameters:
            rows = [(f"`{one.name}`", one.default, one.meaning) for one in parameters]
            parts.append(_table(("name", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def _language() -> list[str]:
    """Describe the language of expressions and its words, and the sets of features."""
    from features.library.expressions import LONGEST
    from features.library.operators import OPERATORS, SERIES
    from features.library.sets import RELATIVE, WINDOWS, alpha158
    from features.library.sets import __doc__ as sets

    formulas = {re.sub(r"60$", "N", one.name): one for one in alpha158().values()}
    shown = [
        (f"`{name}`", f"`{re.sub(r'(?<![0-9.])60(?![0-9])', 'N', one.formula)}`", one.family)
        for name, one in formulas.items()
        if not re.search(r"[A-Z](?:5|10|20|30)$", name)
    ]
    return [
        "## Expressions",
        "`features.expressions` adds characteristics to a config as formulas. They are named like any other "
        "characteristic: where `features.characteristics` lists names, those of formulas belong there too. A "
        "name that `features.channels` lists is a channel as well. A formula is part of the run's identity.",
        "```yaml\nfeatures:\n  expressions:\n"
        '    price_volume: "corr(close / delay(close, 1), log(volume / delay(volume, 1)), 20)"\n'
        '    quiet_winners: "rank(delta(close, 21) / close, group) * (1 - rank(std(returns, 63)))"\n```',
        "A formula holds series, numbers, brackets, `+ - * / **`, the comparisons `< <= > >= == !=` (1 if "
        "true, else 0), `and`, `or`, `not`, and the functions below. It is parsed, not run as code, and "
        "nothing in it can read the future. An operation on an unknown value is unknown, and so is a value "
        f"that is not finite. `n` is a whole number of sessions from 1 to {LONGEST}, t included; a session "
        "without a trade takes a place and contributes nothing. A function of `n` sessions needs half of "
        "them to be known, rounded up, and at least two for `std`, `corr`, `cov` and regressions, three for "
        "`skew`. The last group of functions compares the firms of the universe at t; with `group` as second "
        "argument, those of the firm's group (`features.group_by`), unknown where that is. Ranks and places "
        "compare values rounded to float32, so that rounding orders nothing.",
        "Prices and `volume` are adjusted from the first session of the data on. Only their ratios and "
        "changes have a meaning that does not depend on that session: `rank(close)` has none, and the "
        "audit's check `warm_up` can fail on it. Use `raw_close` and `dollar_volume` for levels.",
        _table(("series", "meaning"), [(f"`{name}`", one.meaning) for name, one in SERIES.items()]),
        _table(("function", "meaning"), [(f"`{one.form}`", one.meaning) for one in OPERATORS.values()]),
        "## Alpha158 and Alpha360",
        "Where a config names no characteristics, it has the library's and these (`features.set: "
        "peerglass158`). `peerglass` leaves these out, and `alpha158` the library's. `alpha360` uses the "
        f"channels {', '.join(f'`{name}`' for name in RELATIVE)} of 60 sessions instead, and `return_1` as "
        "the only characteristic, because models need one. `all` uses everything. "
        "Each can also be named in `features.characteristics` or `features.channels`. "
        f"`N` is {', '.join(map(str, WINDOWS[:-1]))} or {WINDOWS[-1]}, and part of the name: `MA20`.",
        _paragraphs((sets or "").partition("\n\n")[2]),
        _table(("name", "formula", "family"), shown),
    ]


def features_page() -> str:
    """Write the page of the feature library: every registered feature, by family."""
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS
    from features.library.registry import NAN_RULE
    from features.panel.asof import STALE_DAYS
    from features.panel.derived import MAX_HALT
    from pipelines.cli.data import needed

    parts = [
        "# Features",
        f"<!-- Written by `{_WRITE} features > docs/features.md`; a test compares both. -->",
        f"The library has {len(CHARACTERISTICS)} characteristics (one number per firm and session, compared "
        f"within the date) and {len(CHANNELS)} channels (the daily series that windows are made of). All are "
        "known at the close of session `t`. They are causal to the bit: no data after `t` changes a value at "
        "or before `t`.",
        "- **Notation.** `x[t]` is the value of session t. `C` is the close, carried forward through halts "
        f"of at most {MAX_HALT} sessions. `r[t] = close[t] / C[t-1] - 1`. `m` is the equal-weight mean of "
        "`r` over the firms that traded. Where the universe has a list, means and factors are those of the "
        "firms that have been on it up to t. `dv` is the raw close times volume. Prices are adjusted for "
        "splits and dividends. Averages, sums and moments use known values only.",
        "- **Statements.** `item[t]` is the value known at t. `item[1y]` is the value of the period one year "
        "earlier, also as known at t. Flows cover one year: the sum of four quarters where quarters are "
        "reported, and the value itself where the source does not give the period of a flow. `market_equity` "
        "is shares outstanding times the raw close. A share count is adjusted for the splits between the day "
        "it refers to (cover page, filing or period end) and t. `debt` is short-term plus long-term debt. A "
        f"statement whose period ended more than {STALE_DAYS} days ago is not used.",
        "- **Window.** The value at t depends on the panel's rows `t-window+1..t`, including whole-market "
        "series, and on the statements known at t. A panel with a different first session gives the same "
        "value up to a relative error of 1e-9: forward adjustment starts at the panel's first session, and "
        "the starting level cancels in ratios up to rounding.",
        "- **Warm-up.** Number of sessions between a firm's first price and its first value.",
        f"- **NaN.** {NAN_RULE} The column NaN lists further cases of a feature.",
    ]
    parts += _language()
    for registry in (CHARACTERISTICS, CHANNELS):
        for family in registry.families:
            entries = [entry for entry in registry.values() if entry.family == family]
            parts.append(f"## {family.capitalize()} ({len(entries)})")
            head = ("name", "formula", "window", "warm-up", "unit", "NaN", "needs", "source")
            lines = [_row(head), _row(("---", "---", "---:", "---:", "---", "---", "---", "---"))]
            lines += [
                _row(
                    (
                        *(f"`{one.name}`", f"`{one.formula}`", str(one.window), str(one.warmup)),
                        *(one.unit, one.nan_rule, needed(one), one.source),
                    )
                )
                for one in entries
            ]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sections(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections below a section, each with its heading; the members of a union one by one."""
    for name, field in cls.model_fields.items():
        members = _section_classes(field.annotation)
        for member in members:
            heading = f"{prefix}{name}"
            if len(members) > 1:
                tag = next(one for one in _TAGS if one in member.model_fields)
                heading += f", {tag} {' or '.join(get_args(member.model_fields[tag].annotation))}"
            yield heading, member
            yield from _sections(member, f"{prefix}{name}.")


def _section_classes(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 (any annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [member for part in get_args(annotation) for member in _section_classes(part)]


def _section_rows(cls: type[BaseModel], prefix: str = "", *, nested: bool = False) -> Iterator[Row]:
    """Rows of a section; with ``nested``, those of its sections follow with their key before them."""
    for name, field in cls.model_fields.items():
        bounds = ", ".join(
            dict.fromkeys(
                f"{sign} {getattr(one, kind)}"
                for one in _metadata(field)
                for kind, sign in _BOUNDS.items()
                if getattr(one, kind, None) is not None
            )
        )
        inside = _section_classes(field.annotation)
        kind = "section" if inside else _type_name(field.annotation)
        default = (
            "required"
            if field.is_required() or (name in _TAGS and len(get_args(field.annotation)) == 1)
            else _default(field.get_default(call_default_factory=True))
        )
        yield f"{prefix}{name}", f"{kind}, {bounds}" if bounds else kind, default, _description(cls, name)
        if nested:
            for one in inside:
                yield from _section_rows(one, f"{prefix}{name}.", nested=True)


def _metadata(field: FieldInfo) -> list[Any]:
    """Bounds of a field, also where it is null or a bounded number."""
    inside = [one for part in get_args(field.annotation) for one in getattr(part, "__metadata__", ())]
    return [bound for one in (*field.metadata, *inside) for bound in getattr(one, "metadata", [one])]


def _description(cls: type[BaseModel], name: str) -> str:
    """What a setting means; a class that only changes a default does not describe it again."""
    for one in cls.__mro__:
        field = getattr(one, "model_fields", {}).get(name)
        if field is not None and field.description:
            return str(field.description)
    raise AssertionError(f"{cls.__name__}.{name} has no docstring")


def _type_name(annotation: Any) -> str:  # noqa: ANN401 (any annotation)
    """Name a type as a reader of YAML knows it."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(inside[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inside)
    if origin in (Union, UnionType):
        names = [_type_name(one) for one in inside if one is not NoneType]
        return " or ".join([*names, "null"] if NoneType in inside else names)
    if origin is tuple:
        return f"list of {_type_name(inside[0])}s"
    assert origin is dict, f"{annotation} has no name here"
    return f"mapping to {_type_name(inside[1])}s" if inside[1] in _SCALARS else "mapping"


def _default(value: Any) -> str:  # noqa: ANN401 (settings hold anything)
    """Write a default as YAML has it."""
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, dict) and any(isinstance(one, BaseModel) for one in value.values()):
        return ", ".join(f"`{key}`" for key in value)
    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
    return f"`{text}`"


def _prose(cls: type[Any]) -> str:
    """The docstring of a class without its numpydoc sections."""
    text = re.split(r"\n\n(?=\w+\n-{3,}\n)", inspect.cleandoc(cls.__doc__ or ""))[0]
    return "\n\n".join(_markdown(part) for part in text.split("\n\n"))


def _markdown(text: str) -> str:
    """Turn a docstring's paragraph into Markdown."""
    plain = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return plain.replace("``", "`")


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    """An argument or an option of a command, as the page shows it."""

    name: str
    default: str
    meaning: str


def _commands(app: typer.Typer, words: Words) -> Iterator[tuple[Words, Callable[..., Any]]]:
    """Every command of an app and of the groups in it, with the words that call it."""
    for command in app.registered_commands:
        assert command.callback is not None, "a command has a function"
        yield (*words, command.name or command.callback.__name__.replace("_", "-")), command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None, "a group has an app"
        yield from _commands(group.typer_instance, (*words, str(group.typer_instance.info.name)))


def _parameters(function: Callable[..., Any]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        annotation, info = get_args(hints[name])
        if isinstance(info, ArgumentInfo):
            shown = str(info.metavar)
        else:
            # typer keeps the first name of an annotated option as its default
            names = [one for one in (info.default, *(info.param_decls or ())) if str(one).startswith("--")]
            option = names[0] if names else f"--{name.replace('_', '-')}"
            value = "" if annotation is bool else f" {info.metavar or _value_name(annotation)}"
            shown = f"{option}{value}"
        if parameter.default is inspect.Parameter.empty:
            default = "required"
        else:
            default = "" if parameter.default in (None, False) else f"`{parameter.default}`"
        yield _Parameter(shown, default, str(info.help))


def _value_name(annotation: Any) -> str:  # noqa: ANN401 (any annotation)
    """Stand-in for a value: PATH, TEXT or INTEGER."""
    kinds = {Path: "PATH", str: "TEXT", int: "INTEGER"}
    return next(
        kinds[one]
        for one in (annotation, *get_args(annotation), *_inner_arguments(annotation))
        if one in kinds
    )


def _inner_arguments(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 (any annotation)
    for part in get_args(annotation):
        yield from get_args(part)


def _paragraphs(text: str) -> str:
    """Join the lines of each paragraph and of each item of a list."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\s*\n(?!- |\d+\. )\s*", " ", part.strip()) for part in parts)


def _settings_table(rows: Iterator[Row] | Sequence[Row]) -> str:
    cells = [(f"`{name}`", kind, default, text) for name, kind, default, text in rows]
    return _table(("setting", "type", "default", "meaning"), cells)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay cells out as a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|")


if __name__ == "__main__":
    PAGES = {"config": config_page, "commands": commands_page, "features": features_page}
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"usage: {_WRITE} {'|'.join(PAGES)}")
    print(PAGES[sys.argv[1]](), end="")
