"""The grid of a sweep, and all of its variants, measured in one pass over the market.

Targets are decided once per book, and the market is prepared once. Variants of a book that differ in costs
alone read each price together (`backtest.accounts.accounting`). All variants are measured on the same
sessions.

Shape suffixes: V variants, T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from backtest.accounts.accounting import run_books
from backtest.accounts.execution import Execution
from backtest.accounts.performance import book_metrics, excess_return
from backtest.accounts.result import BookResult
from backtest.accounts.variants import SparseTargets, Variant
from backtest.books.book import Book
from backtest.books.decisions import book_targets
from backtest.costs import CostModel
from backtest.inference.bootstrap import sharpe_interval
from backtest.inference.means import LEVEL
from backtest.inference.overfitting import deflated_sharpe, probabilistic_sharpe, probability_of_overfitting
from features.arrays import FloatArray
from pipelines.columns import TABLES
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.backtest_files import require_rates, risk_free_rates
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError
from pipelines.format import number
from pipelines.results.books import book_costs, book_execution, book_market
from pipelines.results.comparisons import samples
from pipelines.run.evaluations import tradable_delay
from pipelines.terminal import text_table
from pipelines.train.trials import TrialCount

MAX_VARIANTS = 10_000
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting of a sweep: its name as the user wrote it, its keys inside ``backtest``, and values."""

    name: str
    path: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """One combination of values by axis, and the section ``backtest`` that has them."""

    values: Mapping[str, Any]
    backtest: BacktestConfig

    def delay(self, config: Config) -> int:
        """Sessions from the decision to the trade; unless it is set, the first delay that can be traded."""
        own = self.backtest.delay
        return tradable_delay(config.label.delays) if own is None else own


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a sweep of one book, and all combinations of their values; the last axis moves fastest."""

    book: str
    axes: tuple[Axis, ...]
    variants: tuple[VariantSettings, ...]

    @property
    def assumptions(self) -> list[str]:
        """Names of the axes that are no settings of the book."""
        return [axis.name for axis in self.axes if axis.path[0] != "books"]

    @classmethod
    def parse(cls, text: str, backtest: BacktestConfig, book: str | None) -> Self:
        """Parse ``'quantiles=5,10; delay=0,1,2; half_spread_bps=0,5'``; values are written as in YAML."""
        given: list[tuple[str, tuple[Any, ...]]] = []
        for part in filter(None, (part.strip() for part in text.split(";"))):
            name, equals, listed = (piece.strip() for piece in part.partition("="))
            if not (name and equals and listed):
                raise ConfigError(
                    f"--sweep has the part {part!r}; write name=value,value, and separate settings by "
                    "semicolons, as in 'quantiles=5,10; delay=1,2'."
                )
            try:
                values = yaml.safe_load(f"[{listed}]")
            except yaml.YAMLError:
                values = None
            if not isinstance(values, list) or not all(isinstance(value, _SCALARS) for value in values):
                raise ConfigError(
                    f"--sweep: the values of {name}, {listed!r}, must be plain values separated by commas."
                )
            given.append((name, tuple(values)))
        return cls.of(given, backtest, book)

    @classmethod
    def of(
        cls, given: Iterable[tuple[str, tuple[Any, ...]]], backtest: BacktestConfig, book: str | None
    ) -> Self:
        """Find settings by their names, and combine their values; the first book is swept if none is named.

        A name is a key of the swept book (``quantiles``), of the costs or the execution
        (``half_spread_bps``), or of the section itself (``delay``); or the dotted path of any of them inside
        the section (``costs.half_spread_bps``).
        """
        book = next(iter(backtest.books)) if book is None else book
        axes = _find_axes(given, backtest, book)
        count = math.prod(len(axis.values) for axis in axes)
        if count > MAX_VARIANTS:
            raise ConfigError(
                f"The sweep has {count:,} combinations; at most {MAX_VARIANTS:,} are measured at once."
            )
        settings = backtest.model_dump()
        settings["books"] = {book: settings["books"][book]}
        found = []
        for values in itertools.product(*(axis.values for axis in axes)):
            changed = settings
            for axis, value in zip(axes, values, strict=True):
                changed = _replaced(changed, axis.path, value)
            try:
                section = BacktestConfig.model_validate(changed)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                wrong = f"{first['msg']} (given: {first['input']!r})"
                raise ConfigError(f"The sweep is not valid: backtest.{where}: {wrong}.") from None
            named = {axis.name: value for axis, value in zip(axes, values, strict=True)}
            found.append(VariantSettings(named, section))
        return cls(book, axes, tuple(found))


def _find_axes(
    given: Iterable[tuple[str, tuple[Any, ...]]], backtest: BacktestConfig, book: str
) -> tuple[Axis, ...]:
    known = _settings(backtest, book)
    axes: list[Axis] = []
    for name, values in given:
        paths = [path for path in known if ".".join(path) == name] or [p for p in known if p[-1] == name]
        if len(paths) != 1:
            found = ", ".join(".".join(path) for path in paths or known)
            problem = "more than one setting" if paths else "no setting"
            raise ConfigError(
                f"The sweep names {name!r}, which is {problem} of backtest; choose among: {found}."
            )
        if any(axis.path == paths[0] for axis in axes):
            raise ConfigError(f"The sweep names {name!r} twice; list all its values at once.")
        if len(set(map(repr, values))) < len(values):
            listed = ",".join(map(write_value, values))
            raise ConfigError(f"The sweep lists a value of {name} twice: {listed}; remove one.")
        axes.append(Axis(name, paths[0], values))
    if not axes:
        raise ConfigError("The sweep is empty; name a setting and its values, such as delay with 0, 1 and 2.")
    return tuple(axes)


def _replaced(settings: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:  # noqa: ANN401
    """A copy with one setting replaced; the original is shared by all variants."""
    key, *rest = path
    return {**settings, key: _replaced(settings[key], rest, value) if rest else value}


def _settings(backtest: BacktestConfig, book: str) -> list[tuple[str, ...]]:
    """Paths of all plain settings of the section that change what a book trades, and of the swept book."""
    if book not in backtest.books:
        raise ConfigError(f"There is no book {book!r}; the books are {', '.join(backtest.books)}.")
    section = backtest.model_dump(exclude={"risk_free", "benchmarks", "factors"})
    section["books"] = {book: {k: v for k, v in section["books"][book].items() if k != "kind"}}
    return list(_leaves(section))


def _leaves(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key)


Row = dict[str, Any]
_FEW = 200  # variants up to which each has an interval
_MANY = 64  # variants from which the splits of CSCV are coarser, because time grows with both
_FIGURES = (
    *("sharpe_net", "sharpe_gross", "annual_return_net", "annual_volatility_net", "max_drawdown_net"),
    *("turnover", "unfilled"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The result of a sweep, in the order of its grid; its tables have a further column per axis."""

    grid: Grid
    folder: Path
    table: pl.DataFrame  # more than 200 variants have no intervals
    daily: pl.DataFrame
    overfitting: pl.DataFrame  # by set of assumptions with two books: the cheapest would always be best
    sentences: tuple[str, ...] = ()

    @property
    def page(self) -> Path:
        """HTML page of the sweep."""
        return self.folder / "sweep.html"

    def counted(self, trials: TrialCount, effective: float) -> Self:
        """Add deflated Sharpe ratios with the effective number of trials, and what the whole sweep shows."""
        effective = max(effective, 1.0)
        found = [
            deflated_sharpe(self.daily[f"{row}"].cast(pl.Float64).fill_null(np.nan).to_numpy(), effective)
            for row in range(self.table.height)
        ]
        column = pl.Series("deflated_effective", found, dtype=pl.Float64)
        wide = self.table.with_columns(column, effective_trials=pl.lit(effective))
        axes = [axis.name for axis in self.grid.axes]
        made = replace(self, table=TABLES["sweep_variants"].frame(wide, *axes))
        return replace(made, sentences=_sentences(made, trials))


def sweep(  # noqa: PLR0917  # what is swept, and where it is kept
    signals: Mapping[str, FloatArray],
    market: Market,
    config: Config,
    grid: Grid,
    trials: int,
    folder: Path,
) -> Sweep:
    """Measure every variant of every signal, known at the close of session t; ``trials`` count them."""
    variants = grid.variants
    rows, daily, overfitting = list[Row](), list[pl.DataFrame](), list[Row]()
    dates_T, year = market.panel.dates_T, market.panel.periods_per_year
    rate = variants[0].backtest.risk_free
    rate_T = risk_free_rates(rate, dates_T, year)
    for name, signal_TN in signals.items():
        # from the first signal to the end of the last holding period of the longest delay
        rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
        last = int(rows_T[-1]) + max(one.delay(config) for one in variants) + config.label.horizon + 1
        held = slice(int(rows_T[0]), min(last, market.panel.n_sessions))
        require_rates(rate, rate_T[held], dates_T[held])
        books = _account(signal_TN, market, config, variants, held)
        never_T = np.full_like(rate_T[held], np.nan)  # of a book that never traded
        excess = (never_T if one.first_trade is None else excess_return(one, rate_T[held]) for one in books)
        excess_VT = np.stack(list(excess))
        columns = {f"{len(rows) + v}": excess_T for v, excess_T in enumerate(excess_VT)}
        daily.append(pl.DataFrame({"date": dates_T[held], **columns}))
        for book, variant, excess_T in zip(books, variants, excess_VT, strict=True):
            found = book_metrics(book, rate_T[held])
            known_T = excess_T[~np.isnan(excess_T)]
            counts_RT = samples(len(known_T)) if len(variants) <= _FEW else None
            between = None
            if counts_RT is not None:
                between = sharpe_interval(excess_T, counts_RT=counts_RT, level=LEVEL, periods_per_year=year)
            rows.append(
                {
                    "signal": name,
                    **variant.values,
                    **{figure: getattr(found, figure) for figure in _FIGURES},
                    "sessions": len(known_T),
                    "cost_bps_per_year": sum(found.costs_bps_per_year.values()),
                    "probabilistic_sharpe": probabilistic_sharpe(known_T),
                    "deflated_sharpe": deflated_sharpe(known_T, max(trials, 1)),
                    "trials": trials,
                    "sharpe_lower": None if between is None else between.lower,
                    "sharpe_upper": None if between is None else between.upper,
                }
            )
        overfitting += ({"signal": name, **found} for found in _overfitting(excess_VT, grid))
    return Sweep(
        grid,
        folder,
        TABLES["sweep_variants"].frame(rows, *variants[0].values),
        pl.concat(daily, how="align_full").fill_nan(None),
        TABLES["sweep_overfitting"].frame(overfitting, *(grid.assumptions if overfitting else ())),
    )


def _account(
    signal_TN: FloatArray, market: Market, config: Config, variants: Sequence[VariantSettings], held: slice
) -> list[BookResult]:
    """Run the accounts of all variants; those with the same book share its targets."""
    panel = market.panel
    decisions: dict[Book, SparseTargets] = {}
    trading: dict[tuple[str, int], tuple[CostModel, Execution]] = {}
    books = []
    for variant in variants:
        section, delay = variant.backtest, variant.delay(config)
        ((name, book),) = section.books.items()
        if book not in decisions:
            try:
                targets = book_targets(book, signal_TN, panel, held, config.label.horizon)
            except ValueError as error:
                values = ", ".join(f"{axis}={value}" for axis, value in variant.values.items())
                raise ConfigError(f"backtest.books.{name} with {values}: {error}") from None
            decisions[book] = SparseTargets.from_targets(targets.target_TN)
        how = (section.model_dump_json(exclude={"books"}), delay)
        if how not in trading:
            trading[how] = (book_costs(section, panel, held), book_execution(section, panel, held, delay))
        costs, execution = trading[how]
        books.append(Variant(decisions[book], costs, delay, execution))
    return run_books(books, book_market(panel, held))


def _overfitting(excess_VT: FloatArray, grid: Grid) -> Iterator[Row]:
    """Probability that the best book of one half is below the median in the other, by set of assumptions."""
    sets: dict[str, list[int]] = {}
    for v, variant in enumerate(grid.variants):
        sets.setdefault(variant.backtest.model_dump_json(exclude={"books"}), []).append(v)
    for members in sets.values():
        common_T = ~np.isnan(excess_VT[members]).any(axis=0)
        blocks = 16 if len(members) <= _MANY else 10
        if len(members) < 2 or common_T.sum() < 2 * blocks:
            continue
        found = probability_of_overfitting(excess_VT[members][:, common_T].T, blocks=blocks)
        probabilities = {"pbo": found.probability, "loss_probability": found.loss_probability}
        assumed = {name: grid.variants[members[0]].values[name] for name in grid.assumptions}
        yield {**assumed, "variants": len(members), **probabilities}


class SweepRecord(BaseModel):
    """What a sweep measured, how many trials counted then, and what is said about it as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    run_id: str
    axes: dict[str, tuple[str | int | float | bool | None, ...]]
    book: str
    made_at: dt.datetime
    trials: int
    sentences: tuple[str, ...]


_MOST_BLOCKS = 24
_MOST_SETS = 6


def _sentences(sweep: Sweep, counted: TrialCount) -> tuple[str, ...]:
    """Say what the sweep as a whole shows: its size, its best variant, and how far that can be believed."""
    frame, axes, assumed = sweep.table, sweep.grid.axes, sweep.grid.assumptions
    signals = frame["signal"].n_unique()
    plural = "" if counted.trials == 1 else "s"
    said = [
        f"{frame.height:,} variants of {signals} signal{'' if signals == 1 else 's'} on the same sessions; "
        f"the deflated Sharpe ratios count {counted.trials:,} trial{plural} in the ledger{counted.reach}. By "
        f"their correlation these are worth {frame['effective_trials'][0]:.1f} independent ones."
    ]
    if assumed:
        said.append(f"{', '.join(assumed)}: assumptions, which make no further trials.")
    delay = next((axis.name for axis in axes if axis.path == ("delay",)), None)
    tradable = frame if delay is None else frame.filter(pl.col(delay).fill_null(1) > 0)
    ranked = tradable.drop_nulls("sharpe_net").sort("sharpe_net", descending=True)
    if ranked.height:
        best = ranked.row(0, named=True)
        values = ", ".join(f"{axis.name} {write_value(best[axis.name])}" for axis in axes)
        where = "" if delay is None else " at a delay of at least 1"
        deflated = "unknown" if best["deflated_sharpe"] is None else f"{best['deflated_sharpe']:.2f}"
        said.append(
            f"The highest net Sharpe ratio{where} is {best['sharpe_net']:.2f} ({best['signal']}, "
            f"{values}). Its deflated Sharpe ratio is {deflated}, and 0.95 or more is strong evidence."
        )
    return (*said, *_of_the_best(sweep.overfitting, assumed))


def _of_the_best(found: pl.DataFrame, assumed: Sequence[str]) -> Iterator[str]:
    """One sentence per signal, with the probabilities of every set of assumptions, or their range."""
    if found.is_empty():
        return
    for (name,), part in found.partition_by(["signal"], as_dict=True, maintain_order=True).items():
        shares = [
            f"{row['pbo']:.0%}"
            + (f" ({', '.join(f'{axis} {write_value(row[axis])}' for axis in assumed)})" if assumed else "")
            for row in part.iter_rows(named=True)
        ]
        said = f"{'; '.join(shares)} of the splits"
        if part.height > _MOST_SETS:
            low, *_, high = sorted(part["pbo"].to_list())
            said = f"{low:.0%} to {high:.0%} of the splits (by set of assumptions)"
        worst = max(part["loss_probability"].to_list())
        yield (
            f"The book of {name} that is best on one half of the sessions is at or below the median on the "
            f"other half in {said}, and loses there in up to {worst:.0%} "
            "(probability of overfitting by CSCV among the books of one set of assumptions; books without "
            "skill give about 50%)."
        )


def heat_maps(sweep: Sweep) -> Iterator[tuple[str, list[str], list[tuple[str, list[Row]]]]]:
    """Title, heading and lines of a map (values of axis 1 by those of axis 2) for each of the others."""
    frame, axes = sweep.table, sweep.grid.axes
    rows, columns, others = axes[0], axes[1] if len(axes) > 1 else None, [axis.name for axis in axes[2:]]
    across = ("net Sharpe",) if columns is None else columns.values
    corner = rows.name if columns is None else f"{rows.name} \\ {columns.name}"
    for key, part in frame.partition_by(["signal", *others], as_dict=True, maintain_order=True).items():
        fixed = "".join(f", {name} {write_value(value)}" for name, value in zip(others, key[1:], strict=True))
        cells = iter(part.iter_rows(named=True))  # the grid's order: the second axis changes faster
        lines = [(write_value(row), [next(cells) for _ in across]) for row in rows.values]
        yield f"{key[0]}{fixed}", [corner, *map(write_value, across)], lines


def _cell(row: Row) -> str:
    deflated = number(row["deflated_sharpe"], 2, unknown="?")
    return "-" if row["sharpe_net"] is None else f"{number(row['sharpe_net'], 2)} ({deflated})"


def describe_sweep(sweep: Sweep) -> str:
    """Format a sweep: a block of net and deflated Sharpe ratios per signal and values of further axes."""
    lines, maps = ["net Sharpe ratio (deflated)"], list(heat_maps(sweep))
    for title, heading, rows in maps[:_MOST_BLOCKS]:
        cells = [[name, *map(_cell, row)] for name, row in rows]
        lines += [title, *text_table(cells, heading)]
    if len(maps) > _MOST_BLOCKS:
        lines.append(f"and {len(maps) - _MOST_BLOCKS} more blocks, which the page shows")
    return "\n".join((*lines, *sweep.sentences, str(sweep.page)))


def sweep_json(sweep: Sweep) -> str:
    """The sweep as one JSON document: ``axes``, ``variants``, ``overfitting``, ``sentences``, ``folder``."""
    document = {
        "axes": {axis.name: list(axis.values) for axis in sweep.grid.axes},
        "variants": sweep.table.to_dicts(),
        "overfitting": sweep.overfitting.to_dicts(),
        "sentences": sweep.sentences,
        "folder": str(sweep.folder),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def write_value(value: object) -> str:
    """Write a value of an axis."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
