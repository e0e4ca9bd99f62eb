"""The name of a model version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One model of one run that was trained for use.

    Attributes
    ----------
    run_id
        Run that trained it.
    model
        Entry of the config's ``models``.
    """

    run_id: str
    model: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``RUN/MODEL``; ValueError if the text is not of that form."""
        run_id, slash, model = text.partition("/")
        if not (run_id and slash and model):
            raise ValueError(f"{text!r} is not the name of a model version; it must be RUN/MODEL")
        return cls(run_id, model)
