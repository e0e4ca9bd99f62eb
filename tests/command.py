"""Call the command line in this process, for tests of its output and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pipelines.cli import main as cli


@dataclass
class Answer:
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Progress events of the finished training tasks."""
        events = [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]
        return [event for event in events if event["event"] == "step" and event["stage"] == "train"]


Call = Callable[..., Answer]


def command(monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> Call:
    """Return a function that calls ``peerglass`` with its arguments."""

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["peerglass", *arguments])
        captured.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        output = captured.readouterr()
        code = exit_info.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, output.out, output.err)

    return call
