"""The section ``folds`` of a configuration."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.settings import Section


class WalkForwardConfig(Section):
    """Walk-forward folds. All lengths are in sessions."""

    scheme: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on the last ``train`` of them."""
    train: int = Field(ge=1)
    """Length of the training segment; for ``expanding``, of the first fold's."""
    valid: int = Field(ge=1)
    """Length of the validation segment."""
    test: int = Field(ge=1)
    """Length of the test segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    step: int | None = Field(default=None, ge=1)
    """Sessions from the start of one test segment to the start of the next, at least ``test``. Null:
    ``test``."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the earliest are kept. Null: all that fit."""


class DatedFoldConfig(Section):
    """One fold with given dates, as published benchmarks define it."""

    scheme: Literal["dated"]
    """Selects this scheme."""
    train_from: dt.date
    """First date of the training segment."""
    valid_from: dt.date
    """First date of the validation segment."""
    test_from: dt.date
    """First date of the test segment."""
    test_to: dt.date
    """Last date of the test segment, inclusive."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""

    @model_validator(mode="after")
    def _check_order(self) -> DatedFoldConfig:
        if not self.train_from < self.valid_from < self.test_from <= self.test_to:
            raise ValueError(
                "train_from < valid_from < test_from <= test_to must hold, "
                f"but the dates are {self.train_from}, {self.valid_from}, {self.test_from}, {self.test_to}"
            )
        return self


FoldsConfig = Annotated[WalkForwardConfig | DatedFoldConfig, Field(discriminator="scheme")]
