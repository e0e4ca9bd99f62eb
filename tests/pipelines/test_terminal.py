"""Tables and sentences in the width of a terminal, and colours; files and pipes get neither."""

from __future__ import annotations

import io
import re

import pytest

from pipelines.terminal import fitted, say, text_table

HEADING = ("model", "IC", "rank IC", "long_short net", "long_only net", "long_only IR")
ROWS = [
    ("ridge", "0.0081", "-0.0054", "0.86", "1.07", "1.12"),
    ("temporal_peer", "-0.0039", "0.0035", "-0.12", "-0.03", "-0.08"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 200])
def test_a_table_fits_and_keeps_every_cell(columns: int) -> None:
    lines = text_table(ROWS, HEADING, columns=columns)
    widest = 2 + len("temporal_peer") + 2 + len("long_short net")  # the first column and another one
    assert max(map(len, lines)) <= max(columns, widest)
    blocks = "\n".join(lines).split("\n\n")
    for row, cells in enumerate([HEADING, *ROWS]):
        shown = [re.split(r" {2,}", block.splitlines()[row].strip()) for block in blocks]
        assert {name for name, *_ in shown} == {cells[0]}, "each block names its rows"
        assert [cell for _, *others in shown for cell in others] == list(cells[1:])
    assert (len(blocks) == 1) is (columns >= 80)


def test_the_text_of_a_table_without_a_heading_is_wrapped() -> None:
    rows = [("ridge", "Its factors explain little of its returns, and alpha is zero."), ("zero", "")]
    assert text_table(rows, left=2, columns=40) == [
        "  ridge  Its factors explain little of",
        "         its returns, and alpha is zero.",
        "  zero",
    ]
    assert text_table(rows, left=2) == [f"  ridge  {rows[0][1]}", "  zero"], "no terminal"


def test_long_lines_are_wrapped_between_words_and_not_in_commands() -> None:
    text = "short\n  note: the lake is locked; run 'peerglass ingest my.yaml --wait' to wait for it"
    assert fitted(text, 40).splitlines() == [
        "short",
        "  note: the lake is locked; run",
        "    'peerglass ingest my.yaml --wait' to",
        "    wait for it",
    ]
    assert fitted(text, 100) == text
    path = "/data/" + "x" * 90
    assert path in fitted(f"the report is {path} now", 40).split(), "a path can be copied"


def test_colours_mark_what_failed_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "  fail: labels\n  warn: few firms\nok      python\n  failing that, nothing"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    written = {}
    for name, stream in (("terminal", Terminal()), ("file", io.StringIO())):
        say(text, stream)
        written[name] = stream.getvalue()
    assert written["file"] == f"{text}\n"
    assert written["terminal"] == (
        "  \x1b[31mfail\x1b[0m: labels\n  \x1b[33mwarn\x1b[0m: few firms\n\x1b[32mok\x1b[0m      python\n"
        "  failing that, nothing\n"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    say(text, plain)
    assert plain.getvalue() == f"{text}\n"
