"""Find and open a user's files: paths, encodings, separators, headers; every cell of a text file is text."""

import codecs
import csv
import gzip
import io
import itertools
import os
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.settings import RELATIVE_PATHS
from pipelines.sources.files.layouts import PRICE_NAMES, plain

EXCEL: Final = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")  # workbooks, whose first sheet is read
_BEGINNING: Final = 1 << 18  # bytes that are looked at to recognise a format
_ROWS: Final = 200
HEADER_LINES: Final = 18  # lines in which the data begin
_DATE: Final = re.compile(  # a few wrong ones do no harm, because a column needs several
    r"(?:\d{4}[-/.年]\d{1,2}[-/.月]\d{1,2}日?|\d{1,2}[-/. ](?:\d{1,2}|[A-Za-z]{3,9})[-/. ]\d{2,4}"
    r"|(?:19|20)\d{6}(?:\.0)?|(?:19|20)\d{2}-\d{2}"
    r"|[A-Za-z]{3,9} \d{1,2},? \d{4}|\d{2}[A-Za-z]{3}\d{4})(?:[T ,:].*)?"
)
_DECIMAL: Final = re.compile(r"[+-]?\d+[.,]\d+")
_KNOWN: Final = frozenset(plain(name) for names in PRICE_NAMES.values() for name in names)
_UNIT: Final = r" ?[KMBT%€$£]?"
_COMMA_NUMBER: Final = rf"^[+-]?[€$£]? ?(?:\d+|\d{{1,3}}(?:\.\d{{3}})+),\d+(?:[eE][+-]?\d+)?{_UNIT}$"
_POINT_NUMBER: Final = rf"^[+-]?[€$£]? ?(?:\d+|\d{{1,3}}(?:,\d{{3}})+)\.\d+(?:[eE][+-]?\d+)?{_UNIT}$"
_GROUPED_WHOLE: Final = {
    ",": rf"^[+-]?[€$£]? ?[1-9]\d{{0,2}}(?:\.\d{{3}})+{_UNIT}$",
    ".": rf"^[+-]?[€$£]? ?[1-9]\d{{0,2}}(?:,\d{{3}})+{_UNIT}$",
}
_EASTERN: Final = ("gb18030", "cp949", "cp932", "big5")
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a text file is written; the other mark than ``decimal`` may separate thousands."""

    separator: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"


COMMAS: Final = TextFormat()  # the usual format: commas, decimal points and UTF-8


def is_text(file: Path) -> bool:
    """Return whether a file's name is that of a text file, which may be gzipped."""
    return not file.name.lower().endswith((".parquet", ".pq", *EXCEL))


def scan_text(file: Path, given: TextFormat) -> pl.LazyFrame:
    """Open a text file lazily; every column is text, and numbers have a decimal point."""
    beginning = _decoded(file, given.encoding, _BEGINNING).removeprefix("\ufeff")
    if "\0" in beginning:
        raise DataError(
            f"{file} is no text in {given.encoding}, because it has zero bytes: give a CSV, Excel or Parquet "
            "file whose name ends as that of its kind, or set source.encoding"
        )
    head = io.StringIO(beginning, newline="")
    header = header_of(list(itertools.islice(csv.reader(head, delimiter=given.separator), HEADER_LINES)))
    form: dict[str, Any] = {"infer_schema": False, "separator": given.separator}
    if "\n" not in head.getvalue() and "\r" in head.getvalue():
        form["eol_char"] = "\r"  # as old programs for the Mac end a line
    if header is not None:
        skipped, names = header
        form |= {"has_header": False, "skip_lines": skipped, "schema": dict.fromkeys(names, pl.String)}
    if _is_utf8(given.encoding) and not file.name.lower().endswith(".zip"):
        rows = pl.scan_csv(file, glob=False, **form)
    else:
        source = io.BytesIO(_decoded(file, given.encoding).removeprefix("\ufeff").encode())
        rows = pl.read_csv(source, **form).lazy()
    if given.decimal == "." and given.separator == ",":
        return rows  # a comma inside a number would need quotes, and gives a value that is refused later
    cell, thousands = pl.all(), "." if given.decimal == "," else ","
    number = cell.str.contains(_COMMA_NUMBER if given.decimal == "," else _POINT_NUMBER)
    number |= cell.str.contains(_GROUPED_WHOLE[given.decimal])
    point = cell.str.replace_all(thousands, "", literal=True).str.replace(given.decimal, ".", literal=True)
    return rows.with_columns(pl.when(number).then(point).otherwise(cell).name.keep())


def header_of(lines: Sequence[Sequence[str]]) -> tuple[int, list[str]] | None:
    """Find the lines above the data and the names of the columns; None if the first line is the header.

    Data begin with the first of three lines with a date in one column. The header above is the line whose
    cells are names of prices, joined with a line of tickers (yfinance, Bloomberg); else the last of the
    fullest lines.
    """
    found = next(
        (
            (top, column)
            for top in range(1, len(lines) - 1)
            for column in range(min(4, len(lines[top])))
            if all(
                len(line) > column and _DATE.fullmatch(line[column].strip()) for line in lines[top : top + 3]
            )
        ),
        None,
    )
    if found is None or found[0] == 1 or any(_DECIMAL.fullmatch(cell.strip()) for cell in lines[1]):
        return None
    top, day = found
    width = len(lines[top])
    above = [[cell.strip() for cell in line[:width]] + [""] * (width - len(line)) for line in lines[:top]]
    fullest = max(sum(map(bool, line[day + 1 :])) for line in above)
    fields = next((line for line in above if _name_prices(line[day + 1 :])), None)
    others = [line for line in above if line is not fields and len({*line[day + 1 :]} - {""}) >= 1]
    tickers = max(others, key=lambda line: sum(map(bool, line[day + 1 :])), default=None)
    # a line names the ticker of every field: one at the first column of each firm, or everywhere
    of_fields = () if fields is None else fields[day + 1 :]
    of_tickers = () if tickers is None else tickers[day + 1 :]
    if of_fields and of_tickers and of_tickers[0] and len({*of_tickers} - {""}) <= sum(map(bool, of_fields)):
        names = [f"_{column}" for column in range(day)] + ["Date"]
        ticker = ""
        for cell, name in zip(of_tickers, of_fields, strict=True):
            ticker = cell or ticker
            names.append(f"('{name}', '{ticker}')")
    else:
        chosen = fields or next(
            line for line in reversed(above) if sum(map(bool, line[day + 1 :])) == fullest
        )
        names = list(chosen)
        names[day] = names[day] or next((line[day] for line in above if line[day]), "")
    seen: Counter[str] = Counter()  # repeated names are renamed as polars does
    for place, name in enumerate(names):
        names[place] = name if not seen[name] else f"{name}_duplicated_{seen[name] - 1}"
        seen[name] += 1
    return top, names


def _name_prices(cells: Sequence[str]) -> bool:
    """Whether most cells are names of prices."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and sum(plain(cell) in _KNOWN for cell in filled) > len(filled) / 2


def has_rows(file: Path) -> bool:
    """Return whether a text file has more than a header; other files are not looked into."""
    return not is_text(file) or len(bytes_of(file, _BEGINNING).strip().splitlines()) > 1


def recognise_text(file: Path) -> TextFormat:
    """Recognise the separator, decimal mark and encoding of a text file from its beginning.

    The separator (``, ; tab |``) gives the header most columns and most rows as many. The decimal mark is a
    comma if more cells look like ``1.234,5``; ``1,234`` counts only without others, between semicolons.
    Beside UTF-8 and UTF-16, the first encoding that gives the header a known name (`_EASTERN`), else Korean
    or Chinese if the signs come in pairs, else cp1252 or latin-1.
    """
    beginning = bytes_of(file, _BEGINNING)
    encoding = _recognise_encoding(beginning)
    text = beginning.decode(encoding, errors="ignore").removeprefix("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(beginning) == _BEGINNING:
        lines = lines[:-1]  # the last one is cut off
    if len(lines) < 2:
        raise DataError(f"{file} has no row below its header: use a file with values")
    separator = max(",;\t|", key=lambda mark: _columns_in_common(lines[:_ROWS], mark))
    cells = [cell for row in csv.reader(lines[1:_ROWS], delimiter=separator) for cell in row]
    return TextFormat(separator, _decimal_mark(cells, separator), encoding)


def _decimal_mark(cells: Sequence[str], separator: str) -> Literal[".", ","]:
    """Return the decimal mark that most numbers show; a number like ``1,234`` says nothing beside others."""
    clear: Counter[str] = Counter()
    unclear: Counter[str] = Counter()
    for cell in cells:
        grouped = any(re.match(pattern, cell) for pattern in _GROUPED_WHOLE.values())
        if re.match(_COMMA_NUMBER, cell) or (grouped and cell.count(".") > 1):
            (unclear if grouped and cell.count(",") == 1 else clear)[","] += 1
        elif re.match(_POINT_NUMBER, cell) or (grouped and cell.count(",") > 1):
            (unclear if grouped and cell.count(".") == 1 else clear)["."] += 1
    votes = clear or unclear
    if not clear and separator != ";":
        return "."  # whole numbers with commas between thousands
    return "," if votes[","] > votes["."] else "."


def _columns_in_common(lines: list[str], separator: str) -> tuple[int, int]:
    """Number of rows as wide as a header of several columns, and that width; zeros for one column."""
    widths = [len(row) for row in csv.reader(lines, delimiter=separator)]
    return (0, 0) if widths[0] < 2 else (sum(width == widths[0] for width in widths), widths[0])


def _recognise_encoding(beginning: bytes) -> str:
    for mark, encoding in zip(_MARKS, ("utf-8", "utf-16", "utf-16"), strict=True):
        if beginning.startswith(mark):
            return encoding
    for encoding in ("utf-8", *_EASTERN):
        text = _decoded_beginning(beginning, encoding)
        header = re.split(r"[,;\t|]", (text or "").partition("\n")[0])
        eastern = any(not cell.isascii() and plain(cell) in _KNOWN for cell in header)
        if text is not None and (encoding == "utf-8" or eastern):
            return encoding
    paired = _decoded_beginning(beginning, "cp949")
    signs = re.findall(rb"[\x80-\xff]+", beginning)
    if signs and sum(len(run) % 2 == 0 for run in signs) > 0.8 * len(signs):
        if paired is not None and len(re.findall(r"[가-힣]", paired)) > 0.8 * len(
            re.findall(r"[^\x00-\x7f]", paired)
        ):
            return "cp949"
        if _decoded_beginning(beginning, "gb18030") is not None:
            return "gb18030"
    return "latin-1" if _decoded_beginning(beginning, "cp1252") is None else "cp1252"


def _decoded_beginning(beginning: bytes, encoding: str) -> str | None:
    """Decode a beginning, whose last character may be cut off; None if it is not so encoded."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(beginning)
    except UnicodeDecodeError:
        return None


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def _decoded(file: Path, encoding: str, count: int = -1) -> str:
    """Decode a file, or its first bytes; DataError if it is not encoded as given."""
    content = bytes_of(file, count)
    if _is_utf8(encoding) and count >= 0:
        return content.decode("utf-8", errors="replace")  # polars names the file if it is not UTF-8
    try:
        return codecs.getincrementaldecoder(encoding)().decode(content, final=count < 0)
    except UnicodeError as error:
        raise DataError(f"{file} is not encoded as {encoding} ({error}): correct it") from None


def bytes_of(file: Path, count: int = -1) -> bytes:
    """Read a file, or its first bytes; of a gzipped or zipped one, the content."""
    try:
        if file.name.lower().endswith(".gz"):
            with gzip.open(file, "rb") as packed:
                return packed.read(count)
        if file.name.lower().endswith(".zip"):
            with zipfile.ZipFile(file) as archive:
                members = [one for one in archive.infolist() if not one.is_dir()]
                members = [one for one in members if "__MACOSX" not in one.filename]
                if len(members) != 1:
                    what = f"contains {len(members):,} files, and only archives of one are read"
                    raise DataError(f"{file} {what}: unpack it")
                return archive.read(members[0]) if count < 0 else archive.open(members[0]).read(count)
        with file.open("rb") as opened:
            return opened.read(count)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read ({error}): repair or replace it") from None


_TEXT: Final = (".csv", ".txt", ".tsv")
_EXTENSIONS: Final = (*_TEXT, *(f"{one}.gz" for one in _TEXT), ".zip", *EXCEL, ".parquet", ".pq")


def resolve(path: Path) -> list[Path]:
    """Expand ``~``, variables, ``*?[]`` and folders into files by name, without hidden ones and notes."""
    expanded = os.path.expandvars(str(path))
    if unset := re.search(r"\$\{?\w+\}?", expanded):
        raise ConfigError(
            f"path {path} contains the environment variable {unset.group()}, which is not set: set it"
        )
    try:
        given = Path(expanded).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"path {path} contains a home folder that cannot be found: write the full path"
        ) from error
    if given.is_dir():
        files = sorted(path for path in given.iterdir() if path.is_file() and _is_data(path))
        if not files:
            raise DataError(f"the folder {given} has no file of prices ({', '.join(_EXTENSIONS)})")
        return [file for file in files if file.suffix.lower() != ".txt"] or files
    files, missing = [given], f"there is no file {given}"
    pattern = bool(re.search(r"[*?\[]", str(given))) and not given.is_file()
    if pattern:
        root = Path(given.anchor)  # the current folder where the pattern is relative
        matches = root.glob(str(given.relative_to(given.anchor)))
        files = sorted(path for path in matches if path.is_file() and not _is_hidden(path))
        missing = f"no file matches {given}"
    for file in files:
        if not _is_data(file):
            raise ConfigError(
                f"{file} is neither CSV, Excel nor Parquet by its name; the extensions that are read are "
                f"{', '.join(_EXTENSIONS)}: {'narrow the pattern' if pattern else 'convert or rename it'}"
            )
    if not any(file.is_file() for file in files):
        raise DataError(f"{missing}: correct the path in the config's source ({RELATIVE_PATHS})")
    return files


def _is_data(file: Path) -> bool:
    return file.name.lower().endswith(_EXTENSIONS) and not _is_hidden(file)


def _is_hidden(file: Path) -> bool:
    return file.name.startswith((".", "~$"))


_UNNAMED: Final = re.compile(r"(Unnamed: ?\d+)?|_duplicated_\d+|__index_level_\d+__")


def is_unnamed(column: str) -> bool:
    """Return whether a column has the name of an index without a name, as pandas writes and reads it."""
    return _UNNAMED.fullmatch(column) is not None


def scan(file: Path, text: TextFormat) -> pl.LazyFrame:
    """Open a file lazily: text files and workbooks as text, Parquet with its own types."""
    try:
        if file.name.lower().endswith(EXCEL):
            return _read_sheet(file).lazy()
        return scan_text(file, text) if is_text(file) else pl.scan_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error


def _read_sheet(file: Path) -> pl.DataFrame:
    """Read the first sheet of a workbook as text."""
    from fastexcel import FastExcelError

    try:
        cells = pl.read_excel(file, has_header=False, infer_schema_length=0, raise_if_empty=False)
    except FastExcelError as error:
        raise _unreadable(file, error) from error
    lines = [[cell or "" for cell in row] for row in cells.head(HEADER_LINES).iter_rows()]
    if not lines:
        raise DataError(f"the first sheet of {file} is empty: use a sheet with values")
    skipped, names = header_of(lines) or (1, [cell.strip() for cell in lines[0]])
    return cells.slice(skipped).rename(dict(zip(cells.columns, names, strict=True)))


def columns_of(rows: pl.LazyFrame, file: Path) -> list[str]:
    """Return a file's column names; DataError if it is unreadable, or a CSV header repeats a name."""
    try:
        names = rows.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error
    for name in names:  # polars renames the second of two columns with the same name
        twin = re.fullmatch(r"(.*)_duplicated_\d+", name)
        if twin and twin[1] and twin[1] in names:  # columns without a name may repeat
            raise DataError(f"{file} has several columns named {twin[1]!r}: rename or remove all but one")
    return names


def collect(rows: pl.LazyFrame, file: Path, names: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Read the rows of a file, or the columns ``names`` under these names; DataError if unreadable."""
    if names is not None:
        rows = rows.select(pl.col(theirs).alias(ours) for ours, theirs in names.items())
    try:
        frame = rows.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(file, error) from error
    for ours, theirs in (names or {}).items():
        kind = frame.schema[ours]
        if kind.is_nested() or kind == pl.Duration:  # a type that only Parquet has
            raise DataError(
                f"{file} has values of the type {kind} in the column {theirs!r}: write plain dates, numbers "
                "or text there"
            )
    return frame


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "utf-8" in reason:
        return DataError(f"{file} is not encoded as UTF-8: set its encoding, for example encoding: latin-1")
    return DataError(f"{file} cannot be read as {file.suffix.lstrip('.')} ({reason}): repair or replace it")
