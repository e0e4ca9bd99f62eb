"""The section ``folds`` of a configuration."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.settings import Section


class WalkForwardConfig(Section):
    """Walk-forward folds of fixed lengths. All lengths are in sessions."""

    scheme: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on the last ``train`` of them."""
    train: int = Field(ge=1)
    """Length of the training segment; for ``expanding``, at least that of the first fold."""
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
    """Maximum number of folds; the latest are kept, or the earliest with ``anchor: start``. Null: all that
    fit."""
    anchor: Literal["end", "start"] = "end"
    """``end`` lays the test segments backwards from the newest session, so that the latest data are tested.
    ``start`` lays them forwards from the first possible one, so that new data add folds and change none."""


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


class CalendarFoldsConfig(Section):
    """Walk-forward folds whose tests are calendar years or quarters. Lengths count these periods."""

    scheme: Literal["calendar"]
    """Selects this scheme."""
    period: Literal["year", "quarter"]
    """Length of a test. The newest period is tested as far as its labels are known."""
    window: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on ``train`` periods."""
    train: int = Field(ge=1)
    """Periods of the training segment; for ``expanding``, at least that many in the first fold."""
    valid: int = Field(ge=1)
    """Periods of the validation segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the latest are kept. Null: all that fit."""


class CombinatorialFoldsConfig(Section):
    """Combinatorial purged cross-validation: one fold for every choice of groups that are tested."""

    scheme: Literal["combinatorial"]
    """Selects this scheme."""
    groups: int = Field(ge=3)
    """Number N of groups of consecutive sessions that the history is cut into."""
    test_groups: int = Field(ge=1)
    """Number k of groups that are tested together, at most ``groups - 2``. There are ``N! / (k! (N - k)!)``
    folds, and ``k / N`` times as many paths."""
    embargo: int = Field(ge=0)
    """Sessions left out on both sides of a test and of the validation, in addition to the purge of label
    spans."""

    @model_validator(mode="after")
    def _check_groups(self) -> CombinatorialFoldsConfig:
        if self.test_groups > self.groups - 2:
            raise ValueError(
                f"test_groups is {self.test_groups} and groups is {self.groups}; test_groups must be at most "
                "groups - 2, because one group validates and at least one trains"
            )
        return self


class LiveFoldConfig(Section):
    """One fold without a test, for a model that is used: it trains on the newest known labels.

    Lengths are in sessions. Such a run makes no test forecasts and cannot be backtested.
    """

    scheme: Literal["live"]
    """Selects this scheme."""
    through: dt.date
    """Date of the data: what was not known at the close of this session is left out."""
    train: int | None = Field(default=None, ge=1)
    """Length of the training segment. Null: all sessions."""
    valid: int = Field(ge=1)
    """Length of the validation segment; its last label ends on ``through``."""
    embargo: int = Field(ge=0)
    """Sessions left out between the segments, in addition to the purge of label spans."""


FoldsConfig = Annotated[
    WalkForwardConfig | DatedFoldConfig | CalendarFoldsConfig | CombinatorialFoldsConfig | LiveFoldConfig,
    Field(discriminator="scheme"),
]
"""The folds of a config: sessions for training, validation and test, purged and embargoed."""
