"""The subject of an audit: a config on its lake's data, or a run with its checkpoints and stored forecasts.

Shape suffixes: T sessions, N firms.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from backtest.look_ahead.delivery import Delivery
from backtest.splits.folds import Fold
from features.library.registry import Registry
from features.library.sets import channels_of, characteristics_of
from features.panel.panel import Panel, build_panel
from models.registry import MODELS
from pipelines.config.load import registry_name
from pipelines.config.schema import Config
from pipelines.dataset import folds as dataset_folds
from pipelines.dataset.build import Dataset
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.device import resolve_device
from pipelines.results.evaluate import forecasts_to_arrays
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun

AFTER = 40  # sessions of noise after t: enough for a presumed delisting, or for a label to change
EARLY = 20  # number of decision sessions at the start that count as early
QUICK_FIRMS = 300  # drawn for a quick audit; a full one looks at all
_SMALL = 300_000  # cells (sessions times firms) up to which a panel is used as a whole


@dataclass(frozen=True, slots=True)
class Budget:
    """Size of an audit: the quick one within ``peerglass run``, or the full one."""

    quick: bool
    sessions: int  # after which the future is replaced, for features and universe
    cuts: int  # sessions of all kinds of dates after which the future of a few firms is replaced
    refits: int  # sessions at which models are refitted on other data; of a run, folds that are checked
    epochs: int  # of a refit; each takes one step
    firms: int  # that are sampled for refits
    train: int  # decision dates of a refit
    valid: int
    folds: int  # whose fit is checked, at most
    permutations: int  # of the labels
    permuted_train: int  # training dates of a fit on permuted labels, at most


def budget(config: Config, *, quick: bool) -> Budget:
    """Return the budget that a config allows: the full one, or a part of it for a quick audit."""
    sessions = config.audit.sessions
    if quick:
        return Budget(True, max(sessions // 2, 1), sessions, 1, 1, 60, 30, 8, 1, 1, 300)
    return Budget(False, sessions, 10 * sessions, max(sessions // 3, 1), 4, 120, 60, 12, 4, 2, 600)


class FeatureKind(NamedTuple):
    """The features of a dataset that are of one kind."""

    word: str
    registry: Registry
    names: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """Inputs of the checks. A check must not modify its arrays and tables."""

    config: Config
    tables: Mapping[str, pl.DataFrame]  # that the config reads, at the audited versions
    dataset: Dataset
    budget: Budget
    quarantine: pl.DataFrame | None = None  # rejected rows that were neither resolved nor released
    run: RecordedRun | None = None  # whose checkpoints are audited; None for a config
    forecasts: pl.DataFrame | None = None  # stored ones of the run, of all horizons
    seed: int = 0  # of the noise and of all draws
    older: Mapping[str, pl.DataFrame] | None = None  # an earlier delivery of the same data

    @cached_property
    def folds(self) -> list[Fold]:
        """The walk-forward folds."""
        return dataset_folds.plan_folds(self.dataset, self.config)

    @cached_property
    def tested(self) -> dict[str, dict[int, np.ndarray]]:
        """Model -> seed -> stored forecasts (T, N) of the label's horizon, on the path of the tests."""
        if self.run is None or self.forecasts is None or self.forecasts.is_empty():
            return {}
        path = dataset_folds.path_of_tests(self.dataset, self.folds)
        own = self.forecasts.filter(pl.col("horizon") == self.config.label.horizon)
        on_path = own.join(path, on=["date", "fold"], how="semi")
        return dict(forecasts_to_arrays(on_path, self.dataset.panel))

    @cached_property
    def decisions(self) -> np.ndarray:
        """Sessions with a universe, on which forecasts are made."""
        return np.flatnonzero(self.dataset.universe_TN.any(axis=1))

    @cached_property
    def delivery(self) -> Delivery:
        """The data that the checks of data examine; a quick audit looks at `QUICK_FIRMS` firms of many."""
        data, count = self.dataset, self.dataset.panel.n_firms
        columns = np.arange(count)
        if self.budget.quick and count > QUICK_FIRMS:
            columns = np.sort(np.random.default_rng(self.seed).choice(count, QUICK_FIRMS, replace=False))
        named = enumerate(data.characteristic_names)
        every = {name: data.characteristics_TNF[:, :, f] for f, name in named}
        return Delivery(
            *(data.panel, data.universe_TN, self.tables, self.inputs, columns, self.config.label.horizon),
            channels={f"channel {n}": data.channels_TNC[:, :, c] for c, n in enumerate(data.channel_names)},
            characteristics={n: own for n, own in every.items() if not n.startswith(INPUT_PREFIX)},
            membership=self.config.universe.membership,
            rejected=self.quarantine,
            older=self.older,
        )

    @property
    def spacing(self) -> int:
        """Median number of sessions between two decisions."""
        return int(np.median(np.diff(self.decisions))) if len(self.decisions) > 1 else 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the user's own inputs in the dataset."""
        names = self.dataset.characteristic_names
        return tuple(name.removeprefix(INPUT_PREFIX) for name in names if name.startswith(INPUT_PREFIX))

    @property
    def kinds(self) -> tuple[FeatureKind, FeatureKind]:
        """The channels, and the characteristics that are not the user's own inputs."""
        data, expressions = self.dataset, self.config.features.expressions
        channels, every = channels_of(expressions), characteristics_of(expressions)
        own = tuple(name for name in data.characteristic_names if name in every)
        return FeatureKind("channel", channels, data.channel_names), FeatureKind("characteristic", every, own)

    def panel(self, tables: Mapping[str, pl.DataFrame]) -> Panel:
        """Build the panel of some tables."""
        optional = (tables.get(name) for name in ("securities", "fundamentals"))
        group_by = self.config.features.group_by
        return build_panel(tables["prices"], *optional, gaps=tables.get("gaps"), group_by=group_by)

    @cached_property
    def lookback(self) -> int:
        """Sessions before t that a dataset needs to be complete at t."""
        windows = [kind.registry[name].window for kind in self.kinds for name in kind.names]
        windows.append(self.config.features.hold_inputs + 2)
        rule = self.config.universe
        return max(*windows, rule.min_history, rule.dollar_volume_window) + self.config.features.window + 5

    def day(self, t: int) -> dt.date:
        """Date of a session."""
        return cast("dt.date", self.dataset.panel.dates_T[t].item())

    def window(
        self, first: int, last: int, tables: Mapping[str, pl.DataFrame] | None = None
    ) -> dict[str, pl.DataFrame]:
        """Restrict tables to some sessions where that saves work; earlier statements are kept."""
        T, N = self.dataset.panel.n_sessions, self.dataset.panel.n_firms
        first, last = max(first, 0), min(last, T - 1)
        if tables is None and (T * N <= _SMALL or (first == 0 and last == T - 1)):
            return dict(self.tables)
        start, end = self.day(first), self.day(last)
        within = pl.col("date").is_between(start, end)
        carried = pl.col("period_end") >= start - dt.timedelta(days=1100)
        rows = {"prices": within, "inputs": within, "fundamentals": (pl.col("known_at") <= end) & carried}
        return {
            name: frame.filter(rows[name]) if name in rows else frame
            for name, frame in (self.tables if tables is None else tables).items()
        }

    def sample_firms(self, tables: Mapping[str, pl.DataFrame], count: int) -> dict[str, pl.DataFrame]:
        """Sample firms from the tables, for computations that would take too long on all of them."""
        firms = tables["prices"]["ticker"].unique().sort()
        if len(firms) <= count:
            return dict(tables)
        counted = tables["prices"].group_by("ticker").len().sort("len", "ticker", descending=[True, False])
        often = counted.head(3 * count)["ticker"].sort()
        drawn = np.random.default_rng(self.seed).choice(len(often), min(count, len(often)), replace=False)
        kept = often.gather(np.sort(drawn))
        return {name: frame.filter(pl.col("ticker").is_in(kept.implode())) for name, frame in tables.items()}

    def times(self, count: int) -> list[int]:
        """Sample sessions t with a universe: an early one, where most is unknown, eves of events, others."""
        rng = np.random.default_rng((self.seed, 1))
        usable = self.decisions[self.decisions < self.dataset.panel.n_sessions - 3]
        eves = np.intersect1d(usable, self.eves)
        chosen: list[int] = []
        for pool, total in ((usable[:EARLY], 1), (eves, (count + 2) // 2), (usable, count)):
            left = np.setdiff1d(pool, chosen)
            chosen += rng.choice(left, min(max(total - len(chosen), 0), len(left)), replace=False).tolist()
        return sorted(chosen)

    @cached_property
    def eves(self) -> np.ndarray:
        """Sessions just before a listing, halt, delisting, split, publication or membership change."""
        known_TN = np.isfinite(self.dataset.panel.close_TN)
        changes_T = (known_TN[1:] != known_TN[:-1]).any(axis=1)
        dates_T = self.dataset.panel.dates_T
        days = [self.tables["prices"].filter(pl.col("split_ratio") != 1.0)["date"]]
        named = (("fundamentals", "known_at"), ("membership", "from_date"), ("membership", "to_date"))
        days += [self.tables[name][column].drop_nulls() for name, column in named if name in self.tables]
        dated = np.unique(pl.concat(one.rename("day") for one in days).to_numpy())
        at = np.searchsorted(dates_T, dated)
        return np.union1d(np.flatnonzero(changes_T), at[(at > 0) & (at < len(dates_T))] - 1)


@contextmanager
def temporary_run(config: Config) -> Iterator[RecordedRun]:
    """A run in a temporary folder, to fit models through the pipeline's own tasks."""
    with TemporaryDirectory(prefix="peerglass-audit-") as folder:
        yield RecordedRun("audit", config, Identity.nothing(), Path(folder))


def small_fit_config(config: Config, models: tuple[str, ...], epochs: int = 1) -> Config:
    """A config for fast fits: epochs of one step, few trees, and two seeds where they are needed."""
    settings = {}
    for name in models:
        own, entry = dict(config.models[name]), MODELS[registry_name(config, name)]
        own |= entry.build.quick
        fit = own.get("fit", {})
        own["fit"] = {**fit, "epochs": epochs, "dates_per_epoch": 8, "batch_dates": 8, "valid_dates": 4}
        pretrain = {**config.fit, **fit}.get("pretrain")
        if pretrain and entry.has_day_encoder:
            own["fit"]["pretrain"] = {**pretrain, "epochs": 1, "windows_per_epoch": 512}
        settings[name] = own
    stacked = resolve_device(config.device) != "cpu" if config.stack_seeds is None else config.stack_seeds
    seeds = 2 if stacked or (config.execution.workers != 1 and len(models) == 1) else 1
    changes = {"models": settings, "seeds": config.seeds[:seeds], "stack_seeds": stacked, "device": "cpu"}
    return config.model_copy(update=changes)
