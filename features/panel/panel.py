"""The panel: dense arrays over (session, firm), built from the lake's tables.

Shape suffixes: T sessions, N firms, S groups. Index t is the close of session t.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import BoolArray, DateArray, FloatArray, IntArray
from features.panel.asof import Statements, groups_as_of, statements_as_of
from features.panel.delistings import DelistingRule, find_delistings
from features.panel.periods import SESSIONS_PER_YEAR, periods_per_year

PRICE_COLUMNS = ("date", "ticker", "open", "high", "low", "close", "volume", "split_ratio", "dividend")


@dataclass(frozen=True, slots=True, eq=False)
class WrongRows:
    """Rows of a panel that earn nothing, in the order of their sessions."""

    session_K: IntArray
    firm_K: IntArray
    """`session_K`, `firm_K`: cells of the panel."""
    price_K: BoolArray
    """Whether the price of the row is wrong, and the next one right again. Otherwise the move into the row is
    wrong, and later prices are in its unit: pence for pounds, or a split that prices do not show."""
    currency_K: BoolArray
    """Whether a share is quoted in another currency from the row on, such as pence for pounds."""


NO_ROWS = WrongRows(*(2 * (np.zeros(0, np.intp),)), *(2 * (np.zeros(0, np.bool_),)))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Panel:
    """What is known about every firm at every close. Arrays are read-only.

    Everything is causal to the bit: row t depends only on data dated <= t.

    Examples
    --------
    >>> prices = pl.DataFrame({"date": ["2024-01-02"], "ticker": ["A"], "close": [10.0]})
    >>> prices = prices.with_columns(pl.col("date").str.to_date())
    >>> absent = [pl.lit(None, pl.Float64).alias(n) for n in PRICE_COLUMNS if n not in prices.columns]
    >>> panel = build_panel(prices.with_columns(absent))
    >>> panel.n_sessions, panel.tickers_N, sorted(panel.fields)
    (1, ('A',), ['close'])
    """

    dates_T: DateArray
    """Sessions (``datetime64[D]``): the distinct dates of the prices, and of ``gaps`` within their span."""
    tickers_N: tuple[str, ...]
    """Firms, sorted."""
    close_TN: FloatArray
    open_TN: FloatArray | None
    high_TN: FloatArray | None
    low_TN: FloatArray | None
    """`close_TN`, `open_TN`, `high_TN`, `low_TN`: forward-adjusted prices
    (`features.panel.panel.forward_factor`); NaN = no trade or unknown. None if the source has no such
    column."""
    raw_close_TN: FloatArray
    """Close as quoted."""
    volume_TN: FloatArray | None
    """Shares traded, as quoted."""
    total_return_index_TN: FloatArray
    """Total return index, continued through halts and delistings, for labels and accounting
    (`features.panel.panel.total_return_index`)."""
    delisted_TN: BoolArray
    """Whether a delisting has paid out the holders in cash (`features.panel.delistings.find_delistings`)."""
    gap_TN: BoolArray
    """Whether the price of a listed firm is known to be missing from the data, so that labels across it are
    unknown; without a row in ``gaps``, a missing price is a halt."""
    unknown_TN: BoolArray
    """Whether that delisting has neither a recorded return nor a known reason; see
    `total_return_index_assuming`."""
    group_TN: IntArray
    """Industry or sector as of t; -1 unknown."""
    groups_S: tuple[str, ...]
    """Names of the codes in ``group_TN``."""
    statements: Statements
    """For each item, the latest value known at t under ``<item>`` and the value of a year earlier under
    ``<item>@1y``. Arrays of shape (T, N); see `features.panel.asof.statements_as_of`."""
    hazards: tuple[str, ...]
    """Warnings about the data that affect how far results can be trusted, one sentence each."""
    periods_per_year: float = SESSIONS_PER_YEAR
    """Sessions in a year, which annual figures use (`periods_per_year`)."""
    wrong: WrongRows = NO_ROWS
    """Rows that earn nothing (`features.panel.holding`). All other fields hold their prices as delivered."""
    newest_tickers: Mapping[str, str] = field(default_factory=dict)
    """Former ticker -> newest ticker of the last firm that had it."""
    universe_TN: BoolArray | None = None
    """The universe as of t, which operators across firms compare (`features.library.expressions`). None: all
    firms that traded."""
    members_TN: BoolArray | None = None
    """Firms that have been members of the universe's list up to t, whose means features compare with. A firm
    that joins later is in the data because it does, so its past is not in a mean before. None: no list."""

    @property
    def n_sessions(self) -> int:
        """Number of sessions T."""
        return len(self.dates_T)

    @property
    def n_firms(self) -> int:
        """Number of firms N."""
        return len(self.tickers_N)

    @property
    def traded_TN(self) -> BoolArray:  # noqa: N802  # a shape suffix
        """Whether a firm has a price on a session: bool, shape (T, N)."""
        return ~np.isnan(self.close_TN)

    def total_return_index_assuming(self, unknown_return: float) -> FloatArray:
        """Return the total return index, shape (T, N), if delistings for unknown reasons paid this return."""
        paid_TN = carry(self.close_TN) * (1.0 + unknown_return)
        return np.where(self.unknown_TN, paid_TN, self.total_return_index_TN)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields in the panel: close, open, high, low, volume, group, ``statements:<item>``."""
        optional = {"open": self.open_TN, "high": self.high_TN, "low": self.low_TN, "volume": self.volume_TN}
        present = {name for name, array in optional.items() if array is not None}
        groups = {"group"} if self.groups_S else set()
        return frozenset({"close"} | present | groups | {f"statements:{item}" for item in self.statements})


def build_panel(
    prices: pl.DataFrame,
    securities: pl.DataFrame | None = None,
    fundamentals: pl.DataFrame | None = None,
    *,
    gaps: pl.DataFrame | None = None,
    group_by: Literal["sector", "industry"] = "industry",
    delisting_rule: DelistingRule = DelistingRule(),  # noqa: B008  # frozen
    per_year: float | None = None,
    wrong: pl.DataFrame | None = None,
) -> Panel:
    """Build the panel from validated tables.

    Parameters
    ----------
    prices : polars.DataFrame
        Columns date, ticker, open, high, low, close, volume, split_ratio, dividend; one row per (date,
        ticker). A null or non-positive close means no trade. A null or non-positive open, high or low is
        unknown; a high below the low makes both unknown. A null split ratio is 1 and a null dividend 0.
        Columns without a single value become None.
    securities : polars.DataFrame, optional
        Columns ticker, valid_from, valid_to, sector, industry, delisted_on, delisting_return,
        delisting_reason, exchange.
    fundamentals : polars.DataFrame, optional
        Columns ticker, period_end, known_at, item, value.
    gaps : polars.DataFrame, optional
        Columns date, ticker: sessions on which the price of a firm is not known, although it may have traded.
        Rows of other tickers, rows with a price, and dates outside the prices are ignored.
    group_by : {"sector", "industry"}
        Column of ``securities`` that defines the groups.
    delisting_rule : DelistingRule
        Assumptions where no delisting, or no delisting return, is recorded.
    per_year : float, optional
        Sessions in a year. None: what the dates say (`periods_per_year`).
    wrong : polars.DataFrame, optional
        Rows that earn nothing: date, ticker, price and currency, bools as in `WrongRows`. Of several rows of
        a cell, a wrong price counts. Rows without a price in ``prices`` are left out.

    Returns
    -------
    Panel
        Arrays over the distinct dates and tickers of ``prices``.

    Raises
    ------
    ValueError
        If columns or rows are missing, a (date, ticker) appears twice, no close is known, or a split ratio
        or dividend is out of range.

    Examples
    --------
    >>> prices = pl.DataFrame({"date": ["2024-01-02", "2024-01-03"], "close": [10.0, 5.5], "ticker": "A"})
    >>> prices = prices.with_columns(pl.col("date").str.to_date(), split_ratio=pl.Series([1.0, 2.0]))
    >>> absent = [pl.lit(None, pl.Float64).alias(n) for n in PRICE_COLUMNS if n not in prices.columns]
    >>> build_panel(prices.with_columns(absent)).close_TN.ravel()  # a split of two for one
    array([10., 11.])
    """
    _check_prices(prices)
    tickers = prices["ticker"].unique().sort()
    gaps = _within(gaps, prices)
    dates = pl.concat([prices["date"], gaps["date"]]).unique().sort()
    dates_T: DateArray = dates.to_numpy().astype("datetime64[D]")
    tickers_N = tuple(tickers.to_list())
    at_R, firm_R = _cells(prices, dates_T, tickers)
    _refuse_duplicates(prices, at_R * len(tickers_N) + firm_R)

    def grid(column: str, fill: float) -> FloatArray:
        out_TN = np.full((len(dates_T), len(tickers_N)), fill)
        out_TN[at_R, firm_R] = prices[column].cast(pl.Float64).fill_null(fill).fill_nan(fill).to_numpy()
        return out_TN

    def price(column: str) -> FloatArray | None:
        if prices[column].null_count() == len(prices):
            return None
        out_TN = grid(column, np.nan)
        out_TN[~(out_TN > 0)] = np.nan
        return out_TN

    raw_TN = price("close")
    if raw_TN is None:
        msg = "The prices have no close at all: map the source's closing price to the column `close`."
        raise ValueError(msg)
    split_TN = grid("split_ratio", 1.0)
    factor_TN = forward_factor(raw_TN, split_TN, grid("dividend", 0.0))
    close_TN = raw_TN * factor_TN

    def adjusted(column: str) -> FloatArray | None:
        price_TN = price(column)
        if price_TN is None:
            return None
        price_TN[np.isnan(raw_TN)] = np.nan  # without a close, a book cannot rely on a trade
        return price_TN * factor_TN

    open_TN, high_TN, low_TN = adjusted("open"), adjusted("high"), adjusted("low")
    hazards = _clear_crossed(high_TN, low_TN)
    if open_TN is not None:
        holes = int((np.isnan(open_TN) & ~np.isnan(raw_TN)).sum())
        hazards += _counted(holes, "cell(s) with a close have no usable open: the open is unknown.")
    volume_TN = None if prices["volume"].null_count() == len(prices) else grid("volume", np.nan)
    if volume_TN is not None:
        volume_TN[np.isnan(raw_TN)] = np.nan

    traded_TN = ~np.isnan(raw_TN)
    gap_TN = _gap_cells(gaps, dates_T, tickers, traded_TN)
    delistings = find_delistings(traded_TN, dates_T, tickers_N, securities, delisting_rule, gap_TN=gap_TN)
    gap_TN &= ~delistings.delisted_TN
    group_TN: IntArray = np.full(raw_TN.shape, -1, dtype=np.int16)
    groups_S: tuple[str, ...] = ()
    if securities is not None:
        group_TN, groups_S = groups_as_of(securities, group_by, dates_T, tickers_N)
    statements = Statements({}, range(len(tickers_N)), np.multiply.accumulate(split_TN, axis=0))
    if fundamentals is not None:
        statements = statements_as_of(fundamentals, dates_T, tickers_N, split_TN)
    panel = Panel(
        dates_T=dates_T,
        tickers_N=tickers_N,
        close_TN=close_TN,
        open_TN=open_TN,
        high_TN=high_TN,
        low_TN=low_TN,
        raw_close_TN=raw_TN,
        volume_TN=volume_TN,
        total_return_index_TN=total_return_index(close_TN, delistings.value_ratio_TN),
        delisted_TN=delistings.delisted_TN,
        gap_TN=gap_TN,
        unknown_TN=delistings.unknown_TN,
        group_TN=group_TN,
        groups_S=groups_S,
        statements=statements,
        hazards=(*hazards, *delistings.hazards),
        periods_per_year=periods_per_year(dates_T) if per_year is None else per_year,
        wrong=NO_ROWS if wrong is None else _place(wrong, dates_T, tickers, raw_TN),
    )
    for array in (getattr(panel, one.name) for one in fields(panel)):
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return panel


def _clear_crossed(high_TN: FloatArray | None, low_TN: FloatArray | None) -> list[str]:
    """Set highs and lows to NaN where the high is below the low, and count them in a sentence."""
    if high_TN is None or low_TN is None:
        return []
    crossed_TN = high_TN < low_TN
    high_TN[crossed_TN] = low_TN[crossed_TN] = np.nan
    return _counted(int(crossed_TN.sum()), "cell(s) have a high below the low: both are treated as unknown.")


def _gap_cells(gaps: pl.DataFrame, dates_T: DateArray, tickers: pl.Series, traded_TN: BoolArray) -> BoolArray:
    """Flag the gaps of listed firms that have no price."""
    gap_TN = np.zeros(traded_TN.shape, np.bool_)
    gap_TN[_cells(gaps, dates_T, tickers)] = True
    return gap_TN & ~traded_TN & np.maximum.accumulate(traded_TN, axis=0)


def _within(gaps: pl.DataFrame | None, prices: pl.DataFrame) -> pl.DataFrame:
    """Keep the gaps of firms that have prices, between the first and the last price of all firms."""
    if gaps is None:
        return prices.select("date", "ticker").clear()
    dates = pl.col("date").is_between(prices["date"].min(), prices["date"].max())
    return gaps.select("date", "ticker").filter(dates).join(prices, on="ticker", how="semi")


def _cells(rows: pl.DataFrame, dates_T: DateArray, tickers: pl.Series) -> tuple[IntArray, IntArray]:
    """Return the session and the firm of each row as positions in the panel."""
    at_R = np.searchsorted(dates_T, rows["date"].to_numpy().astype("datetime64[D]"))
    firms = pl.int_range(len(tickers), eager=True)
    return at_R, rows["ticker"].replace_strict(tickers, firms, return_dtype=pl.Int64).to_numpy()


def _place(rows: pl.DataFrame, dates_T: DateArray, tickers: pl.Series, raw_TN: FloatArray) -> WrongRows:
    """Find the cells of rows that have a price."""
    kept = rows.filter(pl.col("ticker").is_in(tickers.implode()) & pl.col("date").is_in(dates_T.tolist()))
    kept = kept.group_by("date", "ticker").agg(pl.col("price", "currency").any()).sort("date", "ticker")
    t_K, n_K = _cells(kept, dates_T, tickers)
    there_K = ~np.isnan(raw_TN[t_K, n_K])
    price_K, currency_K = (kept[name].to_numpy()[there_K] for name in ("price", "currency"))
    return WrongRows(t_K[there_K], n_K[there_K], price_K, currency_K & ~price_K)


def _counted(count: int, sentence: str) -> list[str]:
    return [f"{count:,} {sentence}"] if count else []


def _check_prices(prices: pl.DataFrame) -> None:
    missing = [name for name in PRICE_COLUMNS if name not in prices.columns]
    if missing:
        msg = f"The prices lack the column(s) {', '.join(missing)}: add them, with nulls for unknown values."
        raise ValueError(msg)
    if prices.is_empty():
        raise ValueError("The prices have no rows: ingest a source first, or widen the dates.")
    odd = prices.filter((pl.col("split_ratio") <= 0) | (pl.col("dividend") < 0))
    if not odd.is_empty():
        day, ticker, ratio, dividend = odd.select("date", "ticker", "split_ratio", "dividend").row(0)
        raise ValueError(
            f"{ticker} on {day} has split ratio {ratio} and dividend {dividend}: the split ratio must be "
            "above 0 and the dividend at least 0."
        )


def _refuse_duplicates(prices: pl.DataFrame, cell_R: IntArray) -> None:
    """Refuse two rows of one cell. Marking cells is many times faster than comparing dates and tickers."""
    marked = np.zeros(int(cell_R.max()) + 1, dtype=np.bool_)
    marked[cell_R] = True
    if np.count_nonzero(marked) == len(prices):
        return
    keys = prices.select("date", "ticker")
    day, ticker = keys.filter(keys.is_duplicated()).row(0)
    raise ValueError(f"The prices have several rows for {ticker} on {day}: keep one row per (date, ticker).")


def forward_factor(close_TN: FloatArray, split_TN: FloatArray, dividend_TN: FloatArray) -> FloatArray:
    r"""Compute the forward adjustment ``F_t = prod_{s<=t} split_s (1 + dividend_s / close_s)``.

    Backward adjustment rewrites past prices at every new event, so yesterday's adjusted price would depend
    on tomorrow's dividend. Forward adjustment multiplies from the first session on: row t depends only on
    rows <= t, to the bit, and returns are the same.

    A dividend is per share after that day's split and is reinvested at the close of its ex-date. If the firm
    does not trade on the ex-date, the dividend is reinvested at the next close, divided by any splits in
    between.

    Closes are raw; NaN means no trade. ``split_TN`` holds new shares per old share on the ex-date, 1
    otherwise, and ``dividend_TN`` cash per share on the ex-date, 0 otherwise. The factor is 1 before the
    first event.

    Examples
    --------
    >>> close, split, dividend = np.array([[10.0], [5.0]]), np.array([[1.0], [2.0]]), np.array([[0.0], [0.5]])
    >>> forward_factor(close, split, dividend).ravel()
    array([1. , 2.2])
    """
    step_TN = split_TN.copy()
    waiting_N = np.zeros(close_TN.shape[1])
    for t in range(len(close_TN)):
        waiting_N = waiting_N / split_TN[t] + dividend_TN[t]
        if waiting_N.any():
            traded_N = ~np.isnan(close_TN[t])
            paid_N = traded_N & (waiting_N > 0)
            step_TN[t, paid_N] *= 1.0 + waiting_N[paid_N] / close_TN[t, paid_N]
            waiting_N[traded_N] = 0.0
    factor_TN: FloatArray = np.multiply.accumulate(step_TN, axis=0)
    return factor_TN


def total_return_index(close_TN: FloatArray, value_ratio_TN: FloatArray) -> FloatArray:
    """Compute the total return index: the value of one share through halts and delistings.

    It is the forward-adjusted close; during a halt the last close; after a delisting the constant
    ``last * (1 + delisting return)``. ``value_ratio_TN`` is the value of a share without a price, as a
    fraction of its last price (`features.panel.delistings.find_delistings`). NaN before the first price and
    where the value is unknown. Row t depends only on rows <= t.

    Examples
    --------
    >>> total_return_index(np.array([[10.0], [np.nan]]), np.array([[1.0], [0.7]])).ravel()
    array([10.,  7.])
    """
    return np.where(np.isnan(close_TN), carry(close_TN) * value_ratio_TN, close_TN)


def to_panel(frame: pl.DataFrame, value: str, panel: Panel) -> FloatArray:
    """Convert a long frame (date, ticker, value) to the panel's shape [T, N]; NaN where there is no row.

    Rows of dates or tickers outside the panel are left out.
    """
    sessions = pl.DataFrame({"date": panel.dates_T.astype("datetime64[D]")}).with_row_index("t")
    firms = pl.DataFrame({"ticker": panel.tickers_N}).with_row_index("n")
    placed = frame.select("date", "ticker", value).join(sessions, on="date").join(firms, on="ticker")
    value_TN = np.full((panel.n_sessions, panel.n_firms), np.nan)
    value_TN[placed["t"].to_numpy(), placed["n"].to_numpy()] = placed[value].to_numpy()
    return value_TN
