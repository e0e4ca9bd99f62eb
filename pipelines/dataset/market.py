"""The market of a config: prices, universe and labels as dense arrays, without any feature.

This is all that measuring a forecast needs. :mod:`pipelines.dataset.build` adds what models learn from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray, frozen
from features.panel.delistings import DelistingRule
from features.panel.holding import forward_returns
from features.panel.panel import Panel, build_panel
from features.panel.universe import decision_sessions, members, universe, universe_messages
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import unmatched_tickers
from pipelines.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Market:
    """Prices, universe (known at the close of t) and labels, which look ahead by definition."""

    panel: Panel  # prices, total-return index and groups of all firms
    universe_TN: BoolArray  # true where a firm may be forecast
    labels: Mapping[int, FloatArray]  # execution delay -> simple total return; NaN: not known yet
    notes: tuple[str, ...]  # what was left out, and why
    shorter_labels: Mapping[int, FloatArray] = field(default_factory=dict)  # horizon -> return
    flags: pl.DataFrame | None = None  # open flags on price rows; None if there is no table of them

    @property
    def first_session(self) -> int:
        """First session on which a firm is in the universe. Folds start here."""
        return int(np.argmax(self.universe_TN.any(axis=1)))


def build_market(
    tables: Mapping[str, pl.DataFrame], config: Config, newest_tickers: Mapping[str, str] | None = None
) -> Market:
    """Build the market of a config from lake tables; `newest_tickers` are those of `Panel`."""
    flags = open_flags(tables["flags"], config) if "flags" in tables else None
    wrong = None if flags is None else flags.filter(~pl.col("earns"))
    if wrong is not None:
        rules = {"price": "spike_that_reverts", "currency": "currency_jump"}
        wrong = wrong.select(
            "date", "ticker", **{name: pl.col("rule") == rule for name, rule in rules.items()}
        )
    panel = build_panel(
        tables["prices"],
        tables.get("securities"),
        tables.get("fundamentals"),
        gaps=tables.get("gaps"),
        group_by=config.features.group_by,
        delisting_rule=DelistingRule(unknown_return=config.label.unknown_delisting_return),
        per_year=config.label.periods_per_year,
        wrong=wrong,
    )
    for name, book in config.backtest.books.items():  # before anything is trained
        if book.needs_sectors and not panel.groups_S:
            raise ConfigError(
                f"backtest.books.{name} needs sectors, but no firm has {config.features.group_by!r} in the "
                "securities table; add it, choose another features.group_by, or remove 'sector' from neutral "
                "and max_sector_net from limits."
            )
    membership = _membership(tables, config)
    universe_TN = universe(panel, config.universe, membership)
    members_TN = None
    if membership is not None:
        members_TN = frozen(np.maximum.accumulate(members(membership, panel.dates_T, panel.tickers_N)))
    panel = replace(
        panel,
        universe_TN=frozen(universe_TN.copy()),
        members_TN=members_TN,
        newest_tickers=newest_tickers or {},
    )
    universe_TN &= decision_sessions(panel.dates_T, config.label.forecast_frequency)[:, None]
    if not universe_TN.any():
        raise DataError(
            f"The universe is empty on all {panel.n_sessions} sessions: no firm of {panel.n_firms} passes "
            f"{config.universe.model_dump(exclude_none=True)}; loosen universe.min_price, "
            "universe.min_dollar_volume or universe.min_history."
        )
    return Market(
        panel=panel,
        universe_TN=universe_TN,
        labels={delay: forward_returns(panel, delay, config.label.horizon) for delay in config.label.delays},
        notes=(*universe_messages(panel, config.universe), *unmatched_tickers(config.backtest, panel)),
        shorter_labels={
            horizon: forward_returns(panel, config.label.delay, horizon)
            for horizon in config.label.shorter_horizons
        },
        flags=flags,
    )


def open_flags(flags: pl.DataFrame, config: Config) -> pl.DataFrame:
    """Return the open flags on price rows: date, ticker, rule, evidence, earns (whether the row earns)."""
    return flags.filter((pl.col("table") == "prices") & ~pl.col("cleared")).select(
        "date", "ticker", "rule", "evidence", earns=~pl.col("rule").is_in(list(config.quality.earn_nothing))
    )


def _membership(tables: Mapping[str, pl.DataFrame], config: Config) -> pl.DataFrame | None:
    """Membership rows of the config's universe; None if the config names no universe."""
    name = config.universe.membership
    if name is None:
        return None
    table = tables.get("membership")
    rows = None if table is None else table.filter(pl.col("universe") == name)
    if rows is None or rows.is_empty():
        known = "none" if table is None else ", ".join(table["universe"].unique().sort().to_list())
        raise DataError(
            f"universe.membership is {name!r}, but the lake's membership table has {known}; ingest a source "
            "with this universe, or remove the setting."
        )
    return rows
