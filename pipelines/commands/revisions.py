"""``peerglass revisions RUN``: what later corrections of the data change in the headline figures of a run.

The figures are net Sharpe ratio, IC and rank IC of one model in the first book, at the shortest delay that
can be traded. They are measured again on every version of the data from one on. Nothing is fitted, and
nothing is chosen by the figures, so the ledger gets no trial.

All versions are cut at the last session of the first one, and measured on the test sessions that the first
and the last have, so sessions that were only added are no correction. Firms have their newest tickers.

A correction is all differing rows of a firm in a table. Its share in the difference between two states of the
data is its Shapley value: the mean over all orders of what the figure moves when these rows are replaced
after those of the corrections before. Shares add up to the difference.

Shape suffixes: T sessions, N firms, M coalitions, P corrections, F figures, D test days.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from features.arrays import BoolArray, DateArray, FloatArray
from features.panel.panel import PRICE_COLUMNS
from models.explain.shapley import Precision, exact, fixed, sample
from pipelines.columns import COLUMNS, of_book, table
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, add_features
from pipelines.dataset.folds import path_of_tests, plan_folds
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.tables import input_versions, newest_tickers, read_tables
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError, DataError
from pipelines.explain.fitted import restore_fits
from pipelines.format import json_rows
from pipelines.lake.corrections import Tables, corrections, filed_and_restated, mixed
from pipelines.lake.lake import Lake
from pipelines.lake.renames import follow_renames, renamed
from pipelines.lake.schemas import KNOWN_FROM
from pipelines.lake.versions import commits, lake_states
from pipelines.nightly.monitor.checks import differing_dates
from pipelines.progress import Progress
from pipelines.results.evaluate import evaluate, forecasts_to_arrays
from pipelines.run.checkpoints import Checkpoint, read_checkpoint
from pipelines.run.completeness import common_dates
from pipelines.run.evaluations import leader, newest_evaluation, tradable_delay
from pipelines.run.open import load_run_market
from pipelines.run.record import RecordedRun
from pipelines.stages import opened
from pipelines.terminal import text_table
from pipelines.train.task import collect_arrays

FIGURES: Final = ("sharpe_net", "ic", "rank_ic")
_VERSIONS, _STATEMENTS = "data versions", "statements"  # what is compared
_READ: Final = ("prices", "securities", "fundamentals", "membership", "gaps", "flags")
_EXACT: Final = 6  # up to so many corrections, all coalitions are measured (64)
_DRAWS: Final = 2  # of more corrections: orders that are drawn, each with its reverse

Versions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RevisionOptions:
    """Options of the command, as its help explains them."""

    since: str | None = None
    model: str | None = None
    inputs: bool = False
    top: int = 12


def measure_revisions(
    name: str, output: Path, options: RevisionOptions, *, wait: bool = False
) -> dict[str, Any]:
    """Measure a run on the versions of its data, keep the tables with the run, and return what was found."""
    with opened(name, output, wait=wait) as (run, progress):
        market, lake = load_run_market(run, progress)
        with progress.stage("revisions"):
            study = _Study.of(run, market, lake, progress, options)
            notes: list[str] = []
            states: list[_State] = []
            for state in study.versions_measured(notes):
                if len(states) > 1:  # the rows of the first and the last version are compared below
                    states[-1] = replace(states[-1], tables={})
                states.append(state)
            compared = {_VERSIONS: states}
            if options.inputs:
                compared[_STATEMENTS] = list(study.statements_measured(states[-1].tables, notes))
            shares = [
                row
                for what, of_kind in compared.items()
                if len(of_kind) > 1
                for row in study.shares(what, of_kind[0].tables, of_kind[-1].tables, options.top)
            ]
        rows = table("revisions").of(one.row for of_kind in compared.values() for one in of_kind)
        moved = table("revision_shares").of(shares)
        run.write_table("revisions", rows)
        run.write_table("revision_shares", moved)
    of_versions = rows.filter(pl.col("compared") == _VERSIONS)
    return {
        "run": run.run_id,
        "forecasts": "made again" if options.inputs else "stored",
        "first": str(study.days_D[0]),
        "last": str(study.days_D[-1]),
        "band": {figure: [of_versions[figure].min(), of_versions[figure].max()] for figure in FIGURES},
        "revisions": json_rows(rows),
        "shares": json_rows(moved),
        "notes": notes,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state of the data, and its row in the table of figures."""

    tables: Tables
    row: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class _Study:
    """What is measured: a model of a run, on some test days, in one book at one delay."""

    lake: Lake
    progress: Progress
    config: Config  # of the newest evaluation, with one book
    model: str
    delay: int
    forecasts: pl.DataFrame  # stored test forecasts: model, fold, seed, date, ticker, forecast
    versions: Sequence[Versions]  # of the lake, the oldest first
    through: dt.date
    days_D: DateArray
    fits: Mapping[int, Mapping[int, Checkpoint]]  # fold -> seed -> fitted model; empty: stored forecasts

    @classmethod
    def of(
        cls, run: RecordedRun, market: Market, lake: Lake, progress: Progress, options: RevisionOptions
    ) -> _Study:
        """Choose model, book, delay, versions and days; ConfigError or DataError where there is none."""
        evaluation = newest_evaluation(run)
        if evaluation is None:
            raise DataError(
                f"Run {run.run_id} has not been measured yet; run 'peerglass backtest {run.run_id}' first."
            )
        config, delay = evaluation.record.apply_to(run.config), tradable_delay(evaluation.record.delays)
        ladder = evaluation.table("ladder").filter((pl.col("delay") == delay) & (pl.col("seeds") > 0))
        model = options.model or str(leader(ladder)["model"])
        if model not in ladder["model"].to_list():
            known = ", ".join(ladder["model"])
            raise ConfigError(f"--model is {model!r}; run {run.run_id} has measured {known}.")
        book = dict(list(config.backtest.books.items())[:1])
        backtest = config.backtest.model_copy(update={"books": book})
        versions = _versions(lake, run, options.since, with_inputs=options.inputs)
        ends = (versions[0]["prices"], versions[-1]["prices"])
        first, last = (lake.read("prices", end, ["date"], ordered=False)["date"].unique() for end in ends)
        through = min(day for day in (max(first), max(last), run.config.through) if day is not None)
        columns = ["model", "fold", "seed", "date", "ticker", "forecast"]
        stored = lake.rows("forecasts", columns, pl.col("run_id") == run.run_id)
        plan = plan_folds(market, config)
        stored = stored.join(path_of_tests(market, plan), on=["date", "fold"], how="semi")
        dates_T = market.panel.dates_T.astype("datetime64[D]")
        common_T = common_dates(forecasts_to_arrays(stored, market.panel))
        kept = stored.filter(
            (pl.col("model") == model) & pl.col("date").is_in(pl.Series(dates_T[common_T]).implode())
        )
        tested = pl.Series(dates_T[np.unique(np.concatenate([fold.test for fold in plan]))])
        days = tested.filter(
            tested.is_in(first.implode()) & tested.is_in(last.implode()) & (tested <= through)
        )
        if not kept["date"].is_in(days.implode()).any():
            raise DataError(
                f"The lake {lake.root} ended on {through} at that version, before the first test forecast "
                f"of {run.run_id}; give --since a later one."
            )
        fits = {
            fold: {seed: read_checkpoint(run.checkpoint(model, fold, seed)) for seed in config.seeds}
            for fold in kept["fold"].unique().sort()
            if options.inputs
        }
        config = config.model_copy(update={"backtest": backtest})
        return cls(lake, progress, config, model, delay, kept, versions, through, days.to_numpy(), fits)

    def versions_measured(self, notes: list[str]) -> Iterator[_State]:
        """Measure every version whose rows differ from the one before; a note tells of unreadable ones."""
        at, lost = self.versions[0], 0
        before: Tables | None = None
        for number, versions in enumerate(self.versions):
            if before is not None and self._same_files(at, versions):
                continue
            try:
                tables = self._read(versions)
            except DataError:  # a vacuum removed it
                if number in (0, len(self.versions) - 1):
                    raise
                lost += 1
                continue
            if not np.isin(self.days_D, tables["prices"]["date"].unique().to_numpy()).all():
                lost += 1
                continue
            changed = None if before is None else corrections(before, tables)
            if changed is None or changed.height:
                new = (name for name in versions if name == "prices" or versions[name] != at.get(name))
                named = ", ".join(f"{name} {versions[name]}" for name in new)
                yield self._state(_VERSIONS, named, tables, changed, self._committed(versions))
                at, before = versions, tables
        if lost:
            notes.append(f"{lost:,} versions in between lack sessions, or were removed by a vacuum.")

    def statements_measured(self, tables: Tables, notes: list[str]) -> Iterator[_State]:
        """Measure data with statements as filed, as published and as restated; or a note if all agree."""
        rows = tables.get("fundamentals", pl.DataFrame())
        filed, restated = filed_and_restated(rows) if rows.height else (rows, rows)
        if filed.equals(restated):
            notes.append("No statement of these data was restated.")
            return
        for name, one in {"as filed": filed, "as published": rows, "as restated": restated}.items():
            changed = None if one is filed else corrections({"fundamentals": filed}, {"fundamentals": one})
            yield self._state(_STATEMENTS, name, {**tables, "fundamentals": one}, changed, None)

    def shares(self, compared: str, before: Tables, after: Tables, top: int) -> Iterator[dict[str, Any]]:
        """Divide the difference of the figures between two states among its corrections, largest first."""
        rows, pair = corrections(before, after), ["table", "ticker"]
        if rows.is_empty():  # a correction was taken back
            return
        sizes = (
            rows.group_by(pair).agg(pl.col("size").sum()).sort("size", *pair, descending=[True, False, False])
        )
        names: list[tuple[str, str]] = sizes.select(pair).rows()
        players = [[one] for one in names[:top]] + ([names[top:]] if names[top:] else [])
        known: dict[bytes, FloatArray] = {}

        def game(keep_MP: BoolArray) -> FloatArray:
            for keep_P in keep_MP:
                if keep_P.tobytes() not in known:
                    chosen = [one for player in itertools.compress(players, keep_P) for one in player]
                    known[keep_P.tobytes()] = self._figures(mixed(before, after, chosen))
                    self.progress.step(f"{compared}, mixture {len(known)}")
            return np.array([known[keep_P.tobytes()] for keep_P in keep_MP])

        if len(players) <= _EXACT:
            found = exact(game, len(players))
        else:
            found = sample(fixed(game), len(players), Precision(_DRAWS)).values()
        for p in np.argsort(-np.abs(found.values_PO[:, 0]), kind="stable"):
            own = rows.join(pl.DataFrame(players[p], schema=pair, orient="row"), on=pair, how="semi")
            largest = own.sort("size", descending=True, maintain_order=True).row(0, named=True)
            named = players[p][0] if len(players[p]) == 1 else (None, None)
            row = {**largest, "compared": compared, "rows": own["key"].n_unique()}
            row |= {"table": named[0], "ticker": named[1]}
            for name, value, error in zip(FIGURES, found.values_PO[p], found.error_PO[p], strict=True):
                row |= {f"{name}_moved": value, f"{name}_moved_error": error}
            yield row

    def _figures(self, tables: Tables) -> FloatArray:
        """Measure the forecasts on one state of the data, shape (F,)."""
        market = build_market(tables, self.config, self._newest)
        if self.fits:
            forecasts = self._forecast_again(add_features(market, tables, self.config))
        else:
            forecasts = forecasts_to_arrays(self._stored, market.panel)[self.model]
        test_T = np.isin(market.panel.dates_T.astype("datetime64[D]"), self.days_D)
        ladder = evaluate(
            {self.model: {seed: np.where(test_T[:, None], one, np.nan) for seed, one in forecasts.items()}},
            replace(market, labels={self.delay: market.labels[self.delay]}),
            self.config,
            sessions=np.flatnonzero(test_T),
            against=False,
        )["ladder"].row(0, named=True)
        sharpe = ladder[of_book(next(iter(self.config.backtest.books)), "sharpe_net")]
        return np.array([sharpe, ladder["ic"], ladder["rank_ic"]], dtype=np.float64)

    def _forecast_again(self, dataset: Dataset) -> dict[int, FloatArray]:
        """Forecast the days of the stored forecasts with the models of their folds: seed -> (T, N)."""
        arrays = collect_arrays(dataset, self.config.features.window)
        device, dates_T = resolve_device(self.config.device), dataset.panel.dates_T.astype("datetime64[D]")
        found = {seed: np.full(dataset.universe_TN.shape, np.nan) for seed in self.config.seeds}
        with one_thread():
            for fold, checkpoints in self.fits.items():
                fits = restore_fits(checkpoints, arrays, device, f"{self.model}, fold {fold}")
                own = self.forecasts.filter(pl.col("fold") == fold)["date"].unique().to_numpy()
                at_D = np.flatnonzero(np.isin(dates_T, own))
                for seed, fitted in fits.seeds.items():
                    found[seed][at_D] = fitted.forecast(fits.data, at_D)
        return found

    @cached_property
    def _renames(self) -> pl.DataFrame:
        return self.lake.rows("renames")

    @cached_property
    def _newest(self) -> dict[str, str]:
        return newest_tickers(self.lake, self.lake.versions())

    @cached_property
    def _stored(self) -> pl.DataFrame:
        """The stored forecasts, with the newest tickers."""
        return renamed(self.forecasts, self._renames, ["seed", "date", "ticker"], "date")

    def _read(self, versions: Versions) -> dict[str, pl.DataFrame]:
        tables = read_tables(self.lake, versions, self.through, columns=list(PRICE_COLUMNS), ordered=False)
        return follow_renames({**tables, "renames": self._renames})

    def _state(
        self, compared: str, data: str, tables: Tables, changed: pl.DataFrame | None, committed: str | None
    ) -> _State:
        rows = None if changed is None else changed["key"].n_unique()
        row = {"compared": compared, "data": data, "committed": committed, "rows": rows}
        row |= {"model": self.model, "book": next(iter(self.config.backtest.books)), "delay": self.delay}
        row |= {"dates": len(self.days_D), **dict(zip(FIGURES, self._figures(tables).tolist(), strict=True))}
        self.progress.step(data)
        return _State(tables, row)

    def _same_files(self, one: Versions, other: Versions) -> bool:
        """Whether two versions differ at most in files of later dates; no row is read."""

        def same(name: str) -> bool:
            then, now = one.get(name), other.get(name)
            if then is None or now is None or then == now or KNOWN_FROM[name] != "date":
                return then == now
            span = differing_dates(self.lake, name, then, now)
            return span is None or span[0] > self.through

        return all(same(name) for name in {*one, *other})

    def _committed(self, versions: Versions) -> str:
        """Time of the newest commit among some tables' versions, in UTC."""
        times = []
        for name, version in versions.items():
            view = self.lake.storage.view(name)
            assert view is not None, "the version was read"
            times += [one.at for one in commits(view) if one.version == version]
        return f"{max(times):%Y-%m-%d %H:%M}"


def _versions(lake: Lake, run: RecordedRun, since: str | None, *, with_inputs: bool) -> list[Versions]:
    """Versions of the lake, from that of the run or from another one to the newest, each once."""
    first = dict(run.versions) if since is None else input_versions(lake, since)
    names = (*_READ, "inputs") if with_inputs else _READ
    later = [one for one in lake_states(lake.histories()) if one["prices"] >= first["prices"]]
    kept = [{name: one[name] for name in names if name in one} for one in (first, *later)]
    return [one for at, one in enumerate(kept) if one not in kept[:at]]


def describe_revisions(found: Mapping[str, Any]) -> str:
    """Format the answer of `measure_revisions` for a terminal."""
    rows, notes, labels = found["revisions"], list(found["notes"]), [COLUMNS[name].label for name in FIGURES]
    one, again = rows[0], found["forecasts"] != "stored"
    ends = [
        f"{COLUMNS[name].label} {' to '.join(map(COLUMNS[name].text, ends))}"
        for name, ends in found["band"].items()
    ]
    heads = ("compared", "data", "committed (UTC)", "rows", *labels)
    names = ("compared", "data", "committed", "rows", *FIGURES)
    cells = [tuple(COLUMNS[name].text(row[name]) for name in names) for row in rows]
    lines = [
        f"{found['run']}, {one['model']}, {one['book']}, delay {one['delay']}, on {one['dates']:,} test "
        f"sessions from {found['first']} to {found['last']}. "
        + ("The fitted models forecast again." if again else "The stored forecasts are measured again.")
        + " Nothing is fitted, and no trial is counted.",
        f"Band over the data versions: {'; '.join(ends)}.",
        *text_table(cells, heads, left=3),
    ]
    for compared in dict.fromkeys(row["compared"] for row in found["shares"]):
        shares = [row for row in found["shares"] if row["compared"] == compared]
        lines.append(f"What moves them, from the first to the last row of {compared} (Shapley values):")
        cells = [_cells(row) for row in shares]
        lines += text_table(cells, ("table", "firm", "rows", *labels, "largest change"), left=2)
        if any("(" in cell for row in cells for cell in row[3:-1]):
            notes.append(f"In brackets: Monte Carlo standard errors of {_DRAWS} orders and their reverses.")
    if len([row for row in rows if row["compared"] == _VERSIONS]) == 1:
        notes.append("No row of these sessions was corrected since; --since goes further back.")
    return "\n".join([*lines, *(f"note: {note}" for note in dict.fromkeys(notes))])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A share as cells: table, firm, rows, what it moves, and its largest change."""
    moved = []
    for name in FIGURES:
        value, error = (
            COLUMNS[column].text(row[column]) for column in (f"{name}_moved", f"{name}_moved_error")
        )
        moved.append(f"{value} ({error})" if error.strip("0.") else value)
    change = f"{row['column']} {row['day']}"
    if row["before"] is not None or row["after"] is not None:
        change += f": {row['before']} to {row['after']}"
    return row["table"] or "others", row["ticker"] or "", str(row["rows"]), *moved, change
