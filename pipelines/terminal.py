"""What a terminal shows: tables and sentences that fit its width, and colours that mean something.

Output that goes into a file or a pipe has no colours and no line breaks of ours.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

_RED, _YELLOW, _GREEN = 31, 33, 32
_COLOURS: Final = {  # first word of a line -> its colour
    **dict.fromkeys(("fail", "missing", "peerglass", "refused"), _RED),
    **dict.fromkeys(("warn", "hazard"), _YELLOW),
    **dict.fromkeys(("ok", "pass"), _GREEN),
}
_FIRST_WORD: Final = re.compile(rf"^( *)({'|'.join(_COLOURS)})(?=:|  )", re.MULTILINE)
_COMMAND: Final = re.compile(r"'(?:peerglass|pip|make|rm|mlflow) [^']*'")
_KEPT: Final = "\N{NO-BREAK SPACE}"
_LEAST_TEXT: Final = 24  # columns that a cell of text keeps beside the others


def columns_of(stream: TextIO) -> int | None:
    """Columns of the terminal that a stream writes to; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def say(text: object, stream: TextIO | None = None) -> None:
    """Print lines that begin with spaces or words; on a terminal, wrapped and coloured."""
    to = stream or sys.stdout
    written, columns = str(text), columns_of(to)
    if columns is not None:
        written = fitted(written, columns)
        if "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
            written = _FIRST_WORD.sub(
                lambda word: f"{word[1]}\x1b[{_COLOURS[word[2]]}m{word[2]}\x1b[0m", written
            )
    print(written, file=to, flush=True)


def fitted(text: str, columns: int) -> str:
    """Wrap the lines of a text that are longer than ``columns``; a command in quotes stays in one piece.

    >>> print(fitted("  note: one two three four", 14))
      note: one
        two three
        four
    """
    return "\n".join(line for written in text.split("\n") for line in _wrap(written, columns))


def _wrap(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    indent = len(line) - len(line.lstrip(" "))
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", _KEPT), line)
    lines = textwrap.wrap(
        whole,
        columns,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [one.replace(_KEPT, " ") for one in lines]


def text_table(
    rows: Iterable[Sequence[str]],
    heading: Sequence[str] = (),
    *,
    left: int = 1,
    indent: str = "  ",
    columns: int | None = None,
) -> list[str]:
    r"""Align cells in lines that begin with ``indent``; the first ``left`` columns are flush left.

    A table that is wider than ``columns`` (by default, those of the terminal) is shown in blocks, each with
    the first column again. If it has no heading and is flush left, the text in its last column is wrapped.

    >>> print(*text_table([("ridge", "0.1", "0.25")], ("model", "IC", "Sharpe")), sep="\n")
      model   IC  Sharpe
      ridge  0.1    0.25
    >>> print(*text_table([("ridge", "0.1", "0.25")], ("model", "IC", "Sharpe"), columns=16), sep="\n")
      model   IC
      ridge  0.1
    <BLANKLINE>
      model  Sharpe
      ridge    0.25
    """
    lines = [*([heading] if heading else []), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    blocks, columns = [list(range(len(widths)))], columns or columns_of(sys.stdout)
    missing = 0 if columns is None else len(indent) + sum(widths) + 2 * (len(widths) - 1) - columns
    if columns is not None and missing > 0 and heading:
        blocks = _blocks(widths, columns - len(indent))
    most = widths[-1] - missing if missing > 0 and not heading and left == len(widths) else 0
    written: list[str] = []
    for block in blocks:
        written += [""] if written else []
        for line in lines:
            cells = [line[i].ljust(widths[i]) if i < left else line[i].rjust(widths[i]) for i in block]
            first, *others = [cells[-1]]
            if most >= _LEAST_TEXT:
                wrapped = textwrap.wrap(line[-1], most, break_long_words=False, break_on_hyphens=False)
                first, *others = wrapped or [""]
            before = indent + "".join(f"{cell}  " for cell in cells[:-1])
            written += [f"{before}{first}".rstrip(), *(" " * len(before) + other for other in others)]
    return written


def _blocks(widths: Sequence[int], columns: int) -> list[list[int]]:
    """Columns of each block of a table: the first one, and as many others as fit."""
    blocks, used = [[0]], widths[0]
    for i, width in enumerate(widths[1:], start=1):
        if used + 2 + width > columns and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(i)
        used += 2 + width
    return blocks
