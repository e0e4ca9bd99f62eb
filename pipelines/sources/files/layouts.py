"""The layouts of price files that vendors and programs write: their column names, and what their values mean.

A layout is an entry of ``pipelines/sources/vendors.yaml``. It is recognised by the names of its columns,
without case, accents, spaces and punctuation. The reader of `pipelines.sources.files.prices` is the same for
all of them.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from features.options import Options
from pipelines.sources.base import vendor_names

Names = Mapping[str, tuple[str, ...]]  # Peerglass column -> `plain` names in files; the first one counts
BAR: Final = ("open", "high", "low")
# columns from which splits and dividends are computed (`pipelines.sources.files.prices`)
VENDOR: Final = ("price_factor", "adjusted_close", "total_return", "price_return")
PRICE_NAMES: Final[Names] = vendor_names("prices")  # names in files of no known vendor


_Words = Annotated[tuple[str, ...], BeforeValidator(lambda words: (words or "").split())]


class Layout(Options):
    """How one vendor's price file is recognised and read (``vendors.yaml``)."""

    title: str = ""
    tells: tuple[Annotated[frozenset[str], BeforeValidator(str.split)], ...] = ()
    columns: dict[str, _Words] = Field(default={})
    midpoints: bool = False
    unknown: dict[str, tuple[float, ...]] = Field(default={})
    issue: str | None = None
    note: str = ""


LAYOUTS: Final = {name: Layout.model_validate(one) for name, one in vendor_names("layouts").items()}
"""Layouts of known vendors by the name that ``source.vendor`` gives them, the most special ones first."""


@functools.cache
def plain(name: str) -> str:
    """Return a name in lower case without accents, spaces and punctuation.

    >>> plain("Adj. Close"), plain("Eröffn."), plain("<TICKER>")
    ('adjclose', 'eroffn', 'ticker')
    """
    letters = unicodedata.normalize("NFKD", name.lower().replace("ł", "l"))
    return re.sub(r"[\W_]+", "", "".join(one for one in letters if not unicodedata.combining(one)))


def match_names(names: Names, available: Sequence[str]) -> dict[str, str]:
    """Peerglass column -> the file's column, by the first of its usual names that the file has."""
    by_plain = {plain(name): name for name in reversed(available)}  # the first of equal names counts
    found: dict[str, str] = {}
    for ours, theirs in names.items():
        match = next((by_plain[name] for name in map(plain, theirs) if name in by_plain), None)
        if match is not None and match not in found.values():
            found[ours] = match
    return found


def recognise_layout(available: Iterable[str]) -> str | None:
    """Return the name of the layout of which a file has the columns; None if there is none."""
    have = {plain(name) for name in available}
    return next((name for name, one in LAYOUTS.items() if any(tells <= have for tells in one.tells)), None)


def pair_of(name: str) -> tuple[str, str] | None:
    """Return the two parts of a column's name under a header of two lines, as pandas writes it.

    >>> pair_of("('Close', 'AAPL')"), pair_of("Close")
    (('Close', 'AAPL'), None)
    """
    match = re.fullmatch(r"\('(.*)', '(.*)'\)", name)
    return (match[1], match[2]) if match else None


def fields_of(available: Sequence[str]) -> dict[str, dict[str, str]]:
    """Ticker -> field -> column, for a header of two lines; empty if the header has one."""
    pairs = {name: pair for name in available if (pair := pair_of(name)) is not None}
    known = {name for names in PRICE_NAMES.values() for name in map(plain, names)}
    first, second = ({pair[place] for pair in pairs.values()} for place in (0, 1))
    in_first, in_second = (sum(plain(one) in known for one in names) for names in (first, second))
    place = 0 if in_first >= in_second else 1
    found: dict[str, dict[str, str]] = {}
    for name, pair in pairs.items():
        found.setdefault(pair[1 - place].strip(), {})[pair[place].strip()] = name
    return found
