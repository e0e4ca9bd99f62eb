"""Options: what a config says of a book or a model, in the form in which the code receives it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

UNKNOWN_KEY = "unknown_key"
"""Type of the error for an unknown key; its context holds the ``key`` and the ``known`` keys."""


class Options(BaseModel):
    """Frozen settings that refuse unknown keys. The docstring below a field says what it means.

    The refusal is a pydantic error of type `UNKNOWN_KEY`, located at the section. pydantic's own
    ``extra_forbidden`` does not name the keys that are allowed.
    """

    COMPUTED: ClassVar[Mapping[str, Any]] = {}
    """Fields that say how a result is computed but do not decide it, with the value that stands for all."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        if isinstance(given, Mapping):
            for key in given:
                if key not in cls.model_fields:
                    context = {"key": str(key), "known": sorted(cls.model_fields)}
                    raise PydanticCustomError(UNKNOWN_KEY, "{key} is not a known name", context)
        return given

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values, those in `COMPUTED` with the value that stands for all.

        Two settings that decide the same results are equal. A new default of a field in `COMPUTED` makes no
        other run or trial, and is no change of what is traded.
        """
        return self.model_dump(mode="json") | dict(self.COMPUTED)
