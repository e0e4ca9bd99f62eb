"""Settings of benchmarks and published factors, which books are measured against."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipelines.settings import PathSetting, Section


class BenchmarkConfig(Section):
    """What books are measured against: a portfolio of the universe, a ticker, or an index from a file.

    One of the first three is given. A word alone, as in ``eq: equal_weighted``, is ``weights``.
    """

    weights: Literal["equal_weighted", "cap_weighted"] | None = None
    """The firms of the universe, in equal weights or in proportion to market equity, which needs share
    counts. It decides, trades and earns as the book does, without costs."""
    ticker: str | None = None
    """A firm or fund of the lake, with its dividends."""
    file: PathSetting | None = None
    """CSV or Parquet file with columns date and close, which has every session of the books."""
    returns: Literal["total", "price"] | None = None
    """Of a file: whether its closes include dividends. A price index leaves them out, which flatters books
    that receive them."""

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        return {"weights": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if [self.weights, self.ticker, self.file].count(None) != 2:
            raise ValueError("a benchmark is equal_weighted, cap_weighted, {ticker: ...} or {file: ...}")
        if (self.file is None) != (self.returns is None):
            raise ValueError(
                "returns says of a file, and of nothing else, whether it is a total or a price index"
            )
        return self

    @property
    def basis(self) -> str:
        """``total`` or ``price``: whether its returns include dividends."""
        return self.returns or "total"

    @property
    def words(self) -> str:
        """The benchmark in words."""
        if self.weights is not None:
            cap = self.weights == "cap_weighted"
            return f"the universe {'by market equity' if cap else 'in equal weights'}, before costs"
        if self.file is None:
            return f"{self.ticker} with its dividends"
        if self.returns == "total":
            return "a total-return index"
        return "a price index, without the dividends that books receive, which flatters books"


DEFAULT_BENCHMARKS: Final = {"eq": BenchmarkConfig(weights="equal_weighted")}
"""The benchmarks of a config that names none."""


def _files_by_name(given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
    if isinstance(given, str):
        given = {PurePath(given).stem: given}
    if not isinstance(given, Mapping):
        return given
    return {name: (one,) if isinstance(one, str) else one for name, one in given.items()}


FactorFiles = Annotated[
    dict[str, Annotated[tuple[PathSetting, ...], Field(min_length=1)]], BeforeValidator(_files_by_name)
]
"""Name -> files of factors that are used together. A file alone is named by its stem."""
