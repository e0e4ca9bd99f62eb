"""The format of text files: separator, decimal mark and encoding; and recognising it from a file's beginning.

CSV is read as text. Numbers with a decimal comma are rewritten with a point, so that the code that interprets
values knows one form only.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipelines.errors import DataError

_BEGINNING: Final = 1 << 18  # bytes that are looked at to recognise a format
_ROWS: Final = 200
_COMMA_NUMBER: Final = r"^[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?$"
_POINT_NUMBER: Final = r"^[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)\.\d+(?:[eE][+-]?\d+)?$"
_GROUPED_WHOLE: Final = {",": r"^[+-]?\d{1,3}(?:\.\d{3})+$", ".": r"^[+-]?\d{1,3}(?:,\d{3})+$"}
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a text file is written.

    Attributes
    ----------
    separator
        Character between two columns.
    decimal
        Decimal mark of numbers: a point or a comma. The other one may separate thousands.
    encoding
        Name of a Python codec, such as utf-8, latin-1, cp1252 or utf-16.
    """

    separator: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"


COMMAS: Final = TextFormat()
"""The usual format: commas, decimal points and UTF-8."""


def is_text(file: Path) -> bool:
    """Return whether a file's name is that of a text file, which may be gzipped."""
    return not file.name.lower().endswith((".parquet", ".pq"))


def scan_text(file: Path, given: TextFormat) -> pl.LazyFrame:
    """Open a text file lazily; every column is text, and numbers have a decimal point.

    Raises
    ------
    DataError
        If the file is not encoded as given.
    """
    if _is_utf8(given.encoding):
        rows = pl.scan_csv(file, glob=False, infer_schema=False, separator=given.separator)
    else:
        try:
            text = _bytes_of(file).decode(given.encoding)
        except UnicodeError as error:
            raise DataError(f"{file} is not encoded as {given.encoding} ({error}): correct it") from None
        source = io.BytesIO(text.removeprefix("\ufeff").encode())
        rows = pl.read_csv(source, infer_schema=False, separator=given.separator).lazy()
    if given.decimal == "." and given.separator == ",":
        return rows  # a comma inside a number would need quotes, and gives a value that is refused later
    return rows.with_columns(_with_decimal_point(pl.all(), given.decimal))


def recognise_text(file: Path) -> TextFormat:
    """Recognise the separator, decimal mark and encoding of a text file from its beginning.

    The separator is the one of ``, ; tab |`` that gives the header most columns and most rows as many. The
    decimal mark is a comma if more cells look like ``1.234,5`` than like ``1,234.5``. A file that is not
    UTF-8 (or UTF-16 with a byte order mark) is read as cp1252, the usual encoding of Windows, or as latin-1
    if that has no such characters.

    Raises
    ------
    DataError
        If the file cannot be read, or has no row below its header.
    """
    beginning = _bytes_of(file, _BEGINNING)
    encoding = _recognise_encoding(beginning)
    text = beginning.decode(encoding, errors="ignore").removeprefix("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(beginning) == _BEGINNING:
        lines = lines[:-1]  # the last one is cut off
    if len(lines) < 2:
        raise DataError(f"{file} has no row below its header: use a file with values")
    separator = max(",;\t|", key=lambda mark: _columns_in_common(lines[:_ROWS], mark))
    cells = [cell for row in csv.reader(lines[1:_ROWS], delimiter=separator) for cell in row]
    votes = Counter("," if re.match(_COMMA_NUMBER, cell) else "." for cell in cells if _is_decimal(cell))
    return TextFormat(separator, "," if votes[","] > votes["."] else ".", encoding)


def _is_decimal(cell: str) -> bool:
    return bool(re.match(_COMMA_NUMBER, cell) or re.match(_POINT_NUMBER, cell))


def _columns_in_common(lines: list[str], separator: str) -> tuple[int, int]:
    """Number of rows as wide as a header of several columns, and that width; zeros for one column."""
    widths = [len(row) for row in csv.reader(lines, delimiter=separator)]
    return (0, 0) if widths[0] < 2 else (sum(width == widths[0] for width in widths), widths[0])


def _with_decimal_point(column: pl.Expr, decimal: str) -> pl.Expr:
    """Rewrite the numbers of text columns with a decimal point and without separators of thousands."""
    pattern = _COMMA_NUMBER if decimal == "," else _POINT_NUMBER
    thousands = "." if decimal == "," else ","
    number = column.str.contains(pattern) | column.str.contains(_GROUPED_WHOLE[decimal])
    plain = column.str.replace_all(thousands, "", literal=True).str.replace(decimal, ".", literal=True)
    return pl.when(number).then(plain).otherwise(column).name.keep()


def _recognise_encoding(beginning: bytes) -> str:
    for mark, encoding in zip(_MARKS, ("utf-8", "utf-16", "utf-16"), strict=True):
        if beginning.startswith(mark):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)  # a character may be cut off at the end
    except UnicodeDecodeError:
        return "cp1252" if _decodes(beginning, "cp1252") else "latin-1"
    return "utf-8"


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def _bytes_of(file: Path, count: int = -1) -> bytes:
    try:
        if file.name.lower().endswith(".gz"):
            with gzip.open(file, "rb") as packed:
                return packed.read(count)
        with file.open("rb") as plain:
            return plain.read(count)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}): repair or replace it") from None
