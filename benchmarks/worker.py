"""A process that measures on request, so that each engine has memory of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence


class Worker:
    """A process that answers every line with a JSON object."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start = self._answer()

    def ask(self, order: str) -> dict[str, float]:
        """Send a command and wait for its result."""
        print(order, file=self.process.stdin, flush=True)
        return self._answer()

    def stop(self) -> None:
        """Let the process finish."""
        self.process.communicate()

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(
                f"The worker failed with exit code {self.process.wait()}: see its message above."
            )
        answer: dict[str, float] = json.loads(line)
        return answer
