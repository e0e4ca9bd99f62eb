"""The command line: verbs that parse options, call one function and print, and here what they share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

from typer import Argument, Option, Typer

from pipelines.terminal import say

if TYPE_CHECKING:
    from pipelines.config.schema import Config
    from pipelines.lake.lake import Lake
    from pipelines.progress import Progress

RUNS_FOLDER: Final = Path("data/runs")  # default of ``--output``, unless a config names another


@functools.cache
def _options() -> Mapping[str, Mapping[str, Any]]:
    """Command -> parameter -> what the help says of it (``options.yaml``)."""
    import yaml

    text = Path(__file__).with_name("options.yaml").read_text("utf-8")
    options: Mapping[str, Mapping[str, Any]] = yaml.load(
        text,
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506 (a safe one)
    )
    return options


def help_of(group: str) -> str:
    """Return the help of a group of commands, or of the whole command line."""
    return str(_options()["groups"][group])


def group(name: str) -> Typer:
    """Make a group of commands."""
    return Typer(name=name, help=help_of(name), no_args_is_help=True)


def with_options(words: str, verb: Callable[..., None]) -> None:
    """Turn the parameters of a command into the arguments and options of the command line."""
    own, parameters = _options().get(words, {}), signature(verb).parameters
    assert own.keys() <= parameters.keys(), f"{words} has no {', '.join(own.keys() - parameters.keys())}"
    hints = get_type_hints(verb)
    for name in parameters:
        about = own[name] if name in own else _options()["shared"][name]
        about = {"help": about} if isinstance(about, str) else dict(about)
        kind = Argument if about.pop("argument", False) else Option
        if about.pop("day", False):
            about["formats"] = ["%Y-%m-%d"]
        flag = [f"--{name.replace('_', '-')}"] if hints[name] is bool else []
        names = [about.pop("name")] if "name" in about else flag
        hints[name] = Annotated[hints[name], kind(*names, **about)]
    verb.__annotations__ = hints


def load(config: Path, overrides: list[str] | None, **how: Any) -> Config:  # noqa: ANN401 (of `load_config`)
    """Load a config with the settings of ``--set``."""
    from pipelines.config.load import load_config

    return load_config(config, overrides or [], **how)


@contextmanager
def lake_of(
    config: Path, overrides: list[str] | None, *, wait: bool | None = None, models: bool = False
) -> Iterator[tuple[Config, Lake, Progress]]:
    """Load a config and open its lake; ``wait`` is given by commands that lock it, if it exists."""
    from pipelines.dataset.tables import open_lake
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks

    settings, progress = load(config, overrides, models=models), Progress()
    lake = open_lake(settings, progress.note)
    with Locks(wait=bool(wait), notify=progress.note) as locks:
        if wait is not None:
            locks.lock_existing_lake(lake)
        yield settings, lake, progress


def answer(content: object, describe: Callable[[Any], str], *, as_json: bool) -> None:
    """Print what a command found, as JSON or described for a terminal."""
    if as_json:
        print(json.dumps(content, indent=1, default=str))
    else:
        say(describe(content))
