"""The layouts of price files that vendors and programs write: their column names, and what their values mean.

A layout is one entry of `LAYOUTS`. It is recognised by the names of its columns, without case, accents,
spaces and punctuation. The reader of `pipelines.sources.files.prices` is the same for all of them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipelines.sources.base import name_lists

Names = Mapping[str, tuple[str, ...]]
"""Peerglass column -> names in files as `plain` returns them, the first one that a file has counts."""

BAR: Final = ("open", "high", "low")
VENDOR: Final = ("price_factor", "adjusted_close", "total_return", "price_return")
"""Columns from which splits and dividends are computed (`pipelines.sources.files.prices`)."""

PRICE_NAMES: Final[Names] = name_lists("""\
date: date datetime day timestamp time tradedate tradingdate pricedate datadate caldt asof asofdate
    businessdate dates opentime windowstart datum fecha data dt 日期 交易日期 时间 日付 날짜 일자 기준일
ticker: ticker tickers symbol tic asset sid permno permid isin cusip sedol ric figi gvkey instrument security
    securityid tscode code stock stockcode firm id 股票代码 证券代码 代码 コード 銘柄コード 종목코드 단축코드
    name 名称 銘柄名 종목명
close: close closeprice closingprice last lastprice pxlast closelast prc price settle prccd 4close kurs
    schluss schlusskurs zamkniecie zuletzt cierre cloture 收盘 收盘价 終値 종가 adjclose adjustedclose
    adjcloseprice
open: open openprice openprc pxopen prcod 1open eroffnung eroffn otwarcie apertura ouverture 开盘 开盘价 始値
    시가
high: high highprice askhi pxhigh prchd 2high hoch najwyzszy maximo plushaut 最高 最高价 高値 고가
low: low lowprice bidlo pxlow prcld 3low tief najnizszy minimo plusbas 最低 最低价 安値 저가
volume: volume vol pxvolume cshtrd sharevolume tottrdqty 5volume 6volume volumen wolumen 成交量 出来高 거래량
split_ratio: splitratio stocksplits split splitfactor splitcoefficient 8splitcoefficient
dividend: dividend dividends divamt cashdividend divcash dividendamount exdividend 7dividendamount
""")
"""Names of files of no known vendor, in English, German, French, Spanish, Polish, Chinese, Japanese and
Korean."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one vendor's price file is recognised and read.

    A file that has all plain names of a set in ``tells`` has this layout. ``columns`` are names that differ
    from `PRICE_NAMES`; an empty tuple leaves a column out. With ``midpoints``, a negative close is the
    midpoint of bid and ask on a day without a trade. ``unknown`` values mean "not known". ``issue`` tells
    several issues of a firm apart.
    """

    title: str
    tells: tuple[frozenset[str], ...]
    columns: Names = field(default_factory=dict)
    midpoints: bool = False
    unknown: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    issue: str | None = None
    note: str = ""


def _tells(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(one.split()) for one in sets)


_NO_RETURN: Final = (-44.0, -55.0, -66.0, -77.0, -88.0, -99.0)
_NEITHER: Final = name_lists("split_ratio:; dividend:")

LAYOUTS: Final[Mapping[str, Layout]] = {
    "crsp": Layout(
        "CRSP stock file",
        _tells("permno prc", "permno dlyprc", "permno mthprc"),
        _NEITHER
        | name_lists("""\
date: date dlycaldt mthcaldt caldt; ticker: permno; close: prc dlyprc mthprc; open: openprc dlyopen
high: askhi dlyhigh; low: bidlo dlylow; volume: vol dlyvol mthvol
price_factor: cfacpr dlycumfacpr mthcumfacpr
total_return: ret dlyret mthret; price_return: retx dlyretx mthretx
delisting_return: dlret; delisting_reason: dlstcd
"""),
        midpoints=True,
        unknown={
            "close": (0.0,),
            "volume": (-99.0,),
            **dict.fromkeys(("total_return", "price_return", "delisting_return"), _NO_RETURN),
        },
        note="Splits come from the cumulative price factor, and dividends from the returns with and without "
        "them.",
    ),
    "compustat": Layout(
        "Compustat security file",
        _tells("gvkey prccd", "gvkey prccm"),
        name_lists("""\
split_ratio:; date: datadate; ticker: gvkey; close: prccd prccm; high: prchd prchm; low: prcld prclm
volume: cshtrd cshtrm; price_factor: ajexdi ajexm; dividend: div dvpsxm
"""),
        issue="iid",
        note="Splits come from the adjustment factor. The first issue of a firm is named by its gvkey, "
        "others by gvkey.iid.",
    ),
    "jkp": Layout(
        "factor data of Jensen, Kelly and Pedersen",
        _tells("id eom prc", "id excntry prc"),
        _NEITHER
        | name_lists("""\
date: eom date; ticker: id; close: prc; volume: tvol; price_factor: adjfct; total_return: ret
"""),
        note="Splits come from the adjustment factor, and dividends from the total return.",
    ),
    "alpha_vantage": Layout(
        "Alpha Vantage, adjusted", _tells("timestamp dividendamount", "7dividendamount 8splitcoefficient")
    ),
    "tiingo": Layout("Tiingo", _tells("divcash splitfactor")),
    "wiki": Layout("Quandl WIKI", _tells("exdividend splitratio")),
    "sharadar": Layout(
        "Sharadar",
        _tells("closeadj closeunadj"),
        _NEITHER | name_lists("open:; high:; low:; close: closeunadj; adjusted_close: closeadj"),
        note="Open, high and low are left out, because they are adjusted for splits and the close is not.",
    ),
    "yahoo": Layout(
        "Yahoo, closes before and after adjustment",
        _tells("close adjclose", "price adjclose", "closeprice adjclose", "last adjclose"),
        {"split_ratio": (), "adjusted_close": ("adjclose",)},
        note="Its closes are adjusted for splits; dividends come from the column of dividends, or from the "
        "adjusted close.",
    ),
    "yahoo_history": Layout(
        "Yahoo, history() of yfinance",
        _tells("close dividends stocksplits"),
        _NEITHER,
        note="Its closes are adjusted for splits and dividends, so neither is counted again.",
    ),
    "adjusted": Layout(
        "closes before and after adjustment, as by EOD Historical Data",
        _tells("close adjustedclose"),
        {**_NEITHER, "adjusted_close": ("adjustedclose",)},
        note="Splits and dividends come from the ratio of the adjusted close to the close.",
    ),
    "adjusted_only": Layout(
        "closes after adjustment alone",
        _tells("adjclose", "adjustedclose", "adjcloseprice"),
        {**_NEITHER, "close": ("adjclose", "adjustedclose", "adjcloseprice")},
        note="Its closes contain splits and dividends, so neither is counted again.",
    ),
    "nasdaq": Layout("Nasdaq.com", _tells("date closelast")),
    "investing": Layout("Investing.com", _tells("date price change")),
    "stooq": Layout("Stooq", _tells("ticker per date close")),
}
"""Layouts of known vendors by the name that ``source.format`` gives them, the most special ones first."""


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
    """Ticker -> field -> column, for a header of two lines; empty if the header has one.

    The fields are in the line of which more names are known.
    """
    pairs = {name: pair for name in available if (pair := pair_of(name)) is not None}
    known = {name for names in PRICE_NAMES.values() for name in map(plain, names)}
    first, second = ({pair[place] for pair in pairs.values()} for place in (0, 1))
    in_first, in_second = (sum(plain(one) in known for one in names) for names in (first, second))
    place = 0 if in_first >= in_second else 1
    found: dict[str, dict[str, str]] = {}
    for name, pair in pairs.items():
        found.setdefault(pair[1 - place].strip(), {})[pair[place].strip()] = name
    return found
