"""The ``peerglass`` command. Verbs only parse arguments and print; heavy imports happen inside them."""

import atexit
import functools
import gc
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Final

import typer

from pipelines.cli import data, help_of, operations, stages, start, with_options
from pipelines.errors import PeerglassError, full_disk
from pipelines.secrets import redact

app = typer.Typer(
    name="peerglass",
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
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end."),
    ] = False,
) -> None:
    _State.debug = debug


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
    except PeerglassError as error:
        _print_traceback()
        shown = full_disk(error) or error
        print(f"peerglass: {shown}", file=sys.stderr)
        sys.exit(shown.exit_code)
    except KeyboardInterrupt:
        print("peerglass: interrupted; run the same command again to continue.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        _print_traceback()
        if (full := full_disk(error)) is not None:
            print(f"peerglass: {full}", file=sys.stderr)
            sys.exit(full.exit_code)
        print(
            f"peerglass: this is a bug ({type(error).__name__}: {redact(str(error))}); run 'peerglass "
            "--debug ...' for the traceback and report it.",
            file=sys.stderr,
        )
        sys.exit(1)


@functools.cache
def _command() -> Callable[[], object]:
    """Build the command line once per process."""
    return typer.main.get_command(app)


def _print_traceback() -> None:
    """With ``--debug``, print the traceback of the current error with its secrets masked."""
    if _State.debug:
        print(redact(traceback.format_exc()), file=sys.stderr)
