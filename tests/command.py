"""The command line in this process, for tests that ask what it says and how it ends."""

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
        """Steps of the training stage that were reported."""
        events = [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]
        return [event for event in events if event["event"] == "step" and event["stage"] == "train"]


Call = Callable[..., Answer]


def command(monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> Call:
    """Give a function that calls ``peerglass`` with its arguments."""

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["peerglass", *arguments])
        captured.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = captured.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, said.out, said.err)

    return call
