"""The trial ledger of an output folder: everything that was tried there, and the runs that tried it.

A trial is what is forecast (a model with its settings, features, label, universe and folds, or the values of
a user's signal with its universe and horizon) together with what is traded (rule and options of one book).
Other seeds, newer data, newer code or another name make no new trial; neither do other costs, delays, capital
or execution. What was only trained counts as one trial, until its first book supersedes it.

The trials of one market count against each other, and no others (`Scope`). The ledger also holds the daily
returns of every trial, by the assumptions under which they were measured.
"""

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import polars as pl

from backtest.books.book import Book
from pipelines.config.load import KEY, OF, digest
from pipelines.config.schema import Config
from pipelines.config.sections import OutputStoreConfig
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location, is_url
from pipelines.lake.schemas import keys
from pipelines.secrets import masked
from pipelines.settings import Settings

FOLDER: Final = "ledger"  # in an output folder: a Delta table, so that processes write concurrently
_PATHS = ("prices", "securities", "fundamentals", "membership", "inputs")
# settings of a source that make no other trial: how it is queried, and how long its history is
_NOT_THE_MARKET = {"end", "renames", "hazards", "timeout_seconds", "retries", "batch_size", "identity"}
_PRICES = ("kind", "prices", "tickers", "seed", "market")  # what says whose prices it gives
_COLUMNS: Final = (  # of `read_trials`
    *("forecast", "traded", "model", "book", "config", "hypotheses", "market", "lake", "first_tried"),
    *("runs", "counts"),
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The trials that count against each other: those on one market, or of one named hypothesis on it."""

    # the same prices (files, tickers, seed) or the same lake are one market, whatever its folder or columns
    market: Settings
    lake: str | None  # location; None where the settings describe the whole market
    hypothesis: str | None  # None: the market is the hypothesis, and all of its trials count
    lake_id: str | None = None  # id of the prices of a local lake, which may move with its project

    @classmethod
    def of(cls, config: Config) -> Self:
        """The scope of a config."""
        described = config.source.kind in ("simulated", "sample")
        lake = None if described else masked(canonical_location(config.lake))
        return cls(_market(config), lake, config.hypothesis, None if described else _lake_id(config))


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried."""

    name: str  # name of the model or of the signal, for display
    forecast: Settings  # everything that makes it another forecast than its neighbour, as plain JSON values
    scope: Scope
    book: str | None = None  # name of the book, for display; None for what was only trained
    rule: Settings | None = None  # rule and options of the book, as plain JSON values

    @property
    def key(self) -> tuple[str, str]:
        """Digests of what is forecast and of what is traded (empty for nothing): the identity of a trial."""
        return digest(self.forecast), "" if self.rule is None else digest(self.rule)

    def traded(self, books: Mapping[str, Book]) -> list[Self]:
        """Return the trial of each book that trades the forecast."""
        return [replace(self, book=name, rule=book.model_dump(mode="json")) for name, book in books.items()]


def record_trials(output: Path, run_id: str, config: Config, settings: Mapping[str, Any]) -> None:
    """Record every model of a run as a trial, before it is trained."""
    record(output, run_id, model_trials(config, settings).values())


def model_trials(config: Config, settings: Mapping[str, Any]) -> dict[str, Trial]:
    """Return the trial of every model of a run without a book, by the model's name in the config."""
    scope = Scope.of(config)
    shared = {key: settings[key] for key in ("universe", "features", "label", "folds")}
    later = ("test_to", "through")  # a longer history, of a test or of a live training, is the same trial
    shared["folds"] = {key: value for key, value in settings["folds"].items() if key not in later}
    shared["market"] = scope.market
    trials = {}
    for name, model in settings["models"].items():
        # of an ensemble, the settings of the members count and their names do not
        own = {key: value for key, value in model.items() if not (key == "members" and OF in model)}
        trials[name] = Trial(model[KEY], {**own, **shared}, scope)
    return trials


def signal_trials(contents: Mapping[str, str], config: Config) -> dict[str, Trial]:
    """Return the trials of signals that are measured with a config, without a book, by their names."""
    scope = Scope.of(config)
    shared = {
        "universe": config.universe.model_dump(mode="json"),
        "group_by": config.features.group_by,
        "horizon": config.label.horizon,
        "market": scope.market,
    }
    return {name: Trial(name, {"content": content, **shared}, scope) for name, content in contents.items()}


def record(output: Path, run_id: str, trials: Iterable[Trial]) -> None:
    """Record trials in the ledger of an output folder; a trial that is there already is not counted again."""
    now, rows = dt.datetime.now(dt.UTC), {}
    for n, trial in enumerate(trials):
        named = {} if trial.scope.hypothesis is None else {"hypothesis": trial.scope.hypothesis}
        traded = {} if trial.rule is None else {"book": trial.rule}
        settings = {**trial.forecast, **traded, **named}
        forecast, book = trial.key
        rows[digest(settings)] = {
            "trial_id": digest(settings),
            "run_id": run_id,
            "model": trial.name,
            "config": json.dumps(settings, sort_keys=True, default=str),
            "created_at": now + dt.timedelta(microseconds=n),  # keeps the order
            "forecast": forecast,
            "traded": book,
            "book": trial.book,
            "hypothesis": trial.scope.hypothesis,
            "lake": trial.scope.lake,
            "lake_id": trial.scope.lake_id,
        }
    if not rows:
        return
    ledger, row_id = _ledger(output), keys("trials")
    texts = dict.fromkeys(("book", "hypothesis", "lake", "lake_id"), pl.String)
    new = pl.DataFrame(list(rows.values()), schema_overrides=texts)
    # a row is never replaced, for example by another name of the book
    new = new.join(ledger.rows("trials", row_id), on=row_id, how="anti")
    if new.height:
        ledger.upsert("trials", new)


def read_trials(output: Path) -> pl.DataFrame:
    """All trials, oldest first; ``forecast`` and ``traded`` are `Trial.key`, ``market`` numbers markets."""
    return _read(output, None)[0]


@dataclass(frozen=True, slots=True, eq=False)
class TrialCount:
    """The trials that count against a result, at the time of the call."""

    rows: pl.DataFrame
    on_market: pl.DataFrame  # the trials on the market that count under any hypothesis
    hypothesis: str | None  # the named hypothesis; None if the market is the hypothesis

    @property
    def trials(self) -> int:
        """Number of trials that count."""
        return self.rows.height

    @property
    def reach(self) -> str:
        """What the number covers, to stand behind "3 trials in the ledger": newest trial and hypothesis."""
        newest = self.rows["first_tried"].max()
        until = f" up to {newest:%Y-%m-%d %H:%M} UTC" if isinstance(newest, dt.datetime) else ""
        if self.hypothesis is None:
            return until
        return f"{until} for the hypothesis {self.hypothesis} ({self.on_market.height:,} on its market)"


def count_trials(output: Path, scope: Scope) -> TrialCount:
    """Count the trials of a scope that are in the ledger of an output folder by now."""
    rows, market = _read(output, scope)
    named = rows = rows.filter(pl.col("counts"), pl.col("market").eq_missing(pl.lit(market, pl.Int64)))
    if scope.hypothesis is not None:
        named = rows.filter(pl.col("hypotheses").list.contains(scope.hypothesis))
    return TrialCount(named, rows, scope.hypothesis)


def count_measured(output: Path, scope: Scope, first: dt.date, last: dt.date) -> int:
    """Count the trials on a scope's market, under any hypothesis, with returns between two dates."""
    found = read_returns(output, count_trials(output, scope).on_market)
    dates = pl.col("dates").list
    return found.filter(dates.max() >= first, dates.min() <= last).unique(["forecast", "traded"]).height


def ledger_state(output: Path) -> tuple[int | None, ...]:
    """Versions of the ledger's tables: while they are the same, the same trials count."""
    return tuple(_ledger(output).version(table) for table in ("trials", "trial_returns"))


def record_returns(output: Path, returns: Mapping[tuple[str, str, str], pl.DataFrame]) -> None:
    """Keep the daily returns of trials, from which their correlations and their order are computed."""
    now = dt.datetime.now(dt.UTC)
    rows = [
        frame.fill_nan(None)
        .drop_nulls()
        .sort("date")
        .select(
            pl.lit(forecast).alias("forecast"),
            pl.lit(traded).alias("traded"),
            pl.lit(assumptions).alias("assumptions"),
            pl.col("date").implode().alias("dates"),
            pl.col("excess_net").cast(pl.Float32).implode().alias("returns"),
            pl.lit(now).alias("created_at"),
        )
        for (forecast, traded, assumptions), frame in returns.items()
    ]
    if rows:
        _ledger(output).upsert("trial_returns", pl.concat(rows))


def read_returns(output: Path, trials: pl.DataFrame) -> pl.DataFrame:
    """Read the daily returns of trials: forecast, traded, assumptions, dates, returns, newest first."""
    own = pl.col("forecast").is_in(trials["forecast"].implode())
    rows = (
        _ledger(output).rows("trial_returns", filters=own).join(trials, on=["forecast", "traded"], how="semi")
    )
    columns = ("forecast", "traded", "assumptions", "dates", "returns")
    return rows.sort("created_at", descending=True).select(columns)


def share_trials(output: Path, store: OutputStoreConfig) -> None:
    """Exchange the trials of an output folder with the ledger of its copy, so that both hold all of them."""
    if store.url is None:
        return
    here, there = _ledger(output), Lake(f"{store.url.rstrip('/')}/{FOLDER}", store.options)
    for table in ("trials", "trial_returns"):
        for source, target in ((there, here), (here, there)):
            rows = source.rows(table).join(target.rows(table), on=keys(table), how="anti")
            if rows.height:
                target.upsert(table, rows)


def _read(output: Path, scope: Scope | None) -> tuple[pl.DataFrame, int | None]:
    """Return the rows of `read_trials`, and the number of the market of a scope."""
    rows = _ledger(output).rows("trials").sort("created_at", "run_id")
    known = [
        (_prices_of(json.loads(config).get("market") or {}), lake, lake_id)
        for config, lake, lake_id in rows.select("config", "lake", "lake_id").rows()
    ]
    if scope is not None:
        known.append((_prices_of(scope.market), scope.lake, scope.lake_id))
    markets = _number_markets(known)
    trials = (
        rows.with_columns(pl.Series("market", markets[: rows.height], dtype=pl.Int64))
        .group_by("forecast", "traded", maintain_order=True)
        .agg(
            pl.col("model", "book", "config", "market", "lake").first(),
            pl.col("hypothesis").drop_nulls().unique(maintain_order=True).alias("hypotheses"),
            pl.col("created_at").first().alias("first_tried"),
            pl.col("run_id").unique(maintain_order=True).alias("runs"),
        )
        .with_columns(counts=(pl.col("traded") != "") | (pl.len().over("forecast") == 1))
        .select(_COLUMNS)
    )
    return trials, markets[-1] if markets else None


def _number_markets(known: Sequence[tuple[str, str | None, str | None]]) -> list[int]:
    """Number the markets of prices with a lake's location and id: those that share one are one market."""
    import networkx as nx  # takes a moment

    shared = nx.Graph(
        (prices, node)
        for prices, *lake in known
        for node in (prices, *(named for named in enumerate(lake) if named[1] is not None))
    )
    parts = enumerate(nx.connected_components(shared), start=1)
    number = {node: n for n, part in parts for node in part}
    return [number[prices] for prices, *_ in known]


def _lake_id(config: Config) -> str | None:
    """Return the id of the prices of a config's lake; None if it is remote, or has none that can be read."""
    if is_url(config.lake):
        return None
    try:
        lake = Lake(config.lake)
        return lake.table_id("prices") if lake.exists("prices") else None
    except DataError:  # the trials of a lake that was lost or replaced can still be counted
        return None


def _prices_of(market: Settings) -> str:
    """Text of the settings that say whose prices a source gives; how it reads them makes no other market."""
    return json.dumps({key: market.get(key) for key in _PRICES}, sort_keys=True, default=str)


def _ledger(output: Path) -> Lake:
    return Lake(output / FOLDER)


def _market(config: Config) -> Settings:
    """Settings that identify the market of a source; files are identified by their absolute paths."""
    written = config.without_secrets()["source"]
    source = {key: value for key, value in written.items() if key not in _NOT_THE_MARKET}
    if config.source.kind == "simulated":
        return source | {"market": config.source.market.model_dump(mode="json", exclude={"sessions"})}
    if config.source.kind == "files":
        paths = {key: source[key] for key in _PATHS if source[key] is not None and "://" not in source[key]}
        source |= {key: str(Path(path).resolve()) for key, path in paths.items()}
    return source
