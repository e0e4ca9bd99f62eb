"""How numbers are written, on pages, in the terminal and in messages: one kind for every sort of figure.

A kind has a factor, decimals and a sign. On a page minus signs and dashes are typographic; a terminal has
plain ASCII.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import polars as pl

EN_DASH: Final = "\N{EN DASH}"
MINUS: Final = "\N{MINUS SIGN}"
_SMALLEST: Final = 6  # a number below this power of 0.1 is written with a power of ten
TIMES: Final = "\N{MULTIPLICATION SIGN}"
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def is_unknown(value: object) -> bool:
    """Whether a value is not known: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True, slots=True)
class Kind:
    """How a sort of figure is written."""

    digits: int = 2
    scale: float = 1.0  # 100 for a fraction in per cent
    signed: bool = False
    style: str = "f"  # f: fixed decimals; #: exactly ``digits`` significant digits; g: at most so many
    words: str = ""  # what a value is that is no number: text, yes or no, answer, names

    @property
    def numeric(self) -> bool:
        """Whether values are numbers."""
        return not self.words

    def at(self, digits: int) -> Self:
        """Return the same kind with other digits."""
        return replace(self, digits=digits)

    @property
    def with_sign(self) -> Self:
        """The same kind with plus signs, for differences."""
        return replace(self, signed=True)

    def text(self, value: Any, unknown: str = "-") -> str:  # noqa: ANN401 (a cell of any type)
        """Write a value in ASCII; ``unknown`` for None and NaN. A number that rounds to 0 has no sign."""
        if is_unknown(value):
            return unknown
        if self.words == "yes or no":
            return "yes" if value else "no"
        if self.words == "names":
            return ", ".join(map(str, value))
        if self.words or isinstance(value, str):
            return str(value)
        sign, number = "+" if self.signed else "", self.scale * value
        decimals = self.digits if self.style == "f" else self._decimals(number)
        if self.style != "f" and decimals - self.digits >= _SMALLEST:
            return (
                f"{number:{sign}.{self.digits}g}"
                if self.style == "g"
                else f"{number:{sign}.{self.digits - 1}e}"
            )
        written = f"{number:{sign},.{decimals}f}"
        if self.style == "g" and decimals:
            written = written.rstrip("0").removesuffix(".")
        return written.lstrip("+-") if written.strip("+-0.,") == "" else written

    def _decimals(self, number: float) -> int:
        """Decimals that leave ``digits`` significant ones; none for a number of more digits than that."""
        if not number or not math.isfinite(number):
            return self.digits - 1
        exponent = int(f"{number:.{self.digits - 1}e}".partition("e")[2])  # of the rounded number
        return max(self.digits - 1 - exponent, 0)

    def page(self, value: Any) -> str:  # noqa: ANN401 (a cell of any type)
        """Write a value for a page: a true minus sign, and a dash for what is unknown. Not escaped."""
        if is_unknown(value):
            return EN_DASH
        if self.numeric and not isinstance(value, str):
            number, _, power = self.text(value).partition("e")
            tail = f" {TIMES} 10{str(int(power)).translate(_RAISED)}" if power else ""
            return number.replace("-", MINUS) + tail
        marks = {"yes": "\N{CHECK MARK} ", "no": "\N{MULTIPLICATION X} "}
        prefix = marks.get(str(value), "? ") if self.words == "answer" else ""
        written = self.text(value)
        return prefix + (written.replace(" -", f" {MINUS}") if self.words == "names" else written)


COUNT: Final = Kind(0)
IC: Final = Kind(4)
RATIO: Final = Kind(2)
T: Final = Kind(1)
P: Final = Kind(3)
PERCENT: Final = Kind(1, 100.0)
BPS: Final = Kind(0)
SCORE: Final = Kind(4, style="#")
PLAIN: Final = Kind(4, style="g")
TEXT: Final = Kind(words="text")
YES_NO: Final = Kind(words="yes or no")
ANSWER: Final = Kind(words="answer")
NAMES: Final = Kind(words="names")


def number(value: float | None, digits: int, *, unknown: str = "-") -> str:
    """Write a number with fixed decimals, as `Kind.text` does."""
    return Kind(digits).text(value, unknown)


def interval(
    estimate: float | None,
    lower: float | None,
    upper: float | None,
    kind: Kind = RATIO,
    *,
    unknown: str = "-",
) -> str:
    """Write an estimate with its interval, as in "1.20 [0.31, 2.10]"; ``unknown`` without an estimate."""
    if is_unknown(estimate):
        return unknown
    if is_unknown(lower) or is_unknown(upper):
        return f"{kind.text(estimate)} (no interval)"
    return f"{kind.text(estimate)} [{kind.text(lower)}, {kind.text(upper)}]"


def describe_difference(row: Mapping[str, Any], what: str, kind: Kind) -> str:
    """Format the difference of ``ic`` or ``sharpe`` in a row of ``comparisons``, with its interval."""
    lower, upper = row[f"{what}_lower"], row[f"{what}_upper"]
    return interval(row[f"{what}_difference"], lower, upper, kind.with_sign)


def abbreviate(items: Sequence[object], most: int = 12, between: str = ", ") -> str:
    """Join the first ``most`` items, and say how many more there are.

    >>> abbreviate(["a", "b", "c"], 2), abbreviate(["a", "b", "c"], 2, "; ")
    ('a, b and 1 more', 'a; b; and 1 more')
    """
    more = len(items) - most
    mark = "" if between == ", " else between.rstrip()
    return between.join(map(str, items[:most])) + (f"{mark} and {more:,} more" if more > 0 else "")


def megabytes(size: int) -> str:
    """Write bytes as megabytes with one decimal."""
    return f"{size / 1e6:,.1f}"


def json_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table for JSON; numbers that are not finite are null."""
    floats = [name for name, kind in table.schema.items() if kind.is_float()]
    finite = (pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in floats)
    return table.with_columns(finite).to_dicts()
