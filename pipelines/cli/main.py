"""The ``peerglass`` command. Verbs only parse arguments and print; heavy imports happen inside them."""

import atexit
import functools
import gc
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from typer.core import TyperGroup

from pipelines.cli import data, help_of, operations, stages, start, with_options
from pipelines.errors import PeerglassError, full_disk
from pipelines.progress import choose_log
from pipelines.secrets import redact
from pipelines.terminal import say


class _Commands(TyperGroup):
    """The commands, whose common options may stand before or behind their words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (of typer's own click)
        end = args.index("--") if "--" in args else len(args)
        common: list[str] = []
        others: list[str] = []
        words = iter(args[:end])
        for word in words:
            is_common = word in ("--debug", "--quiet", "--log") or word.startswith("--log=")
            (common if is_common else others).append(word)
            if word == "--log":
                common += [value for value in (next(words, None),) if value is not None]
        return super().parse_args(ctx, [*common, *others, *args[end:]])

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (the same)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            _interrupted()


app = typer.Typer(
    name="peerglass",
    cls=_Commands,
    help=help_of("peerglass"),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _State:
    """What :func:`main` needs from the parsed command line."""

    debug = False


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"peerglass {version('peerglass')}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print results and errors, but no progress.")
    ] = False,
    log: Annotated[
        Literal["text", "json"] | None,
        typer.Option(
            "--log",
            help="How to print progress on stderr: as text, or as one JSON object a line. Default: text on a "
            "terminal, json in a pipe or file.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end."),
    ] = False,
) -> None:
    _State.debug = debug
    choose_log("none" if quiet else log)


_PANELS: Final = (  # panel of the help page, and a module with its verbs or groups in order
    ("Getting started", start),
    ("Pipeline", stages),
    ("Pipeline", operations),
    ("Features and data", data),
)
for _panel, _module in _PANELS:
    for _verb in _module.VERBS:
        if isinstance(_verb, typer.Typer):
            app.add_typer(_verb, rich_help_panel=_panel)
            for _one in _verb.registered_commands:
                assert _one.callback is not None, "a command has a function"
                with_options(f"{_verb.info.name} {_one.name or _one.callback.__name__}", _one.callback)
        else:
            app.command(rich_help_panel=_panel)(_verb)
            with_options(_verb.__name__, _verb)


def main() -> None:
    """Entry point. Errors become one sentence on stderr and a documented exit code."""
    # At its end the interpreter would search all libraries for garbage, which takes more than a second.
    atexit.register(gc.freeze)
    try:
        _command()()
    except KeyboardInterrupt:
        _interrupted()
    except Exception as error:
        from pipelines.plugins import blame

        if _State.debug:
            print(redact(traceback.format_exc()), file=sys.stderr)
        known = full_disk(error) or (error if isinstance(error, PeerglassError) else blame(error))
        if known is not None:
            _complain(str(known))
            sys.exit(known.exit_code)
        _complain(
            f"this is a bug ({type(error).__name__}: {redact(str(error))}); run 'peerglass --debug ...' for "
            "the traceback and report it."
        )
        sys.exit(1)


def _interrupted() -> NoReturn:
    _complain("interrupted; run the same command again to continue.")
    sys.exit(130)


def _complain(sentence: str) -> None:
    """Print an error, in which the names of a user's file may have codes that a terminal would obey."""
    shown = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in sentence)
    say(f"peerglass: {shown}", sys.stderr)


@functools.cache
def _command() -> Callable[[], object]:
    """Build the command line once per process."""
    return typer.main.get_command(app)
