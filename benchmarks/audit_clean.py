"""Honest deliveries: inputs, prices, statements, members and codes without look-ahead. All must pass.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables, carry

from features.arithmetic.rolling import rolling_max, rolling_mean, rolling_std, rolling_sum
from pipelines.lake.contracts import check


@dataclass(frozen=True)
class Case:
    """One delivery.

    Attributes
    ----------
    make
        Market -> tables.
    expects
        For a doctored delivery: words of the right cause, one of which the sentence must contain.
    of_input
        Whether the delivery is the market as it is, with an input.
    pair
        For a doctored delivery: the signal that it gives, and its honest twin.
    """

    make: Callable[[Base], Tables]
    expects: tuple[str, ...] = ()
    of_input: bool = False
    pair: tuple[Compute, Compute] | None = None


Compute = Callable[[Base], Array]


def _input(compute: Compute) -> Case:
    return Case(lambda base: base.with_input(compute(base)), of_input=True)


def lag(x_TN: Array, k: int) -> Array:
    """Value k sessions ago."""
    out = np.full_like(x_TN, np.nan)
    out[k:] = x_TN[:-k]
    return out


def rank(x_TN: Array) -> Array:
    """Rank within the date, in (0, 1)."""
    order = np.argsort(np.argsort(np.where(np.isfinite(x_TN), x_TN, np.inf), axis=1), axis=1)
    count = np.maximum(np.isfinite(x_TN).sum(axis=1, keepdims=True), 1)
    return np.where(np.isfinite(x_TN), (order + 0.5) / count, np.nan)


def past(base: Base, days: int) -> Array:
    """Return over the last sessions."""
    return base.close_TN / lag(base.carried_TN, days) - 1.0


def volatility(base: Base, days: int) -> Array:
    """Standard deviation of the last returns."""
    return rolling_std(base.return_TN, days, days // 2)


def ewma(x_TN: Array, share: float) -> Array:
    """Exponentially weighted mean of all values so far."""
    out, state = np.full_like(x_TN, np.nan), np.full(x_TN.shape[1], np.nan)
    for t, row in enumerate(x_TN):
        new = np.where(np.isnan(state), row, state + share * (row - state))
        state = np.where(np.isfinite(row), new, state)
        out[t] = state
    return out


def expanding_mean(x_TN: Array) -> Array:
    """Mean of all values so far."""
    count = np.cumsum(np.isfinite(x_TN), axis=0)
    return np.asarray(np.cumsum(np.nan_to_num(x_TN), axis=0) / np.maximum(count, 1))


def age(base: Base) -> Array:
    """Sessions since the first price."""
    return np.cumsum(np.maximum.accumulate(np.isfinite(base.close_TN), axis=0), axis=0).astype(np.float64)


def peak(base: Base) -> Array:
    """Highest close so far."""
    return np.fmax.accumulate(base.close_TN, axis=0)


def rsi(base: Base, days: int) -> Array:
    """Share of rises in the sum of absolute returns, in percent."""
    up = rolling_sum(np.fmax(np.nan_to_num(base.return_TN), 0.0), days)
    return np.asarray(
        100.0 * up / np.maximum(rolling_sum(np.abs(np.nan_to_num(base.return_TN)), days), 1e-12)
    )


def stochastic(base: Base) -> Array:
    """Place of the close between the lowest and the highest of 14 sessions."""
    high = rolling_max(base.close_TN, 14, 14)
    low = -rolling_max(-base.close_TN, 14, 14)
    return (base.close_TN - low) / np.maximum(high - low, 1e-9)


def group_mean(base: Base, x_TN: Array) -> Array:
    """Mean over the firm's industry on the same date."""
    out = np.full_like(x_TN, np.nan)
    for code in np.unique(base.group_N):
        own = base.group_N == code
        known = np.isfinite(x_TN[:, own])
        total = np.where(known, x_TN[:, own], 0.0).sum(axis=1)
        out[:, own] = (total / np.maximum(known.sum(axis=1), 1))[:, None]
    return out


def market(base: Base) -> Array:
    """Mean return of the date, as a column."""
    known = np.isfinite(base.return_TN)
    total = np.where(known, base.return_TN, 0.0).sum(axis=1, keepdims=True)
    return np.asarray(total / np.maximum(known.sum(axis=1, keepdims=True), 1))


def beta(base: Base) -> Array:
    """Slope on the market over 126 sessions."""
    m = np.broadcast_to(market(base), base.return_TN.shape)
    return rolling_mean(base.return_TN * m, 126, 63) / rolling_mean(np.asarray(m**2), 126, 63)


def held(x_TN: Array, base: Base, days: int) -> Array:
    """Carry the value of every ``days``-th session until the next one."""
    kept = np.full_like(x_TN, np.nan)
    kept[days::days] = x_TN[days::days]
    return carry(np.where(np.isfinite(kept), kept, np.nan))


def month_starts(base: Base) -> np.ndarray:
    """Whether a session is the first of its month."""
    months = base.dates_T.astype("datetime64[M]")
    return np.concatenate([[True], months[1:] != months[:-1]])


def monthly(x_TN: Array, base: Base) -> Array:
    """Carry the value of the first session of a month."""
    return carry(np.where(month_starts(base)[:, None], x_TN, np.nan))


def trailing_loading(base: Base) -> Array:
    """Loading on the first principal component of the last 252 sessions, estimated every 63."""
    out = np.full_like(base.return_TN, np.nan)
    for t in range(252, len(out), 63):
        window = np.nan_to_num(base.return_TN[t - 251 : t + 1])
        out[t] = np.linalg.svd(window - window.mean(axis=0), full_matrices=False)[2][0]
        out[t] *= np.sign(out[t].sum())
    return carry(out)


def sparse(base: Base) -> Array:
    """Noise that is delivered on one of ten sessions, and unknown otherwise."""
    return np.where(base.noise(5) > 1.28, base.noise(6), np.nan)


def static(base: Base, key: int) -> Array:
    """A random number for each firm."""
    return np.tile(
        np.random.default_rng((base.seed, key)).standard_normal(base.return_TN.shape[1]),
        (len(base.return_TN), 1),
    )


def random_walk(base: Base) -> Array:
    """Sum of noise."""
    return np.cumsum(base.noise(8), axis=0)


def calendar(base: Base, unit: str) -> Array:
    """The month, or the weekday, the same for all firms."""
    days = base.dates_T.astype("datetime64[D]")
    number = days.astype("datetime64[M]").astype(int) % 12 if unit == "month" else (days.astype(int) + 3) % 7
    return np.tile(number.astype(np.float64)[:, None], (1, base.return_TN.shape[1]))


def surprise(base: Base, delay: int) -> Array:
    """Quarterly surprise, announced ``delay`` sessions after the quarter's end."""
    out = np.full_like(base.return_TN, np.nan)
    for t in range(63, len(out), 63):
        if t + delay < len(out):
            out[t + delay] = base.return_TN[t + 25] / 0.02 if t + 25 < len(out) else np.nan
    return carry(out)


def place_of_close(base: Base, firms: int | None = None) -> Array:
    """Place of the close in the session's range, of all or only of some firms."""
    low, high = base.bars["low"], base.bars["high"]
    out = np.where(high > low, (base.bars["close"] - low) / np.where(high > low, high - low, 1.0), np.nan)
    if firms is not None:
        out[:, np.argsort(np.isnan(out).sum(axis=0), kind="stable")[firms:]] = np.nan
    return np.asarray(out)


def countdown(base: Base, days: int) -> Array:
    """Sessions to the next of events that are ``days`` sessions apart, in another phase for each firm."""
    phase = np.random.default_rng((base.seed, 9)).integers(0, days, base.return_TN.shape[1])
    return np.asarray((days - 1.0) - (np.arange(len(base.return_TN))[:, None] + phase) % days)


def strong(base: Base, half_life: float, ic: float) -> Tables:
    """A signal known at t that forecasts each of the next returns, which are in the market's prices."""
    share = 0.5 ** (1.0 / half_life)
    signal = ewma(base.noise(55), 1.0 - share) * np.sqrt((1.0 + share) / (1.0 - share))
    usual = np.nan_to_num(np.nanstd(base.return_TN, axis=0))
    moved = _moved(signal, usual * ic)
    bars = {name: base.bars[name] * moved for name in ("open", "high", "low", "close")}
    bars["open"] = base.bars["open"] * np.vstack([moved[:1], moved[:-1]])
    bars["dividend"] = base.bars["dividend"] * moved
    tables = base.with_bars(
        **{**bars, "high": np.fmax(bars["high"], bars["open"]), "low": np.fmin(bars["low"], bars["open"])}
    )
    return {**tables, "inputs": base.rows("signal", signal)}


def _moved(signal_TN: Array, size_N: Array) -> Array:
    """Factor of the price that earns what the signal of the session before says."""
    drift = np.zeros_like(signal_TN)
    drift[1:] = signal_TN[:-1] * size_N
    return np.asarray(np.exp(np.cumsum(drift, axis=0)))


INPUTS: Final[Mapping[str, Compute]] = {
    "a flag of rises to a daily limit": lambda b: (b.return_TN > 0.095).astype(np.float64),
    "a flag of moves to a daily limit": lambda b: np.sign(b.return_TN) * (np.abs(b.return_TN) > 0.095),
    "the place of the close in its range": place_of_close,
    "the place of the close of three firms": lambda b: place_of_close(b, 3),
    "a countdown to events every 63 sessions": lambda b: countdown(b, 63),
    "a countdown to events every 5 sessions": lambda b: countdown(b, 5),
    "a firm's age": age,
    "the logarithm of a firm's age": lambda b: np.log(np.maximum(age(b), 1.0)),
    "a count of events so far": lambda b: np.cumsum(b.noise(1) > 1.5, axis=0).astype(np.float64),
    "a drawdown since the start": lambda b: b.close_TN / peak(b) - 1.0,
    "an RSI of 3 sessions": lambda b: rsi(b, 3),
    "an RSI of 14 sessions": lambda b: rsi(b, 14),
    "the rank of a five-day return": lambda b: rank(past(b, 5)),
    "standard-normal noise": lambda b: b.noise(2),
    "momentum, 21 sessions": lambda b: past(b, 21),
    "momentum, 126 sessions": lambda b: past(b, 126),
    "momentum, 252 sessions, last month left out": lambda b: lag(past(b, 231), 21),
    "yesterday's return": lambda b: lag(b.return_TN, 1),
    "today's return": lambda b: b.return_TN,
    "sign of the return": lambda b: np.sign(b.return_TN),
    "volatility, 21 sessions": lambda b: volatility(b, 21),
    "volatility, 126 sessions": lambda b: volatility(b, 126),
    "the absolute return": lambda b: np.abs(b.return_TN),
    "the raw price": lambda b: b.bars["close"],
    "the logarithm of the price": lambda b: np.log(b.close_TN),
    "an average of 5 closes": lambda b: rolling_mean(b.close_TN, 5, 5),
    "an average of 200 closes": lambda b: rolling_mean(b.close_TN, 200, 200),
    "price over its average of 20": lambda b: b.close_TN / rolling_mean(b.close_TN, 20, 20),
    "a Bollinger position": lambda b: (
        (b.close_TN - rolling_mean(b.close_TN, 20, 20)) / np.maximum(rolling_std(b.close_TN, 20, 20), 1e-9)
    ),
    "MACD": lambda b: (ewma(b.close_TN, 0.15) - ewma(b.close_TN, 0.07)) / b.close_TN,
    "a stochastic oscillator": stochastic,
    "price over its 52-week high": lambda b: b.close_TN / rolling_max(b.close_TN, 252, 126),
    "the highest close so far": peak,
    "the return since the start": lambda b: (
        b.close_TN / carry(np.where(np.isfinite(b.close_TN), b.close_TN, np.nan))[0][None, :]
    ),
    "an expanding z-score of the price": lambda b: (
        (b.close_TN - expanding_mean(b.close_TN))
        / np.sqrt(np.maximum(expanding_mean(b.close_TN**2) - expanding_mean(b.close_TN) ** 2, 1e-6))
    ),
    "the mean return so far": lambda b: expanding_mean(b.return_TN),
    "beta, 126 sessions": beta,
    "an exponential volatility": lambda b: np.sqrt(ewma(b.return_TN**2, 0.06)),
    "the industry's return of 21 sessions": lambda b: group_mean(b, past(b, 21)),
    "the industry's mean return so far": lambda b: group_mean(b, expanding_mean(b.return_TN)),
    "return against the industry": lambda b: past(b, 5) - group_mean(b, past(b, 5)),
    "log volume": lambda b: np.log1p(b.bars["volume"]),
    "volume over its average": lambda b: (
        b.bars["volume"] / np.maximum(rolling_mean(b.bars["volume"], 20, 10), 1.0)
    ),
    "illiquidity (Amihud)": lambda b: rolling_mean(
        np.abs(b.return_TN) / np.maximum(b.bars["volume"] * b.bars["close"], 1e3) * 1e6, 21, 10
    ),
    "the overnight gap": lambda b: b.bars["open"] / lag(carry(b.bars["close"]), 1) - 1.0,
    "the intraday range": lambda b: np.log(b.bars["high"] / b.bars["low"]),
    "momentum, held for a month": lambda b: monthly(past(b, 126), b),
    "volatility, held for a quarter": lambda b: held(volatility(b, 63), b, 63),
    "a trailing factor loading": trailing_loading,
    "noise on one of ten sessions": sparse,
    "a random number per firm": lambda b: static(b, 7),
    "a random walk": random_walk,
    "a flag": lambda b: (b.return_TN > 0.02).astype(np.float64),
    "the month": lambda b: calendar(b, "month"),
    "the weekday": lambda b: calendar(b, "weekday"),
    "a surprise, dated on its announcement": lambda b: surprise(b, 25),
    "reversal, clipped and ranked to a normal": lambda b: np.clip(
        -past(b, 5) / np.maximum(volatility(b, 21), 1e-4), -3, 3
    ),
}


def statements(
    base: Base, lags: tuple[int, int], *, restated: float = 0.08, differs: bool = True
) -> pl.DataFrame:
    """Quarterly earnings per firm, with amendments a hundred days after the period's end."""
    rng = np.random.default_rng((base.seed, 21))
    rows = []
    first, last = (base.dates_T[i].astype("datetime64[D]").item() for i in (0, -1))
    quarters = pl.date_range(
        dt.date(first.year - 1, 12, 31), dt.date(2040, 1, 1), "3mo", eager=True
    ).dt.month_end()
    for ticker in base.tickers_N:
        level, usual = 100.0 * np.exp(rng.normal()), int(rng.integers(*lags))
        for period in quarters:
            level *= float(np.exp(rng.normal(0.01, 0.08)))
            known = period + dt.timedelta(days=usual + int(rng.integers(0, 4)))
            again, change = rng.random() < restated, float(np.exp(rng.normal(0.0, 0.05)))
            filing = f"{ticker}-{period}"
            rows.append((ticker, period, known, "net_income", level, filing))
            rows.append((ticker, period, known, "revenue", 12.0 * level, filing))
            if again:
                later = level * change if differs else level
                rows.append(
                    (ticker, period, known + dt.timedelta(days=70), "net_income", later, f"{filing}/A")
                )
    schema = ["ticker", "period_end", "known_at", "item", "value", "filing_id"]
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(assumed=pl.lit(value=False))
    return check("fundamentals", frame.filter(pl.col("known_at") <= last)).valid


def members(base: Base, chosen: Callable[[Base, int], Array], every: int = 126, count: int = 20) -> Tables:
    """Tables with an index that takes the firms with the highest score every ``every`` sessions."""
    rows = []
    days = base.dates_T.astype("datetime64[D]")
    for start in range(0, len(days), every):
        score = np.where(np.isfinite(base.carried_TN[start]), chosen(base, start), -np.inf)
        top = np.argsort(-score, kind="stable")[:count]
        end = days[start + every].item() if start + every < len(days) else None
        rows += [("index", base.tickers_N[n], days[start].item(), end) for n in top if np.isfinite(score[n])]
    schema = {"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    return {**base.tables, "membership": pl.DataFrame(rows, schema=schema, orient="row")}


def by_volume(base: Base, start: int) -> Array:
    """Dollar volume of the last quarter, or of the first session."""
    window = slice(max(start - 62, 0), start + 1)
    return np.asarray(
        np.nan_to_num(np.nansum(base.bars["close"][window] * base.bars["volume"][window], axis=0))
    )


def halted(base: Base) -> dict[str, Array]:
    """Prices with halts of 3 to 12 sessions, filled forward without volume."""
    rng = np.random.default_rng((base.seed, 31))
    bars = {name: base.bars[name].copy() for name in ("open", "high", "low", "close", "volume")}
    for n in range(len(base.tickers_N)):
        for _ in range(4):
            start, size = int(rng.integers(30, 1000)), int(rng.integers(3, 13))
            before = bars["close"][start - 1, n]
            inside = np.isfinite(bars["close"][start : start + size, n])
            split = base.bars["split_ratio"][start : start + size + 1, n]
            if not np.isfinite(before) or (np.isfinite(split) & (split != 1.0)).any():
                continue
            for name in ("open", "high", "low", "close"):
                bars[name][start : start + size, n] = np.where(inside, before, np.nan)
            bars["volume"][start : start + size, n] = np.where(inside, 0.0, np.nan)
    return bars


def in_sixteenths(base: Base) -> dict[str, Array]:
    """Prices in sixteenths for the first half of the sample, as US prices were quoted until 2001."""
    half = len(base.dates_T) // 2
    bars = {name: base.bars[name].copy() for name in ("open", "high", "low", "close")}
    for price_TN in bars.values():
        price_TN[:half] = np.maximum(np.round(16.0 * price_TN[:half]), 1.0) / 16.0
    return bars


def listed_later(base: Base) -> Tables:
    """A third of the firms is listed during the sample, and each has an industry of its own."""
    late = {ticker: int(60 + 37 * n % 700) for n, ticker in enumerate(base.tickers_N) if n % 3 == 0}
    cut = pl.DataFrame(
        {
            "ticker": list(late),
            "since": [base.dates_T[t].astype("datetime64[D]").item() for t in late.values()],
        }
    )
    prices = base.tables["prices"].join(
        cut.with_columns(pl.col("since").cast(pl.Date)), on="ticker", how="left"
    )
    prices = prices.filter(pl.col("since").is_null() | (pl.col("date") >= pl.col("since"))).drop("since")
    own = (
        pl.when(pl.col("ticker").is_in(list(late)))
        .then(pl.concat_str(pl.lit("A "), "ticker"))
        .otherwise("industry")
    )
    tables = {name: frame for name, frame in base.tables.items() if name != "membership"}
    return {
        **tables,
        "prices": prices,
        "securities": base.tables["securities"].with_columns(own.alias("industry")),
    }


CLEAN: Final[Mapping[str, Case]] = {
    "the market as it is": Case(lambda b: b.tables),
    **{name: _input(compute) for name, compute in INPUTS.items()},
    **{
        f"a strong signal: half-life {half_life}, IC {ic}": Case(
            lambda b, half_life=half_life, ic=ic: strong(b, half_life, ic)  # type: ignore[misc]
        )
        for half_life, ic in ((2, 0.05), (5, 0.05), (21, 0.03), (63, 0.02), (126, 0.02))
    },
    "statements known within 10 days": Case(lambda b: {**b.tables, "fundamentals": statements(b, (4, 7))}),
    "statements known after 30 to 60 days": Case(
        lambda b: {**b.tables, "fundamentals": statements(b, (30, 60))}
    ),
    "amendments that changed nothing": Case(
        lambda b: {**b.tables, "fundamentals": statements(b, (30, 60), differs=False)}
    ),
    "firms listed during the sample": Case(listed_later),
    "index members, reviewed twice a year": Case(lambda b: members(b, by_volume)),
    "halts, filled forward": Case(lambda b: b.with_bars(**halted(b))),
    "closes only": Case(
        lambda b: b.with_bars(
            **{n: np.full_like(b.close_TN, np.nan) for n in ("open", "high", "low", "volume")}
        )
    ),
    "quoted in sixteenths, then in cents": Case(lambda b: b.with_bars(**in_sixteenths(b))),
    "prices in euros": Case(
        lambda b: b.with_bars(**{n: b.bars[n] * 0.8771 for n in ("open", "high", "low", "close")})
    ),
}
