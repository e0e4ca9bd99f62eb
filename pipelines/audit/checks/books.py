"""Ensembles and books: what is made of forecasts follows them, and earns what comes after them.

An ensemble is the mean of the seeds' standardised forecasts, whatever the returns turn out to be: one whose
sign or weights follow the test's returns turns noise into skill. The books of the config trade made-up
forecasts on a few firms, through the pipeline's own evaluation. Forecasts and prices are replaced from some
sessions on, and trades and profits are compared with other arithmetic.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Finding, Result, Verdict, answer, conclude, skipped
from backtest.look_ahead.noise import replace_future
from features.arrays import FloatArray, IntArray
from features.panel.delistings import DelistingRule
from features.panel.panel import to_panel
from pipelines.audit.checks.labels import holder_values
from pipelines.audit.subject import Subject
from pipelines.config.schema import Config
from pipelines.dataset import market as markets
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.results import evaluate
from pipelines.results.books import MeasuredBook
from pipelines.results.forecast_tables import ensemble_table

ENSEMBLE_TOLERANCE: Final = 1e-9
DATES: Final = 40
_FEWEST: Final = 3
FIRMS: Final = 100
_BEFORE: Final = 300
_SPAN: Final = 22  # sessions before and after t with forecasts, so that a monthly book decides
_SLOW_SPAN: Final = 4  # the same for optimised books, whose decisions take long
_CUTS: Final = 6
BOOK_TOLERANCE: Final = 1e-8
_AGAINST: Final = -0.05
_SCORES: Final = {"model": pl.String, "seed": pl.Int64, "fold": pl.Int64, "valid_ic": pl.Float64} | {
    "valid_rank_ic": pl.Float64
}


def ensembles(subject: Subject) -> Result:
    """Compare ensembles of made-up and of stored forecasts with the mean over seeds of their z-scores."""
    panel, problems = subject.dataset.panel, []
    cases = _made_up(subject)
    if not any(np.isfinite(seeds[0]).any() for seeds in cases.values()):
        return skipped(f"No test date has {_FEWEST} firms with a label.")
    for case, seeds in cases.items():
        own_TN = mean_of_standardised(seeds)
        stored_TN = to_panel(ensemble_table({"m": seeds}, panel), "signal", panel)
        for found_TN in (evaluate.ensemble(seeds), stored_TN):
            problems += _differs(found_TN, own_TN, subject, f"of forecasts that {case}")
    stored = list(_stored(subject))
    for model, signal_TN, own_TN in stored:
        problems += _differs(signal_TN, own_TN, subject, f"that is stored for {model}")
    if problems:
        return answer("fail", problems[0], pl.DataFrame({"finding": problems}))
    plural = "s" if len(stored) > 1 else ""
    also = f", and so are the stored ones of {len(stored)} model{plural}" if stored else ""
    sentence = (
        "Ensembles are the means of the seeds' standardised forecasts, for forecasts that agree with the "
        f"labels and for those that contradict them{also}."
    )
    return answer("pass", sentence)


def mean_of_standardised(seeds: Mapping[int, FloatArray]) -> FloatArray:
    """Mean over seeds of forecasts standardised within the date; NaN where a seed has no forecast."""
    total_TN = np.zeros(next(iter(seeds.values())).shape)
    for forecast_TN in seeds.values():
        score_TN = np.full(forecast_TN.shape, np.nan)
        for t in np.flatnonzero(np.isfinite(forecast_TN).any(axis=1)):
            known_N = np.isfinite(forecast_TN[t])
            value_N = forecast_TN[t, known_N]
            spread = value_N.std()
            score_TN[t, known_N] = (value_N - value_N.mean()) / spread if spread > 0 else 0.0
        total_TN += score_TN
    return total_TN / len(seeds)


def _made_up(subject: Subject) -> dict[str, dict[int, FloatArray]]:
    """Forecasts of two seeds on some test dates, by how they are related to the labels.

    A live fold has no test, and lends dates of its validation.
    """
    data = subject.dataset
    rng = np.random.default_rng((subject.seed, 13))
    label_TN = np.where(data.universe_TN, data.labels[subject.config.label.delay], np.nan)
    scored = [fold.test if len(fold.test) else fold.valid for fold in subject.folds]
    tested = np.unique(np.concatenate(scored))
    usable = tested[(np.isfinite(label_TN[tested]).sum(axis=1) >= _FEWEST)]
    dates = usable[np.linspace(0, len(usable) - 1, min(DATES, len(usable))).astype(int)]
    label_DN = label_TN[dates]
    spread = float(np.nanstd(label_DN)) if len(dates) else 1.0
    known_DN = np.nan_to_num(label_DN / max(spread, 1e-12))

    def made(strength: float) -> FloatArray:
        value_DN = strength * known_DN + rng.standard_normal(label_DN.shape)
        value_TN = np.full(label_TN.shape, np.nan)
        value_TN[dates] = np.where(data.universe_TN[dates], value_DN, np.nan)
        return value_TN

    return {
        "agree with the labels": {0: made(1.0), 1: made(1.0)},
        "contradict the labels": {0: made(-1.0), 1: made(-1.0)},
        "agree for one seed and contradict for the other": {0: made(0.5), 1: made(-1.0)},
        "contradict the labels, with one seed": {0: made(-1.0)},
    }


def _differs(found_TN: FloatArray, own_TN: FloatArray, subject: Subject, which: str) -> list[str]:
    """One sentence if a signal is not the mean that it should be."""
    off_TN = ~np.isclose(found_TN, own_TN, ENSEMBLE_TOLERANCE, ENSEMBLE_TOLERANCE, equal_nan=True)
    if not off_TN.any():
        return []
    t, n = (int(i) for i in np.argwhere(off_TN)[0])
    both_TN = np.isfinite(found_TN) & np.isfinite(own_TN)
    turned = np.allclose(found_TN[both_TN], -own_TN[both_TN]) and both_TN.any()
    cause = "Its sign is turned: was it chosen by the IC of the test?"
    why = cause if turned else "Do its weights depend on the returns of the test?"
    return [
        f"The ensemble {which} is not the mean of the seeds' standardised forecasts: it is "
        f"{found_TN[t, n]:+.4f} for {subject.dataset.panel.tickers_N[n]} on {subject.day(t)}, and the mean "
        f"is {own_TN[t, n]:+.4f}. {why}"
    ]


def _stored(subject: Subject) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Model, stored ensemble and own mean of a run's stored forecasts, on the dates of the ensemble."""
    table = None if subject.run is None else subject.run.read_table("ensembles")
    if table is None:
        return
    arrays = subject.tested
    for (model,), part in table.group_by("model", maintain_order=True):
        if str(model) in arrays:
            found_TN = to_panel(part, "signal", subject.dataset.panel)
            dates_T1 = np.isfinite(found_TN).any(axis=1, keepdims=True)
            yield str(model), found_TN, np.where(dates_T1, mean_of_standardised(arrays[str(model)]), np.nan)


def books(subject: Subject) -> Result:
    """Replace forecasts and prices after t, and recompute the trades and profits of the configured books."""
    times = _times(subject)
    if not times:
        return skipped("There are too few sessions with a universe.")
    try:
        found = [one for t in times for one in _problems(subject, t)]
    except (ConfigError, DataError, ValueError) as error:
        return skipped(f"The books could not trade a sample of {FIRMS} firms: {error}")
    passed = (
        f"{', '.join(subject.config.backtest.books)}: no trade changes before its decision is due when later "
        "forecasts or prices are replaced, trades are those decided, and positions earn the returns that "
        "follow."
    )
    return conclude(found, passed)


def _times(subject: Subject) -> list[int]:
    """Sessions in the middle of a probe: in the last test and, for a full audit, anywhere."""
    spare = _SPAN + subject.config.label.max_delay + subject.config.label.horizon + 2
    decisions = subject.decisions
    usable = decisions[
        (decisions >= decisions[0] + _SPAN) & (decisions < subject.dataset.panel.n_sessions - spare)
    ]
    if not len(usable):
        return []
    rng = np.random.default_rng((subject.seed, 14))
    last = np.intersect1d(usable, subject.folds[-1].test)
    times = [int(rng.choice(last if len(last) else usable))]
    return times if subject.budget.quick else [*times, int(rng.choice(usable))]


class _Traded(NamedTuple):
    """A book that traded on a market, and the delay with which its decisions are due."""

    book: MeasuredBook
    market: Market
    due: int

    @property
    def name(self) -> str:
        return f"Book {self.book.orders.name}"

    def day(self, t: int) -> str:
        return str(self.market.panel.dates_T[t])

    def ledger(self, until: int) -> dict[tuple[int, str], tuple[float, ...]]:
        """Trades and profits up to a session of the panel, from which positions follow."""
        first, moved = self.book.orders.held.start, (pl.col("trade") != 0) | (pl.col("pnl") != 0)
        rows = self.book.result.ledger.filter((pl.col("session") + first <= until) & moved)
        return {
            (s + first, self.market.panel.tickers_N[n]): tuple(amounts)
            for s, n, *amounts in rows.select("session", "firm", "trade", "pnl").iter_rows()
        }

    def changed(self, other: _Traded, until: int, words: str) -> Iterator[str]:
        """Say of which firm and on which day the first trade or profit up to a session is another one."""
        left, right = self.ledger(until), other.ledger(until)
        if keys := [key for key in {*left, *right} if left.get(key) != right.get(key)]:
            t, firm = min(keys)
            yield f"{self.name} {words.format(firm=firm, day=self.day(t))}"


def _problems(subject: Subject, t: int) -> Iterator[Finding]:
    config, day = subject.config, subject.day(t)
    tables = subject.sample_firms(subject.window(t - _BEFORE, t + 2 * _SPAN), FIRMS)
    market = markets.build_market(tables, config)
    at = int(np.searchsorted(market.panel.dates_T, np.datetime64(day)))
    slow = any(book.kind == "optimised" for book in config.backtest.books.values())
    span = _SLOW_SPAN if slow else _SPAN
    decisions = np.flatnonzero(market.universe_TN.any(axis=1))
    place = int(np.searchsorted(decisions, at))
    rows = decisions[max(place - span, 0) : place + span + 1]
    rng = np.random.default_rng((subject.seed, 15, t))
    base_TN = _forecasts(market, rows, rng)
    drawn = rng.choice(rows[1:-1], min(1 if slow else _CUTS, len(rows) - 2), replace=False)
    signals = {"base": base_TN, "turned": -base_TN}
    for cut in sorted({at, *drawn.tolist()}):
        other_TN = _forecasts(market, rows, rng)
        signals[f"after {cut}"] = np.where(np.arange(len(base_TN))[:, None] > cut, other_TN, base_TN)
    true = _trade(market, signals, config)
    noisy_market = markets.build_market(replace_future(tables, day, seed=subject.seed + t), config)
    own, theirs = market.panel, noisy_market.panel  # the same forecasts in other rows and columns
    _, own_t, their_t = np.intersect1d(own.dates_T, theirs.dates_T, return_indices=True)
    _, own_n, their_n = np.intersect1d(own.tickers_N, theirs.tickers_N, return_indices=True)
    moved_TN = np.full(noisy_market.universe_TN.shape, np.nan)
    moved_TN[np.ix_(their_t, their_n)] = base_TN[np.ix_(own_t, own_n)]
    noisy = _trade(noisy_market, {"base": moved_TN}, config)
    early, later = [], []
    for (name, book, delay), traded in true.items():
        base = true["base", book, delay]
        if name.startswith("after "):
            cut = int(name[6:])
            words = (
                "trades before its decision: its trade of {firm} on {day} changes with forecasts made after "
                f"{base.day(cut)}, which are due {base.due + 1} session(s) later at the earliest."
            )
            early.append((book, base.changed(traded, cut + base.due, words)))
        else:
            early.append((book, _against_forecasts(traded, signals[name], name)))
        if name == "base":
            words = (
                "knows later prices: its position in {firm} on {day} changes when all data after "
                f"{base.day(at)} are replaced by noise."
            )
            later.append((book, base.changed(noisy["base", book, delay], at, words)))
            later.append((book, _not_decided(traded, config)))
            later.append((book, _profits(traded, tables, config)))
            verdict: Verdict = "pass" if len(traded.book.result.ledger) else "skipped"
            yield Finding("book", verdict, "it made no trade", subject=f"book {book}")
    for book, sentences in (*early, *later):
        yield from (Finding("book", "fail", one, subject=f"book {book}") for one in sentences)


def _forecasts(market: Market, rows: IntArray, rng: np.random.Generator) -> FloatArray:
    out_TN = np.full(market.universe_TN.shape, np.nan)
    noise_TN = rng.standard_normal((len(rows), market.panel.n_firms))
    out_TN[rows] = np.where(market.universe_TN[rows], noise_TN, np.nan)
    return out_TN


def _trade(
    market: Market, signals: dict[str, FloatArray], config: Config
) -> dict[tuple[str, str, int], _Traded]:
    """Trade forecasts; return the books by (forecasts, book, delay)."""
    books: dict[tuple[str, str, int], _Traded] = {}

    def keep(book: MeasuredBook) -> None:
        due = book.delay if config.backtest.delay is None else config.backtest.delay
        books[book.model, book.orders.name, book.delay] = _Traded(book, market, due)

    rows = np.flatnonzero(np.isfinite(next(iter(signals.values()))).any(axis=1))
    seeds = {name: {0: signal_TN} for name, signal_TN in signals.items()}
    scores = pl.DataFrame(schema=_SCORES)
    evaluate.evaluate(seeds, market, config, scores, sessions=rows, on_book=keep, against=False)
    return books


def _against_forecasts(traded: _Traded, signal_TN: FloatArray, which: str) -> Iterator[str]:
    """A book must hold more of what has a higher forecast, whatever the returns."""
    orders = traded.book.orders
    own_TN = mean_of_standardised({0: signal_TN})[orders.held]
    found = []
    for target_N, own_N in zip(orders.target_TN, own_TN, strict=True):
        known_N = np.isfinite(own_N) & np.isfinite(target_N)
        if known_N.sum() > 2 and target_N[known_N].std() > 0 and own_N[known_N].std() > 0:
            found.append(float(np.corrcoef(target_N[known_N], own_N[known_N])[0, 1]))
    if found and float(np.mean(found)) < _AGAINST:
        yield (
            f"{traded.name} holds against its forecasts ({which}): the correlation of its weights with the "
            f"mean of the seeds' standardised forecasts is {np.mean(found):+.2f}. Was the sign chosen by "
            "later returns?"
        )


def _not_decided(traded: _Traded, config: Config) -> Iterator[str]:
    """Trades without a decision that is due, and trades that do not lead to the weights decided."""
    execution, result, due = config.backtest.execution, traded.book.result, traded.due
    capped = config.backtest.capital is not None and execution.participation_cap is not None
    if capped or execution.unfilled == "carry" or execution.lot is not None:
        return  # what is not filled is traded later, or left
    target_TN, first = traded.book.orders.target_TN, traded.book.orders.held.start
    trades = result.ledger.filter(pl.col("trade").abs() > 0)
    for (session,), rows in trades.group_by("session", maintain_order=True):
        s = int(str(session))
        on = traded.day(first + s)
        if s < due or not np.isfinite(target_TN[s - due]).all():
            yield f"{traded.name} trades on {on}, although no decision was made {due} session(s) earlier."
            return
        if execution.price != "close" or result.unfilled_T[s] > 1e-9:
            continue  # purchases wait for sales that cannot be made
        wanted = target_TN[s - due][rows["firm"].to_numpy()]
        held = rows["position"].to_numpy()
        scale = float(held @ wanted) / max(float(wanted @ wanted), 1e-300)
        if np.abs(held - scale * wanted).max() > 1e-6 * max(np.abs(held).max(), 1e-12):
            yield f"{traded.name} holds other weights on {on} than it decided {due} session(s) earlier."
            return


def _profits(traded: _Traded, tables: Mapping[str, pl.DataFrame], config: Config) -> Iterator[str]:
    """Profits that are not the return of the position held at the previous close."""
    panel = traded.market.panel
    before, gap = pl.col("position").shift(1).over("firm"), pl.col("session").diff().over("firm")
    rows = (
        traded.book.result.ledger.sort("firm", "session")
        .with_columns(before=before, gap=gap)
        .filter((pl.col("gap") == 1) & (pl.col("released") == 0) & (pl.col("before") != 0))
    )
    if config.backtest.execution.price != "close":
        rows = rows.filter(pl.col("trade") == 0)
    firms = rows["firm"].unique().sort().to_numpy().astype(np.int64)
    if not len(firms):
        return
    holder = holder_values(
        tables, panel, firms, DelistingRule(unknown_return=config.label.unknown_delisting_return)
    )
    value_TN = np.where(np.isfinite(holder.paid_TN), holder.paid_TN, holder.value_TN)
    s = rows["session"].to_numpy() + traded.book.orders.held.start
    n = np.searchsorted(firms, rows["firm"].to_numpy())
    return_R = value_TN[s, n] / value_TN[s - 1, n] - 1.0
    held_R, found_R = rows["before"].to_numpy(), rows["pnl"].to_numpy()
    off_R = np.abs(found_R - held_R * return_R) > BOOK_TOLERANCE * np.abs(held_R)
    if off_R.any():
        i = int(np.argmax(off_R))
        yield (
            f"{traded.name} earns what its positions did not: {found_R[i] / held_R[i]:+.4f} on "
            f"{panel.tickers_N[firms[n[i]]]} on {traded.day(s[i])}, and the prices give {return_R[i]:+.4f}."
        )
